// The power of two that brings the largest finite element of each row of an operand to [2^14, 2^15), for gemm_matrix.glsl with
// PARTS 2. A row of zeros has some power of two.
//
// Grid: one dimension (folded past 65535): a workgroup of 128 a row with ALONG_K, else of 32 rows; rows fastest, then z.
// The includer defines T4, SIZE_Z, SIZE_R, SIZE_K, X_ALONG_K and X_VECTOR, void begin(int z), T4 x_quad(int row, int k, int k_end) and
// void store_scale(int z, int row, float scale).

const int THREADS = 128;
const int ROWS = X_ALONG_K ? 1 : 32;
const int K_LANES = X_ALONG_K ? THREADS : THREADS * 4 / ROWS;

shared T4 largest[THREADS];

void main() {
    int thread = int(gl_LocalInvocationID.x);
    int group = int(gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x);
    int groups = (SIZE_R + ROWS - 1) / ROWS;
    if (groups <= 0 || group / groups >= SIZE_Z) return;
    int z = group / groups, row = group % groups * ROWS;
    begin(z);
    int lane = X_ALONG_K ? thread : thread / (ROWS / 4);
    int own = X_ALONG_K ? row : row + thread % (ROWS / 4) * 4;
    T4 most = T4(0);
    for (int k = X_ALONG_K ? 4 * lane : lane; k < SIZE_K; k += X_ALONG_K ? 4 * K_LANES : K_LANES) {
        T4 q = abs(x_quad(own, k, SIZE_K));
        [[unroll]] for (int c = 0; c < 4; c++) {
            if (q[c] <= 3.402823466e38) most[c] = max(most[c], q[c]);
        }
    }
    largest[thread] = most;
    barrier();
    if (thread >= ROWS) return;
    float top = 0.0;
    if (X_ALONG_K) {
        for (int t = 0; t < THREADS; t++) {
            T4 q = largest[t];
            top = max(top, max(max(q.x, q.y), max(q.z, q.w)));
        }
    } else {
        for (int t = 0; t < K_LANES; t++) top = max(top, largest[t * (ROWS / 4) + thread / 4][thread % 4]);
    }
    int exponent = clamp(268 - int(floatBitsToUint(top) >> 23), 1, 253);
    if (row + thread < SIZE_R) store_scale(z, row + thread, uintBitsToFloat(uint(exponent) << 23));
}
