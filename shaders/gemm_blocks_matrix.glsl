// Skinny product with weights of 4 bits in blocks of one scale, on cooperative matrices (GL_KHR_cooperative_matrix) of 16 x 16 x 16
// float16 with sums in fp32. It counts on the map of the feature `coop_rows`: invocation l of 32 holds of a left operand the rows l / 4
// and l / 4 + 8, of each the columns q, q + 1, q + 8 and q + 9 with q = l % 4 * 2.
//
// W is the left operand and never passes through shared memory: an invocation loads the 16 bytes of 32 elements along K of its rows
// and makes its components of them, eight steps of 16 along K with those of its neighbours. Each step's components are pairs of
// elements that lie four apart, since two such elements leave a word by one operation; the pairs of F are put into shared memory
// in the same order. Elements become float16 exactly, and are rounded once when the scale is multiplied in.
//
// A workgroup makes 16 * UNITS_W columns of at most 16 * UNITS_F rows. Its subgroups take turns along K in steps of DEPTH, each with a
// part of shared memory of its own, PREFETCH steps on their way; at the end their sums are added.
//
// Grid: one dimension (folded past 65535): column tiles fastest, then z, split.
//
// The includer has included gemm_skinny_matrix_variant.glsl and defined SIZE_Z, SIZE_R, SIZE_W, SIZE_K (a multiple of 32), STORED_TYPE,
// and
//   void begin(int z)
//   uvec4 F_CHUNK(int r, int k, int k_end)      8 elements along K; 0 from k_end on
//   W_BLOCK w_block(int n, int k, int k_end)    32 elements along K (`bits`), their `zero` and `scale`, which is 0 from k_end on
//   void store(int z, int r, int n, int split, float acc)
// Rows and columns past the sizes may hold anything: they are not stored.

const int UNIT = 16;
const int RUN = 32;                        // elements of a W_BLOCK
const int DEPTH = 4 * RUN;                 // elements along K that a subgroup takes at a time
const int THREADS = SUBGROUPS * SUBGROUP;
const int ROWS = UNITS_F * UNIT;
const int COLUMNS = UNITS_W * UNIT;
const int STEP = SUBGROUPS * DEPTH;
const int CHUNKS = DEPTH / 8;              // of a row of F
const int PITCH = CHUNKS + 1;              // rows start in different banks
const int ALL_F = FEW * CHUNKS;
const int CHUNKS_F = ALL_F < SUBGROUP ? 1 : ALL_F / SUBGROUP;
const int PART = ROWS * PITCH;
const int BAND = UNIT * COLUMNS / 4;       // quads of a subgroup's sums of a unit of rows
const int POOL = SUBGROUPS * (PART > BAND ? PART : BAND);

shared uvec4 pool[POOL];

int lane;
W_BLOCK w_next[PREFETCH * UNITS_W * 2];
uvec4 f_next[PREFETCH * CHUNKS_F];
coopmat<float, gl_ScopeSubgroup, UNIT, UNIT, gl_MatrixUseAccumulator> acc[UNITS_F * UNITS_W];

// A lane's chunks of F; where there are fewer than lanes, some do the same.
int slot_f(int i) { return (lane + i * SUBGROUP) % ALL_F; }

// Start loading the step at k as number p of those on their way.
void fetch(int p, int k, int k_end, int n0) {
    [[unroll]] for (int i = 0; i < UNITS_W * 2; i++) {
        w_next[p * UNITS_W * 2 + i] = w_block(n0 + lane / 4 + i * 8, k + lane % 4 * RUN, k_end);
    }
    [[unroll]] for (int i = 0; i < CHUNKS_F; i++) {
        f_next[p * CHUNKS_F + i] = F_CHUNK(slot_f(i) / CHUNKS, k + slot_f(i) % CHUNKS * 8, k_end);
    }
}

// Put F of number p of those on their way into the subgroup's part of the pool: a row is eight steps of 16 elements.
void stash(int p, int part) {
    [[unroll]] for (int i = 0; i < CHUNKS_F; i++) {
        int chunk = slot_f(i) % CHUNKS, q = chunk / 4;
        int to = part + slot_f(i) / CHUNKS * PITCH + chunk % 4 * 4;
        uvec4 x = f_next[p * CHUNKS_F + i];
        [[unroll]] for (int h = 0; h < 2; h++) {
            pool[to + 2 * h][q] = x[h] & 0xFFFFu | x[h + 2] << 16;
            pool[to + 2 * h + 1][q] = x[h] >> 16 | x[h + 2] & 0xFFFF0000u;
        }
    }
}

