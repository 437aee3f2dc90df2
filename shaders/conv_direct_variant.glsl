// The specialization constants of conv_direct.glsl.

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int COLUMNS = 1;
layout(constant_id = 2) const int WIDTH = 0;
layout(constant_id = 3) const int STRIDE = 1;
