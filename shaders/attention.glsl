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
// The includer has included attention_variant.glsl and defined: T, T4, MAD(a, b, c), SIZE_Z, SIZE_M (queries), SIZE_T (keys),
// SIZE_D (head size, at least 1), SIZE_N (head size of the values), INFINITE, and
//   void begin(int z)
//   T4 q_quad(int m, int k, int k_end), k_quad(int n, int k, int k_end), v_quad(int n, int k, int k_end)   as in gemm_tile.glsl
//   T score(int z, int m, int n, T s)          what becomes of a score
//   T inverse(T total)                         the factor of a row whose weights add up to total
//   T4 finished(T4 sums, T scale)              sums of such a row, scaled
//   void store(int z, int m, int n, int split, T acc)
// With FAST_WEIGHTS defined weights are as good as the device's exp2, which is enough for half floats.

// e^x for x <= 0. As ov_exp in math.glsl, but results below 2^-125 are 0.
float weight(float x) {
#ifdef FAST_WEIGHTS
    return exp2(x * 1.44269502);
#else
    float n = roundEven(x * 1.44269502);
    precise float r = x - n * 0.693359375;
    r = r + n * 2.12194440e-4;
    float p = fma(fma(fma(fma(0.0013950512511655688, r, 0.00836890283972025), r, 0.04166620597243309), r, 0.166665181517601), r, 0.5);
    float y = 1.0 + fma(r * r, p, r);
    return x < -87.0 ? 0.0 : y * uintBitsToFloat(uint(int(n) + 127) << 23);
#endif
}

const int COLUMNS = 8;  // threads that share a row
const int THREADS = int(gl_WorkGroupSize.x);
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
T s[TM * TN];   // [row][key]
T4 o[TM * TW / 4];  // [row][quad of columns]
T highest[TM];
T total[TM];    // of the weights that this thread has made

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
        [[unroll]] for (int i = 0; i < TM; i++) {
            [[unroll]] for (int j = 0; j < TN; j++) s[i * TN + j] = MAD(a[i / 4][i % 4], b[j / 4][j % 4], s[i * TN + j]);
        }
    }
}

void multiply_v(int at, int first) {
    [[unroll]] for (int k = 0; k < BK; k++) {
        T4 a[TM / 4];
        T4 b[TW / 4];
        [[unroll]] for (int i = 0; i < TM / 4; i++) a[i] = weights[(first + k) * PITCH_Q + i * ROWS + row];
        [[unroll]] for (int j = 0; j < TW / 4; j++) b[j] = pool[at + k * PITCH_V + j * COLUMNS + column];
        [[unroll]] for (int i = 0; i < TM; i++) {
            [[unroll]] for (int j = 0; j < TW / 4; j++) o[i * (TW / 4) + j] = MAD(T4(a[i / 4][i % 4]), b[j], o[i * (TW / 4) + j]);
        }
    }
}

// The sum or maximum over the threads of each row, of a value a thread and row.
void share(T own[TM]) {
    [[unroll]] for (int i = 0; i < TM / 4; i++) {
        parts[column * (BM / 4) + i * ROWS + row] = T4(own[4 * i], own[4 * i + 1], own[4 * i + 2], own[4 * i + 3]);
    }
    barrier();
}

// What the scores of keys n0 .. n0 + BN make of the rows: weights in shared memory, sums and totals scaled to the highest score.
void weigh(int z, int m0, int n0) {
    T own[TM];
    [[unroll]] for (int i = 0; i < TM; i++) {
        own[i] = highest[i];
        int m = min(m0 + (i / 4 * ROWS + row) * 4 + i % 4, SIZE_M - 1);
        [[unroll]] for (int j = 0; j < TN; j++) {
            int n = n0 + (j / 4 * COLUMNS + column) * 4 + j % 4;
            T x = score(z, m, min(n, SIZE_T - 1), s[i * TN + j]);
            s[i * TN + j] = n < SIZE_T ? x : -INFINITE;
            own[i] = max(own[i], s[i * TN + j]);
        }
    }
    share(own);
    [[unroll]] for (int i = 0; i < TM / 4; i++) {
        T4 most = parts[i * ROWS + row];
        [[unroll]] for (int c = 1; c < COLUMNS; c++) most = max(most, parts[c * (BM / 4) + i * ROWS + row]);
        [[unroll]] for (int r = 0; r < 4; r++) {
            // rows that have seen nothing but -inf are counted from 0: their weights are 0
            T from = most[r] == -INFINITE ? T(0) : most[r];
            T scale = weight(highest[4 * i + r] - from);
            highest[4 * i + r] = most[r];
            total[4 * i + r] *= scale;
            [[unroll]] for (int j = 0; j < TN; j++) {
                T w = weight(s[(4 * i + r) * TN + j] - from);
                s[(4 * i + r) * TN + j] = w;
                total[4 * i + r] += w;
            }
            [[unroll]] for (int j = 0; j < TW / 4; j++) o[(4 * i + r) * (TW / 4) + j] *= scale;
        }
        [[unroll]] for (int j = 0; j < TN; j++) {
            int key = (j / 4 * COLUMNS + column) * 4 + j % 4;
            weights[key * PITCH_Q + i * ROWS + row] =
                T4(s[4 * i * TN + j], s[(4 * i + 1) * TN + j], s[(4 * i + 2) * TN + j], s[(4 * i + 3) * TN + j]);
        }
    }
    [[unroll]] for (int i = 0; i < TM * TN; i++) s[i] = T(0);
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
    [[unroll]] for (int i = 0; i < TM * TN; i++) s[i] = T(0);
    [[unroll]] for (int i = 0; i < TM * TW / 4; i++) o[i] = T4(0);
    [[unroll]] for (int i = 0; i < TM; i++) {
        highest[i] = -INFINITE;
        total[i] = T(0);
    }

    int at = 0;
    if (SIZE_T > 0) {
        fetch_k(0, m0, 0);
        stash_k(0);
    }
    barrier();
    for (int n0 = 0; n0 < SIZE_T; n0 += BN) {
        for (int k = 0; k < SIZE_D; k += BK) {
            bool more = k + BK < SIZE_D;  // the same for all threads, as all conditions here
            if (more) fetch_k(k + BK, m0, n0);
            else fetch_v(n0);
            multiply_k(at);
            at = STEP_SIZE - at;
            if (more) stash_k(at);
            else stash_v(at);
            barrier();
        }
        weigh(z, m0, n0);
        int end = min(SIZE_T - n0, BN);
        for (int k = 0; k < end; k += BK) {
            bool more = k + BK < end, next = !more && n0 + BN < SIZE_T;
            if (more) fetch_v(n0 + k + BK);
            if (next) fetch_k(0, m0, n0 + BN);
            multiply_v(at, k);
            at = STEP_SIZE - at;
            if (more) stash_v(at);
            if (next) stash_k(at);
            barrier();
        }
    }

    share(total);
    [[unroll]] for (int i = 0; i < TM / 4; i++) {
        T4 sums = T4(0);
        [[unroll]] for (int c = 0; c < COLUMNS; c++) sums += parts[c * (BM / 4) + i * ROWS + row];
        [[unroll]] for (int r = 0; r < 4; r++) {
            T scale = inverse(sums[r]);
            [[unroll]] for (int j = 0; j < TW / 4; j++) {
                pool[row * PITCH_V + j * COLUMNS + column] = finished(o[(4 * i + r) * (TW / 4) + j], scale);
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
