/* Layer normalisation and softmax: along rows with adjacent values, and across sixteen rows side by side. Long rows are
 * summed in double over pieces of float32. */
#include "cpu/simd/math.h"
#include "cpu/simd/simd.h"

/* Values of a row in a piece, and vectors side by side. */
#define ROW_PIECE ((size_t)4096)
#define LANE_PIECE ((size_t)256)

/* Works in memory, so that compilers do not extract single lanes from registers. */
static __attribute__((noinline)) double sum_of(const float lane[GG_LANES]) {
    double sum = 0;
    for (int i = 0; i < GG_LANES; ++i) sum += (double)lane[i];
    return sum;
}

static inline double lanes_sum(lanes_f v) {
    float lane[GG_LANES] __attribute__((aligned(64)));
    lanes_store(lane, v);
    return sum_of(lane);
}

static inline void add_to_doubles(double *sum, lanes_f v) {
    float lane[GG_LANES] __attribute__((aligned(64)));
    lanes_store(lane, v);
    for (int i = 0; i < GG_LANES; ++i) sum[i] += (double)lane[i];
}

/* ------------------------------------------------------------------------------------- layer normalisation */

static void run_apply(size_t n, const float *x, float mean, float inverse, float weight, float bias, float *y) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * inverse * weight + bias;
}

