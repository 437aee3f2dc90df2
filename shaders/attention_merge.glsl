// The second launch of an attention whose keys were split: SPLITS partial sums of each row, each with the highest score that its
// weights were counted from and the total of its weights, become one.
//
// The includer has included attention_weight.glsl and defined: T, T4, SIZE (rows of all of the batch times SIZE_N), SIZE_N, and
//   T sums(int split, int row, int n), T highest(int split, int row), T total(int split, int row)
//   T inverse(T total)       as for attention.glsl
//   void store(int row, int n, int split, T acc)

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const int SPLITS = 2;

void main() {
    int at = int((gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * gl_WorkGroupSize.x + gl_LocalInvocationID.x);
    if (at >= SIZE) return;
    int row = at / SIZE_N, n = at - row * SIZE_N;
    T most = -INFINITE;
    for (int i = 0; i < SPLITS; i++) most = greater(most, highest(i, row));
    T from = base_of(most), whole = T(0), sum = T(0);
    for (int i = 0; i < SPLITS; i++) {
        T scale = weight(highest(i, row) - from);
        whole += total(i, row) * scale;
        sum += sums(i, row, n) * scale;
    }
    store(row, n, 0, sum * inverse(whole));
}
