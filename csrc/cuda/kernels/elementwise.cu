/* RELU, TANH, SIGMOID, LEAKY_RELU, GELU, ADD, and biases with their gradients. */
#include "cuda/kernels/nn.cuh"

/* ------------------------------------------------------------------------------------------ activations */

/* Each has the value at x, and the derivative from y or x times d. */
struct relu_of {
    __device__ float value(float x) const { return gated(x, x); }
    __device__ float error(float y, float d) const { return gated(y, d); }
};

struct leaky_relu_of {
    float slope;
    __device__ float value(float x) const { return x <= 0.0f ? slope * x : x; }
    __device__ float error(float sign, float d) const { return sign <= 0.0f ? slope * d : d; }
};

struct tanh_of {
    __device__ float value(float x) const { return tanhf(x); }
    __device__ float error(float y, float d) const { return d * (1.0f - y * y); }
};

struct sigmoid_of {
    __device__ float value(float x) const { return logistic(x); }
    __device__ float error(float y, float d) const { return d * ((1.0f - y) * y); }
};

/* x times the share of the normal distribution below it. */
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

template <typename F, int V> static __global__ void activate(F f, int64_t n, const float *in, float *out) {
    for (int64_t i = gg_thread_number(); i < n / V; i += gg_thread_count()) {
        gg_pack<V> v = gg_load_pack<V>(in + i * V);
        for (int k = 0; k < V; ++k) v.at[k] = f.value(v.at[k]);
        gg_store_pack(out + i * V, v);
    }
}

template <typename F, int V>
static __global__ void activate_backward(F f, int64_t n, const float *in, const float *grad, float *out) {
    for (int64_t i = gg_thread_number(); i < n / V; i += gg_thread_count()) {
        const gg_pack<V> v = gg_load_pack<V>(in + i * V);
        gg_pack<V> d = gg_load_pack<V>(grad + i * V);
        for (int k = 0; k < V; ++k) d.at[k] = f.error(v.at[k], d.at[k]);
        gg_store_pack(out + i * V, d);
    }
}

template <typename F>
static void run_activation(gg_cuda_stream stream, F f, bool backward, const gg_cuda_activation_args *args) {
    const int64_t n = (int64_t)args->n;
    const bool wide =
        n % 4 == 0 && gg_is_aligned(args->in, 16) && gg_is_aligned(args->out, 16) && gg_is_aligned(args->grad, 16);
    const unsigned blocks = blocks_for(wide ? n / 4 : n, GG_BLOCK);
    if (n == 0) return;
    if (backward && wide)
        GG_LAUNCH((activate_backward<F, 4>), dim3(blocks), dim3(GG_BLOCK), 0, stream, f, n, args->in, args->grad,
                  args->out);
    else if (backward)
        GG_LAUNCH((activate_backward<F, 1>), dim3(blocks), dim3(GG_BLOCK), 0, stream, f, n, args->in, args->grad,
                  args->out);
    else if (wide) GG_LAUNCH((activate<F, 4>), dim3(blocks), dim3(GG_BLOCK), 0, stream, f, n, args->in, args->out);
    else GG_LAUNCH((activate<F, 1>), dim3(blocks), dim3(GG_BLOCK), 0, stream, f, n, args->in, args->out);
}

