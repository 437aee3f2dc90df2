// Skinny matrix product on cooperative matrices (GL_KHR_cooperative_matrix): what gemm_skinny.glsl computes, C[z, r, n] = sum over k of
// F[z, r, k] * W[z, k, n], where F has at most 16 * UNITS_F rows.
//
// A workgroup makes 16 * UNITS_W columns. Its subgroups take turns along K in steps of UNIT_K, and each goes its own way: PREFETCH
// steps of both operands are on their way in registers, and go one after the other through a part of shared memory that is the
// subgroup's own, so that nobody waits for another subgroup before the end, where their sums are added.
//
// Grid: one dimension (folded past 65535): column tiles fastest, then z, split.
//
// The includer has included gemm_skinny_matrix_variant.glsl and defined: E, T, T4, UNIT_K, CHUNK, SUM, SUM_OF_BITS, STORED_TYPE and
// pack_quads as for gemm_matrix.glsl, SIZE_Z, SIZE_R, SIZE_W and SIZE_K, and
//   void begin(int z)
//   T4 f_quad(int r, int k, int k_end), w_quad(int n, int k, int k_end)   as for gemm_skinny.glsl
//   uvec4 F_CHUNK(int r, int k, int k_end), W_CHUNK(int n, ...)           CHUNK elements along the quads' axis, with bit 2 of the mode;
//                                                                         macros, not defined where an operand has none
//   void store(int z, int r, int n, int split, SUM acc)
// Rows and columns past the sizes may hold anything: they are not stored.

const int UNIT = 16;
const int QUADS = CHUNK / 4;
const int THREADS = SUBGROUPS * SUBGROUP;
const int ROWS = UNITS_F * UNIT;
const int COLUMNS = UNITS_W * UNIT;
const int STEP = SUBGROUPS * UNIT_K;
// Chunks in a row of an operand's step, and one of padding so that rows start in different banks.
const int ROW_F = (F_ALONG_K ? UNIT_K : ROWS) / CHUNK;
const int ROW_W = (W_ALONG_K ? UNIT_K : COLUMNS) / CHUNK;
const int PITCH_F = ROW_F + 1;
const int PITCH_W = ROW_W + 1;
const int TILE_F = (F_ALONG_K ? ROWS : UNIT_K) * PITCH_F;
const int TILE_W = (W_ALONG_K ? COLUMNS : UNIT_K) * PITCH_W;
const int ALL_F = (F_ALONG_K ? FEW : ROWS) * UNIT_K / CHUNK;  // chunks of a step
const int ALL_W = COLUMNS * UNIT_K / CHUNK;
const int CHUNKS_F = ALL_F < SUBGROUP ? 1 : ALL_F / SUBGROUP;
const int CHUNKS_W = ALL_W < SUBGROUP ? 1 : ALL_W / SUBGROUP;
const int PART = TILE_F + TILE_W;
const int BAND = UNIT * COLUMNS / 4;               // quads of a subgroup's sums of a unit of rows
const int POOL = SUBGROUPS * (PART > BAND ? PART : BAND);

shared uvec4 pool[POOL];

int lane;
T4 f_quads[PREFETCH * CHUNKS_F * QUADS];
T4 w_quads[PREFETCH * CHUNKS_W * QUADS];
#ifdef F_CHUNK
uvec4 f_chunks[PREFETCH * CHUNKS_F];
#endif
#ifdef W_CHUNK
uvec4 w_chunks[PREFETCH * CHUNKS_W];
#endif
coopmat<SUM, gl_ScopeSubgroup, UNIT, UNIT, gl_MatrixUseAccumulator> acc[UNITS_F * UNITS_W];

// The lanes' chunks; where there are fewer than lanes, some do the same.
int slot_f(int i) { return (lane + i * SUBGROUP) % ALL_F; }
int slot_w(int i) { return (lane + i * SUBGROUP) % ALL_W; }

// Start loading the step at k as number p of those on their way. Past k_end it is zeros.
void fetch(int p, int k, int k_end, int n0) {
    [[unroll]] for (int i = 0; i < CHUNKS_W; i++) {
        int slot = slot_w(i);
        int at = k + (W_ALONG_K ? slot % ROW_W * CHUNK : slot / ROW_W);
        int n = n0 + (W_ALONG_K ? slot / ROW_W : slot % ROW_W * CHUNK);
#ifdef W_CHUNK
        if (W_CHUNKS) {
            w_chunks[p * CHUNKS_W + i] = W_CHUNK(n, at, k_end);
        } else
#endif
        {
            [[unroll]] for (int j = 0; j < QUADS; j++) {
                w_quads[(p * CHUNKS_W + i) * QUADS + j] = W_ALONG_K ? w_quad(n, at + 4 * j, k_end) : w_quad(n + 4 * j, at, k_end);
            }
        }
    }
    [[unroll]] for (int i = 0; i < CHUNKS_F; i++) {
        int slot = slot_f(i);
        int at = k + (F_ALONG_K ? slot % ROW_F * CHUNK : slot / ROW_F);
        int r = F_ALONG_K ? slot / ROW_F : slot % ROW_F * CHUNK;
#ifdef F_CHUNK
        if (F_CHUNKS) {
            f_chunks[p * CHUNKS_F + i] = F_CHUNK(r, at, k_end);
        } else
#endif
        {
            [[unroll]] for (int j = 0; j < QUADS; j++) {
                f_quads[(p * CHUNKS_F + i) * QUADS + j] = F_ALONG_K ? f_quad(r, at + 4 * j, k_end) : f_quad(r + 4 * j, at, k_end);
            }
        }
    }
}

