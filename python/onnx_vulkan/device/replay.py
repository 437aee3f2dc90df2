"""Blocks that replay plans: the Python side of the shim's ``ov_block``.

A run is one call into C with the GIL released. Python is only entered when no plan serves the run's shapes (the *planner* is
asked) or when an output's shape was not foreseen (its array is made).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.device.core import Device
from onnx_vulkan.device.memory import Memory
from onnx_vulkan.device.native import check, describe_failure, error_of, ffi, lib
from onnx_vulkan.dtypes import SMALL, DType
from onnx_vulkan.errors import InvalidInput
from onnx_vulkan.packing import pack, unpack
from onnx_vulkan.plan.table import COMMAND, GUARD, IO, KEY, PATCH, RELOC, PlanTables

__all__ = ["Cancel", "DeviceTensor", "ProfileEntry", "ReplayBlock", "Request", "RequestInput"]

SHAPES_KEPT = 64  # output shapes remembered by input shapes

for _dtype, _name in ((COMMAND, "ov_command"), (RELOC, "ov_reloc"), (PATCH, "ov_patch"), (GUARD, "ov_guard"), (KEY, "ov_key")):
    assert _dtype.itemsize == ffi.sizeof(_name), _name
assert IO.itemsize == ffi.sizeof("ov_io_desc")


@dataclass(frozen=True)
class RequestInput:
    """An input of a run that wants a plan: its dims, and where its bytes lie (0: not there)."""

    shape: tuple[int, ...]
    data: int
    address: int

    def array(self, dtype: Any) -> NDArray[Any]:
        """A copy of its values; the bytes must be visible to the host."""
        dtype = np.dtype(dtype)
        count = int(np.prod(self.shape, dtype=np.int64))
        if count and not self.data:
            raise InvalidInput(
                "An input that decides shapes lies in device memory that the host cannot see; give it in host memory."
            )
        raw = ffi.buffer(ffi.cast("char *", self.data), count * dtype.itemsize) if count else b""
        return np.frombuffer(raw, dtype).reshape(self.shape).copy()


@dataclass(frozen=True)
class Request:
    """What a planner is to make a plan for."""

    inputs: tuple[RequestInput, ...]


@dataclass(frozen=True)
class DeviceTensor:
    """An input or output that stays in device memory."""

    memory: Memory
    shape: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True)
class ProfileEntry:
    """One dispatch of a profiled run; times in ns by the device's clock, the start since the run's first dispatch."""

    command: int
    label: str
    start_ns: float
    ns: float


Planner = Callable[[Request], PlanTables]


class Cancel(Protocol):
    """What cancels a run: a ``threading.Event``, say."""

    def is_set(self) -> bool:
        """Whether the run shall stop."""
        ...


class ReplayBlock:
    """A block with its plans and run contexts.

    *planner* makes the plan for a request; it is called by one thread at a time, and what it raises is raised by the run. A bound
    method is held weakly: its object, which owns this block, then goes with its last reference and not with the next collection.
    *output_dtypes*: numpy dtypes of the outputs. *contexts*: how many runs at once (more threads wait). *release_after_run*
    gives the contexts' memory back after each run. Whoever made the plans keeps their weights alive.
    """

    def __init__(
        self,
        device: Device,
        n_inputs: int,
        output_dtypes: Sequence[Any],
        planner: Planner,
        *,
        contexts: int = 2,
        plan_cap: int = 64,
        release_after_run: bool = False,
    ):
        device._check_process()
        self.device = device
        self.n_inputs = n_inputs
        self.output_dtypes = tuple(np.dtype(d) for d in output_dtypes)
        self._planner = weakref.WeakMethod(planner) if inspect.ismethod(planner) else lambda: planner
        self._failure = threading.local()
        self._shapes: dict[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]] = {}
        self._self = ffi.new_handle(weakref.ref(self))  # C holds this handle, not the block
        self._closing = threading.Lock()
        description = ffi.new(
            "ov_block_desc *",
            {
                "device": device.native,
                "plan": lib.ov_py_plan,
                "user": self._self,
                "n_inputs": n_inputs,
                "n_outputs": len(self.output_dtypes),
                "contexts": contexts,
                "plan_cap": plan_cap,
                "flags": lib.OV_BLOCK_RELEASE_AFTER_RUN if release_after_run else 0,
            },
        )
        error, out = ffi.new("ov_error *"), ffi.new("ov_block **")
        check(lib.ov_block_create(description, out, error), error)
        self.native = out[0]

    def close(self) -> None:
        """Free plans and contexts, after the runs under way; a second call does nothing."""
        with self._closing:
            native, self.native = self.native, None
        if native is not None:
            lib.ov_block_destroy(native)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at interpreter exit, or after a failed __init__
            self.close()

    def add_plan(self, tables: PlanTables) -> None:
        """Add a plan, as the most recently used one."""
        description, keep = describe(tables, self.n_inputs, len(self.output_dtypes))
        error = ffi.new("ov_error *")
        with self._closing:  # a background thread may add a plan while another one closes the block
            if self.native is None:
                raise InvalidInput("The block was closed.")
            check(lib.ov_block_add_plan(self.native, description, error), error)
        del keep

    def run(
        self,
        inputs: Sequence[NDArray[Any] | DeviceTensor],
        outputs: Sequence[NDArray[Any] | DeviceTensor] | None = None,
        cancel: Cancel | None = None,
    ) -> list[Any]:
        """Run on *inputs* (C-contiguous arrays, or device tensors); gives back the outputs.

        The device knows elements below a byte packed: arrays (one element a byte) are packed and unpacked here.

        *outputs*: where to put them; else arrays are made. Once *cancel* is set, the run stops at its next submit point (one
        every 20 ms or so; never inside of a dispatch, in a plan's first run only every 64). Raises InvalidInput,
        OutOfDeviceMemory, DeviceLost, Cancelled, or what the planner raised.
        """
        if self.native is None:
            raise InvalidInput("The block was closed.")
        if len(inputs) != self.n_inputs:
            raise InvalidInput(f"{len(inputs)} inputs were given to a block that has {self.n_inputs}.")
        count = len(self.output_dtypes)
        given, results = ffi.new("ov_tensor[]", max(1, len(inputs))), ffi.new("ov_tensor[]", max(1, count))
        kept = [_fill(given[i], value) for i, value in enumerate(inputs)]
        shapes = tuple(v.shape for v in inputs)
        if outputs is None:
            known = self._shapes.get(shapes)
            made: list[Any] = (
                [np.empty(s, d) for s, d in zip(known, self.output_dtypes, strict=True)] if known else [None] * count
            )
        else:
            made = list(outputs)
            if len(made) != count:
                raise InvalidInput(f"{len(made)} outputs were given to a block that has {count}.")
        for i, value in enumerate(made):
            if value is not None:
                _fill(results[i], value, writable=True)
        grow = _Growing(self.output_dtypes, made, outputs is not None, cancel)
        user = ffi.new_handle(grow)
        error = ffi.new("ov_error *")
        self._failure.planner = None  # here is someone to raise what the planner raises
        asked = lib.ov_py_cancelled if cancel is not None else ffi.NULL
        kind = lib.ov_run_arrays(self.native, given, results, lib.ov_py_output, asked, user, error)
        del kept
        failure = self._failure.__dict__.pop("planner") or grow.failure
        if kind:
            try:
                raise failure or error_of(error)
            finally:
                del failure, grow  # this frame is in its traceback: a cycle would keep the block until the next collection
        if outputs is None and grow.made:
            while len(self._shapes) >= SHAPES_KEPT:
                self._shapes.pop(next(iter(self._shapes)), None)
            self._shapes[shapes] = tuple(v.shape for v in made)
        for array in made:
            if isinstance(array, np.ndarray) and _packs(array.dtype):
                dtype = DType.of(array.dtype)
                size = (array.size * dtype.bits + 7) // 8
                array[...] = unpack(array.reshape(-1).view(np.uint8)[:size], dtype, array.shape)
        return made

    def info(self) -> dict[str, int]:
        """Counts of this block: runs, plans, plans_made, plans_evicted, recordings, dispatches, segment_bytes."""
        out = ffi.new("ov_block_info *")
        lib.ov_block_get(self.native, out)
        return {name: int(getattr(out, name)) for name, _ in ffi.typeof("ov_block_info").fields if name != "pad"}

    def times(self) -> dict[str, int]:
        """The phases of the last finished run on the host, in ns (``ov_run_times``); ``start_ns`` is by ``time.monotonic_ns``."""
        out = ffi.new("ov_run_times *")
        lib.ov_block_read_times(self.native, out)
        return {name: int(getattr(out, name)) for name, _ in ffi.typeof("ov_run_times").fields}

    def set_profile(self, on: bool) -> None:
        """Timestamps around every dispatch, from the next run on."""
        lib.ov_block_set_profile(self.native, on)

    def profile(self) -> list[ProfileEntry]:
        """The dispatches of the last run that was profiled."""
        count = lib.ov_block_read_profile(self.native, ffi.NULL, 0)
        found = ffi.new("ov_profile_entry[]", max(1, count))
        count = min(count, lib.ov_block_read_profile(self.native, found, count))
        return [
            ProfileEntry(int(e.command), ffi.string(e.name).decode(errors="replace"), float(e.start_ns), float(e.ns))
            for e in (found[i] for i in range(count))
        ]


class _Growing:
    """The outputs of one run, made when their shapes become known, and what may cancel it."""

    def __init__(self, dtypes: tuple[np.dtype[Any], ...], arrays: list[Any], fixed: bool, cancel: Cancel | None):
        self.dtypes, self.arrays, self.fixed, self.cancel = dtypes, arrays, fixed, cancel
        self.made = False
        self.failure: BaseException | None = None


@functools.cache
def _packs(dtype: np.dtype[Any]) -> bool:
    """Whether elements are below a byte. Such an array is of small integers or floats of ``ml_dtypes``."""
    return dtype.kind == "V" and dtype in {t.numpy for t in SMALL if t.bits < 8}


def _fill(tensor: Any, value: NDArray[Any] | DeviceTensor, writable: bool = False) -> Any:
    """Describe *value* to C; gives back what must stay alive."""
    if len(value.shape) > lib.OV_MAX_RANK:
        raise InvalidInput(f"A tensor of rank {len(value.shape)} was given; at most {lib.OV_MAX_RANK} dims are supported.")
    tensor.rank = len(value.shape)
    for i, n in enumerate(value.shape):
        tensor.dims[i] = n
    if isinstance(value, DeviceTensor):
        tensor.address = value.memory.address + value.offset
        tensor.data = ffi.cast("void *", value.memory.mapped + value.offset if value.memory.mapped else 0)
        return value
    if not value.flags.c_contiguous:
        if writable:
            raise InvalidInput("An array for an output must be C-contiguous.")
        value = np.ascontiguousarray(value)
    if not writable and _packs(value.dtype):
        value = pack(value)
    tensor.data = ffi.cast("void *", value.ctypes.data)
    return value


@ffi.def_extern()  # type: ignore[untyped-decorator]
def ov_py_plan(user: Any, block: Any, inputs: Any, error: Any) -> int:
    try:
        owner: ReplayBlock | None = ffi.from_handle(user)()
        if owner is None:
            raise InvalidInput("The block is being destroyed.")
        try:
            request = Request(
                tuple(
                    RequestInput(tuple(t.dims[0 : t.rank]), int(ffi.cast("uintptr_t", t.data)), int(t.address))
                    for t in (inputs[i] for i in range(owner.n_inputs))
                )
            )
            planner = owner._planner()
            if planner is None:
                raise InvalidInput("The block's owner is gone.")
            description, keep = describe(planner(request), owner.n_inputs, len(owner.output_dtypes))
            kind = lib.ov_block_add_plan(block, description, error)
            del keep
            return int(kind)
        except BaseException as e:
            if hasattr(owner._failure, "planner"):  # kept for nobody, its traceback would keep the block alive
                owner._failure.planner = e
            raise
    except BaseException as e:
        return describe_failure(e, error)


@ffi.def_extern()  # type: ignore[untyped-decorator]
def ov_py_output(user: Any, i: int, tensor: Any, error: Any) -> int:
    grow: _Growing = ffi.from_handle(user)
    try:
        shape = tuple(tensor.dims[0 : tensor.rank])
        if grow.fixed:
            raise InvalidInput(f"Output {i} has shape {shape}, but its array has {grow.arrays[i].shape}.")
        grow.made = True
        grow.arrays[i] = array = np.empty(shape, grow.dtypes[i])
        tensor.data = ffi.cast("void *", array.ctypes.data)
    except BaseException as e:
        grow.failure = e
        return describe_failure(e, error)
    return int(lib.OV_OK)


@ffi.def_extern()  # type: ignore[untyped-decorator]
def ov_py_cancelled(user: Any) -> int:
    grow: _Growing = ffi.from_handle(user)
    try:
        return int(grow.cancel is not None and bool(grow.cancel.is_set()))
    except BaseException as e:
        grow.failure = e
        return 1


def describe(tables: PlanTables, n_inputs: int, n_outputs: int) -> tuple[Any, list[Any]]:
    """An ``ov_plan_desc`` of *tables*, and what must stay alive while C reads it."""
    if len(tables.inputs) != n_inputs or len(tables.outputs) != n_outputs:
        raise ValueError(
            f"a plan of {len(tables.inputs)} inputs and {len(tables.outputs)} outputs for {n_inputs} and {n_outputs}"
        )
    labels = b"".join(name.encode() + b"\0" for name in tables.labels)
    keep: list[Any] = []

    def pointer(kind: str, data: Any, dtype: Any) -> Any:
        array = np.ascontiguousarray(np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.asarray(data, dtype))
        keep.append(array)
        return ffi.cast(f"{kind} *", array.ctypes.data)

    description = ffi.new(
        "ov_plan_desc *",
        {
            "commands": pointer("ov_command", tables.commands, COMMAND),
            "push": pointer("uint8_t", tables.push, np.uint8),
            "record": pointer("uint8_t", tables.record, np.uint8),
            "host_keys": pointer("uint8_t", tables.host_keys, np.uint8),
            "relocs": pointer("ov_reloc", tables.relocs, RELOC),
            "patches": pointer("ov_patch", tables.patches, PATCH),
            "code": pointer("int64_t", tables.code, np.int64),
            "guards": pointer("ov_guard", tables.guards, GUARD),
            "keys": pointer("ov_key", tables.keys, KEY),
            "inputs": pointer("ov_io_desc", tables.inputs, IO),
            "outputs": pointer("ov_io_desc", tables.outputs, IO),
            "output_dims": pointer("uint32_t", tables.output_dims, np.uint32),
            "derived": pointer("uint32_t", tables.derived, np.uint32),
            "pipelines": pointer("uint64_t", tables.pipelines, np.uint64),
            "labels": pointer("char", labels, np.uint8),
            "arena_size": tables.arena_size,
            "input_size": tables.input_size,
            "output_size": tables.output_size,
            "n_commands": len(tables.commands),
            "n_push": len(tables.push),
            "n_record": len(tables.record),
            "n_host_keys": len(tables.host_keys),
            "n_relocs": len(tables.relocs),
            "n_patches": len(tables.patches),
            "n_code": len(tables.code),
            "n_guards": len(tables.guards),
            "n_keys": len(tables.keys),
            "n_output_dims": len(tables.output_dims),
            "n_pipelines": len(tables.pipelines),
            "n_labels": len(tables.labels),
            "labels_size": len(labels),
            "n_symbols": tables.n_symbols,
            "n_derived": len(tables.derived),
        },
    )
    return description, keep
