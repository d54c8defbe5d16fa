/* Layer normalisation and softmax: along rows that lie one value after the other, and across sixteen of them whose
 * values lie side by side. Sums of a long row are of double over pieces of float32. */
#include "cpu/isa/isa.h"
#include "cpu/isa/lanes.h"
#include "cpu/isa/math.h"

/* Values of a row in a piece, and vectors side by side. */
#define ROW_PIECE ((size_t)4096)
#define LANE_PIECE ((size_t)256)

/* In memory, so that no compiler takes single lanes out of registers. */
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

static void row_apply(size_t n, const float *x, float mean, float inverse, const float *weight, const float *bias,
                      float *y) {
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

static void row_sums(size_t n, const float *x, const float *dy, float mean, float inverse, const float *weight,
                     double *sum, double *product) {
    const lanes_f center = lanes_set(mean), factor = lanes_set(inverse);
    *sum = *product = 0;
    for (size_t at = 0; at < n; at += ROW_PIECE) {
        const size_t end = n - at < ROW_PIECE ? n : at + ROW_PIECE;
        lanes_f s = lanes_set(0), p = lanes_set(0);
        for (size_t i = at; i < end; i += GG_LANES) {
            const int count = end - i < GG_LANES ? (int)(end - i) : GG_LANES;
            lanes_f g = count == GG_LANES ? lanes_load_any(dy + i) : lanes_load_part(dy + i, count);
            const lanes_f v = count == GG_LANES ? lanes_load_any(x + i) : lanes_load_part(x + i, count);
            if (weight != NULL)
                g = lanes_multiply(g,
                                   count == GG_LANES ? lanes_load_any(weight + i) : lanes_load_part(weight + i, count));
            s = lanes_add(s, g);
            p = lanes_multiply_add(g, lanes_multiply(lanes_subtract(v, center), factor), p);
        }
        *sum += lanes_sum(s);
        *product += lanes_sum(p);
    }
}

static void row_parameters(size_t n, const float *x, const float *dy, float mean, float inverse, double *weight,
                           double *bias) {
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) weight[i] += (double)(dy[i] * ((x[i] - mean) * inverse));
    GG_INDEPENDENT
    for (size_t i = 0; i < n; ++i) bias[i] += (double)dy[i];
}

static void row_gradient(size_t n, const float *x, const float *dy, float mean, float inverse, const float *weight,
                         float sum, float product, float *dx) {
    if (weight == NULL) {
        GG_INDEPENDENT
        for (size_t i = 0; i < n; ++i) dx[i] = inverse * (dy[i] - sum - (x[i] - mean) * inverse * product);
    } else {
        GG_INDEPENDENT
        for (size_t i = 0; i < n; ++i) dx[i] = inverse * (dy[i] * weight[i] - sum - (x[i] - mean) * inverse * product);
    }
}

static void lanes_apply(size_t n, size_t step, const float *x, const float *mean, const float *inverse,
                        const float *weight, const float *bias, float *y) {
    const lanes_f center = lanes_load_any(mean), factor = lanes_load_any(inverse);
    for (size_t i = 0; i < n; ++i, x += step, y += step) {
        lanes_f v = lanes_multiply(lanes_subtract(lanes_load_any(x), center), factor);
        if (weight != NULL) v = lanes_multiply(v, lanes_set(weight[i]));
        if (bias != NULL) v = lanes_add(v, lanes_set(bias[i]));
        lanes_store_any(y, v);
    }
}

static void lanes_sums(size_t n, size_t step, const float *x, const float *dy, const float *mean, const float *inverse,
                       const float *weight, double sum[GG_LANES], double product[GG_LANES], double *grad_weight,
                       double *grad_bias) {
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

static void lanes_gradient(size_t n, size_t step, const float *x, const float *dy, const float *mean,
                           const float *inverse, const float *weight, const float *sum, const float *product,
                           float *dx) {
    const lanes_f center = lanes_load_any(mean), factor = lanes_load_any(inverse);
    const lanes_f all = lanes_load_any(sum), along = lanes_load_any(product);
    for (size_t i = 0; i < n; ++i, x += step, dy += step, dx += step) {
        const lanes_f d = lanes_load_any(dy);
        const lanes_f v = lanes_multiply(lanes_subtract(lanes_load_any(x), center), factor);
        const lanes_f g = lanes_subtract(weight != NULL ? lanes_multiply(d, lanes_set(weight[i])) : d, all);
        lanes_store_any(dx, lanes_multiply(factor, lanes_subtract(g, lanes_multiply(v, along))));
    }
}

/* ------------------------------------------------------------------------------------------------ softmax */

/* NaN anywhere makes all of the row NaN: the sum has it. */
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
    .row_sums = row_sums,
    .row_parameters = row_parameters,
    .row_gradient = row_gradient,
    .lanes_apply = lanes_apply,
    .lanes_sums = lanes_sums,
    .lanes_gradient = lanes_gradient,
    .softmax_row = softmax_row,
    .softmax_row_backward = softmax_row_backward,
    .softmax_lanes = softmax_lanes,
    .softmax_lanes_backward = softmax_lanes_backward,
};
