"""Folders that appear whole or not at all: they are written under another name beside their place, and renamed when complete.

A process that is killed while it writes leaves a hidden folder ``.NAME.partial``, which the next writer of NAME takes over. Two
writers of one folder exclude each other by a lock on that hidden folder, which ends with its process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from onnx_vulkan.errors import InvalidInput, OnnxVulkanError

__all__ = ["published", "refuse_other"]


def refuse_other(folder: str | os.PathLike[str], what: str, is_one: Callable[[Path], bool]) -> None:
    """Raises InvalidInput where *folder* holds something that :func:`published` would not replace."""
    target = Path(folder).resolve()
    if target.exists() and not is_one(target) and (not target.is_dir() or any(target.iterdir())):
        raise InvalidInput(f"{folder} exists and is no {what}: give --output a new folder.")


@contextmanager
def published(folder: str | os.PathLike[str], what: str, is_one: Callable[[Path], bool]) -> Iterator[Path]:
    """Gives an empty folder to write to, which becomes *folder* at the end of the block, or is gone where the block raises.

    *what* it will be (``bundle``), for messages; *is_one* says whether a folder that exists is such a thing, which may then be
    replaced; an empty folder may be, too. Raises InvalidInput where something else is there or another process is writing
    it, OnnxVulkanError where the disk is full or the place cannot be written to.
    """
    refuse_other(folder, what, is_one)
    target = Path(folder).resolve()
    partial, replaced = (target.with_name(f".{target.name}.{end}") for end in ("partial", "replaced"))
    lock = -1
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(partial, f"another process is writing the {what} {folder}: wait for it, or give --output another folder.")
        _recover(replaced, target)
        try:
            yield partial
            _swap(partial, target, replaced)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as e:
        place = f" ({e.filename})" if e.filename and e.errno != errno.ENOSPC else ""
        raise OnnxVulkanError(f"the {what} {folder} cannot be written: {e.strerror or e}{place}. Nothing was left there.") from e
    finally:
        if lock >= 0:
            os.close(lock)


def _locked(partial: Path, taken: str) -> int:
    """Make the hidden folder, or take over what a killed process has left of it; gives the descriptor that holds the lock."""
    while True:
        partial.mkdir(exist_ok=True)
        lock = os.open(partial, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = partial.exists() and os.path.samestat(os.fstat(lock), os.stat(partial))
        except BlockingIOError:
            os.close(lock)
            raise InvalidInput(taken) from None
        if mine:
            for left in partial.iterdir():
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
            return lock
        os.close(lock)  # it was renamed between the two calls


def _swap(partial: Path, target: Path, replaced: Path) -> None:
    if target.exists() and any(target.iterdir()):
        os.rename(target, replaced)
    os.rename(partial, target)
    shutil.rmtree(replaced, ignore_errors=True)


def _recover(replaced: Path, target: Path) -> None:
    """What a process has left that was killed in the middle of a swap: the old folder is put back, or dropped if the new one is
    there."""
    if replaced.exists():
        if target.exists():
            shutil.rmtree(replaced)
        else:
            os.rename(replaced, target)
