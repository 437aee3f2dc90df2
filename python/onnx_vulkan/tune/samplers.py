"""Which variant of a workload is tried next: all in order, at random, or where optuna's TPE expects the best.

A variant's name tells its numbers (``tile 64x64x16, 8x4 a thread, 2 splits``): for TPE the text between them is the kind, and
each number an axis.
"""

from __future__ import annotations

import importlib.util
import random
import re
import warnings
from collections.abc import Sequence
from typing import Any, Protocol

from onnx_vulkan.errors import InvalidInput

__all__ = ["SAMPLERS", "Sampler", "check_sampler", "sampler_for"]

SAMPLERS = ("tpe", "random", "exhaustive")

START = 8
"""Variants that TPE tries at random before it has an opinion."""


class Sampler(Protocol):
    """Where the next variants come from; none is given twice."""

    def ask(self, count: int) -> list[str]:
        """Up to *count* variants to try; none where all were."""
        ...

    def tell(self, name: str, ratio: float | None) -> None:
        """How long a variant took, as a share of the rule's choice; None where it did not work."""
        ...


class _Listed:
    """Variants in a given order."""

    def __init__(self, names: Sequence[str]):
        self.names = list(names)

    def ask(self, count: int) -> list[str]:
        taken, self.names = self.names[:count], self.names[count:]
        return taken

    def tell(self, name: str, ratio: float | None) -> None:
        if name in self.names:
            self.names.remove(name)


class _Tpe:
    """optuna's tree-structured Parzen estimator on the kinds and numbers of the names."""

    def __init__(self, names: Sequence[str], seed: int):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.optuna = optuna
        self.left = dict.fromkeys(names)
        self.parts = {_parts(name): name for name in names}
        self.axes: dict[str, list[list[int]]] = {}
        for kind, numbers in self.parts:
            axes = self.axes.setdefault(kind, [[] for _ in numbers])
            for axis, n in zip(axes, numbers, strict=True):
                axis.append(n)
        self.axes = {kind: [sorted(set(axis)) for axis in axes] for kind, axes in self.axes.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that kinds with axes of their own (group) are an experimental feature
            sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=START, multivariate=True, group=True, constant_liar=True
            )
        self.study = optuna.create_study(sampler=sampler)
        self.random = random.Random(seed)
        self.asked: dict[str, Any] = {}

    def ask(self, count: int) -> list[str]:
        found: list[str] = []
        while len(found) < count and self.left:
            name = next(filter(None, (self._suggested() for _ in range(20))), None)
            if name is None:  # it keeps on asking for what was tried, or for what is not legal
                name = self.random.choice(list(self.left))
            self.left.pop(name)
            found.append(name)
        return found

    def _suggested(self) -> str | None:
        trial = self.study.ask()
        kind = trial.suggest_categorical("kind", list(self.axes))
        axes = self.axes[kind]
        at = [trial.suggest_int(f"{kind} {n}", 0, len(axis) - 1) if len(axis) > 1 else 0 for n, axis in enumerate(axes)]
        name = self.parts.get((kind, tuple(axis[i] for axis, i in zip(axes, at, strict=True))))
        if name is None or name not in self.left:
            self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
            return None
        self.asked[name] = trial
        return name

    def tell(self, name: str, ratio: float | None) -> None:
        self.left.pop(name, None)
        trial, state = self.asked.pop(name, None), self.optuna.trial.TrialState
        if trial is not None:
            self.study.tell(trial, ratio, state=state.COMPLETE if ratio is not None else state.FAIL)
        elif ratio is not None:
            kind, numbers = _parts(name)
            params: dict[str, Any] = {"kind": kind}
            distributions: dict[str, Any] = {"kind": self.optuna.distributions.CategoricalDistribution(list(self.axes))}
            for n, (axis, number) in enumerate(zip(self.axes[kind], numbers, strict=True)):
                if len(axis) > 1:
                    params[f"{kind} {n}"] = axis.index(number)
                    distributions[f"{kind} {n}"] = self.optuna.distributions.IntDistribution(0, len(axis) - 1)
            self.study.add_trial(self.optuna.trial.create_trial(params=params, distributions=distributions, value=ratio))


def _parts(name: str) -> tuple[str, tuple[int, ...]]:
    """A name without its numbers, and those."""
    return re.sub(r"\d+", "#", name), tuple(map(int, re.findall(r"\d+", name)))


def check_sampler(kind: str) -> None:
    """Raises InvalidInput for an unknown kind, or where optuna is missing."""
    if kind not in SAMPLERS:
        raise InvalidInput(f"there is no sampler {kind!r}: use {', '.join(SAMPLERS[:-1])} or {SAMPLERS[-1]}.")
    if kind == "tpe" and importlib.util.find_spec("optuna") is None:
        raise InvalidInput(
            "the sampler tpe needs optuna: pip install 'onnx-vulkan[tune]', or use --sampler random or exhaustive."
        )


def sampler_for(kind: str, names: Sequence[str], seed: int = 0) -> Sampler:
    """The sampler of a kind over *names*. Raises InvalidInput as :func:`check_sampler`."""
    check_sampler(kind)
    if kind == "exhaustive":
        return _Listed(names)
    if kind == "random":
        return _Listed(random.Random(seed).sample(list(names), len(names)))
    return _Tpe(names, seed)
