"""Bundles: a folder with a model, inputs, reference outputs and a tolerance, whose manifest has the hash of every file.

A bundle runs on another machine, or in a year, against the numbers of today. Reading one checks every byte first. It computes
nothing: who writes a bundle brings the outputs.

::

    runs/NAME/manifest.json     what is here, which hash each file has, versions
              original/...      the model that was given, and its external data
              model/...         the model to run: the same, or what it was converted to; equal files are hard links
              inputs.npz        arrays "0", "1", ... in the order of the manifest's "inputs"
              reference.npz     the same for "outputs"
              tactics.json      kernel variants that were measured for it, where some were
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.dtypes import SMALL, DType
from onnx_vulkan.errors import ModelError
from onnx_vulkan.frontend import external_files
from onnx_vulkan.publish import published
from onnx_vulkan.tolerance import Tolerance

__all__ = ["MANIFEST", "Bundle", "is_bundle", "read_bundle", "write_bundle"]

Array = NDArray[Any]

MANIFEST = "manifest.json"
TACTICS = "tactics.json"
SCHEMA = "onnx-vulkan/bundle/1"
NAMED = 4
"""So many files that have changed are named in a message."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a bundle holds: read and checked (:func:`read_bundle`), or to be written (:func:`write_bundle`).

    ``original`` and ``model`` are the ``.onnx`` files, ``tactics`` the file of measured variants; of a bundle that was read they
    lie in its folder. ``conversion`` says how the model was made from the original (None: it is the same). ``reference`` are the
    CPU's outputs for ``inputs``: of the original, or of the model where ``conversion["reference"]`` is ``model``. ``strict``: the
    tolerance was asked for, and stands as it is. ``generated`` names the inputs that were made up. ``quality`` is what was
    measured of a converted model. ``records`` is for other commands, by their names: whatever JSON can hold.
    """

    original: Path
    model: Path
    inputs: Mapping[str, Array]
    reference: Mapping[str, Array]
    tolerance: Tolerance
    strict: bool = False
    generated: tuple[str, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    conversion: Mapping[str, Any] | None = None
    quality: Mapping[str, Any] | None = None
    tactics: Path | None = None
    records: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def is_bundle(path: str | os.PathLike[str]) -> bool:
    """Whether *path* is a folder with a manifest."""
    return (Path(path) / MANIFEST).is_file()


def write_bundle(bundle: Bundle, folder: str | os.PathLike[str]) -> Bundle:
    """Write a bundle to *folder*, wholly or not at all; gives it back with the paths of its files there.

    A bundle that is there already is replaced. Raises InvalidInput when the folder holds something else, ModelError when external
    data of the model is missing, OnnxVulkanError when the folder cannot be written.
    """
    with published(folder, "bundle", is_bundle) as place:
        files = _Files(place)
        original, model = (files.add_model(p, d) for p, d in ((bundle.original, "original"), (bundle.model, "model")))
        tactics = None if bundle.tactics is None else files.add(bundle.tactics, TACTICS)
        for name, arrays in (("inputs", bundle.inputs), ("reference", bundle.reference)):
            _write_arrays(place / f"{name}.npz", arrays)
            files.digests[f"{name}.npz"] = _hash(place / f"{name}.npz")
        manifest = {
            "schema": SCHEMA,
            "original": original,
            "model": model,
            "tactics": tactics,
            "inputs": [_describe(n, a) for n, a in bundle.inputs.items()],
            "outputs": [_describe(n, a) for n, a in bundle.reference.items()],
            "tolerance": {f: getattr(bundle.tolerance, f) for f in ("atol", "rtol", "of_max")},
            "strict": bundle.strict,
            "generated": list(bundle.generated),
            "dims": dict(bundle.dims),
            "conversion": bundle.conversion,
            "quality": bundle.quality,
            "records": dict(bundle.records),
            "versions": dict(bundle.versions),
            "files": dict(sorted(files.digests.items())),
        }
        manifest["sha256"] = _manifest_hash(manifest)
        (place / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    there = Path(folder)
    return replace(bundle, original=there / original, model=there / model, tactics=there / tactics if tactics else None)


def read_bundle(folder: str | os.PathLike[str]) -> Bundle:
    """Read a bundle after checking the hash of every file. Raises ModelError that names the files which have changed."""
    folder = Path(folder)
    where = f"the bundle {folder}"
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["schema"] != SCHEMA:
            raise ModelError(f"{where} has the schema {manifest['schema']}; this version reads {SCHEMA}: prepare it again.")
        if manifest["sha256"] != _manifest_hash(manifest):
            raise ModelError(f"{where} cannot be trusted: {MANIFEST} has changed since it was written.")
        wrong = _changes(folder, manifest["files"])
        if wrong:
            more = f", and {len(wrong) - NAMED} more files" if len(wrong) > NAMED else ""
            raise ModelError(f"{where} cannot be trusted: {', '.join(wrong[:NAMED])}{more}.")
        named = [manifest["original"], manifest["model"], *filter(None, [manifest["tactics"]])]
        if not {*named} <= {*manifest["files"]}:
            raise ModelError(f"{where} cannot be trusted: its model is not among its files.")
        rest: dict[str, Any] = {k: manifest[k] for k in ("strict", "dims", "conversion", "quality", "records", "versions")}
        return Bundle(
            original=folder / manifest["original"],
            model=folder / manifest["model"],
            inputs=_read_arrays(folder / "inputs.npz", manifest["inputs"]),
            reference=_read_arrays(folder / "reference.npz", manifest["outputs"]),
            tolerance=Tolerance(**manifest["tolerance"]),
            generated=tuple(manifest["generated"]),
            tactics=folder / manifest["tactics"] if manifest["tactics"] else None,
            **rest,
        )
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(f"{folder} is no bundle: it has no {MANIFEST}.") from None
    except (KeyError, TypeError, ValueError) as e:
        raise ModelError(f"{where} cannot be read: {MANIFEST} is damaged ({type(e).__name__}: {e}).") from None


def _changes(folder: Path, digests: Mapping[str, str]) -> list[str]:
    """What is not as the manifest says, a phrase a file."""
    wrong = []
    known: dict[tuple[int, int], str] = {}  # hard links of one file are read once
    for name, digest in digests.items():
        path = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            wrong.append(f"its manifest names {name}, which is outside of it")
        elif not path.is_file():
            wrong.append(f"{name} is missing")
        else:
            about = path.stat()
            found = known.setdefault((about.st_dev, about.st_ino), "") or _hash(path)
            known[about.st_dev, about.st_ino] = found
            if found != digest:
                wrong.append(f"{name} has changed since it was written")
    folders = {p.as_posix() for name in digests for p in Path(name).parents}
    there = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))
    return wrong + [f"{name} was added since it was written" for name in there if name not in {*digests, *folders, MANIFEST}]


class _Files:
    """The files of a bundle that is being written: one is stored once, and linked where it is there again."""

    def __init__(self, place: Path):
        self.place = place
        self.digests: dict[str, str] = {}
        self._stored: dict[str, Path] = {}

    def add_model(self, model: Path, below: str) -> str:
        """Add a model and its external data; gives its name in the bundle."""
        for location in external_files(model):
            location = location.replace("\\", "/")
            if not (model.parent / location).is_file():
                raise ModelError(f"the external data of {model} is missing: there is no file {model.parent / location}.")
            if Path(location).is_absolute() or ".." in Path(location).parts:
                raise ModelError(f"{model} has external data outside of its folder ({location}): move it there first.")
            self.add(model.parent / location, f"{below}/{location}")
        return self.add(model, f"{below}/{model.name}")

    def add(self, source: Path, name: str) -> str:
        """Copy a file; one from another bundle, which nobody writes to, is linked. Gives *name*."""
        target = self.place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        digest = _hash(source)
        stored = self._stored.get(digest)
        if stored is None and any(is_bundle(p) for p in source.absolute().parents):
            stored = source.resolve()
        try:
            if stored is None:
                shutil.copyfile(source, target)
            else:
                os.link(stored, target)
        except OSError:
            if stored is None:
                raise
            shutil.copyfile(source, target)  # a disk without hard links, or another disk
        self._stored[digest] = target
        self.digests[name] = digest
        return name


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
