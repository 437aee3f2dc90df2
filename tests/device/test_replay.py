"""Blocks and plans, with hand-made plans: matching, growing, counting."""

import numpy as np
from plans import scale_block

from onnx_vulkan.device import Device


def test_runs_of_several_shapes(device: Device) -> None:
    block = scale_block(device)
    for n in (5, 100, 5, 100, 1000, 5):
        x = np.arange(n, dtype=np.float32)
        (y,) = block.run([x])
        assert (y == 2 * x).all()
    assert block.info()["plans_made"] == 3
    block.close()
