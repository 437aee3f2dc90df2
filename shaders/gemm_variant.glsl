// The specialization constants of gemm_tile.glsl, which the operand readers between the two files see.

layout(local_size_x_id = 0) in;  // (BM / TM) * (BN / TN)
layout(constant_id = 1) const int BM = 64;
layout(constant_id = 2) const int BN = 64;
layout(constant_id = 3) const int BK = 16;
layout(constant_id = 4) const int TM = 4;
layout(constant_id = 5) const int TN = 4;
layout(constant_id = 6) const int SPLITS = 1;
layout(constant_id = 7) const int VECTORS = 0;   // 1 where rows of the result are whole vectors of four in memory
layout(constant_id = 8) const int A_MODE = 0;    // bit 0: quads along M instead of K; bit 1: quads are aligned vectors in memory
layout(constant_id = 9) const int B_MODE = 0;    // bit 0: quads along N instead of K; bit 1 as above
layout(constant_id = 10) const int TAP_STEP = 0; // convolutions: 1 where each step of BK lies in one tap

const bool A_ALONG_K = (A_MODE & 1) == 0;
const bool A_VECTOR = (A_MODE & 2) != 0;
const bool B_ALONG_K = (B_MODE & 1) == 0;
const bool B_VECTOR = (B_MODE & 2) != 0;
const bool K_WHOLE = false;  // whether no quad along K reaches past the end
