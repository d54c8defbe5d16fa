/* Rows of attention weights: softmax, the same again from what was saved of it, and its error. */
#include "cpu/isa/isa.h"
#include "cpu/isa/lanes.h"
#include "cpu/isa/math.h"

/* Up to the next whole vector: rows have room for it, and a loop over it needs no remainder. */
static inline size_t padded(int64_t n) { return ((size_t)n + GG_LANES - 1) & ~(size_t)(GG_LANES - 1); }

/* The vector at row + j of n values; behind the last, `other`. */
static inline lanes_f vector_of(const float *row, int64_t j, int64_t n, lanes_f other) {
    const lanes_f v = lanes_load_any(row + j);
    return n - j < GG_LANES ? lanes_first_or((int)(n - j), v, other) : v;
}

/* What lies behind the row becomes its first value, so that its exponentials are finite. */
static float largest_of(int64_t n, float *row) {
    const lanes_f first = lanes_set(row[0]);
    lanes_f best = first;
    for (int64_t j = 0; j < n; j += GG_LANES) {
        const lanes_f v = vector_of(row, j, n, first);
        best = lanes_max(best, v);
        lanes_store_any(row + j, v);
    }
    return lanes_largest(best);
}

/* Values whose sixteen sums are float32: a longer chain would lose digits. */
#define PIECE 2048

static float sum_of(int64_t n, const float *row) {
    double total = 0;
    for (int64_t at = 0; at < n; at += PIECE) {
        const int64_t end = n - at < PIECE ? n : at + PIECE;
        lanes_f sum = lanes_set(0);
        for (int64_t j = at; j < end; j += GG_LANES) sum = lanes_add(sum, vector_of(row, j, end, lanes_set(0)));
        total += (double)lanes_total(sum);
    }
    return (float)total;
}

static float dot_of(int64_t n, const float *a, const float *b) {
    const lanes_f zeros = lanes_set(0);
    double total = 0;
    for (int64_t at = 0; at < n; at += PIECE) {
        const int64_t end = n - at < PIECE ? n : at + PIECE;
        lanes_f sum = zeros;
        for (int64_t j = at; j < end; j += GG_LANES)
            sum = lanes_multiply_add(vector_of(a, j, end, zeros), vector_of(b, j, end, zeros), sum);
        total += (double)lanes_total(sum);
    }
    return (float)total;
}

static void attention_softmax(int64_t n, float scale, float *row, float saved[2]) {
    const float top = largest_of(n, row);
    GG_INDEPENDENT
    for (size_t j = 0; j < padded(n); ++j) row[j] = exp_of_negative((row[j] - top) * scale);
    const float share = 1.0f / sum_of(n, row);
    GG_INDEPENDENT
    for (size_t j = 0; j < padded(n); ++j) row[j] *= share;
    saved[0] = top;
    saved[1] = share;
}

static void attention_again(int64_t n, float scale, const float saved[2], float *row) {
    const float top = saved[0], share = saved[1];
    GG_INDEPENDENT
    for (size_t j = 0; j < padded(n); ++j) row[j] = exp_of_negative((row[j] - top) * scale) * share;
}

static void attention_error(int64_t n, float scale, const float *p, float *d) {
    const float dot = dot_of(n, p, d);
    GG_INDEPENDENT
    for (size_t j = 0; j < padded(n); ++j) d[j] = p[j] * (d[j] - dot) * scale;
}

const gg_cpu_attention GG_VARIANT(gg_cpu_attention) = {
    .softmax = attention_softmax, .again = attention_again, .error = attention_error};
