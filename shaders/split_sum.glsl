// The second launch of a split-K product: adds SPLITS partial results of SIZE elements each, in order, and stores the sums.
// The includer defines T, SIZE, T partial(int i) and void store(int i, T acc).

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int SPLITS = 2;

void main() {
    int i = int((gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * gl_WorkGroupSize.x + gl_LocalInvocationID.x);
    if (i >= SIZE) return;
    T acc = T(0);
    [[unroll]] for (int s = 0; s < SPLITS; s++) acc += partial(s * SIZE + i);
    store(i, acc);
}
