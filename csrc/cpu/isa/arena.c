/* Kernels on arenas: one pass, bound by memory. All lengths are multiples of GG_LANES and all pointers aligned,
 * so there are no remainders and an element's result does not depend on where it lies. */
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "cpu/isa/isa.h"
#include "cpu/isa/math.h"

/* Tells the compiler that no remainder loop is needed. */
static inline size_t whole_lanes(size_t n) { return n & ~(size_t)(GG_LANES - 1); }

/* A vector of this level. */
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

typedef float floats __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
#define FLOATS ((size_t)(VECTOR_BYTES / 4))

/* The same as a value. */
typedef float value __attribute__((vector_size(VECTOR_BYTES)));

/* Writes past the cache where the level can. */
static inline void stream(float *p, value v) {
#if defined(__AVX512F__)
    _mm512_stream_ps(p, (__m512)v);
#elif defined(__AVX2__)
    _mm256_stream_ps(p, (__m256)v);
#else
    *(floats *)p = v;
#endif
}

static inline value load(const float *p) { return *(const floats *)p; }

/* The flags are constants in every call, so each combination becomes a loop without their branches. */
static inline __attribute__((always_inline)) void sgd_momentum(const gg_sgd_args *args, bool before, bool after,
                                                               bool weight_after, bool nesterov) {
    const size_t n = whole_lanes(args->n);
    const float *grad = args->grad, *weight = args->weight, *momentum = args->momentum;
    float *weight_out = args->weight_out, *momentum_out = args->momentum_out;
    float *weight_copy = args->weight_copy, *momentum_copy = args->momentum_copy;
    const float grad_scale = args->grad_scale, lr = args->lr, mu = args->mu, decay = args->weight_decay;
    for (size_t i = 0; i < n; i += FLOATS) {
        const value old = load(momentum + i), w = load(weight + i);
        const value m = before ? old + (load(args->momentum_before + i) - old) * 0.5f : old;
        const value d = grad_scale * load(grad + i) + decay * w;
        const value m_new = mu * m + d;
        const value w_new = w - lr * (nesterov ? d + mu * m_new : m_new);
        const value m_out = after ? m_new + (load(args->momentum_after + i) - old) * 0.5f : m_new;
        const value w_out = weight_after ? w_new + (load(args->weight_after + i) - w) * 0.5f : w_new;
        *(floats *)(momentum_out + i) = m_out;
        *(floats *)(weight_out + i) = w_out;
        if (momentum_copy != NULL) stream(momentum_copy + i, m_out);
        if (weight_copy != NULL) stream(weight_copy + i, w_out);
    }
}

static inline __attribute__((always_inline)) void sgd_plain(const gg_sgd_args *args, bool weight_after) {
    const size_t n = whole_lanes(args->n);
    const float *grad = args->grad, *weight = args->weight;
    float *weight_out = args->weight_out, *weight_copy = args->weight_copy;
    const float grad_scale = args->grad_scale, lr = args->lr, decay = args->weight_decay;
    for (size_t i = 0; i < n; i += FLOATS) {
        const value w = load(weight + i);
        const value w_new = w - lr * (grad_scale * load(grad + i) + decay * w);
        const value w_out = weight_after ? w_new + (load(args->weight_after + i) - w) * 0.5f : w_new;
        *(floats *)(weight_out + i) = w_out;
        if (weight_copy != NULL) stream(weight_copy + i, w_out);
    }
}

/* Rounds to nearest, ties to even; a NaN stays a (quiet) NaN. */
static void to_bfloat16(size_t n, const float *in, uint16_t *out) {
    n = whole_lanes(n);
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) {
        const uint32_t bits = bits_of_float(in[i]);
        const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
        const uint32_t nan = bits | 0x400000u;
        out[i] = (uint16_t)(((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded) >> 16);
    }
}

static void sgd_pass(const gg_sgd_args *args) {
    if (args->momentum == NULL) {
        if (args->weight_after != NULL) sgd_plain(args, true);
        else sgd_plain(args, false);
        return;
    }
    const int combination = (args->momentum_before != NULL) | (args->momentum_after != NULL) << 1 |
                            (args->weight_after != NULL) << 2 | (int)args->nesterov << 3;
    switch (combination) {
#define CASE(c)                                                                                                                  \
    case c: sgd_momentum(args, (c)&1, ((c) >> 1) & 1, ((c) >> 2) & 1, ((c) >> 3) & 1); break
        CASE(0);
        CASE(1);
        CASE(2);
        CASE(3);
        CASE(4);
        CASE(5);
        CASE(6);
        CASE(7);
        CASE(8);
        CASE(9);
        CASE(10);
        CASE(11);
        CASE(12);
        CASE(13);
        CASE(14);
        CASE(15);
#undef CASE
    }
}

/* Elements between two looks at what is not in the main loop; their outputs are still in the first cache. */
#define STRETCH ((size_t)2048)

/* Streamed stores are seen by others in order only after a fence. */
static void fence(void) {
#if defined(__AVX2__)
    _mm_sfence();
#endif
}

