/* BATCH_NORM and LAYER_NORM. Sums are of double; the squares of a channel are of differences from its first value, so
 * that a mean far from 0 costs no digits. */
#include "cuda/kernels/nn.cuh"

/* ------------------------------------------------------------------------------------------ batch normalisation */

/* What forward leaves for backward, each an array over the channels. */
enum { SAVED_MEAN = 0, SAVED_INVERSE, SAVED_VARIANCE, SAVED_SCALE, SAVED_OFFSET, SAVED_COUNT };

struct moment_sum {
    const float *x;
    int64_t inner;
    struct local {
        double pivot;
    };
    __device__ local begin(int64_t channel) const { return {(double)x[channel * inner]}; }
    __device__ void add(const local &l, int64_t, int64_t, int64_t index, gg_pair *sum) const {
        const double d = (double)x[index] - l.pivot;
        sum->first += d;
        sum->second += d * d;
    }
};

/* Mean and variances of the batch, or those that have been tracked; scale and offset. */
static __global__ void norm_statistics(gg_cuda_batch_norm_args a, int64_t pieces) {
    const double values = (double)(a.outer * a.inner);
    for (int64_t c = gg_thread_number(); c < a.channels; c += gg_thread_count()) {
        double mean, inverse;
        if (a.batch_statistics) {
            const gg_pair sum = sum_of_pieces((const gg_pair *)a.scratch, pieces, a.channels, c);
            const double squares = sum.second - sum.first * sum.first / values, all = squares < 0 ? 0 : squares;
            a.saved[SAVED_MEAN * a.channels + c] = (float)((double)a.input[c * a.inner] + sum.first / values);
            a.saved[SAVED_INVERSE * a.channels + c] = (float)(1 / sqrt(all / values + (double)a.epsilon));
            a.saved[SAVED_VARIANCE * a.channels + c] = (float)(all / (values - 1));
            mean = (double)a.saved[SAVED_MEAN * a.channels + c];
            inverse = (double)a.saved[SAVED_INVERSE * a.channels + c];
        } else {
            /* Averages of rounded variances of about 0 may be a hair below it. */
            const double variance = (double)a.running_variance[c];
            mean = (double)a.running_mean[c];
            inverse = 1 / sqrt((variance < 0 ? 0 : variance) + (double)a.epsilon);
        }
        const float scale = (float)((a.weight != NULL ? (double)a.weight[c] : 1.0) * inverse);
        const double bias = a.bias != NULL ? (double)a.bias[c] : 0.0;
        a.saved[SAVED_SCALE * a.channels + c] = scale;
        a.saved[SAVED_OFFSET * a.channels + c] = (float)(bias - mean * (double)scale);
    }
}

template <int V> static __global__ void norm_apply(gg_rows r, gg_cuda_batch_norm_args a) {
    const float *scale = a.saved + SAVED_SCALE * a.channels, *offset = a.saved + SAVED_OFFSET * a.channels;
    for (int64_t row = row_first(r.shift); row < r.rows; row += row_step(r.shift)) {
        for (int64_t i = column_first(r.shift); i < r.length; i += (int64_t)1 << r.shift) {
            const int64_t at = (row * r.length + i) * V;
            gg_pack<V> v = gg_load_pack<V>(a.input + at);
            for (int k = 0; k < V; ++k) {
                const int64_t c = channel_of<V>(r, row, i, k);
                v.at[k] = __fmaf_rn(scale[c], v.at[k], offset[c]);
            }
            if (a.added != NULL) {
                const gg_pack<V> other = gg_load_pack<V>(a.added + at);
                for (int k = 0; k < V; ++k) v.at[k] += other.at[k];
            }
            if (a.relu)
                for (int k = 0; k < V; ++k) v.at[k] = gated(v.at[k], v.at[k]);
            gg_store_pack(a.output + at, v);
        }
    }
}

/* Sums of the error behind the activation and of its products with the differences from the mean. Where something was
 * added the output shows what the ReLU has cut, and the error is written; else the input shows it. */
