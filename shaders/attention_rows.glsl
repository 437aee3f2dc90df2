// attention_units.glsl for devices that hold matrices as the feature coop_rows says: scores stay in registers, too.
//
// The four invocations of an aligned group share two rows of each 16 x 16 matrix: component e of invocation l is in row
// l / 4 + (e & 4) * 2 and column l % 4 * 2 + (e & 1) + (e & 2) * 4, of sums and of left operands alike. So scores become weights
// where they are, and a row's highest score and sum take two shuffles. In the order of the columns that an invocation holds stand keys
// that follow each other, BN / 4 for each of the four, so that their masks are vectors.
//
// Sums are only scaled when a row's highest score rises by more than HEADROOM above the one that its weights are counted from.
//
// A subgroup of 32 has ROW_UNITS * 16 rows: their queries, scores and sums stay in its registers. Keys and values pass through shared
// memory, BN at a time. The next keys are on their way while scores are made, the next values while weights are.
//
// Grid: one dimension (folded past 65535), rows fastest, then batch. A grid too large is harmless.
//
// The includer has included attention_units_variant.glsl and attention_weight.glsl and defined what attention_units.glsl wants, and
//   vec4 scores(int z, int m, int n, vec4 s)      what becomes of the scores of keys n to n + 3, n a multiple of 4
//   int keys_of(int m)      how many keys may have weight for queries up to m

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

const float HEADROOM = 5.0;      // weights are at most e^5, which half floats hold as well as 1
const int RUN = BN / 4;          // keys of a step that an invocation has the scores of

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

// The row of a step's key in shared memory.
int place(int key) {
    int part = key / RUN, unit = key % RUN / 4, i = key % 4;
    return unit * UNIT + part * 2 + (i & 1) + (i & 2) * 4;
}

uvec4 q_chunk(int m, int d) {
    return Q_OCTET ? q_chunk(m, d, SIZE_D) : chunk(q_quad(m, d, SIZE_D), q_quad(m, d + 4, SIZE_D));
}

// Loads stand under no condition: past the last key they give 0, or a key whose score is not looked at.
void fetch_k(int n0) {
    [[unroll]] for (int i = 0; i < LOADS_K; i++) {
        int slot = thread + i * THREADS, n = n0 + slot / CHUNKS_K, d = slot % CHUNKS_K * 8;
        k_next[i] = K_OCTET ? k_chunk(n, d, SIZE_D) : chunk(k_quad(n, d, SIZE_D), k_quad(n, d + 4, SIZE_D));
    }
}

void fetch_v(int n0) {
    [[unroll]] for (int i = 0; i < LOADS_V; i++) {
        int slot = thread + i * THREADS, k = n0 + slot / CHUNKS_V, n = slot % CHUNKS_V * 8;
        v_next[i] = V_OCTET ? v_chunk(n, k, SIZE_T) : chunk(v_quad(n, k, SIZE_T), v_quad(n + 4, k, SIZE_T));
    }
}

void stash_k() {
    [[unroll]] for (int i = 0; i < LOADS_K; i++) {
        int slot = thread + i * THREADS;
        if (ALL_K % THREADS == 0 || slot < ALL_K) tiles[place(slot / CHUNKS_K) * PITCH_K + slot % CHUNKS_K] = k_next[i];
    }
}

void stash_v() {
    [[unroll]] for (int i = 0; i < LOADS_V; i++) {
        int slot = thread + i * THREADS;
        if (ALL_V % THREADS == 0 || slot < ALL_V) tiles[VALUES + place(slot / CHUNKS_V) * PITCH_V + slot % CHUNKS_V] = v_next[i];
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
    int tile = int(groups - 1 - group % groups) * BM;  // last rows first: they may have the most keys
    int m0 = tile + r0 * ROW_UNITS, keys = keys_of(min(tile + BM, SIZE_M) - 1);
    int first_row = m0 + lane / 4, first_key = lane % 4 * RUN;

    begin(z);
    if (keys > 0) {
        fetch_k(0);
        fetch_v(0);
    }
    LEFT q[ROW_UNITS * UNITS_D];
    SUMS o[ROW_UNITS * UNITS_E];
    float highest[ROW_UNITS * 2];  // what weights are counted from
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
    if (keys > 0) {
        stash_k();
        stash_v();
    }
    barrier();

    for (int n0 = 0; n0 < keys; n0 += BN) {
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
            [[unroll]] for (int i = 0; i < UNITS_N * 2; i++) {
                int m = first_row + u * UNIT + i % 2 * 8;
                vec4 given;
                [[unroll]] for (int k = 0; k < 4; k++) given[k] = s[u * UNITS_N + i / 2][i % 2 * 4 + k];
                vec4 got = scores(z, min(m, SIZE_M - 1), n0 + first_key + i / 2 * 4, given);
                [[unroll]] for (int k = 0; k < 4; k++) x[i * 4 + k] = got[k];
            }
            if (n0 + BN > SIZE_T) {
                [[unroll]] for (int i = 0; i < UNITS_N * PARTS; i++) {
                    x[i] = n0 + first_key + i / PARTS * 4 + i % 4 < SIZE_T ? x[i] : -INFINITE;
                }
            }
            float from[2], scale[2];
            bool rises = false;
            [[unroll]] for (int r = 0; r < 2; r++) {
                float base = highest[u * 2 + r], most = base;
                [[unroll]] for (int i = 0; i < UNITS_N * 4; i++) most = greater(most, x[i / 4 * PARTS + r * 4 + i % 4]);
                most = greater(most, subgroupShuffleXor(most, 1u));
                most = greater(most, subgroupShuffleXor(most, 2u));
                bool higher = !(most <= base + HEADROOM);  // also where it is NaN
                rises = rises || higher;
                highest[u * 2 + r] = higher ? most : base;
                from[r] = base_of(highest[u * 2 + r]);
                scale[r] = higher ? weight(base - from[r]) : 1.0;
            }
            if (subgroupAny(rises)) {
                [[unroll]] for (int r = 0; r < 2; r++) total[u * 2 + r] *= scale[r];
                [[unroll]] for (int c = 0; c < UNITS_E; c++) {
                    [[unroll]] for (int e = 0; e < PARTS; e++) o[u * UNITS_E + c][e] *= scale[e / 4];
                }
            }
            [[unroll]] for (int j = 0; j < UNITS_N; j++) {
                [[unroll]] for (int e = 0; e < PARTS; e++) {
                    float p = weight(x[j * PARTS + e] - from[e / 4]);
                    total[u * 2 + e / 4] += p;
                    w[u * UNITS_N + j][e] = float16_t(p);
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
                int m = first_row + u * UNIT + (e & 4) * 2, n = c * UNIT + lane % 4 * 2 + (e & 1) + (e & 2) * 4;
                float x = o[u * UNITS_E + c][e] * factor[e / 4];
                if (m < SIZE_M && n < SIZE_N) store(z, m, n, 0, x);
            }
        }
    }
}
