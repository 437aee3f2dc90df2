"""The journal of a search: one JSON line for what was found, on the disk before the next is tried.

The first line says what the search is of. Whatever ends the process, the lines before are good; a last line that is cut off is
dropped.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx_vulkan.errors import InvalidInput

__all__ = ["SCHEMA", "Journal", "read_journal"]

SCHEMA = "onnx-vulkan/tune-journal/1"


def read_journal(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The first line and the others. Raises InvalidInput where it is no journal."""
    lines = path.read_bytes().split(b"\n")[:-1]  # what no newline ends was cut off
    try:
        head, *entries = [json.loads(line) for line in lines]
        if head["schema"] != SCHEMA:
            raise ValueError(f"its schema is {head['schema']}, not {SCHEMA}")
    except (ValueError, KeyError, TypeError) as e:
        raise InvalidInput(f"{path} is no journal of a search ({e}): remove it and leave out --resume.") from None
    return head, entries


class Journal:
    """A journal that is written. *about* says what the search is of; ``entries`` are those of the search that goes on.

    Raises InvalidInput where another process writes it, or where *resume* finds nothing, or a search of something else.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], *, resume: bool = False):
        self.path = path
        head = {"schema": SCHEMA, **about}
        self.entries: list[dict[str, Any]] = []
        if resume and not path.exists():
            raise InvalidInput(f"there is no journal {path} to go on from: leave out --resume.")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "ab")  # noqa: SIM115  (closed by close)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise InvalidInput(f"another process is tuning into {path}: wait for it, or give --output another folder.") from None
        try:
            if resume:
                self._go_on(head)
            else:
                self._file.truncate(0)
                self.add(head)
        except BaseException:
            self._file.close()
            raise

    def _go_on(self, head: Mapping[str, Any]) -> None:
        before, self.entries = read_journal(self.path)
        other = [name for name in head if before.get(name) != head[name]]
        if other:
            name = other[0]
            was, now = before.get(name), head[name]
            raise InvalidInput(f"{self.path} is of another search: its {name} is {was!r}, not {now!r}. Leave out --resume.")
        whole = sum(len(line) + 1 for line in self.path.read_bytes().split(b"\n")[:-1])
        self._file.truncate(whole)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Write one line, to the disk."""
        self._file.write(json.dumps(entry).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let another process write it."""
        self._file.close()
