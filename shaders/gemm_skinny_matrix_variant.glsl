// The specialization constants of gemm_skinny_matrix.glsl and gemm_blocks_matrix.glsl, which the operand readers between the two files see.

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int SUBGROUPS = 16;  // of a workgroup
layout(constant_id = 2) const int SUBGROUP = 32;   // invocations of each
layout(constant_id = 3) const int UNITS_F = 1;     // units of 16 rows of F
layout(constant_id = 4) const int UNITS_W = 2;     // units of 16 columns of W
layout(constant_id = 5) const int SPLITS = 1;
layout(constant_id = 6) const int W_MODE = 0;  // bit 0: quads along the columns instead of K; bit 1: quads are aligned vectors; bit 2: chunks are,
layout(constant_id = 7) const int F_MODE = 0;  // or with bit 3 lie in one piece
layout(constant_id = 8) const int PREFETCH = 4;    // steps on their way
layout(constant_id = 9) const int FEW = 16;        // rows of F that are read, a power of two; the rest of its units may be anything

const bool W_ALONG_K = (W_MODE & 1) == 0;
const bool W_VECTOR = (W_MODE & 2) != 0;
const bool W_CHUNKS = (W_MODE & 12) != 0;
const bool W_SHIFTED = (W_MODE & 8) != 0;
const bool F_ALONG_K = (F_MODE & 1) == 0;
const bool F_VECTOR = (F_MODE & 2) != 0;
const bool F_CHUNKS = (F_MODE & 12) != 0;
const bool F_SHIFTED = (F_MODE & 8) != 0;
const bool K_WHOLE = false;  // whether no quad along K reaches past the end
