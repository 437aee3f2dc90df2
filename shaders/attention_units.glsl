// Attention as attention.glsl computes it, on matrix units (GL_KHR_cooperative_matrix) of 16 x 16 x 16 float16 with sums in fp32.
//
// A subgroup of 32 has ROW_UNITS * 16 rows: their queries and sums stay in its matrices. Keys and values pass through shared memory,
// BN at a time, the next ones on their way in registers meanwhile. Which elements of a matrix an invocation holds is not known, so
// scores go through shared memory, where two invocations share a row, and come back as weights in float16.
//
// Grid: as attention.glsl.
//
// The includer has included attention_units_variant.glsl and attention_weight.glsl and defined what attention.glsl wants, but
//   f16vec4 q_quad(int m, int k, int k_end), k_quad(int n, int k, int k_end)     4 elements of the head
//   f16vec4 v_quad(int n, int k, int k_end)                                      4 columns of key k

const int UNIT = 16;
const int SUBGROUPS = THREADS / 32;
const int ROWS = ROW_UNITS * UNIT;
const int BM = SUBGROUPS * ROWS;
const int PITCH_K = DEPTH / 4 + 2;  // quads; 16 bytes of padding keep rows in different banks
const int PITCH_V = WIDTH / 4 + 2;
const int PITCH_S = BN / 4 + 1;
const int PITCH_W = (BN > DEPTH ? BN : DEPTH) / 4 + 2;
const int QUADS_K = BN * DEPTH / 4 / THREADS;
const int QUADS_V = BN * WIDTH / 4 / THREADS;
const int TURNS = BN / 8;           // quads of scores of an invocation and row

#define LEFT coopmat<float16_t, gl_ScopeSubgroup, UNIT, UNIT, gl_MatrixUseA>
#define RIGHT coopmat<float16_t, gl_ScopeSubgroup, UNIT, UNIT, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, UNIT, UNIT, gl_MatrixUseAccumulator>

shared f16vec4 keys[BN * PITCH_K];
shared f16vec4 values[BN * PITCH_V];
shared vec4 scores[BM * PITCH_S];
shared f16vec4 weights[BM * PITCH_W];       // and first the queries
shared vec4 scales[BM * (UNIT / 4 + 1)];    // rows of one number

int thread;
f16vec4 k_next[QUADS_K];
f16vec4 v_next[QUADS_V];

void fetch(int n0) {
    [[unroll]] for (int i = 0; i < QUADS_K; i++) {
        int slot = thread + i * THREADS;
        k_next[i] = k_quad(n0 + slot / (DEPTH / 4), slot % (DEPTH / 4) * 4, SIZE_D);
    }
    [[unroll]] for (int i = 0; i < QUADS_V; i++) {
        int slot = thread + i * THREADS;
        v_next[i] = v_quad(slot % (WIDTH / 4) * 4, n0 + slot / (WIDTH / 4), SIZE_T);
    }
}

void stash() {
    [[unroll]] for (int i = 0; i < QUADS_K; i++) {
        int slot = thread + i * THREADS;
        keys[slot / (DEPTH / 4) * PITCH_K + slot % (DEPTH / 4)] = k_next[i];
    }
    [[unroll]] for (int i = 0; i < QUADS_V; i++) {
        int slot = thread + i * THREADS;
        values[slot / (WIDTH / 4) * PITCH_V + slot % (WIDTH / 4)] = v_next[i];
    }
}

