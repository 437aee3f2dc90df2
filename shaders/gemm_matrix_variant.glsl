// The specialization constants of gemm_matrix.glsl, which the operand readers between the two files see.

layout(local_size_x_id = 0) in;  // (BM / WM) * (BN / WN) subgroups
layout(constant_id = 1) const int BM = 64;
layout(constant_id = 2) const int BN = 64;
layout(constant_id = 3) const int BK = 32;
layout(constant_id = 4) const int WM = 32;
layout(constant_id = 5) const int WN = 32;
layout(constant_id = 6) const int SPLITS = 1;
layout(constant_id = 7) const int SUBGROUP = 32;
layout(constant_id = 8) const int WHOLE = 0;     // 1 where every split of K is whole rounds of PREFETCH steps
layout(constant_id = 9) const int VECTORS = 0;   // 1 where rows of the result are whole vectors of STORE_WIDTH in memory
layout(constant_id = 10) const int A_MODE = 0;   // bit 0: quads along M instead of K; bit 1: quads are aligned vectors in memory;
layout(constant_id = 11) const int B_MODE = 0;   // bit 2: so are chunks of 16 bytes; bit 3: they lie in one piece, but not aligned
layout(constant_id = 12) const int TAP_STEP = 0;  // convolutions: 1 where each step of BK lies in one tap

const bool A_ALONG_K = (A_MODE & 1) == 0;
const bool A_VECTOR = (A_MODE & 2) != 0;
const bool A_CHUNKS = (A_MODE & 12) != 0;
const bool A_SHIFTED = (A_MODE & 8) != 0;
const bool B_ALONG_K = (B_MODE & 1) == 0;
const bool B_VECTOR = (B_MODE & 2) != 0;
const bool B_CHUNKS = (B_MODE & 12) != 0;
const bool B_SHIFTED = (B_MODE & 8) != 0;
const bool K_WHOLE = WHOLE != 0;  // nothing along K reaches past the end
