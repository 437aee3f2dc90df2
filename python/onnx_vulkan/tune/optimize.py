"""``onnx-vulkan optimize``: searches tactics for a bundle, and keeps them only where the model is measurably faster with them."""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onnx_vulkan.bundle import MANIFEST, read_bundle, write_bundle
from onnx_vulkan.codegen.choices import Workload
from onnx_vulkan.errors import InvalidInput
from onnx_vulkan.tune.children import WORKER, Child, Failed
from onnx_vulkan.tune.journal import Journal
from onnx_vulkan.tune.pairs import MOST_PAIRS, Pairs, measure_pairs
from onnx_vulkan.tune.samplers import check_sampler
from onnx_vulkan.tune.search import Budget, Search, Target, Watcher
from onnx_vulkan.tune.tactics import Place, Tactic, add_tactics, default_file, write_tactics

__all__ = ["FASTER", "NO_GAIN", "Job", "journal_of", "optimize", "right_winners"]

FASTER, NO_GAIN = "faster", "compatible_no_measured_gain"
OPENING_SECONDS = 600.0


@dataclass(frozen=True)
class Job:
    """What is asked for. ``seed`` makes two searches alike, ``pairs`` are compared at most, ``command`` starts a worker."""

    bundle: Path
    output: Path
    budget: Budget = field(default_factory=Budget)
    sampler: str = "tpe"
    resume: bool = False
    device: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    pairs: int = MOST_PAIRS
    command: Sequence[str] = WORKER


def journal_of(output: Path) -> Path:
    """Where the journal of a search lies: beside the bundle that it will make."""
    return output.resolve().with_name(f"{output.resolve().name}.journal.jsonl")


def targets_of(opened: Mapping[str, Any], us: Mapping[str, float]) -> list[Target]:
    """The workloads that a worker tells of."""
    found = []
    for w in opened["workloads"]:
        raw = dict(w["workload"])
        raw["sizes"] = tuple((n, v) for n, v in raw["sizes"])
        workload = Workload(**{**raw, "dtypes": tuple(raw["dtypes"])})
        found.append(Target(workload, w["default"], tuple(w["legal"]), tuple(w["labels"]), us.get(workload.digest, 0.0)))
    return found


def optimize(job: Job, watcher: Watcher | None = None) -> dict[str, Any]:
    """Tune a bundle and write another one; gives the result as JSON can hold it.

    ``verdict`` is ``faster``, and the new bundle has the tactics, or ``compatible_no_measured_gain``, and it has none. Raises
    InvalidInput, ModelError, DeviceError and what running the model raises. The journal beside the output is good whatever ends
    this.
    """
    watcher = watcher or Watcher()
    check_sampler(job.sampler)
    bundle = read_bundle(job.bundle)
    if job.output.resolve() == job.bundle.resolve():
        raise InvalidInput("--output is the bundle itself: give another folder.")

    def child(steps: bool = True) -> Child:
        opening = {"model": str(job.bundle), "dims": {}, "options": dict(job.options), "device": job.device, "steps": steps}
        return Child(opening, job.command, OPENING_SECONDS)

    worker = child()
    try:
        opened = worker.start()
        place = Place(**opened["place"])
        about = {
            "bundle": hashlib.sha256((job.bundle / MANIFEST).read_bytes()).hexdigest(),
            **{f"place.{name}": value for name, value in opened["place"].items()},
            "options": dict(job.options),
            "sampler": job.sampler,
            "seed": job.seed,
        }
        shares = worker.ask(OPENING_SECONDS, "shares")
        targets = targets_of(opened, shares["us"])
        journal = Journal(journal_of(job.output), about, resume=job.resume)
        try:
            search = Search(worker, journal, place, job.budget, job.sampler, job.seed, watcher)
            search.together = shares["together"]
            search.run(targets)
        finally:
            journal.close()
    finally:
        worker.close()
    with tempfile.TemporaryDirectory(prefix="onnx-vulkan-tune-") as folder:
        file = Path(folder) / "tactics.json"
        kept, dropped = right_winners(list(search.winners.values()), file, child, job)
        changed = [t for t in kept if t.choice != t.default]
        pairs = Pairs(stopped="no variant is faster than the rule's choice")
        if changed:
            write_tactics(file, kept)
            pairs = measure_pairs(lambda: child(False), file, job.budget.request_seconds, watcher.paired, job.pairs)
        faster = bool(changed) and pairs.faster
        # an attention that runs in other kernels than before has workloads that were not tuned
        covered = {t.workload.digest for t in kept} >= {t.workload.digest for t in targets} and not any(
            t.workload.family == "attention" for t in changed
        )
        states = Counter(t.state for t in search.trials)
        result = {
            "verdict": FASTER if faster else NO_GAIN,
            "bundle": str(job.bundle),
            "output": str(job.output),
            "device": place.name,
            "driver": place.driver,
            "sampler": job.sampler,
            "trials": {"all": len(search.trials), **states},
            "rejected": [
                {"workload": _told(targets, t.digest), "choice": t.choice, "state": t.state, "reason": t.reason}
                for t in search.trials
                if t.state != "timed"
            ],
            "workloads": {"tunable": len(targets), "tuned": len(search.winners), "changed": len(changed)},
            "model_us": shares["total_us"],
            "comparison": pairs.as_json(),
            "dropped": [{"workload": t.workload.told, "choice": t.choice, "ratio": ratio} for t, ratio in dropped],
            "tactics": [t.as_json() for t in kept] if faster else [],
            "mode": "require-cache" if faster and covered else "cache-only" if faster else "off",
            "journal": str(journal.path),
        }
        records = {**bundle.records, "optimize": {k: result[k] for k in ("verdict", "device", "driver", "trials", "comparison")}}
        write_bundle(replace(bundle, tactics=file if faster else None, records=records), job.output)
        if faster:
            add_tactics(default_file(), kept)
    return result


def _told(targets: Sequence[Target], digest: str) -> str:
    return next((t.workload.told for t in targets if t.workload.digest == digest), digest)


def right_winners(winners: list[Tactic], file: Path, child: Any, job: Job) -> tuple[list[Tactic], list[tuple[Tactic, float]]]:
    """The winners with which the model's outputs are within the bundle's tolerance, and those without, with their ratios."""

    def ratio(tactics: Sequence[Tactic]) -> float:
        write_tactics(file, tactics)
        one = child(False)
        try:
            return float(one.ask(job.budget.request_seconds, "sample", tactics_file=str(file))["ratio"] or 0.0)
        except Failed:
            return float("inf")
        finally:
            one.close()

    changed = [t for t in winners if t.choice != t.default]
    if not changed or ratio(changed) <= 1:
        return winners, []
    allowed = max(ratio([]), 1.0)  # where rounding alone is beyond the tolerance, no further beyond it
    alone = {t.key: ratio([t]) for t in changed}
    bad = [t for t in changed if alone[t.key] > allowed] or changed
    rest = [t for t in winners if t not in bad]
    if any(t.choice != t.default for t in rest) and ratio(rest) > allowed:
        rest, bad = [t for t in winners if t.choice == t.default], changed
    return rest, [(t, min(alone[t.key], 1e30)) for t in bad]
