/* Losses and their gradients, PLAIN. A warp computes a row of up to ROW_OF_A_WARP values, a block a longer one. Each
 * row stores its loss as double in scratch. A last kernel adds the losses, in an order that depends on their number
 * alone. */
#include "cuda/common.cuh"

namespace {

constexpr int64_t ROW_OF_A_WARP = 1024;

/* Known before the gradient is computed: the divisor, and the sum of class weights. */
struct weighed {
    double divisor, counted, class_sum;
};

struct loss_work {
    gg_loss_args args;
    int64_t rows;
    weighed plain;  /* if known from the sizes */
    double *known;  /* otherwise stored here */
    double *of_row; /* the loss of each row */
    double *right;  /* 1 for each correct row, otherwise 0 */
};

__device__ __forceinline__ weighed weighed_of(const loss_work &w) {
    if (w.known == nullptr) return w.plain;
    return {w.known[0], w.known[1], w.known[2]};
}

__device__ __forceinline__ double class_weight(const gg_loss_args &a, int64_t c) {
    return a.loss.class_weights != nullptr ? (double)a.loss.class_weights[c] : 1.0;
}

__device__ __forceinline__ bool is_ignored(const gg_loss_args &a, int32_t target) {
    return a.loss.ignores && target == a.loss.ignore_index;
}

__device__ __forceinline__ double sample_weight(const gg_loss_args &a, int64_t sample) {
    return a.sample_weights != nullptr ? (double)a.sample_weights[sample] : 1.0;
}

/* One block. */
__global__ void __launch_bounds__(GG_BLOCK) weigh_kernel(loss_work w) {
    const gg_loss_args &a = w.args;
    const int32_t *targets = static_cast<const int32_t *>(a.targets);
    double divisor = 0, counted = 0, class_sum = 0;
    for (int64_t i = threadIdx.x; i < w.rows; i += blockDim.x) {
        if (is_ignored(a, targets[i])) continue;
        divisor += class_weight(a, targets[i]);
        counted += 1;
    }
    for (int64_t c = threadIdx.x; c < a.features; c += blockDim.x) class_sum += class_weight(a, c);
    divisor = gg_block_sum(divisor);
    counted = gg_block_sum(counted);
    class_sum = gg_block_sum(class_sum);
    if (threadIdx.x > 0) return;
    w.known[0] = divisor;
    w.known[1] = counted;
    w.known[2] = class_sum;
}

/* Sums and max values of the threads that share a row: a warp, or the block. */
template <int threads> __device__ __forceinline__ double row_sum(double v) {
    if constexpr (threads == GG_BLOCK) {
        return gg_block_sum(v);
    } else {
        for (int by = 16; by > 0; by /= 2) v += __shfl_xor_sync(0xffffffffu, v, by);
        return v;
    }
}
template <int threads> __device__ __forceinline__ float row_max(float v) {
    if constexpr (threads == GG_BLOCK) {
        return gg_block_max(v);
    } else {
        for (int by = 16; by > 0; by /= 2) v = gg_greater(v, __shfl_xor_sync(0xffffffffu, v, by));
        return v;
    }
}
/* The min of numbers below 2^31. */
template <int threads> __device__ __forceinline__ int row_min(int v) {
    for (int by = 16; by > 0; by /= 2) v = min(v, __shfl_xor_sync(0xffffffffu, v, by));
    if constexpr (threads == GG_BLOCK) {
        GG_SHARED(int, of_warp, [GG_BLOCK / 32]);
        if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
        __syncthreads();
        for (int i = 0; i < GG_BLOCK / 32; ++i) v = min(v, of_warp[i]);
        __syncthreads();
    }
    return v;
}

/* The formulas of cpu/rows/loss_kernels.c:
 *   loss = one*(-log p of the target) + even*sum over c of class weight[c]*(-log p[c])
 *   gradient = p[c]*all - even*class weight[c], minus `one` at the target.
 * The gradient is divided by the divisor; it is 0 if the divisor is 0. */
template <int threads> __device__ void cross_entropy_row(const loss_work &w, const weighed &known, int64_t row, int t) {
    const gg_loss_args &a = w.args;
    const int64_t classes = a.features;
    const float *x = a.prediction + row * classes;
    float *gradient = a.gradient != nullptr ? a.gradient + row * classes : nullptr;
    const int32_t target = static_cast<const int32_t *>(a.targets)[row];
    if (is_ignored(a, target)) { /* all threads of the row agree */
        if (gradient != nullptr)
            for (int64_t c = t; c < classes; c += threads) gradient[c] = 0;
        if (t == 0) w.of_row[row] = w.right[row] = 0;
        return;
    }
    float top = -INFINITY;
    for (int64_t c = t; c < classes; c += threads) top = gg_greater(x[c], top);
    top = row_max<threads>(top);
    int first = INT32_MAX; /* the lowest index of the max; none if there is a NaN */
    for (int64_t c = t; c < classes && first == INT32_MAX; c += threads)
        if (x[c] == top) first = (int)c;
    first = row_min<threads>(first);

    double sum = 0;
    for (int64_t c = t; c < classes; c += threads) {
        const float e = expf(x[c] - top);
        sum += (double)e;
        if (gradient != nullptr) gradient[c] = e;
    }
    sum = row_sum<threads>(sum);

    const double smoothing = (double)a.loss.label_smoothing, weight = sample_weight(a, row / a.positions);
    const double one = (1.0 - smoothing) * weight * class_weight(a, target);
    const double even = smoothing * weight / (double)classes, all = one + even * known.class_sum;
    const double log_sum = log(sum), divisor = known.divisor > 0 ? known.divisor : (double)INFINITY;
    double spread = 0;
    if (even > 0) {
        for (int64_t c = t; c < classes; c += threads)
            spread += class_weight(a, c) * (log_sum - ((double)x[c] - (double)top));
        spread = row_sum<threads>(spread);
    }
    if (t == 0) {
        w.of_row[row] = one * (log_sum - ((double)x[target] - (double)top)) + even * spread;
        w.right[row] = first == target ? 1 : 0;
    }
    if (gradient == nullptr) return;
    const float share = (float)(all / (sum * divisor));
    for (int64_t c = t; c < classes; c += threads) {
        float g = gradient[c] * share;
        if (even > 0) g -= (float)(even * class_weight(a, c) / divisor);
        /* Computed from p - 1 directly: rounding p*share first would leave its error in a difference. */
        if (c == target) {
            const double p = exp((double)x[c] - (double)top) / sum;
            g = (float)((one * (p - 1.0) + (all - one) * p - even * class_weight(a, c)) / divisor);
        }
        gradient[c] = g;
    }
}

/* On logits: max(x, 0) - x*t + log(1 + exp(-|x|)). A sample is correct if the sign of every value is. */
template <int threads> __device__ void binary_row(const loss_work &w, int64_t row, int t) {
    const gg_loss_args &a = w.args;
    const int64_t features = a.features;
    const double weight = sample_weight(a, row), share = weight * (1.0 / ((double)a.batch * (double)features));
    double sum = 0, wrong = 0;
    for (int64_t f = t; f < features; f += threads) {
        const int64_t at = row * features + f;
        const double x = (double)a.prediction[at], y = (double)static_cast<const float *>(a.targets)[at];
        const double e = exp(-fabs(x));
        sum += (x < 0 ? 0 : x) - x * y + log1p(e); /* NaN stays NaN */
        if ((x > 0) != (y > 0.5)) wrong += 1;
        if (a.gradient != nullptr) a.gradient[at] = (float)(((x < 0 ? e : 1.0) / (1.0 + e) - y) * share);
    }
    sum = row_sum<threads>(sum);
    wrong = row_sum<threads>(wrong);
    if (t > 0) return;
    w.of_row[row] = weight * (sum / (double)features);
    w.right[row] = wrong > 0 ? 0 : 1;
}

template <int threads> __device__ void squared_row(const loss_work &w, int64_t row, int t) {
    const gg_loss_args &a = w.args;
    const int64_t features = a.features;
    const double weight = sample_weight(a, row), share = weight * (2.0 / ((double)a.batch * (double)features));
    double sum = 0;
    for (int64_t f = t; f < features; f += threads) {
        const int64_t at = row * features + f;
        const double d = (double)a.prediction[at] - (double)static_cast<const float *>(a.targets)[at];
        sum += d * d;
        if (a.gradient != nullptr) a.gradient[at] = (float)(d * share);
    }
    sum = row_sum<threads>(sum);
    if (t > 0) return;
    w.of_row[row] = weight * (sum / (double)features);
    w.right[row] = 0;
}

template <gg_loss_kind kind, int threads> __global__ void __launch_bounds__(GG_BLOCK) rows_kernel(loss_work w) {
    const weighed known = weighed_of(w);
    constexpr int rows = GG_BLOCK / threads; /* of a block */
    const int t = (int)threadIdx.x % threads;
    for (int64_t row = (int64_t)blockIdx.x * rows + threadIdx.x / threads; row < w.rows;
         row += (int64_t)gridDim.x * rows) {
        if (kind == GG_LOSS_CROSS_ENTROPY) cross_entropy_row<threads>(w, known, row, t);
        else if (kind == GG_LOSS_BINARY_CROSS_ENTROPY) binary_row<threads>(w, row, t);
        else squared_row<threads>(w, row, t);
    }
}

/* One block. */
__global__ void __launch_bounds__(GG_BLOCK) result_kernel(loss_work w) {
    double sum = 0, right = 0;
    for (int64_t i = threadIdx.x; i < w.rows; i += blockDim.x) {
        sum += w.of_row[i];
        right += w.right[i];
    }
    sum = gg_block_sum(sum);
    right = gg_block_sum(right);
    if (threadIdx.x > 0) return;
    const weighed known = weighed_of(w);
    w.args.result->loss_sum = sum;
    w.args.result->divisor = known.divisor;
    w.args.result->correct = (int64_t)right;
    w.args.result->counted = (int64_t)known.counted;
}

template <gg_loss_kind kind> void rows_launch(gg_cuda_stream stream, const loss_work &w) {
    if (w.args.features <= ROW_OF_A_WARP)
        GG_LAUNCH((rows_kernel<kind, 32>), gg_blocks_for(32 * w.rows), GG_BLOCK, 0, stream, w);
    else GG_LAUNCH((rows_kernel<kind, GG_BLOCK>), gg_blocks_for(GG_BLOCK * w.rows), GG_BLOCK, 0, stream, w);
}

} // namespace

