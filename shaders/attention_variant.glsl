// The specialization constants of attention.glsl, which the operand readers between the two files see.

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int TM = 4;      // rows of a thread
layout(constant_id = 2) const int BN = 64;     // keys of a step
layout(constant_id = 3) const int BK = 16;     // elements of the head, or keys, that pass through shared memory at a time
layout(constant_id = 4) const int WIDTH = 64;  // at least the head size of the values
layout(constant_id = 5) const int Q_MODE = 0;  // bit 0: quads along the rows, keys or columns instead of the depth of the product
layout(constant_id = 6) const int K_MODE = 0;  // bit 1: quads are aligned vectors in memory
layout(constant_id = 7) const int V_MODE = 0;
layout(constant_id = 8) const int THREADS = 128;  // the size of the workgroup again

const bool Q_ALONG_K = (Q_MODE & 1) == 0;
const bool Q_VECTOR = (Q_MODE & 2) != 0;
const bool K_ALONG_K = (K_MODE & 1) == 0;
const bool K_VECTOR = (K_MODE & 2) != 0;
const bool K_WHOLE = false;  // whether no quad along the depth of a product reaches past its end
const bool V_ALONG_K = (V_MODE & 1) == 0;
const bool V_VECTOR = (V_MODE & 2) != 0;
