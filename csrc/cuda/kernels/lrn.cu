/* LOCAL_RESPONSE_NORM: each value is divided by a power of the sum of squares in a window of channels. */
#include "cuda/kernels/nn.cuh"

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

static __global__ void lrn_forward(lrn_shape s, const float *x, float *y, float *saved) {
    for (int64_t i = gg_thread_number(); i < s.values; i += gg_thread_count()) {
        const int64_t c = i / s.inner % s.channels;
        const int64_t first = c > s.before ? -s.before : -c;
        const int64_t last = c + s.after < s.channels ? s.after : s.channels - 1 - c;
        float sum = 0;
        for (int64_t j = first; j <= last; ++j) {
            const float v = x[i + j * s.inner];
            sum += v * v;
        }
        sum = s.k + s.share * sum;
        if (saved != NULL) saved[i] = sum;
        y[i] = x[i] * inverse_power(s.beta, sum);
    }
}

/* What a value gives to the error of each channel whose window it is in the middle of, but for the factor of that. */
static __global__ void lrn_terms(lrn_shape s, const float *x, const float *saved, const float *dy, float *term) {
    for (int64_t i = gg_thread_number(); i < s.values; i += gg_thread_count()) {
        const float sum = saved[i];
        term[i] = dy[i] * inverse_power(s.beta, sum) * x[i] / sum;
    }
}

static __global__ void lrn_gradient(lrn_shape s, const float *x, const float *saved, const float *dy, const float *term,
                                    float *dx) {
    const float factor = 2.0f * s.beta * s.share;
    for (int64_t i = gg_thread_number(); i < s.values; i += gg_thread_count()) {
        const int64_t c = i / s.inner % s.channels;
        const int64_t first = c > s.after ? -s.after : -c; /* it is in the windows of these */
        const int64_t last = c + s.before < s.channels ? s.before : s.channels - 1 - c;
        float sum = 0;
        for (int64_t j = first; j <= last; ++j) sum += term[i + j * s.inner];
        dx[i] = dy[i] * inverse_power(s.beta, saved[i]) - factor * x[i] * sum;
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

void gg_cuda_lrn(gg_cuda_stream stream, const gg_cuda_lrn_args *args) {
    const lrn_shape s = lrn_shape_of(args);
    GG_LAUNCH(lrn_forward, dim3(blocks_for(s.values, GG_BLOCK)), dim3(GG_BLOCK), 0, stream, s, args->input,
              args->output, args->saved);
}

void gg_cuda_lrn_backward(gg_cuda_stream stream, const gg_cuda_lrn_args *args) {
    const lrn_shape s = lrn_shape_of(args);
    const dim3 blocks(blocks_for(s.values, GG_BLOCK));
    GG_LAUNCH(lrn_terms, blocks, dim3(GG_BLOCK), 0, stream, s, args->input, args->saved, args->grad_output,
              args->scratch);
    GG_LAUNCH(lrn_gradient, blocks, dim3(GG_BLOCK), 0, stream, s, args->input, args->saved, args->grad_output,
              args->scratch, args->grad_input);
}
