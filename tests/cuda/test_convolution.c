/* Convolutions of the device "cuda" on the stand-in, which GOSSIPGRAD_CUDA_LIBRARY names: every form that they have,
 * forward and backward, beside sums in double. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>

#include "cuda/cuda_api.h"
#include "loaded_standin.h"

static const gg_cuda_api *(*standin_api)(void);

static gg_device *open_device(bool fast) {
    gg_device *device = NULL;
    CHECK_OK(library->backend->open(&(gg_device_options){.threads = 1, .fast = fast}, &device));
    if (device == NULL) exit(1);
    device->table = library->backend;
    return device;
}

static void is_clean(int line) {
    char text[1 << 12] = "";
    const int wrong = standin_violations(text, sizeof text);
    if (!check_count(wrong == 0, __FILE__, line)) fprintf(stderr, "violations: %s\n", text);
    const int left = standin_leaks(text, sizeof text);
    if (!check_count(left == 0, __FILE__, line)) fprintf(stderr, "left: %s\n", text);
    standin_begin(0);
}

/* ------------------------------------------------------------------------------------------------------- numbers */

static uint16_t narrowed(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static float widened(uint16_t value) {
    const uint32_t bits = (uint32_t)value << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

static float rounded(gg_dtype dtype, float value) { return dtype == GG_BFLOAT16 ? widened(narrowed(value)) : value; }

static float drawn(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (float)(1 << 24) - 0.5f;
}

/* An array in the order (N, C, H, W), and the same on the device in a format. */
typedef struct array {
    gg_format format;
    int64_t batch, channels, area;
    float *at;
    void *there;
} array;

static int64_t count_of(const array *a) { return a->batch * a->channels * a->area; }

static size_t bytes_of(const array *a) { return (size_t)count_of(a) * gg_dtype_size(a->format.dtype); }

static int64_t place_of(const array *a, int64_t i) {
    const int64_t n = i / (a->channels * a->area), c = i / a->area % a->channels, p = i % a->area;
    return a->format.layout == GG_LAYOUT_NHWC ? (n * a->area + p) * a->channels + c : i;
}

static void to_device(gg_device *device, array *a) {
    char *block = calloc(1, bytes_of(a));
    for (int64_t i = 0; i < count_of(a); ++i) {
        if (a->format.dtype == GG_BFLOAT16) ((uint16_t *)block)[place_of(a, i)] = narrowed(a->at[i]);
        else ((float *)block)[place_of(a, i)] = a->at[i];
    }
    CHECK_OK(gg_device_write(device, a->there, block, bytes_of(a)));
    free(block);
}

static void from_device(gg_device *device, array *a) {
    char *block = calloc(1, bytes_of(a));
    CHECK_OK(gg_device_read(device, block, a->there, bytes_of(a)));
    for (int64_t i = 0; i < count_of(a); ++i)
        a->at[i] = a->format.dtype == GG_BFLOAT16 ? widened(((uint16_t *)block)[place_of(a, i)])
                                                  : ((float *)block)[place_of(a, i)];
    free(block);
}

static array make_array(gg_device *device, gg_format format, int64_t batch, int64_t channels, int64_t area,
                        uint32_t *state) {
    array made = {.format = format, .batch = batch, .channels = channels, .area = area};
    made.at = calloc((size_t)count_of(&made), sizeof *made.at);
    for (int64_t i = 0; i < count_of(&made); ++i) made.at[i] = rounded(format.dtype, drawn(state));
    CHECK_OK(gg_device_alloc(device, bytes_of(&made), "an array", &made.there));
    to_device(device, &made);
    return made;
}

static void free_array(gg_device *device, array *a) {
    gg_device_free(device, a->there);
    free(a->at);
}

/* ----------------------------------------------------------------------------------------------------- reference */

typedef struct sum {
    double value, size; /* size: of the absolute values */
} sum;

static void add(sum *to, double term) {
    to->value += term;
    to->size += fabs(term);
}

typedef struct problem {
    const char *name;
    int64_t batch, in, out, groups;
    int64_t height, width, kernel[2], stride[2], padding[2], dilation[2];
    bool bias, relu;
} problem;

static gg_op_desc desc_of(const problem *p, gg_dtype dtype) {
    gg_op_desc desc = {.kind = GG_OP_CONV2D,
                       .batch = p->batch,
                       .inputs = 1,
                       .input = {{.dims = 3, .size = {p->in, p->height, p->width}}},
                       .offered = {{dtype, GG_LAYOUT_PLAIN}},
                       .dtype = dtype,
                       .conv.groups = p->groups,
                       .bias = p->bias,
                       .activation = p->relu ? GG_ACTIVATION_RELU : GG_ACTIVATION_NONE,
                       .training = true,
                       .input_grad = true};
    memcpy(desc.conv.window.kernel, p->kernel, sizeof p->kernel);
    memcpy(desc.conv.window.stride, p->stride, sizeof p->stride);
    memcpy(desc.conv.window.padding, p->padding, sizeof p->padding);
    memcpy(desc.conv.window.dilation, p->dilation, sizeof p->dilation);
    desc.output = (gg_shape){.dims = 3, .size = {p->out}};
    for (int a = 0; a < 2; ++a)
        desc.output.size[1 + a] = gg_window_output(&desc.conv.window, a, desc.input[0].size[1 + a], false);
    return desc;
}

/* Calls `each` with the places of every product of the convolution. */
typedef void product(void *context, int64_t x, int64_t w, int64_t y);
static void all_products(const gg_op_desc *d, product *each, void *context) {
    const int64_t *in = d->input[0].size, *out = d->output.size, *kernel = d->conv.window.kernel;
    const int64_t of_group = in[0] / d->conv.groups, outs = out[0] / d->conv.groups;
    for (int64_t n = 0; n < d->batch; ++n)
        for (int64_t o = 0; o < out[0]; ++o)
            for (int64_t i = 0; i < of_group; ++i)
                for (int64_t k = 0; k < kernel[0] * kernel[1]; ++k)
                    for (int64_t p = 0; p < out[1] * out[2]; ++p) {
                        const int64_t row = p / out[2] * d->conv.window.stride[0] +
                                            k / kernel[1] * d->conv.window.dilation[0] - d->conv.window.padding[0];
                        const int64_t column = p % out[2] * d->conv.window.stride[1] +
                                               k % kernel[1] * d->conv.window.dilation[1] - d->conv.window.padding[1];
                        if (row < 0 || row >= in[1] || column < 0 || column >= in[2]) continue;
                        each(context, ((n * in[0] + o / outs * of_group + i) * in[1] + row) * in[2] + column,
                             (o * of_group + i) * kernel[0] * kernel[1] + k, (n * out[0] + o) * out[1] * out[2] + p);
                    }
}

typedef struct reference {
    const float *x, *w, *dy;
    sum *y, *dx, *dw;
} reference;

static void one_product(void *context, int64_t x, int64_t w, int64_t y) {
    const reference *r = context;
    if (r->y != NULL) add(&r->y[y], (double)r->x[x] * (double)r->w[w]);
    if (r->dx != NULL) add(&r->dx[x], (double)r->dy[y] * (double)r->w[w]);
    if (r->dw != NULL) add(&r->dw[w], (double)r->dy[y] * (double)r->x[x]);
}

/* |got - wanted| <= of_sum*sum of absolute values + of_value*|wanted| everywhere. */
static bool agrees(const float *got, const sum *wanted, int64_t count, double of_sum, double of_value, const char *what,
                   const char *name) {
    for (int64_t i = 0; i < count; ++i) {
        const double error = fabs((double)got[i] - wanted[i].value);
        if (error <= of_sum * wanted[i].size + of_value * fabs(wanted[i].value) + 1e-12) continue;
        fprintf(stderr, "%s, %s: element %lld of %lld is %.9g, wanted %.9g\n", name, what, (long long)i,
                (long long)count, (double)got[i], wanted[i].value);
        return false;
    }
    return true;
}

/* --------------------------------------------------------------------------------------------------------- tests */

/* How many passes of convolutions have been run by the algorithm. */
static long runs_of(gg_algorithm algorithm) {
    char name[32];
    snprintf(name, sizeof name, "algorithm %d", (int)algorithm - GG_ALGORITHM_CUDNN0);
    return standin_count(name);
}

/* Runs an operation and compares. narrow_bias: the bias is read as bfloat16. */
static void check_op(gg_device *device, gg_op *op, bool narrow_bias, const char *name) {
    const gg_op_desc *d = &op->desc;
    const gg_format format = op->output, flat = {GG_FLOAT32, GG_LAYOUT_PLAIN};
    const int64_t area = d->input[0].size[1] * d->input[0].size[2], area_out = d->output.size[1] * d->output.size[2];
    const int64_t weights = d->output.size[0] * (d->input[0].size[0] / d->conv.groups) * d->conv.window.kernel[0] *
                            d->conv.window.kernel[1];
    const bool narrow = format.dtype == GG_BFLOAT16;
    uint32_t state = 7;
    array x = make_array(device, format, d->batch, d->input[0].size[0], area, &state);
    array y = make_array(device, format, d->batch, d->output.size[0], area_out, &state);
    array dy = make_array(device, format, d->batch, d->output.size[0], area_out, &state);
    array dx = make_array(device, format, d->batch, d->input[0].size[0], area, &state);
    array w = make_array(device, flat, 1, 1, weights, &state), dw = make_array(device, flat, 1, 1, weights, &state);
    array b = make_array(device, flat, 1, 1, d->output.size[0], &state);
    array db = make_array(device, flat, 1, 1, d->output.size[0], &state);
    void *prepared = NULL, *scratch = NULL;
    CHECK_OK(gg_device_alloc(device, op->prepared_bytes, "prepared weights", &prepared));
    CHECK_OK(gg_device_alloc(device, op->scratch_bytes, "scratch", &scratch));
    const float *parameter[2] = {w.there, b.there};
    float *gradient[2] = {dw.there, db.there};
    const gg_op_args args = {.input = {x.there},
                             .output = y.there,
                             .grad_output = dy.there,
                             .grad_input = {dx.there},
                             .parameter = parameter,
                             .gradient = gradient,
                             .prepared = prepared,
                             .scratch = scratch};
    if (op->prepared_bytes > 0) CHECK_OK(gg_op_prepare(op, &args, GG_PASS_FORWARD));
    CHECK_OK(gg_op_forward(op, &args));
    from_device(device, &y);
    if (op->prepared_bytes > 0) CHECK_OK(gg_op_prepare(op, &args, GG_PASS_DATA));
    CHECK_OK(gg_op_backward(op, &args));
    from_device(device, &dx);
    from_device(device, &dw);
    from_device(device, &db);

    sum *wanted_y = calloc((size_t)count_of(&y), sizeof(sum)), *wanted_dx = calloc((size_t)count_of(&x), sizeof(sum));
    sum *wanted_dw = calloc((size_t)weights, sizeof(sum)), *wanted_db = calloc((size_t)count_of(&b), sizeof(sum));
    float *read_w = calloc((size_t)weights, sizeof *read_w);
    for (int64_t i = 0; i < weights; ++i) read_w[i] = rounded(format.dtype, w.at[i]);
    all_products(d, one_product, &(reference){.x = x.at, .w = read_w, .y = wanted_y});
    for (int64_t i = 0; i < count_of(&y); ++i) {
        const int64_t channel = i / area_out % d->output.size[0];
        if (d->bias) add(&wanted_y[i], (double)(narrow_bias ? rounded(GG_BFLOAT16, b.at[channel]) : b.at[channel]));
        if (d->activation != GG_ACTIVATION_RELU) continue;
        if (wanted_y[i].value < 0) wanted_y[i].value = 0;
        if (!(y.at[i] > 0)) dy.at[i] = 0;
    }
    for (int64_t i = 0; i < count_of(&y); ++i) add(&wanted_db[i / area_out % d->output.size[0]], (double)dy.at[i]);
    all_products(d, one_product, &(reference){.x = x.at, .w = read_w, .dy = dy.at, .dx = wanted_dx, .dw = wanted_dw});

    /* Factors of TF32 have 11 bits, a result of bfloat16 has 8. */
    const bool tiled = d->algorithm == GG_ALGORITHM_TILED, tf32 = !narrow && (tiled || standin_count("tf32") > 0);
    const double of_sum = tf32 ? 1.0 / 1024 : 1e-6, of_value = narrow ? 1.0 / 250 : 1e-6;
    /* Where an own kernel adds the bias it is added to what was rounded. */
    const double twice = narrow && d->bias && !narrow_bias ? 1.0 / 500 : of_sum;
    CHECK(agrees(y.at, wanted_y, count_of(&y), twice, of_value, "y", name));
    CHECK(agrees(dx.at, wanted_dx, count_of(&dx), of_sum, of_value, "dx", name));
    CHECK(agrees(dw.at, wanted_dw, weights, of_sum, of_value, "dw", name));
    if (d->bias) CHECK(agrees(db.at, wanted_db, count_of(&db), 1e-6, 1e-6, "db", name));
    free(wanted_y), free(wanted_dx), free(wanted_dw), free(wanted_db), free(read_w);
    array *const all[] = {&x, &y, &dy, &dx, &w, &dw, &b, &db};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) free_array(device, all[i]);
    gg_device_free(device, prepared);
    gg_device_free(device, scratch);
}

static const problem problems[] = {
    {"3x3", 2, 5, 6, 1, 7, 6, {3, 3}, {1, 1}, {1, 1}, {1, 1}, true, true},
    {"1x1, stride 2", 3, 4, 7, 1, 5, 5, {1, 1}, {2, 2}, {0, 0}, {1, 1}, true, false},
    {"one channel", 2, 1, 3, 1, 9, 8, {5, 5}, {1, 1}, {0, 0}, {1, 1}, true, true},
    {"groups", 2, 6, 4, 2, 6, 7, {3, 2}, {2, 1}, {1, 0}, {1, 2}, false, true},
    {"by channels", 2, 4, 4, 4, 5, 6, {3, 3}, {1, 1}, {1, 1}, {1, 1}, false, false},
};

static void test_problem(const problem *p, gg_dtype dtype, bool fast) {
    const gg_layout wanted = dtype == GG_BFLOAT16 || fast ? GG_LAYOUT_NHWC : GG_LAYOUT_PLAIN;
    gg_device *device = open_device(fast);
    for (int algorithm = 0; algorithm < GG_ALGORITHM_COUNT; ++algorithm) {
        gg_op_desc desc = desc_of(p, dtype);
        gg_op *op = NULL;
        char name[64];
        standin_begin((uint64_t)algorithm + 3);
        snprintf(name, sizeof name, "%s, %s%s, %s", p->name, gg_dtype_name(dtype), fast ? ", fast" : "",
                 gg_algorithm_name((gg_algorithm)algorithm));
        desc.algorithm = (gg_algorithm)algorithm;
        if (algorithm != GG_ALGORITHM_DIRECT && algorithm < GG_ALGORITHM_TILED) {
            CHECK_FAILS(library->backend->create[GG_OP_CONV2D](device, &desc, &op), GG_ERROR_UNSUPPORTED, "of the CPU");
            continue;
        }
        /* Each pass alone: numbers mean other algorithms in other passes. */
        bool all = true;
        for (int pass = 0; pass < GG_PASS_COUNT; ++pass) {
            desc.passes = 1u << pass;
            const gg_status status = library->backend->create[GG_OP_CONV2D](device, &desc, &op);
            all = all && status == GG_OK;
            if (status != GG_OK) CHECK_FAILS(status, GG_ERROR_UNSUPPORTED, "algorithm");
            gg_op_destroy(op);
            op = NULL;
        }
        desc.passes = 0;
        if (!all) continue;
        CHECK_OK(library->backend->create[GG_OP_CONV2D](device, &desc, &op));
        if (algorithm == GG_ALGORITHM_DIRECT) {
            CHECK_INT(op->output.layout, wanted);
            CHECK_INT(op->output.dtype, dtype);
        }
        check_op(device, op, op->output.dtype == GG_BFLOAT16 && standin_count("cudnnSetActivationDescriptor") > 0,
                 name);
        CHECK(gg_device_check(device) == GG_OK);
        if (algorithm >= GG_ALGORITHM_CUDNN0) CHECK_INT(runs_of((gg_algorithm)algorithm), GG_PASS_COUNT);
        if (!fast) CHECK_INT(standin_count("tf32") + standin_count("nondeterministic"), 0);
        gg_op_destroy(op);
    }
    library->backend->close(device);
    is_clean(__LINE__);
}

/* cuDNN adds a bias in the convolution's call, and an own kernel applies the ReLU; where it refuses to, at its first
 * run, the own kernel does both. */
static void test_bias(gg_dtype dtype) {
    gg_device *device = open_device(true);
    static const int codes[] = {0, 3007, 2003};
    for (int i = 0; i < 3; ++i) {
        const bool refused = codes[i] != 0;
        gg_op_desc desc = desc_of(&problems[2], dtype);
        gg_op *op = NULL;
        standin_begin(5);
        CHECK_OK(library->backend->create[GG_OP_CONV2D](device, &desc, &op));
        if (refused) standin_plant("cudnnConvolutionBiasActivationForward", 1, codes[i], false, false);
        check_op(device, op, !refused && dtype == GG_BFLOAT16, refused ? "bias, refused" : "bias");
        CHECK_INT(standin_count("cudnnConvolutionForward"), refused);
        check_op(device, op, !refused && dtype == GG_BFLOAT16, refused ? "bias, refused before" : "bias, again");
        CHECK_INT(standin_count("cudnnConvolutionBiasActivationForward"), refused ? 1 : 2);
        gg_op_destroy(op);
    }
    library->backend->close(device);
    is_clean(__LINE__);
}

/* Without the bias in a form of its own, and where cuDNN has no algorithm in a format at all. */
static void test_other_formats(void) {
    gg_device *device = open_device(false);
    gg_op_desc desc = desc_of(&problems[0], GG_BFLOAT16);
    gg_op *op = NULL;
    standin_begin(1);
    standin_plant("cudnnGetConvolutionForwardAlgorithm_v7", 1, 3000, false, false);
    CHECK_OK(library->backend->create[GG_OP_CONV2D](device, &desc, &op));
    CHECK_INT(op->output.layout, GG_LAYOUT_PLAIN);
    CHECK_INT(op->output.dtype, GG_FLOAT32);
    check_op(device, op, false, "float32 in place of bfloat16");
    gg_op_destroy(op);
    library->backend->close(device);
    is_clean(__LINE__);
}

/* The call gives this code, and is the one violation since the last; its text contains `text`. */
#define VIOLATES(call, code, text)                                                                                     \
    do {                                                                                                               \
        CHECK_INT(call, code);                                                                                         \
        is_seen(text, __LINE__);                                                                                       \
    } while (0)

static void is_seen(const char *text, int line) {
    char seen[1 << 12];
    const int count = standin_violations(seen, sizeof seen);
    if (!check_count(count == 1 && strstr(seen, text) != NULL, __FILE__, line))
        fprintf(stderr, "%d violations: %swanted: %s\n", count, seen, text);
    standin_begin(0);
}

/* A convolution of (1, 1, 4, 4) by (1, 1, 1, 1) with a bias, as the library's function of that name wants it. */
typedef struct biased {
    gg_cudnn_tensor x, y, bias;
    gg_cudnn_filter w;
    gg_cudnn_convolution how;
    gg_cudnn_activation then;
    float *at; /* of the device: x, w, bias and y, 64 floats each */
    float alpha, beta;
    int algorithm, z; /* z: where it begins, behind y */
} biased;

static int forward(const gg_cuda_api *api, gg_cudnn_handle handle, const biased *it) {
    float *const y = it->at + 192;
    return api->cudnnConvolutionBiasActivationForward(handle, &it->alpha, it->x, it->at, it->w, it->at + 64, it->how,
                                                      it->algorithm, NULL, 0, &it->beta, it->y, y + it->z, it->bias,
                                                      it->at + 128, it->then, it->y, y);
}

/* What the stand-in sees of a bias that is added in the convolution's call. */
static void test_bias_contract(void) {
    const gg_cuda_api *api = standin_api();
    const int refused = GG_CUDNN_MIN_REFUSAL;
    gg_device *device = open_device(false);
    gg_cudnn_handle handle;
    gg_cuda_stream stream;
    biased it = {.alpha = 1}, other;
    standin_begin(0);
    CHECK_OK(gg_device_alloc(device, 256 * sizeof(float), "arrays", &it.at));
    CHECK_INT(api->cudaStreamCreateWithFlags(&stream, GG_CUDA_STREAM_NON_BLOCKING), 0);
    CHECK_INT(api->cudnnCreate(&handle), 0);
    CHECK_INT(api->cudnnSetStream(handle, stream), 0);
    gg_cudnn_tensor *const tensors[3] = {&it.x, &it.y, &it.bias};
    for (int i = 0; i < 3; ++i) CHECK_INT(api->cudnnCreateTensorDescriptor(tensors[i]), 0);
    for (int i = 0; i < 2; ++i) CHECK_INT(api->cudnnSetTensor4dDescriptor(*tensors[i], 1, 0, 1, 1, 4, 4), 0);
    CHECK_INT(api->cudnnCreateFilterDescriptor(&it.w), 0);
    CHECK_INT(api->cudnnSetFilter4dDescriptor(it.w, 0, 1, 1, 1, 1, 1), 0);
    CHECK_INT(api->cudnnCreateConvolutionDescriptor(&it.how), 0);
    CHECK_INT(api->cudnnSetConvolution2dDescriptor(it.how, 0, 0, 1, 1, 1, 1, GG_CUDNN_CROSS_CORRELATION, 0), 0);
    CHECK_INT(api->cudnnCreateActivationDescriptor(&it.then), 0);
    VIOLATES(forward(api, handle, &it), 2000, "descriptor of the bias is not set");
    CHECK_INT(api->cudnnSetTensor4dDescriptor(it.bias, 1, 0, 1, 1, 1, 1), 0);
    VIOLATES(forward(api, handle, &it), 2000, "descriptor of the activation is not set");
    VIOLATES(api->cudnnSetActivationDescriptor(it.then, 3, GG_CUDNN_NOT_PROPAGATE_NAN, 0), refused, "mode 3");
    VIOLATES(api->cudnnSetActivationDescriptor(it.then, GG_CUDNN_ACTIVATION_RELU, 2, 0), 2000, "NaN 2");
    CHECK_INT(api->cudnnSetActivationDescriptor(it.then, GG_CUDNN_ACTIVATION_RELU, GG_CUDNN_NOT_PROPAGATE_NAN, 0), 0);
    CHECK_INT(forward(api, handle, &it), 0);
    other = it, other.alpha = 2;
    VIOLATES(forward(api, handle, &other), refused, "alpha is not 1");
    other = it, other.beta = 1;
    VIOLATES(forward(api, handle, &other), refused, "z is added");
    other = it, other.z = 16;
    VIOLATES(forward(api, handle, &other), refused, "is not y");
    CHECK_INT(api->cudnnSetTensor4dDescriptor(it.bias, 1, GG_CUDNN_DATA_BFLOAT16, 1, 1, 1, 1), 0);
    VIOLATES(forward(api, handle, &it), refused, "of type 9, y has 1 channels of type 0");
    CHECK_INT(api->cudnnSetTensor4dDescriptor(it.bias, 1, 0, 1, 1, 4, 1), 0);
    VIOLATES(forward(api, handle, &it), refused, "the bias is (1, 1, 4, 1)");
    CHECK_INT(api->cudnnSetTensor4dDescriptor(it.bias, 1, 0, 1, 1, 1, 1), 0);
    CHECK_INT(api->cudnnSetActivationDescriptor(it.then, GG_CUDNN_ACTIVATION_IDENTITY, GG_CUDNN_NOT_PROPAGATE_NAN, 0),
              0);
    VIOLATES(forward(api, handle, &it), refused, "without an activation algorithm 0");
    CHECK_INT(api->cudaStreamSynchronize(stream), 0);
    CHECK_INT(api->cudnnDestroyActivationDescriptor(it.then), 0);
    CHECK_INT(api->cudnnDestroyConvolutionDescriptor(it.how), 0);
    CHECK_INT(api->cudnnDestroyFilterDescriptor(it.w), 0);
    for (int i = 0; i < 3; ++i) CHECK_INT(api->cudnnDestroyTensorDescriptor(*tensors[i]), 0);
    CHECK_INT(api->cudnnDestroy(handle), 0);
    CHECK_INT(api->cudaStreamDestroy(stream), 0);
    gg_device_free(device, it.at);
    library->backend->close(device);
    is_clean(__LINE__);
}

int main(void) {
    void *handle = load_standin();
    if (handle == NULL) return CHECK_RESULT;
    find(handle, "gg_standin_api", &standin_api);
    for (size_t i = 0; i < sizeof problems / sizeof *problems; ++i) {
        test_problem(&problems[i], GG_FLOAT32, false);
        test_problem(&problems[i], GG_FLOAT32, true);
        test_problem(&problems[i], GG_BFLOAT16, false);
        test_problem(&problems[i], GG_BFLOAT16, true);
    }
    test_bias(GG_FLOAT32);
    test_bias(GG_BFLOAT16);
    test_other_formats();
    test_bias_contract();
    return CHECK_RESULT;
}
