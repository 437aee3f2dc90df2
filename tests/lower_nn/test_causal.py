"""CausalConvWithState against ONNX Runtime's CPU EP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_node import check, normal

CONTRIB: dict[str, Any] = {"domain": "com.microsoft", "dynamic": True}


@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("form", [{}, {"activation": "silu"}, {"activation": "swish", "dilation": 2}], ids=str)
@pytest.mark.parametrize("whole", [False, True])
def test_causal_conv(whole: bool, form: dict[str, Any], length: int) -> None:
    """With and without bias and state; inputs shorter and longer than what the state holds."""
    given = {"x": normal(2, 5, length), "w": normal(5, 1, 4), "b": None, "past": None}
    if whole:
        given |= {"b": normal(5), "past": normal(2, 5, 3 * form.get("dilation", 1))}
    check("CausalConvWithState", 21, given, form, outputs=2, constants=("w", "b"), device=length == 2 and whole, **CONTRIB)


@pytest.mark.parametrize("tail", [(5,), (5, 3)])
def test_causal_conv_channels_last(tail: tuple[int, ...]) -> None:
    given = {"x": normal(2, 7, *tail), "w": normal(int(np.prod(tail)), 1, 4), "b": None, "past": normal(2, 3, *tail)}
    check("CausalConvWithState", 21, given, {"channels_last": 1}, outputs=2, constants=("w",), **CONTRIB)
