// Functions on doubles (see math.glsl): GLSL has none but the algebraic ones. Series that reach the last bits on the reduced range:
// results are within a few units of the last place (erf 12), pow within 1e-13.

// ---- ov_nan64
double ov_nan64() { return packDouble2x32(uvec2(0u, 0x7ff80000u)); }
// ---- ov_signed64
// Magnitude r with the sign of x.
double ov_signed64(double r, double x) {
    uvec2 a = unpackDouble2x32(r);
    return packDouble2x32(uvec2(a.x, (a.y & 0x7fffffffu) | (unpackDouble2x32(x).y & 0x80000000u)));
}
// ---- ov_power_of_two64
// 2^k for k in -1022 .. 1023.
double ov_power_of_two64(int k) { return packDouble2x32(uvec2(0u, uint(k + 1023) << 20)); }
// ---- ov_exp_poly64
// (e^z - 1 - z) / z^2 for |z| <= ln(2)/2.
double ov_exp_poly64(double z) {
    double p = 1.6059043836821613e-10LF;
    p = p * z + 2.08767569878681e-09LF;
    p = p * z + 2.505210838544172e-08LF;
    p = p * z + 2.755731922398589e-07LF;
    p = p * z + 2.7557319223985893e-06LF;
    p = p * z + 2.48015873015873e-05LF;
    p = p * z + 0.0001984126984126984LF;
    p = p * z + 0.001388888888888889LF;
    p = p * z + 0.008333333333333333LF;
    p = p * z + 0.041666666666666664LF;
    p = p * z + 0.16666666666666666LF;
    p = p * z + 0.5LF;
    return p;
}
// ---- ov_exp64
// e^x = 2^n e^r; ln(2) in two parts, the first of 33 bits.
double ov_exp64(double x) {
    if (ov_isnan(x)) return x;
    if (x > 709.782712893384LF) return ov_inf(x);
    if (x < -745.2LF) return 0.0LF;
    double n = roundEven(x * 1.4426950408889634LF);
    precise double r = x - n * 0.6931471804855391LF;
    r = r - n * 7.440617110012397e-11LF;
    double y = 1.0LF + (r + r * r * ov_exp_poly64(r));
    int k = int(n), half_k = k >> 1;
    return y * ov_power_of_two64(half_k) * ov_power_of_two64(k - half_k);
}
// ---- ov_expm1_64
// e^x - 1, exact near 0.
double ov_expm1_64(double x) {
    return abs(x) < 0.35LF ? x + x * x * ov_exp_poly64(x) : ov_exp64(x) - 1.0LF;
}
// ---- ov_log_poly64
// (log(m) - 2 s) / s^3 as a function of z = s^2, s = (m - 1) / (m + 1), |s| <= 0.1716.
double ov_log_poly64(double z) {
    double p = 0.08695652173913043LF;
    p = p * z + 0.09523809523809523LF;
    p = p * z + 0.10526315789473684LF;
    p = p * z + 0.11764705882352941LF;
    p = p * z + 0.13333333333333333LF;
    p = p * z + 0.15384615384615385LF;
    p = p * z + 0.18181818181818182LF;
    p = p * z + 0.2222222222222222LF;
    p = p * z + 0.2857142857142857LF;
    p = p * z + 0.4LF;
    p = p * z + 0.6666666666666666LF;
    return p;
}
// ---- ov_log64
// x = 2^k m with m in [sqrt(1/2), sqrt(2)).
double ov_log64(double x) {
    if (ov_isnan(x)) return x;
    if (x == 0.0LF) return -ov_inf(x);
    if (x < 0.0LF) return ov_nan64();
    if (x == ov_inf(x)) return x;
    int k = 0;
    if (x < 2.2250738585072014e-308LF) {
        x *= 18014398509481984.0LF;
        k = -54;
    }
    uvec2 u = unpackDouble2x32(x);
    int e = int(u.y - 0x3fe6a09eu) >> 20;
    double f = packDouble2x32(uvec2(u.x, u.y - (uint(e) << 20))) - 1.0LF;
    double n = double(e + k);
    double s = f / (2.0LF + f), z = s * s, h = 0.5LF * f * f;
    double r = s * (h + z * ov_log_poly64(z));
    return n * 0.6931471804855391LF - ((h - (r + n * 7.440617110012397e-11LF)) - f);
}
// ---- ov_trig_far64
// As ov_trig_far: 192 bits of 2/pi against the 53 of the mantissa.
double ov_trig_far64(double x, out int q) {
    const uint words[40] = uint[40](0u, 0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu, 0xdebbc561u,
        0xb7246e3au, 0x424dd2e0u, 0x06492eeau, 0x09d1921cu, 0xfe1deb1cu, 0xb129a73eu, 0xe88235f5u, 0x2ebb4484u,
        0xe99c7026u, 0xb45f7e41u, 0x3991d639u, 0x835339f4u, 0x9c845f8bu, 0xbdf9283bu, 0x1ff897ffu, 0xde05980fu,
        0xef2f118bu, 0x5a0a6d1fu, 0x6d367ecfu, 0x27cb09b7u, 0x4f463f66u, 0x9e5fea2du, 0x7527bac7u, 0xebe5f17bu,
        0x3d0739f7u, 0x8a5292eau, 0x6bfb5fb1u, 0x1f8d5d08u, 0x56033046u, 0xfc7b6babu);
    uvec2 u = unpackDouble2x32(x);
    uint64_t low = uint64_t(u.x), high = uint64_t((u.y & 0x000fffffu) | 0x00100000u);
    int p = int((u.y >> 20) & 0x7ffu) - 1023 + 10;
    int w = p >> 5, s = p & 31;
    uint bits[7];
    for (int i = 0; i < 6; i++) bits[i] = s == 0 ? words[w + i] : (words[w + i] << s) | (words[w + i + 1] >> (32 - s));
    bits[6] = 0u;
    uint product[6];
    uint64_t carry = 0ul;
    for (int i = 5; i >= 0; i--) {
        uint64_t a = uint64_t(bits[i]) * low, b = uint64_t(bits[i + 1]) * high;
        uint64_t t = carry + (a & 0xfffffffful) + (b & 0xfffffffful);
        product[i] = uint(t & 0xfffffffful);
        carry = (t >> 32) + (a >> 32) + (b >> 32);
    }
    q = int(product[0] >> 30);
    uint64_t f = (uint64_t(product[0]) << 34) | (uint64_t(product[1]) << 2) | uint64_t(product[2] >> 30);
    uint64_t g = (uint64_t(product[2]) << 34) | (uint64_t(product[3]) << 2) | uint64_t(product[4] >> 30);
    bool negative = (f >> 63) != 0ul;
    if (negative) {
        q += 1;
        g = ~g + 1ul;
        f = ~f + (g == 0ul ? 1ul : 0ul);
    }
    double scale = 1.0LF;
    while ((f >> 63) == 0ul && scale > 1e-37LF) {
        f = (f << 1) | (g >> 63);
        g <<= 1;
        scale *= 0.5LF;
    }
    double r = double(f) * 5.421010862427522e-20LF * scale * 1.5707963267948966LF;
    if (negative) r = -r;
    if ((u.y & 0x80000000u) != 0u) {
        q = -q;
        r = -r;
    }
    return r;
}
// ---- ov_trig64
// The remainder of x by pi/2 and the quadrant; pi/2 in three parts, the first two of 33 bits.
double ov_trig64(double x, out int q) {
    if (!(abs(x) < 800000.0LF)) {
        if (ov_isnan(x) || abs(x) == ov_inf(x)) {
            q = 0;
            return ov_nan64();
        }
        return ov_trig_far64(x, q);
    }
    double n = roundEven(x * 0.6366197723675814LF);
    precise double r = x - n * 1.5707963267341256LF;
    r = r - n * 6.077100506303966e-11LF;
    r = r - n * 2.0222662487959506e-21LF;
    q = int(n);
    return r;
}
// ---- ov_sin_series64
// (sin(r) - r) / r^3 as a function of z = r^2.
double ov_sin_series64(double z) {
    double p = 2.8114572543455206e-15LF;
    p = p * z + -7.647163731819816e-13LF;
    p = p * z + 1.6059043836821613e-10LF;
    p = p * z + -2.505210838544172e-08LF;
    p = p * z + 2.7557319223985893e-06LF;
    p = p * z + -0.0001984126984126984LF;
    p = p * z + 0.008333333333333333LF;
    p = p * z + -0.16666666666666666LF;
    return p;
}
// ---- ov_cos_series64
// (cos(r) - 1 + r^2/2) / r^4 as a function of z = r^2.
double ov_cos_series64(double z) {
    double p = -1.5619206968586225e-16LF;
    p = p * z + 4.779477332387385e-14LF;
    p = p * z + -1.1470745597729725e-11LF;
    p = p * z + 2.08767569878681e-09LF;
    p = p * z + -2.755731922398589e-07LF;
    p = p * z + 2.48015873015873e-05LF;
    p = p * z + -0.001388888888888889LF;
    p = p * z + 0.041666666666666664LF;
    return p;
}
// ---- ov_sin_poly64
double ov_sin_poly64(double r) {
    double z = r * r;
    return r + r * z * ov_sin_series64(z);
}
// ---- ov_cos_poly64
double ov_cos_poly64(double r) {
    double z = r * r;
    return 1.0LF - (0.5LF * z - z * z * ov_cos_series64(z));
}
// ---- ov_sin64
double ov_sin64(double x) {
    int q;
    double r = ov_trig64(x, q);
    double v = (q & 1) == 0 ? ov_sin_poly64(r) : ov_cos_poly64(r);
    return (q & 2) == 0 ? v : -v;
}
// ---- ov_cos64
double ov_cos64(double x) {
    int q;
    double r = ov_trig64(x, q);
    double v = (q & 1) == 0 ? ov_cos_poly64(r) : ov_sin_poly64(r);
    return ((q + 1) & 2) == 0 ? v : -v;
}
// ---- ov_tan64
double ov_tan64(double x) {
    int q;
    double r = ov_trig64(x, q);
    double s = ov_sin_poly64(r), c = ov_cos_poly64(r);
    return (q & 1) == 0 ? s / c : -c / s;
}
// ---- ov_atan64
// The float result y, and what the double tangent of y leaves: atan(x) = y + atan((x - tan y) / (1 + x tan y)).
double ov_atan64(double x) {
    if (ov_isnan(x)) return x;
    double a = abs(x);
    bool inverted = a > 1.0LF;
    double z = inverted ? 1.0LF / a : a;
    double y = double(ov_atan(float(z)));
    double t = ov_sin_poly64(y) / ov_cos_poly64(y);
    double d = (z - t) / (1.0LF + z * t);
    double r = y + (d - d * d * d * 0.3333333333333333LF);
    return ov_signed64(inverted ? 1.5707963267948966LF - r : r, x);
}
// ---- ov_asin64
double ov_asin64(double x) {
    double a = abs(x);
    if (!(a <= 1.0LF)) return ov_nan64();
    return ov_signed64(a == 1.0LF ? 1.5707963267948966LF : ov_atan64(a / sqrt((1.0LF - a) * (1.0LF + a))), x);
}
// ---- ov_acos64
double ov_acos64(double x) {
    if (!(abs(x) <= 1.0LF)) return ov_nan64();
    return x == -1.0LF ? 3.141592653589793LF : 2.0LF * ov_atan64(sqrt((1.0LF - x) / (1.0LF + x)));
}
// ---- ov_tanh64
double ov_tanh64(double x) {
    if (ov_isnan(x)) return x;
    double e = ov_expm1_64(2.0LF * min(abs(x), 20.0LF));
    return ov_signed64(e / (e + 2.0LF), x);
}
// ---- ov_div64
double ov_div64(double a, double b) { return a / b; }
// ---- ov_sinh64
double ov_sinh64(double x) {
    if (ov_isnan(x)) return x;
    double a = abs(x);
    if (a > 30.0LF) {
        double h = ov_exp64(0.5LF * a);
        return ov_signed64(0.5LF * h * h, x);
    }
    double e = ov_expm1_64(a);
    return ov_signed64(0.5LF * (e + e / (e + 1.0LF)), x);
}
// ---- ov_cosh64
double ov_cosh64(double x) {
    double h = ov_exp64(0.5LF * abs(x));
    return 0.5LF * h * h + 0.5LF / (h * h);
}
// ---- ov_log1p64
// Kahan's form, as ov_log1p.
double ov_log1p64(double x) {
    precise double u = 1.0LF + x;
    precise double d = u - 1.0LF;
    if (u == 1.0LF) return x;
    return u > 1.0e300LF ? ov_log64(x) : ov_log64(u) * (x / d);
}
// ---- ov_asinh64
double ov_asinh64(double x) {
    if (ov_isnan(x)) return x;
    double a = abs(x);
    if (a > 1.0e150LF) return ov_signed64(ov_log64(a) + 0.6931471805599453LF, x);
    return ov_signed64(ov_log1p64(a + a * a / (1.0LF + sqrt(a * a + 1.0LF))), x);
}
// ---- ov_acosh64
double ov_acosh64(double x) {
    if (!(x >= 1.0LF)) return ov_nan64();
    if (x > 1.0e150LF) return ov_log64(x) + 0.6931471805599453LF;
    double t = x - 1.0LF;
    return ov_log1p64(t + sqrt(2.0LF * t + t * t));
}
// ---- ov_atanh64
double ov_atanh64(double x) {
    double a = abs(x);
    if (!(a <= 1.0LF)) return ov_nan64();
    return ov_signed64(a == 1.0LF ? ov_inf(a) : 0.5LF * ov_log1p64(2.0LF * a / (1.0LF - a)), x);
}
// ---- ov_erf64
// 2/sqrt(pi) x exp(-x^2) sum (2 x^2)^k / (1 3 5 ... (2k+1)): no term is negative, so nothing cancels. 1 to the last bit from 6 on.
double ov_erf64(double x) {
    if (ov_isnan(x)) return x;
    double a = min(abs(x), 6.0LF), z = 2.0LF * a * a;
    double term = 1.0LF, sum = 1.0LF;
    for (int k = 1; k < 160 && term > 1.0e-18LF * sum; k++) {
        term *= z / double(2 * k + 1);
        sum += term;
    }
    return ov_signed64(a >= 6.0LF ? 1.0LF : 1.1283791670955126LF * a * ov_exp64(-a * a) * sum, x);
}
// ---- ov_pow64
double ov_pow64(double x, double y) {
    if (y == 0.0LF || x == 1.0LF) return 1.0LF;
    if (ov_isnan(x) || ov_isnan(y)) return ov_nan64();
    double a = abs(x), inf = ov_inf(x);
    if (abs(y) == inf) return a == 1.0LF ? 1.0LF : ((a > 1.0LF) == (y > 0.0LF) ? inf : 0.0LF);
    bool whole = floor(y) == y;
    bool odd = whole && abs(y) < 9007199254740992.0LF && floor(0.5LF * y) * 2.0LF != y;
    bool negative = (unpackDouble2x32(x).y & 0x80000000u) != 0u;
    double r;
    if (a == 0.0LF || a == inf) {
        r = (a == inf) == (y > 0.0LF) ? inf : 0.0LF;
    } else if (negative && !whole) {
        return ov_nan64();
    } else if (whole && abs(y) <= 64.0LF) {
        r = 1.0LF;
        double power = a;
        for (int n = int(abs(y)); n > 0; n >>= 1) {
            if ((n & 1) == 1) r *= power;
            power *= power;
        }
        if (y < 0.0LF) r = 1.0LF / r;
    } else {
        r = y == 0.5LF ? sqrt(a) : ov_exp64(y * ov_log64(a));
    }
    return negative && odd ? -r : r;
}