struct product_sum {
    const float *x, *y, *dy, *saved;
    float *passed;
    int64_t channels;
    int relu;
    struct local {
        float scale, offset;
        double mean;
    };
    __device__ local begin(int64_t c) const {
        return {saved[SAVED_SCALE * channels + c], saved[SAVED_OFFSET * channels + c],
                (double)saved[SAVED_MEAN * channels + c]};
    }
    __device__ void add(const local &l, int64_t, int64_t, int64_t index, gg_pair *sum) const {
        const float v = x[index];
        float d = dy[index];
        if (relu) d = gated(y != NULL ? y[index] : __fmaf_rn(l.scale, v, l.offset), d);
        if (passed != NULL) passed[index] = d;
        sum->first += (double)d;
        sum->second += (double)d * ((double)v - l.mean);
    }
};

static __host__ __device__ inline float *slopes_in(void *scratch, int64_t pieces, int64_t channels) {
    return (float *)((gg_pair *)scratch + pieces * channels);
}

static __global__ void norm_parameters(gg_cuda_batch_norm_args a, int64_t pieces) {
    const double values = (double)(a.outer * a.inner), momentum = (double)a.momentum;
    float *slope = slopes_in(a.scratch, pieces, a.channels);
    for (int64_t c = gg_thread_number(); c < a.channels; c += gg_thread_count()) {
        const gg_pair sum = sum_of_pieces((const gg_pair *)a.scratch, pieces, a.channels, c);
        const double mean = (double)a.saved[SAVED_MEAN * a.channels + c];
        const double inverse = (double)a.saved[SAVED_INVERSE * a.channels + c];
        const double scale = (double)a.saved[SAVED_SCALE * a.channels + c];
        const double variance = (double)a.saved[SAVED_VARIANCE * a.channels + c];
        slope[c] = (float)(-scale * inverse * inverse * sum.second / values);
        slope[a.channels + c] = (float)(-scale * sum.first / values);
        if (a.weight != NULL) {
            a.grad_weight[c] = (float)(sum.second * inverse);
            a.grad_bias[c] = (float)sum.first;
        }
        if (a.running_mean == NULL) continue;
        a.grad_mean[c] = (float)(momentum * ((double)a.running_mean[c] - mean));
        a.grad_variance[c] = (float)(momentum * ((double)a.running_variance[c] - variance));
    }
}

/* by_input: the ReLU is still to be passed. */
template <int V>
static __global__ void __launch_bounds__(GG_BLOCK, 4)
    norm_gradient(gg_rows r, gg_cuda_batch_norm_args a, int64_t pieces, int by_input, const float *dy) {
    const float *mean = a.saved + SAVED_MEAN * a.channels, *scale = a.saved + SAVED_SCALE * a.channels;
    const float *offset = a.saved + SAVED_OFFSET * a.channels;
    const float *slope = slopes_in(a.scratch, pieces, a.channels), *shift = slope + a.channels;
    for (int64_t row = row_first(r.shift); row < r.rows; row += row_step(r.shift)) {
        for (int64_t i = column_first(r.shift); i < r.length; i += (int64_t)1 << r.shift) {
            const int64_t at = (row * r.length + i) * V;
            const gg_pack<V> v = gg_load_pack<V>(a.input + at);
            gg_pack<V> d = gg_load_pack<V>(dy + at);
            for (int k = 0; k < V; ++k) {
                const int64_t c = channel_of<V>(r, row, i, k);
                const float x = v.at[k];
                if (by_input) d.at[k] = gated(__fmaf_rn(scale[c], x, offset[c]), d.at[k]);
                d.at[k] = __fmaf_rn(scale[c], d.at[k], __fmaf_rn(slope[c], x - mean[c], shift[c]));
            }
            gg_store_pack(a.grad_input + at, d);
        }
    }
}

size_t gg_cuda_batch_norm_saved(int64_t channels) { return (size_t)(SAVED_COUNT * channels) * sizeof(float); }

size_t gg_cuda_batch_norm_scratch(int64_t outer, int64_t channels, int64_t inner) {
    return partial_bytes(outer, channels, inner) + (size_t)(2 * channels) * sizeof(float);
}

