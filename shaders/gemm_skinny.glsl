// Skinny matrix product: at most 16 rows times a wide matrix that is read once, C[z, r, n] = sum over k of F[z, r, k] * W[z, k, n].
// Named by role: `few` is the operand with few rows, `wide` the other; the includer swaps indices where the product has few
// columns instead.
//
// A thread takes blocks of W of four loads, each a quad or (16-bit elements, W_OCTET) an octet of 16 bytes, along the axis of W
// that is contiguous in memory, and the elements of each row of F that go with them. K_LANES threads of a workgroup share out K
// for the same columns and add up through shared memory at the end; with SPLITS > 1 workgroups do too, and write partial sums.
//   W_ALONG_K   a thread's four columns lie COLUMN_LANES apart, neighbours have neighbouring loads along k
//   else        a thread's columns are one load, at four k; neighbours have neighbouring loads along the columns
//
// Grid: one dimension (folded past 65535): column tiles fastest, then z, split. Rows past the size are not stored.
//
// The includer defines what gemm_tile.glsl wants of T, T4, MAD, SIZE_Z and SIZE_K, SIZE_R and SIZE_W for the rows and columns, and
//   void begin(int z)
//   T4 f_quad(int r, int k, int k_end)             4 elements along k, or 4 rows at k; 0 from k_end on
//   T4 w_quad(int n, int k, int k_end)             4 elements along k, or 4 columns at k; 0 from k_end on
//   T4[2] f_octet, w_octet                         the same, 8 elements (along k where it is F's)
//   void store(int z, int r, int n, int split, T acc)
//   uvec4 w_octet_bits(...), T4[2] w_octet_values(uvec4)   the two halves of w_octet
// With W_RUN defined, W lies along K in blocks of one scale, and a lane takes W_RUN quads of a block at a time:
//   W_BLOCK w_block(int n, int k, int k_end)    what is loaded for the 4 * W_RUN elements from k on; its scale is 0 from k_end on
//   T4 w_values(W_BLOCK w, int j)               quad j of them, before the scale; j is constant once loops are unrolled
//   W_WORD                                      the quads in a word of a block
//   void w_advance(inout W_BLOCK w)             makes the next word the first

#ifdef W_RUN
const int GRAIN = 4 * W_RUN;
const int W_QUADS = 1;
const int AT_ONCE = ROWS <= 4 ? W_RUN : W_WORD;
#else
const int W_QUADS = W_OCTET ? 2 : 1;               // quads in a load of W
const int GRAIN = W_ALONG_K ? 4 * W_QUADS : 4;     // elements along K of a block
#endif
const int PARTS = W_ALONG_K ? 1 : W_QUADS;         // quads of columns of a block
const int COLUMN_LANES = THREADS / K_LANES;
const int COLUMNS = COLUMN_LANES * 4 * PARTS;      // of a workgroup
const int SUMS = ROWS * PARTS;                     // quads of sums of a thread
const int STAGE = SUMS < 4 ? SUMS : 4;             // how many of them pass through shared memory at a time
const int F_ROWS = ROWS < 4 ? ROWS : 4;            // rows of F that are loaded at a time
const int F_QUADS = GRAIN / 4;                     // quads of a row of F that go with a block
const int TOTALS = STAGE * COLUMN_LANES * 4;
const int IDLE = THREADS / TOTALS < 8 ? THREADS / TOTALS : 8;
const int HELPERS = IDLE < 1 ? 1 : (IDLE < K_LANES ? IDLE : K_LANES);  // threads that add up a total

// The lanes along K of a warp: neighbours are neighbours in memory, further ones have other columns and share their part of F.
const int K_NEAR = K_LANES < 8 ? K_LANES : 8;

const int BLOCKS = K_LANES * UNROLLED;             // along K that the workgroup takes at a time
const int STEP = BLOCKS * GRAIN;                   // elements along K of these
const int F_SLOTS = ROWS * STEP / 4 < THREADS ? 1 : ROWS * STEP / 4 / THREADS;  // quads of a step of F that a thread stages
// A step of a row of F in shared memory: the first quads of all blocks, then their second ones, so that neighbouring lanes read
// neighbours. The padding keeps those who write off each other's banks.
const int F_PITCH = F_QUADS == 1 ? BLOCKS : BLOCKS + 1;
const int F_ROW = F_QUADS * F_PITCH;
const int F_POOL = F_STAGED ? 2 * ROWS * F_ROW : 0;
const int POOL = F_POOL > THREADS * STAGE ? F_POOL : THREADS * STAGE;

shared T4 pool[POOL];
shared T partial[HELPERS * TOTALS];

// What the lanes along K from `first` on in steps of HELPERS have of total e of those in shared memory.
T share_of_total(int e, int first) {
    int s = e / (COLUMN_LANES * 4), i = e % (COLUMN_LANES * 4);
    int lane = W_ALONG_K ? i % COLUMN_LANES : i / 4, c = W_ALONG_K ? i / COLUMN_LANES : i % 4;
    T total = T(0);
    [[unroll]] for (int l = 0; l < K_LANES; l += HELPERS) total += pool[(s * K_LANES + l + first) * COLUMN_LANES + lane][c];
    return total;
}

int thread, k_lane, column;
T4 f_next[F_SLOTS];
#ifdef W_RUN
W_BLOCK w_runs[UNROLLED * 4];
#else
uvec4 w_bits[W_OCTET ? UNROLLED * 4 : 1];
T4 w_next[W_OCTET ? 1 : UNROLLED * 4];
#endif

// Start loading block u of a thread's of the step at k0. Behind a branch a compiler waits for what is on its way, so the step after
// the last is loaded too; where the readers do not check K, the last one again.
void fetch_block(int u, int n0, int k0, int k_end) {
    if (K_WHOLE && AHEAD) k0 = min(k0, k_end - STEP);
    int k = k0 + (u * K_LANES + k_lane) * GRAIN;
    [[unroll]] for (int i = 0; i < 4; i++) {
        int n = n0 + (W_ALONG_K ? column + i * COLUMN_LANES : column * 4 * W_QUADS);
#ifdef W_RUN
        w_runs[u * 4 + i] = w_block(n, k, k_end);
#else
        if (W_OCTET) w_bits[u * 4 + i] = w_octet_bits(n, W_ALONG_K ? k : k + i, k_end);
        else w_next[u * 4 + i] = w_quad(n, W_ALONG_K ? k : k + i, k_end);
#endif
    }
}

// Start loading a thread's share of the step's F, quads along K (or of four rows).
void fetch_few(int k0, int k_end) {
    if (K_WHOLE) k0 = min(k0, k_end - STEP);
    [[unroll]] for (int i = 0; i < F_SLOTS; i++) {
        int slot = thread + i * THREADS;
        if (F_ALONG_K) f_next[i] = f_quad(slot / (STEP / 4), k0 + slot % (STEP / 4) * 4, k_end);
        else f_next[i] = f_quad(slot / STEP * 4, k0 + slot % STEP, k_end);
    }
}

// Where quad q along K of row r of the step's F lies in its half of the pool.
int place_of(int r, int q) { return r * F_ROW + q % F_QUADS * F_PITCH + q / F_QUADS; }

// Put it into the pool, as rows of quads along K.
void stash_few(int at) {
    [[unroll]] for (int i = 0; i < F_SLOTS; i++) {
        int slot = thread + i * THREADS;
        if (slot >= ROWS * STEP / 4) break;
        if (F_ALONG_K) {
            pool[at + place_of(slot / (STEP / 4), slot % (STEP / 4))] = f_next[i];
        } else {
            int k = slot % STEP, r = slot / STEP * 4;
            [[unroll]] for (int c = 0; c < 4; c++) pool[at + place_of(r + c, k / 4)][k % 4] = f_next[i][c];
        }
    }
}

