// The product of gemm_skinny.glsl for float16 on matrix units (GL_KHR_cooperative_matrix, 16 x 16 x 16 with fp32 sums).
//
// A workgroup makes ROW_TILES x 16 rows times TILES x 16 columns. Its subgroups share out K in steps of DEPTH: each loads its part of both
// operands sixteen bytes at a time, turns them into matrices by way of its own piece of shared memory, and has the next step's
// loads on their way meanwhile. At the end the subgroups' sums are added. With SPLITS > 1 workgroups share out K too.
//
// Grid: as gemm_skinny.glsl. Rows and columns past the sizes may hold anything: they are not stored.
//
// The includer defines SIZE_Z, SIZE_K, SIZE_R, SIZE_W, T (float) and
//   void begin(int z)
//   uvec4 f_bits(int r, int k, int k_end)          8 elements along k, or 8 rows at k; 0 from k_end on
//   uvec4 w_bits(int n, int k, int k_end)          8 elements along k, or 8 columns at k; 0 from k_end on
//   void store(int z, int r, int n, int split, T acc)

const int ROWS = 16 * ROW_TILES;
const int COLUMNS = 16 * TILES;
const int CHUNKS = DEPTH / 8;  // of a row along k
// Rows of shared memory, in chunks of 8 elements; an odd number of them, so that rows next to each other lie in different banks.
const int PITCH_W = (W_ALONG_K ? CHUNKS : 2 * TILES) + 1;
const int PITCH_F = (F_ALONG_K ? CHUNKS : 2 * ROW_TILES) + 1;
const int SIZE_STAGE_W = (W_ALONG_K ? COLUMNS : DEPTH) * PITCH_W;
const int SIZE_STAGE = SIZE_STAGE_W + (F_ALONG_K ? ROWS : DEPTH) * PITCH_F;
const int STRIDE = SUBGROUPS * DEPTH;  // from a step of a subgroup to its next
const int SIZE_SUMS = 4 * COLUMNS;  // of one row of tiles
const int LOADS_W = COLUMNS * CHUNKS / SUBGROUP;
const int LOADS_F = ROWS * CHUNKS / SUBGROUP;

shared uvec4 pool[SUBGROUPS * (SIZE_STAGE > SIZE_SUMS ? SIZE_STAGE : SIZE_SUMS)];

int lane;
uvec4 w_next[AHEAD * LOADS_W];
uvec4 f_next[AHEAD * LOADS_F];

// Start loading the step at k0 as number p of those on their way. Behind a branch a compiler waits for what is on its way, so the
// last steps are loaded too when nothing is left to load; where the readers do not check K, the last one again.
void fetch(int p, int n0, int k0, int k_end) {
    if (K_WHOLE) k0 = min(k0, k_end - DEPTH);
    [[unroll]] for (int j = 0; j < LOADS_W; j++) {
        int i = lane + j * SUBGROUP;
        if (W_ALONG_K) w_next[p * LOADS_W + j] = w_bits(n0 + i / CHUNKS, k0 + i % CHUNKS * 8, k_end);
        else w_next[p * LOADS_W + j] = w_bits(n0 + i % (2 * TILES) * 8, k0 + i / (2 * TILES), k_end);
    }
    [[unroll]] for (int j = 0; j < LOADS_F; j++) {
        int i = lane + j * SUBGROUP;
        if (F_ALONG_K) f_next[p * LOADS_F + j] = f_bits(i / CHUNKS, k0 + i % CHUNKS * 8, k_end);
        else f_next[p * LOADS_F + j] = f_bits(i % (2 * ROW_TILES) * 8, k0 + i / (2 * ROW_TILES), k_end);
    }
}

void stash(int p, int at) {
    [[unroll]] for (int j = 0; j < LOADS_W; j++) {
        int i = lane + j * SUBGROUP, row = W_ALONG_K ? CHUNKS : 2 * TILES;
        pool[at + i / row * PITCH_W + i % row] = w_next[p * LOADS_W + j];
    }
    [[unroll]] for (int j = 0; j < LOADS_F; j++) {
        int i = lane + j * SUBGROUP, row = F_ALONG_K ? CHUNKS : 2 * ROW_TILES;
        pool[at + SIZE_STAGE_W + i / row * PITCH_F + i % row] = f_next[p * LOADS_F + j];
    }
}