static bool norm_is_wide(const gg_cuda_batch_norm_args *a) {
    return (a->inner == 1 ? a->channels : a->inner) % 4 == 0 && gg_is_aligned(a->input, 16) &&
           gg_is_aligned(a->added, 16) && gg_is_aligned(a->output, 16) && gg_is_aligned(a->grad_output, 16) &&
           gg_is_aligned(a->grad_input, 16) && gg_is_aligned(a->grad_added, 16);
}

void gg_cuda_batch_norm(gg_cuda_stream stream, const gg_cuda_batch_norm_args *args) {
    const int64_t pieces = pieces_of(args->outer, args->channels, args->inner);
    const bool wide = norm_is_wide(args);
    const gg_rows r = rows_of(args->outer, args->channels, args->inner, wide ? 4 : 1);
    const dim3 block(GG_BLOCK);
    if (args->batch_statistics)
        sum_channels(stream, moment_sum{args->input, args->inner}, args->outer, args->channels, args->inner,
                     (gg_pair *)args->scratch);
    GG_LAUNCH(norm_statistics, dim3(blocks_for(args->channels, GG_BLOCK)), block, 0, stream, *args, pieces);
    if (wide) GG_LAUNCH((norm_apply<4>), dim3(blocks_of(&r)), block, 0, stream, r, *args);
    else GG_LAUNCH((norm_apply<1>), dim3(blocks_of(&r)), block, 0, stream, r, *args);
}

void gg_cuda_batch_norm_backward(gg_cuda_stream stream, const gg_cuda_batch_norm_args *args) {
    const int64_t pieces = pieces_of(args->outer, args->channels, args->inner);
    const bool wide = norm_is_wide(args), adds = args->added != NULL;
    const gg_rows r = rows_of(args->outer, args->channels, args->inner, wide ? 4 : 1);
    const dim3 block(GG_BLOCK);
    product_sum term = {};
    term.x = args->input;
    term.y = adds ? args->output : NULL;
    term.dy = args->grad_output;
    term.saved = args->saved;
    term.passed = !adds ? NULL : args->grad_added != NULL ? args->grad_added : args->grad_output;
    term.channels = args->channels;
    term.relu = args->relu;
    sum_channels(stream, term, args->outer, args->channels, args->inner, (gg_pair *)args->scratch);
    GG_LAUNCH(norm_parameters, dim3(blocks_for(args->channels, GG_BLOCK)), block, 0, stream, *args, pieces);
    if (args->grad_input == NULL) return;
    const float *dy = adds ? term.passed : args->grad_output;
    const int by_input = args->relu && !adds;
    if (wide) GG_LAUNCH((norm_gradient<4>), dim3(blocks_of(&r)), block, 0, stream, r, *args, pieces, by_input, dy);
    else GG_LAUNCH((norm_gradient<1>), dim3(blocks_of(&r)), block, 0, stream, r, *args, pieces, by_input, dy);
}

/* ------------------------------------------------------------------------------------------ layer normalisation */

/* Mean and inverse deviation of each row are saved. A row is of a warp or of a block. */
template <int GROUP> static __global__ void layer_forward(gg_cuda_layer_norm_args a) {
    const int place = group_place<GROUP>();
    for (int64_t row = group_first<GROUP>(); row < a.rows; row += group_step<GROUP>()) {
        const float *x = a.input + row * a.length;
        float *y = a.output + row * a.length;
        double sum = 0, squares = 0;
        for (int64_t i = place; i < a.length; i += GROUP) sum += (double)x[i];
        const double center = group_sum<GROUP>(sum) / (double)a.length;
        for (int64_t i = place; i < a.length; i += GROUP) {
            const double d = (double)x[i] - center;
            squares += d * d;
        }
        const double variance = group_sum<GROUP>(squares) / (double)a.length;
        const float mean = (float)center, inverse = (float)(1 / sqrt(variance + (double)a.epsilon));
        if (place == 0) {
            a.saved[2 * row] = mean;
            a.saved[2 * row + 1] = inverse;
        }
        for (int64_t i = place; i < a.length; i += GROUP) {
            float v = (x[i] - mean) * inverse;
            if (a.weight != NULL) v *= a.weight[i];
            if (a.bias != NULL) v += a.bias[i];
            y[i] = v;
        }
    }
}

