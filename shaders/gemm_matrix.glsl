// Tiled matrix product on cooperative matrices (GL_KHR_cooperative_matrix): what gemm_tile.glsl computes, with the multiply-adds
// done by the device's matrix units.
//
// A workgroup makes a BM x BN tile of C, each of its subgroups WM x WN of it in units of 16 x 16 x UNIT_K. K goes by in steps of BK,
// kept in shared memory twice, with PREFETCH more on their way in registers. An operand lies there as it lies in memory, so
// that a chunk of 16 bytes goes through in one piece: along K (rows of BK elements) or along its own axis. Sums leave through
// shared memory, where each subgroup has room for a band of 16 of its rows, to the same store() as in gemm_tile.glsl, or many
// at once to store_vector().
//
// With PARTS 2 fp32 operands are taken apart: each row of A and column of B is scaled by a power of two, x becomes
// hi + lo in E, and the products hi hi, hi lo and lo hi are added (lo lo is below fp32's last place). The units cut their
// sums off instead of rounding them, so partial sums move to registers of their own every PREFETCH steps.
//
// Grid: one dimension (folded past 65535): bands of GROUP_ROWS rows of tiles, within a band columns slowest, then z, split.
// Neighbouring workgroups so share tiles of A and B in the cache.
//
// The includer has included gemm_matrix_variant.glsl and defined: E (the units' element type), T and T4 (what operands are read as,
// and its vector of four), UNIT_K, CHUNK (elements in 16 bytes of E), SUM (the type of sums), PARTS, SIZE_Z, SIZE_M, SIZE_N,
// SIZE_K, and
//   void begin(int z), A_ROW, a_row, k_step, a_quad, b_quad       as for gemm_tile.glsl
//   A_ROW A_ROW_AT(row, d)                                        what is known of the row d after it (with A_ALONG_K false)
//   uvec4 A_CHUNK(A_ROW row, int k, int k_end), B_CHUNK(int n, ...)   CHUNK elements along the quads' axis, with bit 2 of the mode;
//                                                                 macros, not defined where an operand has none
//   uvec4 pack_quads(T4[CHUNK / 4])
//   float a_scale(int z, int m), b_scale(int z, int n)            with PARTS 2
//   void store(int z, int m, int n, int split, T acc), and with STORE_WIDTH (a multiple of 4) defined store_vector(z, m, n, split,
//   T acc[STORE_WIDTH]), T being STORED_TYPE
// Rows and columns past the sizes may hold anything: they are not stored.

const int UNIT = 16;
const int PREFETCH = 2;  // as many as halves of the pool
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
const int STEP_SIZE = PARTS * (TILE_A + TILE_B);
const int BAND_PITCH = WN / 4 + 2;
const int BANDS = SUBGROUPS_M * SUBGROUPS_N * UNIT * BAND_PITCH;
const int POOL = 2 * STEP_SIZE > BANDS ? 2 * STEP_SIZE : BANDS;
const int UNITS_M = WM / UNIT;
const int UNITS_N = WN / UNIT;

shared uvec4 pool[POOL];

int thread;
A_ROW a_rows[CHUNKS_A];
T4 a_quads[PREFETCH * CHUNKS_A * QUADS];
T4 b_quads[PREFETCH * CHUNKS_B * QUADS];
#ifdef A_CHUNK
uvec4 a_chunks[PREFETCH * CHUNKS_A];
#endif
#ifdef B_CHUNK
uvec4 b_chunks[PREFETCH * CHUNKS_B];
#endif
#if PARTS == 2
const int SCALES_A = A_ALONG_K ? 1 : CHUNK;
const int SCALES_B = B_ALONG_K ? 1 : CHUNK;
float a_scales[CHUNKS_A * SCALES_A];
float b_scales[CHUNKS_B * SCALES_B];
coopmat<SUM, gl_ScopeSubgroup, UNIT, UNIT, gl_MatrixUseAccumulator> whole[UNITS_M * UNITS_N];
#endif
coopmat<SUM, gl_ScopeSubgroup, UNIT, UNIT, gl_MatrixUseAccumulator> acc[UNITS_M * UNITS_N];

