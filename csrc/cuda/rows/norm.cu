/* BATCH_NORM and LAYER_NORM. Sums are double. A channel's squares are of differences from its first value, so that a
 * mean far from 0 costs no digits. */
#include "cuda/nn.cuh"

/* ------------------------------------------------------------------------------------------ batch normalisation */

/* Arrays over the channels that forward saves for backward. */
enum { SAVED_MEAN = 0, SAVED_INVERSE, SAVED_VARIANCE, SAVED_SCALE, SAVED_OFFSET, SAVED_COUNT };

template <class T> struct moment_sum {
    const T *x;
    int64_t inner;
    struct local {
        float pivot;
    };
    __device__ local begin(int64_t channel) const { return {gg_load(x + channel * inner)}; }
    template <int V> __device__ void add(const local *l, int64_t, int64_t index, gg_pair *sum) const {
        const gg_pack<V> v = gg_load_pack<V>(x + index);
#pragma unroll
        for (int k = 0; k < V; ++k) {
            const double d = (double)(v.at[k] - l[k].pivot);
            sum[k].first += d;
            sum[k].second += d * d;
        }
    }
};

/* Statistics of the batch, or the tracked ones; scale and offset. A channel takes little more than its loads, so these
 * are loaded together. */
template <class T> static __global__ void norm_statistics(gg_cuda_batch_norm_args a, int64_t pieces) {
    const double values = (double)(a.outer * a.inner);
    for (int64_t c = group_first<WARP>(); c < a.channels; c += group_step<WARP>()) {
        gg_pair sum = {0, 0};
        double mean, inverse;
        const double weight = a.weight != NULL ? (double)a.weight[c] : 1.0;
        const double bias = a.bias != NULL ? (double)a.bias[c] : 0.0;
        const double pivot = (double)gg_load((const T *)a.input + c * a.inner);
        if (a.batch_statistics) sum = sum_of_pieces((const gg_pair *)a.scratch, pieces, a.channels, c);
        if (group_place<WARP>() != 0) continue;
        if (a.batch_statistics) {
            const double squares = sum.second - sum.first * sum.first / values, all = squares < 0 ? 0 : squares;
            const float center = (float)(pivot + sum.first / values);
            const float inverted = (float)(1 / sqrt(all / values + (double)a.epsilon));
            a.saved[SAVED_MEAN * a.channels + c] = center;
            a.saved[SAVED_INVERSE * a.channels + c] = inverted;
            a.saved[SAVED_VARIANCE * a.channels + c] = (float)(all / (values - 1));
            mean = (double)center;
            inverse = (double)inverted;
        } else {
            /* Averages of rounded variances near 0 may be slightly below 0. */
            const double variance = (double)a.running_variance[c];
            mean = (double)a.running_mean[c];
            inverse = 1 / sqrt((variance < 0 ? 0 : variance) + (double)a.epsilon);
        }
        const float scale = (float)(weight * inverse);
        a.saved[SAVED_SCALE * a.channels + c] = scale;
        a.saved[SAVED_OFFSET * a.channels + c] = (float)(bias - mean * (double)scale);
    }
}

template <class T> struct norm_apply {
    const T *input, *added;
    T *output;
    const float *scale, *offset;
    int64_t relu;
    struct local {
        float scale, offset;
    };
    __device__ local begin(int64_t c) const { return {scale[c], offset[c]}; }
    template <int V> __device__ void run(const local *l, int64_t i) const {
        gg_pack<V> v = gg_load_pack<V>(input + i);
#pragma unroll
        for (int k = 0; k < V; ++k) v.at[k] = __fmaf_rn(l[k].scale, v.at[k], l[k].offset);
        if (added != NULL) {
            const gg_pack<V> other = gg_load_pack<V>(added + i);
#pragma unroll
            for (int k = 0; k < V; ++k) v.at[k] += other.at[k];
        }
#pragma unroll
        for (int k = 0; k < V; ++k) v.at[k] = relu ? gated(v.at[k], v.at[k]) : v.at[k];
        gg_store_pack(output + i, v);
    }
};

