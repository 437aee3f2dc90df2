"""Child processes that may crash or hang: one warm worker answers requests within a time limit, and is replaced when it dies."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from onnx_vulkan.errors import OnnxVulkanError

__all__ = ["WORKER", "Child", "Failed", "Hung", "Refused"]

WORKER = (sys.executable, "-m", "onnx_vulkan.tune.worker")

GRACE = 10.0
"""Seconds until the system tells how a process ended that has closed its pipes (it may be writing a core file)."""


class Failed(OnnxVulkanError):
    """The child process died, or lost the device, while it worked on a request."""


class Hung(Failed):
    """It did not answer in time, and was killed."""


class Refused(OnnxVulkanError):
    """The child answers that it could not do it; it goes on living. ``kind`` is the name of the exception's class."""

    def __init__(self, kind: str, sentence: str):
        self.kind = kind
        super().__init__(sentence)


class Child:
    """One worker process. *opening* is the request that it starts with, sent again to each one that takes its place."""

    def __init__(self, opening: Mapping[str, Any], command: Sequence[str] = WORKER, patience: float = 600.0):
        self.opening, self.command, self.patience = dict(opening), tuple(command), patience
        self.started = 0
        self.opened: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def start(self) -> dict[str, Any]:
        """Start the process if none lives; gives its answer to the opening request. Raises as :meth:`ask`."""
        if self._process is not None:
            return self.opened
        self.started += 1
        self._rest = b""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log)
        try:
            self.opened = self._exchange({"do": "open", **self.opening}, self.patience)
        except Refused:
            self.close()
            raise
        return self.opened

    def open_again(self) -> dict[str, Any]:
        """Have the process open what it is told to once more: the file may be another one by now. Raises as :meth:`ask`."""
        if self._process is None:
            return self.start()
        self.opened = self._exchange({"do": "open", **self.opening}, self.patience)
        return self.opened

    def ask(self, seconds: float, do: str, **fields: Any) -> dict[str, Any]:
        """The answer to a request. Raises Hung after *seconds*, Failed where the process died or lost the device, Refused with
        the child's own sentence."""
        self.start()
        return self._exchange({"do": do, **fields}, seconds)

    def _exchange(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        process = self._process
        assert process is not None and process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            raise self._died() from None
        line = self._line(time.monotonic() + seconds)
        if line is None:
            self.close()
            raise Hung(f"no answer within {seconds:.0f} seconds")
        answer: dict[str, Any] = json.loads(line)
        if answer.pop("lost", False):
            self.close()
            raise Failed(answer["error"])
        if "error" in answer:
            raise Refused(answer["kind"], answer["error"])
        return answer

    def _line(self, until: float) -> bytes | None:
        """The next line that the child writes; None where it does not come in time."""
        assert self._process is not None and self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            ready, _, _ = select.select([pipe], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return None
            part = os.read(pipe, 1 << 16)
            if not part:
                raise self._died()
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _died(self) -> Failed:
        """What became of a process that closed its pipes."""
        assert self._process is not None
        try:
            code = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            code = 0
        self._log.seek(0)
        said = self._log.read()[-2000:].decode(errors="replace").strip().splitlines()
        self.close()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        return Failed(f"the process ended {how}{': ' + said[-1] if said else ''}")

    def close(self) -> None:
        """End the process; the next request starts another one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what was not sent is nobody's any more
                        pipe.close()
            self._log.close()
