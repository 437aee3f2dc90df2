"""What a user can choose for a session, through either door: as an object, or as a mapping whose values may be text."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from onnx_vulkan.errors import InvalidInput

__all__ = ["Options", "parse_options"]

T = TypeVar("T")

_TRUE = ("1", "true", "on", "yes")
_FALSE = ("0", "false", "off", "no")


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of one session; the defaults suit most models.

    ``precision``: ``strict`` computes float32 in float32; ``fast`` multiplies float32 matrices on the device's matrix units where
    it has them, rounded to float16 (sums stay float32): about three digits, and numbers beyond 65504 become infinite;
    ``fp32_split`` multiplies them there in two float16 parts with scaled rows, about as exact as float32 (an infinity among the
    operands may give NaN).
    ``device``: which GPU (index, UUID or part of its name; None: ``ONNX_VULKAN_DEVICE``, else the best one).
    ``memory_limit_bytes``: the most device memory this process may take on that device while this session lives (0: no
    limit of ours); of several limits the smallest holds.
    ``release_arena``: give working memory back after each run. ``contexts``: how many runs may be in flight at once.
    ``runtime_dims``: named dims whose value changes from run to run, with their capacity; others are promoted by themselves
    when they are seen to change again and again. ``auto_runtime_dims`` turns that promotion off.
    ``compile_ahead``: compile what other input sizes will need on a background thread; ``auto``: on a GPU, not on a software
    device, whose cores the model needs.
    ``island``: through ONNX Runtime, what becomes of a block between CPU nodes: ``auto``: it is claimed where it is expected to
    take less time than on the CPU, copies and crossing included; ``keep``: always. A model that is one block is claimed anyway.
    ``tactics``: whether plans use kernel variants that were measured (``onnx-vulkan optimize``): ``off``; ``cache-only``: where
    there is one for the workload, device and driver; ``require-cache``: a workload without one is an error. None:
    ``ONNX_VULKAN_TACTICS``, else off. ``tactics_file``: where they are; None: ``ONNX_VULKAN_TACTICS_FILE``, else
    ``tactics.json`` in the cache folder.
    ``plan_dims``: numbers of the inputs' named dims for which the plan is made at once, and not at the first run (a declared
    run-time dim that is not among them counts as its capacity); a compiled model then holds that plan.
    ``stale_compiled``: what becomes of a compiled model of another device, driver, engine or setting: ``rebuild`` plans it anew
    and says so in the log, ``refuse`` raises CompiledMismatch.
    ``guard_zones``: debug: every tensor in memory of its own, between poisoned zones that are checked after each run.
    ``barrier_everywhere``: debug: a barrier before every dispatch.
    ``shadow``: debug: before the first run of each plan, every kernel is run by itself and compared with the interpreter.
    """

    precision: Literal["strict", "fast", "fp32_split"] = "strict"
    device: str | None = None
    memory_limit_bytes: int = 0
    release_arena: bool = False
    contexts: int = 2
    runtime_dims: Mapping[str, int] = field(default_factory=dict)
    auto_runtime_dims: bool = True
    compile_ahead: Literal["auto", "on", "off"] = "auto"
    island: Literal["auto", "keep"] = "auto"
    tactics: Literal["off", "cache-only", "require-cache"] | None = None
    tactics_file: str | None = None
    plan_dims: Mapping[str, int] = field(default_factory=dict)
    stale_compiled: Literal["rebuild", "refuse"] = "rebuild"
    guard_zones: bool = False
    barrier_everywhere: bool = False
    shadow: bool = False

    def __post_init__(self) -> None:
        for name, hint in typing.get_type_hints(Options).items():
            if typing.get_origin(hint) is Literal:
                _parse(name, getattr(self, name), hint)
        if self.memory_limit_bytes < 0:
            raise InvalidInput(
                f"The option 'memory_limit_bytes' is {self.memory_limit_bytes}; it has to be 0 (no limit) or more."
            )
        if self.contexts < 1:
            raise InvalidInput(f"The option 'contexts' is {self.contexts}; it has to be 1 or more.")
        for name, capacity in self.runtime_dims.items():
            if capacity < 1:
                raise InvalidInput(f"The option 'runtime_dims' gives {name!r} the capacity {capacity}; it has to be 1 or more.")


def parse_options(given: Mapping[str, Any], kind: type[T]) -> T:
    """Make *kind* (a dataclass whose fields all have defaults) from options by name. Raises InvalidInput.

    A value that is text reads as its field's annotation says: ``int``, ``float``, ``bool`` (1, 0, true, false, on, off), ``str``,
    or ``Mapping[str, int]`` ("past=1024,total=2048"); an empty text means None where the field may be None.
    """
    hints = typing.get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise InvalidInput(f"There is no option {', '.join(map(repr, unknown))}. There are: {', '.join(sorted(known))}.")
    values = {key: _read(key, value, hints[key]) for key, value in given.items()}
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"An option has a value that does not fit: {error}") from error


def _read(key: str, value: Any, hint: Any) -> Any:
    if value is None or isinstance(value, Mapping):
        return value
    return _parse(key, str(value).strip(), hint)


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
        if text.lower() not in (*_TRUE, *_FALSE):
            raise _wrong(key, text, "on or off (or 1 or 0)")
        return text.lower() in _TRUE
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
    return InvalidInput(f"The option {key!r} is {text!r}; it has to be {wanted}.")
