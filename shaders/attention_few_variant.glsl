// The specialization constants of attention_few.glsl, which the operand readers between the two files see.

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int ROWS = 1;     // queries, rounded up
layout(constant_id = 2) const int DEPTH = 64;   // at least the head size of queries and keys
layout(constant_id = 3) const int WIDTH = 64;   // at least that of the values; WIDTH / 4 divides the workgroup
layout(constant_id = 4) const int SPLITS = 1;   // workgroups that share the keys
layout(constant_id = 5) const int K_MODE = 0;   // bit 1: quads are aligned vectors in memory
layout(constant_id = 6) const int V_MODE = 1;

const bool K_ALONG_K = true;
const bool K_VECTOR = (K_MODE & 2) != 0;
const bool K_WHOLE = false;  // whether no quad along the depth of a product reaches past its end
const bool V_ALONG_K = false;
const bool V_VECTOR = (V_MODE & 2) != 0;