template <int GROUP> static __global__ void layer_backward(gg_cuda_layer_norm_args a) {
    const int place = group_place<GROUP>();
    for (int64_t row = group_first<GROUP>(); row < a.rows; row += group_step<GROUP>()) {
        const float *x = a.input + row * a.length, *dy = a.grad_output + row * a.length;
        const float mean = a.saved[2 * row], inverse = a.saved[2 * row + 1];
        float *dx = a.grad_input + row * a.length;
        double sums = 0, products = 0;
        for (int64_t i = place; i < a.length; i += GROUP) {
            const float g = a.weight != NULL ? dy[i] * a.weight[i] : dy[i];
            sums += (double)g;
            products += (double)g * (double)((x[i] - mean) * inverse);
        }
        const float sum = (float)(group_sum<GROUP>(sums) / (double)a.length);
        const float product = (float)(group_sum<GROUP>(products) / (double)a.length);
        for (int64_t i = place; i < a.length; i += GROUP) {
            const float g = a.weight != NULL ? dy[i] * a.weight[i] : dy[i];
            dx[i] = inverse * (g - sum - (x[i] - mean) * inverse * product);
        }
    }
}

/* Gradients of weight and bias: sums over the rows. */
struct layer_sum {
    const float *x, *dy, *saved;
    struct local {};
    __device__ local begin(int64_t) const { return {}; }
    __device__ void add(const local &, int64_t, int64_t row, int64_t index, gg_pair *sum) const {
        const float d = dy[index];
        sum->first += (double)(d * ((x[index] - saved[2 * row]) * saved[2 * row + 1]));
        sum->second += (double)d;
    }
};

static __global__ void layer_parameters(const gg_pair *partial, int64_t pieces, int64_t length, float *weight,
                                        float *bias) {
    for (int64_t i = gg_thread_number(); i < length; i += gg_thread_count()) {
        const gg_pair sum = sum_of_pieces(partial, pieces, length, i);
        weight[i] = (float)sum.first;
        if (bias != NULL) bias[i] = (float)sum.second;
    }
}

size_t gg_cuda_layer_norm_saved(int64_t rows) { return (size_t)(2 * rows) * sizeof(float); }
size_t gg_cuda_layer_norm_scratch(int64_t rows, int64_t length) { return partial_bytes(rows, length, 1); }

/* Rows of at most so many values are of a warp. */
enum { SHORT_ROW = 1024 };

void gg_cuda_layer_norm(gg_cuda_stream stream, const gg_cuda_layer_norm_args *args) {
    const dim3 block(GG_BLOCK);
    if (args->length <= SHORT_ROW)
        GG_LAUNCH((layer_forward<WARP>), dim3(blocks_for(args->rows, GG_BLOCK / WARP)), block, 0, stream, *args);
    else GG_LAUNCH((layer_forward<GG_BLOCK>), dim3(blocks_for(args->rows, 1)), block, 0, stream, *args);
}

void gg_cuda_layer_norm_backward(gg_cuda_stream stream, const gg_cuda_layer_norm_args *args) {
    const dim3 block(GG_BLOCK);
    gg_pair *partial = (gg_pair *)args->scratch;
    if (args->grad_weight != NULL) {
        sum_channels(stream, layer_sum{args->input, args->grad_output, args->saved}, args->rows, args->length, 1,
                     partial);
        GG_LAUNCH(layer_parameters, dim3(blocks_for(args->length, GG_BLOCK)), block, 0, stream, partial,
                  pieces_of(args->rows, args->length, 1), args->length, args->grad_weight, args->grad_bias);
    }
    if (args->grad_input == NULL) return;
    if (args->length <= SHORT_ROW)
        GG_LAUNCH((layer_backward<WARP>), dim3(blocks_for(args->rows, GG_BLOCK / WARP)), block, 0, stream, *args);
    else GG_LAUNCH((layer_backward<GG_BLOCK>), dim3(blocks_for(args->rows, 1)), block, 0, stream, *args);
}
