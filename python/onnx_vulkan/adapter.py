"""Adapters: a Python file of the user's that gives a model's inputs, and may give the model and a measure of its quality.

::

    def example_inputs(): ...                        # {input name: array}; tensors of PyTorch will do
    def model(): ...                                 # optional: a PyTorch module, which is exported to ONNX
    def quality(outputs, reference, sample): ...     # optional: a number, the larger the better; see onnx_vulkan.quality

What goes wrong in the file is told with its line, as an InvalidInput.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.errors import InvalidInput
from onnx_vulkan.tolerance import FP32_MODEL, compare

__all__ = ["Adapter", "export_module"]

Array = NDArray[Any]


class Adapter:
    """An adapter file that has run. Raises InvalidInput, with the file's own line, for whatever goes wrong in it."""

    def __init__(self, path: Path):
        self.path = path
        try:
            source = path.read_bytes()
        except OSError as e:
            raise InvalidInput(f"the adapter {path} cannot be read: {e.strerror}.") from None
        self.module = types.ModuleType(path.stem)
        self.module.__file__ = str(path)
        with self._blamed(), _imports_from(path.resolve().parent):
            exec(compile(source, str(path), "exec"), self.module.__dict__)

    def has(self, name: str) -> bool:
        """Whether the file defines the function *name*."""
        return callable(getattr(self.module, name, None))

    def call(self, name: str, *arguments: Any) -> Any:
        """What a function of the file gives."""
        if not self.has(name):
            raise InvalidInput(f"the adapter {self.path} has no function {name}().")
        with self._blamed(), _imports_from(self.path.resolve().parent):
            return getattr(self.module, name)(*arguments)

    def example_inputs(self) -> dict[str, Array]:
        """The arrays of the model's inputs, by name."""
        given = self.call("example_inputs")
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise InvalidInput(f"example_inputs() of {self.path} has to give a dict of arrays by input name, not {given!r:.80}.")
        arrays = {}
        for name, value in given.items():
            array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
            if array.dtype == object:
                raise InvalidInput(f"example_inputs() of {self.path} gives {value!r:.80} for {name!r}, which is no array.")
            arrays[name] = array
        return arrays

    def quality(self, outputs: Mapping[str, Array], reference: Mapping[str, Array], sample: Mapping[str, Array]) -> float:
        """What the file's own ``quality`` says."""
        value = self.call("quality", dict(outputs), dict(reference), dict(sample))
        try:
            return float(value)
        except (TypeError, ValueError):
            raise InvalidInput(f"quality() of {self.path} has to give a number, not {value!r:.80}.") from None

    @contextlib.contextmanager
    def _blamed(self) -> Iterator[None]:
        """Errors become sentences with the line of the file; what it prints goes to stderr, since stdout is for JSON."""
        try:
            with contextlib.redirect_stdout(sys.stderr):
                yield
        except (KeyboardInterrupt, InvalidInput):
            raise
        except BaseException as e:
            lines = [f.lineno for f in traceback.extract_tb(e.__traceback__) if f.filename == str(self.path)]
            line = e.lineno if isinstance(e, SyntaxError) and e.filename == str(self.path) else lines[-1] if lines else None
            where = f"{self.path}, line {line}" if line else str(self.path)
            text = e.msg if isinstance(e, SyntaxError) else str(e)
            raise InvalidInput(f"the adapter failed at {where}: {type(e).__name__}: {text}") from None


@contextlib.contextmanager
def _imports_from(folder: Path) -> Iterator[None]:
    """The file may import its neighbours."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))


def export_module(module: Any, inputs: Mapping[str, Array], target: Path) -> Callable[[Mapping[str, Array]], None]:
    """Export a PyTorch module to the ONNX file *target*. Inputs go to the parameters of ``forward`` that have their names, else
    by position; the outputs have the names of a dict that it gives.

    Gives a function that raises InvalidInput where the outputs of the exported model are not those of the module. Raises
    InvalidInput where torch is missing or cannot export the module.
    """
    try:
        import torch
    except ImportError:
        raise InvalidInput("model() of an adapter is exported by PyTorch, which is not installed: pip install torch") from None
    if not isinstance(module, torch.nn.Module):
        raise InvalidInput(f"model() of an adapter has to give a torch.nn.Module, not {type(module).__name__}.")
    module = module.eval().cpu()
    names = list(inputs)
    by_name = set(names) <= set(inspect.signature(module.forward).parameters)

    class Positional(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.whole = module

        def forward(self, *values: Any) -> Any:
            return self.whole(**dict(zip(names, values, strict=True))) if by_name else self.whole(*values)

    newer = importlib.util.find_spec("onnxscript") is not None
    values = tuple(torch.from_numpy(np.ascontiguousarray(a)) for a in inputs.values())
    try:
        with torch.no_grad(), contextlib.redirect_stdout(sys.stderr):
            made = module(**dict(zip(names, values, strict=True))) if by_name else module(*values)
            # The newer exporter needs a package of its own; the one through TorchScript does not.
            torch.onnx.export(
                Positional().eval(), values, str(target), input_names=names, output_names=_names(made), dynamo=newer
            )
    except Exception as e:
        first = (str(e).strip().splitlines() or [""])[0]
        hint = "" if newer else " (its newer exporter, which may do better, needs: pip install onnxscript)"
        raise InvalidInput(f"PyTorch cannot export the module: {type(e).__name__}: {first}{hint}") from e
    wanted = [t.detach().numpy() for t in _tensors(made, torch)]

    def check(outputs: Mapping[str, Array]) -> None:
        got = list(outputs.values())
        if len(got) != len(wanted) or any(compare(g, w, FP32_MODEL).ratio > 1 for g, w in zip(got, wanted, strict=True)):
            raise InvalidInput("the exported model gives other outputs than the module: its export cannot be trusted.")

    return check


def _names(made: Any) -> list[str] | None:
    """The names of the outputs where a module gives a dict of tensors; else the exporter chooses."""
    flat = isinstance(made, Mapping) and not any(isinstance(v, (list, tuple, Mapping)) for v in made.values())
    return [str(name) for name in made] if flat else None


def _tensors(made: Any, torch: Any) -> Iterator[Any]:
    """The tensors in what a module gives, in the order in which they are exported."""
    if isinstance(made, torch.Tensor):
        yield made
    elif isinstance(made, Mapping):
        for value in made.values():
            yield from _tensors(value, torch)
    elif isinstance(made, (list, tuple)):
        for value in made:
            yield from _tensors(value, torch)
