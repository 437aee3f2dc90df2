// Attention in one pass: softmax(score(Q K)) V for rows of queries, the scores never in memory.
//
// A workgroup has BM rows of one batch entry and walks the keys in steps of BN. A step is two tiled products, as gemm_tile.glsl
// makes them: scores from Q and K (depth: the head size), and the sums from the weights, which lie in shared memory, and V (depth:
// the keys of the step). Both take their operands BK deep from a pair of buffers, the next ones on their way in registers
// while these are multiplied. A thread has TM rows, BN / 8 scores and WIDTH / 8 sums a row; 8 threads share a row and
// know its highest score so far (of all they have seen), from which weights are counted; when it rises, sums are scaled down.
//
// Grid: one dimension (folded past 65535), rows fastest, then batch. A grid too large is harmless.
//
// The includer has included attention_variant.glsl and attention_weight.glsl and defined: T, T4, MAD(a, b, c), SIZE_Z, SIZE_M (queries), SIZE_T (keys),
// SIZE_D (head size, at least 1), SIZE_N (head size of the values), and
//   void begin(int z)
//   T4 q_quad(int m, int k, int k_end), k_quad(int n, int k, int k_end), v_quad(int n, int k, int k_end)   as in gemm_tile.glsl
//   T score(int z, int m, int n, T s)          what becomes of a score
//   T inverse(T total)                         the factor of a row whose weights add up to total
//   void store(int z, int m, int n, int split, T acc)
const int COLUMNS = 8;  // threads that share a row
const int ROWS = THREADS / COLUMNS;
const int BM = ROWS * TM;
const int TN = BN / COLUMNS;
const int TW = WIDTH / COLUMNS;
const int QUADS_Q = BM * BK / 4 / THREADS;
const int QUADS_K = BN * BK / 4 / THREADS;
const int QUADS_V = WIDTH * BK / 4 / THREADS;
// A quad of padding a row, so that the transposing stores of quads fall into different banks.
const int PITCH_Q = BM / 4 + 1;
const int PITCH_K = BN / 4 + 1;
const int PITCH_V = WIDTH / 4 + 1;
const int STEP_K = BK * (PITCH_Q + PITCH_K), STEP_V = BK * PITCH_V;

shared T4 pool_k[2 * STEP_K];               // steps of Q and K
shared T4 pool_v[2 * STEP_V > ROWS * PITCH_V ? 2 * STEP_V : ROWS * PITCH_V];
shared T4 weights[BN * PITCH_Q];            // a row of constant key
shared T4 parts[COLUMNS * (BM / 4)];        // a value of each thread and row

int thread, row, column;
T4 q_next[QUADS_Q];
T4 k_next[QUADS_K];
T4 v_next[QUADS_V];
T4 s[TM * TN / 4];     // [row][quad of keys]
T4 o[TM * TW / 4];     // [row][quad of columns]
T4 highest[TM / 4];
T4 total[TM / 4];      // of the weights that this thread has made

void fetch_k(int k, int m0, int n0) {
    [[unroll]] for (int i = 0; i < QUADS_Q; i++) {
        int slot = thread + i * THREADS;
        if (Q_ALONG_K) q_next[i] = q_quad(m0 + slot / (BK / 4), k + slot % (BK / 4) * 4, SIZE_D);
        else q_next[i] = q_quad(m0 + slot % (BM / 4) * 4, k + slot / (BM / 4), SIZE_D);
    }
    [[unroll]] for (int i = 0; i < QUADS_K; i++) {
        int slot = thread + i * THREADS;
        if (K_ALONG_K) k_next[i] = k_quad(n0 + slot / (BK / 4), k + slot % (BK / 4) * 4, SIZE_D);
        else k_next[i] = k_quad(n0 + slot % (BN / 4) * 4, k + slot / (BN / 4), SIZE_D);
    }
}

void fetch_v(int k) {
    [[unroll]] for (int i = 0; i < QUADS_V; i++) {
        int slot = thread + i * THREADS;
        if (V_ALONG_K) v_next[i] = v_quad(slot / (BK / 4), k + slot % (BK / 4) * 4, SIZE_T);
        else v_next[i] = v_quad(slot % (WIDTH / 4) * 4, k + slot / (WIDTH / 4), SIZE_T);
    }
}

