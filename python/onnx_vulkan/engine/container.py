"""The file of a compiled model: a header in JSON and blobs behind it, every byte of them under a hash.

::

    prefix     magic, format, size of the header, size of the file, hash of the header
    header     JSON; "blobs" lists [offset in the data, bytes, hash] of each blob
    data       the blobs, each at a multiple of 64 bytes

A blob is checked when it is first read, so that a mapped file is read as far as it is needed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from onnx_vulkan.device.memory import content_key
from onnx_vulkan.errors import InvalidInput, ModelError

__all__ = ["FORMAT", "Reader", "Writer"]

FORMAT = 1
"""The layout of header and plans. Raise it whenever either changes its meaning."""

MAGIC = b"\x89OVK\r\n\x1a\n"  # no text, and broken by whatever changes line ends
PREFIX = struct.Struct("<8sIIQQ16s")
ALIGNMENT = 64

Array = NDArray[Any]


class Writer:
    """Collects blobs, equal ones once, and writes them with a header."""

    def __init__(self) -> None:
        self._arrays: list[Array] = []
        self._numbers: dict[bytes, int] = {}

    def add(self, data: Array | bytes) -> int:
        """The number of a blob with these bytes (row-major)."""
        array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data)
        key = content_key(array)
        if key not in self._numbers:
            self._numbers[key] = len(self._arrays)
            self._arrays.append(array)
        return self._numbers[key]

    def save(self, header: Mapping[str, Any], path: Path) -> str:
        """Write the file, so that there is all of it or what was there before; gives back :attr:`Reader.digest` of it. Raises
        InvalidInput where that cannot be done."""
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as file:
                digest = self._write(header, file)
            temporary.replace(path)
            return digest
        except OSError as e:
            temporary.unlink(missing_ok=True)
            raise InvalidInput(f"The compiled model cannot be written to {path}: {e.strerror or e}.") from e

    def bytes(self, header: Mapping[str, Any]) -> bytes:
        """The file's content."""
        out = io.BytesIO()
        self._write(header, out)
        return out.getvalue()

    def _write(self, header: Mapping[str, Any], file: BinaryIO) -> str:
        table, at = [], 0
        for key, n in self._numbers.items():
            table.append([at, self._arrays[n].nbytes, key.hex()])
            at += _aligned(self._arrays[n].nbytes)
        text = json.dumps({**header, "blobs": table}, separators=(",", ":")).encode()
        start = _aligned(PREFIX.size + len(text))
        digest = hashlib.blake2b(text, digest_size=16).digest()
        file.write(PREFIX.pack(MAGIC, FORMAT, 0, len(text), start + at, digest) + text)
        file.write(bytes(start - PREFIX.size - len(text)))
        for array in self._arrays:
            file.write(array.reshape(-1).view(np.uint8).data)
            file.write(bytes(_aligned(array.nbytes) - array.nbytes))
        return digest.hex()


class Reader:
    """A compiled model's file, mapped, or its bytes. ``where`` names it in messages, ``header`` is what was written, ``digest`` a
    hash that stands for all of it.

    Raises ModelError for what is no such file, was cut or changed, or has another format.
    """

    def __init__(self, source: Path | bytes, where: str):
        self.where = where
        self._checked: set[int] = set()
        self._lock = threading.Lock()
        if isinstance(source, bytes):
            self._data: Array = np.frombuffer(source, np.uint8)
        else:
            try:
                size = source.stat().st_size
                self._data = np.memmap(source, np.uint8, "r") if size else np.zeros(0, np.uint8)
            except OSError as e:
                raise ModelError(f"{where} cannot be read: {e.strerror or e}.") from e
        if len(self._data) < PREFIX.size or bytes(self._data[: len(MAGIC)]) != MAGIC:
            raise ModelError(f"{where} is no compiled model of onnx-vulkan.")
        _, form, _, length, total, digest = PREFIX.unpack(bytes(self._data[: PREFIX.size]))
        if form != FORMAT:
            raise ModelError(f"{where} has the format {form}, and this version reads format {FORMAT}: compile the model again.")
        if total != len(self._data):
            raise ModelError(
                f"{where} is damaged: it has {len(self._data)} bytes and should have {total}. Compile the model again."
            )
        text = bytes(self._data[PREFIX.size : PREFIX.size + length])
        if hashlib.blake2b(text, digest_size=16).digest() != digest:
            raise self.damaged("its header")
        self.digest = digest.hex()
        self.header: dict[str, Any] = json.loads(text)
        self._start = _aligned(PREFIX.size + length)
        self._table: list[tuple[int, int, bytes]] = [(at, n, bytes.fromhex(key)) for at, n, key in self.header["blobs"]]

    def damaged(self, what: str) -> ModelError:
        """The error for a part that has changed."""
        return ModelError(f"{self.where} is damaged: {what} has changed since it was written. Compile the model again.")

    def blob(self, number: int, *, check: bool = True) -> Array:
        """The bytes of a blob. Without *check* nothing is read yet: :meth:`check_all` has to follow before they are used."""
        at, size, key = self._table[number]
        data = self._data[self._start + at : self._start + at + size]
        if check and number not in self._checked:
            if content_key(data) != key:
                raise self.damaged(f"blob {number}")
            with self._lock:
                self._checked.add(number)
        return data

    def check_all(self) -> None:
        """Check whatever was not read yet."""
        for number in range(len(self._table)):
            self.blob(number)


def _aligned(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT
