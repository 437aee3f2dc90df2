// Skinny matrix product: at most 16 rows times a wide matrix that is read once, C[z, r, n] = sum over k of F[z, r, k] * W[z, k, n].
// Named by role: `few` is the operand with few rows, `wide` the other; the includer swaps indices where the product has few
// columns instead.
//
// A thread keeps ROWS x 4 sums and takes 4 x 4 blocks of W (four quads) and a quad along k of each row at a time. K_LANES threads
// of a workgroup share out K for the same columns and add up through shared memory at the end; with SPLITS > 1 workgroups do too,
// and write partial sums. Lanes run along the axis of W that is contiguous in memory:
//   W_ALONG_K   a thread's columns lie COLUMN_LANES apart, neighbours have neighbouring quads of k
//   else        a thread's columns are a quad, neighbours have neighbouring quads of columns
//
// Grid: one dimension (folded past 65535): column tiles fastest, then z, split. Rows past the size are not stored.
//
// The includer defines what gemm_tile.glsl wants of T, T4, MAD, SIZE_Z and SIZE_K, SIZE_R and SIZE_W for the rows and columns, and
//   void begin(int z)
//   T4 f_quad(int r, int k, int k_end)           4 elements along k; 0 from k_end on
//   T4 w_quad(int n, int k, int k_end)          4 elements along k, or 4 columns at k; 0 from k_end on
//   void store(int z, int r, int n, int split, T acc)
// With W_RUN defined, W lies along K in blocks of one scale, and a lane takes W_RUN quads of a block at a time:
//   W_BLOCK w_block(int n, int k, int k_end)    what is loaded for the 4 * W_RUN elements from k on; its scale is 0 from k_end on
//   T4 w_values(W_BLOCK w, int j)               quad j of them, before the scale

#ifdef W_RUN
const int GRAIN = 4 * W_RUN;
const int UNROLLED = ROWS <= 4 ? W_RUN : 1;
#else
const int GRAIN = 4;
#endif
const int COLUMN_LANES = THREADS / K_LANES;
const int SUM_ROWS = ROWS < 4 ? ROWS : 4;  // how many rows pass through shared memory at a time

shared T4 sums[THREADS * SUM_ROWS];

void main() {
    if (min(min(SIZE_R, SIZE_W), SIZE_Z) <= 0) return;
    int thread = int(gl_LocalInvocationID.x);
    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint tiles = uint(SIZE_W + COLUMN_LANES * 4 - 1) / (COLUMN_LANES * 4);
    int n0 = int(group % tiles) * COLUMN_LANES * 4;
    group /= tiles;
    int z = int(group % uint(SIZE_Z));
    int split = int(group / uint(SIZE_Z));
    if (split >= SPLITS) return;

    int share = ((SIZE_K + SPLITS - 1) / SPLITS + GRAIN - 1) / GRAIN * GRAIN;
    int k_first = split * share, k_end = min(k_first + share, SIZE_K);
    int k_lane = W_ALONG_K ? thread % K_LANES : thread / COLUMN_LANES;
    int column = W_ALONG_K ? thread / K_LANES : thread % COLUMN_LANES * 4;

    begin(z);
    T4 acc[ROWS];
    [[unroll]] for (int r = 0; r < ROWS; r++) acc[r] = T4(0);
    for (int k = k_first + k_lane * GRAIN; k < k_end; k += K_LANES * GRAIN) {
#ifdef W_RUN
        W_BLOCK w[4];
        [[unroll]] for (int c = 0; c < 4; c++) w[c] = w_block(n0 + column + c * COLUMN_LANES, k, k_end);
        T4 part[ROWS];
        [[unroll]] for (int r = 0; r < ROWS; r++) part[r] = T4(0);
        // many rows are enough work to hide a loop, and unrolled a driver takes long to compile them
        [[dont_unroll]] for (int j0 = 0; j0 < W_RUN; j0 += UNROLLED) {
            [[unroll]] for (int j1 = 0; j1 < UNROLLED; j1++) {
                int j = j0 + j1;
                T4 q[4];
                [[unroll]] for (int c = 0; c < 4; c++) q[c] = w_values(w[c], j);
                [[unroll]] for (int r = 0; r < ROWS; r++) {
                    T4 f = f_quad(r, k + 4 * j, k_end);
                    [[unroll]] for (int c = 0; c < 4; c++) {
                        [[unroll]] for (int i = 0; i < 4; i++) part[r][c] = MAD(f[i], q[c][i], part[r][c]);
                    }
                }
            }
        }
        T4 scale = T4(w[0].scale, w[1].scale, w[2].scale, w[3].scale);
        [[unroll]] for (int r = 0; r < ROWS; r++) acc[r] = MAD(scale, part[r], acc[r]);
#else
        T4 w[4];
        [[unroll]] for (int c = 0; c < 4; c++) {
            if (W_ALONG_K) w[c] = w_quad(n0 + column + c * COLUMN_LANES, k, k_end);
            else w[c] = w_quad(n0 + column, k + c, k_end);
        }
        [[unroll]] for (int r = 0; r < ROWS; r++) {
            T4 f = f_quad(r, k, k_end);
            [[unroll]] for (int c = 0; c < 4; c++) {
                if (W_ALONG_K) {
                    [[unroll]] for (int i = 0; i < 4; i++) acc[r][c] = MAD(f[i], w[c][i], acc[r][c]);
                } else {
                    acc[r] = MAD(T4(f[c]), w[c], acc[r]);
                }
            }
        }
#endif
    }

    [[unroll]] for (int r0 = 0; r0 < ROWS; r0 += SUM_ROWS) {
        [[unroll]] for (int r = 0; r < SUM_ROWS; r++) sums[(r * K_LANES + k_lane) * COLUMN_LANES + (W_ALONG_K ? column : column / 4)] = acc[r0 + r];
        barrier();
        // one thread a sum; n runs along the columns of the tile
        for (int e = thread; e < SUM_ROWS * COLUMN_LANES * 4; e += THREADS) {
            int r = e / (COLUMN_LANES * 4), n = e % (COLUMN_LANES * 4);
            int lane = W_ALONG_K ? n % COLUMN_LANES : n / 4, c = W_ALONG_K ? n / COLUMN_LANES : n % 4;
            T total = T(0);
            for (int s = 0; s < K_LANES; s++) total += sums[(r * K_LANES + s) * COLUMN_LANES + lane][c];
            if (r0 + r < SIZE_R && n0 + n < SIZE_W) store(z, r0 + r, n0 + n, split, total);
        }
        barrier();
    }
}