/* Sums of the error before the activation, and of its products with the differences from the mean. With an added input
 * the output shows which values the ReLU cut, and the error is written. Otherwise the input shows it. */
template <class T> struct product_sum {
    const T *x, *y, *dy;
    T *passed;
    const float *saved;
    int64_t channels;
    int64_t relu;
    struct local {
        float scale, offset, mean;
    };
    __device__ local begin(int64_t c) const {
        return {saved[SAVED_SCALE * channels + c], saved[SAVED_OFFSET * channels + c],
                saved[SAVED_MEAN * channels + c]};
    }
    template <int V> __device__ void add(const local *l, int64_t, int64_t index, gg_pair *sum) const {
        const gg_pack<V> v = gg_load_pack<V>(x + index);
        gg_pack<V> d = gg_load_pack<V>(dy + index);
        if (relu && y != NULL) {
            const gg_pack<V> out = gg_load_pack<V>(y + index);
#pragma unroll
            for (int k = 0; k < V; ++k) d.at[k] = gated(out.at[k], d.at[k]);
        } else if (relu) {
#pragma unroll
            for (int k = 0; k < V; ++k) d.at[k] = gated(__fmaf_rn(l[k].scale, v.at[k], l[k].offset), d.at[k]);
        }
        if (passed != NULL) gg_store_pack(passed + index, d);
#pragma unroll
        for (int k = 0; k < V; ++k) {
            sum[k].first += (double)d.at[k];
            sum[k].second += (double)d.at[k] * (double)(v.at[k] - l[k].mean);
        }
    }
};

static __host__ __device__ inline float *slopes_in(void *scratch, int64_t pieces, int64_t channels) {
    return (float *)((gg_pair *)scratch + pieces * channels);
}

static __global__ void norm_parameters(gg_cuda_batch_norm_args a, int64_t pieces) {
    const double values = (double)(a.outer * a.inner), momentum = (double)a.momentum;
    float *slope = slopes_in(a.scratch, pieces, a.channels);
    for (int64_t c = group_first<WARP>(); c < a.channels; c += group_step<WARP>()) {
        const double mean = (double)a.saved[SAVED_MEAN * a.channels + c];
        const double inverse = (double)a.saved[SAVED_INVERSE * a.channels + c];
        const double scale = (double)a.saved[SAVED_SCALE * a.channels + c];
        const double variance = (double)a.saved[SAVED_VARIANCE * a.channels + c];
        const bool tracks = a.running_mean != NULL;
        const double average = tracks ? (double)a.running_mean[c] : 0.0;
        const double spread = tracks ? (double)a.running_variance[c] : 0.0;
        const gg_pair sum = sum_of_pieces((const gg_pair *)a.scratch, pieces, a.channels, c);
        if (group_place<WARP>() != 0) continue;
        slope[c] = (float)(-scale * inverse * inverse * sum.second / values);
        slope[a.channels + c] = (float)(-scale * sum.first / values);
        if (a.weight != NULL) {
            a.grad_weight[c] = (float)(sum.second * inverse);
            a.grad_bias[c] = (float)sum.first;
        }
        if (!tracks) continue;
        a.grad_mean[c] = (float)(momentum * (average - mean));
        a.grad_variance[c] = (float)(momentum * (spread - variance));
    }
}

/* by_input: the error has not passed the ReLU yet. */
template <class T> struct norm_gradient {
    const T *x, *dy;
    T *dx;
    const float *mean, *scale, *offset, *slope, *shift;
    int64_t by_input;
    struct local {
        float mean, scale, offset, slope, shift;
    };
    __device__ local begin(int64_t c) const { return {mean[c], scale[c], offset[c], slope[c], shift[c]}; }
    template <int V> __device__ void run(const local *l, int64_t i) const {
        const gg_pack<V> v = gg_load_pack<V>(x + i);
        gg_pack<V> d = gg_load_pack<V>(dy + i);
#pragma unroll
        for (int k = 0; k < V; ++k) {
            if (by_input) d.at[k] = gated(__fmaf_rn(l[k].scale, v.at[k], l[k].offset), d.at[k]);
            d.at[k] = __fmaf_rn(l[k].scale, d.at[k], __fmaf_rn(l[k].slope, v.at[k] - l[k].mean, l[k].shift));
        }
        gg_store_pack(dx + i, d);
    }
};

