"""The search: for each workload variants are checked, then timed in turns with the rule's choice; the fastest wins."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx_vulkan.codegen.choices import Workload
from onnx_vulkan.tune.children import Child, Failed, Hung, Refused
from onnx_vulkan.tune.journal import Journal
from onnx_vulkan.tune.samplers import Sampler, sampler_for
from onnx_vulkan.tune.tactics import Place, Tactic

__all__ = ["Budget", "Search", "Target", "Trial", "Watcher"]

BETTER = 0.98
"""A variant that takes more of the time of the rule's choice is no winner: so much may be noise."""
FINALISTS = 3
LEAST_TRIALS = 4
"""Even a workload with a small share is tried a little."""


@dataclass(frozen=True, slots=True)
class Target:
    """A workload to tune, with its microseconds on the GPU in one run of the model."""

    workload: Workload
    default: str
    legal: tuple[str, ...]
    labels: tuple[str, ...]
    us: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One variant that was tried. ``state``: ``timed``, ``wrong`` (beyond the tolerance), ``crashed``, ``hung``, ``failed`` (an
    error, ``reason`` says which). ``us`` and ``default_us``: medians of one interleaved measurement."""

    digest: str
    choice: str
    state: str
    reason: str = ""
    us: float = 0.0
    default_us: float = 0.0

    @property
    def ratio(self) -> float | None:
        """Its time as a share of the rule's choice; None where it was not timed."""
        return self.us / self.default_us if self.state == "timed" and self.default_us else None


@dataclass(frozen=True, slots=True)
class Budget:
    """The most trials and seconds of a search, and the seconds that a child has for one request."""

    trials: int = 400
    seconds: float = 300.0
    request_seconds: float = 60.0


class Watcher:
    """Is told how a search goes; what it is not told in a subclass it ignores."""

    def began(self, targets: Sequence[Target], budget: Budget) -> None:
        """The search begins."""

    def known(self, target: Target, trial: Trial) -> None:
        """A variant was tried in the search that goes on."""

    def tried(self, target: Target, trial: Trial) -> None:
        """A variant was tried."""

    def settled(self, target: Target, tactic: Tactic) -> None:
        """A workload has its winner."""

    def paired(self, done: int, most: int, gain: float) -> None:
        """A pair of the original and the tuned model was measured; *gain* is the mean share of GPU time saved so far."""


