/* RELU, TANH, SIGMOID, LEAKY_RELU, GELU, ADD, and biases with their gradients. */
#include "cuda/nn.cuh"

/* ------------------------------------------------------------------------------------------ activations */

/* Each gives the value at x, and the derivative from y or x, times d. They are parts of kernel arguments, so they have
 * no undefined bytes. */
struct relu_of {
    __device__ float value(float x) const { return gated(x, x); }
    __device__ float error(float y, float d) const { return gated(y, d); }
};

struct leaky_relu_of {
    double slope; /* of float32 */
    __device__ float value(float x) const { return x <= 0.0f ? (float)slope * x : x; }
    __device__ float error(float sign, float d) const { return sign <= 0.0f ? (float)slope * d : d; }
};

struct tanh_of {
    __device__ float value(float x) const { return tanhf(x); }
    __device__ float error(float y, float d) const { return d * (1.0f - y * y); }
};

struct sigmoid_of {
    __device__ float value(float x) const { return logistic(x); }
    __device__ float error(float y, float d) const { return d * ((1.0f - y) * y); }
};

/* x times the normal distribution function of x. */
struct gelu_of {
    __device__ float value(float x) const { return x * (0.5f * erfcf(-0.707106781186548f * x)); }
    __device__ float error(float x, float d) const {
        const float below = 0.5f * erfcf(-0.707106781186548f * x);
        return d * (below + x * expf(-0.5f * x * x) * 0.398942280401433f);
    }
};

/* 1 + tanh(u) is twice the logistic function of 2u. */
struct gelu_tanh_of {
    static constexpr float scale = 1.59576912160573f, cubic = 0.044715f;
    __device__ float value(float x) const { return x * logistic(scale * x * (1.0f + cubic * x * x)); }
    __device__ float error(float x, float d) const {
        const float s = logistic(scale * x * (1.0f + cubic * x * x));
        return d * (s + x * s * (1.0f - s) * (scale * (1.0f + 3.0f * cubic * x * x)));
    }
};

/* Applies F to each N values from place i on. */
template <class T, class F> struct activate : F {
    const T *in;
    T *out;
    template <int N> __device__ void run(int64_t i) const {
        gg_pack<N> v = gg_load_pack<N>(in + i);
#pragma unroll
        for (int k = 0; k < N; ++k) v.at[k] = F::value(v.at[k]);
        gg_store_pack(out + i, v);
    }
};

template <class T, class F> struct activate_backward : F {
    const T *in, *grad;
    T *out;
    template <int N> __device__ void run(int64_t i) const {
        const gg_pack<N> v = gg_load_pack<N>(in + i);
        gg_pack<N> d = gg_load_pack<N>(grad + i);
#pragma unroll
        for (int k = 0; k < N; ++k) d.at[k] = F::error(v.at[k], d.at[k]);
        gg_store_pack(out + i, d);
    }
};

/* by_many: as many elements at once as 16 bytes hold; the rest one by one. */
template <class T, class F> static __global__ void __launch_bounds__(GG_BLOCK) each_value(int64_t n, int by_many, F f) {
    constexpr int N = GG_WIDE<T>;
    const int64_t whole = by_many ? n / N * N : 0;
    for (int64_t i = N * gg_thread_number(); i < whole; i += N * gg_thread_count()) f.template run<N>(i);
    for (int64_t i = whole + gg_thread_number(); i < n; i += gg_thread_count()) f.template run<1>(i);
}

template <class T, class F> static void run_each(gg_cuda_stream stream, int64_t n, bool by_many, const F &f) {
    const dim3 blocks(blocks_for(n, by_many ? GG_WIDE<T> * GG_BLOCK : GG_BLOCK));
    if (n > 0) GG_LAUNCH((each_value<T, F>), blocks, dim3(GG_BLOCK), 0, stream, n, (int)by_many, f);
}

template <class T, class F>
static void activation_of(gg_cuda_stream stream, F f, bool backward, const gg_cuda_activation_args *args) {
    const int64_t n = (int64_t)args->n;
    const T *in = (const T *)args->in, *grad = (const T *)args->grad;
    T *out = (T *)args->out;
    const bool wide = gg_is_aligned(in, 16) && gg_is_aligned(out, 16) && (!backward || gg_is_aligned(grad, 16));
    if (backward) run_each<T>(stream, n, wide, activate_backward<T, F>{{f}, in, grad, out});
    else run_each<T>(stream, n, wide, activate<T, F>{{f}, in, out});
}