size_t gg_cuda_loss_scratch(const gg_loss_args *args) { return 3 + 2 * (size_t)(args->batch * args->positions); }

void gg_cuda_loss(gg_cuda_stream stream, const gg_loss_args *args, double *scratch) {
    loss_work w;
    w.args = *args;
    w.rows = args->batch * args->positions;
    w.plain = {(double)w.rows, (double)w.rows, (double)args->features};
    w.known = nullptr;
    w.of_row = scratch + 3;
    w.right = w.of_row + w.rows;
    if (args->loss.kind == GG_LOSS_CROSS_ENTROPY && (args->loss.ignores || args->loss.class_weights != nullptr)) {
        w.known = scratch;
        GG_LAUNCH(weigh_kernel, 1, GG_BLOCK, 0, stream, w);
    }
    switch (args->loss.kind) {
    case GG_LOSS_CROSS_ENTROPY: rows_launch<GG_LOSS_CROSS_ENTROPY>(stream, w); break;
    case GG_LOSS_BINARY_CROSS_ENTROPY: rows_launch<GG_LOSS_BINARY_CROSS_ENTROPY>(stream, w); break;
    case GG_LOSS_MEAN_SQUARED_ERROR: rows_launch<GG_LOSS_MEAN_SQUARED_ERROR>(stream, w); break;
    case GG_LOSS_COUNT: break;
    }
    GG_LAUNCH(result_kernel, 1, GG_BLOCK, 0, stream, w);
}
