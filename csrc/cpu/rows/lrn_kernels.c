/* Local response normalisation across channels, in strips of adjacent values of each channel. */
#include <math.h>

#include "cpu/simd/simd.h"

#define STRIP GG_LRN_STRIP

/* v^-beta, for v > 0, in place. The papers' exponent is two square roots; others use the library's power. */
static void inverse_power(float beta, float v[STRIP]) {
    if (beta == 0.75f) {
        for (size_t i = 0; i < STRIP; i += FLOATS) {
            const vec root = square_root(load(v + i));
            *(floats *)(v + i) = 1.0f / (root * square_root(root));
        }
    } else {
        for (size_t i = 0; i < STRIP; ++i) v[i] = powf(v[i], -beta);
    }
}

/* Loads the values of a strip, with ones after its width. */
static void load_strip(size_t width, const float *p, float v[STRIP]) {
    memcpy(v, p, width * sizeof(float));
    for (size_t i = width; i < STRIP; ++i) v[i] = 1.0f;
}

static void lrn_forward(const gg_lrn_shape *s, size_t width, const float *x, float *y, float *sums) {
    for (int64_t c = 0; c < s->channels; ++c) {
        const int64_t first = c > s->before ? c - s->before : 0;
        const int64_t last = c + s->after < s->channels ? c + s->after : s->channels - 1;
        const size_t at = (size_t)c * s->step;
        float sum[STRIP] = {0};
        for (int64_t j = first; j <= last; ++j) {
            const float *v = x + (size_t)j * s->step;
            for (size_t i = 0; i < width; ++i) sum[i] += v[i] * v[i];
        }
        for (size_t i = 0; i < STRIP; ++i) sum[i] = s->k + s->share * sum[i];
        if (sums != NULL) memcpy(sums + at, sum, width * sizeof(float));
        inverse_power(s->beta, sum);
        for (size_t i = 0; i < width; ++i) y[at + i] = x[at + i] * sum[i];
    }
}

static void lrn_backward(const gg_lrn_shape *s, size_t width, const float *x, const float *sums, const float *dy,
                         float *dx, float *terms) {
    for (int64_t c = 0; c < s->channels; ++c) {
        const size_t at = (size_t)c * s->step;
        float *term = terms + c * STRIP, power[STRIP], sum[STRIP];
        load_strip(width, sums + at, sum);
        memcpy(power, sum, sizeof power);
        inverse_power(s->beta, power);
        for (size_t i = 0; i < width; ++i) {
            const float passed = dy[at + i] * power[i];
            term[i] = passed * x[at + i] / sum[i];
            dx[at + i] = passed;
        }
    }
    const float factor = 2.0f * s->beta * s->share;
    for (int64_t c = 0; c < s->channels; ++c) { /* channels whose windows contain it: */
        const int64_t first = c > s->after ? c - s->after : 0;
        const int64_t last = c + s->before < s->channels ? c + s->before : s->channels - 1;
        const size_t at = (size_t)c * s->step;
        float sum[STRIP] = {0};
        for (int64_t j = first; j <= last; ++j) {
            const float *term = terms + j * STRIP;
            for (size_t i = 0; i < width; ++i) sum[i] += term[i];
        }
        for (size_t i = 0; i < width; ++i) dx[at + i] -= factor * x[at + i] * sum[i];
    }
}

const gg_cpu_lrn GG_VARIANT(gg_cpu_lrn) = {.forward = lrn_forward, .backward = lrn_backward};
