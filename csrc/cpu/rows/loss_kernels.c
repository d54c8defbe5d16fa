/* Losses and their gradients, in plain loops: along a sample for PLAIN, across sixteen samples for BATCH_LAST. */
#include <math.h>

#include "cpu/simd/isa.h"
#include "cpu/simd/math.h"

/* The addresses of the values of samples [begin, begin + GG_LANES). */
static int64_t value_stride(const gg_loss_args *args) {
    return args->layout == GG_LAYOUT_BATCH_LAST ? gg_lanes_padded(args->batch) : 1;
}
static int64_t sample_stride(const gg_loss_args *args) {
    return args->layout == GG_LAYOUT_BATCH_LAST ? 1 : args->features;
}

static double loss_weight_of(const gg_loss_args *args, int64_t sample) {
    return args->sample_weights != NULL ? (double)args->sample_weights[sample] : 1.0;
}

/* Clears the lanes after the last sample. */
static void clear_padding(const gg_loss_args *args, int64_t end) {
    if (args->gradient == NULL || args->layout != GG_LAYOUT_BATCH_LAST || end != args->batch) return;
    const int64_t padded = gg_lanes_padded(args->batch);
    if (padded == args->batch) return;
    for (int64_t f = 0; f < args->positions * args->features; ++f)
        memset(args->gradient + f * padded + args->batch, 0, (size_t)(padded - args->batch) * sizeof(float));
}

/* Cross entropy's weights of one target. PyTorch's formulas are
 *   loss = one*(-log p of the target) + even*sum over c of class weight[c]*(-log p[c])
 *   gradient = p[c]*all - even*class weight[c], minus `one` at the target.
 * All weights include the sample's weight. */
typedef struct target_weights {
    double one, even, all;
} target_weights;

static double class_weight(const gg_loss_options *options, int64_t c) {
    return options->class_weights != NULL ? (double)options->class_weights[c] : 1.0;
}

static double class_weights_sum(const gg_loss_options *options, int64_t classes) {
    double sum = 0;
    if (options->class_weights == NULL) return (double)classes;
    for (int64_t c = 0; c < classes; ++c) sum += (double)options->class_weights[c];
    return sum;
}

static target_weights weights_of_target(const gg_loss_args *args, int64_t sample, int32_t target, int64_t classes,
                                        double class_sum) {
    const double smoothing = (double)args->loss.label_smoothing, weight = loss_weight_of(args, sample);
    target_weights w = {.one = (1.0 - smoothing) * weight * class_weight(&args->loss, target),
                        .even = smoothing * weight / (double)classes};
    w.all = w.one + w.even * class_sum;
    return w;
}

static bool loss_ignores(const gg_loss_args *args, int32_t target) {
    return args->loss.ignores && target == args->loss.ignore_index;
}

/* Divisor of gradients. Infinite if nothing counts, so that gradients are 0 like the loss: smoothing spreads targets of
 * weight 0 over classes with weights. */
static double loss_divisor(const gg_loss_args *args) {
    return args->result->divisor > 0 ? args->result->divisor : (double)INFINITY;
}

/* One position of a PLAIN prediction. Subtracts the max x in the exponentials. Their sum is double, because a thousand
 * classes would cost digits. Sixteen partial sums, because the compiler may not reorder. */
