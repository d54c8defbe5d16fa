/* Element-wise kernels: plain loops, which the compiler turns into vectors of this level. */
#include "cpu/simd/math.h"
#include "cpu/simd/simd.h"

static void elementwise_relu(size_t n, const float *x, float *y) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) y[i] = x[i] <= 0.0f ? 0.0f : x[i]; /* false for NaN */
}

static void relu_backward(size_t n, const float *y, const float *dy, float *dx) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) {
        const float d = dy[i];
        dx[i] = y[i] <= 0.0f ? 0.0f : d;
    }
}

/* bfloat16 above 0, or NaN of either sign. */
static inline bool narrow_passes(uint16_t v) { return (uint16_t)(v - 1u) < 0x7fffu || v > 0xff80u; }

static void relu_narrow(size_t n, const uint16_t *x, uint16_t *y) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) y[i] = narrow_passes(x[i]) ? x[i] : 0;
}

static void relu_narrow_backward(size_t n, const uint16_t *y, const uint16_t *dy, uint16_t *dx) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) {
        const uint16_t d = dy[i];
        dx[i] = narrow_passes(y[i]) ? d : 0;
    }
}

static void tanh_forward(size_t n, const float *x, float *y) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) y[i] = hyperbolic_tangent(x[i]);
}

static void tanh_backward(size_t n, const float *y, const float *dy, float *dx) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) dx[i] = dy[i] * (1.0f - y[i] * y[i]);
}

static void sigmoid_forward(size_t n, const float *x, float *y) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) y[i] = logistic(x[i]);
}

static void sigmoid_backward(size_t n, const float *y, const float *dy, float *dx) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) dx[i] = dy[i] * ((1.0f - y[i]) * y[i]);
}

static void leaky_relu(size_t n, float slope, const float *x, float *y) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) y[i] = x[i] <= 0.0f ? slope * x[i] : x[i]; /* false for NaN */
}

static void leaky_relu_backward(size_t n, float slope, const float *sign, const float *dy, float *dx) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) {
        const float d = dy[i];
        dx[i] = sign[i] <= 0.0f ? slope * d : d;
    }
}

static void gelu_forward(size_t n, const float *x, float *y) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) {
        float bell;
        y[i] = x[i] * normal_below(x[i], &bell);
    }
}

static void gelu_backward(size_t n, const float *x, const float *dy, float *dx) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) {
        float bell;
        const float below = normal_below(x[i], &bell);
        dx[i] = dy[i] * (below + x[i] * bell * 0.398942280401433f);
    }
}

static void gelu_and_slope(size_t n, const float *x, float *y, float *slope) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) {
        float bell;
        const float v = x[i], below = normal_below(v, &bell);
        y[i] = v * below;
        slope[i] = below + v * bell * 0.398942280401433f;
    }
}

/* 1 + tanh(u) is twice the logistic function of 2u. */
#define GELU_SCALE 1.59576912160573f
#define GELU_CUBIC 0.044715f

static void gelu_tanh_forward(size_t n, const float *x, float *y) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) {
        const float v = x[i];
        y[i] = v * logistic(GELU_SCALE * v * (1.0f + GELU_CUBIC * v * v));
    }
}

static void gelu_tanh_backward(size_t n, const float *x, const float *dy, float *dx) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) {
        const float v = x[i], s = logistic(GELU_SCALE * v * (1.0f + GELU_CUBIC * v * v));
        dx[i] = dy[i] * (s + v * s * (1.0f - s) * (GELU_SCALE * (1.0f + 3.0f * GELU_CUBIC * v * v)));
    }
}

static void gelu_tanh_and_slope(size_t n, const float *x, float *y, float *slope) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) {
        const float v = x[i], s = logistic(GELU_SCALE * v * (1.0f + GELU_CUBIC * v * v));
        y[i] = v * s;
        slope[i] = s + v * s * (1.0f - s) * (GELU_SCALE * (1.0f + 3.0f * GELU_CUBIC * v * v));
    }
}

static void elementwise_multiply(size_t n, const float *a, const float *b, float *out) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) out[i] = a[i] * b[i];
}

static void elementwise_add(size_t n, const float *a, const float *b, float *out) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

static void masked_scale(size_t n, const float *x, const uint8_t *mask, float scale, float *out) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) {
        const float scaled = scale * x[i];
        out[i] = mask[i] != 0 ? scaled : 0.0f;
    }
}

