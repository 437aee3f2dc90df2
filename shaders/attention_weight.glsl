// The weight of a score in a softmax, as good as the device's exp2, which is enough for half floats. With BASE_2 defined scores are
// in a unit in which it is 2^x.
// With CLEAN defined a row with a NaN among its scores has no weights: NaN is then the highest score, and counted from it all are 0.

#define INFINITE uintBitsToFloat(0x7f800000u)

#ifdef CLEAN
bool is_nan(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }
float greater(float a, float b) { return is_nan(a) || a > b ? a : b; }
#else
float greater(float a, float b) { return max(a, b); }
#endif

// e^x.
float weight(float x) {
#ifdef CLEAN
    if (is_nan(x)) return 0.0;
#endif
#ifdef BASE_2
    return exp2(x);
#else
    return exp2(x * 1.44269502);
#endif
}

// What weights are counted from where `most` is the highest score: rows that have seen nothing but -inf are counted from 0.
float base_of(float most) { return most == -INFINITE ? 0.0 : most; }