static void cross_entropy_row(const gg_loss_args *args, int64_t position, double class_sum, double *loss_sum,
                              int64_t *correct) {
    const int64_t classes = args->features;
    const float *x = args->prediction + position * classes;
    const int32_t target = ((const int32_t *)args->targets)[position];
    float *gradient = args->gradient != NULL ? args->gradient + position * classes : NULL;
    if (loss_ignores(args, target)) {
        if (gradient != NULL) memset(gradient, 0, (size_t)classes * sizeof(float));
        return;
    }
    const target_weights weight = weights_of_target(args, position / args->positions, target, classes, class_sum);
    float best[GG_LANES];
    double sum[GG_LANES] = {0};
    for (int i = 0; i < GG_LANES; ++i) best[i] = x[0];
    int64_t f = 0;
    for (; f + GG_LANES <= classes; f += GG_LANES)
        for (int i = 0; i < GG_LANES; ++i) best[i] = x[f + i] > best[i] ? x[f + i] : best[i];
    for (; f < classes; ++f) best[0] = x[f] > best[0] ? x[f] : best[0];
    float top = best[0];
    for (int i = 1; i < GG_LANES; ++i) top = best[i] > top ? best[i] : top;

    int64_t first = 0;
    while (first < classes && x[first] != top) ++first;
    *correct += first == target;

    for (f = 0; f < classes; f += GG_LANES) {
        const int count = classes - f < GG_LANES ? (int)(classes - f) : GG_LANES;
        float e[GG_LANES];
        if (count == GG_LANES)
            for (int i = 0; i < GG_LANES; ++i) e[i] = exp_of_negative(x[f + i] - top);
        else
            for (int i = 0; i < GG_LANES; ++i) e[i] = i < count ? exp_of_negative(x[f + i] - top) : 0.0f;
        for (int i = 0; i < GG_LANES; ++i) sum[i] += (double)e[i];
        if (gradient != NULL) memcpy(gradient + f, e, (size_t)count * sizeof(float));
    }
    double total = 0;
    for (int i = 0; i < GG_LANES; ++i) total += sum[i];
    const double log_total = log(total), divisor = loss_divisor(args);
    *loss_sum += weight.one * (log_total - ((double)x[target] - (double)top));
    for (f = 0; weight.even > 0 && f < classes; ++f)
        *loss_sum += weight.even * class_weight(&args->loss, f) * (log_total - ((double)x[f] - (double)top));
    if (gradient == NULL) return;
    const float share = (float)(weight.all / (total * divisor));
    for (f = 0; f < classes; ++f) gradient[f] *= share;
    for (f = 0; weight.even > 0 && f < classes; ++f)
        gradient[f] -= (float)(weight.even * class_weight(&args->loss, f) / divisor);
    /* Computed from p - 1 directly: rounding p*share first would leave its error in a difference. */
    const double p = exp((double)x[target] - (double)top) / total;
    const double even = weight.even * class_weight(&args->loss, target);
    gradient[target] = (float)((weight.one * (p - 1.0) + (weight.all - weight.one) * p - even) / divisor);
}

/* Cross entropy for one position of up to sixteen samples of a BATCH_LAST prediction, one a lane. */
static void cross_entropy_lanes(const gg_loss_args *args, int64_t sample, int64_t position, double class_sum,
                                double *loss_sum, int64_t *correct) {
    const int64_t classes = args->features, stride = gg_lanes_padded(args->batch);
    const int count = args->batch - sample < GG_LANES ? (int)(args->batch - sample) : GG_LANES;
    const int64_t at = position * classes * stride + sample;
    const float *x = GG_ALIGNED(args->prediction + at);
    const int32_t *targets = (const int32_t *)args->targets + sample * args->positions + position;
    _Alignas(64) float top[GG_LANES];
    _Alignas(64) int32_t first[GG_LANES] = {0};
    double sum[GG_LANES] = {0};
    for (int i = 0; i < GG_LANES; ++i) top[i] = x[i];
    for (int64_t f = 1; f < classes; ++f) {
        const float *row = GG_ALIGNED(x + f * stride);
        for (int i = 0; i < GG_LANES; ++i) {
            const int more = row[i] > top[i];
            first[i] = more ? (int32_t)f : first[i];
            top[i] = more ? row[i] : top[i];
        }
    }
    for (int64_t f = 0; f < classes; ++f) {
        const float *row = GG_ALIGNED(x + f * stride);
        _Alignas(64) float e[GG_LANES];
        for (int i = 0; i < GG_LANES; ++i) e[i] = exp_of_negative(row[i] - top[i]);
        for (int i = 0; i < GG_LANES; ++i) sum[i] += (double)e[i];
        if (args->gradient != NULL) memcpy(args->gradient + at + f * stride, e, sizeof e);
    }
    const double divisor = loss_divisor(args);
    target_weights weight[GG_LANES] = {{0}};
    _Alignas(64) float share[GG_LANES] = {0}, even[GG_LANES] = {0};
    for (int i = 0; i < count; ++i) {
        const int32_t target = targets[i * args->positions];
        if (loss_ignores(args, target)) continue;
        const double log_total = log(sum[i]);
        weight[i] = weights_of_target(args, sample + i, target, classes, class_sum);
        *loss_sum += weight[i].one * (log_total - ((double)x[target * stride + i] - (double)top[i]));
        for (int64_t f = 0; weight[i].even > 0 && f < classes; ++f)
            *loss_sum += weight[i].even * class_weight(&args->loss, f) *
                         (log_total - ((double)x[f * stride + i] - (double)top[i]));
        *correct += first[i] == target;
        share[i] = (float)(weight[i].all / (sum[i] * divisor));
        even[i] = (float)(weight[i].even / divisor);
    }
    if (args->gradient == NULL) return;
    float *gradient = GG_ALIGNED(args->gradient + at);
    for (int64_t f = 0; f < classes; ++f) {
        float *row = GG_ALIGNED(gradient + f * stride);
        const float class = (float)class_weight(&args->loss, f);
        for (int i = 0; i < GG_LANES; ++i) row[i] = row[i] * share[i] - even[i] * class;
    }
    for (int i = 0; i < count; ++i) {
        const int32_t target = targets[i * args->positions];
        if (loss_ignores(args, target)) continue;
        const double p = exp((double)x[target * stride + i] - (double)top[i]) / sum[i];
        const double spread = weight[i].even * class_weight(&args->loss, target);
        gradient[target * stride + i] =
            (float)((weight[i].one * (p - 1.0) + (weight[i].all - weight[i].one) * p - spread) / divisor);
    }
}