int chunk_k_a(int slot) { return A_ALONG_K ? slot % ROW_A * CHUNK : slot / ROW_A; }
int chunk_k_b(int slot) { return B_ALONG_K ? slot % ROW_B * CHUNK : slot / ROW_B; }
int chunk_row_a(int slot) { return A_ALONG_K ? slot / ROW_A : slot % ROW_A * CHUNK; }
int chunk_row_b(int slot) { return B_ALONG_K ? slot / ROW_B : slot % ROW_B * CHUNK; }

// Start loading the step at k as number p of those on their way. Past k_end it is zeros, or where K is whole the last step, which
// is not multiplied again.
void fetch(int p, int k, int k_end, int n0) {
    if (K_WHOLE) k = min(k, k_end - BK);
    k_step(k);
    [[unroll]] for (int i = 0; i < CHUNKS_A; i++) {
        int at = k + chunk_k_a(thread + i * THREADS);
#ifdef A_CHUNK
        if (A_CHUNKS) {
            a_chunks[p * CHUNKS_A + i] = A_CHUNK(a_rows[i], at, k_end);
        } else
#endif
        {
            [[unroll]] for (int j = 0; j < QUADS; j++) {
                a_quads[(p * CHUNKS_A + i) * QUADS + j] = A_ALONG_K ? a_quad(a_rows[i], at + 4 * j, k_end) : a_quad(A_ROW_AT(a_rows[i], 4 * j), at, k_end);
            }
        }
    }
    [[unroll]] for (int i = 0; i < CHUNKS_B; i++) {
        int slot = thread + i * THREADS;
        int at = k + chunk_k_b(slot), n = n0 + chunk_row_b(slot);
#ifdef B_CHUNK
        if (B_CHUNKS) {
            b_chunks[p * CHUNKS_B + i] = B_CHUNK(n, at, k_end);
        } else
#endif
        {
            [[unroll]] for (int j = 0; j < QUADS; j++) {
                b_quads[(p * CHUNKS_B + i) * QUADS + j] = B_ALONG_K ? b_quad(n, at + 4 * j, k_end) : b_quad(n + 4 * j, at, k_end);
            }
        }
    }
}

#if PARTS == 2
// A chunk in two parts, the low one `tile` chunks after the high one. An infinity or NaN has no low part. The high part is
// rounded on the bits: a compiler may take a conversion to E and back for nothing.
void put_parts(int to, int tile, T4 q[QUADS], float scales[CHUNK]) {
    E hi[CHUNK], lo[CHUNK];
    [[unroll]] for (int c = 0; c < CHUNK; c++) {
        float x = q[c / 4][c % 4] * scales[c];
        bool finite = abs(x) < 65504.0;
        float high = uintBitsToFloat((floatBitsToUint(x) + 0x1000u) & 0xFFFFE000u);
        hi[c] = E(finite ? high : x);
        lo[c] = E(finite ? x - high : 0.0);
    }
    [[unroll]] for (int w = 0; w < 4; w++) {
        pool[to][w] = packFloat2x16(f16vec2(hi[2 * w], hi[2 * w + 1]));
        pool[to + tile][w] = packFloat2x16(f16vec2(lo[2 * w], lo[2 * w + 1]));
    }
}

// A sum with the scales of its row and column taken off: half of both at a time, since after one of them alone it may be beyond
// fp32's range.
float unscaled(float sum, float a, float b) {
    int exponent = 254 - int(floatBitsToUint(a) >> 23) - int(floatBitsToUint(b) >> 23);
    precise float x = sum * uintBitsToFloat(uint(127 + exponent / 2) << 23);
    precise float y = x * uintBitsToFloat(uint(127 + exponent - exponent / 2) << 23);
    return y;
}
#endif

