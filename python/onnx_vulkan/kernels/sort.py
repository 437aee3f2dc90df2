"""Stable sorts and top-k (primitive ``sort``) of lines along an axis.

What is sorted are pairs (key, index): the key is an unsigned integer in the order of the element (NaN above everything, both
zeros equal, complemented for the largest first), and the index breaks ties, so that the result is stable whatever the network.

- A line that fits shared memory: a bitonic network in one workgroup (several short lines share one).
- A longer one: tiles of TILE are sorted that way into scratch, then runs are merged pairwise, one launch a doubling. A thread
  finds the place of its pair by a binary search in the sibling run. Only the first k of a run are kept, so a top-k of a long
  line soon has little to merge.

The same launches order the updates of a scatter by destination (:mod:`onnx_vulkan.kernels.scatter`): :class:`PairSort` takes the
text that gives an element's key and the text that stores a sorted pair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from onnx_vulkan.codegen.index import row_major
from onnx_vulkan.codegen.kernel import At, Kernel, Launch, Limits, Variant, grid_of, workgroups
from onnx_vulkan.codegen.params import Params
from onnx_vulkan.codegen.types import GLSL_TYPES
from onnx_vulkan.dims import Extent, ceil_div
from onnx_vulkan.dtypes import REAL, DType
from onnx_vulkan.kernels import Group, family
from onnx_vulkan.kernels.indexing import FLAT_GROUP, Rows, flat_grid, load, rows_of
from onnx_vulkan.program.ir import Instr, Value

__all__ = ["PairSort", "SortStep"]

TILE = 1024
"""Elements of a run that is sorted in shared memory when the whole line is too long for it."""


@dataclass(frozen=True, slots=True)
class Text:
    """GLSL that depends on what is sorted, rendered for one kernel: statements, and the values that they touch."""

    lines: list[str]
    reads: tuple[Value, ...] = ()
    writes: tuple[Value, ...] = ()


def pair_bytes(wide: bool) -> int:
    """Shared memory of one pair."""
    return 12 if wide else 8


@dataclass(eq=False)
class PairSort:
    """Sorts ``count`` lines of ``length`` pairs and keeps the first ``keep`` of each.

    ``key(params)`` renders statements that set ``key`` (uint, or uint64_t where *wide*) of element ``position`` of line ``row``;
    ``store(params)`` statements that store pair ``key, index`` as number ``place`` of line ``row``.
    """

    label: str
    count: Extent
    length: Extent
    keep: Extent
    wide: bool
    key: Callable[[Params], Text]
    store: Callable[[Params], Text]
    _local: dict[bool, Kernel] = field(default_factory=dict)
    _merges: dict[tuple[int, bool], Kernel] = field(default_factory=dict)
    _scratch: list[tuple[Value, Value]] = field(default_factory=list)

    def launches(self, at: At, limits: Limits) -> list[Launch]:
        """The dispatches of the sort at a plan's sizes."""
        n = at(self.length)
        if padded(n) * pair_bytes(self.wide) <= limits.max_shared_memory:
            return self.local(final=True).launches(at, limits)
        steps = self.local(final=False).launches(at, limits)
        shift = TILE.bit_length() - 1
        while (1 << shift) < n:
            steps += self.merge(shift, final=(2 << shift) >= n).launches(at, limits)
            shift += 1
        return steps

    def scratch(self, n: int) -> tuple[Value, Value]:
        """Keys and indices between launches: two sets in turn."""
        if not self._scratch:
            key = DType.U64 if self.wide else DType.U32
            shape = (self.count, self.length)
            self._scratch = [(Value(key, shape, f"keys{i}"), Value(DType.I32, shape, f"indices{i}")) for i in range(2)]
        return self._scratch[n % 2]

    def _to_scratch(self, params: Params, n: int, place: str) -> Text:
        keys, indices = self.scratch(n)
        at = f"row * {params.word(self.length)} + {place}"
        lines = [f"{params.write(keys)}.v[{at}] = key;", f"{params.write(indices)}.v[{at}] = index;"]
        return Text(lines, writes=(keys, indices))

    # ---------------------------------------------------------------------------------------------- in shared memory
    def local(self, *, final: bool) -> Kernel:
        """Sorts a whole line (*final*) or its tiles into scratch."""
        if final not in self._local:
            self._local[final] = self._render_local(final)
        return self._local[final]

    def _render_local(self, final: bool) -> Kernel:
        params, key_type = Params(), "uint64_t" if self.wide else "uint"
        params.use(DType.U64 if self.wide else DType.U32)
        key = self.key(params)
        tiles: Extent = 1 if final else ceil_div(self.length, TILE)
        store = self.store(params) if final else self._to_scratch(params, 0, "place")
        length, keep = params.word(self.length), params.word(self.keep)
        where = ["int row = unit, first = 0;"]
        if not final:
            d = params.divisor(tiles)
            where = [f"int row = divide(unit, {d});", f"int first = (unit - row * int({d}.d)) * PADDED;"]
        newline, deeper = "\n        ", "\n            "
        units = params.word(self.count * tiles)
        body = f"""layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int PADDED = 2;   // pairs of a line or tile, a power of two
layout(constant_id = 2) const int LINES = 1;    // lines or tiles of a workgroup
layout(constant_id = 3) const int THREADS = 1;  // the workgroup's size

shared {key_type} keys[PADDED * LINES];
shared int indices[PADDED * LINES];

bool precedes({key_type} a, int i, {key_type} b, int j) {{
    return a < b || (a == b && i < j);
}}

void main() {{
    int me = int(gl_LocalInvocationID.x);
    int group = int({FLAT_GROUP});
    for (int p = me; p < PADDED * LINES; p += THREADS) {{
        int unit = group * LINES + p / PADDED;
        {newline.join(where)}
        int position = first + p % PADDED;
        {key_type} key = ~{key_type}(0);
        if (unit < {units} && position < {length}) {{
            {deeper.join(key.lines)}
        }}
        keys[p] = key;
        indices[p] = position;  // of padding too: it comes after every real pair of the same key
    }}
    barrier();
    for (int run = 2; run <= PADDED; run <<= 1) {{
        for (int apart = run >> 1; apart > 0; apart >>= 1) {{
            for (int p = me; p < PADDED * LINES / 2; p += THREADS) {{
                int low = ((p & ~(apart - 1)) << 1) | (p & (apart - 1)), high = low + apart;
                bool rising = (low & (PADDED - 1) & run) == 0;
                {key_type} a = keys[low], b = keys[high];
                int i = indices[low], j = indices[high];
                if (precedes(b, j, a, i) == rising) {{
                    keys[low] = b;
                    keys[high] = a;
                    indices[low] = j;
                    indices[high] = i;
                }}
            }}
            barrier();
        }}
    }}
    for (int p = me; p < PADDED * LINES; p += THREADS) {{
        int unit = group * LINES + p / PADDED;
        {newline.join(where)}
        int offset = p % PADDED, place = first + offset;
        if (unit >= {units} || place >= {length} || offset >= {keep}) continue;
        {key_type} key = keys[p];
        int index = indices[p];
        {newline.join(store.lines)}
    }}
}}
"""
        total = self.count * tiles

        def choose(at: At, limits: Limits) -> Variant:
            pairs = padded(at(self.length)) if final else TILE
            size = min(max(pairs // 2, 64), 256 if pairs <= 1024 else 1024, limits.max_workgroup_invocations)
            lines = max(1, 2 * size // pairs)
            while lines > 1 and lines * pairs * pair_bytes(self.wide) > limits.max_shared_memory:
                lines //= 2
            return Variant((size, pairs, lines, size), grid_of(workgroups(total, lines)))

        return Kernel(self.label, params, body, (*key.reads, *store.reads), store.writes, choose)

    # ---------------------------------------------------------------------------------------------- merging
    def merge(self, shift: int, *, final: bool) -> Kernel:
        """Merges runs of ``2**shift`` pairwise; the last merge stores the result."""
        if (shift, final) not in self._merges:
            self._merges[shift, final] = self._render_merge(shift, final)
        return self._merges[shift, final]

    def _render_merge(self, shift: int, final: bool) -> Kernel:
        params, key_type = Params(), "uint64_t" if self.wide else "uint"
        n = shift - (TILE.bit_length() - 1)
        keys, indices = self.scratch(n)
        store = self.store(params) if final else self._to_scratch(params, n + 1, "place")
        k, i = params.read(keys), params.read(indices)
        d, length, keep = params.divisor(self.length), params.word(self.length), params.word(self.keep)
        total = self.count * self.length
        newline = "\n    "
        body = f"""layout(local_size_x_id = 0) in;

void main() {{
    int item = int({FLAT_GROUP} * gl_WorkGroupSize.x + gl_LocalInvocationID.x);
    if (item >= {params.word(total)}) return;
    int row = divide(item, {d});
    int position = item - row * int({d}.d);
    int shift = {params.word(shift)};
    int run = position >> shift, offset = position - (run << shift);
    if (offset >= {keep}) return;
    {key_type} key = {k}.v[item];
    int index = {i}.v[item];
    // how many pairs of the sibling run come before this one
    int sibling = (run ^ 1) << shift, base = row * {length} + sibling;
    int low = 0, high = clamp({length} - sibling, 0, min(1 << shift, {keep}));
    while (low < high) {{
        int middle = (low + high) >> 1;
        {key_type} other = {k}.v[base + middle];
        if (other < key || (other == key && {i}.v[base + middle] < index)) low = middle + 1;
        else high = middle;
    }}
    int rank = offset + low;
    if (rank >= {keep}) return;
    int place = ((run >> 1) << (shift + 1)) + rank;
    {newline.join(store.lines)}
}}
"""
        return Kernel(self.label, params, body, (keys, indices, *store.reads), store.writes, flat_grid(total))


def padded(n: int) -> int:
    """The power of two that a bitonic network over *n* elements has."""
    return 1 << max(n - 1, 1).bit_length()


# ------------------------------------------------------------------------------------------------------- the primitive


def _supports(instr: Instr) -> str | None:
    dtype = instr.inputs[0].dtype
    return None if dtype in REAL else f"sorting {dtype.onnx_name} is not supported"


def key_text(dtype: DType, x: str, *, largest: bool) -> list[str]:
    """Statements that set ``key`` from a compute-type expression *x* (evaluated once)."""
    compute = GLSL_TYPES[dtype].compute
    lines = [f"{compute} x = {x};"]
    match compute:
        case "float":
            lines += [
                "uint bits = floatBitsToUint(x);",
                "if ((bits << 1) == 0u) bits = 0u;",
                "key = ov_isnan(x) ? ~0u : ((bits >> 31) != 0u ? ~bits : bits | 0x80000000u);",
            ]
        case "double":
            lines += [
                "uvec2 halves = unpackDouble2x32(x);",
                "uint64_t bits = (uint64_t(halves.y) << 32) | uint64_t(halves.x);",
                "if ((bits << 1) == 0ul) bits = 0ul;",
                "key = ov_isnan(x) ? ~0ul : ((bits >> 63) != 0ul ? ~bits : bits | (1ul << 63));",
            ]
        case "int":
            lines.append("key = uint(x) ^ 0x80000000u;")
        case "int64_t":
            lines.append("key = uint64_t(x) ^ (1ul << 63);")
        case _:
            lines.append("key = x;")
    return [*lines, "key = ~key;"] if largest else lines


@dataclass(eq=False)
class SortStep:
    """The step of one sort."""

    label: str
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    sort: PairSort

    def launches(self, at: At, limits: Limits) -> list[Launch]:
        """One launch, or one for the tiles and one for each doubling of the runs."""
        return self.sort.launches(at, limits)


@family("sort", _supports, views=frozenset({0}))
def sort_step(group: Group) -> SortStep:
    """The step of a ``sort`` primitive."""
    instr, view = group.anchor, group.view(0)
    axis, dtype = instr.attrs["axis"], instr.inputs[0].dtype
    values, indices = instr.outputs

    def rows(params: Params) -> Rows:
        params.use(dtype)
        views = [(view.strides, view.offset), (row_major(values.shape), 0)]
        return rows_of(params, instr.inputs[0].shape, axis, views)

    def key(params: Params) -> Text:
        lines = rows(params)
        x = load(params, view, lines.at(0, "position"))
        return Text([*lines.split("row"), *key_text(dtype, x, largest=instr.attrs["largest"])], (view.leaf,))

    def store(params: Params) -> Text:
        lines = rows(params)
        text, source, target = lines.split("row"), lines.at(0, "index"), lines.at(1, "place")
        if values in group.outputs:
            text.append(f"{params.write(values)}.v[{target}] = {params.read(view.leaf)}.v[{source}];")
        if indices in group.outputs:
            text.append(f"{params.write(indices)}.v[{target}] = int64_t(index);")
        return Text(text, (view.leaf,), group.outputs)

    lines = rows_of(Params(), instr.inputs[0].shape, axis, [(view.strides, view.offset)])
    wide = dtype in (DType.I64, DType.U64, DType.F64)
    sort = PairSort(group.label, lines.count, lines.length, values.shape[axis], wide, key, store)
    return SortStep(group.label, (view.leaf,), group.outputs, sort)
