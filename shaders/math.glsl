// Functions on elements. codegen/functions.py pastes the pieces that a kernel calls; each piece starts with a line "// ---- name".
// A piece whose name ends in 64 takes the place of the shorter name for 8-byte types.
//
// Accuracy: within 4 ulp in fp32 for every argument, special values as in IEEE 754 / C. Nothing here leans on the
// driver's own transcendental functions (Vulkan allows them 2^-11 in places), nothing on fma() being fused: constants that cancel
// have few enough bits for their products to be exact. Polynomials are minimax fits of the function on the range that is written
// beside them. Pieces whose names end in _coarse are for results that end as half floats: they are right to 2^-16, and lean on the
// driver's exp, which is right to 3 + 2 |x| ulp.

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
// ---- ov_nan
float ov_nan() { return uintBitsToFloat(0x7fc00000u); }
// ---- ov_signed
// Magnitude r with the sign of x, the sign of zeros included. By a choice: a driver joins masks wrongly where x is a negated number.
float ov_signed(float r, float x) {
    return uintBitsToFloat(floatBitsToInt(x) < 0 ? floatBitsToUint(r) | 0x80000000u : floatBitsToUint(r) & 0x7fffffffu);
}
// ---- ov_nonzero
// By bits: a device may flush subnormal operands of a comparison.
bool ov_nonzero(float x) { return (floatBitsToUint(x) << 1) != 0u; }
// ---- ov_scale
// x * 2^k for k in -252 .. 254, in two steps so that neither factor overflows.
float ov_scale(float x, int k) {
    int half_k = k >> 1;
    return x * uintBitsToFloat(uint(half_k + 127) << 23) * uintBitsToFloat(uint(k - half_k + 127) << 23);
}
// ---- ov_exp
// e^x = 2^n e^r with |r| <= ln(2)/2; ln(2) in two parts, the first of 10 bits.
float ov_exp(float x) {
    if (ov_isnan(x)) return x;
    if (x > 88.7228394) return uintBitsToFloat(0x7f800000u);
    if (x < -103.972084) return 0.0;
    float n = roundEven(x * 1.44269502);
    precise float r = x - n * 0.693359375;
    r = r + n * 2.12194440e-4;
    float p = fma(fma(fma(fma(0.0013950512511655688, r, 0.00836890283972025), r, 0.04166620597243309), r, 0.166665181517601), r, 0.5);
    return ov_scale(1.0 + fma(r * r, p, r), int(n));
}
// ---- ov_exp_coarse
float ov_exp_coarse(float x) { return ov_isnan(x) ? x : exp(x); }
// ---- ov_log
// x = 2^k m with m in [sqrt(1/2), sqrt(2)); log(m) = f - f^2/2 + f^3 p(f) with f = m - 1.
float ov_log(float x) {
    uint u = floatBitsToUint(x);
    if (u >= 0x7f800000u) return u == 0x80000000u ? -uintBitsToFloat(0x7f800000u) : (u == 0x7f800000u ? x : ov_nan());
    if (u == 0u) return -uintBitsToFloat(0x7f800000u);
    int k = 0;
    if (u < 0x00800000u) {
        k = findMSB(u) - 23;
        u = (u << -k) + 0u;
        u = (u & 0x007fffffu) | 0x00800000u;
    }
    int e = int(u - 0x3f3504f3u) >> 23;
    float f = uintBitsToFloat(u - (uint(e) << 23)) - 1.0;
    float n = float(e + k);
    float p = fma(fma(fma(fma(0.06915368139743805, f, -0.11789807677268982), f, 0.11872976273298264), f, -0.1238434836268425), f, 0.14218658208847046);
    p = fma(fma(fma(fma(p, f, -0.16669251024723053), f, 0.20002226531505585), f, -0.24999986588954926), f, 0.3333331048488617);
    float z = f * f;
    precise float y = f * z * p + n * -2.12194440e-4;
    y = y - 0.5 * z;
    y = f + y;
    return y + n * 0.693359375;
}
// ---- ov_trig_far
// The remainder of |x| >= 2^12 by pi/2 and the quadrant, exact for every float (Payne and Hanek, "Radian reduction for trigonometric
// functions", 1983): 96 bits of 2/pi from the weight on at which the product with the mantissa matters modulo 4.
float ov_trig_far(float x, out int q) {
    const uint words[8] = uint[8](0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu);
    uint u = floatBitsToUint(x);
    uint m = (u & 0x007fffffu) | 0x00800000u;
    int p = int((u >> 23) & 0xffu) - 127 + 7;
    int w = p >> 5, s = p & 31;
    uint a = words[w], b = words[w + 1], c = words[w + 2];
    if (s != 0) {
        a = (a << s) | (b >> (32 - s));
        b = (b << s) | (c >> (32 - s));
        c = (c << s) | (words[w + 3] >> (32 - s));
    }
    uint hi, lo, hi2, lo2, carry;
    umulExtended(m, c, hi, lo);
    umulExtended(m, b, hi2, lo2);
    uint middle = uaddCarry(hi, lo2, carry);
    uint top = hi2 + m * a + carry;
    q = int(top >> 30);
    uint f = (top << 2) | (middle >> 30), g = (middle << 2) | (lo >> 30);
    bool negative = (f & 0x80000000u) != 0u;
    if (negative) {
        q += 1;
        g = ~g + 1u;
        f = ~f + (g == 0u ? 1u : 0u);
    }
    int shift = f != 0u ? 31 - findMSB(f) : 63 - findMSB(max(g, 1u));
    uint v = shift == 0 ? f : (shift < 32 ? (f << shift) | (g >> (32 - shift)) : g << (shift - 32));
    float r = float(v) * uintBitsToFloat(uint(127 - 32 - shift) << 23) * 1.57079637;
    if (negative) r = -r;
    if ((u & 0x80000000u) != 0u) {
        q = -q;
        r = -r;
    }
    return r;
}
// ---- ov_trig
// The remainder of x by pi/2, in [-pi/4, pi/4], and the quadrant. pi/2 in three parts, the first two of 11 bits.
float ov_trig(float x, out int q) {
    if (!(abs(x) < 6000.0)) {
        if ((floatBitsToUint(x) & 0x7fffffffu) >= 0x7f800000u) {
            q = 0;
            return ov_nan();
        }
        return ov_trig_far(x, q);
    }
    float n = roundEven(x * 0.636619747);
    precise float r = x - n * 1.5703125;
    r = r - n * 4.837512969970703e-4;
    r = r - n * 7.549790126404332e-08;
    q = int(n);
    return r;
}
// ---- ov_sin_poly
// On [-pi/4, pi/4].
float ov_sin_poly(float r) {
    float s = r * r;
    return fma(r * s, fma(s, fma(s, fma(s, 2.717938286878052e-06, -0.00019839295418933034), 0.008333329111337662), -0.1666666716337204), r);
}
// ---- ov_cos_poly
// On [-pi/4, pi/4].
float ov_cos_poly(float r) {
    float s = r * r;
    float p = fma(s, fma(s, 2.4434844817733392e-05, -0.0013887337408959866), 0.04166664555668831);
    return fma(s * s, p, fma(s, -0.5, 1.0));
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
// ---- ov_div
// Vulkan promises 2.5 ulp only for divisors up to 2^126; above that a driver may answer 0.
float ov_div(float a, float b) {
    float scale = abs(b) > 8.5e37 ? 0.25 : 1.0;
    return (a * scale) / (b * scale);
}
// ---- ov_div_coarse
// By the reciprocal, which is computed once where many numbers have one divisor.
float ov_div_coarse(float a, float b) {
    float scale = abs(b) > 8.5e37 ? 0.25 : 1.0;
    return (a * scale) * (1.0 / (b * scale));
}
// ---- ov_div_rn
// The driver's quotient with one correction by its residual, which is exact: the product is taken apart as Dekker does.
float ov_div_rn(float a, float b) {
    float q = ov_div(a, b);
    if (!(abs(q) > 1.0e-10 && abs(q) < 1.0e10 && abs(b) > 1.0e-10 && abs(b) < 1.0e10)) return q;
    precise float b_wide = 4097.0 * b;
    precise float b_high = b_wide - (b_wide - b);
    precise float b_low = b - b_high;
    precise float q_wide = 4097.0 * q;
    precise float q_high = q_wide - (q_wide - q);
    precise float q_low = q - q_high;
    precise float product = q * b;
    precise float lost = ((q_high * b_high - product) + q_high * b_low + q_low * b_high) + q_low * b_low;
    precise float residual = (a - product) - lost;
    precise float corrected = q + residual / b;
    return corrected;
}
// ---- ov_tan
float ov_tan(float x) {
    int q;
    float r = ov_trig(x, q);
    float s = ov_sin_poly(r), c = ov_cos_poly(r);
    return (q & 1) == 0 ? ov_div_rn(s, c) : ov_div_rn(-c, s);
}
// ---- ov_atan
float ov_atan(float x) {
    if (ov_isnan(x)) return x;
    float a = abs(x);
    bool inverted = a > 1.0;
    float z = inverted ? 1.0 / a : a;
    // one more halving keeps the polynomial's argument below tan(pi/8)
    bool shifted = z > 0.4142135624;
    float w = shifted ? (z - 1.0) / (z + 1.0) : z;
    float s = w * w;
    float p = fma(s, fma(s, fma(s, 8.05374449538e-2, -1.38776856032e-1), 1.99777106478e-1), -3.33329491539e-1);
    // pi/4 and pi/2 are their float plus what the float lacks
    float r = fma(w * s, p, w);
    if (shifted) r = (r - 2.18556941e-8) + 0.785398185253;
    return ov_signed(inverted ? (-4.37113883e-8 - r) + 1.57079637051 : r, x);
}
// ---- ov_asin
float ov_asin(float x) {
    float a = abs(x);
    if (!(a <= 1.0)) return ov_nan();
    float z = a > 0.5 ? 0.5 * (1.0 - a) : a * a;
    float w = a > 0.5 ? sqrt(z) : a;
    float p = fma(z, fma(z, fma(z, fma(z, 4.2163199048e-2, 2.4181311049e-2), 4.5470025998e-2), 7.4953002686e-2), 1.6666752422e-1);
    float r = fma(w * z, p, w);
    return ov_signed(a > 0.5 ? 1.57079632679 - 2.0 * r : r, x);
}
// ---- ov_acos
float ov_acos(float x) {
    float a = abs(x);
    if (!(a <= 1.0)) return ov_nan();
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
    return ov_isnan(x) ? x : ov_signed(1.0 - 2.0 / (ov_exp(2.0 * min(a, 15.0)) + 1.0), x);
}
// ---- ov_tanh_coarse
float ov_tanh_coarse(float x) {
    float a = abs(x), s = x * x;
    float small = fma(x * s, fma(s, fma(s, fma(s, 0.01519524, -0.05194782), 0.13308173), -0.33332341), x);
    float large = ov_signed(1.0 - 2.0 / (exp(2.0 * min(a, 15.0)) + 1.0), x);
    return ov_isnan(x) ? x : a < 0.625 ? small : large;
}
// ---- ov_sinh
float ov_sinh(float x) {
    float a = abs(x);
    if (a < 1.0) {
        float s = x * x;
        return fma(x * s, fma(s, fma(s, fma(s, 2.7557314e-6, 1.98412698e-4), 8.33333333e-3), 1.66666667e-1), x);
    }
    if (ov_isnan(x)) return x;
    float e = ov_exp(0.5 * a);
    precise float half_e = 0.5 * e; // first: e * e overflows where the result does not
    precise float large = half_e * e;
    return ov_signed(large - 0.5 / (e * e), x);
}
// ---- ov_cosh
float ov_cosh(float x) {
    float e = ov_exp(0.5 * abs(x));
    precise float half_e = 0.5 * e; // first: e * e overflows where the result does not
    precise float large = half_e * e;
    return large + 0.5 / (e * e);
}
// ---- ov_log1p
// Kahan's form: the error of 1 + x cancels. Far out x / d would leave the range in which a driver has to divide right.
float ov_log1p(float x) {
    precise float u = 1.0 + x;
    precise float d = u - 1.0;
    return u == 1.0 || u > 1.0e30 ? (u == 1.0 ? x : ov_log(x)) : ov_log(u) * (x / d);
}
// ---- ov_asinh
float ov_asinh(float x) {
    if (ov_isnan(x)) return x;
    float a = abs(x);
    return ov_signed(a > 1.0e18 ? ov_log(a) + 0.69314718056 : ov_log1p(a + a * a / (1.0 + sqrt(a * a + 1.0))), x);
}
// ---- ov_acosh
float ov_acosh(float x) {
    if (!(x >= 1.0)) return ov_nan();
    if (x > 1.0e18) return ov_log(x) + 0.69314718056;
    float t = x - 1.0;
    return ov_log1p(t + sqrt(2.0 * t + t * t));
}
// ---- ov_atanh
float ov_atanh(float x) {
    float a = abs(x);
    if (!(a <= 1.0)) return ov_nan();
    if (a == 1.0) return ov_signed(uintBitsToFloat(0x7f800000u), x);
    return ov_signed(0.5 * ov_log1p(2.0 * a / (1.0 - a)), x);
}
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
    if (ov_isnan(x)) return x;
    float t = 1.0 / fma(0.5, a, 1.0);
    float y = fma(t, fma(t, fma(t, fma(t, fma(t, fma(t, fma(t, fma(t, fma(t, 0.17087277, -0.82215223), 1.48851587), -1.13520398), 0.27886807), -0.18628806), 0.09678418), 0.37409196), 1.00002368), -1.26551223);
    return ov_signed(1.0 - t * ov_exp(fma(-a, a, y)), x);
}
// ---- ov_erf_coarse
// Below 0.3 the series, above it 1 - exp(-x^2) p(1/(1 + 0.3275911 x)) (Abramowitz and Stegun 7.1.26, 1.5e-7 absolute).
float ov_erf_coarse(float x) {
    float a = abs(x), s = x * x;
    float small = x * fma(s, fma(s, fma(s, -0.0268661706, 0.112837917), -0.376126389), 1.12837917);
    float t = 1.0 / fma(0.3275911, a, 1.0);
    float p = t * fma(t, fma(t, fma(t, fma(t, 1.061405429, -1.453152027), 1.421413741), -0.284496736), 0.254829592);
    return ov_isnan(x) ? x : a < 0.3 ? small : ov_signed(fma(-p, exp(-s), 1.0), x);
}
// ---- ov_head
// The first 12 bits of the mantissa: products of two heads are exact.
float ov_head(float x) { return uintBitsToFloat(floatBitsToUint(x) & 0xfffff000u); }
// ---- ov_pow_positive
// x^y for finite x > 0 and finite y: 2^(y log2 x) with log2 x as a head and a tail, 2^-33 exact, so that a large y does not blow up
// its error. log(m) = 2s + s^3 p(s^2) with s = (m - 1) / (m + 1), m in [sqrt(1/2), sqrt(2)).
float ov_pow_positive(float x, float y) {
    uint u = floatBitsToUint(x);
    int k = 0;
    if (u < 0x00800000u) {
        k = findMSB(u) - 23;
        u = ((u << -k) & 0x007fffffu) | 0x00800000u;
    }
    int e = int(u - 0x3f3504f3u) >> 23;
    float m = uintBitsToFloat(u - (uint(e) << 23));
    precise float f = m - 1.0, g = m + 1.0;
    precise float g_tail = m - (g - 1.0);
    precise float s = f / g;
    precise float s_head = ov_head(s), g_head = ov_head(g);
    precise float rest = f - s_head * g_head;
    rest = rest - s_head * ((g - g_head) + g_tail);
    precise float s_tail = rest / g;
    float z = s * s;
    float p = s * z * fma(z, fma(z, fma(z, 0.23610526323318481, 0.28535890579223633), 0.4000035524368286), 0.6666666269302368);
    // log2 m = (2 s_head + (2 s_tail + p)) * log2 e, with log2 e = 1.4423828125 + 3.1222838896340733e-04
    precise float a = 2.0 * s_head, b = 2.0 * s_tail + p;
    precise float high = a * 1.4423828125;
    precise float low = b * 1.44269502 + a * 3.1222838896340733e-04;
    float n = float(e + k);
    // heads again: n + high in 12 bits, the rest in the tail
    precise float sum = high + low;
    precise float t_head = ov_head(n + sum);
    precise float t_tail = ((n - t_head) + high) + low;
    precise float y_head = ov_head(y);
    precise float top = y_head * t_head;
    precise float bottom = (y - y_head) * t_head + y * t_tail;
    if (!(abs(top + bottom) < 200.0)) return top + bottom > 0.0 ? uintBitsToFloat(0x7f800000u) : 0.0;
    float whole = roundEven(top + bottom);
    precise float r = (top - whole) + bottom;
    float q = fma(fma(fma(fma(fma(1.5314948541345075e-05, r, 0.0001546710991533473), r, 0.0013333430979400873), r, 0.009618036448955536), r, 0.05550410971045494), r, 0.24022650718688965);
    return ov_scale(1.0 + r * fma(q, r, 0.6931471824645996), int(whole));
}
// ---- ov_pow
// C's pow: cheap whole exponents first, then the special values.
float ov_pow(float x, float y) {
    if (y == 2.0) return x * x;
    if (y == 1.0) return x;
    if (y == 0.0 || x == 1.0) return 1.0;
    if (y == 3.0) return x * x * x;
    if (y == -1.0) return 1.0 / x;
    if (ov_isnan(x) || ov_isnan(y)) return ov_nan();
    float a = uintBitsToFloat(floatBitsToUint(x) & 0x7fffffffu); // by bits: abs() may flush a subnormal
    float inf = uintBitsToFloat(0x7f800000u);
    if (abs(y) == inf) return a == 1.0 ? 1.0 : ((a > 1.0) == (y > 0.0) ? inf : 0.0);
    bool whole = floor(y) == y;
    bool odd = whole && abs(y) < 16777216.0 && (int(abs(y)) & 1) == 1;
    bool negative = (floatBitsToUint(x) & 0x80000000u) != 0u;
    float r;
    if (!ov_nonzero(x) || a == inf) {
        r = (a == inf) == (y > 0.0) ? inf : 0.0;
    } else {
        if (negative && !whole) return ov_nan();
        r = y == 0.5 ? sqrt(a) : ov_pow_positive(a, y);
    }
    return negative && odd ? -r : r;
}
// ---- ov_fmod
// The remainder of truncated division, exact: long division of the mantissas, eight bits a round.
float ov_fmod(float a, float b) {
    uint ua = floatBitsToUint(a) & 0x7fffffffu, ub = floatBitsToUint(b) & 0x7fffffffu;
    if (ub == 0u || ub > 0x7f800000u || ua >= 0x7f800000u) return ov_nan();
    if (ua < ub) return a;
    int ea = max(int(ua >> 23), 1), eb = max(int(ub >> 23), 1);
    uint ma = ua < 0x00800000u ? ua : (ua & 0x007fffffu) | 0x00800000u;
    uint mb = ub < 0x00800000u ? ub : (ub & 0x007fffffu) | 0x00800000u;
    ma %= mb;
    for (int d = ea - eb; d > 0 && ma != 0u; d -= 8) ma = (ma << min(d, 8)) % mb;
    int shift = ma == 0u ? 0 : min(23 - findMSB(ma), eb - 1);
    ma <<= shift;
    uint bits = ma < 0x00800000u ? ma : (uint(eb - shift) << 23) | (ma & 0x007fffffu);
    return uintBitsToFloat(bits | (floatBitsToUint(a) & 0x80000000u));
}
// ---- ov_fmod64
double ov_fmod64(double a, double b) {
    const uint64_t one = 1ul << 52, infinite = 0x7fful << 52;
    uvec2 pa = unpackDouble2x32(a), pb = unpackDouble2x32(b);
    uint64_t ua = (uint64_t(pa.y & 0x7fffffffu) << 32) | uint64_t(pa.x);
    uint64_t ub = (uint64_t(pb.y & 0x7fffffffu) << 32) | uint64_t(pb.x);
    if (ub == 0ul || ub > infinite || ua >= infinite) return packDouble2x32(uvec2(0u, 0x7ff80000u));
    if (ua < ub) return a;
    int ea = max(int(ua >> 52), 1), eb = max(int(ub >> 52), 1);
    uint64_t ma = ua < one ? ua : (ua & (one - 1ul)) | one;
    uint64_t mb = ub < one ? ub : (ub & (one - 1ul)) | one;
    ma %= mb;
    for (int d = ea - eb; d > 0 && ma != 0ul; d -= 11) ma = (ma << min(d, 11)) % mb;
    while (ma != 0ul && ma < one && eb > 1) {
        ma <<= 1;
        eb -= 1;
    }
    uint64_t bits = ma < one ? ma : (uint64_t(eb) << 52) | (ma & (one - 1ul));
    return packDouble2x32(uvec2(uint(bits), uint(bits >> 32) | (pa.y & 0x80000000u)));
}
// ---- ov_mod
// A zero remainder has the divisor's sign too.
float ov_mod(float a, float b) {
    float r = ov_fmod(a, b);
    if (r == 0.0) return uintBitsToFloat(floatBitsToUint(b) & 0x80000000u);
    return (r < 0.0) != (b < 0.0) ? r + b : r;
}
// ---- ov_mod64
double ov_mod64(double a, double b) {
    double r = ov_fmod64(a, b);
    if (r == 0.0LF) return packDouble2x32(uvec2(0u, unpackDouble2x32(b).y & 0x80000000u));
    return (r < 0.0LF) != (b < 0.0LF) ? r + b : r;
}
// ---- ov_idiv
// By magnitudes: the least integer over -1 traps on some processors.
int ov_idiv(int a, int b) {
    if (b == 0) return 0;
    uint q = uint(abs(a)) / uint(abs(b));
    return (a < 0) != (b < 0) ? int(~q + 1u) : int(q);
}
// ---- ov_idiv64
int64_t ov_idiv64(int64_t a, int64_t b) {
    if (b == 0l) return 0l;
    uint64_t q = uint64_t(a < 0l ? -a : a) / uint64_t(b < 0l ? -b : b);
    return (a < 0l) != (b < 0l) ? int64_t(~q + 1ul) : int64_t(q);
}
// ---- ov_ifmod
// GLSL leaves % of negative operands undefined, so it is taken of magnitudes.
int ov_ifmod(int a, int b) {
    if (b == 0) return 0;
    int r = int(uint(abs(a)) % uint(abs(b)));
    return a < 0 ? -r : r;
}
// ---- ov_ifmod64
int64_t ov_ifmod64(int64_t a, int64_t b) {
    if (b == 0l) return 0l;
    int64_t r = int64_t(uint64_t(a < 0l ? -a : a) % uint64_t(b < 0l ? -b : b));
    return a < 0l ? -r : r;
}
// ---- ov_imod
int ov_imod(int a, int b) {
    int r = ov_ifmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
// ---- ov_imod64
int64_t ov_imod64(int64_t a, int64_t b) {
    int64_t r = ov_ifmod64(a, b);
    return r != 0l && (r < 0l) != (b < 0l) ? r + b : r;
}
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
// ---- ov_ipow64
int64_t ov_ipow64(int64_t x, int64_t y) {
    if (y < 0l) return x == 1l ? 1l : (x == -1l ? ((y & 1l) == 0l ? 1l : -1l) : 0l);
    int64_t r = 1l;
    for (int64_t n = y; n > 0l; n >>= 1) {
        if ((n & 1l) == 1l) r *= x;
        x *= x;
    }
    return r;
}
uint64_t ov_ipow64(uint64_t x, uint64_t y) {
    uint64_t r = 1ul;
    for (uint64_t n = y; n > 0ul; n >>= 1) {
        if ((n & 1ul) == 1ul) r *= x;
        x *= x;
    }
    return r;
}
// ---- ov_odd
// A double rounded to odd in float: rounding that again to a narrower float is as if it had been rounded once.
float ov_odd(double x) {
    if (ov_isnan(x)) return uintBitsToFloat(0x7fc00000u);
    float f = float(x);
    uint u = floatBitsToUint(f);
    if (double(f) == x || (u & 0x7fffffffu) >= 0x7f800000u || (u & 1u) == 1u) return f;
    bool beyond = abs(double(f)) > abs(x);
    return uintBitsToFloat(beyond ? u - 1u : u + 1u);
}
// ---- ov_long
// Sign extension by hand: Mesa 22.3 folds comparisons of int64_t(int) with 0 to the wrong answer.
int64_t ov_long(int x) { return packInt2x32(ivec2(x, x >> 31)); }
// ---- ov_wrap
// Truncated towards zero, modulo 2^32; infinities and NaN give 0.
uint ov_wrap(float x) {
    uint u = floatBitsToUint(x);
    int e = int((u >> 23) & 0xffu);
    if (e < 127 || e > 150 + 31) return 0u;
    uint m = (u & 0x007fffffu) | 0x00800000u;
    m = e > 150 ? m << (e - 150) : m >> (150 - e);
    return (u & 0x80000000u) != 0u ? ~m + 1u : m;
}
// ---- ov_wrap_long
// Truncated towards zero, modulo 2^64; infinities and NaN give 0.
uint64_t ov_wrap_long(float x) {
    uint u = floatBitsToUint(x);
    int e = int((u >> 23) & 0xffu);
    if (e < 127 || e > 150 + 63) return 0ul;
    uint64_t m = uint64_t((u & 0x007fffffu) | 0x00800000u);
    m = e > 150 ? m << (e - 150) : m >> (150 - e);
    return (u & 0x80000000u) != 0u ? ~m + 1ul : m;
}
// ---- ov_wrap_double
uint64_t ov_wrap_double(double x) {
    uvec2 u = unpackDouble2x32(x);
    int e = int((u.y >> 20) & 0x7ffu);
    if (e < 1023 || e > 1075 + 63) return 0ul;
    uint64_t m = (uint64_t((u.y & 0x000fffffu) | 0x00100000u) << 32) | uint64_t(u.x);
    m = e > 1075 ? m << (e - 1075) : m >> (1075 - e);
    return (u.y & 0x80000000u) != 0u ? ~m + 1ul : m;
}
