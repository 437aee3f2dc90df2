// What every kernel starts with: index division and the error word. Element types and the parameter block are declared by
// codegen/params.py, functions on elements come from math.glsl piece by piece.

// d, multiplier and shift of a run-time divisor (plan/table.py: divisor_words).
struct Divisor {
    uint d;
    uint m;
    uint s;
};

// Whole vectors of a tensor: 32-bit words, moved one, two or four at a time (codegen/vector.py). i counts such moves.
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer Words1R { uint v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly restrict buffer Words2R { uvec2 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Words4R { uvec4 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Words1 { uint v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Words2 { uvec2 v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Words4 { uvec4 v[]; };
#define LOAD_WORDS1(x, at, p, i) x[at] = Words1R(p).v[i];
#define LOAD_WORDS2(x, at, p, i) { uvec2 q = Words2R(p).v[i]; x[at] = q.x; x[at + 1] = q.y; }
#define LOAD_WORDS4(x, at, p, i) { uvec4 q = Words4R(p).v[i]; x[at] = q.x; x[at + 1] = q.y; x[at + 2] = q.z; x[at + 3] = q.w; }
#define STORE_WORDS1(x, at, p, i) Words1(p).v[i] = x[at];
#define STORE_WORDS2(x, at, p, i) Words2(p).v[i] = uvec2(x[at], x[at + 1]);
#define STORE_WORDS4(x, at, p, i) Words4(p).v[i] = uvec4(x[at], x[at + 1], x[at + 2], x[at + 3]);

// n / d for 0 <= n < 2^31.
int divide(int n, Divisor d) {
    uint hi, lo;
    umulExtended(uint(n), d.m, hi, lo);
    return int((hi + uint(n)) >> d.s);
}

// The run's error word: how many indices were outside their tensor, one of them, and the kernel that met it (its label in the
// plan, counted from 1).
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer ErrorWord {
    uint count;
    uint label;
    int value; // low and high half of a 64-bit integer
    int value_high;
};

void report_index(int low, int high, ErrorWord e, uint label) {
    if (atomicAdd(e.count, 1u) == 0u) {
        e.label = label;
        e.value = low;
        e.value_high = high;
    }
}

// An index outside [0, extent) is reported and read as 0.
int checked_place(int i, int extent, ErrorWord e, uint label) {
    if (i >= 0 && i < extent) return i;
    report_index(i, i < 0 ? -1 : 0, e, label);
    return 0;
}

// Wraps a negative index; an index outside [-extent, extent) is reported and read as 0.
int checked_index(int i, int extent, ErrorWord e, uint label) {
    int at = i < 0 ? i + extent : i;
    if (at >= 0 && at < extent) return at;
    report_index(i, i < 0 ? -1 : 0, e, label);
    return 0;
}

#ifdef HAS_I64
int checked_place(int64_t i, int extent, ErrorWord e, uint label) {
    if (i >= 0l && i < int64_t(extent)) return int(i);
    report_index(int(i), int(i >> 32), e, label);
    return 0;
}

int checked_index(int64_t i, int extent, ErrorWord e, uint label) {
    int64_t at = i < 0l ? i + int64_t(extent) : i;
    if (at >= 0l && at < int64_t(extent)) return int(at);
    report_index(int(i), int(i >> 32), e, label);
    return 0;
}
#endif