static void sgd(const gg_sgd_args *args) {
    if (args->compute_copy == NULL) {
        sgd_pass(args);
        fence();
        return;
    }
    gg_sgd_args part = *args;
    for (size_t at = 0; at < args->n; at += part.n) {
        part.n = args->n - at < STRETCH ? args->n - at : STRETCH;
        sgd_pass(&part);
        to_bfloat16(part.n, part.weight_out, args->compute_copy + at);
        part.grad += part.n;
        part.weight += part.n;
        part.weight_out += part.n;
        if (part.momentum != NULL) {
            part.momentum += part.n;
            part.momentum_out += part.n;
        }
        if (part.weight_copy != NULL) part.weight_copy += part.n;
        if (part.momentum_copy != NULL) part.momentum_copy += part.n;
        if (part.momentum_before != NULL) part.momentum_before += part.n;
        if (part.momentum_after != NULL) part.momentum_after += part.n;
        if (part.weight_after != NULL) part.weight_after += part.n;
    }
    fence();
}

static void mix(size_t n, const float *base, const float *received, const float *snapshot, float *out) {
    n = whole_lanes(n);
    const float *b = GG_ALIGNED(base), *r = GG_ALIGNED(received), *s = GG_ALIGNED(snapshot);
    float *o = GG_ALIGNED(out);
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) o[i] = b[i] + (r[i] - s[i]) * 0.5f;
}

static void halve(size_t n, const float *own, const float *received, float *out) {
    n = whole_lanes(n);
    const float *a = GG_ALIGNED(own), *b = GG_ALIGNED(received);
    float *o = GG_ALIGNED(out);
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) o[i] = (a[i] + b[i]) * 0.5f;
}

/* GG_LANES*blocks elements. All sources are read before the output, which may be one of them, is written. */
static inline __attribute__((always_inline)) void weighted_block(size_t at, int blocks, int sources, const float *const *source,
                                                                 const float *scale, float *out) {
    enum { width = VECTOR_BYTES / 4, most = 2 * GG_LANES / width };
    const int vectors = blocks * GG_LANES / width;
    floats sum[most];
    for (int v = 0; v < vectors; ++v) sum[v] = scale[0] * *(const floats *)(source[0] + at + v * width);
    for (int s = 1; s < sources; ++s)
        for (int v = 0; v < vectors; ++v) sum[v] += scale[s] * *(const floats *)(source[s] + at + v * width);
    for (int v = 0; v < vectors; ++v) *(floats *)(out + at + v * width) = sum[v];
}

static void weighted_sum(size_t begin, size_t end, int sources, const float *const *source, const float *scale, float *out) {
    size_t at = begin;
    for (; at + 2 * GG_LANES <= end; at += 2 * GG_LANES) weighted_block(at, 2, sources, source, scale, out);
    for (; at < end; at += GG_LANES) weighted_block(at, 1, sources, source, scale, out);
}

typedef double vector __attribute__((vector_size(VECTOR_BYTES)));
typedef float half_vector __attribute__((vector_size(VECTOR_BYTES / 2)));
#define WIDTH (VECTOR_BYTES / 8)
#define VECTORS (GG_LANES / WIDTH)

static inline vector widened(const float *p) {
    half_vector v;
    memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, vector);
}

/* Sixteen partial sums at every level, so that all levels add in the same order. */
static double sum_squares(size_t n, const float *a, const float *b) {
    vector sum[VECTORS];
    for (int v = 0; v < VECTORS; ++v) sum[v] = (vector){0};
    if (b == NULL) {
        for (size_t i = 0; i < n; i += GG_LANES)
            for (int v = 0; v < VECTORS; ++v) {
                const vector d = widened(a + i + v * WIDTH);
                sum[v] += d * d;
            }
    } else {
        for (size_t i = 0; i < n; i += GG_LANES)
            for (int v = 0; v < VECTORS; ++v) {
                const vector d = widened(a + i + v * WIDTH) - widened(b + i + v * WIDTH);
                sum[v] += d * d;
            }
    }
    double total = 0;
    for (int v = 0; v < VECTORS; ++v)
        for (int i = 0; i < WIDTH; ++i) total += sum[v][i];
    return total;
}

static bool all_finite(size_t n, const float *a) {
    for (size_t at = 0; at < n; at += STRETCH) {
        const size_t count = whole_lanes(n - at < STRETCH ? n - at : STRETCH);
        const float *p = GG_ALIGNED(a + at);
        uint32_t bad = 0;
        for (size_t i = 0; i < count; ++i) bad |= (bits_of_float(p[i]) & 0x7f800000u) == 0x7f800000u;
        if (bad) return false;
    }
    return true;
}

const gg_cpu_arena GG_VARIANT(gg_cpu_arena) = {
    .sgd = sgd,
    .mix = mix,
    .halve = halve,
    .weighted_sum = weighted_sum,
    .sum_squares = sum_squares,
    .all_finite = all_finite,
};
