/* LOCAL_RESPONSE_NORM: each value is divided by a power of the sum of squares in a window of channels. */
#include "cuda/nn.cuh"

struct lrn_shape {
    int64_t values, channels, inner;
    int64_t before, after; /* channels of a window on both sides of its own */
    float share, beta, k;
};

/* v^-beta, v > 0. The papers' exponent is two square roots. */
static __device__ inline float inverse_power(float beta, float v) {
    if (beta != 0.75f) return powf(v, -beta);
    const float root = sqrtf(v);
    return 1.0f / (root * sqrtf(root));
}

template <class T> static __global__ void lrn_forward(lrn_shape s, const T *x, T *y, float *saved) {
    for (int64_t i = gg_thread_number(); i < s.values; i += gg_thread_count()) {
        const int64_t c = i / s.inner % s.channels;
        const int64_t first = c > s.before ? -s.before : -c;
        const int64_t last = c + s.after < s.channels ? s.after : s.channels - 1 - c;
        float sum = 0;
        for (int64_t j = first; j <= last; ++j) {
            const float v = gg_load(x + i + j * s.inner);
            sum += v * v;
        }
        sum = s.k + s.share * sum;
        if (saved != NULL) saved[i] = sum;
        gg_store(y + i, gg_load(x + i) * inverse_power(s.beta, sum));
    }
}

/* A value's term in the errors of all channels in the window centred at it, without those channels' factors. */
template <class T>
static __global__ void lrn_terms(lrn_shape s, const T *x, const float *saved, const T *dy, float *term) {
    for (int64_t i = gg_thread_number(); i < s.values; i += gg_thread_count()) {
        const float sum = saved[i];
        term[i] = gg_load(dy + i) * inverse_power(s.beta, sum) * gg_load(x + i) / sum;
    }
}

template <class T>
static __global__ void lrn_gradient(lrn_shape s, const T *x, const float *saved, const T *dy, const float *term,
                                    T *dx) {
    const float factor = 2.0f * s.beta * s.share;
    for (int64_t i = gg_thread_number(); i < s.values; i += gg_thread_count()) {
        const int64_t c = i / s.inner % s.channels;
        const int64_t first = c > s.after ? -s.after : -c; /* channels whose windows contain it */
        const int64_t last = c + s.before < s.channels ? s.before : s.channels - 1 - c;
        float sum = 0;
        for (int64_t j = first; j <= last; ++j) sum += term[i + j * s.inner];
        gg_store(dx + i, gg_load(dy + i) * inverse_power(s.beta, saved[i]) - factor * gg_load(x + i) * sum);
    }
}

static lrn_shape lrn_shape_of(const gg_cuda_lrn_args *args) {
    lrn_shape s;
    s.values = args->outer * args->channels * args->inner;
    s.channels = args->channels;
    s.inner = args->inner;
    s.before = args->size / 2;
    s.after = (args->size - 1) / 2;
    s.share = args->alpha / (float)args->size;
    s.beta = args->beta;
    s.k = args->k;
    return s;
}

template <class T> static void lrn_of(gg_cuda_stream stream, const gg_cuda_lrn_args *args) {
    const lrn_shape s = lrn_shape_of(args);
    GG_LAUNCH((lrn_forward<T>), dim3(blocks_for(s.values, GG_BLOCK)), dim3(GG_BLOCK), 0, stream, s,
              (const T *)args->input, (T *)args->output, args->saved);
}

template <class T> static void lrn_backward_of(gg_cuda_stream stream, const gg_cuda_lrn_args *args) {
    const lrn_shape s = lrn_shape_of(args);
    const dim3 blocks(blocks_for(s.values, GG_BLOCK)), block(GG_BLOCK);
    const T *x = (const T *)args->input, *dy = (const T *)args->grad_output;
    GG_LAUNCH((lrn_terms<T>), blocks, block, 0, stream, s, x, args->saved, dy, args->scratch);
    GG_LAUNCH((lrn_gradient<T>), blocks, block, 0, stream, s, x, args->saved, dy, args->scratch, (T *)args->grad_input);
}

void gg_cuda_lrn(gg_cuda_stream stream, const gg_cuda_lrn_args *args) {
    if (args->dtype == GG_BFLOAT16) lrn_of<gg_bfloat16>(stream, args);
    else lrn_of<float>(stream, args);
}

void gg_cuda_lrn_backward(gg_cuda_stream stream, const gg_cuda_lrn_args *args) {
    if (args->dtype == GG_BFLOAT16) lrn_backward_of<gg_bfloat16>(stream, args);
    else lrn_backward_of<float>(stream, args);
}
