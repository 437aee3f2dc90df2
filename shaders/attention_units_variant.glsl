// The specialization constants of attention_units.glsl, which the operand readers between the two files see.

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int THREADS = 128;  // the size of the workgroup again, whole subgroups of 32
layout(constant_id = 2) const int ROW_UNITS = 1;  // times 16 rows a subgroup
layout(constant_id = 3) const int BN = 64;        // keys of a step
layout(constant_id = 4) const int DEPTH = 64;     // at least the head size of queries and keys
layout(constant_id = 5) const int WIDTH = 64;     // at least that of the values
layout(constant_id = 6) const int MODES = 0;      // 1, 2, 4: quads of Q, K, V are aligned vectors in memory; 8, 16, 32: octets; 64: quads of masks

const bool Q_ALONG_K = true;
const bool Q_VECTOR = (MODES & 1) != 0;
const bool K_ALONG_K = true;
const bool K_VECTOR = (MODES & 2) != 0;
const bool V_ALONG_K = false;
const bool V_VECTOR = (MODES & 4) != 0;
const bool Q_OCTET = (MODES & 8) != 0;
const bool K_OCTET = (MODES & 16) != 0;
const bool V_OCTET = (MODES & 32) != 0;
const bool MASK_QUADS = (MODES & 64) != 0;
const bool K_WHOLE = false;  // whether no quad along the depth of a product reaches past its end