static void cross_entropy(const gg_loss_args *args, int64_t begin, int64_t end, double *loss_sum, int64_t *correct) {
    const double class_sum = class_weights_sum(&args->loss, args->features);
    if (args->layout == GG_LAYOUT_PLAIN) {
        for (int64_t n = begin; n < end; ++n) cross_entropy_row(args, n, class_sum, loss_sum, correct);
        return;
    }
    for (int64_t n = begin; n < end; n += GG_LANES)
        for (int64_t t = 0; t < args->positions; ++t) cross_entropy_lanes(args, n, t, class_sum, loss_sum, correct);
    clear_padding(args, end);
}

/* On logits: max(x, 0) - x*t + log(1 + exp(-|x|)). A sample is correct if the sign of every value is. */
static void binary_cross_entropy(const gg_loss_args *args, int64_t begin, int64_t end, double *loss_sum,
                                 int64_t *correct) {
    const int64_t step = value_stride(args), sample = sample_stride(args), features = args->features;
    const double share = 1.0 / ((double)args->batch * (double)features);
    for (int64_t n = begin; n < end; ++n) {
        const float *target = (const float *)args->targets + n * features;
        const double weight = loss_weight_of(args, n), weighted_share = weight * share;
        double sum = 0;
        bool right = true;
        for (int64_t f = 0; f < features; ++f) {
            const int64_t at = n * sample + f * step;
            const double x = (double)args->prediction[at], t = (double)target[f];
            const double e = exp(-fabs(x));
            /* Written so that NaN stays NaN. */
            sum += (x < 0 ? 0 : x) - x * t + log1p(e);
            right = right && (x > 0) == (t > 0.5);
            if (args->gradient != NULL)
                args->gradient[at] = (float)(((x < 0 ? e : 1.0) / (1.0 + e) - t) * weighted_share);
        }
        *loss_sum += weight * (sum / (double)features);
        *correct += right;
    }
    clear_padding(args, end);
}

static void mean_squared_error(const gg_loss_args *args, int64_t begin, int64_t end, double *loss_sum,
                               int64_t *correct) {
    const int64_t step = value_stride(args), sample = sample_stride(args), features = args->features;
    const double share = 2.0 / ((double)args->batch * (double)features);
    (void)correct;
    for (int64_t n = begin; n < end; ++n) {
        const float *target = (const float *)args->targets + n * features;
        const double weight = loss_weight_of(args, n), weighted_share = weight * share;
        double sum = 0;
        for (int64_t f = 0; f < features; ++f) {
            const int64_t at = n * sample + f * step;
            const double d = (double)args->prediction[at] - (double)target[f];
            sum += d * d;
            if (args->gradient != NULL) args->gradient[at] = (float)(d * weighted_share);
        }
        *loss_sum += weight * (sum / (double)features);
    }
    clear_padding(args, end);
}

const gg_cpu_loss_kernels GG_VARIANT(gg_cpu_loss_kernels) = {
    .loss =
        {
            [GG_LOSS_CROSS_ENTROPY] = cross_entropy,
            [GG_LOSS_BINARY_CROSS_ENTROPY] = binary_cross_entropy,
            [GG_LOSS_MEAN_SQUARED_ERROR] = mean_squared_error,
        },
};
