// Attention in one pass, softmax(score(Q K)) V, on matrix units (GL_KHR_cooperative_matrix) of 16 x 16 x 16 float16 with sums in
// fp32. Weights are counted from the highest score that a row has seen; when it rises, sums are scaled down.
//
// A subgroup of 32 has ROW_UNITS * 16 rows: their queries and sums stay in its matrices. Keys and values pass through shared memory,
// BN at a time, the next ones on their way in registers meanwhile. Which elements of a matrix an invocation holds is not known, so
// scores go through shared memory, where two invocations share a row, and come back as weights in float16.
//
// Grid: one dimension (folded past 65535), rows fastest, then batch. A grid too large is harmless.
//
// The includer has included attention_units_variant.glsl and attention_weight.glsl and defined: SIZE_Z, SIZE_M (queries), SIZE_T
// (keys), SIZE_D (head size, at least 1), SIZE_N (head size of the values), and
//   void begin(int z)
//   f16vec4 q_quad(int m, int k, int k_end), k_quad(int n, int k, int k_end)     4 elements of the head; 0 from k_end on
//   f16vec4 v_quad(int n, int k, int k_end)                                      4 columns of key k; 0 from k_end on
//   float score(int z, int m, int n, float s)      what becomes of a score
//   float inverse(float total)                     the factor of a row whose weights add up to total
//   void store(int z, int m, int n, int split, float acc)

const int UNIT = 16;
const int SUBGROUPS = THREADS / 32;
const int ROWS = ROW_UNITS * UNIT;
const int BM = SUBGROUPS * ROWS;
const int CHUNKS_K = DEPTH / 8;  // chunks of 8 elements, 16 bytes, of a row
const int CHUNKS_V = WIDTH / 8;
// A chunk of padding keeps rows in different banks.
const int PITCH_K = CHUNKS_K + 1;
const int PITCH_V = CHUNKS_V + 1;
const int PITCH_R = (BN / 4 > CHUNKS_K ? BN / 4 : CHUNKS_K) + 1;
const int LOADS_K = BN * CHUNKS_K / THREADS;
const int LOADS_V = BN * CHUNKS_V / THREADS;
const int TURNS = BN / 16;       // chunks of weights of an invocation and row
const int SCALES = BN / 8;       // where in a row the scale lies, 16 times, behind the weights

#define LEFT coopmat<float16_t, gl_ScopeSubgroup, UNIT, UNIT, gl_MatrixUseA>
#define RIGHT coopmat<float16_t, gl_ScopeSubgroup, UNIT, UNIT, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, UNIT, UNIT, gl_MatrixUseAccumulator>

shared uvec4 keys[BN * PITCH_K];
shared uvec4 values[BN * PITCH_V];
shared uvec4 rows[BM * PITCH_R];  // queries, then scores, then weights; in the end sums. The last chunk of a row: its inverse

int thread;
uvec4 k_next[LOADS_K];
uvec4 v_next[LOADS_V];

uvec4 chunk(f16vec4 a, f16vec4 b) {
    return uvec4(packFloat2x16(a.xy), packFloat2x16(a.zw), packFloat2x16(b.xy), packFloat2x16(b.zw));
}

// Loads stand under no condition: past the last key they give 0, or a key whose score is not looked at.
void fetch(int n0) {
    [[unroll]] for (int i = 0; i < LOADS_K; i++) {
        int slot = thread + i * THREADS, n = n0 + slot / CHUNKS_K, d = slot % CHUNKS_K * 8;
        k_next[i] = chunk(k_quad(n, d, SIZE_D), k_quad(n, d + 4, SIZE_D));
    }
    [[unroll]] for (int i = 0; i < LOADS_V; i++) {
        int slot = thread + i * THREADS, k = n0 + slot / CHUNKS_V, n = slot % CHUNKS_V * 8;
        v_next[i] = chunk(v_quad(n, k, SIZE_T), v_quad(n + 4, k, SIZE_T));
    }
}

