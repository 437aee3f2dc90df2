"""Steps of equal make are built once: the layers of a model differ in the tensors that they touch, not in their kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from onnx_vulkan.codegen.kernel import At, Kernel, Launch, Limits, Step
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.render import INLINE_OPS
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["Twins"]

SHARED_OPS = INLINE_OPS | {"reduce", "contract", "window", "attention"}
"""Steps of these alone are shared: their builders see nothing but what :func:`_outline` writes down (no bytes of constants)."""


@dataclass(frozen=True, slots=True)
class _Outline:
    """What a builder sees of a step, values and sources replaced by the order in which they are met; and those."""

    key: object
    values: tuple[Value, ...]
    sources: tuple[str, ...]


class Twins:
    """The steps of one program by what they are made of."""

    def __init__(self, program_values: Callable[[Value], bool]):
        self._program_values = program_values
        self._built: dict[object, tuple[_Outline, _Once]] = {}

    def step(
        self,
        instrs: Iterable[Instr],
        exports: Sequence[Value],
        producers: Mapping[Value, Instr],
        is_leaf: Callable[[Value], bool],
        build: Callable[[], Step],
    ) -> Step:
        """The step that *build* makes of *instrs* and of what they inline, or that of an equal one on these values.

        *exports* are the values to store; *producers* and *is_leaf* are those that the builder gets.
        """
        outline = _outline(instrs, exports, producers, is_leaf)
        if outline is None:
            return build()
        known = self._built.get(outline.key)
        if known is None:
            once = _Once(build())
            self._built[outline.key] = outline, once
            return once.step
        original, once = known
        values = dict(zip(original.values, outline.values, strict=True))
        sources = dict(zip(original.sources, outline.sources, strict=True))
        return _Twin(once, values, sources, self._program_values)


class _Once:
    """A step whose launches its twins ask for one after the other: computed once for the sizes of a plan."""

    def __init__(self, step: Step):
        self.step = step
        self._asked: tuple[At, Limits] | None = None
        self._launches: list[Launch] = []

    def launches(self, at: At, limits: Limits) -> list[Launch]:
        if self._asked is None or self._asked[0] is not at or self._asked[1] is not limits:
            self._launches = self.step.launches(at, limits)
            self._asked = at, limits
        return self._launches


class _Twin:
    """A step that runs another one's kernels on its own values."""

    def __init__(
        self, once: _Once, values: dict[Value, Value], sources: Mapping[str, str], program_values: Callable[[Value], bool]
    ):
        self._once, self._values, self._sources = once, values, sources
        self._program_values = program_values
        self._kernels: dict[Kernel, Kernel] = {}
        self.label = self._named(once.step.label)
        self.reads = tuple(map(self._value, once.step.reads))
        self.writes = tuple(map(self._value, once.step.writes))

    def launches(self, at: At, limits: Limits) -> list[Launch]:
        return [Launch(self._kernel(launch.kernel), launch.variant) for launch in self._once.launches(at, limits)]

    def _value(self, v: Value) -> Value:
        """Our value where the other step has *v*. Scratch is made anew, constants of the kernel's own are shared."""
        ours = self._values.get(v)
        if ours is None:
            assert not self._program_values(v), f"{v!r} is no part of the step's outline"
            ours = self._values[v] = v if v.is_const else Value(v.dtype, v.shape, v.name)
        return ours

    def _named(self, label: str) -> str:
        """A label or the name of a node, in our step's words."""
        if label in self._sources:
            return self._sources[label]
        whole = self._once.step.label
        return self._sources.get(whole, whole) + label[len(whole) :] if label.startswith(whole) else label

    def _kernel(self, kernel: Kernel) -> Kernel:
        ours = self._kernels.get(kernel)
        if ours is None:
            entries = [
                p
                if p.value is None and p.kind != "label"
                else replace(p, value=self._value(p.value))
                if p.value is not None
                else replace(p, data=self._sources.get(p.data.decode(), p.data.decode()).encode())
                for p in kernel.params.entries
            ]
            params = Params(entries, kernel.params.extensions, kernel.params.pointer_types)
            reads, writes = (tuple(map(self._value, values)) for values in (kernel.reads, kernel.writes))
            ours = replace(kernel, label=self._named(kernel.label), params=params, reads=reads, writes=writes)
            self._kernels[kernel] = ours
        return ours


def _outline(
    instrs: Iterable[Instr], exports: Sequence[Value], producers: Mapping[Value, Instr], is_leaf: Callable[[Value], bool]
) -> _Outline | None:
    """The outline of a step, None where steps of its kind are not shared."""
    index: dict[Value, int] = {}
    sources: dict[str, int] = {}
    entries: list[object] = []

    def number(v: Value) -> int:
        n = index.get(v)
        if n is not None:
            return n
        made = producers.get(v)
        if made is not None and not is_leaf(v):
            add(made)
            return index[v]
        n = index[v] = len(index)
        constant = None
        if v.data is not None:
            constant = v.data.tobytes() if v.data.size == 1 else v.data.dtype
        entries.append((v.dtype, v.shape, v.packed, constant, made is None, is_leaf(v)))
        return n

    def add(instr: Instr) -> None:
        operands = tuple([number(x) for x in instr.inputs])
        results = tuple([(o.dtype, o.shape) for o in instr.outputs])
        source = sources.setdefault(instr.source, len(sources))
        entries.append((instr.op, operands, results, source, bool(instr.source), *instr.attrs.items()))
        for o in instr.outputs:
            index[o] = len(index)

    for instr in instrs:
        if instr.op not in SHARED_OPS:
            return None
        if instr.outputs[0] not in index:
            add(instr)
    key = tuple(entries), tuple([number(v) for v in exports])
    try:
        hash(key)
    except TypeError:  # an attribute that is a list
        return None
    return _Outline(key, tuple(index), tuple(sources))
