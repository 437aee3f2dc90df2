// Tiled matrix product on cooperative matrices (GL_KHR_cooperative_matrix): what gemm_tile.glsl computes, with the multiply-adds
// done by the device's matrix units.
//
// A workgroup makes a BM x BN tile of C, each of its subgroups WM x WN of it in units of 16 x 16 x UNIT_K. K goes by in steps of BK,
// kept in shared memory twice. An operand lies there as it lies in memory, so that a chunk of 16 bytes goes through in one
// piece: along K (rows of BK elements) or along its own axis. Sums leave through shared memory, a band of 16 rows of each
// subgroup at a time, to the same store() as in gemm_tile.glsl.
//
// Grid: one dimension (folded past 65535): bands of GROUP_ROWS rows of tiles, within a band columns slowest, then z, split.
// Neighbouring workgroups so share tiles of A and B in the cache.
//
// The includer has included gemm_matrix_variant.glsl and defined: E (the units' element type; T and T4 are E and its vector of
// four while operands are read), UNIT_K, CHUNK (elements in 16 bytes), SUM (the type of sums), SIZE_Z, SIZE_M, SIZE_N, SIZE_K, and
//   void begin(int z), A_ROW, a_row, k_step, a_quad, b_quad       as for gemm_tile.glsl
//   uvec4 A_CHUNK(A_ROW row, int k, int k_end), B_CHUNK(int n, ...)   CHUNK elements along the quads' axis, with bit 2 of the mode;
//                                                                 macros, not defined where an operand has none
//   uvec4 pack_quads(T4[CHUNK / 4])
//   void store(int z, int m, int n, int split, SUM acc)
// Rows and columns past the sizes may hold anything: they are not stored.

const int UNIT = 16;
const int GROUP_ROWS = 8;
const int SUBGROUPS_N = BN / WN;
const int SUBGROUPS_M = BM / WM;
const int THREADS = SUBGROUPS_M * SUBGROUPS_N * SUBGROUP;
const int QUADS = CHUNK / 4;
// Chunks in a row of an operand's tile, and one of padding so that rows start in different banks.
const int ROW_A = (A_ALONG_K ? BK : BM) / CHUNK;
const int ROW_B = (B_ALONG_K ? BK : BN) / CHUNK;
const int PITCH_A = ROW_A + 1;
const int PITCH_B = ROW_B + 1;
const int TILE_A = (A_ALONG_K ? BM : BK) * PITCH_A;
const int TILE_B = (B_ALONG_K ? BN : BK) * PITCH_B;
const int CHUNKS_A = BM * BK / CHUNK / THREADS;
const int CHUNKS_B = BN * BK / CHUNK / THREADS;
const int STEP_SIZE = TILE_A + TILE_B;
const int BAND_PITCH = BN / 4 + 1;
const int BAND = SUBGROUPS_M * UNIT * BAND_PITCH;
const int POOL = 2 * STEP_SIZE > BAND ? 2 * STEP_SIZE : BAND;
const int UNITS_M = WM / UNIT;
const int UNITS_N = WN / UNIT;

shared uvec4 pool[POOL];

int thread;
A_ROW a_rows[CHUNKS_A];
uvec4 a_next[CHUNKS_A];
uvec4 b_next[CHUNKS_B];
coopmat<SUM, gl_ScopeSubgroup, UNIT, UNIT, gl_MatrixUseAccumulator> acc[UNITS_M * UNITS_N];

// Start loading the step at k.
void fetch(int k, int k_end, int n0) {
    k_step(k);
    [[unroll]] for (int i = 0; i < CHUNKS_A; i++) {
        int slot = thread + i * THREADS;
        int at = k + (A_ALONG_K ? slot % ROW_A * CHUNK : slot / ROW_A);
#ifdef A_CHUNK
        if (A_CHUNKS) {
            a_next[i] = A_CHUNK(a_rows[i], at, k_end);
        } else
#endif
        {
            T4 q[QUADS];
            [[unroll]] for (int j = 0; j < QUADS; j++) q[j] = A_ALONG_K ? a_quad(a_rows[i], at + 4 * j, k_end) : a_quad(A_ROW_AT(a_rows[i], 4 * j), at, k_end);
            a_next[i] = pack_quads(q);
        }
    }
    [[unroll]] for (int i = 0; i < CHUNKS_B; i++) {
        int slot = thread + i * THREADS;
        int at = k + (B_ALONG_K ? slot % ROW_B * CHUNK : slot / ROW_B);
        int n = n0 + (B_ALONG_K ? slot / ROW_B : slot % ROW_B * CHUNK);
#ifdef B_CHUNK
        if (B_CHUNKS) {
            b_next[i] = B_CHUNK(n, at, k_end);
        } else
#endif
        {
            T4 q[QUADS];
            [[unroll]] for (int j = 0; j < QUADS; j++) q[j] = B_ALONG_K ? b_quad(n, at + 4 * j, k_end) : b_quad(n + 4 * j, at, k_end);
            b_next[i] = pack_quads(q);
        }
    }
}

