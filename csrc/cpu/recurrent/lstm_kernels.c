/* One step of an LSTM cell, on rows of n hidden units. */
#include <stddef.h>

#include "cpu/simd/isa.h"
#include "cpu/simd/math.h"

static inline __attribute__((always_inline)) void forward_units(int64_t n, int64_t step, float *gates,
                                                                const float *sums, int64_t sums_step,
                                                                const float *before, float *cell, float *hidden) {
    float *restrict in = gates, *restrict forget = gates + step, *restrict new = gates + 2 * step,
                    *restrict out = gates + 3 * step;
    GG_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) {
        float a = in[j], b = forget[j], d = new[j], e = out[j];
        if (sums != NULL) {
            a += sums[j];
            b += sums[j + sums_step];
            d += sums[j + 2 * sums_step];
            e += sums[j + 3 * sums_step];
        }
        const float i = logistic(a), f = logistic(b), g = hyperbolic_tangent(d), o = logistic(e);
        const float c = f * before[j] + i * g;
        in[j] = i;
        forget[j] = f;
        new[j] = g;
        out[j] = o;
        cell[j] = c;
        hidden[j] = o * hyperbolic_tangent(c);
    }
}

static void lstm_forward(int64_t n, int64_t step, float *gates, const float *before, float *cell, float *hidden) {
    forward_units(n, step, gates, NULL, 0, before, cell, hidden);
}

static void lstm_forward_sums(int64_t n, int64_t step, float *gates, const float *sums, int64_t sums_step,
                              const float *before, float *cell, float *hidden) {
    forward_units(n, step, gates, sums, sums_step, before, cell, hidden);
}

static void lstm_backward(int64_t n, int64_t step, float *gates, const float *before, const float *cell,
                          const float *error, const float *later, float *cell_error) {
    float *restrict in = gates, *restrict forget = gates + step, *restrict new = gates + 2 * step,
                    *restrict out = gates + 3 * step;
    GG_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) {
        const float i = in[j], f = forget[j], g = new[j], o = out[j];
        const float t = hyperbolic_tangent(cell[j]), dh = error[j] + later[j];
        const float dc = cell_error[j] + dh * o * (1.0f - t * t);
        in[j] = dc * g * (i * (1.0f - i));
        forget[j] = dc * before[j] * (f * (1.0f - f));
        new[j] = dc *i *(1.0f - g * g);
        out[j] = dh * t * (o * (1.0f - o));
        cell_error[j] = dc * f;
    }
}

const gg_cpu_lstm GG_VARIANT(gg_cpu_lstm) = {
    .forward = lstm_forward, .forward_sums = lstm_forward_sums, .backward = lstm_backward};
