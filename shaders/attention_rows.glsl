// attention_units.glsl for devices that hold matrices as the feature coop_rows says: scores stay in registers, too.
//
// The four invocations of an aligned group share two rows of each 16 x 16 matrix: component e of invocation l is in row
// l / 4 + (e & 4) * 2 and column l % 4 * 2 + (e & 1) + (e & 2) * 4, of sums and of left operands alike. So scores become weights
// where they are, and a row's highest score and sum take two shuffles.
//
// A subgroup of 32 has ROW_UNITS * 16 rows: their queries, scores and sums stay in its registers. Keys and values pass through shared
// memory, BN at a time. The next keys are on their way while scores are made, the next values while weights are.
//
// Grid: one dimension (folded past 65535), rows fastest, then batch. A grid too large is harmless.
//
// The includer has included attention_units_variant.glsl and attention_weight.glsl and defined what attention_units.glsl wants.

const int UNIT = 16;
const int PARTS = 8;  // components of a matrix
const int SUBGROUPS = THREADS / 32;
const int BM = SUBGROUPS * ROW_UNITS * UNIT;
const int UNITS_D = DEPTH / UNIT, UNITS_E = WIDTH / UNIT, UNITS_N = BN / UNIT;
const int CHUNKS_K = DEPTH / 8, CHUNKS_V = WIDTH / 8;  // chunks of 8 elements, 16 bytes, of a row
// A chunk of padding keeps rows in different banks.
const int PITCH_K = CHUNKS_K + 1, PITCH_V = CHUNKS_V + 1;
const int ALL_K = BN * CHUNKS_K, ALL_V = BN * CHUNKS_V;
const int LOADS_K = (ALL_K + THREADS - 1) / THREADS, LOADS_V = (ALL_V + THREADS - 1) / THREADS;
const int VALUES = BN * PITCH_K;  // where they lie

#define LEFT coopmat<float16_t, gl_ScopeSubgroup, UNIT, UNIT, gl_MatrixUseA>
#define RIGHT coopmat<float16_t, gl_ScopeSubgroup, UNIT, UNIT, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, UNIT, UNIT, gl_MatrixUseAccumulator>
const int TILES = VALUES + BN * PITCH_V, QUERIES = SUBGROUPS * UNIT * PITCH_K;

shared uvec4 tiles[TILES > QUERIES ? TILES : QUERIES];  // keys and values; queries before

int thread;
uvec4 k_next[LOADS_K];
uvec4 v_next[LOADS_V];

uvec4 chunk(f16vec4 a, f16vec4 b) {
    return uvec4(packFloat2x16(a.xy), packFloat2x16(a.zw), packFloat2x16(b.xy), packFloat2x16(b.zw));
}

uvec4 q_chunk(int m, int d) {
    return Q_OCTET ? q_octet_bits(m, d, SIZE_D) : chunk(q_quad(m, d, SIZE_D), q_quad(m, d + 4, SIZE_D));
}

// Loads stand under no condition: past the last key they give 0, or a key whose score is not looked at.
void fetch_k(int n0) {
    [[unroll]] for (int i = 0; i < LOADS_K; i++) {
        int slot = thread + i * THREADS, n = n0 + slot / CHUNKS_K, d = slot % CHUNKS_K * 8;
        k_next[i] = K_OCTET ? k_octet_bits(n, d, SIZE_D) : chunk(k_quad(n, d, SIZE_D), k_quad(n, d + 4, SIZE_D));
    }
}

void fetch_v(int n0) {
    [[unroll]] for (int i = 0; i < LOADS_V; i++) {
        int slot = thread + i * THREADS, k = n0 + slot / CHUNKS_V, n = slot % CHUNKS_V * 8;
        v_next[i] = V_OCTET ? v_octet_bits(n, k, SIZE_T) : chunk(v_quad(n, k, SIZE_T), v_quad(n + 4, k, SIZE_T));
    }
}

void stash_k() {
    [[unroll]] for (int i = 0; i < LOADS_K; i++) {
        int slot = thread + i * THREADS;
        if (ALL_K % THREADS == 0 || slot < ALL_K) tiles[slot / CHUNKS_K * PITCH_K + slot % CHUNKS_K] = k_next[i];
    }
}

void stash_v() {
    [[unroll]] for (int i = 0; i < LOADS_V; i++) {
        int slot = thread + i * THREADS;
        if (ALL_V % THREADS == 0 || slot < ALL_V) tiles[VALUES + slot / CHUNKS_V * PITCH_V + slot % CHUNKS_V] = v_next[i];
    }
}

