"""Bundles: a folder with a model, inputs, reference outputs and a tolerance, whose manifest has the hash of every file.

A bundle runs on another machine, or in a year, against the numbers of today. Reading one checks every byte first. It computes
nothing: who writes a bundle brings the outputs.

::

    runs/NAME/manifest.json     what is here, which hash each file has, versions
              model/...         the model and its external data (hard links where the disk allows)
              inputs.npz        arrays "0", "1", ... in the order of the manifest's "inputs"
              reference.npz     the same for "outputs"
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.dtypes import SMALL, DType
from onnx_vulkan.errors import InvalidInput, ModelError
from onnx_vulkan.frontend import external_files
from onnx_vulkan.tolerance import Tolerance

__all__ = ["MANIFEST", "Bundle", "is_bundle", "read_bundle", "write_bundle"]

Array = NDArray[Any]

MANIFEST = "manifest.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that was read and checked. ``model`` is the path of the ``.onnx`` file in it."""

    folder: Path
    model: Path
    inputs: dict[str, Array]
    reference: dict[str, Array]
    tolerance: Tolerance
    versions: dict[str, str]


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Whether *path* is a folder with a manifest."""
    return (Path(path) / MANIFEST).is_file()


def write_bundle(
    model: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    inputs: Mapping[str, Array],
    reference: Mapping[str, Array],
    tolerance: Tolerance,
    versions: Mapping[str, str],
) -> Path:
    """Write a bundle; gives back its folder. Raises InvalidInput when the folder holds something else already."""
    model, folder = Path(model), Path(folder)
    if folder.exists() and not is_bundle(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"{folder} exists and is no bundle: give --output a new folder.")
    if is_bundle(folder):
        if (folder / "model").resolve() in (model.resolve(), *model.resolve().parents):
            raise InvalidInput(f"{model} is inside the bundle {folder} that would be replaced: give --output another folder.")
        shutil.rmtree(folder)
    place = folder / "model"
    place.mkdir(parents=True)
    _link(model, place / model.name)
    for location in external_files(model):
        location = location.replace("\\", "/")
        _link(model.parent / location, place / location)
    _write_arrays(folder / "inputs.npz", inputs)
    _write_arrays(folder / "reference.npz", reference)
    files = {p.relative_to(folder).as_posix(): _hash(p) for p in sorted(folder.rglob("*")) if p.is_file()}
    manifest = {
        "format": FORMAT,
        "model": f"model/{model.name}",
        "inputs": [_describe(n, a) for n, a in inputs.items()],
        "outputs": [_describe(n, a) for n, a in reference.items()],
        "tolerance": {"atol": tolerance.atol, "rtol": tolerance.rtol, "of_max": tolerance.of_max},
        "versions": dict(versions),
        "files": files,
    }
    manifest["sha256"] = _manifest_hash(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return folder


def read_bundle(folder: str | os.PathLike[str]) -> Bundle:
    """Read a bundle after checking the hash of every file. Raises ModelError that names the file which has changed."""
    folder = Path(folder)
    where = f"the bundle {folder}"
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise ModelError(f"{where} has the format {manifest['format']}; this version reads format {FORMAT}.")
        if manifest["sha256"] != _manifest_hash(manifest):
            raise ModelError(f"{where} cannot be trusted: {MANIFEST} has changed since it was written.")
        if manifest["model"] not in manifest["files"]:
            raise ModelError(f"{where} cannot be trusted: its model is not among its files.")
        for name, digest in manifest["files"].items():
            _check(folder, name, digest, where)
        names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
        extra = sorted(names - set(manifest["files"]) - {MANIFEST})
        if extra:
            raise ModelError(f"{where} cannot be trusted: {extra[0]} was added since it was written.")
        return Bundle(
            folder,
            folder / manifest["model"],
            _read_arrays(folder / "inputs.npz", manifest["inputs"]),
            _read_arrays(folder / "reference.npz", manifest["outputs"]),
            Tolerance(**manifest["tolerance"]),
            manifest["versions"],
        )
    except FileNotFoundError:
        raise ModelError(f"{folder} is no bundle: it has no {MANIFEST}.") from None
    except (KeyError, TypeError, ValueError) as e:
        raise ModelError(f"{where} cannot be read: {MANIFEST} is damaged ({type(e).__name__}: {e}).") from None


def _check(folder: Path, name: str, digest: str, where: str) -> None:
    path = folder / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ModelError(f"{where} cannot be trusted: it names {name}, which is outside of it.")
    if not path.is_file():
        raise ModelError(f"{where} cannot be trusted: {name} is missing.")
    if _hash(path) != digest:
        raise ModelError(f"{where} cannot be trusted: {name} has changed since it was written.")


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:  # another disk, or one without hard links
        shutil.copyfile(source, target)


def _hash(path: Path) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _manifest_hash(manifest: Mapping[str, Any]) -> str:
    text = json.dumps({k: v for k, v in manifest.items() if k != "sha256"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _describe(name: str, array: Array) -> dict[str, Any]:
    return {"name": name, "dtype": DType.of(array.dtype).onnx_name, "shape": list(array.shape)}


def _write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    # By number: a tensor's name may be anything, a keyword of savez included. bfloat16 and the small types are unknown to
    # numpy's format: their bits.
    np.savez(path, **{str(i): _bits(a) for i, a in enumerate(arrays.values())})  # type: ignore[arg-type]


def _bits(array: Array) -> Array:
    bits = np.uint16 if DType.of(array.dtype) is DType.BF16 else np.uint8 if DType.of(array.dtype) in SMALL else None
    return np.ascontiguousarray(array).reshape(array.shape).view(bits) if bits else array


def _read_arrays(path: Path, described: list[dict[str, Any]]) -> dict[str, Array]:
    dtypes = {t.onnx_name: t for t in DType}
    with np.load(path, allow_pickle=False) as stored:
        return {d["name"]: stored[str(i)].view(dtypes[d["dtype"]].numpy) for i, d in enumerate(described)}
