"""Provider options: the strings that ORT hands over -> the engine's Options."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from onnx_vulkan.errors import InvalidInput

__all__ = ["PREFIX", "parse_options", "provider_options"]

PREFIX = "ep.vulkanep."
"""What ORT puts before a provider option's key in the session's configuration: the EP's name in lower case."""

# Not ours to read: `device_id` chooses among ORT's hardware devices, and ORT leaves it in the list.
_OF_ORT = frozenset({"device_id"})

T = TypeVar("T")


def provider_options(entries: Mapping[str, str]) -> dict[str, str]:
    """The provider options among a session's configuration entries, without the prefix."""
    found = {key[len(PREFIX) :]: value for key, value in entries.items() if key.startswith(PREFIX)}
    return {key: value for key, value in found.items() if key not in _OF_ORT}


def parse_options(given: Mapping[str, str], kind: type[T]) -> T:
    """Make *kind* (a dataclass whose fields all have defaults) from option strings. Raises InvalidInput.

    A field says by its annotation how its text reads: ``int``, ``float``, ``bool`` (1, 0, true, false), ``str``, or
    ``dict[str, int]`` ("past=1024,total=2048"); an empty text means None where the field may be None.
    """
    hints = typing.get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise InvalidInput(
            f"VulkanEP has no provider option {', '.join(map(repr, unknown))}. It knows: {', '.join(sorted(known))}."
        )
    values = {key: _parse(key, text.strip(), hints[key]) for key, text in given.items()}
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"A provider option of VulkanEP has a value that does not fit: {error}") from error


def _parse(key: str, text: str, hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        choices = [a for a in typing.get_args(hint) if a is not type(None)]
        if not text and len(choices) < len(typing.get_args(hint)):
            return None
        for choice in choices[:-1]:
            try:
                return _parse(key, text, choice)
            except InvalidInput:
                continue
        return _parse(key, text, choices[-1])
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        if text not in typing.get_args(hint):
            raise _wrong(key, text, " or ".join(map(str, typing.get_args(hint))))
        return text
    if hint is bool:
        if text.lower() not in ("0", "1", "false", "true"):
            raise _wrong(key, text, "0 or 1")
        return text.lower() in ("1", "true")
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            raise _wrong(key, text, "a number") from None
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _parse_dims(key, text)
    return text


def _parse_dims(key: str, text: str) -> dict[str, int]:
    found = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, size = part.partition("=")
        if not equals or not name.strip() or not size.strip().isdigit():
            raise _wrong(key, text, "a list like past=1024,total=2048")
        found[name.strip()] = int(size)
    return found


def _wrong(key: str, text: str, wanted: str) -> InvalidInput:
    return InvalidInput(f"The VulkanEP provider option {key!r} is {text!r}; it has to be {wanted}.")