void main() {
    if (min(min(SIZE_M, SIZE_N), SIZE_Z) <= 0) return;
    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint tiles = uint(SIZE_M + BM - 1) / BM;
    int z = int(group / tiles);
    if (z >= SIZE_Z) return;
    thread = int(gl_LocalInvocationID.x);
    int lane = int(gl_SubgroupInvocationID), r0 = int(gl_SubgroupID) * ROWS;  // the subgroup's rows in the workgroup
    int row = lane % UNIT, part = lane / UNIT;        // two invocations share a row, 16 apart
    int m0 = int(group % tiles) * BM + r0;

    begin(z);
    for (int e = lane; e < ROWS * (DEPTH / 4); e += 32) {
        int r = e / (DEPTH / 4), d = e % (DEPTH / 4);
        weights[(r0 + r) * PITCH_W + d] = q_quad(m0 + r, d * 4, SIZE_D);
    }
    if (SIZE_T > 0) {
        fetch(0);
        stash();
    }
    barrier();
    LEFT q[ROW_UNITS * (DEPTH / UNIT)];
    SUMS o[ROW_UNITS * (WIDTH / UNIT)];
    float highest[ROW_UNITS];
    float total[ROW_UNITS];  // of the weights that this invocation has made
    [[unroll]] for (int u = 0; u < ROW_UNITS; u++) {
        highest[u] = -INFINITE;
        total[u] = 0.0;
        [[unroll]] for (int d = 0; d < DEPTH / UNIT; d++) {
            coopMatLoad(q[u * (DEPTH / UNIT) + d], weights, (r0 + u * UNIT) * PITCH_W + d * (UNIT / 4), PITCH_W,
                        gl_CooperativeMatrixLayoutRowMajor);
        }
        [[unroll]] for (int w = 0; w < WIDTH / UNIT; w++) o[u * (WIDTH / UNIT) + w] = SUMS(0);
    }
    subgroupBarrier();

    for (int n0 = 0; n0 < SIZE_T; n0 += BN) {
        bool more = n0 + BN < SIZE_T;
        if (more) fetch(n0 + BN);
        [[unroll]] for (int j = 0; j < BN / UNIT; j++) {
            SUMS s[ROW_UNITS];
            [[unroll]] for (int u = 0; u < ROW_UNITS; u++) s[u] = SUMS(0);
            [[unroll]] for (int d = 0; d < DEPTH / UNIT; d++) {
                RIGHT k;
                coopMatLoad(k, keys, j * UNIT * PITCH_K + d * (UNIT / 4), PITCH_K, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (int u = 0; u < ROW_UNITS; u++) s[u] = coopMatMulAdd(q[u * (DEPTH / UNIT) + d], k, s[u]);
            }
            [[unroll]] for (int u = 0; u < ROW_UNITS; u++) {
                coopMatStore(s[u], scores, (r0 + u * UNIT) * PITCH_S + j * (UNIT / 4), PITCH_S, gl_CooperativeMatrixLayoutRowMajor);
            }
        }
        subgroupBarrier();
        [[unroll]] for (int u = 0; u < ROW_UNITS; u++) {
            int r = r0 + u * UNIT + row;
            int m = min(m0 + u * UNIT + row, SIZE_M - 1);
            vec4 x[TURNS];
            float most = highest[u];
            [[unroll]] for (int i = 0; i < TURNS; i++) {
                x[i] = scores[r * PITCH_S + i * 2 + part];
                [[unroll]] for (int c = 0; c < 4; c++) {
                    int n = n0 + (i * 2 + part) * 4 + c;
                    float y = score(z, m, min(n, SIZE_T - 1), x[i][c]);
                    x[i][c] = n < SIZE_T ? y : -INFINITE;
                }
                most = greater(most, greater(greater(x[i][0], x[i][1]), greater(x[i][2], x[i][3])));
            }
            most = greater(most, subgroupShuffleXor(most, 16u));
            float from = base_of(most), scale = weight(highest[u] - from);
            highest[u] = most;
            total[u] *= scale;
            [[unroll]] for (int i = 0; i < TURNS; i++) {
                [[unroll]] for (int c = 0; c < 4; c++) x[i][c] = weight(x[i][c] - from);
                total[u] += (x[i][0] + x[i][1]) + (x[i][2] + x[i][3]);
                weights[r * PITCH_W + i * 2 + part] = f16vec4(x[i]);
            }
            if (subgroupAny(scale != 1.0)) {
                [[unroll]] for (int i = 0; i < UNIT / 8; i++) scales[r * (UNIT / 4 + 1) + i * 2 + part] = vec4(scale);
                subgroupBarrier();
                SUMS factor;
                coopMatLoad(factor, scales, (r0 + u * UNIT) * (UNIT / 4 + 1), UNIT / 4 + 1, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (int w = 0; w < WIDTH / UNIT; w++) {
                    [[unroll]] for (int e = 0; e < factor.length(); e++) o[u * (WIDTH / UNIT) + w][e] *= factor[e];
                }
            }
        }
        subgroupBarrier();
        [[unroll]] for (int j = 0; j < BN / UNIT; j++) {
            LEFT w[ROW_UNITS];
            [[unroll]] for (int u = 0; u < ROW_UNITS; u++) {
                coopMatLoad(w[u], weights, (r0 + u * UNIT) * PITCH_W + j * (UNIT / 4), PITCH_W, gl_CooperativeMatrixLayoutRowMajor);
            }
            [[unroll]] for (int c = 0; c < WIDTH / UNIT; c++) {
                RIGHT v;
                coopMatLoad(v, values, j * UNIT * PITCH_V + c * (UNIT / 4), PITCH_V, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (int u = 0; u < ROW_UNITS; u++) {
                    o[u * (WIDTH / UNIT) + c] = coopMatMulAdd(w[u], v, o[u * (WIDTH / UNIT) + c]);
                }
            }
        }
        barrier();
        if (more) stash();
        barrier();
    }

    [[unroll]] for (int u = 0; u < ROW_UNITS; u++) {
        total[u] += subgroupShuffleXor(total[u], 16u);
        scales[(r0 + u * UNIT + row) * (UNIT / 4 + 1)].x = inverse(total[u]);
        [[unroll]] for (int w = 0; w < WIDTH / UNIT; w++) {
            subgroupBarrier();
            coopMatStore(o[u * (WIDTH / UNIT) + w], scores, r0 * PITCH_S, PITCH_S, gl_CooperativeMatrixLayoutRowMajor);
            subgroupBarrier();
            for (int e = lane; e < UNIT * UNIT; e += 32) {
                int r = e / UNIT, n = e % UNIT;
                float x = scores[(r0 + r) * PITCH_S + n / 4][n % 4] * scales[(r0 + u * UNIT + r) * (UNIT / 4 + 1)].x;
                int m = m0 + u * UNIT + r;
                if (m < SIZE_M && w * UNIT + n < SIZE_N) store(z, m, w * UNIT + n, 0, x);
            }
        }
    }
}