// Put number p of those on their way into the half of the pool at `at`.
void stash(int p, int at) {
    [[unroll]] for (int i = 0; i < CHUNKS_A; i++) {
        int slot = thread + i * THREADS;
        int to = at + slot / ROW_A * PITCH_A + slot % ROW_A;
#ifdef A_CHUNK
        if (A_CHUNKS) {
            pool[to] = a_chunks[p * CHUNKS_A + i];
            continue;
        }
#endif
        T4 q[QUADS];
        [[unroll]] for (int j = 0; j < QUADS; j++) q[j] = a_quads[(p * CHUNKS_A + i) * QUADS + j];
#if PARTS == 2
        float scales[CHUNK];
        [[unroll]] for (int c = 0; c < CHUNK; c++) scales[c] = a_scales[i * SCALES_A + (A_ALONG_K ? 0 : c)];
        put_parts(to, TILE_A, q, scales);
#else
        pool[to] = pack_quads(q);
#endif
    }
    at += PARTS * TILE_A;
    [[unroll]] for (int i = 0; i < CHUNKS_B; i++) {
        int slot = thread + i * THREADS;
        int to = at + slot / ROW_B * PITCH_B + slot % ROW_B;
#ifdef B_CHUNK
        if (B_CHUNKS) {
            pool[to] = b_chunks[p * CHUNKS_B + i];
            continue;
        }
#endif
        T4 q[QUADS];
        [[unroll]] for (int j = 0; j < QUADS; j++) q[j] = b_quads[(p * CHUNKS_B + i) * QUADS + j];
#if PARTS == 2
        float scales[CHUNK];
        [[unroll]] for (int c = 0; c < CHUNK; c++) scales[c] = b_scales[i * SCALES_B + (B_ALONG_K ? 0 : c)];
        put_parts(to, TILE_B, q, scales);
#else
        pool[to] = pack_quads(q);
#endif
    }
}

const int A_LAYOUT = A_ALONG_K ? gl_CooperativeMatrixLayoutRowMajor : gl_CooperativeMatrixLayoutColumnMajor;
const int B_LAYOUT = B_ALONG_K ? gl_CooperativeMatrixLayoutColumnMajor : gl_CooperativeMatrixLayoutRowMajor;

void multiply(int at, int m, int n) {
    [[unroll]] for (int k = 0; k < BK; k += UNIT_K) {
        coopmat<E, gl_ScopeSubgroup, UNIT, UNIT_K, gl_MatrixUseA> a[PARTS * UNITS_M];
        [[unroll]] for (int part = 0; part < PARTS; part++) {
            [[unroll]] for (int i = 0; i < UNITS_M; i++) {
                int row = m + i * UNIT;
                int from = at + part * TILE_A + (A_ALONG_K ? row * PITCH_A + k / CHUNK : k * PITCH_A + row / CHUNK);
                coopMatLoad(a[part * UNITS_M + i], pool, from, PITCH_A, A_LAYOUT);
            }
        }
        [[unroll]] for (int j = 0; j < UNITS_N; j++) {
            int column = n + j * UNIT;
            int from = at + PARTS * TILE_A + (B_ALONG_K ? column * PITCH_B + k / CHUNK : k * PITCH_B + column / CHUNK);
            coopmat<E, gl_ScopeSubgroup, UNIT_K, UNIT, gl_MatrixUseB> b;
            coopMatLoad(b, pool, from, PITCH_B, B_LAYOUT);
#if PARTS == 2
            coopmat<E, gl_ScopeSubgroup, UNIT_K, UNIT, gl_MatrixUseB> b_low;
            coopMatLoad(b_low, pool, from + TILE_B, PITCH_B, B_LAYOUT);
            [[unroll]] for (int i = 0; i < UNITS_M; i++) {
                acc[i * UNITS_N + j] = coopMatMulAdd(a[UNITS_M + i], b, acc[i * UNITS_N + j]);
                acc[i * UNITS_N + j] = coopMatMulAdd(a[i], b_low, acc[i * UNITS_N + j]);
            }
#endif
            [[unroll]] for (int i = 0; i < UNITS_M; i++) acc[i * UNITS_N + j] = coopMatMulAdd(a[i], b, acc[i * UNITS_N + j]);
        }
    }
}

