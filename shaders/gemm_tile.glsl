// Tiled matrix product C[z, m, n] = sum over k of A[z, m, k] * B[z, k, n], for contractions and implicit-GEMM convolutions.
//
// A workgroup makes a BM x BN tile of C, a thread TM x TN of it as TM/4 x TN/4 blocks of 4 x 4 that lie BM/(TM/4) rows and
// BN/(TN/4) columns apart: threads next to each other then read quads of shared memory next to each other. K goes by in steps of
// BK, kept in shared memory twice: the next step's quads are on their way in registers while this one is used. With SPLITS > 1
// the steps are divided among workgroups, and each writes a partial sum.
//
// Grid: one dimension (folded past 65535), columns fastest, then rows, z, split. A grid too large is harmless.
//
// The includer has included gemm_variant.glsl and defined: T, T4 (the accumulator's type and its vector of four), MAD(a, b, c),
// SIZE_Z, SIZE_M, SIZE_N, SIZE_K, and
//   void begin(int z)                              called first
//   A_ROW, A_ROW a_row(int m)                      what must be known of a row of A (with A_ALONG_K false: of 4 rows)
//   void k_step(int k)                             before the quads of the step at k
//   T4 a_quad(A_ROW row, int k, int k_end)         4 elements along k, or 4 rows at k; 0 from k_end on
//   T4 b_quad(int n, int k, int k_end)             4 elements along k, or 4 columns at k; 0 from k_end on
//   void store(int z, int m, int n, int split, T acc), and with STORE_WIDTH (4) defined store_vector(z, m, n, split, T acc[4])
// Rows and columns past the sizes may hold anything: they are not stored.

const int THREADS_M = BM / TM;
const int THREADS_N = BN / TN;
const int THREADS = THREADS_M * THREADS_N;
const int QUADS_A = BM * BK / 4 / THREADS;
const int QUADS_B = BN * BK / 4 / THREADS;
// A quad of padding a row, so that the transposing stores of quads along K fall into different banks.
const int PITCH_A = BM / 4 + 1;
const int PITCH_B = BN / 4 + 1;
const int STEP_SIZE = BK * (PITCH_A + PITCH_B);
const int POOL = 2 * STEP_SIZE > THREADS_M * PITCH_B ? 2 * STEP_SIZE : THREADS_M * PITCH_B;
// Rows of each block of four that pass through shared memory at a time on their way out.
const int STAGE = POOL >= 4 * THREADS_M * PITCH_B ? 4 : (POOL >= 2 * THREADS_M * PITCH_B ? 2 : 1);

shared T4 pool[POOL];

int thread;
A_ROW a_rows[QUADS_A];
T4 a_next[QUADS_A];
T4 b_next[QUADS_B];
T4 acc[TM * TN / 4];

// Start loading the step at k.
void fetch(int k, int k_end, int n0) {
    k_step(k);
    [[unroll]] for (int i = 0; i < QUADS_A; i++) {
        int slot = thread + i * THREADS;
        a_next[i] = a_quad(a_rows[i], k + (A_ALONG_K ? slot % (BK / 4) * 4 : slot / (BM / 4)), k_end);
    }
    [[unroll]] for (int i = 0; i < QUADS_B; i++) {
        int slot = thread + i * THREADS;
        if (B_ALONG_K) b_next[i] = b_quad(n0 + slot / (BK / 4), k + slot % (BK / 4) * 4, k_end);
        else b_next[i] = b_quad(n0 + slot % (BN / 4) * 4, k + slot / (BN / 4), k_end);
    }
}

// Put what was fetched into half `at` of the pool, as rows of constant k.
void stash(int at) {
    [[unroll]] for (int i = 0; i < QUADS_A; i++) {
        int slot = thread + i * THREADS;
        if (A_ALONG_K) {
            int m = slot / (BK / 4), k = slot % (BK / 4) * 4;
            [[unroll]] for (int c = 0; c < 4; c++) pool[at + (k + c) * PITCH_A + m / 4][m % 4] = a_next[i][c];
        } else {
            pool[at + slot / (BM / 4) * PITCH_A + slot % (BM / 4)] = a_next[i];
        }
    }
    at += BK * PITCH_A;
    [[unroll]] for (int i = 0; i < QUADS_B; i++) {
        int slot = thread + i * THREADS;
        if (B_ALONG_K) {
            int n = slot / (BK / 4), k = slot % (BK / 4) * 4;
            [[unroll]] for (int c = 0; c < 4; c++) pool[at + (k + c) * PITCH_B + n / 4][n % 4] = b_next[i][c];
        } else {
            pool[at + slot / (BN / 4) * PITCH_B + slot % (BN / 4)] = b_next[i];
        }
    }
}