// Put number p of those on their way into the subgroup's part of the pool.
void stash(int p, int part) {
    [[unroll]] for (int i = 0; i < CHUNKS_F; i++) {
        int to = part + slot_f(i) / ROW_F * PITCH_F + slot_f(i) % ROW_F;
#ifdef F_CHUNK
        if (F_CHUNKS) {
            pool[to] = f_chunks[p * CHUNKS_F + i];
            continue;
        }
#endif
        T4 q[QUADS];
        [[unroll]] for (int j = 0; j < QUADS; j++) q[j] = f_quads[(p * CHUNKS_F + i) * QUADS + j];
        pool[to] = pack_quads(q);
    }
    [[unroll]] for (int i = 0; i < CHUNKS_W; i++) {
        int to = part + TILE_F + slot_w(i) / ROW_W * PITCH_W + slot_w(i) % ROW_W;
#ifdef W_CHUNK
        if (W_CHUNKS) {
            pool[to] = w_chunks[p * CHUNKS_W + i];
            continue;
        }
#endif
        T4 q[QUADS];
        [[unroll]] for (int j = 0; j < QUADS; j++) q[j] = w_quads[(p * CHUNKS_W + i) * QUADS + j];
        pool[to] = pack_quads(q);
    }
}

void multiply(int part) {
    const int F_LAYOUT = F_ALONG_K ? gl_CooperativeMatrixLayoutRowMajor : gl_CooperativeMatrixLayoutColumnMajor;
    const int W_LAYOUT = W_ALONG_K ? gl_CooperativeMatrixLayoutColumnMajor : gl_CooperativeMatrixLayoutRowMajor;
    coopmat<E, gl_ScopeSubgroup, UNIT, UNIT_K, gl_MatrixUseA> a[UNITS_F];
    [[unroll]] for (int i = 0; i < UNITS_F; i++) {
        int from = part + (F_ALONG_K ? i * UNIT * PITCH_F : i * UNIT / CHUNK);
        coopMatLoad(a[i], pool, from, PITCH_F, F_LAYOUT);
    }
    [[unroll]] for (int j = 0; j < UNITS_W; j++) {
        int from = part + TILE_F + (W_ALONG_K ? j * UNIT * PITCH_W : j * UNIT / CHUNK);
        coopmat<E, gl_ScopeSubgroup, UNIT_K, UNIT, gl_MatrixUseB> b;
        coopMatLoad(b, pool, from, PITCH_W, W_LAYOUT);
        [[unroll]] for (int i = 0; i < UNITS_F; i++) acc[i * UNITS_W + j] = coopMatMulAdd(a[i], b, acc[i * UNITS_W + j]);
    }
}

void main() {
    if (min(min(SIZE_R, SIZE_W), SIZE_Z) <= 0) return;
    int thread = int(gl_LocalInvocationID.x);
    lane = int(gl_SubgroupInvocationID);
    int subgroup = int(gl_SubgroupID);
    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint tiles = uint(SIZE_W + COLUMNS - 1) / COLUMNS;
    int n0 = int(group % tiles) * COLUMNS;
    group /= tiles;
    int z = int(group % uint(SIZE_Z));
    int split = int(group / uint(SIZE_Z));
    if (split >= SPLITS) return;

    int share = ((SIZE_K + SPLITS - 1) / SPLITS + STEP - 1) / STEP * STEP;
    int k_first = split * share + subgroup * UNIT_K, k_end = min(split * share + share, SIZE_K);
    int part = subgroup * PART;

    begin(z);
    [[unroll]] for (int i = 0; i < UNITS_F * UNITS_W; i++) {
        acc[i] = coopmat<SUM, gl_ScopeSubgroup, UNIT, UNIT, gl_MatrixUseAccumulator>(SUM(0));
    }
    // nothing is read of an operand that may be empty
    if (k_first < k_end) {
        [[unroll]] for (int p = 0; p < PREFETCH; p++) fetch(p, k_first + p * STEP, k_end, n0);
    }
    for (int k = k_first; k < k_end; k += PREFETCH * STEP) {
        [[unroll]] for (int p = 0; p < PREFETCH; p++) {
            stash(p, part);
            fetch(p, k + (PREFETCH + p) * STEP, k_end, n0);
            subgroupBarrier();
            multiply(part);
            subgroupBarrier();
        }
    }

    [[unroll]] for (int i = 0; i < UNITS_F; i++) {
        barrier();
        [[unroll]] for (int j = 0; j < UNITS_W; j++) {
            coopMatStore(acc[i * UNITS_W + j], pool, subgroup * BAND + j * UNIT / 4, COLUMNS / 4, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
        for (int e = thread; e < UNIT * COLUMNS; e += THREADS) {
            SUM sum = SUM(0);
            [[unroll]] for (int s = 0; s < SUBGROUPS; s++) sum += SUM_OF_BITS(pool[s * BAND + e / 4][e % 4]);
            int r = i * UNIT + e / COLUMNS, n = n0 + e % COLUMNS;
            if (r < SIZE_R && n < SIZE_W) store(z, r, n, split, STORED_TYPE(sum));
        }
    }
}