static void any_activation(gg_cuda_stream stream, bool backward, const gg_cuda_activation_args *args) {
    switch (args->kind) {
    case GG_OP_TANH: run_activation(stream, tanh_of{}, backward, args); break;
    case GG_OP_SIGMOID: run_activation(stream, sigmoid_of{}, backward, args); break;
    case GG_OP_LEAKY_RELU: run_activation(stream, leaky_relu_of{args->slope}, backward, args); break;
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

struct add_arrays {
    const float *input[GG_MAX_INPUTS];
    float *grad[GG_MAX_INPUTS];
    int inputs, relu;
};

template <int V> static __global__ void add_all(add_arrays a, int64_t n, float *out) {
    for (int64_t i = gg_thread_number(); i < n / V; i += gg_thread_count()) {
        gg_pack<V> sum = gg_load_pack<V>(a.input[0] + i * V);
        for (int input = 1; input < a.inputs; ++input) {
            const gg_pack<V> v = gg_load_pack<V>(a.input[input] + i * V);
            for (int k = 0; k < V; ++k) sum.at[k] += v.at[k];
        }
        if (a.relu)
            for (int k = 0; k < V; ++k) sum.at[k] = gated(sum.at[k], sum.at[k]);
        gg_store_pack(out + i * V, sum);
    }
}

template <int V> static __global__ void add_all_backward(add_arrays a, int64_t n, const float *y, const float *dy) {
    for (int64_t i = gg_thread_number(); i < n / V; i += gg_thread_count()) {
        gg_pack<V> d = gg_load_pack<V>(dy + i * V);
        if (a.relu) {
            const gg_pack<V> v = gg_load_pack<V>(y + i * V);
            for (int k = 0; k < V; ++k) d.at[k] = gated(v.at[k], d.at[k]);
        }
        for (int input = 0; input < a.inputs; ++input)
            if (a.grad[input] != NULL) gg_store_pack(a.grad[input] + i * V, d);
    }
}

void gg_cuda_add(gg_cuda_stream stream, const gg_cuda_add_args *args) {
    const int64_t n = (int64_t)args->n;
    bool wide = n % 4 == 0 && gg_is_aligned(args->output, 16);
    add_arrays a = {};
    a.inputs = args->inputs;
    a.relu = args->relu;
    for (int i = 0; i < args->inputs; ++i) {
        a.input[i] = args->input[i];
        wide = wide && gg_is_aligned(args->input[i], 16);
    }
    if (n == 0) return;
    if (wide) GG_LAUNCH((add_all<4>), dim3(blocks_for(n / 4, GG_BLOCK)), dim3(GG_BLOCK), 0, stream, a, n, args->output);
    else GG_LAUNCH((add_all<1>), dim3(blocks_for(n, GG_BLOCK)), dim3(GG_BLOCK), 0, stream, a, n, args->output);
}

void gg_cuda_add_backward(gg_cuda_stream stream, const gg_cuda_add_args *args) {
    const int64_t n = (int64_t)args->n;
    const float *y = args->output, *dy = args->grad_output;
    bool wide = n % 4 == 0 && gg_is_aligned(y, 16) && gg_is_aligned(dy, 16);
    add_arrays a = {};
    a.relu = args->relu;
    for (int i = 0; i < args->inputs; ++i) {
        if (args->grad[i] == NULL || (args->grad[i] == dy && !args->relu)) continue;
        a.grad[a.inputs++] = args->grad[i];
        wide = wide && gg_is_aligned(args->grad[i], 16);
    }
    if (n == 0 || a.inputs == 0) return;
    if (wide)
        GG_LAUNCH((add_all_backward<4>), dim3(blocks_for(n / 4, GG_BLOCK)), dim3(GG_BLOCK), 0, stream, a, n, y, dy);
    else GG_LAUNCH((add_all_backward<1>), dim3(blocks_for(n, GG_BLOCK)), dim3(GG_BLOCK), 0, stream, a, n, y, dy);
}

/* ------------------------------------------------------------------------------------------ biases */

template <int V> static __global__ void add_bias(gg_rows r, const float *bias, int relu, float *y) {
    for (int64_t row = row_first(r.shift); row < r.rows; row += row_step(r.shift)) {
        for (int64_t i = column_first(r.shift); i < r.length; i += (int64_t)1 << r.shift) {
            float *at = y + (row * r.length + i) * V;
            gg_pack<V> v = gg_load_pack<V>(at);
            for (int k = 0; k < V; ++k) {
                if (bias != NULL) v.at[k] += bias[channel_of<V>(r, row, i, k)];
                if (relu) v.at[k] = gated(v.at[k], v.at[k]);
            }
            gg_store_pack(at, v);
        }
    }
}

void gg_cuda_bias(gg_cuda_stream stream, const gg_cuda_bias_args *args) {
    const int64_t length = args->inner == 1 ? args->channels : args->inner;
    const int v = length % 4 == 0 && gg_is_aligned(args->y, 16) ? 4 : 1;
    const gg_rows r = rows_of(args->outer, args->channels, args->inner, v);
    if (args->bias == NULL && !args->relu) return;
    if (v == 4)
        GG_LAUNCH((add_bias<4>), dim3(blocks_of(&r)), dim3(GG_BLOCK), 0, stream, r, args->bias, (int)args->relu,
                  args->y);
    else
        GG_LAUNCH((add_bias<1>), dim3(blocks_of(&r)), dim3(GG_BLOCK), 0, stream, r, args->bias, (int)args->relu,
                  args->y);
}

struct error_sum {
    const float *y;
    float *grad;
    struct local {};
    __device__ local begin(int64_t) const { return {}; }
    __device__ void add(const local &, int64_t, int64_t, int64_t index, gg_pair *sum) const {
        float d = grad[index];
        if (y != NULL) {
            d = gated(y[index], d);
            grad[index] = d;
        }
        sum->first += (double)d;
    }
};

static __global__ void bias_gradient(const gg_pair *partial, int64_t pieces, int64_t channels, float *out) {
    for (int64_t c = gg_thread_number(); c < channels; c += gg_thread_count())
        out[c] = (float)sum_of_pieces(partial, pieces, channels, c).first;
}

size_t gg_cuda_bias_backward_scratch(int64_t outer, int64_t channels, int64_t inner) {
    return partial_bytes(outer, channels, inner);
}

void gg_cuda_bias_backward(gg_cuda_stream stream, const gg_cuda_bias_backward_args *args) {
    gg_pair *partial = (gg_pair *)args->scratch;
    if (args->bias == NULL) {
        gg_cuda_activation_args gate = {};
        gate.kind = GG_OP_RELU;
        gate.n = (size_t)(args->outer * args->channels * args->inner);
        gate.in = args->y;
        gate.grad = gate.out = args->grad;
        if (args->y != NULL) gg_cuda_activation_backward(stream, &gate);
        return;
    }
    sum_channels(stream, error_sum{args->y, args->grad}, args->outer, args->channels, args->inner, partial);
    GG_LAUNCH(bias_gradient, dim3(blocks_for(args->channels, GG_BLOCK)), dim3(GG_BLOCK), 0, stream, partial,
              pieces_of(args->outer, args->channels, args->inner), args->channels, args->bias);
}