// Put what was fetched into half `at` of a pool, as rows of constant k.
void stash_k(int at) {
    [[unroll]] for (int i = 0; i < QUADS_Q; i++) {
        int slot = thread + i * THREADS;
        if (Q_ALONG_K) {
            int m = slot / (BK / 4), k = slot % (BK / 4) * 4;
            [[unroll]] for (int c = 0; c < 4; c++) pool_k[at + (k + c) * PITCH_Q + m / 4][m % 4] = q_next[i][c];
        } else {
            pool_k[at + slot / (BM / 4) * PITCH_Q + slot % (BM / 4)] = q_next[i];
        }
    }
    at += BK * PITCH_Q;
    [[unroll]] for (int i = 0; i < QUADS_K; i++) {
        int slot = thread + i * THREADS;
        if (K_ALONG_K) {
            int n = slot / (BK / 4), k = slot % (BK / 4) * 4;
            [[unroll]] for (int c = 0; c < 4; c++) pool_k[at + (k + c) * PITCH_K + n / 4][n % 4] = k_next[i][c];
        } else {
            pool_k[at + slot / (BN / 4) * PITCH_K + slot % (BN / 4)] = k_next[i];
        }
    }
}

void stash_v(int at) {
    [[unroll]] for (int i = 0; i < QUADS_V; i++) {
        int slot = thread + i * THREADS;
        if (V_ALONG_K) {
            int n = slot / (BK / 4), k = slot % (BK / 4) * 4;
            [[unroll]] for (int c = 0; c < 4; c++) pool_v[at + (k + c) * PITCH_V + n / 4][n % 4] = v_next[i][c];
        } else {
            pool_v[at + slot / (WIDTH / 4) * PITCH_V + slot % (WIDTH / 4)] = v_next[i];
        }
    }
}

void multiply_k(int at) {
    [[unroll]] for (int k = 0; k < BK; k++) {
        T4 a[TM / 4];
        T4 b[TN / 4];
        [[unroll]] for (int i = 0; i < TM / 4; i++) a[i] = pool_k[at + k * PITCH_Q + i * ROWS + row];
        [[unroll]] for (int j = 0; j < TN / 4; j++) b[j] = pool_k[at + BK * PITCH_Q + k * PITCH_K + j * COLUMNS + column];
        [[unroll]] for (int i = 0; i < TM / 4; i++) {
            [[unroll]] for (int c = 0; c < 4; c++) {
                [[unroll]] for (int j = 0; j < TN / 4; j++) {
                    int at = (i * 4 + c) * (TN / 4) + j;
                    s[at] = MAD(T4(a[i][c]), b[j], s[at]);
                }
            }
        }
    }
}

void multiply_v(int at, int first) {
    [[unroll]] for (int k = 0; k < BK; k++) {
        T4 a[TM / 4];
        T4 b[TW / 4];
        [[unroll]] for (int i = 0; i < TM / 4; i++) a[i] = weights[(first + k) * PITCH_Q + i * ROWS + row];
        [[unroll]] for (int j = 0; j < TW / 4; j++) b[j] = pool_v[at + k * PITCH_V + j * COLUMNS + column];
        [[unroll]] for (int i = 0; i < TM / 4; i++) {
            [[unroll]] for (int c = 0; c < 4; c++) {
                [[unroll]] for (int j = 0; j < TW / 4; j++) {
                    int at = (i * 4 + c) * (TW / 4) + j;
                    o[at] = MAD(T4(a[i][c]), b[j], o[at]);
                }
            }
        }
    }
}

// The scores of keys n0 .. n0 + BN, and the highest of each row that this thread knows.
void finish_scores(int z, int m0, int n0) {
    [[unroll]] for (int i = 0; i < TM / 4; i++) {
        T4 own = highest[i];
        [[unroll]] for (int c = 0; c < 4; c++) {
            int m = min(m0 + (i * ROWS + row) * 4 + c, SIZE_M - 1);
            [[unroll]] for (int j = 0; j < TN / 4; j++) {
                T4 x = s[(i * 4 + c) * (TN / 4) + j];
                [[unroll]] for (int e = 0; e < 4; e++) {
                    int n = n0 + (j * COLUMNS + column) * 4 + e;
                    T y = score(z, m, min(n, SIZE_T - 1), x[e]);
                    x[e] = n < SIZE_T ? y : -INFINITE;
                }
                s[(i * 4 + c) * (TN / 4) + j] = x;
                own[c] = greater(own[c], greater(greater(x[0], x[1]), greater(x[2], x[3])));
            }
        }
        parts[column * (BM / 4) + i * ROWS + row] = own;
    }
}

