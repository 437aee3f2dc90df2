"""Guard zones, hazards: plans with a planted defect are found out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from onnx_vulkan.codegen.types import pack
from onnx_vulkan.dtypes import DType
from onnx_vulkan.errors import OnnxVulkanError
from onnx_vulkan.plan.build import Range
from onnx_vulkan.plan.guard import ZONE_BYTES, place_apart
from onnx_vulkan.plan.table import COMMAND, Op
from onnx_vulkan.plan.verify import find_hazards, verify_plan
from onnx_vulkan.program.builder import Builder
from run_program import ProgramRun

X = np.arange(15, dtype=np.float32).reshape(3, 5)


def chain():
    """Two kernels, the second reads what the first wrote: a running sum along the rows, then one along the columns."""
    b = Builder()
    b.source = "rows"
    y = b.scan("sum", b.input("x", DType.F32, X.shape), 1)
    b.source = "columns"
    return b.finish([b.scan("sum", y, 0)])


def test_zones_lie_between_tensors():
    offsets, zones, size = place_apart([4, 1000, 0, 6])
    assert offsets == sorted(offsets) and len(zones) == 5
    used = sorted([(o, o + n) for o, n in zip(offsets, [4, 1000, 0, 6], strict=True)] + [(a, a + n) for a, n in zones])
    assert used[0][0] == 0 and used[-1][1] == size
    assert all(a[1] == b[0] for a, b in pairwise(used))  # no byte is unwatched
    assert all(n >= ZONE_BYTES for _, n in zones)


def spoil(run, label, element):
    """Make the kernel *label* write *element* of its tensor."""
    (kernel,) = [step for step in run.steps if step.label == label]
    write = next(p for p in kernel.params.entries if p.kind == "write")
    stored = pack(write.value.dtype, "7")
    kernel.body = kernel.body.replace(
        "void main() {", f"void main() {{ P.{write.name}.v[int(gl_WorkGroupID.y) + {element}] = {stored};"
    )


@pytest.mark.parametrize("label", ["rows", "columns"])
@pytest.mark.parametrize("element", [15, -1])
def test_a_write_outside_is_reported_with_its_tensor(label, element):
    with ProgramRun(chain(), guard_zones=True) as run:
        np.testing.assert_array_equal(run.run({"x": X})[0], X.cumsum(1).cumsum(0))
    with ProgramRun(chain(), guard_zones=True) as run:
        spoil(run, label, element)
        before = {"rows": "guard zone before the first tensor", "columns": "written by rows"}[label]
        with pytest.raises(OnnxVulkanError, match=f"written by {label}" if element > 0 else before):
            run.run({"x": X})
    with ProgramRun(chain()) as run:
        run.run({"x": X})  # the device is as good as before


def test_one_byte_is_seen_too():
    b = Builder()
    b.source = "bytes"
    y = b.neg(b.input("x", DType.I8, (5, 3)))
    b.source = "sum"
    p = b.finish([b.scan("sum", y, 0)])
    x = np.arange(15, dtype=np.int8).reshape(5, 3)
    with ProgramRun(p, guard_zones=True) as run:
        np.testing.assert_array_equal(run.run({"x": x})[0], np.cumsum(-x, 0, np.int8))
    with ProgramRun(p, guard_zones=True) as run:
        spoil(run, "sum", 15)
        with pytest.raises(OnnxVulkanError, match="written by sum"):
            run.run({"x": x})


def commands(*ops):
    rows = np.zeros(len(ops), COMMAND)
    rows["op"] = [int(op) for op in ops]
    return rows


def touches(reads=(), writes=()):
    return [Range(0, a, b) for a, b in reads], [Range(0, a, b) for a, b in writes]


@pytest.mark.parametrize(
    "kind,first,second",
    [
        ("read-after-write", touches(writes=[(0, 64)]), touches(reads=[(60, 100)])),
        ("write-after-write", touches(writes=[(0, 64)]), touches(writes=[(32, 40)])),
        ("write-after-read", touches(reads=[(0, 64)]), touches(writes=[(0, 1)])),
    ],
)
def test_hazards(kind, first, second):
    found = find_hazards(commands(Op.DISPATCH, Op.DISPATCH), [first, second])
    assert [(h.kind, h.first, h.second) for h in found] == [(kind, 0, 1)]
    with pytest.raises(AssertionError, match=kind):
        verify_plan(commands(Op.DISPATCH, Op.DISPATCH_INDIRECT), [first, second])
    assert not find_hazards(commands(Op.DISPATCH, Op.BARRIER, Op.DISPATCH), [first, second])
    # the barrier must lie between the two
    assert find_hazards(commands(Op.BARRIER, Op.DISPATCH, Op.DISPATCH, Op.BARRIER), [first, second])


def test_no_hazard_where_both_read_or_bytes_or_segments_differ():
    plan = commands(Op.DISPATCH, Op.DISPATCH)
    assert not find_hazards(plan, [touches(reads=[(0, 64)]), touches(reads=[(0, 64)])])
    assert not find_hazards(plan, [touches(writes=[(0, 64)]), touches(reads=[(64, 128)])])
    assert not find_hazards(plan, [([], [Range(0, 0, 64)]), ([Range(1, 0, 64)], [])])


def test_a_copy_reads_what_it_copies():
    plan = commands(Op.DISPATCH, Op.COPY)
    plan["size"][1], plan["a"][1] = 64, 32
    assert find_hazards(plan, [touches(writes=[(90, 100)])])
    assert not find_hazards(plan, [touches(writes=[(96, 100)])])