// Quad j along K of row r of F that goes with a thread's block u of the step at k0.
T4 few_quad(int at, int r, int u, int j, int k0, int k_end) {
    int block = u * K_LANES + k_lane;
    return F_STAGED ? pool[at + r * F_ROW + j * F_PITCH + block] : f_quad(r, k0 + block * GRAIN + 4 * j, k_end);
}

T4 acc[SUMS];

#ifdef W_RUN
// Add the products of block u, whose four columns' scales go with their sums.
void multiply_block(int at, int u, int n0, int k0, int k_end) {
    W_BLOCK w[4];
    [[unroll]] for (int c = 0; c < 4; c++) w[c] = w_runs[u * 4 + c];
    if (AHEAD) fetch_block(u, n0, k0 + STEP, k_end);
    T4 part[ROWS];
    [[unroll]] for (int r = 0; r < ROWS; r++) part[r] = T4(0);
    // many rows are enough work to hide a loop, and unrolled a driver takes long to compile them
    [[dont_unroll]] for (int j0 = 0; j0 < W_RUN; j0 += AT_ONCE) {
        [[unroll]] for (int j = 0; j < AT_ONCE; j++) {
            T4 q[4];
            [[unroll]] for (int c = 0; c < 4; c++) q[c] = w_values(w[c], j);
            [[unroll]] for (int r = 0; r < ROWS; r++) {
                T4 f = few_quad(at, r, u, j0 + j, k0, k_end);
                [[unroll]] for (int c = 0; c < 4; c++) {
                    [[unroll]] for (int i = 0; i < 4; i++) part[r][c] = MAD(f[i], q[c][i], part[r][c]);
                }
            }
        }
        [[unroll]] for (int c = 0; c < 4; c++) w_advance(w[c]);
    }
    T4 scale = T4(w[0].scale, w[1].scale, w[2].scale, w[3].scale);
    [[unroll]] for (int r = 0; r < ROWS; r++) acc[r] = MAD(scale, part[r], acc[r]);
}
#else
// Add the products of block u.
void multiply_block(int at, int u, int n0, int k0, int k_end) {
    T4 w[4 * W_QUADS];
    [[unroll]] for (int c = 0; c < 4; c++) {
        if (W_OCTET) {
            T4 q[2] = w_octet_values(w_bits[u * 4 + c]);
            w[c * W_QUADS] = q[0];
            w[(c + 1) * W_QUADS - 1] = q[1];
        } else {
            w[c] = w_next[u * 4 + c];
        }
    }
    if (AHEAD) fetch_block(u, n0, k0 + STEP, k_end);
    int k = k0 + (u * K_LANES + k_lane) * GRAIN;
    [[unroll]] for (int r0 = 0; r0 < ROWS; r0 += F_ROWS) {
        T4 f[F_ROWS * F_QUADS];
        [[unroll]] for (int i = 0; i < (F_ALONG_K || F_STAGED ? F_ROWS : GRAIN); i++) {
            if (!F_ALONG_K && !F_STAGED) {
                T4 q = f_quad(r0, k + i, k_end);
                [[unroll]] for (int r = 0; r < F_ROWS; r++) f[r * F_QUADS + i / 4][i % 4] = q[r];
            } else if (F_QUADS == 2 && F_OCTET && !F_STAGED) {
                T4 q[2] = f_octet(r0 + i, k, k_end);
                f[i * F_QUADS] = q[0];
                f[(i + 1) * F_QUADS - 1] = q[1];
            } else {
                [[unroll]] for (int j = 0; j < F_QUADS; j++) f[i * F_QUADS + j] = few_quad(at, r0 + i, u, j, k0, k_end);
            }
        }
        [[unroll]] for (int i = 0; i < F_ROWS; i++) {
            [[unroll]] for (int c = 0; c < 4; c++) {
                if (W_ALONG_K) {
                    [[unroll]] for (int j = 0; j < GRAIN; j++) {
                        acc[r0 + i][c] = MAD(f[i * F_QUADS + j / 4][j % 4], w[c * W_QUADS + j / 4][j % 4], acc[r0 + i][c]);
                    }
                } else {
                    [[unroll]] for (int p = 0; p < PARTS; p++) {
                        int s = (r0 + i) * PARTS + p;
                        acc[s] = MAD(T4(f[i * F_QUADS][c]), w[c * W_QUADS + p], acc[s]);
                    }
                }
            }
        }
    }
}
#endif

