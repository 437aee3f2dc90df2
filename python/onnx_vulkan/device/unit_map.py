"""Which elements of a matrix the invocations of a subgroup hold, asked of the device by a kernel.

VK_KHR_cooperative_matrix leaves that to the driver. Where it is the map that :func:`is_row_map` describes, for sums and for left
operands alike, the device gets the feature ``coop_rows``: kernels may then reduce the rows of sums, make an operand of them and
store them, all in registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.device import compile
from onnx_vulkan.device.info import UNIT_MAP as FEATURE
from onnx_vulkan.device.info import hidden_features
from onnx_vulkan.device.pipelines import Shader
from onnx_vulkan.errors import DeviceError

__all__ = ["is_row_map", "probed", "row_map"]

LANES = 32
MOST = 16
"""Components of an invocation that the kernel writes down."""
NOTHING = 0xFFFFFFFF
SOURCE = f"""#version 460
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
layout(local_size_x = {LANES}) in;
const int THREADS = {LANES};
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Numbers {{ uint v[]; }};
layout(push_constant, scalar) uniform Push {{ Numbers numbers; }};
#include "unit_map_probe.glsl"
"""


def row_map() -> NDArray[np.uint32]:
    """``[32, 8]``: the element ``16 * row + column`` that component i of invocation l holds in the map of ``coop_rows``.

    Row ``l / 4`` (+ 8 where ``i & 4``), column ``l % 4 * 2 + i % 2`` (+ 8 where ``i & 2``): the four invocations of an aligned
    group share two rows.
    """
    lane, i = np.ogrid[:LANES, :8]
    row = lane // 4 + (i & 4) * 2
    column = lane % 4 * 2 + (i & 1) + (i & 2) * 4
    numbers: NDArray[np.uint32] = (16 * row + column).astype(np.uint32)
    return numbers


def is_row_map(numbers: NDArray[np.uint32]) -> bool:
    """Whether a probed map (``[32, components]``, unused components all ones) is :func:`row_map`."""
    want = row_map()
    count = want.shape[1]
    same = numbers.shape[0] == LANES and numbers.shape[1] >= count and np.array_equal(numbers[:, :count], want)
    return bool(same) and bool((numbers[:, count:] == NOTHING).all())


def probed(device: Any, identity: str) -> frozenset[str]:
    """``coop_rows`` where the opened *device* has that map, else nothing. The answer is kept on disk under *identity*.

    A driver that cannot run the kernel lacks the feature.
    """
    info = device.info
    if "coop_f16" not in info.features or info.limits.subgroup_size != LANES or FEATURE in hidden_features():
        return frozenset()
    path = compile.cache_dir() / "unit_maps" / f"{identity}.bin"
    known = compile.unsealed(path)
    size = 2 * LANES * MOST
    if known is None or len(known) != 4 * size:
        try:
            known = _ask(device, size).tobytes()
        except DeviceError:
            return frozenset()
        compile.write_atomically(path, compile.sealed(known))
    sums, left = np.frombuffer(known, np.uint32).reshape(2, LANES, MOST)
    return frozenset({FEATURE}) if is_row_map(sums) and is_row_map(left) else frozenset()


def _ask(device: Any, size: int) -> NDArray[np.uint32]:
    """What the kernel writes."""
    memory = device.alloc(4 * size)
    try:
        memory.upload(np.full(size, NOTHING, np.uint32))
        controlled = device.info.features >= {"full_subgroups", "subgroup_size_control"}
        label = "which elements an invocation holds"
        shader = Shader(SOURCE, (), 8, label, LANES if controlled else 0, full_subgroups=controlled)
        device.run_once(shader, memory.address.to_bytes(8, "little"), (1, 1, 1))
        answer: NDArray[np.uint32] = memory.download(np.uint32, (size,))
        return answer
    finally:
        memory.free()
