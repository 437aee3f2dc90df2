"""Every model of the catalog is claimed whole, in one block, with no device and no run: the heavy ones too."""

from __future__ import annotations

import pytest
from catalog import MODELS, Model
from onnx_vulkan.claims import partition
from onnx_vulkan.frontend import load


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_model_is_claimed_as_the_table_says(model: Model) -> None:
    claims = partition(load(model.path()))
    if model.whole:
        assert not claims.refusals
        assert len(claims.blocks) == 1
    else:
        assert claims.refusals, "it runs whole now: say so in the table"