void main() {
    if (min(min(SIZE_R, SIZE_W), SIZE_Z) <= 0) return;
    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint tiles = uint(SIZE_W + COLUMNS - 1) / COLUMNS;
    int n0 = int(group % tiles) * COLUMNS;
    group /= tiles;
    int z = int(group % uint(SIZE_Z));
    int split = int(group / uint(SIZE_Z));
    if (split >= SPLITS) return;

    int share = ((SIZE_K + SPLITS - 1) / SPLITS + DEPTH - 1) / DEPTH * DEPTH;
    int k_first = split * share, k_end = min(k_first + share, SIZE_K);
    int subgroup = int(gl_SubgroupID);
    lane = int(gl_SubgroupInvocationID);
    int at = subgroup * SIZE_STAGE;

    begin(z);
    coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> acc[ROW_TILES * TILES];
    [[unroll]] for (int t = 0; t < ROW_TILES * TILES; t++) acc[t] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0);
    int k0 = k_first + subgroup * DEPTH;
    if (k0 < k_end) {
        [[unroll]] for (int p = 0; p < AHEAD; p++) fetch(p, n0, k0 + p * STRIDE, k_end);
    }
    for (; k0 < k_end; k0 += AHEAD * STRIDE) {
        [[unroll]] for (int p = 0; p < AHEAD; p++) {
            stash(p, at);
            subgroupMemoryBarrierShared();
            subgroupBarrier();
            fetch(p, n0, k0 + (p + AHEAD) * STRIDE, k_end);
            if (p > 0 && k0 + p * STRIDE >= k_end) break;
            [[unroll]] for (int k = 0; k < DEPTH; k += 16) {
                coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> f[ROW_TILES];
                [[unroll]] for (int r = 0; r < ROW_TILES; r++) {
                    int from = at + SIZE_STAGE_W;
                    if (F_ALONG_K) coopMatLoad(f[r], pool, from + r * 16 * PITCH_F + k / 8, PITCH_F, gl_CooperativeMatrixLayoutRowMajor);
                    else coopMatLoad(f[r], pool, from + k * PITCH_F + r * 2, PITCH_F, gl_CooperativeMatrixLayoutColumnMajor);
                }
                [[unroll]] for (int t = 0; t < TILES; t++) {
                    coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> w;
                    if (W_ALONG_K) coopMatLoad(w, pool, at + t * 16 * PITCH_W + k / 8, PITCH_W, gl_CooperativeMatrixLayoutColumnMajor);
                    else coopMatLoad(w, pool, at + k * PITCH_W + t * 2, PITCH_W, gl_CooperativeMatrixLayoutRowMajor);
                    [[unroll]] for (int r = 0; r < ROW_TILES; r++) acc[r * TILES + t] = coopMatMulAdd(f[r], w, acc[r * TILES + t]);
                }
            }
            subgroupMemoryBarrierShared();
            subgroupBarrier();
        }
    }

    [[unroll]] for (int r0 = 0; r0 < ROW_TILES; r0++) {
        barrier();
        [[unroll]] for (int t = 0; t < TILES; t++) {
            int to = subgroup * SIZE_SUMS + t * 4;
            coopMatStore(acc[r0 * TILES + t], pool, to, 4 * TILES, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
        for (int e = int(gl_LocalInvocationID.x); e < 16 * COLUMNS; e += SUBGROUP * SUBGROUPS) {
            int r = r0 * 16 + e / COLUMNS, n = n0 + e % COLUMNS;
            T total = T(0);
            [[unroll]] for (int s = 0; s < SUBGROUPS; s++) total += uintBitsToFloat(pool[s * SIZE_SUMS + e / 4][e % 4]);
            if (r < SIZE_R && n < SIZE_W) store(z, r, n, split, total);
        }
    }
}
