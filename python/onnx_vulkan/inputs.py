"""Deterministic inputs for a model nobody has given inputs for: made from each input's name, element type and shape.

The same input always gets the same numbers, on every machine. Names say what an integer input means: masks are ones, positions
count up, token ids are small. An image gets dark strokes on a light ground, since detectors answer nothing but zeros to noise.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.dims import Dim, Extent, evaluate, symbols_of
from onnx_vulkan.dtypes import SMALL_FLOATS, SMALL_INTS, DType
from onnx_vulkan.errors import InvalidInput
from onnx_vulkan.graph import Graph, TensorType

__all__ = ["bound_dims", "check_dims", "make_input", "make_inputs", "unbound_dims"]

Array = NDArray[Any]

_TOKENS = 32  # ids below this are in every vocabulary


def unbound_dims(graph: Graph) -> list[str]:
    """The names of the dims that a run has to give, in the order in which the inputs name them."""
    names: dict[str, None] = {}
    for name in graph.inputs:
        for e in _type(graph, name).shape or ():
            names.update(dict.fromkeys(sorted(symbols_of(e))))
    return list(names)


def check_dims(graph: Graph, dims: Mapping[str, int]) -> None:
    """Raises InvalidInput for a dim that the model does not have."""
    known = set(unbound_dims(graph))
    strange = [name for name in dims if name not in known]
    if strange:
        there = f"its dims without a number are {', '.join(sorted(known))}" if known else "all its dims have numbers"
        raise InvalidInput(f"the model has no dim {strange[0]!r}; {there}.")


def make_inputs(
    graph: Graph, dims: Mapping[str, int], given: Mapping[str, Array] | None = None, *, valued: int | None = None
) -> dict[str, Array]:
    """An array for every input of *graph* (overridable constants keep their default).

    Arrays of more elements than *valued* only have a shape: they are zeros that take no memory.

    *dims* gives the numbers of symbolic dims; *given* arrays are taken as they are, and bind the dims that they show. Raises
    InvalidInput, naming every dim without a number, an unknown input or dim, or an array that does not fit.
    """
    given = dict(given or {})
    unknown = [name for name in given if name not in graph.inputs]
    if unknown:
        raise InvalidInput(f"the model has no input {unknown[0]!r}; its inputs are {', '.join(map(repr, graph.inputs))}.")
    check_dims(graph, dims)
    numbers = {k: int(v) for k, v in dims.items()}
    for name, array in given.items():
        _bind(name, _type(graph, name), array, numbers)
    out: dict[str, Array] = dict(given)
    missing: dict[str, None] = {}
    for name in graph.inputs:
        if name in out or name in graph.defaults:
            continue
        for e in _type(graph, name).shape or ():
            missing.update(dict.fromkeys(n for n in sorted(symbols_of(e)) if n not in numbers))
    if missing:
        from onnx_vulkan.inspect.decoder import as_options, example_dims, find_decoder

        example = as_options(next(example_dims(graph, find_decoder(graph))))
        raise InvalidInput(f"these dims have no number: {', '.join(missing)}. Give each one, for example: {example}")
    longest = 1
    for name in graph.inputs:
        t = _type(graph, name)
        if t.dtype is not None and t.dtype.is_int and t.shape and name not in graph.defaults:
            longest = max(longest, evaluate(t.shape[-1], numbers))
    for name in graph.inputs:
        if name not in out and name not in graph.defaults:
            out[name] = make_input(name, _type(graph, name), numbers, longest, valued)
    return {name: out[name] for name in graph.inputs if name in out}


def bound_dims(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, int]:
    """The numbers of the dims that *feeds* show. Raises InvalidInput where an array does not fit its input."""
    numbers: dict[str, int] = {}
    for name, array in feeds.items():
        _bind(name, _type(graph, name), array, numbers)
    return numbers


def _type(graph: Graph, name: str) -> TensorType:
    return graph.types.get(name, TensorType(None, None, "an undeclared type"))


def _bind(name: str, declared: TensorType, array: Array, numbers: dict[str, int]) -> None:
    if declared.dtype is not None and array.dtype != declared.dtype.numpy:
        raise InvalidInput(f"input {name!r} is {array.dtype}, but the model wants {declared.dtype.onnx_name}.")
    if declared.shape is None:
        return
    shown = "[" + ", ".join(map(str, declared.shape)) + "]"
    if len(declared.shape) != array.ndim:
        raise InvalidInput(f"input {name!r} has the shape {list(array.shape)}, but the model wants {shown}.")
    for e, n in zip(declared.shape, array.shape, strict=True):
        want = numbers.setdefault(str(e), n) if isinstance(e, Dim) and symbols_of(e) == {str(e)} else e
        if isinstance(want, int) and want != n:
            here = f" with {e} = {want}" if isinstance(e, Dim) else ""
            raise InvalidInput(f"input {name!r} has the shape {list(array.shape)}, but the model wants {shown}{here}.")


def make_input(name: str, declared: TensorType, dims: Mapping[str, int], longest: int = 1, valued: int | None = None) -> Array:
    """The array for one input. *longest* is the length of the longest sequence, for inputs that are a length.

    *valued* is that of :func:`make_inputs`.
    """
    if declared.dtype is None or declared.shape is None:
        what = declared.type_name or "of unknown rank"
        raise InvalidInput(f"input {name!r} is {what}: give it with --input {name}=FILE.npy")
    shape = tuple(_number(e, dims) for e in declared.shape)
    if valued is not None and math.prod(shape) > valued:
        return np.broadcast_to(np.zeros((), declared.dtype.numpy), shape)
    rng = np.random.default_rng(list(hashlib.sha256(f"{name}{shape}".encode()).digest()[:8]))
    made: Array
    if declared.dtype.is_float:
        made = _float(name, shape, rng)
    elif declared.dtype is DType.BOOL:
        made = np.ones(shape, bool)
    elif declared.dtype in SMALL_FLOATS:
        made = np.exp2(rng.integers(-4, 4, shape)) if declared.dtype is DType.F8E8M0 else rng.standard_normal(shape)
    elif declared.dtype in SMALL_INTS:
        made = rng.integers(0, 1 << declared.dtype.bits, shape)
    elif declared.dtype is DType.U8 and len(shape) >= 3:
        made = rng.integers(0, 256, shape)
    else:
        made = _integer(name.lower(), shape, rng, longest)
    return made.astype(declared.dtype.numpy)


def _number(e: Extent, dims: Mapping[str, int]) -> int:
    return evaluate(e, dims)


def _float(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    if "mask" in name.lower():
        return np.zeros(shape) if "bias" in name.lower() else np.ones(shape)
    if len(shape) == 4 and shape[1] in (1, 3, 4) and min(shape[2:]) >= 16:
        return _page(shape, rng)
    if len(shape) == 4 and shape[3] in (1, 3, 4) and min(shape[1:3]) >= 16:
        return _page((shape[0], shape[3], shape[1], shape[2]), rng).transpose(0, 2, 3, 1)
    return rng.standard_normal(shape, dtype=np.float32)


def _page(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Rows of dark strokes on a light ground, from about -2 to 2."""
    n, _, height, width = shape
    page: Array = np.full(shape, 2.0)
    letter = max(4, min(24, height // 3))
    for image in page[:n]:
        for top in range(letter // 2, max(1, height - letter), 2 * letter):
            for left in range(letter, max(letter + 1, width - letter), letter // 2 + 2):
                if rng.random() < 0.2:
                    continue  # a gap between words
                stroke = max(1, letter // 6)
                image[:, top : top + letter, left : left + stroke] = -2.0
                cross = top + int(rng.integers(0, letter))
                image[:, cross : cross + stroke, left : left + letter // 2] = -2.0
    return page + 0.05 * rng.standard_normal(shape)


def _integer(name: str, shape: tuple[int, ...], rng: np.random.Generator, longest: int) -> Array:
    if "mask" in name:
        return np.ones(shape)
    if "position" in name:
        return np.broadcast_to(np.arange(shape[-1] if shape else 1), shape) if shape else np.zeros(shape)
    if "token_type" in name or "segment" in name:
        return np.zeros(shape)
    if name in ("sr", "rate") or "sample_rate" in name or "sampling_rate" in name:
        return np.full(shape, 16000)
    if "seqlens_k" in name:
        return np.full(shape, longest - 1)
    if "length" in name or name.endswith(("_len", "_lens")):
        return np.full(shape, longest)
    return rng.integers(0, _TOKENS, shape)
