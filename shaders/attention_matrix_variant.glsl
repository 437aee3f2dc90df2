// The specialization constants of attention_matrix.glsl.

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int BM = 64;
layout(constant_id = 2) const int BN = 64;
layout(constant_id = 3) const int DEPTH = 64;   // at least the head size of Q and K
layout(constant_id = 4) const int WIDTH = 64;   // at least that of V
layout(constant_id = 5) const int ALIGNED = 0;  // 1 where offsets and strides are multiples of 8 elements
