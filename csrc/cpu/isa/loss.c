/* Losses and their gradients, in plain loops: along a sample for PLAIN, across sixteen samples for BATCH_LAST. */
#include <math.h>

#include "cpu/isa/isa.h"
#include "cpu/isa/math.h"

/* How the values of the samples [begin, begin + GG_LANES) are reached. */
static int64_t value_stride(const gg_loss_args *args) {
    return args->layout == GG_LAYOUT_BATCH_LAST ? gg_lanes_padded(args->batch) : 1;
}
static int64_t sample_stride(const gg_loss_args *args) {
    return args->layout == GG_LAYOUT_BATCH_LAST ? 1 : args->features;
}

static double loss_weight_of(const gg_loss_args *args, int64_t sample) {
    return args->sample_weights != NULL ? (double)args->sample_weights[sample] : 1.0;
}

/* The lanes behind the last sample. */
static void clear_padding(const gg_loss_args *args, int64_t end) {
    if (args->gradient == NULL || args->layout != GG_LAYOUT_BATCH_LAST || end != args->batch) return;
    const int64_t padded = gg_lanes_padded(args->batch);
    if (padded == args->batch) return;
    for (int64_t f = 0; f < args->features; ++f)
        memset(args->gradient + f * padded + args->batch, 0, (size_t)(padded - args->batch) * sizeof(float));
}

/* log(sum of exp(x)) - x[target], with the largest x taken out of the exponentials, for one PLAIN sample. The sum is
 * in double: a thousand classes would cost digits. Sixteen partial sums, since the compiler may not reorder. */
static void cross_entropy_row(const gg_loss_args *args, int64_t sample, double *loss_sum, int64_t *correct) {
    const int64_t features = args->features;
    const float *x = args->prediction + sample * features;
    const int32_t target = ((const int32_t *)args->targets)[sample];
    const double weight = loss_weight_of(args, sample);
    float best[GG_LANES];
    double sum[GG_LANES] = {0};
    for (int i = 0; i < GG_LANES; ++i) best[i] = x[0];
    int64_t f = 0;
    for (; f + GG_LANES <= features; f += GG_LANES)
        for (int i = 0; i < GG_LANES; ++i) best[i] = x[f + i] > best[i] ? x[f + i] : best[i];
    for (; f < features; ++f) best[0] = x[f] > best[0] ? x[f] : best[0];
    float top = best[0];
    for (int i = 1; i < GG_LANES; ++i) top = best[i] > top ? best[i] : top;

    int64_t first = 0;
    while (first < features && x[first] != top) ++first;
    *correct += first == target;

    float *gradient = args->gradient != NULL ? args->gradient + sample * features : NULL;
    for (f = 0; f < features; f += GG_LANES) {
        const int count = features - f < GG_LANES ? (int)(features - f) : GG_LANES;
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
    *loss_sum += weight * (log(total) - ((double)x[target] - (double)top));
    if (gradient == NULL) return;
    const float share = (float)(weight / (total * (double)args->batch));
    for (f = 0; f < features; ++f) gradient[f] *= share;
    /* The last step of p - 1 anew: rounding p*share first would leave its error in a difference. */
    gradient[target] = (float)(weight * (exp((double)x[target] - (double)top) / total - 1.0) / (double)args->batch);
}

/* The same for up to sixteen samples of a BATCH_LAST prediction, one a lane. */
static void cross_entropy_lanes(const gg_loss_args *args, int64_t sample, double *loss_sum, int64_t *correct) {
    const int64_t features = args->features, stride = gg_lanes_padded(args->batch);
    const int count = args->batch - sample < GG_LANES ? (int)(args->batch - sample) : GG_LANES;
    const float *x = GG_ALIGNED(args->prediction + sample);
    const int32_t *target = (const int32_t *)args->targets + sample;
    _Alignas(64) float top[GG_LANES];
    _Alignas(64) int32_t first[GG_LANES] = {0};
    double sum[GG_LANES] = {0};
    for (int i = 0; i < GG_LANES; ++i) top[i] = x[i];
    for (int64_t f = 1; f < features; ++f) {
        const float *row = GG_ALIGNED(x + f * stride);
        for (int i = 0; i < GG_LANES; ++i) {
            const int more = row[i] > top[i];
            first[i] = more ? (int32_t)f : first[i];
            top[i] = more ? row[i] : top[i];
        }
    }
    for (int64_t f = 0; f < features; ++f) {
        const float *row = GG_ALIGNED(x + f * stride);
        _Alignas(64) float e[GG_LANES];
        for (int i = 0; i < GG_LANES; ++i) e[i] = exp_of_negative(row[i] - top[i]);
        for (int i = 0; i < GG_LANES; ++i) sum[i] += (double)e[i];
        if (args->gradient != NULL) memcpy(args->gradient + sample + f * stride, e, sizeof e);
    }
    _Alignas(64) float share[GG_LANES] = {0};
    for (int i = 0; i < count; ++i) {
        const double weight = loss_weight_of(args, sample + i);
        *loss_sum += weight * (log(sum[i]) - ((double)x[target[i] * stride + i] - (double)top[i]));
        *correct += first[i] == target[i];
        share[i] = (float)(weight / (sum[i] * (double)args->batch));
    }
    if (args->gradient == NULL) return;
    float *gradient = GG_ALIGNED(args->gradient + sample);
    for (int64_t f = 0; f < features; ++f) {
        float *row = GG_ALIGNED(gradient + f * stride);
        for (int i = 0; i < GG_LANES; ++i) row[i] *= share[i];
    }
    for (int i = 0; i < count; ++i) {
        const double p = exp((double)x[target[i] * stride + i] - (double)top[i]) / sum[i];
        gradient[target[i] * stride + i] = (float)(loss_weight_of(args, sample + i) * (p - 1.0) / (double)args->batch);
    }
}

static void cross_entropy(const gg_loss_args *args, int64_t begin, int64_t end, double *loss_sum, int64_t *correct) {
    if (args->layout == GG_LAYOUT_BATCH_LAST)
        for (int64_t n = begin; n < end; n += GG_LANES) cross_entropy_lanes(args, n, loss_sum, correct);
    else
        for (int64_t n = begin; n < end; ++n) cross_entropy_row(args, n, loss_sum, correct);
    clear_padding(args, end);
}

/* On logits: max(x, 0) - x*t + log(1 + exp(-|x|)). A sample is right if every value's sign is. */
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
