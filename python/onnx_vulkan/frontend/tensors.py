"""TensorProto and SparseTensorProto as numpy arrays, without copies where the bytes can be viewed. No graphs here.

``raw_data`` and external data become read-only views; typed fields (``float_data``, ...) are converted. Elements below a byte
(int4, ...) stay packed in constants, and take a byte each in arrays (``ml_dtypes``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnx_vulkan.dtypes import SMALL, DType
from onnx_vulkan.errors import ModelError
from onnx_vulkan.graph import Array
from onnx_vulkan.packing import Packed, unpacked

__all__ = ["ExternalData", "array_of", "constant_of", "origin", "sparse_array_of", "type_text"]

_T = onnx.TensorProto

# ONNX element type -> numpy dtype. What is missing cannot be read.
_NUMPY: dict[int, Any] = {t.value: t.numpy for t in DType} | {_T.COMPLEX64: np.complex64, _T.COMPLEX128: np.complex128}
_SUB_BYTE = {t.value: t for t in SMALL if t.bits < 8}

# Where the typed (non-raw) form of each element type is stored. int32_data holds the bits of everything up to 32 bits wide.
_WIDE_FIELDS: dict[int, tuple[str, Any]] = {
    _T.FLOAT: ("float_data", np.float32),
    _T.COMPLEX64: ("float_data", np.float32),
    _T.DOUBLE: ("double_data", np.float64),
    _T.COMPLEX128: ("double_data", np.float64),
    _T.INT64: ("int64_data", np.int64),
    _T.UINT32: ("uint64_data", np.uint64),
    _T.UINT64: ("uint64_data", np.uint64),
}

# A tensor that says it is larger than this without bytes to show for it (sparse) is taken for a broken file.
_MAX_DENSE = 1 << 32


def type_text(elem_type: int) -> str:
    """ONNX's word for an element type, e.g. ``float16``; its number where there is none."""
    try:
        name: str = _T.DataType.Name(elem_type)
    except ValueError:
        return f"{elem_type}"
    return name.lower()


class ExternalData:
    """Maps the data files of one model, each once. ``base_dir`` is the model's folder; None when there is none."""

    def __init__(self, base_dir: str | os.PathLike[str] | None, model_file: Path | None = None):
        self._base = Path(base_dir) if base_dir is not None else None
        # A download cache may keep the model as a link to another folder; its data lies beside the real file then.
        roots = {p.resolve() for p in (self._base, model_file.resolve().parent if model_file else None) if p}
        self._roots = roots
        self._maps: dict[str, Array] = {}

    def view(self, tensor: str, entries: Mapping[str, str], nbytes: int) -> Array:
        """The *nbytes* bytes of tensor *tensor* that its ``external_data`` entries point at, as a read-only uint8 view.

        Raises ModelError, naming the tensor and the path, for a location that is absolute or leaves the model's folder,
        for a missing file, and for one that is too short.
        """
        location = entries.get("location", "")
        where = f"the data of tensor {tensor!r} is in the external file {location!r}"
        if self._base is None:
            raise ModelError(f"{where}, but the model was given as bytes: pass base_dir, the folder that holds the file.")
        try:
            offset = int(entries.get("offset") or 0)
            length = int(entries.get("length") or nbytes)
        except ValueError as e:
            raise ModelError(f"{where}, at an offset or length that is no number ({e}).") from None
        if length != nbytes:
            raise ModelError(f"{where} with {length} bytes, but its type and shape need {nbytes}.")
        data = self._map(location, where)
        if offset < 0 or offset + nbytes > data.size:
            raise ModelError(
                f"{where} at bytes {offset} to {offset + nbytes}, but that file has only {data.size}: it is cut short, or "
                "belongs to another version of the model."
            )
        return data[offset : offset + nbytes]

    def _map(self, location: str, where: str) -> Array:
        if location in self._maps:
            return self._maps[location]
        assert self._base is not None
        path = Path(location.replace("\\", "/"))
        if not location or "\0" in location or path.is_absolute() or path.drive or ".." in path.parts:
            raise ModelError(f"{where}, a path that is absolute or leaves the model's folder; such a model is not read.")
        try:
            real = (self._base / path).resolve()
            inside = any(real.is_relative_to(root) for root in self._roots)
        except (OSError, RuntimeError, ValueError) as e:
            raise ModelError(f"{where}, which cannot be resolved: {e}.") from None
        if not inside:
            raise ModelError(f"{where}, a link that leaves the model's folder (to {real}); such a model is not read.")
        try:
            size = real.stat().st_size
            data = np.memmap(real, dtype=np.uint8, mode="r") if size else np.empty(0, np.uint8)
        except FileNotFoundError:
            raise ModelError(f"{where}, which is missing: put it beside the model (looked for {real}).") from None
        except (OSError, ValueError) as e:
            raise ModelError(f"{where}, which cannot be read: {e}.") from None
        self._maps[location] = data
        return data


def origin(array: Array) -> tuple[Path, int] | None:
    """The mapped file and byte offset that *array* is a view of, or None when it lies in memory of its own."""
    base: Any = array
    while base is not None and not isinstance(base, np.memmap):
        base = getattr(base, "obj", None) if isinstance(base, memoryview) else getattr(base, "base", None)
    if base is None or base.filename is None or not array.flags.c_contiguous:
        return None
    while isinstance(base.base, np.memmap):
        base = base.base
    return Path(base.filename), int(base.offset) + array.__array_interface__["data"][0] - base.__array_interface__["data"][0]