size_t gg_cuda_batch_norm_saved(int64_t channels) { return (size_t)(SAVED_COUNT * channels) * sizeof(float); }

size_t gg_cuda_batch_norm_scratch(int64_t outer, int64_t channels, int64_t inner) {
    return partial_bytes(outer, channels, inner) + (size_t)(2 * channels) * sizeof(float);
}

static bool norm_is_wide(const gg_cuda_batch_norm_args *a) {
    return gg_is_aligned(a->input, 16) && gg_is_aligned(a->added, 16) && gg_is_aligned(a->output, 16) &&
           gg_is_aligned(a->grad_output, 16) && gg_is_aligned(a->grad_input, 16) && gg_is_aligned(a->grad_added, 16);
}

template <class T> static void norm_of(gg_cuda_stream stream, const gg_cuda_batch_norm_args *args) {
    const int64_t outer = args->outer, channels = args->channels, inner = args->inner;
    const bool wide = norm_is_wide(args);
    const T *x = (const T *)args->input;
    if (args->batch_statistics)
        sum_channels(stream, moment_sum<T>{x, inner}, outer, channels, inner, wide, (gg_pair *)args->scratch);
    GG_LAUNCH((norm_statistics<T>), blocks_of_channels(channels), dim3(GG_BLOCK), 0, stream, *args,
              pieces_of(outer, channels, inner));
    const norm_apply<T> apply = {x,
                                 (const T *)args->added,
                                 (T *)args->output,
                                 args->saved + SAVED_SCALE * channels,
                                 args->saved + SAVED_OFFSET * channels,
                                 args->relu};
    each_row<GG_WIDE<T>>(stream, outer, channels, inner, wide, apply);
}

template <class T> static void norm_backward_of(gg_cuda_stream stream, const gg_cuda_batch_norm_args *args) {
    const int64_t outer = args->outer, channels = args->channels, inner = args->inner;
    const int64_t pieces = pieces_of(outer, channels, inner);
    const bool wide = norm_is_wide(args), adds = args->added != NULL;
    product_sum<T> term = {};
    term.x = (const T *)args->input;
    term.y = adds ? (const T *)args->output : NULL;
    term.dy = (const T *)args->grad_output;
    term.passed = (T *)(!adds ? NULL : args->grad_added != NULL ? args->grad_added : args->grad_output);
    term.saved = args->saved;
    term.channels = channels;
    term.relu = args->relu;
    sum_channels(stream, term, outer, channels, inner, wide, (gg_pair *)args->scratch);
    GG_LAUNCH(norm_parameters, blocks_of_channels(channels), dim3(GG_BLOCK), 0, stream, *args, pieces);
    if (args->grad_input == NULL) return;
    norm_gradient<T> gradient = {};
    gradient.x = term.x;
    gradient.dy = adds ? term.passed : term.dy;
    gradient.dx = (T *)args->grad_input;
    gradient.mean = args->saved + SAVED_MEAN * channels;
    gradient.scale = args->saved + SAVED_SCALE * channels;
    gradient.offset = args->saved + SAVED_OFFSET * channels;
    gradient.slope = slopes_in(args->scratch, pieces, channels);
    gradient.shift = gradient.slope + channels;
    gradient.by_input = args->relu && !adds;
    each_row<4>(stream, outer, channels, inner, wide, gradient);
}

void gg_cuda_batch_norm(gg_cuda_stream stream, const gg_cuda_batch_norm_args *args) {
    if (args->dtype == GG_BFLOAT16) norm_of<gg_bfloat16>(stream, args);
    else norm_of<float>(stream, args);
}

void gg_cuda_batch_norm_backward(gg_cuda_stream stream, const gg_cuda_batch_norm_args *args) {
    if (args->dtype == GG_BFLOAT16) norm_backward_of<gg_bfloat16>(stream, args);
    else norm_backward_of<float>(stream, args);
}