static void row_apply(const gg_norm_rows *rows, const float *x, float mean, float inverse, const float *weight,
                      const float *bias, float *y) {
    const size_t n = (size_t)rows->length, inner = (size_t)rows->inner;
    if (weight != NULL && inner > 1) {
        for (size_t i = 0, at = 0; at < n; ++i, at += inner)
            run_apply(inner, x + at, mean, inverse, weight[i], bias != NULL ? bias[i] : 0, y + at);
        return;
    }
    if (weight == NULL) {
        GG_INDEPENDENT
        for (size_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * inverse;
    } else if (bias == NULL) {
        GG_INDEPENDENT
        for (size_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * inverse * weight[i];
    } else {
        GG_INDEPENDENT
        for (size_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * inverse * weight[i] + bias[i];
    }
}

/* The vector at x + i of a row that ends at x + end; zeros after the end. */
static inline lanes_f lanes_of_row(const float *x, size_t i, size_t end) {
    return end - i < GG_LANES ? lanes_load_part(x + i, (int)(end - i)) : lanes_load_any(x + i);
}

static inline void lanes_to_row(float *x, size_t i, size_t end, lanes_f v) {
    if (end - i < GG_LANES) lanes_store_part(x + i, (int)(end - i), v);
    else lanes_store_any(x + i, v);
}

/* Computes a first mean, then sums of the differences: these are small, so their squares lose no digits. */
static void row_moments(size_t n, const float *x, double *mean, double *squares) {
    double sum = 0, rest = 0, square = 0;
    for (size_t at = 0; at < n; at += ROW_PIECE) {
        const size_t end = n - at < ROW_PIECE ? n : at + ROW_PIECE;
        lanes_f s = lanes_set(0);
        for (size_t i = at; i < end; i += GG_LANES) s = lanes_add(s, lanes_of_row(x, i, end));
        sum += (double)lanes_total(s);
    }
    const float first = (float)(sum / (double)n);
    const lanes_f center = lanes_set(first);
    for (size_t at = 0; at < n; at += ROW_PIECE) {
        const size_t end = n - at < ROW_PIECE ? n : at + ROW_PIECE;
        lanes_f s = lanes_set(0), q = lanes_set(0);
        for (size_t i = at; i < end; i += GG_LANES) {
            lanes_f d = lanes_subtract(lanes_of_row(x, i, end), center);
            if (end - i < GG_LANES) d = lanes_first((int)(end - i), d);
            s = lanes_add(s, d);
            q = lanes_multiply_add(d, d, q);
        }
        rest += (double)lanes_total(s);
        square += (double)lanes_total(q);
    }
    *mean = (double)first + rest / (double)n;
    *squares = square - rest * rest / (double)n;
}

/* A run of n values. weight: one a value; NULL means none. */
static void run_sums(size_t n, const float *x, const float *dy, float mean, float inverse, const float *weight,
                     double *sum, double *product, float *grad_weight, float *grad_bias) {
    const lanes_f center = lanes_set(mean), factor = lanes_set(inverse);
    *sum = *product = 0;
    for (size_t at = 0; at < n; at += ROW_PIECE) {
        const size_t end = n - at < ROW_PIECE ? n : at + ROW_PIECE;
        lanes_f s = lanes_set(0), p = lanes_set(0);
        for (size_t i = at; i < end; i += GG_LANES) {
            lanes_f g = lanes_of_row(dy, i, end);
            const lanes_f v = lanes_multiply(lanes_subtract(lanes_of_row(x, i, end), center), factor);
            if (grad_weight != NULL) {
                lanes_to_row(grad_weight, i, end, lanes_multiply_add(g, v, lanes_of_row(grad_weight, i, end)));
                lanes_to_row(grad_bias, i, end, lanes_add(g, lanes_of_row(grad_bias, i, end)));
            }
            if (weight != NULL) g = lanes_multiply(g, lanes_of_row(weight, i, end));
            s = lanes_add(s, g);
            p = lanes_multiply_add(g, v, p);
        }
        *sum += (double)lanes_total(s);
        *product += (double)lanes_total(p);
    }
}

static void row_sums(const gg_norm_rows *rows, const float *x, const float *dy, float mean, float inverse,
                     const float *weight, double *sum, double *product, float *grad_weight, float *grad_bias) {
    const size_t n = (size_t)rows->length, inner = (size_t)rows->inner;
    if (weight == NULL || inner == 1) {
        run_sums(n, x, dy, mean, inverse, weight, sum, product, grad_weight, grad_bias);
        return;
    }
    *sum = *product = 0;
    for (size_t i = 0, at = 0; at < n; ++i, at += inner) {
        double s, p;
        run_sums(inner, x + at, dy + at, mean, inverse, NULL, &s, &p, NULL, NULL);
        *sum += (double)weight[i] * s;
        *product += (double)weight[i] * p;
        if (grad_weight == NULL) continue;
        grad_weight[i] += (float)p;
        grad_bias[i] += (float)s;
    }
}

/* A run of n values. each: true means a weight a value, false one weight for all. */
GG_INLINE void run_gradient(size_t n, const float *x, const float *dy, float mean, float inverse, const float *weight,
                            bool each, float sum, float product, float *dx) {
    const lanes_f center = lanes_set(mean), factor = lanes_set(inverse);
    const lanes_f all = lanes_set(sum), along = lanes_set(product);
    for (size_t i = 0; i < n; i += GG_LANES) {
        lanes_f g = lanes_of_row(dy, i, n);
        const lanes_f v = lanes_multiply(lanes_subtract(lanes_of_row(x, i, n), center), factor);
        if (weight != NULL) g = lanes_multiply(g, each ? lanes_of_row(weight, i, n) : lanes_set(*weight));
        g = lanes_subtract(lanes_subtract(g, all), lanes_multiply(v, along));
        lanes_to_row(dx, i, n, lanes_multiply(factor, g));
    }
}

static void row_gradient(const gg_norm_rows *rows, const float *x, const float *dy, float mean, float inverse,
                         const float *weight, float sum, float product, float *dx) {
    const size_t n = (size_t)rows->length, inner = (size_t)rows->inner;
    if (weight == NULL || inner == 1) {
        run_gradient(n, x, dy, mean, inverse, weight, true, sum, product, dx);
        return;
    }
    for (size_t i = 0, at = 0; at < n; ++i, at += inner)
        run_gradient(inner, x + at, dy + at, mean, inverse, weight + i, false, sum, product, dx + at);
}

static void lanes_apply(const gg_norm_rows *rows, size_t step, const float *x, const float *mean, const float *inverse,
                        const float *weight, const float *bias, float *y) {
    const size_t n = (size_t)rows->weights, inner = (size_t)rows->inner;
    const lanes_f center = lanes_load_any(mean), factor = lanes_load_any(inverse);
    for (size_t i = 0; i < n; ++i) {
        for (size_t k = 0; k < inner; ++k, x += step, y += step) {
            lanes_f v = lanes_multiply(lanes_subtract(lanes_load_any(x), center), factor);
            if (weight != NULL) v = lanes_multiply(v, lanes_set(weight[i]));
            if (bias != NULL) v = lanes_add(v, lanes_set(bias[i]));
            lanes_store_any(y, v);
        }
    }
}

/* A run of n values. weight: one a value; NULL means none. */
static void run_lanes_sums(size_t n, size_t step, const float *x, const float *dy, const float *mean,
                           const float *inverse, const float *weight, double sum[GG_LANES], double product[GG_LANES],
                           double *grad_weight, double *grad_bias) {
    const lanes_f center = lanes_load_any(mean), factor = lanes_load_any(inverse);
    for (int i = 0; i < GG_LANES; ++i) sum[i] = product[i] = 0;
    for (size_t at = 0; at < n; at += LANE_PIECE) {
        const size_t end = n - at < LANE_PIECE ? n : at + LANE_PIECE;
        lanes_f s = lanes_set(0), p = lanes_set(0);
        for (size_t i = at; i < end; ++i) {
            const lanes_f d = lanes_load_any(dy + i * step);
            const lanes_f v = lanes_multiply(lanes_subtract(lanes_load_any(x + i * step), center), factor);
            const lanes_f g = weight != NULL ? lanes_multiply(d, lanes_set(weight[i])) : d;
            s = lanes_add(s, g);
            p = lanes_multiply_add(g, v, p);
            if (grad_weight == NULL) continue;
            grad_weight[i] += lanes_sum(lanes_multiply(d, v));
            grad_bias[i] += lanes_sum(d);
        }
        add_to_doubles(sum, s);
        add_to_doubles(product, p);
    }
}

static void lanes_sums(const gg_norm_rows *rows, size_t step, const float *x, const float *dy, const float *mean,
                       const float *inverse, const float *weight, double sum[GG_LANES], double product[GG_LANES],
                       double *grad_weight, double *grad_bias) {
    const size_t n = (size_t)rows->weights, inner = (size_t)rows->inner;
    if (weight == NULL || inner == 1) {
        run_lanes_sums((size_t)rows->length, step, x, dy, mean, inverse, weight, sum, product, grad_weight, grad_bias);
        return;
    }
    for (int lane = 0; lane < GG_LANES; ++lane) sum[lane] = product[lane] = 0;
    for (size_t i = 0; i < n; ++i, x += inner * step, dy += inner * step) {
        double s[GG_LANES], p[GG_LANES];
        run_lanes_sums(inner, step, x, dy, mean, inverse, NULL, s, p, NULL, NULL);
        for (int lane = 0; lane < GG_LANES; ++lane) {
            sum[lane] += (double)weight[i] * s[lane];
            product[lane] += (double)weight[i] * p[lane];
            if (grad_weight == NULL) continue;
            grad_weight[i] += p[lane];
            grad_bias[i] += s[lane];
        }
    }
}

static void lanes_gradient(const gg_norm_rows *rows, size_t step, const float *x, const float *dy, const float *mean,
                           const float *inverse, const float *weight, const float *sum, const float *product,
                           float *dx) {
    const size_t n = (size_t)rows->weights, inner = (size_t)rows->inner;
    const lanes_f center = lanes_load_any(mean), factor = lanes_load_any(inverse);
    const lanes_f all = lanes_load_any(sum), along = lanes_load_any(product);
    for (size_t i = 0; i < n; ++i) {
        for (size_t k = 0; k < inner; ++k, x += step, dy += step, dx += step) {
            const lanes_f d = lanes_load_any(dy);
            const lanes_f v = lanes_multiply(lanes_subtract(lanes_load_any(x), center), factor);
            const lanes_f g = lanes_subtract(weight != NULL ? lanes_multiply(d, lanes_set(weight[i])) : d, all);
            lanes_store_any(dx, lanes_multiply(factor, lanes_subtract(g, lanes_multiply(v, along))));
        }
    }
}

/* ------------------------------------------------------------------------------------------------ softmax */

/* A NaN anywhere makes the whole row NaN, because the sum has it. */
static void softmax_row(size_t n, const float *x, float *y) {
    float best[GG_LANES];
    for (int l = 0; l < GG_LANES; ++l) best[l] = x[0];
    size_t i = 0;
    for (; i + GG_LANES <= n; i += GG_LANES)
        for (int l = 0; l < GG_LANES; ++l) best[l] = x[i + l] > best[l] ? x[i + l] : best[l];
    for (; i < n; ++i) best[0] = x[i] > best[0] ? x[i] : best[0];
    float top = best[0];
    for (int l = 1; l < GG_LANES; ++l) top = best[l] > top ? best[l] : top;
    double total = 0;
    for (size_t at = 0; at < n; at += ROW_PIECE) {
        const size_t end = n - at < ROW_PIECE ? n : at + ROW_PIECE;
        lanes_f s = lanes_set(0);
        GG_INDEPENDENT
        for (size_t k = at; k < end; ++k) y[k] = exp_of_negative(x[k] - top);
        for (size_t k = at; k < end; k += GG_LANES)
            s = lanes_add(s, end - k < GG_LANES ? lanes_load_part(y + k, (int)(end - k)) : lanes_load_any(y + k));
        total += lanes_sum(s);
    }
    const float share = (float)(1 / total);
    GG_INDEPENDENT
    for (size_t k = 0; k < n; ++k) y[k] *= share;
}

static void softmax_row_backward(size_t n, const float *y, const float *dy, float *dx) {
    double total = 0;
    for (size_t at = 0; at < n; at += ROW_PIECE) {
        const size_t end = n - at < ROW_PIECE ? n : at + ROW_PIECE;
        lanes_f s = lanes_set(0);
        for (size_t k = at; k < end; k += GG_LANES) {
            const int count = end - k < GG_LANES ? (int)(end - k) : GG_LANES;
            s = lanes_multiply_add(lanes_load_part(y + k, count), lanes_load_part(dy + k, count), s);
        }
        total += lanes_sum(s);
    }
    const float mean = (float)total;
    GG_INDEPENDENT
    for (size_t k = 0; k < n; ++k) dx[k] = y[k] * (dy[k] - mean);
}

static void softmax_lanes(size_t n, size_t step, size_t width, const float *x, float *y) {
    float best[GG_LANES], share[GG_LANES];
    double total[GG_LANES] = {0};
    for (size_t l = 0; l < width; ++l) best[l] = x[l];
    for (size_t i = 1; i < n; ++i)
        for (size_t l = 0; l < width; ++l) best[l] = x[i * step + l] > best[l] ? x[i * step + l] : best[l];
    for (size_t i = 0; i < n; ++i)
        for (size_t l = 0; l < width; ++l) {
            const float e = exp_of_negative(x[i * step + l] - best[l]);
            total[l] += (double)e;
            y[i * step + l] = e;
        }
    for (size_t l = 0; l < width; ++l) share[l] = (float)(1 / total[l]);
    for (size_t i = 0; i < n; ++i)
        for (size_t l = 0; l < width; ++l) y[i * step + l] *= share[l];
}

static void softmax_lanes_backward(size_t n, size_t step, size_t width, const float *y, const float *dy, float *dx) {
    double total[GG_LANES] = {0};
    float mean[GG_LANES];
    for (size_t i = 0; i < n; ++i)
        for (size_t l = 0; l < width; ++l) total[l] += (double)(y[i * step + l] * dy[i * step + l]);
    for (size_t l = 0; l < width; ++l) mean[l] = (float)total[l];
    for (size_t i = 0; i < n; ++i)
        for (size_t l = 0; l < width; ++l) dx[i * step + l] = y[i * step + l] * (dy[i * step + l] - mean[l]);
}

const gg_cpu_rows GG_VARIANT(gg_cpu_rows) = {
    .row_apply = row_apply,
    .row_moments = row_moments,
    .row_sums = row_sums,
    .row_gradient = row_gradient,
    .lanes_apply = lanes_apply,
    .lanes_sums = lanes_sums,
    .lanes_gradient = lanes_gradient,
    .softmax_row = softmax_row,
    .softmax_row_backward = softmax_row_backward,
    .softmax_lanes = softmax_lanes,
    .softmax_lanes_backward = softmax_lanes_backward,
};
