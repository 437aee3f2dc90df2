// The weight of a score in a softmax. With FAST_WEIGHTS defined it is as good as the device's exp2, which is enough for half floats.
// With CLEAN defined a row with a NaN among its scores has no weights: NaN is then the highest score, and counted from it all are 0.

#define INFINITE uintBitsToFloat(0x7f800000u)

#ifdef CLEAN
bool is_nan(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }
float greater(const in float a, const in float b) { return is_nan(a) || a > b ? a : b; }
#else
float greater(const in float a, const in float b) { return max(a, b); }
#endif
vec4 greater(vec4 a, vec4 b) { return vec4(greater(a.x, b.x), greater(a.y, b.y), greater(a.z, b.z), greater(a.w, b.w)); }

// e^x for x <= 0. As ov_exp in math.glsl, but results below 2^-125 are 0.
float weight(float x) {
#ifdef CLEAN
    if (is_nan(x)) return 0.0;
#endif
#ifdef FAST_WEIGHTS
    return exp2(x * 1.44269502);
#else
    float n = roundEven(x * 1.44269502);
    precise float r = x - n * 0.693359375;
    r = r + n * 2.12194440e-4;
    float p = fma(fma(fma(fma(0.0013950512511655688, r, 0.00836890283972025), r, 0.04166620597243309), r, 0.166665181517601), r, 0.5);
    float y = 1.0 + fma(r * r, p, r);
    return x < -87.0 ? 0.0 : y * uintBitsToFloat(uint(int(n) + 127) << 23);
#endif
}

// What weights are counted from where `most` is the highest score: rows that have seen nothing but -inf are counted from 0.
float base_of(float most) { return most == -INFINITE ? 0.0 : most; }
