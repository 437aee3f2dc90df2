"""Tactics: which variant won for a workload on a device. One JSON file holds them; sessions look them up when they plan.

A tactic holds for one workload, device, driver and state of the kernels' sources. Anywhere else it is a miss: the rule's choice
is used, as if there were no tactic.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_vulkan.codegen.choices import Workload
from onnx_vulkan.device.compile import cache_dir
from onnx_vulkan.device.info import DeviceInfo
from onnx_vulkan.errors import InvalidInput, ModelError
from onnx_vulkan.provenance import kernel_digest

__all__ = [
    "MODES",
    "SCHEMA",
    "Lookup",
    "Place",
    "Tactic",
    "add_tactics",
    "default_file",
    "lookup_for",
    "read_tactics",
    "write_tactics",
]

SCHEMA = "onnx-vulkan/tactics/1"
MODES = ("off", "cache-only", "require-cache")

log = logging.getLogger("onnx_vulkan")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a measurement holds: a device by its UUID, a driver, and the digest of the kernels' sources."""

    device: str
    driver: str
    source: str
    name: str = dataclasses.field(default="", compare=False)

    @staticmethod
    def of(info: DeviceInfo) -> Place:
        """The place that an opened device is, with these sources."""
        return Place(info.uuid, f"{info.driver} ({info.driver_version:#x})", kernel_digest(), info.name)

    def key(self, workload: Workload) -> str:
        """The key of a workload's tactic here."""
        made = "\0".join((workload.digest, self.device, self.driver, self.source))
        return hashlib.sha256(made.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Tactic:
    """The variant ``choice`` was measured against ``default``, the rule's (which it may be). Times are microseconds on the GPU,
    medians of interleaved runs."""

    workload: Workload
    place: Place
    choice: str
    default: str
    choice_us: float
    default_us: float

    @property
    def key(self) -> str:
        return self.place.key(self.workload)

    def as_json(self) -> dict[str, Any]:
        """The tactic as it stands in the file."""
        data = dataclasses.asdict(self)
        data["workload"]["sizes"] = dict(self.workload.sizes)
        data["workload"]["dtypes"] = list(self.workload.dtypes)
        return data

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Tactic:
        """The reverse. Raises KeyError, TypeError or ValueError where something is missing or strange."""
        w, p = data["workload"], data["place"]
        texts = [w["family"], w["precision"], w["digest"], *p.values(), data["choice"], data["default"]]
        if not all(isinstance(t, str) for t in texts):
            raise TypeError("a name is no text")
        sizes = tuple((str(n), int(v)) for n, v in w["sizes"].items())
        workload = Workload(w["family"], sizes, tuple(map(str, w["dtypes"])), w["precision"], w["digest"])
        times = float(data["choice_us"]), float(data["default_us"])
        return Tactic(workload, Place(**p), data["choice"], data["default"], *times)


def default_file() -> Path:
    """The file that is used where none is named: ``tactics.json`` in the cache folder."""
    return cache_dir() / "tactics.json"


def read_tactics(path: str | os.PathLike[str]) -> dict[str, Tactic]:
    """The tactics of a file, by key. Raises InvalidInput where there is no such file, ModelError where it is damaged."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ModelError(f"{path} has the schema {data['schema']}; this version reads {SCHEMA}: tune again.")
        found = {key: Tactic.from_json(entry) for key, entry in data["tactics"].items()}
    except FileNotFoundError:
        raise InvalidInput(f"there is no tactics file {path}: write one with onnx-vulkan optimize.") from None
    except OSError as e:
        raise InvalidInput(f"the tactics file {path} cannot be read: {e.strerror}.") from None
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise ModelError(f"{path} is no tactics file, or it is damaged ({type(e).__name__}: {e}).") from None
    wrong = next((key for key, tactic in found.items() if tactic.key != key), None)
    if wrong is not None:
        raise ModelError(f"{path} is damaged: the tactic {wrong} is not of the workload and device that it names.")
    return found


def write_tactics(path: str | os.PathLike[str], tactics: Iterable[Tactic]) -> None:
    """Write a file, whole or not at all."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    entries = {t.key: t.as_json() for t in sorted(tactics, key=lambda t: t.key)}
    partial = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}.partial")
    try:
        with open(partial, "w", encoding="utf-8") as f:
            json.dump({"schema": SCHEMA, "tactics": entries}, f, indent=2)
            f.write("\n")
            f.flush()
            os.fsync(f.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def add_tactics(path: str | os.PathLike[str], tactics: Iterable[Tactic]) -> None:
    """Add tactics to a file, which need not exist; newer ones replace those of the same key. Two writers lose nothing."""
    with _locked(Path(path)):
        known = read_tactics(path) if Path(path).exists() else {}
        write_tactics(path, {**known, **{t.key: t for t in tactics}}.values())


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Lookup:
    """The tactics that a block's plans use (``codegen.choices.Tactics``). ``missing``: workloads without one, by key."""

    def __init__(self, tactics: Mapping[str, Tactic], place: Place, *, required: bool = False):
        self.tactics, self.place, self.required = tactics, place, required
        self.missing: dict[str, Workload] = {}

    def choice(self, workload: Workload, default: str, legal: Sequence[str]) -> str:
        """The winner's name where it is known and legal, else *default*."""
        key = self.place.key(workload)
        tactic = self.tactics.get(key)
        if tactic is None:
            self.missing[key] = workload
            return default
        if tactic.choice not in legal:
            log.warning("the tactic %s for %s is not used: %r is not legal here", key, workload.told, tactic.choice)
            return default
        return tactic.choice

    def check(self) -> None:
        """Raises InvalidInput that lists what is missing, where tactics are required."""
        missing, self.missing = self.missing, {}
        if self.required and missing:
            lines = "\n".join(f"  - {key}: {workload.told}" for key, workload in missing.items())
            raise InvalidInput(
                f"tactics=require-cache, but {len(missing)} workloads have no tactic for {self.place.name}, {self.place.driver} "
                f"(sources {self.place.source}). Tune the model with onnx-vulkan optimize, or use tactics=cache-only:\n{lines}"
            )


@functools.lru_cache(maxsize=8)
def _read_once(path: Path, changed: int) -> dict[str, Tactic]:
    """The tactics of a file that was changed then: a model through ONNX Runtime may be many blocks."""
    return read_tactics(path)


def lookup_for(mode: str | None, file: str | None, info: DeviceInfo) -> Lookup | None:
    """How a session looks tactics up; None where it does not. What an option leaves open (None), the environment says.

    Raises InvalidInput for an unknown mode or a file that is named and missing, ModelError for a damaged one.
    """
    mode = mode or os.environ.get("ONNX_VULKAN_TACTICS") or "off"
    if mode not in MODES:
        raise InvalidInput(f"ONNX_VULKAN_TACTICS is {mode!r}; it has to be {', '.join(MODES[:-1])} or {MODES[-1]}.")
    if mode == "off":
        return None
    named = file or os.environ.get("ONNX_VULKAN_TACTICS_FILE")
    path = Path(named) if named else default_file()
    known = _read_once(path, path.stat().st_mtime_ns) if path.exists() else read_tactics(path) if named else {}
    return Lookup(known, Place.of(info), required=mode == "require-cache")
