"""What a user can choose for a session, through either door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of one session; the defaults suit most models.

    ``device``: which GPU (index, UUID or part of its name; None: ``ONNX_VULKAN_DEVICE``, else the best one).
    ``memory_limit_bytes``: the most device memory this process may take on that device (0: no limit of ours).
    ``release_arena``: give working memory back after each run. ``contexts``: how many runs may be in flight at once.
    ``runtime_dims``: named dims whose value changes from run to run, with their capacity; others are promoted by themselves
    when they are seen to change again and again. ``auto_runtime_dims`` turns that promotion off.
    ``compile_ahead``: compile what other input sizes will need on a background thread; ``auto``: on a GPU, not on a software
    device, whose cores the model needs.
    ``keep_islands``: through ONNX Runtime, claim also small groups of nodes between CPU nodes, whose crossings cost more than
    they save.
    ``guard_zones``: debug: every tensor in memory of its own, between poisoned zones that are checked after each run.
    ``barrier_everywhere``: debug: a barrier before every dispatch.
    """

    device: str | None = None
    memory_limit_bytes: int = 0
    release_arena: bool = False
    contexts: int = 2
    runtime_dims: Mapping[str, int] = field(default_factory=dict)
    auto_runtime_dims: bool = True
    compile_ahead: Literal["auto", "on", "off"] = "auto"
    keep_islands: bool = False
    guard_zones: bool = False
    barrier_everywhere: bool = False
