"""Turn a skeleton ONNX file back into a runnable model.

A skeleton is the graph an exporter wrote, without its weights: every large
initializer keeps its name, type and dims but has no data.  One entry of the
model's ``metadata_props`` (key ``hydrate``) holds a JSON object that says, per
initializer, how to fill it:

======================  =======================================================
kind                    meaning of the other keys
======================  =======================================================
``constant``            every element is ``value``
``normal``              ``mean``, ``std``; optional ``low``/``high`` clip bounds;
                        optional ``center``: each row along the first axis is
                        shifted to mean 0 before ``std`` and ``mean`` apply
``normal_int``          the same, rounded to integers; clip bounds required
``uniform``             floats in ``[low, high)``
``uniform_int``         integers in ``[low, high]``
``rope_cos``            row *p*, column *i* is ``scale*cos(p / theta**(2i/dim))``
``rope_sin``            the same with ``sin``
``sinusoids``           row *p* is ``sin(p*f) ++ cos(p*f)``, where ``f`` is the
                        geometric series from 1 to ``1/max_timescale``
``sinusoids_2d``        the same idea over a ``grid`` of two axes (detectors)
``arange``              ``start + i`` at index *i* of the last axis
``lzma``                ``data``: base64 of the xz-compressed little-endian bytes
======================  =======================================================

Random kinds are deterministic: each tensor has its own PCG64 stream, seeded
with the SHA-256 of the tensor's name, so neither order nor file matters.

Command line::

    python hydrate.py --list              what there is
    python hydrate.py NAME [NAME ...]     write runnable models to ./hydrated
    python hydrate.py NAME --inputs       also write an .npz per input recipe

From Python: :func:`hydrate` writes a model, :func:`load_catalog` reads the
catalog and :func:`make_inputs` builds the feeds of one of its input recipes.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import lzma
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from onnx import TensorProto

HERE = Path(__file__).resolve().parent
CATALOG = HERE / "catalog.json"

METADATA_KEY = "hydrate"
CHUNK = 1 << 22  # elements made at a time: bounds the memory used
EXTERNAL_ABOVE = 100 * 1000 * 1000  # bytes of weights that still go inline
ALIGNMENT = 4096  # of each tensor in an external data file

Spec = Mapping[str, Any]


def _count(dims: Sequence[int]) -> int:
    return int(np.prod(dims, dtype=np.int64))


def _rng(name: str) -> np.random.Generator:
    """The random stream that belongs to *name*."""
    digest = hashlib.sha256(name.encode("utf-8")).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))


def _cast(values: np.ndarray, dtype: np.dtype, spec: Spec) -> np.ndarray:
    """Clip *values* to the bounds in *spec*, if any, and convert them."""
    if "low" in spec or "high" in spec:
        values = np.clip(values, spec.get("low"), spec.get("high"))
    if dtype.kind in "iu":
        values = np.rint(values)
    return values.astype(dtype)


def _normal_chunks(spec: Spec, dtype: np.dtype, dims: Sequence[int], rng: np.random.Generator) -> Iterator[np.ndarray]:
    real = np.float64 if dtype == np.float64 else np.float32
    count = _count(dims)
    # Rows are centred as a whole, so a centred tensor is made in one piece.
    step = count if spec.get("center") else CHUNK
    for start in range(0, count, max(step, 1)):
        values = rng.standard_normal(min(step, count - start), dtype=real)
        if spec.get("center"):
            rows = values.reshape(dims[0], -1)
            rows -= rows.mean(axis=1, keepdims=True, dtype=np.float64).astype(real)
        values *= real(spec["std"])
        values += real(spec["mean"])
        yield _cast(values, dtype, spec)


def _uniform_chunks(spec: Spec, dtype: np.dtype, count: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    low, high = spec["low"], spec["high"]
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        if spec["kind"] == "uniform":
            yield rng.uniform(low, high, size).astype(dtype)
        else:
            yield rng.integers(low, high, size, dtype=dtype, endpoint=True)


def _rope(spec: Spec, dims: Sequence[int]) -> np.ndarray:
    rows, columns = dims
    exponent = np.arange(columns, dtype=np.float64) * 2 / spec["dim"]
    angle = np.outer(np.arange(rows), spec["theta"] ** -exponent)
    wave: np.ndarray = np.cos(angle) if spec["kind"] == "rope_cos" else np.sin(angle)
    wave *= spec.get("scale", 1.0)
    return wave


def _sinusoids(positions: np.ndarray, half: int, step: float) -> np.ndarray:
    """``sin ++ cos`` of every position at *half* geometric frequencies."""
    angle = np.outer(positions, np.exp(-step * np.arange(half)))
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)


def _structured(spec: Spec, dtype: np.dtype, dims: Sequence[int]) -> np.ndarray:
    kind = spec["kind"]
    if kind in ("rope_cos", "rope_sin"):
        return _rope(spec, dims).astype(dtype)
    if kind == "sinusoids":
        half = dims[-1] // 2
        step = np.log(spec["max_timescale"]) / (half - 1)
        return _sinusoids(np.arange(dims[-2]), half, step).astype(dtype)
    if kind == "sinusoids_2d":
        quarter = dims[-1] // 4
        step = np.log(spec["max_timescale"]) / quarter
        rows, columns = np.indices(spec["grid"]).reshape(2, -1)
        axes = (columns, rows) if spec["columns_first"] else (rows, columns)
        halves = [_sinusoids(axis, quarter, step) for axis in axes]
        return np.concatenate(halves, axis=1).astype(dtype)
    if kind == "arange":
        row = np.arange(spec["start"], spec["start"] + dims[-1])
        return np.broadcast_to(row, tuple(dims)).astype(dtype)
    if kind == "lzma":
        raw = lzma.decompress(base64.b64decode(spec["data"]))
        return np.frombuffer(raw, dtype=dtype.newbyteorder("<"))
    raise ValueError(f"unknown fill kind: {kind!r}")


def fill_chunks(spec: Spec, name: str, dtype: np.dtype, dims: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield the elements of tensor *name* in order, in flat pieces."""
    dtype = np.dtype(dtype)
    count = _count(dims)
    kind = spec["kind"]
    if kind == "constant":
        for start in range(0, count, CHUNK):
            yield np.full(min(CHUNK, count - start), spec["value"], dtype=dtype)
    elif kind in ("normal", "normal_int"):
        yield from _normal_chunks(spec, dtype, dims, _rng(name))
    elif kind in ("uniform", "uniform_int"):
        yield from _uniform_chunks(spec, dtype, count, _rng(name))
    else:
        values = _structured(spec, dtype, dims)
        if values.size != count:
            raise ValueError(f"{name}: {kind} gives {values.size}, not {count}")
        yield values.reshape(-1)


