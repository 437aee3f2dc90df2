"""Guard zones: a debug mode in which every tensor of the arena stands alone between poisoned bytes that are checked after a run.

Validation layers and robust buffer access do not see accesses through device addresses, so a kernel that writes past its
tensor would corrupt a neighbour in silence. Here nothing is aliased, a first kernel poisons the zones between tensors and a
last one looks whether they still are; a damaged zone is reported through the run's error word with the name of the tensor before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnx_vulkan.codegen.kernel import Kernel, Limits, Variant
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.dtypes import DType
from onnx_vulkan.plan.arena import ALIGNMENT
from onnx_vulkan.program.ir import Value

__all__ = ["ZONE_BYTES", "check_kernel", "place_apart", "poison_kernel", "zone_table"]

ZONE_BYTES = ALIGNMENT
_WORDS = ZONE_BYTES // 4
_POISON = "0xdeadbea7u"


def place_apart(sizes: Sequence[int]) -> tuple[list[int], list[tuple[int, int]], int]:
    """Offsets of tensors of these byte sizes, with a zone before the first and after each one.

    Also gives the zones as (start, bytes), each reaching from a tensor's last byte to the next tensor, and the total size.
    """
    offsets, zones, at = [], [(0, ZONE_BYTES)], ZONE_BYTES
    for size in sizes:
        offsets.append(at)
        end = at + size
        at = -(-end // ALIGNMENT) * ALIGNMENT + ZONE_BYTES
        zones.append((end, at - end))
    return offsets, zones, at


def zone_table(zones: Sequence[tuple[int, int]]) -> Value:
    """The zones as a constant: rows of (first word, words, bits of the first word that are the zone's)."""
    rows = [(a // 4, (a + n) // 4 - a // 4, -1 << 8 * (a % 4)) for a, n in zones]
    return Value(DType.I32, (len(zones), 3), "", np.array(rows, np.int32))


def _kernel(label: str, arena: Value, table: Value, work: str, params: Params, first_label: int) -> Kernel:
    zones = table.shape[0]
    body = f"""layout(local_size_x = {_WORDS}) in;

void main() {{
    int zone = int(gl_WorkGroupID.x);
    int first = {params.read(table)}.v[3 * zone];
    int words = {params.read(table)}.v[3 * zone + 1];
    for (int i = int(gl_LocalInvocationID.x); i < words; i += {_WORDS}) {{
        uint bits = i == 0 ? uint({params.read(table)}.v[3 * zone + 2]) : ~0u;
        {work.format(cell=f"{params.write(arena)}.v[first + i]", label=f"uint({params.word(first_label)} + zone)")}
    }}
}}
"""

    def choose(at: object, limits: Limits) -> Variant:
        return Variant((), (zones, 1, 1))

    return Kernel(label, params, body, (table,), (arena,), choose)


def poison_kernel(arena: Value, table: Value) -> Kernel:
    """Fills every zone."""
    return _kernel("guard zones: poison", arena, table, f"{{cell}} = {_POISON};", Params(), 0)


def check_kernel(arena: Value, table: Value, first_label: int) -> Kernel:
    """Reports a damaged zone; its label in the plan is *first_label* (counted from 1) plus the zone's number."""
    params = Params()
    error = params.error()
    work = (
        f"if ((({{cell}} ^ {_POISON}) & bits) != 0u && atomicAdd({error}.count, 1u) == 0u) {{{{ "
        f"{error}.label = {{label}}; {error}.value = i; {error}.value_high = 0; }}}}"
    )
    return _kernel("guard zones: check", arena, table, work, params, first_label)
