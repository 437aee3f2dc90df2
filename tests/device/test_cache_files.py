"""The caches on disk under a full disk, in a folder that cannot be written to, and after a kill in the middle of a write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from onnx_vulkan.device import compile

HERE = Path(__file__).parent

RUN = """
import numpy as np
from plans import scale_block
from onnx_vulkan.device import Device
x = np.arange(4, dtype=np.float32)
assert (scale_block(Device.get()).run([x])[0] == 2 * x).all()
Device.get().save_caches()
print(Device.get().counters()["glsl_compiles"])
"""

COMPILE = """
from onnx_vulkan.device import compile
compile.spirv("#version 460\\nvoid main() {}\\n")
print(compile.counters.glsl_compiles)
"""

FULL = """
import errno, resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))
"""

KILL = """
import os, signal
from pathlib import Path
left = [{writes}]
whole, replace = Path.write_bytes, Path.replace

def die_before(call):
    def step(self, *arguments):
        if not left[0]:
            if call is whole:
                whole(self, arguments[0][: len(arguments[0]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return call(self, *arguments)
    return step

Path.write_bytes, Path.replace = die_before(whole), die_before(replace)
"""


def python(code: str, cache: Path | str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"XDG_CACHE_HOME": str(cache), "MESA_SHADER_CACHE_DISABLE": "true"}
    return subprocess.run([sys.executable, "-c", code], env=environment, cwd=HERE, capture_output=True, text=True, timeout=120)


def test_a_full_disk(tmp_path: Path) -> None:
    done = python(FULL.format(room=40) + RUN, tmp_path)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    ours = tmp_path / "onnx-vulkan"
    assert not [p for p in ours.rglob("*") if p.is_file() and p.suffix != ".lock"]
    python(RUN, tmp_path)  # with room again, it is written
    assert {p.suffix for p in ours.rglob("*") if p.is_file()} == {".spv", ".bin", ".lock"}


def test_a_folder_that_cannot_be_written_to() -> None:
    done = python(RUN, "/proc")  # not by root either
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


# Each of the two files, SPIR-V and the driver's pipelines, is written and then renamed.
@pytest.mark.parametrize(("code", "writes"), [(COMPILE, 0), (COMPILE, 1), (RUN, 3)])
def test_killed_in_the_middle_of_a_write(code: str, writes: int, tmp_path: Path) -> None:
    killed = python(KILL.format(writes=writes) + code, tmp_path)
    assert killed.returncode == -signal.SIGKILL
    ours = tmp_path / "onnx-vulkan"
    left = list(ours.rglob("*.tmp"))
    assert len(left) == 1
    old = time.time() - 2 * compile.LEFT_BEHIND
    os.utime(left[0], (old, old))
    again = python(code, tmp_path)
    assert (again.returncode, again.stdout) == (0, "1\n" if writes < 2 else "0\n"), again.stderr
    assert all(compile.unsealed(p) is not None for p in ours.rglob("*") if p.suffix in (".spv", ".bin"))
    assert not list(ours.rglob("*.tmp"))