void main() {
    if (min(min(SIZE_M, SIZE_N), SIZE_Z) <= 0) return;
    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint groups = uint(SIZE_M + BM - 1) / BM;
    int z = int(group / groups);
    if (z >= SIZE_Z) return;
    thread = int(gl_LocalInvocationID.x);
    int lane = int(gl_SubgroupInvocationID), r0 = int(gl_SubgroupID) * UNIT;
    int m0 = int(group % groups) * BM + r0 * ROW_UNITS;
    int first_row = m0 + lane / 4, first_column = lane % 4 * 2;  // of component 0 of a matrix at m0

    begin(z);
    if (SIZE_T > 0) {
        fetch_k(0);
        fetch_v(0);
    }
    LEFT q[ROW_UNITS * UNITS_D];
    SUMS o[ROW_UNITS * UNITS_E];
    float highest[ROW_UNITS * 2];
    float total[ROW_UNITS * 2];  // of the weights that this invocation has made
    [[unroll]] for (int u = 0; u < ROW_UNITS; u++) {
        for (int i = lane; i < UNIT * CHUNKS_K; i += 32) {
            tiles[(r0 + i / CHUNKS_K) * PITCH_K + i % CHUNKS_K] = q_chunk(m0 + u * UNIT + i / CHUNKS_K, i % CHUNKS_K * 8);
        }
        subgroupBarrier();
        [[unroll]] for (int d = 0; d < UNITS_D; d++) {
            coopMatLoad(q[u * UNITS_D + d], tiles, r0 * PITCH_K + d * 2, PITCH_K, gl_CooperativeMatrixLayoutRowMajor);
        }
        subgroupBarrier();
        [[unroll]] for (int c = 0; c < UNITS_E; c++) o[u * UNITS_E + c] = SUMS(0);
        [[unroll]] for (int r = 0; r < 2; r++) {
            highest[u * 2 + r] = -INFINITE;
            total[u * 2 + r] = 0.0;
        }
    }
    barrier();
    if (SIZE_T > 0) {
        stash_k();
        stash_v();
    }
    barrier();

    for (int n0 = 0; n0 < SIZE_T; n0 += BN) {
        fetch_k(n0 + BN);
        SUMS s[ROW_UNITS * UNITS_N];
        [[unroll]] for (int j = 0; j < UNITS_N; j++) {
            [[unroll]] for (int u = 0; u < ROW_UNITS; u++) s[u * UNITS_N + j] = SUMS(0);
            [[unroll]] for (int d = 0; d < UNITS_D; d++) {
                RIGHT k;
                coopMatLoad(k, tiles, j * UNIT * PITCH_K + d * 2, PITCH_K, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (int u = 0; u < ROW_UNITS; u++) {
                    s[u * UNITS_N + j] = coopMatMulAdd(q[u * UNITS_D + d], k, s[u * UNITS_N + j]);
                }
            }
        }
        barrier();
        stash_k();
        fetch_v(n0 + BN);

        LEFT w[ROW_UNITS * UNITS_N];
        [[unroll]] for (int u = 0; u < ROW_UNITS; u++) {
            float x[UNITS_N * PARTS];
            float most[2];
            [[unroll]] for (int r = 0; r < 2; r++) most[r] = highest[u * 2 + r];
            [[unroll]] for (int j = 0; j < UNITS_N; j++) {
                [[unroll]] for (int e = 0; e < PARTS; e++) {
                    int m = first_row + u * UNIT + (e & 4) * 2, n = n0 + j * UNIT + first_column + (e & 1) + (e & 2) * 4;
                    x[j * PARTS + e] = score(z, min(m, SIZE_M - 1), min(n, SIZE_T - 1), s[u * UNITS_N + j][e]);
                }
            }
            if (n0 + BN > SIZE_T) {
                [[unroll]] for (int i = 0; i < UNITS_N * PARTS; i++) {
                    int n = n0 + i / PARTS * UNIT + first_column + (i & 1) + (i & 2) * 4;
                    x[i] = n < SIZE_T ? x[i] : -INFINITE;
                }
            }
            [[unroll]] for (int i = 0; i < UNITS_N * PARTS; i++) most[i >> 2 & 1] = greater(most[i >> 2 & 1], x[i]);
            float from[2], scale[2];
            [[unroll]] for (int r = 0; r < 2; r++) {
                most[r] = greater(most[r], subgroupShuffleXor(most[r], 1u));
                most[r] = greater(most[r], subgroupShuffleXor(most[r], 2u));
                from[r] = base_of(most[r]);
                scale[r] = weight(highest[u * 2 + r] - from[r]);
                highest[u * 2 + r] = most[r];
                total[u * 2 + r] *= scale[r];
            }
            [[unroll]] for (int j = 0; j < UNITS_N; j++) {
                [[unroll]] for (int e = 0; e < PARTS; e++) {
                    float p = weight(x[j * PARTS + e] - from[e >> 2 & 1]);
                    total[u * 2 + (e >> 2 & 1)] += p;
                    w[u * UNITS_N + j][e] = float16_t(p);
                }
            }
            if (subgroupAny(scale[0] != 1.0 || scale[1] != 1.0)) {
                [[unroll]] for (int c = 0; c < UNITS_E; c++) {
                    [[unroll]] for (int e = 0; e < PARTS; e++) o[u * UNITS_E + c][e] *= scale[e >> 2 & 1];
                }
            }
        }

        [[unroll]] for (int c = 0; c < UNITS_E; c++) {
            [[unroll]] for (int j = 0; j < UNITS_N; j++) {
                RIGHT v;
                coopMatLoad(v, tiles, VALUES + j * UNIT * PITCH_V + c * 2, PITCH_V, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (int u = 0; u < ROW_UNITS; u++) {
                    o[u * UNITS_E + c] = coopMatMulAdd(w[u * UNITS_N + j], v, o[u * UNITS_E + c]);
                }
            }
        }
        barrier();
        stash_v();
    }

    [[unroll]] for (int u = 0; u < ROW_UNITS; u++) {
        float factor[2];
        [[unroll]] for (int r = 0; r < 2; r++) {
            float all = total[u * 2 + r];
            all += subgroupShuffleXor(all, 1u);
            all += subgroupShuffleXor(all, 2u);
            factor[r] = inverse(all);
        }
        [[unroll]] for (int c = 0; c < UNITS_E; c++) {
            [[unroll]] for (int e = 0; e < PARTS; e++) {
                int m = first_row + u * UNIT + (e & 4) * 2, n = c * UNIT + first_column + (e & 1) + (e & 2) * 4;
                float x = o[u * UNITS_E + c][e] * factor[e >> 2 & 1];
                if (m < SIZE_M && n < SIZE_N) store(z, m, n, 0, x);
            }
        }
    }
}