void stash() {
    [[unroll]] for (int i = 0; i < LOADS_K; i++) {
        int slot = thread + i * THREADS;
        keys[slot / CHUNKS_K * PITCH_K + slot % CHUNKS_K] = k_next[i];
    }
    [[unroll]] for (int i = 0; i < LOADS_V; i++) {
        int slot = thread + i * THREADS;
        values[slot / CHUNKS_V * PITCH_V + slot % CHUNKS_V] = v_next[i];
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
    for (int e = lane; e < ROWS * CHUNKS_K; e += 32) {
        int m = m0 + e / CHUNKS_K, d = e % CHUNKS_K * 8;
        rows[(r0 + e / CHUNKS_K) * PITCH_R + e % CHUNKS_K] = chunk(q_quad(m, d, SIZE_D), q_quad(m, d + 4, SIZE_D));
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
            coopMatLoad(q[u * (DEPTH / UNIT) + d], rows, (r0 + u * UNIT) * PITCH_R + d * 2, PITCH_R, gl_CooperativeMatrixLayoutRowMajor);
        }
        [[unroll]] for (int w = 0; w < WIDTH / UNIT; w++) o[u * (WIDTH / UNIT) + w] = SUMS(0);
    }
    subgroupBarrier();

    for (int n0 = 0; n0 < SIZE_T; n0 += BN) {
        fetch(n0 + BN);
        [[unroll]] for (int j = 0; j < BN / UNIT; j++) {
            SUMS s[ROW_UNITS];
            [[unroll]] for (int u = 0; u < ROW_UNITS; u++) s[u] = SUMS(0);
            [[unroll]] for (int d = 0; d < DEPTH / UNIT; d++) {
                RIGHT k;
                coopMatLoad(k, keys, j * UNIT * PITCH_K + d * 2, PITCH_K, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (int u = 0; u < ROW_UNITS; u++) s[u] = coopMatMulAdd(q[u * (DEPTH / UNIT) + d], k, s[u]);
            }
            [[unroll]] for (int u = 0; u < ROW_UNITS; u++) {
                coopMatStore(s[u], rows, (r0 + u * UNIT) * PITCH_R + j * 4, PITCH_R, gl_CooperativeMatrixLayoutRowMajor);
            }
        }
        subgroupBarrier();
        [[unroll]] for (int u = 0; u < ROW_UNITS; u++) {
            int at = (r0 + u * UNIT + row) * PITCH_R;
            int m = min(m0 + u * UNIT + row, SIZE_M - 1);
            vec4 x[TURNS * 2];
            float most = highest[u];
            [[unroll]] for (int i = 0; i < TURNS * 2; i++) {
                int quad = i / 2 * 4 + part * 2 + i % 2;
                x[i] = uintBitsToFloat(rows[at + quad]);
                [[unroll]] for (int c = 0; c < 4; c++) {
                    int n = n0 + quad * 4 + c;
                    float y = score(z, m, min(n, SIZE_T - 1), x[i][c]);
                    x[i][c] = n < SIZE_T ? y : -INFINITE;
                }
                most = greater(most, greater(greater(x[i][0], x[i][1]), greater(x[i][2], x[i][3])));
            }
            most = greater(most, subgroupShuffleXor(most, 16u));
            subgroupBarrier();  // the other half of the row is in registers, too: weights may take its place
            float from = base_of(most), scale = weight(highest[u] - from);
            highest[u] = most;
            total[u] *= scale;
            [[unroll]] for (int i = 0; i < TURNS * 2; i++) {
                [[unroll]] for (int c = 0; c < 4; c++) x[i][c] = weight(x[i][c] - from);
                total[u] += (x[i][0] + x[i][1]) + (x[i][2] + x[i][3]);
            }
            [[unroll]] for (int i = 0; i < TURNS; i++) rows[at + i * 2 + part] = chunk(f16vec4(x[2 * i]), f16vec4(x[2 * i + 1]));
            if (subgroupAny(scale != 1.0)) {
                [[unroll]] for (int i = 0; i < 2; i++) rows[at + SCALES + part * 2 + i] = floatBitsToUint(vec4(scale));
                subgroupBarrier();
                SUMS factor;
                coopMatLoad(factor, rows, (r0 + u * UNIT) * PITCH_R + SCALES, PITCH_R, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (int w = 0; w < WIDTH / UNIT; w++) {
                    [[unroll]] for (int e = 0; e < factor.length(); e++) o[u * (WIDTH / UNIT) + w][e] *= factor[e];
                }
            }
        }
        subgroupBarrier();
        [[unroll]] for (int j = 0; j < BN / UNIT; j++) {
            LEFT w[ROW_UNITS];
            [[unroll]] for (int u = 0; u < ROW_UNITS; u++) {
                coopMatLoad(w[u], rows, (r0 + u * UNIT) * PITCH_R + j * 2, PITCH_R, gl_CooperativeMatrixLayoutRowMajor);
            }
            [[unroll]] for (int c = 0; c < WIDTH / UNIT; c++) {
                RIGHT v;
                coopMatLoad(v, values, j * UNIT * PITCH_V + c * 2, PITCH_V, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (int u = 0; u < ROW_UNITS; u++) {
                    o[u * (WIDTH / UNIT) + c] = coopMatMulAdd(w[u], v, o[u * (WIDTH / UNIT) + c]);
                }
            }
        }
        barrier();
        stash();
        barrier();
    }

    [[unroll]] for (int u = 0; u < ROW_UNITS; u++) {
        total[u] += subgroupShuffleXor(total[u], 16u);
        rows[(r0 + u * UNIT + row + 1) * PITCH_R - 1].x = floatBitsToUint(inverse(total[u]));
        [[unroll]] for (int w = 0; w < WIDTH / UNIT; w++) {
            subgroupBarrier();
            coopMatStore(o[u * (WIDTH / UNIT) + w], rows, (r0 + u * UNIT) * PITCH_R, PITCH_R, gl_CooperativeMatrixLayoutRowMajor);
            subgroupBarrier();
            for (int e = lane; e < UNIT * UNIT; e += 32) {
                int m = m0 + u * UNIT + e / UNIT, n = e % UNIT, at = (r0 + u * UNIT + e / UNIT) * PITCH_R;
                float x = uintBitsToFloat(rows[at + n / 4][n % 4]) * uintBitsToFloat(rows[at + PITCH_R - 1].x);
                if (m < SIZE_M && w * UNIT + n < SIZE_N) store(z, m, w * UNIT + n, 0, x);
            }
        }
    }
}
