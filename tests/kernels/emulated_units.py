"""Cooperative matrices in plain GLSL, for devices without them: the kernels' loads, tiles, stores and epilogues run as they are.

Every invocation of a subgroup keeps whole matrices and computes all of their elements. A software driver may end a kernel's loops
after 65,536 iterations in all (llvmpipe does): about ten steps of K in a large tile, twenty in the smallest.
"""

from __future__ import annotations

import re

__all__ = ["emulated"]

EXTENSIONS = ("GL_KHR_cooperative_matrix", "GL_KHR_memory_scope_semantics")

MACROS = """
struct MatrixA { float v[UNIT * UNIT_K]; };
struct MatrixB { float v[UNIT * UNIT_K]; };
struct Sums { SUM v[UNIT * UNIT]; };
float pool_element(int chunk, int i) {
#if CHUNK == 8
    return unpackFloat2x16(pool[chunk][i / 2])[i % 2];
#else
    return float(E(pool[chunk][i / 4] >> (i % 4 * 8)));
#endif
}
#define EACH(count) for (int e = 0; e < count; e++)
#define LOAD(m, columns, from, pitch, turned) EACH(UNIT * UNIT_K) { \\
    int slow = turned != 0 ? e % columns : e / columns, fast = turned != 0 ? e / columns : e % columns; \\
    m.v[e] = pool_element((from) + slow * (pitch) + fast / CHUNK, fast % CHUNK); }
#define MULTIPLY(to, a, b) EACH(UNIT * UNIT) { \\
    SUM sum = to.v[e]; \\
    for (int q = 0; q < UNIT_K; q++) sum += SUM(a.v[e / UNIT * UNIT_K + q] * b.v[q * UNIT + e % UNIT]); \\
    to.v[e] = sum; }
#define STORE(m, at, pitch) EACH(UNIT * UNIT) pool[(at) + e / UNIT * (pitch) + e % UNIT / 4][e % 4] = BITS(m.v[e])
#define CLEAR(m) EACH(UNIT * UNIT) m.v[e] = SUM(0)
#define COPY(to, from) EACH(UNIT * UNIT) to.v[e] = from.v[e]
#define ADD(to, other) EACH(UNIT * UNIT) to.v[e] += other.v[e]
"""

REWRITES = (
    (r"coopmat<\w+, gl_ScopeSubgroup, \w+, \w+, gl_MatrixUseA>", "MatrixA"),
    (r"coopmat<\w+, gl_ScopeSubgroup, \w+, \w+, gl_MatrixUseB>", "MatrixB"),
    (r"coopmat<\w+, gl_ScopeSubgroup, \w+, \w+, gl_MatrixUseAccumulator>", "Sums"),
    (r"gl_CooperativeMatrixLayoutRowMajor", "0"),
    (r"gl_CooperativeMatrixLayoutColumnMajor", "1"),
    (r"(\w+\[\w\]) = Sums\((SUM\(0\)|0)\);", r"CLEAR(\1);"),
    (r"(\w+\[i\]) = \1 \+ (\w+\[i\]);", r"ADD(\1, \2);"),
    (r"(whole|acc)\[i\] = (whole|acc)\[i\];", r"COPY(\1[i], \2[i]);"),
    (r"(acc\[[^\]]*\]) = coopMatMulAdd\((\w+\[[^\]]*\]), (\w+(?:\[[^\]]*\])?), \1\);", r"MULTIPLY(\1, \2, \3);"),
    (r"coopMatLoad\((b_ahead\[.*?\]), pool, (.*), (\w+), (\w+)\);", r"LOAD(\1, UNIT, \2, \3, \4)"),
    (r"coopMatLoad\((\w+\[.*?\]), pool, (.*), (\w+), (\w+)\);", r"LOAD(\1, UNIT_K, \2, \3, \4)"),
    (r"coopMatLoad\((\w+), pool, (.*), (\w+), (\w+)\);", r"LOAD(\1, UNIT, \2, \3, \4)"),
    (r"coopMatStore\((.*\]), pool, (.*), (.*), 0\);", r"STORE(\1, \2, \3);"),
)
HALVES = """#define E float16_t
#define CHUNK 8
#define SUM float
const int UNIT = 16, UNIT_K = 16;
"""
"""What a kernel of float16 alone has not defined."""


def emulated(source: str) -> str:
    """A kernel's whole text without cooperative matrices."""
    for extension in EXTENSIONS:
        source = source.replace(f"#extension {extension} : require\n", "")
    source = source.replace("[[unroll]] ", "")
    for pattern, text in REWRITES:
        source = re.sub(pattern, text, source)
    start = "" if "#define UNIT_K" in source else HALVES
    whole = "#define SUM float\n" not in start + source
    start += f"#define BITS(x) {'uint' if whole else 'floatBitsToUint'}(x)\n"
    return re.sub(r"^shared uvec4 pool\[.*\];\n", lambda found: found[0] + start + MACROS, source, flags=re.M)