class Search:
    """Tunes the workloads of the model that *child* has opened. ``trials`` and ``winners`` (tactics by digest) grow meanwhile."""

    def __init__(self, child: Child, journal: Journal, place: Place, budget: Budget, kind: str, seed: int, watcher: Watcher):
        self.child, self.journal, self.place, self.budget = child, journal, place, budget
        self.kind, self.seed, self.watcher = kind, seed, watcher
        self.trials: list[Trial] = [Trial(**e["trial"]) for e in journal.entries if "trial" in e]
        self.winners: dict[str, Tactic] = {}
        for e in journal.entries:
            if "tactic" in e:
                tactic = Tactic.from_json(e["tactic"])
                self.winners[tactic.workload.digest] = tactic
        self.together = 17

    def run(self, targets: Sequence[Target]) -> None:
        """Tune *targets*, those with the largest share first."""
        ordered = sorted(targets, key=lambda t: -t.us)
        self.watcher.began(ordered, self.budget)
        named = {t.workload.digest: t for t in ordered}
        for trial in self.trials:
            if trial.digest in named:
                self.watcher.known(named[trial.digest], trial)
        end = time.monotonic() + self.budget.seconds
        trials = self.budget.trials - len(self.trials)
        for n, target in enumerate(ordered):
            if target.workload.digest in self.winners:
                continue
            now, rest = time.monotonic(), sum(t.us for t in ordered[n:]) or 1.0
            if now >= end or trials <= 0:
                break
            share = target.us / rest
            before = len(self.trials)
            self.tune(target, max(LEAST_TRIALS, round(trials * share)), now + max((end - now) * share, 1.0))
            trials -= len(self.trials) - before

    def tune(self, target: Target, most: int, until: float) -> None:
        """Find the winner of one workload with at most so many trials."""
        digest = target.workload.digest
        names = [name for name in target.legal if name != target.default]
        sampler = sampler_for(self.kind, names, self.seed)
        known = [t for t in self.trials if t.digest == digest]
        for t in known:
            sampler.tell(t.choice, t.ratio)
        done = len(known)
        if any(t.choice == target.default for t in known):
            return
        if not known:
            found = self.guarded(digest, target.default, lambda: self.wrong(digest, target.default))
            if isinstance(found, Trial):  # the rule's own choice: nothing of this workload can be trusted here
                self.note(target, found, sampler)
                return
        while done < most and time.monotonic() < until:
            asked = sampler.ask(min(max(self.together - 1, 1), most - done))
            if not asked:
                break
            done += len(asked)
            self.try_all(target, asked, sampler)
        self.settle(target)

    def try_all(self, target: Target, names: Sequence[str], sampler: Sampler) -> None:
        """Check variants one by one, and time those that are right together."""
        digest, right = target.workload.digest, []
        with contextlib.suppress(Failed, Refused):  # which of them it is the checks will tell
            self.child.ask(self.budget.request_seconds, "compile", digest=digest, choices=list(names))
        for name in names:
            found = self.guarded(digest, name, lambda name=name: self.wrong(digest, name))  # type: ignore[misc]
            if isinstance(found, Trial):
                self.note(target, found, sampler)
            else:
                right.append(name)
        for trial in self.timed(digest, right):
            self.note(target, trial, sampler)

    def note(self, target: Target, trial: Trial, sampler: Sampler) -> None:
        """Keep a trial, on the disk too."""
        self.trials.append(trial)
        sampler.tell(trial.choice, trial.ratio)
        self.journal.add({"trial": dataclasses.asdict(trial)})
        self.watcher.tried(target, trial)

    def wrong(self, digest: str, name: str) -> Trial | None:
        """The trial of a variant that does not pass the check."""
        reason = self.child.ask(self.budget.request_seconds, "check", digest=digest, choice=name, seed=self.seed)["wrong"]
        return Trial(digest, name, "wrong", reason) if reason else None

    def guarded(self, digest: str, name: str, work: Callable[[], Any]) -> Any:
        """What *work* gives, or the trial that says how it failed."""
        try:
            return work()
        except Hung as e:
            return Trial(digest, name, "hung", str(e))
        except Failed as e:
            return Trial(digest, name, "crashed", str(e))
        except Refused as e:
            return Trial(digest, name, "failed", f"{e.kind}: {e}")

    def timed(self, digest: str, names: Sequence[str]) -> list[Trial]:
        """The trials of variants that are right: timed together, or each alone where one of them brings that down."""
        if not names:
            return []
        try:
            times = self.times(digest, names)
        except (Failed, Refused):
            if len(names) > 1:
                return [trial for name in names for trial in self.timed(digest, [name])]
            found = self.guarded(digest, names[0], lambda: self.times(digest, names))
            if isinstance(found, Trial):
                return [found]
            times = found
        base = times[0]
        return [Trial(digest, n, "timed", us=us, default_us=base) for n, us in zip(names, times[1:], strict=True)]

    def times(self, digest: str, names: Sequence[str]) -> list[float]:
        """Microseconds of the workload in the rule's choice and in *names*, the winners of others in place."""
        pinned = {d: t.choice for d, t in self.winners.items() if d != digest}
        choices: list[Mapping[str, str]] = [pinned, *({**pinned, digest: name} for name in names)]
        answer = self.child.ask(self.budget.request_seconds, "time", digest=digest, choices=choices)
        return [t["us"] for t in answer["timings"]]

    def settle(self, target: Target) -> None:
        """Time the best variants once more against the rule's choice, and note the winner (which may be that)."""
        digest = target.workload.digest
        tried = [(t.ratio, t.choice) for t in self.trials if t.digest == digest and t.ratio is not None]
        finalists = [name for ratio, name in sorted(tried) if ratio < BETTER][:FINALISTS]
        choice, us, default_us = target.default, target.us, target.us
        if finalists:
            trials = [t for t in self.timed(digest, finalists) if t.ratio is not None]
            best = min(trials, key=lambda t: t.us, default=None)
            if best is not None:
                us = default_us = best.default_us
                if best.us < BETTER * best.default_us:
                    choice, us = best.choice, best.us
        tactic = Tactic(target.workload, self.place, choice, target.default, us, default_us)
        self.winners[digest] = tactic
        self.journal.add({"tactic": tactic.as_json()})
        self.watcher.settled(target, tactic)
