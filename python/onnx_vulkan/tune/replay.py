"""Recorded tactics measured again on this device, and workloads that fail made small."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from onnx_vulkan import frontend
from onnx_vulkan.bundle import is_bundle, read_bundle
from onnx_vulkan.errors import InvalidInput
from onnx_vulkan.graph import Array
from onnx_vulkan.inputs import make_inputs
from onnx_vulkan.tune.children import WORKER, Child, Failed, Hung, Refused
from onnx_vulkan.tune.tactics import Tactic

__all__ = ["reduce", "replay"]

SECONDS = 60.0


def replay(
    tactics: Sequence[Tactic], model: Path, dims: Mapping[str, int], device: str | None, command: Sequence[str] = WORKER
) -> list[dict[str, Any]]:
    """Check and time tactics in a model (or bundle) on a device; what they were recorded on does not matter.

    Gives for each: ``state`` (``timed``, ``wrong``, ``crashed``, ``hung``, ``failed``; ``absent`` where the model has no such
    workload), ``reason``, the times that are recorded and those of today in microseconds. Raises what opening the model raises.
    """
    child = Child({"model": str(model), "dims": dict(dims), "options": {}, "device": device}, command)
    try:
        legal = {w["workload"]["digest"]: w["legal"] for w in child.start()["workloads"]}
        return [_replayed(child, t, legal.get(t.workload.digest)) for t in tactics]
    finally:
        child.close()


def _replayed(child: Child, t: Tactic, legal: Sequence[str] | None) -> dict[str, Any]:
    digest = t.workload.digest
    found: dict[str, Any] = {
        "key": t.key, "workload": t.workload.told, "choice": t.choice, "default": t.default, "state": "absent", "reason": "",
        "recorded": {"choice_us": t.choice_us, "default_us": t.default_us}, "now": None,
    }  # fmt: skip
    if legal is None:
        return {**found, "reason": "the model has no such workload at these sizes and sources"}
    if t.choice not in legal:
        return {**found, "state": "failed", "reason": "the variant is not legal on this device"}
    state, reason = _outcome(child, digest, t.choice)
    if state == "right":
        try:
            (default, choice) = child.ask(SECONDS, "time", digest=digest, choices=[{}, {digest: t.choice}])["timings"]
            return {**found, "state": "timed", "now": {"choice_us": choice["us"], "default_us": default["us"]}}
        except Failed as e:
            state, reason = "crashed", str(e)
    return {**found, "state": state, "reason": reason}


def _outcome(child: Child, digest: str, choice: str) -> tuple[str, str]:
    """How a variant does in the check."""
    try:
        wrong = child.ask(SECONDS, "check", digest=digest, choice=choice, seed=0)["wrong"]
        return ("wrong", wrong) if wrong else ("right", "")
    except Hung as e:
        return "hung", str(e)
    except Failed as e:
        return "crashed", str(e)
    except Refused as e:
        return "failed", f"{e.kind}: {e}"


def reduce(
    model: Path,
    dims: Mapping[str, int],
    digest: str,
    choice: str,
    device: str | None,
    output: Path | None = None,
    command: Sequence[str] = WORKER,
) -> dict[str, Any]:
    """Make a workload small that fails in a variant: its ONNX node alone, each of its sizes as small as it still fails with.

    *digest* may be its beginning. Gives ``fails`` (whether it fails in the model at all), ``alone`` (whether its node does
    alone), ``state`` and ``reason``, the ``node``, its ``shapes`` by input and ``sizes`` of the smallest that fails. *output*:
    where to write the model of that node. Raises InvalidInput where the model has no such workload or variant.
    """
    child = Child({"model": str(model), "dims": dict(dims), "options": {}, "device": device}, command)
    try:
        opened = child.start()["workloads"]
        found = [w for w in opened if w["workload"]["digest"].startswith(digest)]
        if len(found) != 1:
            raise InvalidInput(f"{model} has {len(found)} workloads whose digest begins with {digest!r}: see the journal.")
        (w,) = found
        if choice not in w["legal"]:
            raise InvalidInput(f"{choice!r} is none of the {len(w['legal'])} variants of that workload, e.g. {w['legal'][0]!r}.")
        state, reason = _outcome(child, w["workload"]["digest"], choice)
    finally:
        child.close()
    result: dict[str, Any] = {
        "family": w["workload"]["family"], "choice": choice, "fails": state != "right", "alone": False, "state": state,
        "reason": reason, "node": w["labels"][0], "shapes": {}, "sizes": dict(w["workload"]["sizes"]), "output": None,
    }  # fmt: skip
    if state == "right":
        return result
    with tempfile.TemporaryDirectory(prefix="onnx-vulkan-reduce-") as folder:
        alone = _Alone(model, dims, w["labels"][0], w["workload"]["family"], choice, device, Path(folder) / "node.onnx", command)
        try:
            shapes = alone.smallest()
            if shapes is not None:
                result.update(alone=True, shapes=shapes, **alone.last)
                if output is not None:
                    alone.write(shapes)
                    output.write_bytes(alone.path.read_bytes())
                    result["output"] = str(output)
        finally:
            alone.close()
    return result


class _Alone:
    """One node of a model with its inputs in any shapes, tried in one variant of a family."""

    def __init__(
        self, model: Path, dims: Mapping[str, int], label: str, family: str, choice: str, device: str | None, path: Path,
        command: Sequence[str],
    ):  # fmt: skip
        bundle = read_bundle(model) if is_bundle(model) else None
        file = bundle.model if bundle else model
        feeds: Mapping[str, Array] = bundle.inputs if bundle else make_inputs(frontend.load(file), dims)
        proto = onnx.load(file)
        for value in proto.graph.input:
            if value.name in feeds:
                shape = value.type.tensor_type.shape
                shape.ClearField("dim")
                shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=n) for n in feeds[value.name].shape)
        known = shape_inference.infer_shapes(proto, data_prop=True).graph
        self.node = next((n for n in known.node if (n.name or n.op_type) == label), None)
        if self.node is None:
            raise InvalidInput(f"the workload is of {label!r}, which is no node of the model itself: it cannot be taken out.")
        self.opsets, self.ir = proto.opset_import, proto.ir_version
        constants = {t.name: t for t in known.initializer}
        types = {v.name: v.type.tensor_type for v in (*known.input, *known.value_info, *known.output)}
        self.constants = [c for n in self.node.input if (c := constants.get(n)) is not None and _says_how(c)]
        kept = {c.name for c in self.constants}
        self.inputs: dict[str, tuple[int, tuple[int, ...]]] = {}
        for name in self.node.input:
            if name and name not in kept:
                if name in constants:
                    self.inputs[name] = constants[name].data_type, tuple(constants[name].dims)
                else:
                    self.inputs[name] = types[name].elem_type, tuple(d.dim_value for d in types[name].shape.dim)
        self.outputs = [types[n].elem_type if n in types else next(iter(self.inputs.values()))[0] for n in self.node.output]
        self.family, self.choice, self.path = family, choice, path
        self.child = Child({"model": str(path), "dims": {}, "options": {}, "device": device}, command)
        self.last: dict[str, Any] = {}

    def write(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Write the model of the node with inputs of these shapes."""
        assert self.node is not None
        inputs = [helper.make_tensor_value_info(n, t, list(shapes[n])) for n, (t, _) in self.inputs.items()]
        outputs = [helper.make_tensor_value_info(n, t, None) for n, t in zip(self.node.output, self.outputs, strict=True)]
        graph = helper.make_graph([self.node], "one node", inputs, outputs, self.constants)
        made = helper.make_model(graph, opset_imports=self.opsets, ir_version=self.ir)
        onnx.save(shape_inference.infer_shapes(made, strict_mode=True), self.path)

    def fails(self, shapes: Mapping[str, Sequence[int]]) -> bool:
        """Whether the node fails in these shapes; ``last`` says how."""
        try:
            self.write(shapes)
            found = [w for w in self.child.open_again()["workloads"] if w["workload"]["family"] == self.family]
        except (Refused, Failed, onnx.shape_inference.InferenceError, onnx.checker.ValidationError):
            return False  # no such shapes
        for w in found:
            if self.choice in w["legal"]:
                state, reason = _outcome(self.child, w["workload"]["digest"], self.choice)
                if state in ("wrong", "crashed", "hung"):
                    self.last = {"state": state, "reason": reason, "sizes": dict(w["workload"]["sizes"])}
                    return True
        return False

    def smallest(self) -> dict[str, list[int]] | None:
        """The shapes of the smallest inputs that fail; None where the node alone does not. Equal extents stay equal."""
        shapes = {name: list(shape) for name, (_, shape) in self.inputs.items()}
        if not self.fails(shapes):
            return None
        smaller = True
        while smaller:
            smaller = False
            for n in sorted({n for shape in shapes.values() for n in shape if n > 1}, reverse=True):
                found = _least(n, partial(self._fails_with, shapes, n))
                if found < n:
                    shapes, smaller = _with(shapes, n, found), True
        self.fails(shapes)
        return shapes

    def _fails_with(self, shapes: Mapping[str, Sequence[int]], old: int, new: int) -> bool:
        return self.fails(_with(shapes, old, new))

    def close(self) -> None:
        """End the child."""
        self.child.close()


def _with(shapes: Mapping[str, Sequence[int]], old: int, new: int) -> dict[str, list[int]]:
    return {name: [new if n == old else n for n in shape] for name, shape in shapes.items()}


def _least(n: int, fails: Callable[[int], bool]) -> int:
    """A small number below *n* that still fails: by halves, then by ever smaller steps."""
    for m in _steps(n):
        if m < n and fails(m):
            n = m
            break
    else:
        return n
    return _least(n, fails) if n > 1 else n


def _steps(n: int) -> Iterator[int]:
    step = n // 2
    while step:
        yield n - step
        step //= 2


def _says_how(constant: onnx.TensorProto) -> bool:
    """Whether a constant says what the node does (axes, a shape) and stays as it is."""
    return numpy_helper.to_array(constant).dtype.kind in "iub" and int(np.prod(constant.dims)) <= 64
