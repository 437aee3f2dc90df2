"""A worker in which one variant is wrong and one crashes: what the gate of a search has to stop."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

from onnx_vulkan.kernels.contract import ContractStep
from onnx_vulkan.tune.worker import Bench, serve

WRONG, CRASHING = (f"tile 32x32x{bk}, 4x4 a thread, {splits} splits" for bk, splits in ((8, 1), (8, 4)))

_launches_of = ContractStep.launches_of


def _faulty(self: ContractStep, choice: Any, at: Any, limits: Any) -> Any:
    launches = _launches_of(self, choice, at, limits)
    if choice.name == WRONG:  # the last tile is left out
        first = launches[0]
        x, y, z = first.variant.grid
        launches[0] = replace(first, variant=replace(first.variant, grid=(x - 1, y, z)))
    elif choice.name == CRASHING:
        os.kill(os.getpid(), signal.SIGSEGV)
    return launches


if __name__ == "__main__":
    ContractStep.launches_of = _faulty  # type: ignore[method-assign]
    serve(Bench())