/* ------------------------------------------------------------------------------------------ layer normalisation */

/* The weight of value i of a row, counted from the row's first. */
static __device__ inline int64_t weight_of(const gg_norm_rows &rows, int64_t i) {
    return rows.inner == 1 ? i : (int64_t)((uint32_t)i / (uint32_t)rows.inner); /* samples have at most 2^31 values */
}

static __device__ inline int64_t first_weight(const gg_norm_rows &rows, int64_t row) {
    return rows.weights == rows.parameters ? 0 : row * rows.weights % rows.parameters;
}

/* Saves mean and inverse deviation of each row. A warp or a block computes a row. */
template <class T, int GROUP> static __global__ void layer_forward(gg_cuda_layer_norm_args a) {
    const int place = group_place<GROUP>();
    const int64_t length = a.rows.length, rows = a.batch * a.rows.count;
    for (int64_t row = group_first<GROUP>(); row < rows; row += group_step<GROUP>()) {
        const T *x = (const T *)a.input + row * length;
        T *y = (T *)a.output + row * length;
        const int64_t first = first_weight(a.rows, row);
        double sum = 0, squares = 0;
        for (int64_t i = place; i < length; i += GROUP) sum += (double)gg_load(x + i);
        const double all = group_sum<GROUP>(sum), center = a.rows.root_mean_square ? 0 : all / (double)length;
        for (int64_t i = place; i < length; i += GROUP) {
            const double d = (double)gg_load(x + i) - center;
            squares += d * d;
        }
        const double variance = group_sum<GROUP>(squares) / (double)length;
        const float mean = (float)center, inverse = (float)(1 / sqrt(variance + (double)a.epsilon));
        if (place == 0) {
            a.saved[2 * row] = mean;
            a.saved[2 * row + 1] = inverse;
        }
        for (int64_t i = place; i < length; i += GROUP) {
            float v = (gg_load(x + i) - mean) * inverse;
            if (a.weight != NULL) v *= a.weight[first + weight_of(a.rows, i)];
            if (a.bias != NULL) v += a.bias[first + weight_of(a.rows, i)];
            gg_store(y + i, v);
        }
    }
}

template <class T, int GROUP> static __global__ void layer_backward(gg_cuda_layer_norm_args a) {
    const int place = group_place<GROUP>();
    const int64_t length = a.rows.length, rows = a.batch * a.rows.count;
    for (int64_t row = group_first<GROUP>(); row < rows; row += group_step<GROUP>()) {
        const T *x = (const T *)a.input + row * length, *dy = (const T *)a.grad_output + row * length;
        const float mean = a.saved[2 * row], inverse = a.saved[2 * row + 1];
        T *dx = (T *)a.grad_input + row * length;
        const int64_t first = first_weight(a.rows, row);
        double sums = 0, products = 0;
        for (int64_t i = place; i < length; i += GROUP) {
            const float g = gg_load(dy + i) * (a.weight != NULL ? a.weight[first + weight_of(a.rows, i)] : 1.0f);
            sums += (double)g;
            products += (double)g * (double)((gg_load(x + i) - mean) * inverse);
        }
        const double all = group_sum<GROUP>(sums);
        const float sum = a.rows.root_mean_square ? 0.0f : (float)(all / (double)length);
        const float product = (float)(group_sum<GROUP>(products) / (double)length);
        for (int64_t i = place; i < length; i += GROUP) {
            const float g = gg_load(dy + i) * (a.weight != NULL ? a.weight[first + weight_of(a.rows, i)] : 1.0f);
            gg_store(dx + i, inverse * (g - sum - (gg_load(x + i) - mean) * inverse * product));
        }
    }
}

/* Gradients of weight and bias: sums over `batch` parts, each with all weights in `rows` rows, and over the values that
 * share a weight. */
