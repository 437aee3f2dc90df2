// Direct convolution for narrow groups (depthwise above all), channels-last: a thread makes COLUMNS outputs next to each other on
// the last spatial axis, of one channel; lanes run along channels.
//
// With WIDTH > 0 (one channel a group, dilation 1 on the last axis) the kernel's width and stride are constants: a thread loads
// each input of its row once and uses it for all of its outputs. With WIDTH 0 everything is a parameter.
//
// Grid: one dimension (folded past 65535) over channels (fastest), column tiles, rows (batch and the other spatial axes).
//
// The includer has included conv_direct_variant.glsl and defined: T, MAD, ROWS, SIZE_X (outputs on the last axis), SIZE_C (output
// channels) with DIVIDE_C(i), TAPS (of the axes but the last; 0 for an empty image), TAPS_X, PER_GROUP (input channels a group),
// CHANNELS (of the input), EXTENT_X, W_TAP and W_CHANNEL (strides of the weights along taps and input channels), and
//   void begin(int row, int channel)               sets x_base and w_base: the first input channel of the group, and its weight
//   bool source(int tap, out int at)               where the input row of a tap of the outer axes starts, if it is inside
//   int column(int x, int tap)                     the input column of tap `tap` of output x; negative or too large: outside
//   void store(int row, int x, int channel, int split, T acc)
//   x_at, w_at                                     element readers

void main() {
    int i = int((gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * gl_WorkGroupSize.x + gl_LocalInvocationID.x);
    int tiles = (SIZE_X + COLUMNS - 1) / COLUMNS;
    if (SIZE_C <= 0 || tiles <= 0) return;
    int group = DIVIDE_C(i);
    int channel = i - group * SIZE_C;
    int row = int(uint(group) / uint(tiles));
    int x0 = (group - row * tiles) * COLUMNS;
    if (row >= ROWS) return;

    begin(row, channel);
    T acc[COLUMNS];
    [[unroll]] for (int c = 0; c < COLUMNS; c++) acc[c] = T(0);
    // Loads stand under no condition: behind a branch, a GPU's compiler waits for each before it starts the next. What is outside
    // reads an element inside and counts as 0.
    for (int tap = 0; tap < TAPS; tap++) {
        int at;
        bool inside = source(tap, at);
        at = x_base + (inside ? at : 0);
        int w = w_base + tap * TAPS_X * W_TAP;
        if (WIDTH > 0) {
            T line[(COLUMNS - 1) * STRIDE + (WIDTH > 0 ? WIDTH : 1)];
            int first = column(x0, 0);
            [[unroll]] for (int j = 0; j < (COLUMNS - 1) * STRIDE + WIDTH; j++) {
                T x = x_at(at + clamp(first + j, 0, EXTENT_X - 1) * CHANNELS);
                line[j] = inside && uint(first + j) < uint(EXTENT_X) ? x : T(0);
            }
            [[unroll]] for (int t = 0; t < WIDTH; t++) {
                T weight = w_at(w + t * W_TAP);
                [[unroll]] for (int c = 0; c < COLUMNS; c++) acc[c] = MAD(line[c * STRIDE + t], weight, acc[c]);
            }
        } else {
            for (int t = 0; t < TAPS_X; t++) {
                int columns[COLUMNS];
                [[unroll]] for (int c = 0; c < COLUMNS; c++) columns[c] = column(x0 + c, t);
                for (int p = 0; p < PER_GROUP; p++) {
                    T weight = w_at(w + t * W_TAP + p * W_CHANNEL);
                    [[unroll]] for (int c = 0; c < COLUMNS; c++) {
                        T x = x_at(at + clamp(columns[c], 0, EXTENT_X - 1) * CHANNELS + p);
                        x = inside && uint(columns[c]) < uint(EXTENT_X) ? x : T(0);
                        acc[c] = MAD(x, weight, acc[c]);
                    }
                }
            }
        }
    }
    [[unroll]] for (int c = 0; c < COLUMNS; c++) {
        if (x0 + c < SIZE_X) store(row, x0 + c, channel, 0, acc[c]);
    }
}
