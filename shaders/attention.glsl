// Attention in one pass: softmax(score(Q K)) V for rows of queries, the scores never in memory.
//
// A workgroup has BM rows of one batch entry and walks the keys in steps of BN. A step is two tiled products, as gemm_tile.glsl
// makes them: scores from Q and K (depth: the head size), and the sums from the weights, which lie in shared memory, and V (depth:
// the keys of the step). Both take their operands BK deep from a ring of two buffers, so that the next ones are on their way in
// registers while these are multiplied. A thread has TM rows, BN / 8 scores and WIDTH / 8 sums a row; 8 threads share a row and
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
const int STEP_SIZE = STEP_K > STEP_V ? STEP_K : STEP_V;
const int POOL = 2 * STEP_SIZE > ROWS * PITCH_V ? 2 * STEP_SIZE : ROWS * PITCH_V;

shared T4 pool[POOL];
shared T4 weights[BN * PITCH_Q];           // a row of constant key
shared T4 parts[COLUMNS * (BM / 4)];       // a value of each thread and row

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

// Put a fetched quad of row r of an operand into the pool, as rows of constant k.
void stash(int at, int pitch, int r, int k, bool along_k, T4 quad) {
    if (along_k) {
        [[unroll]] for (int c = 0; c < 4; c++) pool[at + (k + c) * pitch + r / 4][r % 4] = quad[c];
    } else {
        pool[at + k * pitch + r / 4] = quad;
    }
}

void stash_k(int at) {
    [[unroll]] for (int i = 0; i < QUADS_Q; i++) {
        int slot = thread + i * THREADS;
        if (Q_ALONG_K) stash(at, PITCH_Q, slot / (BK / 4), slot % (BK / 4) * 4, true, q_next[i]);
        else stash(at, PITCH_Q, slot % (BM / 4) * 4, slot / (BM / 4), false, q_next[i]);
    }
    at += BK * PITCH_Q;
    [[unroll]] for (int i = 0; i < QUADS_K; i++) {
        int slot = thread + i * THREADS;
        if (K_ALONG_K) stash(at, PITCH_K, slot / (BK / 4), slot % (BK / 4) * 4, true, k_next[i]);
        else stash(at, PITCH_K, slot % (BN / 4) * 4, slot / (BN / 4), false, k_next[i]);
    }
}

void stash_v(int at) {
    [[unroll]] for (int i = 0; i < QUADS_V; i++) {
        int slot = thread + i * THREADS;
        if (V_ALONG_K) stash(at, PITCH_V, slot / (BK / 4), slot % (BK / 4) * 4, true, v_next[i]);
        else stash(at, PITCH_V, slot % (WIDTH / 4) * 4, slot / (WIDTH / 4), false, v_next[i]);
    }
}

void multiply_k(int at) {
    [[unroll]] for (int k = 0; k < BK; k++) {
        T4 a[TM / 4];
        T4 b[TN / 4];
        [[unroll]] for (int i = 0; i < TM / 4; i++) a[i] = pool[at + k * PITCH_Q + i * ROWS + row];
        [[unroll]] for (int j = 0; j < TN / 4; j++) b[j] = pool[at + BK * PITCH_Q + k * PITCH_K + j * COLUMNS + column];
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
        [[unroll]] for (int j = 0; j < TW / 4; j++) b[j] = pool[at + k * PITCH_V + j * COLUMNS + column];
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

// What the scores of keys n0 .. n0 + BN make of the rows: weights in shared memory, sums and totals scaled to the highest score.
void weigh(int z, int m0, int n0) {
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
    barrier();
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
    barrier();
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

    // Each turn loads a step and multiplies the one before. All functions are called once: a driver may keep what a function works
    // on in memory otherwise.
    int at = 0;
    int n_next = 0, k_at = 0, first = 0;   // the keys and the depth of the next step; the depth of this one
    bool sums_next = false, sums = false;  // whether they are of the second product
    bool begun = false;
    while (true) {  // all conditions here are the same for all threads
        bool more = n_next < SIZE_T;
        if (more) {
            if (sums_next) fetch_v(n_next + k_at);
            else fetch_k(k_at, m0, n_next);
        }
        if (begun) {
            if (sums) multiply_v(at, first);
            else multiply_k(at);
            at = STEP_SIZE - at;
        }
        if (!more) break;
        if (sums_next) stash_v(at);
        else stash_k(at);
        barrier();
        if (begun && sums_next && !sums) weigh(z, m0, n_next);
        begun = true;
        sums = sums_next;
        first = k_at;
        k_at += BK;
        if (sums ? k_at >= min(BN, SIZE_T - n_next) : k_at >= SIZE_D) {
            if (sums) n_next += BN;
            sums_next = !sums;
            k_at = 0;
        }
    }
    barrier();

    [[unroll]] for (int i = 0; i < TM / 4; i++) parts[column * (BM / 4) + i * ROWS + row] = total[i];
    barrier();
    [[unroll]] for (int i = 0; i < TM / 4; i++) {
        T4 sums = T4(0);
        [[unroll]] for (int c = 0; c < COLUMNS; c++) sums += parts[c * (BM / 4) + i * ROWS + row];
        [[unroll]] for (int r = 0; r < 4; r++) {
            T scale = inverse(sums[r]);
            [[unroll]] for (int j = 0; j < TW / 4; j++) {
                pool[row * PITCH_V + j * COLUMNS + column] = o[(4 * i + r) * (TW / 4) + j] * scale;
            }
            barrier();
            // out through shared memory: stores then run along rows, and their code is there once
            for (int e = thread; e < ROWS * WIDTH; e += THREADS) {
                int n = e % WIDTH, m = m0 + (i * ROWS + e / WIDTH) * 4 + r;
                if (m < SIZE_M && n < SIZE_N) store(z, m, n, 0, pool[e / WIDTH * PITCH_V + n / 4][n % 4]);
            }
            barrier();
        }
    }
}
