// The specialization constants of gemm_skinny.glsl, which the operand readers between the two files see.

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int THREADS = 128;  // the workgroup size again: constant expressions cannot read the first
layout(constant_id = 2) const int ROWS = 1;
layout(constant_id = 3) const int K_LANES = 8;
layout(constant_id = 4) const int SPLITS = 1;
layout(constant_id = 5) const int W_MODE = 0;  // bit 0: quads along the columns instead of K; bit 1: quads are aligned vectors; bit 2: octets are
layout(constant_id = 6) const int F_MODE = 0;  // the same bits
layout(constant_id = 7) const int UNROLLED = 1;  // blocks of W that a thread takes at a time
layout(constant_id = 8) const int STAGED = 0;    // 1: F goes through shared memory
layout(constant_id = 9) const int WHOLE = 0;     // 1 where K is whole steps
layout(constant_id = 10) const int EARLY = 0;    // 1: the next step's loads of W are on their way while a step is multiplied

const bool W_ALONG_K = (W_MODE & 1) == 0;
const bool W_VECTOR = (W_MODE & 2) != 0;
const bool W_OCTET = (W_MODE & 4) != 0;
const bool F_ALONG_K = (F_MODE & 1) == 0;
const bool F_VECTOR = (F_MODE & 2) != 0;
const bool F_OCTET = (F_MODE & 4) != 0;
const bool K_WHOLE = WHOLE != 0;
const bool F_STAGED = STAGED != 0;
const bool AHEAD = EARLY != 0;
