/* Element-wise kernels: plain loops, which the compiler turns into vectors of this level. */
#include "cpu/isa/isa.h"
#include "cpu/isa/math.h"

static void relu(size_t n, const float *x, float *y) {
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

static void add(size_t n, const float *a, const float *b, float *out) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

static void masked_scale(size_t n, const float *x, const uint8_t *keep, float scale, float *out) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) {
        const float scaled = scale * x[i];
        out[i] = keep[i] != 0 ? scaled : 0.0f;
    }
}

#define BLOCKS 16

/* Sixteen blocks of Philox4x32-10 at once: k[w][i] = word w of block index + i*stride is at least the threshold. */
static inline void draw(const gg_random_key *key, uint32_t index, uint32_t stride, uint32_t threshold,
                        uint32_t keep[4][BLOCKS]) {
    uint32_t c0[BLOCKS], c1[BLOCKS], c2[BLOCKS], c3[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; ++i) {
        c0[i] = index + i * stride;
        c1[i] = (uint32_t)key->step;
        c2[i] = ((uint32_t)(key->step >> 32) & 0xFFFFFFu) | key->purpose << 24;
        c3[i] = key->rank;
    }
    uint32_t k0 = (uint32_t)key->seed, k1 = (uint32_t)(key->seed >> 32);
    for (int round = 0; round < 10; ++round) {
        for (int i = 0; i < BLOCKS; ++i) {
            const uint64_t a = (uint64_t)0xD2511F53u * c0[i];
            const uint64_t b = (uint64_t)0xCD9E8D57u * c2[i];
            c0[i] = (uint32_t)(b >> 32) ^ c1[i] ^ k0;
            c1[i] = (uint32_t)b;
            c2[i] = (uint32_t)(a >> 32) ^ c3[i] ^ k1;
            c3[i] = (uint32_t)a;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < BLOCKS; ++i) {
        keep[0][i] = c0[i] >= threshold;
        keep[1][i] = c1[i] >= threshold;
        keep[2][i] = c2[i] >= threshold;
        keep[3][i] = c3[i] >= threshold;
    }
}

static void keep_mask(const gg_random_key *key, uint32_t first, uint32_t stride, size_t n, uint32_t threshold,
                      uint8_t *const rows[4], size_t step) {
    uint32_t keep[4][BLOCKS];
    for (size_t at = 0; at < n; at += BLOCKS) {
        const size_t count = n - at < BLOCKS ? n - at : BLOCKS;
        draw(key, first + (uint32_t)at * stride, stride, threshold, keep);
        if (step == 4 && count == BLOCKS) {
            uint8_t packed[BLOCKS][4];
            for (int i = 0; i < BLOCKS; ++i)
                for (int w = 0; w < 4; ++w) packed[i][w] = (uint8_t)keep[w][i];
            memcpy(rows[0] + 4 * at, packed, sizeof packed);
            continue;
        }
        for (int w = 0; w < 4; ++w) {
            if (rows[w] == NULL) continue;
            for (size_t i = 0; i < count; ++i) rows[w][(at + i) * step] = (uint8_t)keep[w][i];
        }
    }
}

const gg_cpu_elementwise GG_VARIANT(gg_cpu_elementwise) = {
    .relu = relu,
    .relu_backward = relu_backward,
    .tanh = tanh_forward,
    .tanh_backward = tanh_backward,
    .sigmoid = sigmoid_forward,
    .sigmoid_backward = sigmoid_backward,
    .add = add,
    .masked_scale = masked_scale,
    .keep_mask = keep_mask,
};