void multiply(int at, int row, int column) {
    [[unroll]] for (int k = 0; k < BK; k++) {
        T4 a[TM / 4];
        T4 b[TN / 4];
        [[unroll]] for (int i = 0; i < TM / 4; i++) a[i] = pool[at + k * PITCH_A + i * THREADS_M + row];
        [[unroll]] for (int j = 0; j < TN / 4; j++) b[j] = pool[at + BK * PITCH_A + k * PITCH_B + j * THREADS_N + column];
        [[unroll]] for (int i = 0; i < TM / 4; i++) {
            [[unroll]] for (int c = 0; c < 4; c++) {
                [[unroll]] for (int j = 0; j < TN / 4; j++) {
                    int at = (i * 4 + c) * (TN / 4) + j;
                    acc[at] = MAD(T4(a[i][c]), b[j], acc[at]);
                }
            }
        }
    }
}

// Store what lies in the pool: rows `first` to `first` + STAGE - 1 of the blocks of number i.
void leave(int i, int first, int z, int m0, int n0, int split) {
#ifdef STORE_WIDTH
    if (VECTORS != 0) {
        for (int e = thread; e < THREADS_M * STAGE * BN / 4; e += THREADS) {
            int r = e / (BN / 4), q = e % (BN / 4);
            int m = m0 + (i * THREADS_M + r / STAGE) * 4 + first + r % STAGE, n = n0 + q * 4;
            if (m >= SIZE_M || n >= SIZE_N) continue;
            T4 sums = pool[r * PITCH_B + q];
            store_vector(z, m, n, split, T[4](sums[0], sums[1], sums[2], sums[3]));
        }
        return;
    }
#endif
    for (int e = thread; e < THREADS_M * STAGE * BN; e += THREADS) {
        int r = e / BN, n = e % BN;
        int m = m0 + (i * THREADS_M + r / STAGE) * 4 + first + r % STAGE;
        if (m < SIZE_M && n0 + n < SIZE_N) store(z, m, n0 + n, split, pool[r * PITCH_B + n / 4][n % 4]);
    }
}

void main() {
    if (min(min(SIZE_M, SIZE_N), SIZE_Z) <= 0) return;
    thread = int(gl_LocalInvocationID.x);
    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint tiles_m = uint(SIZE_M + BM - 1) / BM, tiles_n = uint(SIZE_N + BN - 1) / BN;
    int n0 = int(group % tiles_n) * BN;
    group /= tiles_n;
    int m0 = int(group % tiles_m) * BM;
    group /= tiles_m;
    int z = int(group % uint(SIZE_Z));
    int split = int(group / uint(SIZE_Z));
    if (split >= SPLITS) return;

    int share = (((SIZE_K + BK - 1) / BK + SPLITS - 1) / SPLITS) * BK;
    int k_first = split * share, k_end = min(k_first + share, SIZE_K);

    // 32 threads in a row cover 4 x 8 blocks: 12 distinct quads a step instead of 18 for 2 x 16. The lane's bits are dealt out so
    // that lanes 2i and 2i+1 share a quad of B and lanes i and i+2 one of A: NVIDIA's shared memory then serves the quads of half a
    // warp at once instead of a quarter.
    int lane = thread % 32, warp = thread / 32;
    int row = warp / (THREADS_N / 8) * 4 + lane / 16 * 2 + lane % 2;
    int column = warp % (THREADS_N / 8) * 8 + lane / 2 % 8;

    begin(z);
    [[unroll]] for (int i = 0; i < QUADS_A; i++) {
        int slot = thread + i * THREADS;
        a_rows[i] = a_row(m0 + (A_ALONG_K ? slot / (BK / 4) : slot % (BM / 4) * 4));
    }
    [[unroll]] for (int i = 0; i < TM * TN / 4; i++) acc[i] = T4(0);

    if (k_first < k_end) {
        fetch(k_first, k_end, n0);
        stash(0);
    }
    barrier();
    int at = 0;
    for (int k = k_first; k < k_end; k += BK) {
        // After the last step too, when it is zeros: a branch here would have the loads waited for before the step is multiplied.
        fetch(k + BK, k_end, n0);
        multiply(at, row, column);
        at = STEP_SIZE - at;
        stash(at);
        barrier();
    }

    // Out through shared memory: stores (and the loads of an epilogue) then run along rows, and its code is there once.
    // (Loops count by one: a loop that counts by STAGE was not unrolled by one driver, and kept the sums in memory all along.)
    [[unroll]] for (int i = 0; i < TM / 4; i++) {
        [[unroll]] for (int c = 0; c < 4 / STAGE; c++) {
            [[unroll]] for (int s = 0; s < STAGE; s++) {
                [[unroll]] for (int j = 0; j < TN / 4; j++) {
                    pool[(row * STAGE + s) * PITCH_B + j * THREADS_N + column] = acc[(i * 4 + c * STAGE + s) * (TN / 4) + j];
                }
            }
            barrier();
            leave(i, c * STAGE, z, m0, n0, split);
            barrier();
        }
    }
}
