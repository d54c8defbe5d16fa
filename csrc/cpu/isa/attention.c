/* Rows of attention weights: softmax, the same again from what was saved of it, and its error. */
#include "cpu/isa/isa.h"
#include "cpu/isa/math.h"

static float largest_of(int64_t n, const float *row) {
    float best[GG_LANES], top = row[0];
    int64_t j = 0;
    for (int i = 0; i < GG_LANES; ++i) best[i] = row[0];
    for (; j + GG_LANES <= n; j += GG_LANES)
        for (int i = 0; i < GG_LANES; ++i) best[i] = row[j + i] > best[i] ? row[j + i] : best[i];
    for (; j < n; ++j) top = row[j] > top ? row[j] : top;
    for (int i = 0; i < GG_LANES; ++i) top = best[i] > top ? best[i] : top;
    return top;
}

/* Sixteen partial sums: one long chain would lose digits, and the compiler may not reorder it. */
static float sum_of(int64_t n, const float *row) {
    float sum[GG_LANES] = {0};
    double total = 0;
    int64_t j = 0;
    for (; j + GG_LANES <= n; j += GG_LANES)
        for (int i = 0; i < GG_LANES; ++i) sum[i] += row[j + i];
    for (; j < n; ++j) total += (double)row[j];
    for (int i = 0; i < GG_LANES; ++i) total += (double)sum[i];
    return (float)total;
}

static float dot_of(int64_t n, const float *a, const float *b) {
    float sum[GG_LANES] = {0};
    double total = 0;
    int64_t j = 0;
    for (; j + GG_LANES <= n; j += GG_LANES)
        for (int i = 0; i < GG_LANES; ++i) sum[i] += a[j + i] * b[j + i];
    for (; j < n; ++j) total += (double)a[j] * (double)b[j];
    for (int i = 0; i < GG_LANES; ++i) total += (double)sum[i];
    return (float)total;
}

static void exponentials(int64_t n, float scale, float top, float *row) {
    GG_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) row[j] = exp_of_negative((row[j] - top) * scale);
}

static void times(int64_t n, float factor, float *row) {
    GG_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) row[j] *= factor;
}

static void attention_softmax(int64_t n, float scale, float *row, float saved[2]) {
    saved[0] = largest_of(n, row);
    exponentials(n, scale, saved[0], row);
    saved[1] = 1.0f / sum_of(n, row);
    times(n, saved[1], row);
}

static void attention_again(int64_t n, float scale, const float saved[2], float *row) {
    exponentials(n, scale, saved[0], row);
    times(n, saved[1], row);
}

static void attention_error(int64_t n, float scale, const float *p, float *d) {
    const float dot = dot_of(n, p, d);
    GG_INDEPENDENT
    for (int64_t j = 0; j < n; ++j) d[j] = p[j] * (d[j] - dot) * scale;
}

const gg_cpu_attention GG_VARIANT(gg_cpu_attention) = {
    .softmax = attention_softmax, .again = attention_again, .error = attention_error};
