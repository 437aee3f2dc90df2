"""The sequential part of LSTM, GRU and plain RNN (composite ``rnn``): all steps in one dispatch.

A workgroup walks the steps of one direction and of ROWS sequences, with a barrier between steps. A thread owns a unit (or
several, a workgroup's width apart, where there are more units than threads); with few units SPLIT threads share one, each
summing a part of the products with the previous state. The state lies in shared memory, the recurrence weights stream from
memory once a step for all ROWS sequences, neighbouring threads reading neighbouring columns.

State regions in shared memory, each ``[ROWS][STATE]``: two for h (a step reads one and writes the other) and lstm's c; or, for a
gru whose reset comes before the product, h, z and ``q * h``, since its last gate waits for the other units' resets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from onnx_vulkan.codegen import functions
from onnx_vulkan.codegen.kernel import At, Kernel, Limits, Variant, grid_of
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.types import GLSL_TYPES, pack, unpack
from onnx_vulkan.dims import ceil_div
from onnx_vulkan.dtypes import FLOATS, DType
from onnx_vulkan.kernels import Group, family
from onnx_vulkan.kernels.indexing import FLAT_GROUP, load, offset_text
from onnx_vulkan.program.composites import RNN_ACTIVATIONS
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["rnn_kernel"]

MAX_HIDDEN = 1024
"""Three state regions of float64 at this size fit the 32 KiB of shared memory that every desktop device has."""

UNROLL = 4
"""Products whose weights are loaded ahead: a step waits for memory, not for arithmetic."""

_NEEDS = {"sigmoid": ("exp",), "tanh": ("tanh",), "scaledtanh": ("tanh",), "softplus": ("exp", "log1p"), "elu": ("exp",)}


def _acc(instr: Instr) -> DType:
    return DType.F64 if instr.inputs[0].dtype is DType.F64 else DType.F32


def _supports(instr: Instr) -> str | None:
    dtype, hidden = instr.inputs[0].dtype, instr.attrs["hidden"]
    if dtype not in FLOATS:
        return f"recurrent cells of {dtype.onnx_name} are not supported"
    if hidden > MAX_HIDDEN:
        return f"recurrent cells of {hidden} units are not supported, at most {MAX_HIDDEN} are"
    for name, _, _ in instr.attrs["activations"]:
        if name not in RNN_ACTIVATIONS:
            return f"the activation {name} of recurrent cells is not supported"
        if not all(functions.has_function(fn, _acc(instr)) for fn in _NEEDS.get(name, ())):
            return f"the activation {name} is not supported for {dtype.onnx_name}"
    return None


class _Cell:
    """Renders one rnn instruction."""

    def __init__(self, instr: Instr, params: Params):
        self.instr, self.params, self.attrs = instr, params, instr.attrs
        self.acc = _acc(instr)
        self.t = GLSL_TYPES[self.acc].compute
        self.kind: str = instr.attrs["kind"]
        self.gates = {"lstm": 4, "gru": 3, "rnn": 1}[self.kind]
        self.directions = 2 if instr.attrs["direction"] == "bidirectional" else 1
        self.given: dict[str, Value] = dict(zip(instr.attrs["present"], instr.inputs[2:], strict=True))
        self.late_reset = self.kind == "gru" and not instr.attrs["linear_before_reset"]
        self.regions = 3 if self.late_reset or self.kind == "lstm" else 2

    # ---------------------------------------------------------------------------------------------- activations
    def number(self, x: float) -> str:
        return self.params.literal(Value(self.acc, (), "", np.asarray(x, self.acc.numpy).reshape(())))

    def fn(self, name: str, *args: str) -> str:
        return functions.call(name, self.acc, list(args))

    def formula(self, activation: tuple[str, float, float]) -> str:
        """One of RNN_ACTIVATIONS of ``x``, as in composites.py."""
        name, alpha, beta = activation
        zero, one = f"{self.t}(0)", f"{self.t}(1)"
        exp = self.fn("exp", "x")
        match name:
            case "affine":
                return f"{self.number(alpha)} * x + {self.number(beta)}"
            case "elu":
                return f"x < {zero} ? {self.number(alpha)} * ({exp} - {one}) : x"
            case "hardsigmoid":
                line = f"({self.number(alpha)} * x + {self.number(beta)})"
                return self.fn("min", self.fn("max", line, zero), one)
            case "leakyrelu":
                return f"x < {zero} ? {self.number(alpha)} * x : x"
            case "relu":
                return self.fn("max", "x", zero)
            case "scaledtanh":
                return f"{self.number(alpha)} * {self.fn('tanh', f'({self.number(beta)} * x)')}"
            case "sigmoid":
                return f"{one} / ({one} + {self.fn('exp', '-x')})"
            case "softplus":
                tail = self.fn("log1p", self.fn("exp", "-abs(x)"))
                return f"{self.fn('max', 'x', zero)} + {tail}"
            case "softsign":
                return f"x / ({one} + abs(x))"
            case "tanh":
                return self.fn("tanh", "x")
        return f"x > {self.number(alpha)} ? x : {zero}"  # thresholdedrelu

    def activations(self) -> str:
        """The functions ``act0(x, d)``, ... of the cell; gates are clipped before, lstm's last is not."""
        acts: Sequence[tuple[str, float, float]] = self.attrs["activations"]
        each = len(acts) // self.directions
        text = []
        for n in range(each):
            lines = []
            if self.attrs["clip"] is not None and not (self.kind == "lstm" and n == 2):
                clip = self.number(self.attrs["clip"])
                lines.append(f"x = {self.fn('min', self.fn('max', 'x', f'(-{clip})'), clip)};")
            forms = [self.formula(acts[d * each + n]) for d in range(self.directions)]
            for d, form in enumerate(forms[1:], 1):
                if form != forms[0]:
                    lines.append(f"if (d == {d}) return {form};")
            lines.append(f"return {forms[0]};")
            body = "\n".join(f"    {line}" for line in lines)
            text.append(f"{self.t} act{n}({self.t} x, int d) {{\n{body}\n}}\n")
        return "".join(text)

    # ---------------------------------------------------------------------------------------------- one step
    def phase(self, group: Group, gates: Sequence[int], source: str, finish: Sequence[str]) -> list[str]:
        """Statements that compute *gates* from the state region *source*; *finish* runs for each unit ``j`` and ``row``, with
        ``x<g>`` (the input's part), ``a<g>`` (the product), ``live`` and the time ``t``."""
        xw, r, p = group.view(0), group.view(1), self.params
        hidden, n = p.word(self.attrs["hidden"]), len(gates)

        units = [f"({g} * {hidden} + j)" if g else "j" for g in gates]
        columns = [f"((d * {self.gates} + {g}) * {hidden} + j)" for g in gates]
        weights = [load(p, r, offset_text(p, ["d", "(k + u)", unit], r.strides, r.offset)) for unit in units]
        inputs = [load(p, xw, offset_text(p, ["t", "b", column], xw.strides, xw.offset)) for column in columns]
        product = [
            *(f"{self.t} w{q} = {text};" for q, text in enumerate(weights)),
            "[[unroll]] for (int row = 0; row < ROWS; row++) {",
            f"    {self.t} h = state[{source} + row * STATE + k + u];",
            *(f"    acc[{q} * ROWS + row] = fma(h, w{q}, acc[{q} * ROWS + row]);" for q in range(n)),
            "}",
        ]
        return [
            f"for (int first = 0; first < {hidden}; first += UNITS) {{",
            "    int j = first + lane;",
            f"    {self.t} acc[{n} * ROWS];",
            f"    {self.t} xs[{n} * ROWS];",
            f"    [[unroll]] for (int q = 0; q < {n} * ROWS; q++) acc[q] = xs[q] = {self.t}(0);",
            f"    if (j < {hidden}) {{",
            "        if (part == 0) {",
            "            [[unroll]] for (int row = 0; row < ROWS; row++) {",
            "                if (s >= length[row]) continue;",
            "                int t = time_of(s, length[row], backward), b = b0 + row;",
            *(f"                xs[{q} * ROWS + row] = {self.t}({text});" for q, text in enumerate(inputs)),
            "            }",
            "        }",
            f"        int last = min((part + 1) * chunk, {hidden});",
            "        int k = part * chunk;",
            f"        for (; k + {UNROLL} <= last; k += {UNROLL}) {{",
            f"            [[unroll]] for (int u = 0; u < {UNROLL}; u++) {{",
            *(f"                {line}" for line in product),
            "            }",
            "        }",
            "        const int u = 0;",
            "        for (; k < last; k++) {",
            *(f"            {line}" for line in product),
            "        }",
            "    }",
            "    if (SPLIT > 1) {  // then UNITS >= H: one pass",
            f"        [[unroll]] for (int q = 0; q < {n} * ROWS; q++) {{",
            f"            if (part > 0) partial[((part - 1) * {n} * ROWS + q) * UNITS + lane] = acc[q];",
            "        }",
            "        barrier();",
            "        if (part == 0) {",
            "            for (int other = 0; other < SPLIT - 1; other++) {",
            f"                [[unroll]] for (int q = 0; q < {n} * ROWS; q++)",
            f"                    acc[q] += partial[(other * {n} * ROWS + q) * UNITS + lane];",
            "            }",
            "        }",
            "    }",
            f"    if (part == 0 && j < {hidden}) {{",
            "        [[unroll]] for (int row = 0; row < ROWS; row++) {",
            f"            if (b0 + row >= {p.word(self.instr.inputs[0].shape[1])}) continue;",
            "            bool live = s < length[row];",
            "            int at = row * STATE + j;",
            *(f"            {self.t} x{g} = xs[{q} * ROWS + row], a{g} = acc[{q} * ROWS + row];" for q, g in enumerate(gates)),
            *(f"            {line}" for line in finish),
            "        }",
            "    }",
            "}",
            "barrier();",
        ]

    def step(self, group: Group) -> list[str]:
        """The statements of one step."""
        one = f"{self.t}(1)"
        y = self.store_y(group)
        if self.late_reset:
            first = [
                "state[ROWS * STATE + at] = act0(x0 + a0, d);",
                "state[2 * ROWS * STATE + at] = act0(x1 + a1, d) * state[at];",
            ]
            second = [
                f"{self.t} z = state[ROWS * STATE + at], n = act1(x2 + a2, d);",
                f"if (live) state[at] = ({one} - z) * n + z * state[at];",
                f"{self.t} h = state[at];",
                *y,
            ]
            return [*self.phase(group, [0, 1], "0", first), *self.phase(group, [2], "2 * ROWS * STATE", second)]
        keep = [f"{self.t} old = state[now + at];"]
        if self.kind == "rnn":
            cell = [f"{self.t} h = act0(x0 + a0, d);"]
        elif self.kind == "gru":
            rb = self.named("rb", "d", "j")
            cell = [
                f"{self.t} z = act0(x0 + a0, d), q = act0(x1 + a1, d);",
                f"{self.t} n = act1(x2 + q * (a2 + {rb}), d);",
                f"{self.t} h = ({one} - z) * n + z * old;",
            ]
        else:
            cell = self.lstm()
        finish = [*keep, *cell, "h = live ? h : old;", "state[next + at] = h;", *y]
        lead = ["int now = (s & 1) * ROWS * STATE, next = ROWS * STATE - now;"]
        return [*lead, *self.phase(group, range(self.gates), "now", finish)]

    def lstm(self) -> list[str]:
        one, hidden = f"{self.t}(1)", self.params.word(self.attrs["hidden"])

        def peep(gate: int, cell: str) -> str:
            if "p" not in self.given:
                return ""
            return f" + {self.named('p', 'd', f'({gate} * {hidden} + j)' if gate else 'j')} * {cell}"

        forget = f"{one} - i" if self.attrs["input_forget"] else f"act0(x2 + a2{peep(2, 'c')}, d)"
        return [
            f"{self.t} c = state[2 * ROWS * STATE + at];",
            f"{self.t} i = act0(x0 + a0{peep(0, 'c')}, d);",
            f"{self.t} f = {forget};",
            f"{self.t} cell = f * c + i * act1(x3 + a3, d);",
            f"{self.t} o = act0(x1 + a1{peep(1, 'cell')}, d);",
            f"{self.t} h = o * act2(cell, d);",
            "if (live) state[2 * ROWS * STATE + at] = cell;",
        ]

    # ---------------------------------------------------------------------------------------------- memory
    def named(self, name: str, *index: str) -> str:
        """An element of one of the optional operands (dense), or zero where it is absent."""
        v = self.given.get(name)
        if v is None:
            return f"{self.t}(0)"
        at = index[0]
        for i, e in zip(index[1:], v.shape[1:], strict=True):
            at = f"({at} * {self.params.word(e)} + {i})"
        self.params.use(v.dtype)
        return f"{self.t}({unpack(v.dtype, f'{self.params.read(v)}.v[{at}]')})"

    def store(self, v: Value, index: Sequence[str], x: str) -> str:
        at = index[0]
        for i, e in zip(index[1:], v.shape[1:], strict=True):
            at = f"({at} * {self.params.word(e)} + {i})"
        return f"{self.params.write(v)}.v[{at}] = {pack(v.dtype, x)};"

    def store_y(self, group: Group) -> list[str]:
        y = self.instr.outputs[0]
        if y not in group.outputs:
            return []
        index = ["time_of(s, length[row], backward)", "d", "(b0 + row)", "j"]
        return [self.store(y, index, f"(live ? h : {self.t}(0))")]


