"""The standalone engine: a model that runs wholly on Vulkan, with no ONNX Runtime in the process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnx_vulkan import claims
from onnx_vulkan.device import Cancel, Device
from onnx_vulkan.dims import Dim, Extent
from onnx_vulkan.engine.block import Block
from onnx_vulkan.engine.options import Options, parse_options
from onnx_vulkan.errors import InvalidInput, RefusedError
from onnx_vulkan.frontend import load
from onnx_vulkan.inputs import unbound_dims

__all__ = ["Session", "TensorInfo"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Name, element type (ONNX's word) and shape (numbers and symbol names) of an input or output."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None


def _shown(shape: tuple[Extent, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


class Session:
    """A loaded model. Thread-safe; close it, use it as a context manager, or let it be collected, to give device memory back.

    >>> session = Session.load("model.onnx")
    >>> outputs = session.run({"x": x})
    """

    def __init__(self, block: Block):
        self.graph = block.graph
        self.device = block.device
        self.block = block
        self._closed = False

    @classmethod
    def load(
        cls,
        model: str | Path | bytes,
        device: str | None = None,
        options: Options | Mapping[str, Any] | None = None,
        base_dir: str | Path | None = None,
    ) -> Session:
        """Load an ONNX file (or its bytes).

        *device* names the GPU (index, UUID or part of its name); *options* are those of the EP, also as a plain dict;
        *base_dir* is the folder of external data (by default the file's own; bytes have none).
        Raises ModelError for a broken file, RefusedError naming every node that cannot run, InvalidInput for a wrong option,
        DeviceError when there is no usable GPU.
        """
        if not isinstance(options, Options):
            options = parse_options(options or {}, Options)
        graph = load(model, base_dir)
        for option in ("runtime_dims", "plan_dims"):
            strange = sorted(set(getattr(options, option)) - set(unbound_dims(graph)))
            if strange:
                there = ", ".join(map(repr, unbound_dims(graph))) or "none"
                raise InvalidInput(f"the option {option!r} names {strange[0]!r}, but the dims of the model's inputs are {there}.")
        opened = Device.get(device or options.device)
        found = claims.partition(graph, features=opened.info.features)
        if found.refusals:
            raise RefusedError(graph.name, found.refusals)
        return cls(Block(graph, opened, options))

    @classmethod
    def load_compiled(
        cls, path: str | Path, device: str | None = None, options: Options | Mapping[str, Any] | None = None
    ) -> Session:
        """Load what :meth:`save_compiled` wrote: the stored sizes run without planning or compiling, others as ever.

        Plans of another device, driver, version or precision are made anew with a line in the log, or refused with the option
        ``stale_compiled=refuse``. Raises ModelError for a file that is damaged or no compiled model, CompiledMismatch,
        RefusedError, InvalidInput for a wrong option, DeviceError when there is no usable GPU.
        """
        from onnx_vulkan.engine.compiled import open_compiled

        if not isinstance(options, Options):
            options = parse_options(options or {}, Options)
        block = open_compiled(Path(path), Device.get(device or options.device), options, where=str(path))
        return cls(block)

    def save_compiled(self, path: str | Path) -> None:
        """Write the model with the plans of the sizes that have run so far (all of them fixed, or named by the option
        ``plan_dims``: without any run), for :meth:`load_compiled` on this device under this driver.

        Raises Unsupported for operators that this program has registered, InvalidInput when the file cannot be written.
        """
        from onnx_vulkan.engine.compiled import save_compiled

        if self._closed:
            raise InvalidInput("the session was closed: load the model again.")
        save_compiled(self.block, Path(path))

    @property
    def inputs(self) -> list[TensorInfo]:
        """The inputs that a run must give."""
        return [self._info(name) for name in self.graph.inputs]

    @property
    def outputs(self) -> list[TensorInfo]:
        """What a run gives back."""
        return [self._info(name) for name in self.graph.outputs]

    def _info(self, name: str) -> TensorInfo:
        t = self.graph.types[name]

        def word(e: Extent) -> int | str:
            return str(e) if isinstance(e, Dim) else e

        dtype = t.dtype.onnx_name if t.dtype is not None else t.type_name
        return TensorInfo(name, dtype, None if t.shape is None else tuple(word(e) for e in t.shape))

    def run(self, feeds: Mapping[str, Any], *, cancel: Cancel | None = None) -> dict[str, np.ndarray[Any, Any]]:
        """Run the model on named arrays; bfloat16 and small types are those of ``ml_dtypes``, one element a byte at least.

        *cancel*: a ``threading.Event``, or anything else with ``is_set()``. Once it is set the run stops at its next submit point
        (a long run has one every 20 ms or so, but never inside of a kernel or the planning of new shapes) and raises
        Cancelled; the session can run again.

        Raises InvalidInput for unknown or missing names, wrong dtypes, ranks or fixed dims; ShapeMismatch when the shapes break a
        constraint inside the model; OutOfDeviceMemory; DeviceLost.
        """
        if self._closed:
            raise InvalidInput("the session was closed: load the model again.")
        if not isinstance(feeds, Mapping):
            raise InvalidInput(
                f"run() takes one mapping of input names to arrays, not {type(feeds).__name__}; the model's inputs are "
                f"{self._names()}."
            )
        unknown = sorted(set(feeds) - set(self.graph.inputs))
        if unknown:
            raise InvalidInput(f"the model has no input {', '.join(map(repr, unknown))}; it has {self._names()}.")
        arrays = [self._feed(name, feeds) for name in self.graph.inputs]
        results = self.block.run(arrays, cancel)
        return dict(zip(self.graph.outputs, results, strict=True))

    def _names(self) -> str:
        return ", ".join(map(repr, self.graph.inputs)) or "none"

    def _feed(self, name: str, feeds: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        if name in feeds:
            array = np.asarray(feeds[name])
        elif name in self.graph.defaults:
            array = np.asarray(self.graph.defaults[name])
        else:
            raise InvalidInput(f"input {name!r} is missing.")
        t = self.graph.types[name]
        assert t.dtype is not None
        if array.dtype != t.dtype.numpy:
            raise InvalidInput(f"input {name!r} is {array.dtype}, the model wants {t.dtype.onnx_name}.")
        if t.shape is not None:
            if len(t.shape) != array.ndim:
                raise InvalidInput(
                    f"input {name!r} has rank {array.ndim}, the model wants {len(t.shape)} dims: {_shown(t.shape)}."
                )
            for i, (e, n) in enumerate(zip(t.shape, array.shape, strict=True)):
                if not isinstance(e, Dim) and e != n:
                    raise InvalidInput(f"dim {i} of input {name!r} is {n}, the model wants {e}.")
        return np.asarray(array, order="C")

    def stats(self) -> dict[str, int]:
        """Counters: runs, plans, dispatches, memory."""
        if self._closed:
            raise InvalidInput("the session was closed, and its counters with it.")
        return self.block.stats()

    def close(self) -> None:
        """Give the device memory back. The session cannot run any more."""
        self._closed = True
        self.block.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