template <class T> struct layer_sum {
    const T *x, *dy;
    const float *saved;
    int64_t rows, weights; /* of a part; of a row */
    struct local {
        int64_t row;
    };
    __device__ local begin(int64_t weight) const { return {weight / weights}; }
    template <int V> __device__ void add(const local *l, int64_t part, int64_t index, gg_pair *sum) const {
        const gg_pack<V> v = gg_load_pack<V>(x + index), d = gg_load_pack<V>(dy + index);
#pragma unroll
        for (int k = 0; k < V; ++k) {
            const float *stats = saved + 2 * (part * rows + l[k].row);
            sum[k].first += (double)(d.at[k] * ((v.at[k] - stats[0]) * stats[1]));
            sum[k].second += (double)d.at[k];
        }
    }
};

/* Number of the parts that layer_sum sums. */
static inline int64_t layer_parts(int64_t batch, const gg_norm_rows *rows) {
    return batch * rows->count * rows->weights / rows->parameters;
}

static __global__ void layer_parameters(const gg_pair *partial, int64_t pieces, int64_t length, float *weight,
                                        float *bias) {
    for (int64_t i = group_first<WARP>(); i < length; i += group_step<WARP>()) {
        const gg_pair sum = sum_of_pieces(partial, pieces, length, i);
        if (group_place<WARP>() != 0) continue;
        weight[i] = (float)sum.first;
        if (bias != NULL) bias[i] = (float)sum.second;
    }
}

size_t gg_cuda_layer_norm_saved(int64_t batch, const gg_norm_rows *rows) {
    return (size_t)(2 * batch * rows->count) * sizeof(float);
}

size_t gg_cuda_layer_norm_scratch(int64_t batch, const gg_norm_rows *rows) {
    return partial_bytes(layer_parts(batch, rows), rows->parameters, rows->inner);
}

/* Max values of a row that one warp computes. */
enum { SHORT_ROW = 1024 };

template <class T> static void layer_of(gg_cuda_stream stream, const gg_cuda_layer_norm_args *args) {
    const dim3 block(GG_BLOCK);
    const int64_t rows = args->batch * args->rows.count;
    if (args->rows.length <= SHORT_ROW)
        GG_LAUNCH((layer_forward<T, WARP>), blocks_of_channels(rows), block, 0, stream, *args);
    else GG_LAUNCH((layer_forward<T, GG_BLOCK>), dim3(blocks_for(rows, 1)), block, 0, stream, *args);
}

template <class T> static void layer_backward_of(gg_cuda_stream stream, const gg_cuda_layer_norm_args *args) {
    const dim3 block(GG_BLOCK);
    const int64_t rows = args->batch * args->rows.count, length = args->rows.length;
    gg_pair *partial = (gg_pair *)args->scratch;
    if (args->grad_weight != NULL) {
        const gg_norm_rows *r = &args->rows;
        const int64_t parts = layer_parts(args->batch, r), pieces = pieces_of(parts, r->parameters, r->inner);
        const layer_sum<T> term = {(const T *)args->input, (const T *)args->grad_output, args->saved,
                                   r->parameters / r->weights, r->weights};
        const bool wide = gg_is_aligned(args->input, 16) && gg_is_aligned(args->grad_output, 16);
        sum_channels(stream, term, parts, r->parameters, r->inner, wide, partial);
        GG_LAUNCH(layer_parameters, blocks_of_channels(r->parameters), block, 0, stream, partial, pieces, r->parameters,
                  args->grad_weight, args->grad_bias);
    }
    if (args->grad_input == NULL) return;
    if (length <= SHORT_ROW) GG_LAUNCH((layer_backward<T, WARP>), blocks_of_channels(rows), block, 0, stream, *args);
    else GG_LAUNCH((layer_backward<T, GG_BLOCK>), dim3(blocks_for(rows, 1)), block, 0, stream, *args);
}

void gg_cuda_layer_norm(gg_cuda_stream stream, const gg_cuda_layer_norm_args *args) {
    if (args->dtype == GG_BFLOAT16) layer_of<gg_bfloat16>(stream, args);
    else layer_of<float>(stream, args);
}

void gg_cuda_layer_norm_backward(gg_cuda_stream stream, const gg_cuda_layer_norm_args *args) {
    if (args->dtype == GG_BFLOAT16) layer_backward_of<gg_bfloat16>(stream, args);
    else layer_backward_of<float>(stream, args);
}