@family("rnn", _supports, views=frozenset({0, 1}))
def rnn_kernel(group: Group) -> Kernel:
    """The kernel of one rnn composite."""
    instr, params = group.anchor, Params()
    cell, hidden = _Cell(instr, params), instr.attrs["hidden"]
    steps, batch, _ = instr.inputs[0].shape
    for v in (*instr.inputs, *instr.outputs):
        params.use(v.dtype)
    params.use(cell.acc)
    h, b_extent = params.word(hidden), params.word(batch)
    backward = {"forward": "false", "reverse": "true", "bidirectional": "d == 1"}[instr.attrs["direction"]]
    length = params.word(steps)
    if "lens" in cell.given:
        lens = cell.given["lens"]
        length = f"clamp(int({params.read(lens)}.v[b]), 0, {length})"

    start = [f"state[row * STATE + j] = b < {b_extent} ? {cell.named('h0', 'd', 'b', 'j')} : {cell.t}(0);"]
    if cell.kind == "lstm":
        start.append(
            f"state[2 * ROWS * STATE + row * STATE + j] = b < {b_extent} ? {cell.named('c0', 'd', 'b', 'j')} : {cell.t}(0);"
        )
    final = "0" if cell.late_reset else f"({params.word(steps)} & 1) * ROWS * STATE"
    ends = [(1, final), (2, "2 * ROWS * STATE")][: len(instr.outputs) - 1]
    finish = [
        cell.store(instr.outputs[n], ["d", "b", "j"], f"state[{region} + row * STATE + j]")
        for n, region in ends
        if instr.outputs[n] in group.outputs
    ]
    step = "\n".join(f"        {line}" for line in cell.step(group))
    newline = "\n            "
    body = f"""layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int UNITS = 64;  // units side by side in a workgroup
layout(constant_id = 2) const int SPLIT = 1;   // threads that share a unit
layout(constant_id = 3) const int STATE = 64;  // units that a state region has room for
layout(constant_id = 4) const int ROWS = 1;    // sequences of a workgroup

shared {cell.t} state[{cell.regions} * ROWS * STATE];
shared {cell.t} partial[SPLIT > 1 ? (SPLIT - 1) * {cell.gates} * ROWS * UNITS : 1];

// The time index that step s of a sequence visits; steps after its end stand for themselves.
int time_of(int s, int length, bool backward) {{
    return backward && s < length ? length - 1 - s : s;
}}

{cell.activations()}
void main() {{
    int lane = int(gl_LocalInvocationID.x) % UNITS, part = int(gl_LocalInvocationID.x) / UNITS;
    int groups = ({b_extent} + ROWS - 1) / ROWS;
    int group = int({FLAT_GROUP});
    if (group >= {cell.directions} * groups) return;
    int d = group / groups, b0 = (group % groups) * ROWS;
    bool backward = {backward};
    int chunk = ({h} + SPLIT - 1) / SPLIT;
    int length[ROWS];
    [[unroll]] for (int row = 0; row < ROWS; row++) {{
        int b = b0 + row;
        length[row] = b < {b_extent} ? {length} : 0;
    }}
    for (int j = int(gl_LocalInvocationID.x); j < {h}; j += UNITS * SPLIT) {{
        [[unroll]] for (int row = 0; row < ROWS; row++) {{
            int b = b0 + row;
            {newline.join(start)}
        }}
    }}
    barrier();
    for (int s = 0; s < {params.word(steps)}; s++) {{
{step}
    }}
    for (int j = int(gl_LocalInvocationID.x); j < {h}; j += UNITS * SPLIT) {{
        [[unroll]] for (int row = 0; row < ROWS; row++) {{
            int b = b0 + row;
            if (b >= {b_extent}) continue;
            {newline.join(finish)}
        }}
    }}
}}
"""
    reads = tuple(dict.fromkeys([group.view(0).leaf, group.view(1).leaf, *cell.given.values()]))
    return Kernel(group.label, params, body, reads, group.outputs, _choose(cell))


def _choose(cell: _Cell) -> Callable[[At, Limits], Variant]:
    size, gates, regions = cell.acc.size, cell.gates, cell.regions
    hidden: int = cell.attrs["hidden"]
    batch = cell.instr.inputs[0].shape[1]

    def choose(at: At, limits: Limits) -> Variant:
        capacity = max(64, 1 << (hidden - 1).bit_length())
        units = min(capacity, limits.max_workgroup_invocations)

        def shared(rows: int, split: int) -> int:
            return (regions * rows * capacity + (split - 1) * gates * rows * units) * size

        # Several sequences a workgroup only where there are enough of them to fill a large device anyway.
        rows = 4 if at(batch) * cell.directions >= 512 else 1
        while rows > 1 and shared(rows, 1) > limits.max_shared_memory // 2:
            rows //= 2
        split = 1
        while (
            units >= hidden
            and rows == 1
            and 2 * split * units <= limits.max_workgroup_invocations
            and 16 * split <= hidden
            and shared(rows, 2 * split) <= limits.max_shared_memory
        ):
            split *= 2
        return Variant((units * split, units, split, capacity, rows), grid_of(ceil_div(batch, rows) * cell.directions))

    return choose
