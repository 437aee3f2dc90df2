"""Maps of matrices' elements to invocations: the one that kernels know is told from others; the kernel that asks compiles."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_vulkan.device import Device
from onnx_vulkan.device.compile import needed_features, spirv
from onnx_vulkan.device.unit_map import MOST, NOTHING, SOURCE, is_row_map, probed, row_map
from onnx_vulkan.graph import Array


def written(numbers: Array) -> Array:
    """What the kernel leaves where invocations hold *numbers*."""
    whole = np.full((len(numbers), MOST), NOTHING, np.uint32)
    whole[:, : numbers.shape[1]] = numbers
    return whole


def test_the_map_has_each_element_once_and_rows_in_groups_of_four() -> None:
    numbers = row_map()
    assert sorted(numbers.reshape(-1)) == list(range(256))
    rows = numbers.reshape(8, 4, 8) // 16
    assert (rows == rows[:, :1]).all(), "the four of a group share their rows"
    assert is_row_map(written(numbers))


@pytest.mark.parametrize(
    "other",
    [
        row_map() % 16 * 16 + row_map() // 16,  # transposed
        row_map()[::-1],  # other invocations
        row_map()[:, [0, 1, 4, 5, 2, 3, 6, 7]],  # other components
        np.arange(256).reshape(32, 8),  # half a row each
        np.arange(256).reshape(16, 16).T.reshape(32, 8),
        np.random.default_rng(0).permutation(256).reshape(32, 8),  # scattered
        np.repeat(np.arange(256).reshape(16, 16), 2, 0),  # twice, as some devices hold operands
        row_map()[:, :4],
        np.arange(256).reshape(64, 4),
    ],
    ids=["transposed", "invocations", "components", "halves", "columns", "scattered", "twice", "too few", "other size"],
)
def test_other_maps_do_not_qualify(other: Array) -> None:
    assert not is_row_map(written(other.astype(np.uint32)))


def test_the_kernel_compiles_and_devices_without_units_are_not_asked() -> None:
    assert {"coop_matrix", "f16"} <= needed_features(spirv(SOURCE))
    device = Device.get()
    if "coop_f16" not in device.info.features:
        assert not probed(device, "unasked") and "coop_rows" not in device.info.features
    elif "coop_rows" in device.info.features:
        assert probed(device, "again") == {"coop_rows"}