template <class F>
static void run_activation(gg_cuda_stream stream, F f, bool backward, const gg_cuda_activation_args *args) {
    if (args->dtype == GG_BFLOAT16) activation_of<gg_bfloat16>(stream, f, backward, args);
    else activation_of<float>(stream, f, backward, args);
}

static void any_activation(gg_cuda_stream stream, bool backward, const gg_cuda_activation_args *args) {
    switch (args->kind) {
    case GG_OP_TANH: run_activation(stream, tanh_of{}, backward, args); break;
    case GG_OP_SIGMOID: run_activation(stream, sigmoid_of{}, backward, args); break;
    case GG_OP_LEAKY_RELU: run_activation(stream, leaky_relu_of{(double)args->slope}, backward, args); break;
    case GG_OP_GELU:
        if (args->tanh_form) run_activation(stream, gelu_tanh_of{}, backward, args);
        else run_activation(stream, gelu_of{}, backward, args);
        break;
    default: run_activation(stream, relu_of{}, backward, args);
    }
}

void gg_cuda_activation(gg_cuda_stream stream, const gg_cuda_activation_args *args) {
    any_activation(stream, false, args);
}

void gg_cuda_activation_backward(gg_cuda_stream stream, const gg_cuda_activation_args *args) {
    any_activation(stream, true, args);
}

/* ------------------------------------------------------------------------------------------ sum */

template <class T> struct add_all {
    const T *input[GG_MAX_INPUTS];
    int inputs, relu;
    T *out;
    template <int N> __device__ void run(int64_t i) const {
        gg_pack<N> sum = gg_load_pack<N>(input[0] + i);
        for (int term = 1; term < inputs; ++term) {
            const gg_pack<N> v = gg_load_pack<N>(input[term] + i);
#pragma unroll
            for (int k = 0; k < N; ++k) sum.at[k] += v.at[k];
        }
#pragma unroll
        for (int k = 0; k < N; ++k) sum.at[k] = relu ? gated(sum.at[k], sum.at[k]) : sum.at[k];
        gg_store_pack(out + i, sum);
    }
};

template <class T> struct add_all_backward {
    T *grad[GG_MAX_INPUTS];
    int inputs, relu;
    const T *y, *dy;
    template <int N> __device__ void run(int64_t i) const {
        gg_pack<N> d = gg_load_pack<N>(dy + i);
        if (relu) {
            const gg_pack<N> v = gg_load_pack<N>(y + i);
#pragma unroll
            for (int k = 0; k < N; ++k) d.at[k] = gated(v.at[k], d.at[k]);
        }
        for (int term = 0; term < inputs; ++term) gg_store_pack(grad[term] + i, d);
    }
};

template <class T> static void add_of(gg_cuda_stream stream, const gg_cuda_add_args *args) {
    bool wide = gg_is_aligned(args->output, 16);
    add_all<T> f = {};
    f.inputs = args->inputs;
    f.relu = args->relu;
    f.out = (T *)args->output;
    for (int i = 0; i < args->inputs; ++i) {
        f.input[i] = (const T *)args->input[i];
        wide = wide && gg_is_aligned(args->input[i], 16);
    }
    run_each<T>(stream, (int64_t)args->n, wide, f);
}

template <class T> static void add_backward_of(gg_cuda_stream stream, const gg_cuda_add_args *args) {
    bool wide = gg_is_aligned(args->output, 16) && gg_is_aligned(args->grad_output, 16);
    add_all_backward<T> f = {};
    f.relu = args->relu;
    f.y = (const T *)args->output;
    f.dy = (const T *)args->grad_output;
    for (int i = 0; i < args->inputs; ++i) {
        if (args->grad[i] == NULL || (args->grad[i] == args->grad_output && !args->relu)) continue;
        f.grad[f.inputs++] = (T *)args->grad[i];
        wide = wide && gg_is_aligned(args->grad[i], 16);
    }
    if (f.inputs > 0) run_each<T>(stream, (int64_t)args->n, wide, f);
}