// What scores make of the rows: weights in shared memory, sums and totals scaled to the highest score.
void weigh() {
    [[unroll]] for (int i = 0; i < TM / 4; i++) {
        T4 most = parts[i * ROWS + row];
        [[unroll]] for (int c = 1; c < COLUMNS; c++) most = greater(most, parts[c * (BM / 4) + i * ROWS + row]);
        [[unroll]] for (int c = 0; c < 4; c++) {
            T from = base_of(most[c]), scale = weight(highest[i][c] - from);
            T sum = total[i][c] * scale;
            [[unroll]] for (int j = 0; j < TN / 4; j++) {
                T4 x = s[(i * 4 + c) * (TN / 4) + j];
                [[unroll]] for (int e = 0; e < 4; e++) {
                    x[e] = weight(x[e] - from);
                    sum += x[e];
                }
                s[(i * 4 + c) * (TN / 4) + j] = x;
            }
            total[i][c] = sum;
            [[unroll]] for (int j = 0; j < TW / 4; j++) o[(i * 4 + c) * (TW / 4) + j] *= scale;
        }
        highest[i] = most;
        [[unroll]] for (int j = 0; j < TN / 4; j++) {
            T4 x[4];
            [[unroll]] for (int c = 0; c < 4; c++) x[c] = s[(i * 4 + c) * (TN / 4) + j];
            [[unroll]] for (int e = 0; e < 4; e++) {
                int key = (j * COLUMNS + column) * 4 + e;
                weights[key * PITCH_Q + i * ROWS + row] = T4(x[0][e], x[1][e], x[2][e], x[3][e]);
            }
        }
    }
    [[unroll]] for (int i = 0; i < TM * TN / 4; i++) s[i] = T4(0);
}

void main() {
    if (min(min(SIZE_M, SIZE_N), SIZE_Z) <= 0) return;
    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint tiles = uint(SIZE_M + BM - 1) / BM;
    int m0 = int(group % tiles) * BM;
    int z = int(group / tiles);
    if (z >= SIZE_Z) return;

    // 32 threads in a row cover 4 x 8 blocks, dealt out as in gemm_tile.glsl.
    thread = int(gl_LocalInvocationID.x);
    int lane = thread % 32;
    row = thread / 32 * 4 + lane / 16 * 2 + lane % 2;
    column = lane / 2 % 8;

    begin(z);
    [[unroll]] for (int i = 0; i < TM * TN / 4; i++) s[i] = T4(0);
    [[unroll]] for (int i = 0; i < TM * TW / 4; i++) o[i] = T4(0);
    [[unroll]] for (int i = 0; i < TM / 4; i++) {
        highest[i] = T4(-INFINITE);
        total[i] = T4(0);
    }

    // The last step of a product loads the first one of the same product with the next keys, so that no load stands under a condition
    // (behind a branch a compiler waits for it). Past the last key that gives zeros, or keys that are not looked at.
    int at_k = 0, at_v = 0;
    if (SIZE_T > 0) {
        fetch_k(0, m0, 0);
        fetch_v(0);
        stash_k(0);
        stash_v(0);
    }
    barrier();
    for (int n0 = 0; n0 < SIZE_T; n0 += BN) {
        for (int k = 0; k < SIZE_D; k += BK) {
            bool last = k + BK >= SIZE_D;
            fetch_k(last ? 0 : k + BK, m0, last ? n0 + BN : n0);
            multiply_k(at_k);
            at_k = STEP_K - at_k;
            stash_k(at_k);
            barrier();
        }
        finish_scores(z, m0, n0);
        barrier();
        weigh();
        barrier();
        int end = min(SIZE_T - n0, BN);
        for (int k = 0; k < end; k += BK) {
            fetch_v(k + BK >= end ? n0 + BN : n0 + k + BK);
            multiply_v(at_v, k);
            at_v = STEP_V - at_v;
            stash_v(at_v);
            barrier();
        }
    }

    [[unroll]] for (int i = 0; i < TM / 4; i++) parts[column * (BM / 4) + i * ROWS + row] = total[i];
    barrier();
    [[unroll]] for (int i = 0; i < TM / 4; i++) {
        T4 sums = T4(0);
        [[unroll]] for (int c = 0; c < COLUMNS; c++) sums += parts[c * (BM / 4) + i * ROWS + row];
        [[unroll]] for (int r = 0; r < 4; r++) {
            T scale = inverse(sums[r]);
            [[unroll]] for (int j = 0; j < TW / 4; j++) {
                pool_v[row * PITCH_V + j * COLUMNS + column] = o[(4 * i + r) * (TW / 4) + j] * scale;
            }
            barrier();
            // out through shared memory: stores then run along rows, and their code is there once
            for (int e = thread; e < ROWS * WIDTH; e += THREADS) {
                int n = e % WIDTH, m = m0 + (i * ROWS + e / WIDTH) * 4 + r;
                if (m < SIZE_M && n < SIZE_N) store(z, m, n, 0, pool_v[e / WIDTH * PITCH_V + n / 4][n % 4]);
            }
            barrier();
        }
    }
}
