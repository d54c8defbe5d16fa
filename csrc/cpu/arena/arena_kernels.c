/* Kernels on arenas: one pass, bound by memory. Lengths are multiples of GG_LANES and pointers are aligned, except
 * where the header allows any. There are no remainders, and an element's result does not depend on its place. */
#include "cpu/simd/math.h"
#include "cpu/simd/simd.h"

/* Elements between two checks outside of the main loop. */
#define STRETCH ((size_t)2048)

static void arena_mix(size_t n, gg_dtype wire, float share, const float *base, const void *received, const float *sent,
                      float *out) {
    n = whole_lanes(n);
    if (wire == GG_BFLOAT16) {
        const uint16_t *r = received;
        for (size_t i = 0; i < n; i += FLOATS)
            *(floats *)(out + i) = load(base + i) + share * (load_narrow(r + i) - rounded(load(sent + i)));
    } else {
        const float *r = received;
        for (size_t i = 0; i < n; i += FLOATS)
            *(floats *)(out + i) = load(base + i) + share * (load(r + i) - load(sent + i));
    }
}

static void arena_narrow(size_t n, const float *in, uint16_t *out) {
    n = whole_lanes(n);
    for (size_t i = 0; i < n; i += FLOATS) *(halves *)(out + i) = narrowed(rounded_words(load(in + i)));
}

static void arena_widen(size_t n, const uint16_t *in, float *out) {
    n = whole_lanes(n);
    for (size_t i = 0; i < n; i += FLOATS) *(floats *)(out + i) = load_narrow(in + i);
}

static void widen_add(size_t n, const uint16_t *in, float *out) {
    n = whole_lanes(n);
    for (size_t i = 0; i < n; i += FLOATS) *(floats *)(out + i) = load(out + i) + load_narrow(in + i);
}

/* Sums GG_LANES*blocks elements. Reads all sources before it writes the output, which may be a source. */
GG_INLINE void weighted_block(size_t at, int blocks, int sources, const float *const *source, const float *scale,
                              float *out) {
    enum { width = VECTOR_BYTES / 4, most = 2 * GG_LANES / width };
    const int vectors = blocks * GG_LANES / width;
    floats sum[most];
    for (int v = 0; v < vectors; ++v) sum[v] = scale[0] * *(const floats *)(source[0] + at + v * width);
    for (int s = 1; s < sources; ++s)
        for (int v = 0; v < vectors; ++v) sum[v] += scale[s] * *(const floats *)(source[s] + at + v * width);
    for (int v = 0; v < vectors; ++v) *(floats *)(out + at + v * width) = sum[v];
}

static void weighted_sum(size_t begin, size_t end, int sources, const float *const *source, const float *scale,
                         float *out) {
    size_t at = begin;
    for (; at + 2 * GG_LANES <= end; at += 2 * GG_LANES) weighted_block(at, 2, sources, source, scale, out);
    for (; at < end; at += GG_LANES) weighted_block(at, 1, sources, source, scale, out);
}

static void narrow_sum(size_t begin, size_t end, int sources, const uint16_t *const *source, const float *scale,
                       float *out, uint16_t *narrow_out) {
    for (size_t i = begin; i < end; i += FLOATS) {
        vec sum = scale[0] * load_narrow(source[0] + i);
        for (int s = 1; s < sources; ++s) sum += scale[s] * load_narrow(source[s] + i);
        if (narrow_out != NULL) {
            *(halves *)(narrow_out + i) = narrowed(rounded_words(sum));
            sum = rounded(sum);
        }
        if (out != NULL) *(floats *)(out + i) = sum;
    }
}

static void narrow_difference(size_t n, const float *a, const uint16_t *b, uint16_t *out) {
    n = whole_lanes(n);
    for (size_t i = 0; i < n; i += FLOATS)
        *(halves *)(out + i) = narrowed(rounded_words(load(a + i) - load_narrow(b + i)));
}

typedef double vector __attribute__((vector_size(VECTOR_BYTES)));
typedef float half_vector __attribute__((vector_size(VECTOR_BYTES / 2)));
#define WIDTH (VECTOR_BYTES / 8)
#define VECTORS (GG_LANES / WIDTH)

static inline vector arena_widened(const float *p) {
    half_vector v;
    memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, vector);
}

/* Sixteen partial sums at every level, so that all levels add in one order. */
static double sum_squares(size_t n, const float *a, const float *b) {
    vector sum[VECTORS];
    for (int v = 0; v < VECTORS; ++v) sum[v] = (vector){0};
    if (b == NULL) {
        for (size_t i = 0; i < n; i += GG_LANES)
            for (int v = 0; v < VECTORS; ++v) {
                const vector d = arena_widened(a + i + v * WIDTH);
                sum[v] += d * d;
            }
    } else {
        for (size_t i = 0; i < n; i += GG_LANES)
            for (int v = 0; v < VECTORS; ++v) {
                const vector d = arena_widened(a + i + v * WIDTH) - arena_widened(b + i + v * WIDTH);
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

static bool all_finite_narrow(size_t n, const uint16_t *a) {
    for (size_t at = 0; at < n; at += STRETCH) {
        const size_t count = n - at < STRETCH ? n - at : STRETCH;
        uint16_t bad = 0;
        for (size_t i = 0; i < count; ++i) bad |= (a[at + i] & 0x7f80) == 0x7f80;
        if (bad) return false;
    }
    return true;
}

const gg_cpu_arena GG_VARIANT(gg_cpu_arena) = {
    .update = GG_VARIANT(gg_cpu_update),
    .mix = arena_mix,
    .narrow = arena_narrow,
    .widen = arena_widen,
    .widen_add = widen_add,
    .weighted_sum = weighted_sum,
    .narrow_sum = narrow_sum,
    .narrow_difference = narrow_difference,
    .sum_squares = sum_squares,
    .all_finite = all_finite,
    .all_finite_narrow = all_finite_narrow,
};
