"""The standalone engine as an ``onnx.backend.base.Backend``: ONNX's own tests and tools run models on Vulkan through it.

>>> import onnx.backend.test
>>> import onnx_vulkan.backend
>>> tests = onnx.backend.test.BackendTest(onnx_vulkan.backend, __name__)
>>> globals().update(tests.test_cases)  # for pytest or unittest; what is refused is skipped with its reason

Six of ONNX's cases fail by the runner's tolerance: ``test_dft_inverse`` and ``test_attention_4d_causal_fp16`` (two each), whose
stored numbers are further from the exact ones than these, and ``test_resize_downsample_scales_linear_align_corners`` and the
cubic one, where ONNX Runtime's CPU provider is followed. ``tests.exclude(pattern)`` leaves them out.

ONNX's runner knows the devices ``CPU`` and ``CUDA`` only: ``CPU`` stands here for the Vulkan device that the engine takes by
itself. ``VULKAN`` means the same, ``VULKAN:1`` and ``VULKAN:name`` a certain one.
"""

from __future__ import annotations

import unittest
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from onnx_vulkan import claims, frontend
from onnx_vulkan.engine.session import Session
from onnx_vulkan.errors import InvalidInput, ModelError, RefusedError
from onnx_vulkan.lower import MAX_OPSET

__all__ = [
    "NotOnVulkan",
    "VulkanBackend",
    "VulkanRep",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]

Array = NDArray[Any]


class NotOnVulkan(RefusedError, unittest.SkipTest):
    """A model that is refused, with every reason. A test that meets it counts as skipped."""


class VulkanRep(BackendRep):
    """A prepared model. ``session`` is the engine's :class:`~onnx_vulkan.Session`."""

    def __init__(self, session: Session, names: Sequence[str]):
        self.session = session
        self._names = names

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run on arrays, in the order of the model's inputs, or by name.

        Gives a tuple of arrays whose elements also have the outputs' names (``result["y"]``).
        Raises InvalidInput where they do not fit the model, as :meth:`onnx_vulkan.Session.run` does.
        """
        if not isinstance(inputs, Mapping):
            arrays = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
            if len(arrays) > len(self._names):
                raise InvalidInput(f"{len(arrays)} inputs are given, the model has {len(self._names)}.")
            inputs = dict(zip(self._names, arrays, strict=False))
        found = self.session.run({name: np.asarray(array) for name, array in inputs.items() if name in self.session.graph.inputs})
        return namedtupledict("Outputs", list(found))(*found.values())


class VulkanBackend(Backend):
    """See the module's text. ``kwargs`` are ignored, as ONNX's runner hands down tolerances there."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether *device* is a word for a Vulkan device."""
        return device.split(":")[0] in ("CPU", "VULKAN")

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether every node of *model* is claimed, as far as the model itself tells. Needs no GPU."""
        try:
            return cls.supports_device(device) and not claims.partition(frontend.load(model.SerializeToString())).refusals
        except ModelError:
            return False

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> VulkanRep:
        """Load *model*, whose weights are inside it.

        Raises NotOnVulkan (a RefusedError) where a node is refused, ModelError for a broken model, InvalidInput for a device that
        is none of ours, DeviceError where there is no usable GPU.
        """
        if not cls.supports_device(device):
            raise InvalidInput(f"{device} is no Vulkan device; say VULKAN, VULKAN:index or VULKAN:name.")
        name = device.partition(":")[2] or None
        try:
            session = Session.load(model.SerializeToString(), device=name)
        except RefusedError as error:
            raise NotOnVulkan(model.graph.name or "the model", error.refusals) from None
        return VulkanRep(session, [i.name for i in model.graph.input])

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Load *model*, run it once and let it go. Raises what :meth:`prepare` and :meth:`VulkanRep.run` do."""
        rep = cls.prepare(model, device, **kwargs)
        with rep.session:
            return rep.run(inputs)

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Run a single node on arrays (in order, or by name) of the newest opset that is read here, or of ``opset_version=``.

        *outputs_info*, a pair of numpy dtype and shape for each output, is only needed for an operator of another domain than
        ONNX's; else the outputs' types follow from the inputs'.
        """
        if node.domain in ("", "ai.onnx"):
            super().run_node(node, inputs, device, outputs_info, **kwargs)  # ONNX's own check of the node
        given = [name for name in node.input if name]
        feeds = dict(inputs) if isinstance(inputs, Mapping) else dict(zip(given, inputs, strict=True))
        opset = kwargs.get("opset_version", min(MAX_OPSET, onnx.defs.onnx_opset_version()))
        arrays = {name: np.asarray(array) for name, array in feeds.items()}
        values = [_declared(name, a.dtype, a.shape) for name, a in arrays.items()]
        names = [name for name in node.output if name]
        if outputs_info:
            results = [_declared(name, *info) for name, info in zip(names, outputs_info, strict=True)]
        else:
            results = [onnx.ValueInfoProto(name=name) for name in names]
        graph = helper.make_graph([node], node.op_type, values, results)
        imports = [helper.make_opsetid("", opset)]
        if node.domain not in ("", "ai.onnx"):
            imports.append(helper.make_opsetid(node.domain, 1))
        return cls.run_model(helper.make_model(graph, opset_imports=imports), arrays, device)


def _declared(name: str, dtype: Any, shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


is_compatible = VulkanBackend.is_compatible
prepare = VulkanBackend.prepare
run_model = VulkanBackend.run_model
run_node = VulkanBackend.run_node
supports_device = VulkanBackend.supports_device
