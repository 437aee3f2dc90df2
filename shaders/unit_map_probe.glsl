// Which elements of a 16 x 16 matrix an invocation holds: matrices of the numbers 0 to 255, row by row, are loaded as sums (float32)
// and as the left operand (float16), and each invocation writes down its components.
//
// The includer has declared the push constant `numbers`, a pointer to 2 * THREADS * MOST uint.

const int MOST = 16;  // components that are written down

shared vec4 sums[64];
shared uvec4 halves[32];

void main() {
    int lane = int(gl_SubgroupInvocationID);
    for (int i = int(gl_LocalInvocationID.x); i < 64; i += THREADS) sums[i] = vec4(4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3);
    for (int i = int(gl_LocalInvocationID.x); i < 32; i += THREADS) {
        [[unroll]] for (int c = 0; c < 4; c++) halves[i][c] = packHalf2x16(vec2(8 * i + 2 * c, 8 * i + 2 * c + 1));
    }
    barrier();
    coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> sum;
    coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> left;
    coopMatLoad(sum, sums, 0, 4, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(left, halves, 0, 2, gl_CooperativeMatrixLayoutRowMajor);
    for (int i = 0; i < min(sum.length(), MOST); i++) numbers.v[lane * MOST + i] = uint(sum[i]);
    for (int i = 0; i < min(left.length(), MOST); i++) numbers.v[(THREADS + lane) * MOST + i] = uint(left[i]);
}
