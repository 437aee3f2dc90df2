"""Replaces calls of a model's own functions by their bodies, on the protobuf message. Knows names and attributes, no operators.

The result is an equal model without functions: nested calls expanded, attribute references resolved, every inner value with a
name of its own. Where a function imports another opset version than the model, its nodes carry that version in their
``metadata_props`` (:func:`imported_version`), since ONNX has no other place for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx

from onnx_vulkan.errors import ModelError
from onnx_vulkan.versions import registered_version

__all__ = ["imported_version", "inline_functions"]

_VERSION_KEY = "onnx_vulkan.opset"
_MAX_NODES = 1 << 20  # a few nested functions can describe 2**50 nodes

_Key = tuple[str, str, str]
_Opsets = Mapping[str, int]


def imported_version(node: onnx.NodeProto) -> int | None:
    """The version of the node's domain that its function imported, where it is not the model's."""
    for prop in node.metadata_props:
        if prop.key == _VERSION_KEY and prop.value.isdecimal():
            return int(prop.value)
    return None


def inline_functions(model: onnx.ModelProto) -> None:
    """Expand every call of a model-local function in place, but of those that a user registered as operators.

    Raises ModelError for a function that calls itself.
    """
    if not model.functions:
        return
    _Inliner(model).run()
    del model.functions[:]


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _opsets(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    return {_domain(i.domain): i.version for i in imports}


def _bodies(node: onnx.NodeProto) -> Iterable[onnx.GraphProto]:
    for a in node.attribute:
        if a.HasField("g"):
            yield a.g
        yield from a.graphs


class _Inliner:
    def __init__(self, model: onnx.ModelProto):
        self.model = model
        self.opsets = _opsets(model.opset_import)
        self.functions: dict[_Key, onnx.FunctionProto] = {}
        for f in model.functions:
            key = (_domain(f.domain), f.name, f.overload)
            if key in self.functions:
                raise ModelError(f"the model defines the function {f.domain}::{f.name} twice.")
            self.functions[key] = f
        for domain, name, overload in list(self.functions):
            if registered_version(domain, name, self.opsets.get(domain, 0)):
                del self.functions[domain, name, overload]
        self.names: set[str] = set()
        self._collect(model.graph)
        self.count = 0

    def run(self) -> None:
        self._expand_in(self.model.graph, ())

    def _collect(self, graph: onnx.GraphProto) -> None:
        self.names.update(i.name for i in graph.input)
        self.names.update(i.name for i in graph.initializer)
        self.names.update(i.values.name for i in graph.sparse_initializer)
        for node in graph.node:
            self.names.update(node.output)
            for body in _bodies(node):
                self._collect(body)

    def _fresh(self, wish: str) -> str:
        name, n = wish, 1
        while name in self.names:
            n += 1
            name = f"{wish}_{n}"
        self.names.add(name)
        return name

    def _expand_in(self, graph: onnx.GraphProto, stack: tuple[_Key, ...]) -> None:
        nodes = self._expand(graph.node, stack)
        del graph.node[:]
        graph.node.extend(nodes)

    def _expand(self, nodes: Iterable[onnx.NodeProto], stack: tuple[_Key, ...]) -> list[onnx.NodeProto]:
        out: list[onnx.NodeProto] = []
        for node in nodes:
            key = (_domain(node.domain), node.op_type, node.overload)
            function = self.functions.get(key)
            if function is None:
                for body in _bodies(node):
                    self._expand_in(body, stack)
                self.count += 1
                if self.count > _MAX_NODES:
                    raise ModelError(f"the model's functions expand to more than {_MAX_NODES} nodes.")
                out.append(node)
                continue
            if key in stack:
                raise ModelError(f"the function {function.domain}::{function.name} calls itself; ONNX forbids that.")
            out += self._expand(self._instance(function, node), (*stack, key))
        return out

    def _instance(self, function: onnx.FunctionProto, call: onnx.NodeProto) -> list[onnx.NodeProto]:
        label = call.name or (call.output[0] if call.output else call.op_type)
        if len(call.input) > len(function.input) or len(call.output) > len(function.output):
            raise ModelError(
                f"node {label!r} gives {len(call.input)} inputs and {len(call.output)} outputs to the function "
                f"{function.domain}::{function.name}, which has {len(function.input)} and {len(function.output)}."
            )
        rename = {formal: (call.input[i] if i < len(call.input) else "") for i, formal in enumerate(function.input)}
        passed: list[tuple[str, str]] = []
        for i, formal in enumerate(function.output):
            actual = call.output[i] if i < len(call.output) else ""
            if formal in rename:  # an input handed straight through, or an output named twice
                if actual:
                    passed.append((rename[formal], actual))
                continue
            rename[formal] = actual or self._fresh(f"{label}/{formal}")
        attributes = {a.name: a for a in function.attribute_proto} | {a.name: a for a in call.attribute}
        versions = {d: v for d, v in _opsets(function.opset_import).items() if v != self.opsets.get(d)}
        nodes = [self._copy(node, rename, attributes, versions, label) for node in function.node]
        for source, target in passed:
            nodes.append(onnx.NodeProto(op_type="Identity", input=[source], output=[target], name=f"{label}/{target}"))
        return nodes

    def _copy(
        self,
        node: onnx.NodeProto,
        rename: dict[str, str],
        attributes: Mapping[str, onnx.AttributeProto],
        versions: _Opsets,
        label: str,
    ) -> onnx.NodeProto:
        """*node* with outer names; new names for its own outputs are added to *rename*."""
        made = onnx.NodeProto()
        made.CopyFrom(node)
        made.name = f"{label}/{node.name or node.op_type}"
        version = versions.get(_domain(node.domain))
        if version is not None and imported_version(node) is None:
            made.metadata_props.add(key=_VERSION_KEY, value=str(version))
        for i, name in enumerate(node.input):
            if name and name not in rename:
                raise ModelError(f"in a function, node {made.name!r} reads {name!r}, which nothing before it makes.")
            made.input[i] = rename.get(name, name)
        for i, name in enumerate(node.output):
            if name and name not in rename:
                rename[name] = self._fresh(f"{label}/{name}")
            made.output[i] = rename.get(name, name)
        del made.attribute[:]
        for a in node.attribute:
            # A body that the call hands in as an attribute keeps its names: they belong to the caller.
            source = attributes.get(a.ref_attr_name) if a.ref_attr_name else a
            if source is None:
                continue
            target = made.attribute.add()
            target.CopyFrom(source)
            target.name = a.name
            if source is a:
                for body in [*([target.g] if target.HasField("g") else []), *target.graphs]:
                    self._rename_body(body, dict(rename), attributes, versions, label)
        return made

    def _rename_body(
        self,
        body: onnx.GraphProto,
        rename: dict[str, str],
        attributes: Mapping[str, onnx.AttributeProto],
        versions: _Opsets,
        label: str,
    ) -> None:
        own = [*body.input, *body.initializer, *(s.values for s in body.sparse_initializer)]
        for name in dict.fromkeys([*(v.name for v in own), *(n for node in body.node for n in node.output if n)]):
            rename[name] = self._fresh(f"{label}/{name}")
        for value in own:
            value.name = rename[value.name]
        nodes = [self._copy(node, rename, attributes, versions, label) for node in body.node]
        del body.node[:]
        body.node.extend(nodes)
        for value in [*body.output, *body.value_info]:
            value.name = rename.get(value.name, value.name)
