// Attention of few queries: the keys and values are streamed once, the queries wait in shared memory.
//
// A workgroup takes as many keys a step as it has threads. For the scores 8 threads share a key, each takes every eighth quad of
// the head, and their sums meet in shared memory; then a thread has one key of all rows, and makes its weights. For the values a
// thread has a quad of columns, and the threads of the same columns share out the keys. With SPLITS > 1 workgroups share out the
// keys too, and write what attention_merge.glsl puts together.
//
// Grid: one dimension (folded past 65535): batch fastest, then split.
//
// The includer has included attention_few_variant.glsl and attention_weight.glsl and defined: T, T4, MAD(a, b, c), SIZE_Z, SIZE_M
// (at most ROWS), SIZE_T (keys), SIZE_D (at least 1), SIZE_N, and
//   void begin(int z)
//   T query(int z, int m, int d)
//   T4 k_quad(int n, int k, int k_end)      4 elements of key n; 0 from k_end on
//   T4 v_quad(int n, int k, int k_end)      4 columns of key k; 0 from k_end on
//   T score(int z, int m, int n, T s)       what becomes of a score
//   void part(int z, int m, int n, int split, T4 sums, T highest, T total)      the sums of columns n .. n + 3

const int THREADS = int(gl_WorkGroupSize.x);
const int LANES = 8;            // threads that share a key
const int TURNS = 8;            // keys of a thread
const int PITCH = LANES + 1;
const int COLUMNS = WIDTH / 4;
const int KEY_LANES = THREADS / COLUMNS;
const int UNROLLED = 4;

shared T4 queries[ROWS * (DEPTH / 4)];
shared T sums[THREADS * PITCH];
shared T4 weights[ROWS * (THREADS / 4)];
shared T4 columns[THREADS];

void main() {
    if (min(min(SIZE_M, SIZE_N), SIZE_Z) <= 0) return;
    int thread = int(gl_LocalInvocationID.x);
    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    int z = int(group % uint(SIZE_Z)), split = int(group / uint(SIZE_Z));
    if (split >= SPLITS) return;
    int share = ((SIZE_T + SPLITS - 1) / SPLITS + THREADS - 1) / THREADS * THREADS;
    int first = split * share, end = min(first + share, SIZE_T);

    begin(z);
    for (int e = thread; e < ROWS * DEPTH; e += THREADS) {
        int m = e / DEPTH, d = e % DEPTH;
        T x = query(z, min(m, SIZE_M - 1), min(d, SIZE_D - 1));
        queries[e / 4][e % 4] = m < SIZE_M && d < SIZE_D ? x : T(0);
    }
    T highest[ROWS];
    T total[ROWS];  // of the weights that this thread has made
    T4 o[ROWS];
    [[unroll]] for (int r = 0; r < ROWS; r++) {
        highest[r] = -INFINITE;
        total[r] = T(0);
        o[r] = T4(0);
    }
    barrier();

    int lane = thread % LANES, key = thread / LANES;
    int column = thread % COLUMNS, key_lane = thread / COLUMNS;
    for (int n0 = first; n0 < end; n0 += THREADS) {
        T s[TURNS * ROWS];
        [[unroll]] for (int i = 0; i < TURNS * ROWS; i++) s[i] = T(0);
        for (int d = lane * 4; d < DEPTH; d += LANES * 4) {
            T4 k[TURNS];
            [[unroll]] for (int i = 0; i < TURNS; i++) k[i] = k_quad(n0 + key + i * (THREADS / LANES), d, SIZE_D);
            [[unroll]] for (int r = 0; r < ROWS; r++) {
                T4 q = queries[r * (DEPTH / 4) + d / 4];
                [[unroll]] for (int i = 0; i < TURNS; i++) {
                    [[unroll]] for (int c = 0; c < 4; c++) s[i * ROWS + r] = MAD(q[c], k[i][c], s[i * ROWS + r]);
                }
            }
        }
        T x[ROWS];
        int n = n0 + thread;
        [[unroll]] for (int r = 0; r < ROWS; r++) {
            [[unroll]] for (int i = 0; i < TURNS; i++) sums[(key + i * (THREADS / LANES)) * PITCH + lane] = s[i * ROWS + r];
            barrier();
            T whole = T(0);
            [[unroll]] for (int l = 0; l < LANES; l++) whole += sums[thread * PITCH + l];
            whole = score(z, min(r, SIZE_M - 1), min(n, SIZE_T - 1), whole);
            x[r] = n < end ? whole : -INFINITE;
            weights[r * (THREADS / 4) + thread / 4][thread % 4] = x[r];
            barrier();
        }
        [[unroll]] for (int r = 0; r < ROWS; r++) {
            T4 most = T4(highest[r]);
            for (int i = 0; i < THREADS / 4; i++) most = greater(most, weights[r * (THREADS / 4) + i]);
            T most_of_all = greater(greater(most[0], most[1]), greater(most[2], most[3]));
            T from = base_of(most_of_all), scale = weight(highest[r] - from);
            highest[r] = most_of_all;
            x[r] = weight(x[r] - from);
            total[r] = total[r] * scale + x[r];
            o[r] *= scale;
        }
        barrier();
        [[unroll]] for (int r = 0; r < ROWS; r++) weights[r * (THREADS / 4) + thread / 4][thread % 4] = x[r];
        barrier();
        for (int k0 = key_lane; k0 < THREADS; k0 += KEY_LANES * UNROLLED) {
            T4 v[UNROLLED];
            [[unroll]] for (int i = 0; i < UNROLLED; i++) v[i] = v_quad(column * 4, n0 + k0 + i * KEY_LANES, end);
            [[unroll]] for (int i = 0; i < UNROLLED; i++) {
                int k = k0 + i * KEY_LANES;
                [[unroll]] for (int r = 0; r < ROWS; r++) o[r] = MAD(T4(weights[r * (THREADS / 4) + k / 4][k % 4]), v[i], o[r]);
            }
        }
        barrier();
    }

    [[unroll]] for (int r = 0; r < ROWS; r++) {
        sums[thread] = total[r];
        columns[thread] = o[r];
        barrier();
        if (r < SIZE_M && thread < COLUMNS && thread * 4 < SIZE_N) {
            T whole = T(0);
            for (int i = 0; i < THREADS; i++) whole += sums[i];
            T4 all = T4(0);
            for (int i = 0; i < KEY_LANES; i++) all += columns[i * COLUMNS + thread];
            part(z, r, thread * 4, split, all, highest[r], whole);
        }
        barrier();
    }
}