def fill(spec: Spec, name: str, dtype: np.dtype, dims: Sequence[int]) -> np.ndarray:
    """The whole of tensor *name* as one array."""
    parts = list(fill_chunks(spec, name, dtype, dims))
    flat = np.concatenate(parts) if parts else np.empty(0, dtype=dtype)
    return flat.reshape(tuple(dims))


def iter_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """*graph* and every graph nested in its nodes' attributes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from iter_graphs(attribute.g)
            for nested in attribute.graphs:
                yield from iter_graphs(nested)


def pop_fills(model: onnx.ModelProto) -> dict[str, Spec]:
    """Take the fill table out of *model*'s metadata and return it."""
    fills: dict[str, Spec] = {}
    kept = []
    for entry in model.metadata_props:
        if entry.key == METADATA_KEY:
            fills = json.loads(entry.value)
        else:
            kept.append((entry.key, entry.value))
    del model.metadata_props[:]
    for key, value in kept:
        model.metadata_props.add(key=key, value=value)
    return fills


def _numpy_dtype(tensor: TensorProto) -> np.dtype:
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))


def _bytes_of(chunk: np.ndarray) -> bytes:
    return chunk.astype(chunk.dtype.newbyteorder("<"), copy=False).tobytes()


def _write_external(tensor: TensorProto, spec: Spec, stream: BinaryIO, location: str) -> None:
    """Append *tensor*'s data to *stream* and point the tensor there."""
    stream.write(b"\0" * (-stream.tell() % ALIGNMENT))
    offset = stream.tell()
    chunks = fill_chunks(spec, tensor.name, _numpy_dtype(tensor), tensor.dims)
    stream.writelines(map(_bytes_of, chunks))
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (
        ("location", location),
        ("offset", str(offset)),
        ("length", str(stream.tell() - offset)),
    ):
        tensor.external_data.add(key=key, value=value)


def hydrate(skeleton: Path, out_dir: Path) -> Path:
    """Write the runnable model of *skeleton* into *out_dir*; return its path.

    Weights of more than 100 MB go to a ``.onnx.data`` file next to the model.
    """
    model = onnx.load(str(skeleton), load_external_data=False)
    fills = pop_fills(model)
    empty = [tensor for graph in iter_graphs(model.graph) for tensor in graph.initializer if tensor.name in fills]
    missing = set(fills) - {tensor.name for tensor in empty}
    if missing:
        raise ValueError(f"{skeleton.name}: no initializer named {sorted(missing)}")
    total = sum(_count(tensor.dims) * _numpy_dtype(tensor).itemsize for tensor in empty)

    out_dir.mkdir(parents=True, exist_ok=True)
    target = out_dir / skeleton.name
    data = target.with_name(target.name + ".data")
    data.unlink(missing_ok=True)
    if total > EXTERNAL_ABOVE:
        with data.open("wb") as stream:
            for tensor in empty:
                _write_external(tensor, fills[tensor.name], stream, data.name)
    else:
        for tensor in empty:
            chunks = fill_chunks(fills[tensor.name], tensor.name, _numpy_dtype(tensor), tensor.dims)
            tensor.raw_data = b"".join(map(_bytes_of, chunks))
    target.write_bytes(model.SerializeToString())
    return target


def load_catalog(path: Path = CATALOG) -> dict[str, Any]:
    """The catalog's models by name."""
    models: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["models"]
    return models


def make_inputs(entry: Mapping[str, Any], recipe: str) -> dict[str, np.ndarray]:
    """The feeds of input *recipe* of the catalog *entry*.

    A recipe's keys are input names, or patterns such as
    ``past_key_values.*.key`` that stand for every input they match.
    """
    feeds: dict[str, np.ndarray] = {}
    for pattern, spec in entry["recipes"][recipe].items():
        dtype = np.dtype(spec["dtype"])
        for value in entry["inputs"]:
            name = value["name"]
            if fnmatchcase(name, pattern):
                feeds[name] = fill(spec["fill"], name, dtype, spec["shape"])
    return feeds


def _shape_text(dims: Sequence[int | str]) -> str:
    return "[" + ",".join(str(dim) for dim in dims) + "]"


def _fill_text(spec: Spec) -> str:
    rest = ",".join(f"{key}={value}" for key, value in spec.items() if key != "kind")
    return f"{spec['kind']}({rest})"


def _grouped_inputs(entry: Mapping[str, Any]) -> dict[str, int]:
    """The inputs as text, those that differ only by a number counted as one."""
    counts: dict[str, int] = {}
    for value in entry["inputs"]:
        name = re.sub(r"\.\d+\.", ".*.", value["name"])
        text = f"{name}: {value['dtype']}{_shape_text(value['shape'])}"
        counts[text] = counts.get(text, 0) + 1
    return counts


def print_list(catalog: Mapping[str, Any], stream: Any = sys.stdout) -> None:
    """Describe every model of the catalog on *stream*."""
    for name, entry in catalog.items():
        opsets = " ".join(f"{k or 'ai.onnx'}:{v}" for k, v in entry["opsets"].items())
        megabytes = entry["hydrated_bytes"] / 1e6
        print(
            f"{name}\n  opset {opsets}, {entry['nodes']} nodes, {megabytes:.1f} MB hydrated, by {entry['exporter']}",
            file=stream,
        )
        for text, count in _grouped_inputs(entry).items():
            times = f" (x{count})" if count > 1 else ""
            print(f"  input {text}{times}", file=stream)
        for recipe, feeds in entry["recipes"].items():
            text = "; ".join(f"{key}={_shape_text(spec['shape'])} {_fill_text(spec['fill'])}" for key, spec in feeds.items())
            print(f"  recipe {recipe}: {text}", file=stream)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description="Turn skeleton ONNX files back into runnable models.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="skeleton to hydrate")
    parser.add_argument("--list", action="store_true", help="describe all skeletons")
    parser.add_argument("--out", type=Path, default=Path("hydrated"), help="folder to write to")
    parser.add_argument("--inputs", action="store_true", help="also write NAME.RECIPE.npz files")
    options = parser.parse_args(argv)
    if not options.list and not options.names:
        parser.error("give a NAME, or --list")
    catalog = load_catalog()
    unknown = [name for name in options.names if name not in catalog]
    if unknown:
        parser.error(f"no such skeleton: {', '.join(unknown)} (see --list)")
    if options.list:
        print_list(catalog)
    for name in options.names:
        entry = catalog[name]
        print(hydrate(HERE / entry["file"], options.out))
        if options.inputs:
            for recipe in entry["recipes"]:
                path = options.out / f"{name}.{recipe}.npz"
                feeds: dict[str, Any] = {**make_inputs(entry, recipe)}
                np.savez(path, **feeds)
                print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
