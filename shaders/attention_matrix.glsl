// Attention as attention.glsl computes it, on matrices of a whole workgroup (GL_NV_cooperative_matrix2): 16-bit floats, sums in fp32.
//
// A workgroup keeps its BM rows of Q and of the sums, and walks the keys in steps of BN. Row statistics are matrices whose rows hold
// one number: that is what reductions give, and what elementwise operations take. Loads beyond a tensor give 0.
//
// Grid: as attention.glsl.
//
// The includer has included attention_matrix_variant.glsl and attention_weight.glsl and defined what attention.glsl wants but for the readers, and
//   ELEMENT                       float16_t or bfloat16_t
//   Q_POINTER, K_POINTER, V_POINTER                    buffers of ELEMENT
//   Q_STRIDE, K_STRIDE, V_STRIDE  elements from a row of Q, a key, a row of V to the next; all have neighbours side by side

#define MATRIX(type, rows, columns, use) coopmat<type, gl_ScopeWorkgroup, rows, columns, use>
#define SCORES MATRIX(float, BM, BN, gl_MatrixUseAccumulator)
#define SUMS MATRIX(float, BM, WIDTH, gl_MatrixUseAccumulator)
#define LAYOUT tensorLayoutNV<2, gl_CooperativeMatrixClampModeConstantNV>

float sum(const in float a, const in float b) { return a + b; }

float greater_of(const in uint row, const in uint column, const in float a, const in float b) { return greater(a, b); }

float scored(const in uint row, const in uint column, const in float s, const in int z, const in int m0, const in int n0) {
    int m = m0 + int(row), n = n0 + int(column);
    float x = score(z, min(m, SIZE_M - 1), min(n, SIZE_T - 1), s);
    return n < SIZE_T ? x : -INFINITE;
}

// The weight of a score; rows that have seen nothing but -inf are counted from 0.
float weight_of(const in uint row, const in uint column, const in float x, const in float most) {
    return weight(x - base_of(most));
}

float product_of(const in uint row, const in uint column, const in float a, const in float b) { return a * b; }

float stored(const in uint row, const in uint column, const in float x, const in float total, const in int z, const in int m0) {
    int m = m0 + int(row), n = int(column);
    if (m < SIZE_M && n < SIZE_N) store(z, m, n, 0, x * inverse(total));
    return x;
}

LAYOUT rows_of(int rows, int columns, int stride) {
    LAYOUT t = createTensorLayoutNV(2, gl_CooperativeMatrixClampModeConstantNV);
    t = setTensorLayoutDimensionNV(t, rows, columns);
    return setTensorLayoutStrideNV(t, ALIGNED == 1 ? stride & ~7 : stride, 1);
}

uint aligned(int offset) { return uint(ALIGNED == 1 ? offset & ~7 : offset); }

void main() {
    if (min(min(SIZE_M, SIZE_N), SIZE_Z) <= 0) return;
    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint tiles = uint(SIZE_M + BM - 1) / BM;
    int m0 = int(group % tiles) * BM;
    int z = int(group / tiles);
    if (z >= SIZE_Z) return;
    begin(z);

    tensorViewNV<2, false, 1, 0> turned = createTensorViewNV(2, false, 1, 0);
    MATRIX(ELEMENT, BM, DEPTH, gl_MatrixUseA) q;
    coopMatLoadTensorNV(q, Q_POINTER.v, aligned(q_base), sliceTensorLayoutNV(rows_of(SIZE_M, SIZE_D, Q_STRIDE), m0, BM, 0, DEPTH));
    LAYOUT keys = rows_of(SIZE_T, SIZE_D, K_STRIDE), values = rows_of(SIZE_T, SIZE_N, V_STRIDE);
    SUMS o = SUMS(0);
    SCORES highest = SCORES(-INFINITE);
    SCORES total = SCORES(0);
    for (int n0 = 0; n0 < SIZE_T; n0 += BN) {
        MATRIX(ELEMENT, DEPTH, BN, gl_MatrixUseB) k;
        coopMatLoadTensorNV(k, K_POINTER.v, aligned(k_base), sliceTensorLayoutNV(keys, n0, BN, 0, DEPTH), turned);
        SCORES s = coopMatMulAdd(q, k, SCORES(0));
        coopMatPerElementNV(s, s, scored, z, m0, n0);

        SCORES most;
        coopMatReduceNV(most, s, gl_CooperativeMatrixReduceRowNV, greater);
        coopMatPerElementNV(most, most, greater_of, highest);
        SCORES scale;
        coopMatPerElementNV(scale, highest, weight_of, most);
        highest = most;
        coopMatPerElementNV(s, s, weight_of, most);
        SCORES added;
        coopMatReduceNV(added, s, gl_CooperativeMatrixReduceRowNV, sum);
        coopMatPerElementNV(total, total, product_of, scale);
        total += added;

        SUMS wide;
        coopMatReduceNV(wide, scale, gl_CooperativeMatrixReduceRowNV, greater);
        coopMatPerElementNV(o, o, product_of, wide);
        MATRIX(ELEMENT, BN, WIDTH, gl_MatrixUseB) v;
        coopMatLoadTensorNV(v, V_POINTER.v, aligned(v_base), sliceTensorLayoutNV(values, n0, BN, 0, WIDTH));
        MATRIX(ELEMENT, BM, BN, gl_MatrixUseA) weights = MATRIX(ELEMENT, BM, BN, gl_MatrixUseA)(s);
        o = coopMatMulAdd(weights, v, o);
    }
    SUMS totals;
    coopMatReduceNV(totals, total, gl_CooperativeMatrixReduceRowNV, greater);
    coopMatPerElementNV(o, o, stored, totals, z, m0);
}