def _shape_of(proto: onnx.TensorProto, name: str) -> tuple[tuple[int, ...], int]:
    dims = tuple(int(d) for d in proto.dims)
    count = 1
    for d in dims:
        count *= d
    if any(d < 0 for d in dims) or len(dims) > 64 or count > 1 << 48:
        raise ModelError(f"tensor {name!r} has the impossible shape {list(dims)}.")
    return dims, count


def array_of(proto: onnx.TensorProto, external: ExternalData, name: str | None = None) -> Array:
    """:func:`constant_of` as an array in any case."""
    return unpacked(constant_of(proto, external, name))


def constant_of(
    proto: onnx.TensorProto, external: ExternalData, name: str | None = None, raw: memoryview | None = None
) -> Array | Packed:
    """The tensor as an array of its ONNX element type; strings give an object array of str (bytes where not UTF-8), elements
    below a byte stay packed.

    *raw* is its ``raw_data`` where that was cut out of the message (:mod:`onnx_vulkan.frontend.wire`). Raises ModelError where
    type, shape and bytes do not fit together.
    """
    name = name if name is not None else proto.name
    dims, count = _shape_of(proto, name)
    elem = proto.data_type
    if elem == _T.STRING:
        items = [_text(s) for s in proto.string_data]
        _check_count(name, dims, count, len(items))
        strings = np.empty(count, object)
        strings[:] = items
        return strings.reshape(dims)
    if elem not in _NUMPY:
        raise ModelError(f"tensor {name!r} has the element type {type_text(elem)}, which cannot be read.")
    dtype = np.dtype(_NUMPY[elem])
    small = _SUB_BYTE.get(elem)
    bits = small.bits if small else 8 * dtype.itemsize
    nbytes = (count * bits + 7) // 8
    if proto.data_location == _T.EXTERNAL:
        data = external.view(name, {e.key: e.value for e in proto.external_data}, nbytes)
    elif raw is not None or proto.HasField("raw_data"):
        data = np.frombuffer(raw if raw is not None else proto.raw_data, np.uint8)
        if data.size != nbytes:
            raise ModelError(
                f"tensor {name!r} ({type_text(elem)} {list(dims)}) needs {nbytes} bytes, but the file holds {data.size}."
            )
    else:
        return _typed(proto, name, dims, count, dtype, bits)
    if small is not None:
        return Packed(dtype, dims, np.asarray(data))
    view: Array = np.asarray(data).view(dtype).reshape(dims)
    view.flags.writeable = False
    return view


def _text(s: bytes) -> str | bytes:
    try:
        return s.decode()
    except UnicodeDecodeError:
        return s


def _check_count(name: str, dims: tuple[int, ...], need: int, have: int) -> None:
    if need != have:
        raise ModelError(f"tensor {name!r} of shape {list(dims)} needs {need} elements, but the file holds {have}.")


def _typed(
    proto: onnx.TensorProto, name: str, dims: tuple[int, ...], count: int, dtype: np.dtype[Any], bits: int
) -> Array | Packed:
    """From float_data, int32_data, ... (the protobuf reference, onnx.proto: TensorProto)."""
    field, wide = _WIDE_FIELDS.get(proto.data_type, ("int32_data", np.int32))
    data = np.array(getattr(proto, field), wide)
    per_word = 8 // bits if bits < 8 else 1
    need = count * 2 if dtype.kind == "c" else (count + per_word - 1) // per_word
    _check_count(name, dims, need, data.size)
    if bits < 8:
        return Packed(dtype, dims, data.astype(np.uint8))
    if dtype.kind == "c" or data.dtype == dtype:
        return data.view(dtype).reshape(dims)
    if field == "int32_data" and dtype.kind in "fV":
        # half floats (and fp8) are stored as their bits
        return data.astype(np.dtype(f"u{dtype.itemsize}")).view(dtype).reshape(dims)
    return data.astype(dtype).reshape(dims)


def sparse_array_of(proto: onnx.SparseTensorProto, external: ExternalData) -> Array:
    """A sparse tensor, made dense. Raises ModelError for indices outside it, or a dense size beyond 4 GB."""
    name = proto.values.name
    values = array_of(proto.values, external)
    indices: Any = array_of(proto.indices, external, f"{name} (indices)")
    dims = tuple(int(d) for d in proto.dims)
    total = 1
    for d in dims:
        total *= d
    if any(d < 0 for d in dims) or total * max(values.dtype.itemsize, 1) > _MAX_DENSE:
        raise ModelError(f"sparse tensor {name!r} has the shape {list(dims)}, which is too large to be made dense.")
    if indices.dtype != np.int64 or values.ndim != 1 or indices.shape[:1] != values.shape:
        raise ModelError(f"sparse tensor {name!r} has {list(values.shape)} values, but {list(indices.shape)} indices.")
    flat = indices
    if indices.ndim == 2 and indices.shape[1] == len(dims):
        if (indices < 0).any() or (indices >= np.array(dims, np.int64)).any():
            raise ModelError(f"sparse tensor {name!r} has an index outside its shape {list(dims)}.")
        flat = np.ravel_multi_index(tuple(indices.T), dims) if len(dims) else np.zeros(len(values), np.int64)
    elif indices.ndim != 1:
        raise ModelError(f"sparse tensor {name!r} has indices of shape {list(indices.shape)} for shape {list(dims)}.")
    if flat.size and (flat.min() < 0 or flat.max() >= total):
        raise ModelError(f"sparse tensor {name!r} has an index outside its shape {list(dims)}.")
    dense = np.full(total, "", object) if values.dtype == object else np.zeros(total, values.dtype)
    dense[flat] = values
    return dense.reshape(dims)
