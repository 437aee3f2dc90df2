"""Cuts the large weights out of a serialized model before it is parsed. Knows protobuf's wire format, nothing of ONNX's meaning.

protobuf copies every ``bytes`` field when it parses and once more whenever it is read. The weights of a model are nearly all
of its bytes, so this scanner walks ``ModelProto.graph.initializer[i].raw_data`` itself: large payloads stay where they are (a
mapped file), and what is left is parsed in milliseconds whatever the model weighs. It also keeps models of more than
protobuf's 2 GB readable.

Wire format: https://protobuf.dev/programming-guides/encoding/ (varint keys of ``field << 3 | type``).
"""

from __future__ import annotations

__all__ = ["cut_weights"]

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def _varint(buf: memoryview, at: int, end: int) -> tuple[int, int]:
    """The varint at *at* and where it ends. Raises ValueError past *end* or beyond 64 bits."""
    value = shift = 0
    while at < end and shift < 64:
        byte = buf[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("malformed varint")


def _fields(buf: memoryview, at: int, end: int) -> list[tuple[int, int, int, int]]:
    """``(field, start, payload start, end)`` of each field of a message; payload start is 0 where it has no length."""
    out = []
    while at < end:
        start = at
        key, at = _varint(buf, at, end)
        field, kind, payload = key >> 3, key & 7, 0
        if kind == _VARINT:
            _, at = _varint(buf, at, end)
        elif kind == _FIXED64:
            at += 8
        elif kind == _FIXED32:
            at += 4
        elif kind == _BYTES:
            size, payload = _varint(buf, at, end)
            at = payload + size
        else:
            raise ValueError(f"wire type {kind}")
        if at > end:
            raise ValueError("field runs past its message")
        out.append((field, start, payload, at))
    return out


def _length(n: int) -> bytes:
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def _message(field: int, pieces: list[bytes | memoryview]) -> bytes:
    body = b"".join(pieces)
    return _length(field << 3 | _BYTES) + _length(len(body)) + body


def cut_weights(buf: memoryview, at_least: int = 4096) -> tuple[bytes, dict[int, memoryview]]:
    """The model without the ``raw_data`` of its large initializers, and these payloads by initializer index.

    Payloads under *at_least* bytes stay in: shape inference reads the small ones. Raises ValueError where the bytes are not
    well-formed protobuf.
    """
    weights: dict[int, memoryview] = {}
    model: list[bytes | memoryview] = []
    index = 0
    for field, start, payload, end in _fields(buf, 0, len(buf)):
        if field != _GRAPH or not payload:
            model.append(buf[start:end])
            continue
        graph: list[bytes | memoryview] = []
        for gfield, gstart, gpayload, gend in _fields(buf, payload, end):
            if gfield != _INITIALIZER or not gpayload:
                graph.append(buf[gstart:gend])
                continue
            kept: list[bytes | memoryview] = []
            for tfield, tstart, tpayload, tend in _fields(buf, gpayload, gend) if gend - gpayload >= at_least else ():
                if tfield == _RAW_DATA and tpayload and tend - tpayload >= at_least:
                    weights[index] = buf[tpayload:tend]
                else:
                    kept.append(buf[tstart:tend])
            graph.append(_message(_INITIALIZER, kept) if index in weights else buf[gstart:gend])
            index += 1
        model.append(_message(_GRAPH, graph))
    return b"".join(model), weights