void gg_cuda_add(gg_cuda_stream stream, const gg_cuda_add_args *args) {
    if (args->dtype == GG_BFLOAT16) add_of<gg_bfloat16>(stream, args);
    else add_of<float>(stream, args);
}

void gg_cuda_add_backward(gg_cuda_stream stream, const gg_cuda_add_args *args) {
    if (args->dtype == GG_BFLOAT16) add_backward_of<gg_bfloat16>(stream, args);
    else add_backward_of<float>(stream, args);
}

/* ------------------------------------------------------------------------------------------ biases */

template <class T> struct add_bias {
    const float *bias;
    T *y;
    int64_t relu;
    typedef float local;
    __device__ float begin(int64_t channel) const { return bias != NULL ? bias[channel] : 0.0f; }
    template <int V> __device__ void run(const float *l, int64_t i) const {
        gg_pack<V> v = gg_load_pack<V>(y + i);
#pragma unroll
        for (int k = 0; k < V; ++k) {
            if (bias != NULL) v.at[k] += l[k];
            if (relu) v.at[k] = gated(v.at[k], v.at[k]);
        }
        gg_store_pack(y + i, v);
    }
};

template <class T> static void bias_of(gg_cuda_stream stream, const gg_cuda_bias_args *args) {
    const add_bias<T> f = {args->bias, (T *)args->y, args->relu};
    each_row<GG_WIDE<T>>(stream, args->outer, args->channels, args->inner, gg_is_aligned(args->y, 16), f);
}

void gg_cuda_bias(gg_cuda_stream stream, const gg_cuda_bias_args *args) {
    if (args->bias == NULL && !args->relu) return;
    if (args->dtype == GG_BFLOAT16) bias_of<gg_bfloat16>(stream, args);
    else bias_of<float>(stream, args);
}

template <class T> struct error_sum {
    const T *y;
    T *grad;
    struct local {};
    __device__ local begin(int64_t) const { return {}; }
    template <int V> __device__ void add(const local *, int64_t, int64_t index, gg_pair *sum) const {
        gg_pack<V> d = gg_load_pack<V>(grad + index);
        if (y != NULL) {
            const gg_pack<V> v = gg_load_pack<V>(y + index);
#pragma unroll
            for (int k = 0; k < V; ++k) d.at[k] = gated(v.at[k], d.at[k]);
            gg_store_pack(grad + index, d);
        }
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k].first += (double)d.at[k];
    }
};

static __global__ void bias_gradient(const gg_pair *partial, int64_t pieces, int64_t channels, float *out) {
    for (int64_t c = group_first<WARP>(); c < channels; c += group_step<WARP>()) {
        const gg_pair sum = sum_of_pieces(partial, pieces, channels, c);
        if (group_place<WARP>() == 0) out[c] = (float)sum.first;
    }
}

size_t gg_cuda_bias_backward_scratch(int64_t outer, int64_t channels, int64_t inner) {
    return partial_bytes(outer, channels, inner);
}

template <class T> static void error_sums(gg_cuda_stream stream, const gg_cuda_bias_backward_args *args) {
    const error_sum<T> term = {(const T *)args->y, (T *)args->grad};
    const bool wide = gg_is_aligned(args->y, 16) && gg_is_aligned(args->grad, 16);
    sum_channels(stream, term, args->outer, args->channels, args->inner, wide, (gg_pair *)args->scratch);
}

void gg_cuda_bias_backward(gg_cuda_stream stream, const gg_cuda_bias_backward_args *args) {
    if (args->bias == NULL) {
        gg_cuda_activation_args gate = {};
        gate.dtype = args->dtype;
        gate.kind = GG_OP_RELU;
        gate.n = (size_t)(args->outer * args->channels * args->inner);
        gate.in = args->y;
        gate.grad = gate.out = args->grad;
        if (args->y != NULL) gg_cuda_activation_backward(stream, &gate);
        return;
    }
    if (args->dtype == GG_BFLOAT16) error_sums<gg_bfloat16>(stream, args);
    else error_sums<float>(stream, args);
    GG_LAUNCH(bias_gradient, blocks_of_channels(args->channels), dim3(GG_BLOCK), 0, stream,
              (const gg_pair *)args->scratch, pieces_of(args->outer, args->channels, args->inner), args->channels,
              args->bias);
}