// Where a step is one unit deep, the next step's units are loaded from shared memory before one step's are multiplied.
const bool AHEAD = PARTS == 1 && BK == UNIT_K;
const int SETS = AHEAD ? 2 : 1;
coopmat<E, gl_ScopeSubgroup, UNIT, UNIT_K, gl_MatrixUseA> a_ahead[SETS * UNITS_M];
coopmat<E, gl_ScopeSubgroup, UNIT_K, UNIT, gl_MatrixUseB> b_ahead[SETS * UNITS_N];

// Load the units of the step at `at` into a set.
void load_ahead(int to, int at, int m, int n) {
    [[unroll]] for (int i = 0; i < UNITS_M; i++) {
        int row = m + i * UNIT;
        int from = at + (A_ALONG_K ? row * PITCH_A : row / CHUNK);
        coopMatLoad(a_ahead[to * UNITS_M + i], pool, from, PITCH_A, A_LAYOUT);
    }
    [[unroll]] for (int j = 0; j < UNITS_N; j++) {
        int column = n + j * UNIT;
        int from = at + TILE_A + (B_ALONG_K ? column * PITCH_B : column / CHUNK);
        coopMatLoad(b_ahead[to * UNITS_N + j], pool, from, PITCH_B, B_LAYOUT);
    }
}

// The sums of a range of K, a step at a time. Before step t is multiplied, t + 1 is loaded, t + 2 is put into the half of the pool
// that t was loaded from, and t + 2 + PREFETCH is sent for.
void add_ahead(int k_first, int k_end, int m, int n, int n0) {
    [[unroll]] for (int t = 0; t < 2; t++) {
        fetch(0, k_first + t * BK, k_end, n0);
        stash(0, t * STEP_SIZE);
    }
    [[unroll]] for (int p = 0; p < PREFETCH; p++) fetch(p, k_first + (2 + p) * BK, k_end, n0);
    barrier();
    load_ahead(0, 0, m, n);
    barrier();
    for (int k = k_first; k < k_end; k += PREFETCH * BK) {
        [[unroll]] for (int p = 0; p < PREFETCH; p++) {
            stash(p, p * STEP_SIZE);
            fetch(p, k + (2 + PREFETCH + p) * BK, k_end, n0);
            load_ahead(1 - p, (1 - p) * STEP_SIZE, m, n);
            [[unroll]] for (int j = 0; j < UNITS_N; j++) {
                [[unroll]] for (int i = 0; i < UNITS_M; i++) {
                    acc[i * UNITS_N + j] = coopMatMulAdd(a_ahead[p * UNITS_M + i], b_ahead[p * UNITS_N + j], acc[i * UNITS_N + j]);
                }
            }
            barrier();
        }
    }
}

// The same for steps of several units: before step t is multiplied, t + 1 to t + PREFETCH - 1 are on their way, and t + PREFETCH
// is sent for.
void add_steps(int k_first, int k_end, int m, int n, int n0) {
    [[unroll]] for (int p = 0; p < PREFETCH; p++) fetch(p, k_first + p * BK, k_end, n0);
    stash(0, 0);
    barrier();
    int at = 0;
    for (int k = k_first; k < k_end; k += PREFETCH * BK) {
        [[unroll]] for (int p = 0; p < PREFETCH; p++) {
            fetch(p, k + (PREFETCH + p) * BK, k_end, n0);
            multiply(at, m, n);
            at = STEP_SIZE - at;
            stash((p + 1) % PREFETCH, at);
            barrier();
        }
#if PARTS == 2
        [[unroll]] for (int i = 0; i < UNITS_M * UNITS_N; i++) {
            whole[i] = whole[i] + acc[i];
            acc[i] = coopmat<SUM, gl_ScopeSubgroup, UNIT, UNIT, gl_MatrixUseAccumulator>(SUM(0));
        }
#endif
    }
}