// Elements i and i + 4 of a word, where i is the number of its lowest four bits: 1024 + x has x among its lowest bits.
f16vec2 pair(uint word, f16vec2 zero, f16vec2 scale) {
    return (unpackFloat2x16(word & 0x000F000Fu | 0x64006400u) - zero) * scale;
}

void multiply(int p, int part) {
    f16vec2 zero[UNITS_W * 2], scale[UNITS_W * 2];
    [[unroll]] for (int i = 0; i < UNITS_W * 2; i++) {
        zero[i] = f16vec2(w_next[p * UNITS_W * 2 + i].zero + float16_t(1024));
        scale[i] = f16vec2(w_next[p * UNITS_W * 2 + i].scale);
    }
    [[unroll]] for (int t = 0; t < DEPTH / UNIT; t++) {
        coopmat<float16_t, gl_ScopeSubgroup, UNIT, UNIT, gl_MatrixUseB> b[UNITS_F];
        [[unroll]] for (int i = 0; i < UNITS_F; i++) {
            coopMatLoad(b[i], pool, part + i * UNIT * PITCH + 2 * t, PITCH, gl_CooperativeMatrixLayoutColumnMajor);
        }
        [[unroll]] for (int j = 0; j < UNITS_W; j++) {
            coopmat<float16_t, gl_ScopeSubgroup, UNIT, UNIT, gl_MatrixUseA> a;
            [[unroll]] for (int h = 0; h < 2; h++) {
                int i = 2 * j + h;
                uint word = w_next[p * UNITS_W * 2 + i].bits[t / 2] >> (t % 2 * 8);
                f16vec2 low = pair(word, zero[i], scale[i]), high = pair(word >> 4, zero[i], scale[i]);
                a[4 * h] = low.x;
                a[4 * h + 1] = low.y;
                a[4 * h + 2] = high.x;
                a[4 * h + 3] = high.y;
            }
            [[unroll]] for (int i = 0; i < UNITS_F; i++) acc[i * UNITS_W + j] = coopMatMulAdd(a, b[i], acc[i * UNITS_W + j]);
        }
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
    int k_first = split * share, k_end = min(k_first + share, SIZE_K);
    int part = subgroup * PART, turn = subgroup * DEPTH;

    begin(z);
    [[unroll]] for (int i = 0; i < UNITS_F * UNITS_W; i++) {
        acc[i] = coopmat<float, gl_ScopeSubgroup, UNIT, UNIT, gl_MatrixUseAccumulator>(0.0);
    }
    // nothing is read of an operand that may be empty
    if (k_first < k_end) {
        [[unroll]] for (int p = 0; p < PREFETCH; p++) fetch(p, k_first + turn + p * STEP, k_end, n0);
    }
    for (int k = k_first; k < k_end; k += PREFETCH * STEP) {
        [[unroll]] for (int p = 0; p < PREFETCH; p++) {
            stash(p, part);
            subgroupBarrier();
            multiply(p, part);
            subgroupBarrier();
            fetch(p, k + turn + (PREFETCH + p) * STEP, k_end, n0);
        }
    }

    [[unroll]] for (int i = 0; i < UNITS_F; i++) {
        barrier();
        [[unroll]] for (int j = 0; j < UNITS_W; j++) {
            coopMatStore(acc[i * UNITS_W + j], pool, subgroup * BAND + j * UNIT / 4, COLUMNS / 4, gl_CooperativeMatrixLayoutColumnMajor);
        }
        barrier();
        for (int e = thread; e < UNIT * COLUMNS; e += THREADS) {
            float sum = 0.0;
            [[unroll]] for (int s = 0; s < SUBGROUPS; s++) sum += uintBitsToFloat(pool[s * BAND + e / 4][e % 4]);
            int r = i * UNIT + e / COLUMNS, n = n0 + e % COLUMNS;
            if (r < SIZE_R && n < SIZE_W) store(z, r, n, split, STORED_TYPE(sum));
        }
    }
}
