// The specialization constants of gemm_skinny_matrix.glsl, which the operand readers between the two files see.

layout(local_size_x_id = 0) in;                    // SUBGROUP * SUBGROUPS
layout(constant_id = 1) const int SUBGROUP = 32;
layout(constant_id = 2) const int SUBGROUPS = 4;
layout(constant_id = 3) const int TILES = 2;       // tiles of 16 columns a workgroup
layout(constant_id = 4) const int ROW_TILES = 1;   // of 16 rows
layout(constant_id = 5) const int DEPTH = 64;      // elements along K that a subgroup takes at a time
layout(constant_id = 6) const int SPLITS = 1;
layout(constant_id = 7) const int W_MODE = 0;      // as in gemm_skinny_variant.glsl
layout(constant_id = 8) const int F_MODE = 0;
layout(constant_id = 9) const int WHOLE = 0;       // 1 where each part of K is whole steps of DEPTH
layout(constant_id = 10) const int AHEAD = 1;      // steps that are on their way in registers

const bool W_ALONG_K = (W_MODE & 1) == 0;
const bool W_VECTOR = (W_MODE & 2) != 0;
const bool W_OCTET = (W_MODE & 4) != 0;
const bool F_ALONG_K = (F_MODE & 1) == 0;
const bool F_VECTOR = (F_MODE & 2) != 0;
const bool F_OCTET = (F_MODE & 4) != 0;
const bool K_WHOLE = WHOLE != 0;
