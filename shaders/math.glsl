// Functions on elements. codegen/functions.py pastes the pieces that a kernel calls; each piece starts with a line "// ---- name".
// Accuracy targets (fp32): within 4 ulp where GLSL's own function is looser than that.

// ---- bf16_bits
// Round to nearest even; NaN stays a quiet NaN.
uint16_t bf16_bits(float x) {
    uint u = floatBitsToUint(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t((u >> 16) | 0x40u);
    return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
// ---- ov_isnan
// By bits: drivers may fold x != x away.
bool ov_isnan(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }
#ifdef HAS_F64
bool ov_isnan(double x) {
    uvec2 u = unpackDouble2x32(x);
    uint hi = u.y & 0x7fffffffu;
    return hi > 0x7ff00000u || (hi == 0x7ff00000u && u.x != 0u);
}
#endif
// ---- ov_inf
float ov_inf(float like) { return uintBitsToFloat(0x7f800000u); }
#ifdef HAS_F64
double ov_inf(double like) { return packDouble2x32(uvec2(0u, 0x7ff00000u)); }
#endif
// ---- ov_exp
float ov_exp(float x) { return exp(x); }
// ---- ov_log
float ov_log(float x) { return log(x); }
// ---- ov_trig
// Reduces x to r in [-pi/4, pi/4] and the quadrant q: three-part pi/2, good to |x| of about 1e5; beyond that a second pass.
float ov_trig(float x, out int q) {
    float n = roundEven(x * 0.636619772);
    if (abs(n) > 65536.0) {
        x = x - roundEven(x * 0.159154943) * 6.28318548202514648;
        n = roundEven(x * 0.636619772);
    }
    q = int(n);
    float r = fma(-n, 1.57079601287841796875, x);
    r = fma(-n, 3.1391647326017846e-7, r);
    return fma(-n, 5.3903025299577648e-15, r);
}
// ---- ov_sin_poly
float ov_sin_poly(float r) {
    float s = r * r;
    return fma(r * s, fma(s, fma(s, fma(s, 2.7557314e-6, -1.98412698e-4), 8.33333333e-3), -1.66666667e-1), r);
}
// ---- ov_cos_poly
float ov_cos_poly(float r) {
    float s = r * r;
    return fma(s, fma(s, fma(s, fma(s, 2.4801587e-5, -1.38888889e-3), 4.16666667e-2), -0.5), 1.0);
}
// ---- ov_sin
float ov_sin(float x) {
    int q;
    float r = ov_trig(x, q);
    float v = (q & 1) == 0 ? ov_sin_poly(r) : ov_cos_poly(r);
    return (q & 2) == 0 ? v : -v;
}
// ---- ov_cos
float ov_cos(float x) {
    int q;
    float r = ov_trig(x, q);
    float v = (q & 1) == 0 ? ov_cos_poly(r) : ov_sin_poly(r);
    return ((q + 1) & 2) == 0 ? v : -v;
}
// ---- ov_tan
float ov_tan(float x) { return ov_sin(x) / ov_cos(x); }
// ---- ov_atan
float ov_atan(float x) {
    float a = abs(x);
    bool inverted = a > 1.0;
    float z = inverted ? 1.0 / a : a;
    // one more halving keeps the polynomial's argument below tan(pi/8)
    bool shifted = z > 0.4142135624;
    float w = shifted ? (z - 1.0) / (z + 1.0) : z;
    float s = w * w;
    float p = fma(s, fma(s, fma(s, 8.05374449538e-2, -1.38776856032e-1), 1.99777106478e-1), -3.33329491539e-1);
    float r = fma(w * s, p, w) + (shifted ? 0.785398163397 : 0.0);
    r = inverted ? 1.57079632679 - r : r;
    return x < 0.0 ? -r : (x == 0.0 ? x : r);
}
// ---- ov_asin
float ov_asin(float x) {
    float a = abs(x);
    float z = a > 0.5 ? 0.5 * (1.0 - a) : a * a;
    float w = a > 0.5 ? sqrt(z) : a;
    float p = fma(z, fma(z, fma(z, fma(z, 4.2163199048e-2, 2.4181311049e-2), 4.5470025998e-2), 7.4953002686e-2), 1.6666752422e-1);
    float r = fma(w * z, p, w);
    r = a > 0.5 ? 1.57079632679 - 2.0 * r : r;
    return x < 0.0 ? -r : r;
}
// ---- ov_acos
float ov_acos(float x) {
    float a = abs(x);
    if (a > 0.5) {
        float r = 2.0 * ov_asin(sqrt(0.5 * (1.0 - a)));
        return x < 0.0 ? 3.14159265359 - r : r;
    }
    return 1.57079632679 - ov_asin(x);
}
// ---- ov_tanh
float ov_tanh(float x) {
    float a = abs(x);
    if (a < 0.625) {
        float s = x * x;
        float p = fma(s, fma(s, fma(s, fma(s, -5.70498872745e-3, 2.06390887954e-2), -5.37397155531e-2), 1.33314422036e-1), -3.33332819422e-1);
        return fma(x * s, p, x);
    }
    float r = 1.0 - 2.0 / (exp(2.0 * min(a, 15.0)) + 1.0);
    return ov_isnan(x) ? x : (x < 0.0 ? -r : r);
}
// ---- ov_sinh
float ov_sinh(float x) {
    float a = abs(x);
    if (a < 1.0) {
        float s = x * x;
        return fma(x * s, fma(s, fma(s, fma(s, 2.7557314e-6, 1.98412698e-4), 8.33333333e-3), 1.66666667e-1), x);
    }
    float e = exp(0.5 * a);
    float r = 0.5 * e * e - 0.5 / (e * e);
    return x < 0.0 ? -r : r;
}
// ---- ov_cosh
float ov_cosh(float x) {
    float e = exp(0.5 * abs(x));
    return 0.5 * e * e + 0.5 / (e * e);
}
// ---- ov_log1p
// Kahan's form: the error of 1 + x cancels.
float ov_log1p(float x) {
    precise float u = 1.0 + x;
    precise float d = u - 1.0;
    return u == 1.0 ? x : log(u) * (x / d);
}
// ---- ov_asinh
float ov_asinh(float x) {
    float a = abs(x);
    float r = a > 1.0e18 ? log(a) + 0.69314718056 : ov_log1p(a + a * a / (1.0 + sqrt(a * a + 1.0)));
    return x < 0.0 ? -r : r;
}
// ---- ov_acosh
float ov_acosh(float x) {
    if (x > 1.0e18) return log(x) + 0.69314718056;
    float t = x - 1.0;
    return ov_log1p(t + sqrt(2.0 * t + t * t));
}
// ---- ov_atanh
float ov_atanh(float x) { return 0.5 * ov_log1p(2.0 * x / (1.0 - x)); }
// ---- ov_erf
// Odd polynomial below 1; above it 1 - exp(-x^2) * p(1/(1 + x/2)) by a Chebyshev fit (fractional error below 1.2e-7,
// Numerical Recipes' erfcc form of the fit).
float ov_erf(float x) {
    float a = abs(x);
    if (a < 0.84375) {
        float s = x * x;
        float p = fma(s, fma(s, fma(s, fma(s, -2.37630166567e-5, -5.77027029649e-3), -2.84817495756e-2), -3.25042107247e-1), 1.28379167095e-1);
        float q = fma(s, fma(s, fma(s, fma(s, fma(s, -3.96022827878e-6, 1.32494738004e-4), 5.08130628188e-3), 6.50222499887e-2), 3.97917223959e-1), 1.0);
        return fma(x, p / q, x);
    }
    float t = 1.0 / fma(0.5, a, 1.0);
    float y = fma(t, fma(t, fma(t, fma(t, fma(t, fma(t, fma(t, fma(t, fma(t, 0.17087277, -0.82215223), 1.48851587), -1.13520398), 0.27886807), -0.18628806), 0.09678418), 0.37409196), 1.00002368), -1.26551223);
    float r = 1.0 - t * exp(fma(-a, a, y));
    return ov_isnan(x) ? x : (x < 0.0 ? -r : r);
}
// ---- ov_pow
// Small whole exponents by multiplication; else by exp2/log2 of the magnitude, with the sign of an odd whole exponent.
float ov_pow(float x, float y) {
    if (y == 2.0) return x * x;
    if (y == 1.0) return x;
    if (y == 0.0 || x == 1.0) return 1.0;
    if (y == 3.0) return x * x * x;
    if (y == 0.5) return sqrt(x);
    if (y == -1.0) return 1.0 / x;
    float r = pow(abs(x), y);
    if (x == 0.0) r = y > 0.0 ? 0.0 : uintBitsToFloat(0x7f800000u);
    if (x < 0.0 || (x == 0.0 && floatBitsToUint(x) != 0u)) {
        bool whole = floor(y) == y;
        bool odd = whole && abs(y) < 16777216.0 && (int(abs(y)) & 1) == 1;
        if (!whole && x != 0.0 && !isinf(x)) return uintBitsToFloat(0x7fc00000u);
        return odd ? -r : r;
    }
    return r;
}
// ---- ov_mod
float ov_mod(float a, float b) {
    precise float r = a - b * trunc(a / b);
    return r != 0.0 && (r < 0.0) != (b < 0.0) ? r + b : r;
}
#ifdef HAS_F64
double ov_mod(double a, double b) {
    precise double r = a - b * trunc(a / b);
    return r != 0.0LF && (r < 0.0LF) != (b < 0.0LF) ? r + b : r;
}
#endif
// ---- ov_fmod
float ov_fmod(float a, float b) {
    precise float r = a - b * trunc(a / b);
    return r;
}
#ifdef HAS_F64
double ov_fmod(double a, double b) {
    precise double r = a - b * trunc(a / b);
    return r;
}
#endif
// ---- ov_imod
// GLSL leaves % of negative operands undefined, so it is taken of magnitudes.
int ov_imod(int a, int b) {
    if (b == 0) return 0;
    uint r = uint(abs(a)) % uint(abs(b));
    int s = a < 0 ? -int(r) : int(r);
    return s != 0 && (s < 0) != (b < 0) ? s + b : s;
}
#ifdef HAS_I64
int64_t ov_imod(int64_t a, int64_t b) {
    if (b == 0l) return 0l;
    int64_t r = int64_t(uint64_t(a < 0l ? -a : a) % uint64_t(b < 0l ? -b : b));
    int64_t s = a < 0l ? -r : r;
    return s != 0l && (s < 0l) != (b < 0l) ? s + b : s;
}
#endif
// ---- ov_ifmod
int ov_ifmod(int a, int b) {
    if (b == 0) return 0;
    int r = int(uint(abs(a)) % uint(abs(b)));
    return a < 0 ? -r : r;
}
#ifdef HAS_I64
int64_t ov_ifmod(int64_t a, int64_t b) {
    if (b == 0l) return 0l;
    int64_t r = int64_t(uint64_t(a < 0l ? -a : a) % uint64_t(b < 0l ? -b : b));
    return a < 0l ? -r : r;
}
#endif
// ---- ov_ipow
int ov_ipow(int x, int y) {
    if (y < 0) return x == 1 ? 1 : (x == -1 ? ((y & 1) == 0 ? 1 : -1) : 0);
    int r = 1;
    for (int n = y; n > 0; n >>= 1) {
        if ((n & 1) == 1) r *= x;
        x *= x;
    }
    return r;
}
uint ov_ipow(uint x, uint y) {
    uint r = 1u;
    for (uint n = y; n > 0u; n >>= 1) {
        if ((n & 1u) == 1u) r *= x;
        x *= x;
    }
    return r;
}
#ifdef HAS_I64
int64_t ov_ipow(int64_t x, int64_t y) {
    if (y < 0l) return x == 1l ? 1l : (x == -1l ? ((y & 1l) == 0l ? 1l : -1l) : 0l);
    int64_t r = 1l;
    for (int64_t n = y; n > 0l; n >>= 1) {
        if ((n & 1l) == 1l) r *= x;
        x *= x;
    }
    return r;
}
uint64_t ov_ipow(uint64_t x, uint64_t y) {
    uint64_t r = 1ul;
    for (uint64_t n = y; n > 0ul; n >>= 1) {
        if ((n & 1ul) == 1ul) r *= x;
        x *= x;
    }
    return r;
}
#endif
// ---- ov_trunc_i32
// C's wrap-around for what does not fit is kept by way of 64 bits where they exist; NaN and larger magnitudes give the minimum.
int ov_trunc_i32(float x) {
    return ov_isnan(x) || x >= 2147483648.0 || x < -2147483648.0 ? -2147483647 - 1 : int(x);
}
#ifdef HAS_F64
int ov_trunc_i32(double x) {
    return ov_isnan(x) || x >= 2147483648.0LF || x < -2147483648.0LF ? -2147483647 - 1 : int(x);
}
#endif
// ---- ov_trunc_u32
uint ov_trunc_u32(float x) { return x < 0.0 ? uint(int(max(x, -2147483648.0))) : (x < 4294967296.0 ? uint(x) : 0u); }
#ifdef HAS_F64
uint ov_trunc_u32(double x) { return x < 0.0LF ? uint(int(max(x, -2147483648.0LF))) : (x < 4294967296.0LF ? uint(x) : 0u); }
#endif
// ---- ov_saturate_i8
int ov_saturate_i8(float x) { return ov_isnan(x) ? 0 : int(clamp(x, -128.0, 127.0)); }
// ---- ov_saturate_u8
uint ov_saturate_u8(float x) { return ov_isnan(x) ? 0u : uint(clamp(x, 0.0, 255.0)); }
// ---- ov_saturate_i16
int ov_saturate_i16(float x) { return ov_isnan(x) ? 0 : int(clamp(x, -32768.0, 32767.0)); }
// ---- ov_saturate_u16
uint ov_saturate_u16(float x) { return ov_isnan(x) ? 0u : uint(clamp(x, 0.0, 65535.0)); }
// ---- ov_saturate_i32
int ov_saturate_i32(float x) {
    return ov_isnan(x) ? 0 : (x >= 2147483648.0 ? 2147483647 : (x < -2147483648.0 ? -2147483647 - 1 : int(x)));
}
// ---- ov_saturate_u32
uint ov_saturate_u32(float x) { return ov_isnan(x) || x < 0.0 ? 0u : (x >= 4294967296.0 ? 0xffffffffu : uint(x)); }
