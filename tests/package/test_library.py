"""Which native library is used: the one that was given, the one that the environment names, the package's own; never another."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from onnx_vulkan import errors, library

SHOW = """
from onnx_vulkan import errors, library, use_library
try:
    {before}
    from onnx_vulkan._shim import lib
    print(library.library_source(), library.library_path())
except errors.LibraryError as e:
    print(e)
"""


def shown(before: str = "pass", **environment: str) -> str:
    """What a new process says about its library."""
    code = SHOW.format(before=before)
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def copies(tmp_path: Path) -> list[Path]:
    """Two copies of the library."""
    made = [tmp_path / name / "_shim.abi3.so" for name in ("one", "two")]
    for path in made:
        path.parent.mkdir()
        shutil.copyfile(library.library_path(), path)
    return made


def test_the_order(copies: list[Path]) -> None:
    one, two = copies
    assert shown() == f"bundled {library.library_path()}"
    assert shown(ONNX_VULKAN_LIBRARY=str(one)) == f"environment {one}"
    assert shown(f"use_library({str(two)!r})", ONNX_VULKAN_LIBRARY=str(one)) == f"argument {two}"


def test_what_was_named_and_is_wrong_is_an_error(copies: list[Path], tmp_path: Path) -> None:
    missing, no_library = tmp_path / "missing.so", tmp_path / "text.so"
    no_library.write_text("nothing")
    assert "which ONNX_VULKAN_LIBRARY names, is not there" in shown(ONNX_VULKAN_LIBRARY=str(missing))
    assert f"{no_library} cannot be loaded" in shown(ONNX_VULKAN_LIBRARY=str(no_library))
    assert f"{missing} is not there" in shown(f"use_library({str(missing)!r})", ONNX_VULKAN_LIBRARY=str(copies[0]))
    assert "has the interface 2, and this package needs 999" in shown("library.INTERFACE = 999")


def test_a_library_that_is_in_use_stays(copies: list[Path]) -> None:
    importlib.import_module(library.MODULE)
    with pytest.raises(errors.LibraryError, match="is in use already"):
        library.use_library(copies[0])
    assert library.library_source() == "bundled"