void main() {
    if (min(min(SIZE_R, SIZE_W), SIZE_Z) <= 0) return;
    thread = int(gl_LocalInvocationID.x);
    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint tiles = uint(SIZE_W + COLUMNS - 1) / COLUMNS;
    int n0 = int(group % tiles) * COLUMNS;
    group /= tiles;
    int z = int(group % uint(SIZE_Z));
    int split = int(group / uint(SIZE_Z));
    if (split >= SPLITS) return;

    int share = ((SIZE_K + SPLITS - 1) / SPLITS + GRAIN - 1) / GRAIN * GRAIN;
    int k_first = split * share, k_end = min(k_first + share, SIZE_K);
    k_lane = W_ALONG_K ? thread / (K_NEAR * COLUMN_LANES) * K_NEAR + thread % K_NEAR : thread / COLUMN_LANES;
    column = W_ALONG_K ? thread / K_NEAR % COLUMN_LANES : thread % COLUMN_LANES;

    begin(z);
    [[unroll]] for (int s = 0; s < SUMS; s++) acc[s] = T4(0);
    int at = 0;
    // nothing is read of an operand that may be empty
    if (k_first < k_end) {
        if (F_STAGED) fetch_few(k_first, k_end);
        if (AHEAD) [[unroll]] for (int u = 0; u < UNROLLED; u++) fetch_block(u, n0, k_first, k_end);
        if (F_STAGED) stash_few(at);
    }
    for (int k0 = k_first; k0 < k_end; k0 += STEP) {
        if (!AHEAD) [[unroll]] for (int u = 0; u < UNROLLED; u++) fetch_block(u, n0, k0, k_end);
        if (F_STAGED) {
            barrier();
            fetch_few(k0 + STEP, k_end);
        }
        [[unroll]] for (int u = 0; u < UNROLLED; u++) multiply_block(at, u, n0, k0, k_end);
        if (F_STAGED) {
            at = F_POOL / 2 - at;
            stash_few(at);
        }
    }
    if (F_STAGED) barrier();

    [[unroll]] for (int s0 = 0; s0 < SUMS; s0 += STAGE) {
        [[unroll]] for (int s = 0; s < STAGE; s++) pool[(s * K_LANES + k_lane) * COLUMN_LANES + column] = acc[s0 + s];
        barrier();
        if (HELPERS > 1) {
            if (thread < HELPERS * TOTALS) partial[thread] = share_of_total(thread % TOTALS, thread / TOTALS);
            barrier();
        }
        // n runs along the columns of the tile
        for (int e = thread; e < TOTALS; e += THREADS) {
            T total = T(0);
            if (HELPERS == 1) total = share_of_total(e, 0);
            else [[unroll]] for (int h = 0; h < HELPERS; h++) total += partial[h * TOTALS + e];
            int s = s0 + e / (COLUMN_LANES * 4), i = e % (COLUMN_LANES * 4);
            int n = n0 + (W_ALONG_K ? i : (i / 4 * PARTS + s % PARTS) * 4 + i % 4);
            if (s / PARTS < SIZE_R && n < SIZE_W) store(z, s / PARTS, n, split, total);
        }
        barrier();
    }
}