// Put what was fetched into half `at` of the pool.
void stash(int at) {
    [[unroll]] for (int i = 0; i < CHUNKS_A; i++) {
        int slot = thread + i * THREADS;
        pool[at + slot / ROW_A * PITCH_A + slot % ROW_A] = a_next[i];
    }
    at += TILE_A;
    [[unroll]] for (int i = 0; i < CHUNKS_B; i++) {
        int slot = thread + i * THREADS;
        pool[at + slot / ROW_B * PITCH_B + slot % ROW_B] = b_next[i];
    }
}

void multiply(int at, int m, int n) {
    const int A_LAYOUT = A_ALONG_K ? gl_CooperativeMatrixLayoutRowMajor : gl_CooperativeMatrixLayoutColumnMajor;
    const int B_LAYOUT = B_ALONG_K ? gl_CooperativeMatrixLayoutColumnMajor : gl_CooperativeMatrixLayoutRowMajor;
    [[unroll]] for (int k = 0; k < BK; k += UNIT_K) {
        coopmat<E, gl_ScopeSubgroup, UNIT, UNIT_K, gl_MatrixUseA> a[UNITS_M];
        [[unroll]] for (int i = 0; i < UNITS_M; i++) {
            int row = m + i * UNIT;
            int from = at + (A_ALONG_K ? row * PITCH_A + k / CHUNK : k * PITCH_A + row / CHUNK);
            coopMatLoad(a[i], pool, from, PITCH_A, A_LAYOUT);
        }
        [[unroll]] for (int j = 0; j < UNITS_N; j++) {
            coopmat<E, gl_ScopeSubgroup, UNIT_K, UNIT, gl_MatrixUseB> b;
            int column = n + j * UNIT;
            int from = at + TILE_A + (B_ALONG_K ? column * PITCH_B + k / CHUNK : k * PITCH_B + column / CHUNK);
            coopMatLoad(b, pool, from, PITCH_B, B_LAYOUT);
            [[unroll]] for (int i = 0; i < UNITS_M; i++) acc[i * UNITS_N + j] = coopMatMulAdd(a[i], b, acc[i * UNITS_N + j]);
        }
    }
}

void main() {
    if (min(min(SIZE_M, SIZE_N), SIZE_Z) <= 0) return;
    thread = int(gl_LocalInvocationID.x);
    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint tiles_m = uint(SIZE_M + BM - 1) / BM, tiles_n = uint(SIZE_N + BN - 1) / BN;
    uint tiles = tiles_m * tiles_n;
    uint tile = group % tiles;
    group /= tiles;
    uint band = tile / (GROUP_ROWS * tiles_n);
    uint rows = min(GROUP_ROWS, tiles_m - band * GROUP_ROWS);
    tile -= band * GROUP_ROWS * tiles_n;
    int m0 = int(band * GROUP_ROWS + tile % rows) * BM, n0 = int(tile / rows) * BN;
    int z = int(group % uint(SIZE_Z));
    int split = int(group / uint(SIZE_Z));
    if (split >= SPLITS) return;

    int share = (((SIZE_K + BK - 1) / BK + SPLITS - 1) / SPLITS) * BK;
    int k_first = split * share, k_end = min(k_first + share, SIZE_K);
    int subgroup = int(gl_SubgroupID);
    int m = subgroup / SUBGROUPS_N * WM, n = subgroup % SUBGROUPS_N * WN;

    begin(z);
    [[unroll]] for (int i = 0; i < CHUNKS_A; i++) {
        int slot = thread + i * THREADS;
        a_rows[i] = a_row(m0 + (A_ALONG_K ? slot / ROW_A : slot % ROW_A * CHUNK));
    }
    [[unroll]] for (int i = 0; i < UNITS_M * UNITS_N; i++) {
        acc[i] = coopmat<SUM, gl_ScopeSubgroup, UNIT, UNIT, gl_MatrixUseAccumulator>(SUM(0));
    }

    if (k_first < k_end) {
        fetch(k_first, k_end, n0);
        stash(0);
    }
    barrier();
    int at = 0;
    for (int k = k_first; k < k_end; k += BK) {
        bool more = k + BK < k_end;  // the same for all threads
        if (more) fetch(k + BK, k_end, n0);
        multiply(at, m, n);
        at = STEP_SIZE - at;
        if (more) stash(at);
        barrier();
    }

    [[unroll]] for (int i = 0; i < UNITS_M; i++) {
        [[unroll]] for (int j = 0; j < UNITS_N; j++) {
            coopMatStore(acc[i * UNITS_N + j], pool, m / WM * UNIT * BAND_PITCH + (n + j * UNIT) / 4, BAND_PITCH, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
        for (int e = thread; e < SUBGROUPS_M * UNIT * BN; e += THREADS) {
            int r = e / BN, c = e % BN;
            int row = m0 + r / UNIT * WM + i * UNIT + r % UNIT;
            if (row < SIZE_M && n0 + c < SIZE_N) store(z, row, n0 + c, split, SUM_OF_BITS(pool[r * BAND_PITCH + c / 4][c % 4]));
        }
        barrier();
    }
}
