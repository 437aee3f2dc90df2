"""Choices between variants that a measurement may make better than a rule: a *tactic* names the variant that won.

A family says in one place which variants are legal for a workload on a device, each with a name, and asks :func:`pick`, which
gives the rule's choice unless ``Limits.tactics`` knows a better one. What is not legal here is never used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from onnx_vulkan.codegen.kernel import At, Kernel, Limits

__all__ = ["Tactics", "Workload", "pick"]

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Workload:
    """What a tactic is for. ``sizes`` and ``dtypes`` are for people; ``digest`` is of all that the kernel depends on: its text
    (with operands and epilogue), the numbers of its parameters, and the precision that the session allows."""

    family: str
    sizes: tuple[tuple[str, int], ...]
    dtypes: tuple[str, ...]
    precision: str
    digest: str

    @property
    def told(self) -> str:
        """The workload for a message: ``product m 64, n 512, k 2048 (float)``."""
        sizes = ", ".join(f"{name} {n}" for name, n in self.sizes)
        return f"{self.family} {sizes} ({', '.join(self.dtypes)})"


class Tactics(Protocol):
    """Who knows the winners (``onnx_vulkan.tune``)."""

    def choice(self, workload: Workload, default: str, legal: Sequence[str]) -> str:
        """The name of the variant to use: *default*, or another of *legal*."""
        ...


def pick(
    family: str,
    kernel: Callable[[], Kernel],
    sizes: Mapping[str, int],
    at: At,
    limits: Limits,
    default: C,
    space: Callable[[], Iterable[C]],
    name: Callable[[C], str],
) -> C:
    """The variant to use for a workload: that of a tactic where one is known, else *default*, the rule's choice.

    ``kernel()`` is the one whose text and parameters stand for the workload, ``space()`` gives all its legal variants. Sizes that
    change from run to run have no tactics: a measurement at one of them says nothing of the others.
    """
    tactics: Tactics | None = getattr(limits, "tactics", None)  # kernel tests give limits without any
    if tactics is None:
        return default
    workload = _workload(family, kernel(), sizes, at, limits)
    if workload is None:
        return default
    legal = {name(c): c for c in space()}
    legal.setdefault(name(default), default)
    if len(legal) < 2:
        return default
    return legal.get(tactics.choice(workload, name(default), list(legal)), default)


def _workload(family: str, kernel: Kernel, sizes: Mapping[str, int], at: At, limits: Limits) -> Workload | None:
    varies = getattr(at, "varies", lambda e: False)
    numbers = []
    for p in kernel.params.entries:
        if p.kind in ("int", "long", "divisor"):
            if varies(p.extent):
                return None
            numbers.append(at(p.extent))
    values = dict.fromkeys((*kernel.reads, *kernel.writes))
    dtypes = tuple(dict.fromkeys(v.dtype.onnx_name for v in values))
    made = repr((kernel.body, numbers, [v.dtype.onnx_name for v in values], limits.precision))
    digest = hashlib.sha256(made.encode()).hexdigest()[:32]
    return Workload(family, tuple(sizes.items()), dtypes, limits.precision, digest)