/* Philox4x32-10 for a few vectors of blocks at once: a 32-bit word in each 64-bit lane. The upper half may hold
 * anything, because the widening multiplication ignores it. */
#define WIDTH (VECTOR_BYTES / 8)
#define CHAINS 4 /* vectors in flight: the multiplication has a long latency */
#define BLOCKS (CHAINS * WIDTH)

/* mask[i] for block index + i*stride: byte w is 1 if word w is at least the threshold, otherwise 0. */
static inline void elementwise_draw(const gg_random_key *key, uint32_t index, uint32_t stride, uint32_t threshold,
                                    uint32_t mask[BLOCKS]) {
    const long_words zero = {0}, first = zero + 0xD2511F53u, second = zero + 0xCD9E8D57u;
    long_words c0[CHAINS], c1[CHAINS], c2[CHAINS], c3[CHAINS];
    long_words step = zero;
    for (uint32_t i = 0; i < WIDTH; ++i) step[i] = i * stride;
    for (uint32_t c = 0; c < CHAINS; ++c) {
        c0[c] = step + (index + c * WIDTH * stride);
        c1[c] = zero + (uint32_t)key->step;
        c2[c] = zero + (((uint32_t)(key->step >> 32) & 0xFFFFFFu) | key->purpose << 24);
        c3[c] = zero + key->rank;
    }
    uint32_t k0 = (uint32_t)key->seed, k1 = (uint32_t)(key->seed >> 32);
    for (int round = 0; round < 10; ++round) {
        for (int c = 0; c < CHAINS; ++c) {
            const long_words a = low_product(c0[c], first), b = low_product(c2[c], second);
            c0[c] = (b >> 32) ^ c1[c] ^ k0;
            c1[c] = b;
            c2[c] = (a >> 32) ^ c3[c] ^ k1;
            c3[c] = a;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int c = 0; c < CHAINS; ++c) {
        /* The sign of word - threshold is set if the word is less. */
        long_words less = ((c0[c] & 0xffffffffu) - threshold) >> 63;
        less |= ((c1[c] & 0xffffffffu) - threshold) >> 63 << 8;
        less |= ((c2[c] & 0xffffffffu) - threshold) >> 63 << 16;
        less |= ((c3[c] & 0xffffffffu) - threshold) >> 63 << 24;
        less ^= 0x01010101u;
        for (int i = 0; i < WIDTH; ++i) mask[c * WIDTH + i] = (uint32_t)less[i];
    }
}

static void dropout_mask(const gg_random_key *key, uint32_t first, uint32_t stride, size_t n, uint32_t threshold,
                         uint8_t *const rows[4], size_t step) {
    uint32_t mask[BLOCKS];
    for (size_t at = 0; at < n; at += BLOCKS) {
        const size_t count = n - at < BLOCKS ? n - at : BLOCKS;
        elementwise_draw(key, first + (uint32_t)at * stride, stride, threshold, mask);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        if (step == 4 && count == BLOCKS) {
            memcpy(rows[0] + 4 * at, mask, sizeof mask);
            continue;
        }
#endif
        for (int w = 0; w < 4; ++w) {
            if (rows[w] == NULL) continue;
            for (size_t i = 0; i < count; ++i) rows[w][(at + i) * step] = (uint8_t)(mask[i] >> 8 * w);
        }
    }
}

const gg_cpu_elementwise GG_VARIANT(gg_cpu_elementwise) = {
    .relu = elementwise_relu,
    .relu_backward = relu_backward,
    .relu_narrow = relu_narrow,
    .relu_narrow_backward = relu_narrow_backward,
    .tanh = tanh_forward,
    .tanh_backward = tanh_backward,
    .sigmoid = sigmoid_forward,
    .sigmoid_backward = sigmoid_backward,
    .leaky_relu = leaky_relu,
    .leaky_relu_backward = leaky_relu_backward,
    .gelu = gelu_forward,
    .gelu_backward = gelu_backward,
    .gelu_tanh = gelu_tanh_forward,
    .gelu_tanh_backward = gelu_tanh_backward,
    .gelu_and_slope = gelu_and_slope,
    .gelu_tanh_and_slope = gelu_tanh_and_slope,
    .multiply = elementwise_multiply,
    .add = elementwise_add,
    .masked_scale = masked_scale,
    .dropout_mask = dropout_mask,
};
