/* exp, tanh and the logistic function without branches, so that compilers vectorise loops over them. Included by the
 * kernels; not exported. */
#ifndef GG_CPU_SIMD_MATH_H
#define GG_CPU_SIMD_MATH_H

#include <stdint.h>
#include <string.h>

static inline float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* exp(x) for x <= 0, to about 1 ulp. Below -104 the result is 0, including the last denormal bits. NaN stays NaN.
 *
 * x = k*ln 2 + r with |r| <= ln 2 / 2. The polynomial is the Taylor-like minimax one of degree 6. 2^k is applied in two
 * factors, because below k = -126 it is no normal number. */
static inline float exp_of_negative(float x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, which is in the low bits */
    x = x < -104.5f ? -104.5f : x;   /* false for NaN */
    const float shifted = x * 1.44269504088896341f + magic;
    const int32_t k = (int32_t)(bits_of_float(shifted) - bits_of_float(magic));
    const float whole = shifted - magic;
    float r = x - whole * 0.693145751953125f;
    r = r - whole * 1.42860682030941723212e-6f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const int32_t half = k >> 1;
    const float low = float_of_bits((uint32_t)(half + 127) << 23);
    const float high = float_of_bits((uint32_t)(k - half + 127) << 23);
    return p * low * high;
}

/* Only needs exp(-|x|): no overflow, and equal relative accuracy for both signs. */
static inline float logistic(float x) {
    const float magnitude = float_of_bits(bits_of_float(x) & 0x7fffffffu);
    const float e = exp_of_negative(-magnitude);
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* Odd polynomial near zero, where 1 - exp would cancel. Elsewhere (1 - e)/(1 + e) with e = exp(-2|x|), computed as 1 -
 * 2e/(1 + e). */
static inline float hyperbolic_tangent(float x) {
    const uint32_t sign = bits_of_float(x) & 0x80000000u;
    const float magnitude = float_of_bits(bits_of_float(x) & 0x7fffffffu);
    const float e = exp_of_negative(-2.0f * magnitude);
    const float far = 1.0f - 2.0f * e / (1.0f + e);
    const float z = x * x;
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    const float near = p * z * magnitude + magnitude;
    const float value = magnitude < 0.625f ? near : far;
    return float_of_bits(bits_of_float(value) | sign);
}

/* Normal distribution function of x; *bell is exp(-x^2/2). Uses erfc(z) = exp(-z^2)*t*P(t) with t = 1/(1 + 0.3z), P
 * fitted to 2e-8 for all z >= 0. Computes the smaller tail, so that no tail loses digits. */
static inline float normal_below(float x, float *bell) {
    const float magnitude = float_of_bits(bits_of_float(x) & 0x7fffffffu);
    const float e = exp_of_negative(-0.5f * x * x);
    const float t = 1.0f / (1.0f + 0.212132034355964f * magnitude);
    float p = -1.3036111784e-01f;
    p = p * t + 4.8974276301e-01f;
    p = p * t - 5.2116740668e-01f;
    p = p * t + 5.5823254932e-01f;
    p = p * t - 1.0219655541e-01f;
    p = p * t + 2.1828605835e-01f;
    p = p * t + 1.4743437581e-01f;
    p = p * t + 1.7084975229e-01f;
    p = p * t + 1.6917955818e-01f;
    const float tail = 0.5f * e * t * p;
    *bell = e;
    return x < 0.0f ? tail : 1.0f - tail;
}

#endif