// The sum in lane c of a chunk of a band.
SUM sum_of(uvec4 chunk, int c, int z, int row, int column) {
    SUM sum = SUM_OF_BITS(chunk[c]);
#if PARTS == 2
    sum = unscaled(sum, a_scale(z, row), b_scale(z, column));
#endif
    return sum;
}

// Store a subgroup's band, whose first sum is that of m and n.
void leave(int band, int z, int m, int n, int split) {
    int lane = int(gl_SubgroupInvocationID);
#ifdef STORE_WIDTH
    if (VECTORS != 0) {
        for (int e = lane; e < UNIT * WN / STORE_WIDTH; e += SUBGROUP) {
            int r = e / (WN / STORE_WIDTH), c = e % (WN / STORE_WIDTH) * STORE_WIDTH;
            if (m + r >= SIZE_M || n + c >= SIZE_N) continue;
            STORED_TYPE sums[STORE_WIDTH];
            [[unroll]] for (int q = 0; q < STORE_WIDTH / 4; q++) {
                uvec4 chunk = pool[band + r * BAND_PITCH + c / 4 + q];
                [[unroll]] for (int i = 0; i < 4; i++) sums[4 * q + i] = STORED_TYPE(sum_of(chunk, i, z, m + r, n + c + 4 * q + i));
            }
            store_vector(z, m + r, n + c, split, sums);
        }
        return;
    }
#endif
    for (int e = lane; e < UNIT * WN; e += SUBGROUP) {
        int r = e / WN, c = e % WN;
        if (m + r < SIZE_M && n + c < SIZE_N) {
            SUM sum = sum_of(pool[band + r * BAND_PITCH + c / 4], c % 4, z, m + r, n + c);
            store(z, m + r, n + c, split, STORED_TYPE(sum));
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
        int row = m0 + chunk_row_a(thread + i * THREADS);
        a_rows[i] = a_row(row);
#if PARTS == 2
        [[unroll]] for (int c = 0; c < SCALES_A; c++) a_scales[i * SCALES_A + c] = a_scale(z, row + c);
#endif
    }
#if PARTS == 2
    [[unroll]] for (int i = 0; i < CHUNKS_B; i++) {
        int column = n0 + chunk_row_b(thread + i * THREADS);
        [[unroll]] for (int c = 0; c < SCALES_B; c++) b_scales[i * SCALES_B + c] = b_scale(z, column + c);
    }
#endif
    [[unroll]] for (int i = 0; i < UNITS_M * UNITS_N; i++) {
        acc[i] = coopmat<SUM, gl_ScopeSubgroup, UNIT, UNIT, gl_MatrixUseAccumulator>(SUM(0));
#if PARTS == 2
        whole[i] = acc[i];
#endif
    }

    // Nothing is read of an operand that may be empty.
    if (k_first < k_end) {
        if (AHEAD) add_ahead(k_first, k_end, m, n, n0);
        else add_steps(k_first, k_end, m, n, n0);
    }
#if PARTS == 2
    [[unroll]] for (int i = 0; i < UNITS_M * UNITS_N; i++) acc[i] = whole[i];
#endif

    int band_at = subgroup * UNIT * BAND_PITCH;
    [[unroll]] for (int i = 0; i < UNITS_M; i++) {
        [[unroll]] for (int j = 0; j < UNITS_N; j++) {
            coopMatStore(acc[i * UNITS_N + j], pool, band_at + j * UNIT / 4, BAND_PITCH, gl_CooperativeMatrixLayoutRowMajor);
        }
        subgroupBarrier();
        leave(band_at, z, m0 + m + i * UNIT, n0 + n, split);
        subgroupBarrier();
    }
}
