"""Recognises a decoder with a KV cache, and says how its dims hang together; numbers for dims that nobody has given."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from onnx_vulkan.dims import Dim, Extent, Scope, same, symbol
from onnx_vulkan.graph import Graph, TensorType
from onnx_vulkan.inputs import unbound_dims
from onnx_vulkan.lower import lower_graph

__all__ = ["Decoder", "as_options", "example_dims", "find_decoder"]

PAST = 16
"""Positions in the cache of an example."""
SIZES = ((224, 16), (48, 16), (224, 512))
"""Height and width of an image, and any other dim, in an example: the first pair that the model takes."""

_CACHE = re.compile(r"(past|present)(_key_values|_kv|_cache)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Decoder:
    """A model whose outputs are the next run's cache.

    ``caches`` are (input, output) of each cache that grows along ``axis`` from ``past`` by ``new`` positions. ``total``: the dim
    of an input that has to be the sum. ``fixed``: dims of the cache that only one number fits.
    """

    caches: tuple[tuple[str, str], ...]
    axis: int
    past: str
    new: int | str
    total: str | None
    fixed: Mapping[str, int]

    @property
    def relation(self) -> str:
        """How the dims hang together, in a sentence without its full stop."""
        parts = []
        if self.total is not None:
            parts.append(f"{self.total} = {self.past} + {self.new}, each at least 1")
        else:
            parts.append(f"each run adds {self.new} to {self.past}")
        parts += [f"{name} = {n}" for name, n in self.fixed.items()]
        return "; ".join(parts)

    @property
    def data(self) -> dict[str, Any]:
        """What JSON has."""
        return {
            "caches": [{"input": i, "output": o} for i, o in self.caches],
            "axis": self.axis,
            "past": self.past,
            "new": self.new,
            "total": self.total,
            "fixed": dict(self.fixed),
            "relation": self.relation,
        }

    def example(self) -> dict[str, int]:
        """Numbers for a run that adds one position."""
        new = {} if isinstance(self.new, int) else {self.new: 1}
        total = {} if self.total is None else {self.total: PAST + (self.new if isinstance(self.new, int) else 1)}
        return {self.past: PAST, **new, **total, **self.fixed}


def find_decoder(graph: Graph) -> Decoder | None:
    """The decoder that *graph* is, or None: inputs named ``past...`` that outputs named ``present...`` continue."""
    outputs = {_CACHE.sub("@", name): n for n, name in enumerate(graph.outputs) if "present" in name.lower()}
    pairs = [
        (name, outputs[key]) for name in graph.inputs if "past" in name.lower() and (key := _CACHE.sub("@", name)) in outputs
    ]
    if not pairs:
        return None
    with Scope(None):
        made = lower_graph(graph, strict=False).outputs
        total = _total(graph)
        caches = []
        fixed: dict[str, int] = {}
        grows: tuple[int, str, int | str] | None = None
        for name, n in pairs:
            before, after = _shape(graph.types.get(name)), _shape(made[n])
            if before is None or after is None or len(before) != len(after):
                continue
            here = [(axis, b, a) for axis, (b, a) in enumerate(zip(before, after, strict=True)) if not same(b, a)]
            fixed.update({str(b): a for _, b, a in here if _is_symbol(b) and isinstance(a, int)})
            growing = [(axis, str(b), a) for axis, b, a in here if _is_symbol(b) and not isinstance(a, int)]
            if len(growing) != 1:
                continue
            axis, past, after_ = growing[0]
            new = _new(graph, symbol(past), after_, total)
            if new is None or grows not in (None, (axis, past, new)):
                continue
            grows = (axis, past, new)
            caches.append((name, graph.outputs[n]))
    if grows is None:
        return None
    return Decoder(tuple(caches), *grows, total if total != grows[1] else None, fixed)


def _shape(t: TensorType | None) -> tuple[Extent, ...] | None:
    return None if t is None else t.shape


def _is_symbol(e: Extent) -> bool:
    return isinstance(e, Dim) and str(e).isidentifier()


def _sequence(graph: Graph) -> Extent | None:
    """The length of the new tokens (or of their embeddings)."""
    for name in graph.inputs:
        shape = _shape(graph.types.get(name))
        if shape is not None and len(shape) in (2, 3) and re.search("input_ids|inputs_embeds|tokens", name.lower()):
            return shape[1]
    return None


def _total(graph: Graph) -> str | None:
    """The dim of an attention mask over cache and new tokens, where it is one of its own."""
    for name in graph.inputs:
        shape = _shape(graph.types.get(name))
        if shape and "mask" in name.lower() and _is_symbol(shape[-1]) and str(shape[-1]) != str(_sequence(graph)):
            return str(shape[-1])
    return None


def _new(graph: Graph, past: Extent, after: Extent, total: str | None) -> int | str | None:
    """How many positions a run adds: a number, a dim, or None where that is not plain."""
    if total is not None and str(after) == total:
        sequence = _sequence(graph)
        return None if sequence is None else sequence if isinstance(sequence, int) else str(sequence)
    added = after - past
    return added if isinstance(added, int) else str(added) if _is_symbol(added) else None


def example_dims(graph: Graph, decoder: Decoder | None) -> Iterator[dict[str, int]]:
    """Numbers for every dim that a run has to give, the likeliest first: a batch of 1, a small image, a short sequence, one step
    of a decoder."""
    wanted = unbound_dims(graph)
    for image_size, length in SIZES:
        numbers = decoder.example() if decoder is not None else {}
        for name in graph.inputs:
            t = graph.types.get(name)
            image = t is not None and t.dtype is not None and t.dtype.is_float and len(t.shape or ()) == 4
            for axis, e in enumerate(_shape(t) or ()):
                batch = axis == 0 or "batch" in str(e).lower()
                numbers.setdefault(str(e), 1 if batch else image_size if image else length)
        yield {name: numbers.get(name, length) for name in wanted}


def as_options(dims: Mapping[str, int]) -> str:
    """``--dim batch=1 --dim sequence=16``."""
    return " ".join(f"--dim {name}={n}" for name, n in dims.items())
