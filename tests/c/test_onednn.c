/* The oneDNN operations, forward and backward, against plain loops in double precision.
 *
 * Every buffer lies between guards, outputs start as NaN, and what a layout pads must come out as zeros.
 * With an argument "bench" it prints GFLOP/s of some layers instead. */
#include <stdint.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "base/random.h"
#include "check.h"
#include "cpu/cpu_backend.h"
#include "guarded.h"
#include "ops/backend.h"

/* A batch in double precision, plain, and where its values lie in a format. */
typedef struct batch {
    int64_t n, c, h, w; /* features are (c, 1, 1), sequences (c, h, 1) */
    double *value;
} batch;

static batch batch_make(int64_t n, const gg_shape *shape) {
    batch it = {n, shape->size[0], shape->dims > 1 ? shape->size[1] : 1, shape->dims > 2 ? shape->size[2] : 1, NULL};
    it.value = calloc((size_t)(n * it.c * it.h * it.w), sizeof(double));
    return it;
}

static int64_t batch_count(const batch *it) { return it->n * it->c * it->h * it->w; }
static double *at(const batch *it, int64_t n, int64_t c, int64_t h, int64_t w) {
    return &it->value[((n * it->c + c) * it->h + h) * it->w + w];
}

static uint64_t drawn;
static void randomise(double *value, int64_t count) {
    const gg_random_key key = {11, GG_RANDOM_TEST, 0, drawn++};
    float *draw = malloc((size_t)count * sizeof(float));
    gg_random_uniform(&key, (size_t)count, -1, 1, draw);
    for (int64_t i = 0; i < count; i++) value[i] = draw[i];
    free(draw);
}

static size_t place_of(const batch *it, gg_layout layout, int64_t n, int64_t c, int64_t h, int64_t w) {
    int64_t block = layout == GG_LAYOUT_CHANNELS16 ? 16 : layout == GG_LAYOUT_CHANNELS8 ? 8 : 1;
    if (layout == GG_LAYOUT_NHWC) return (size_t)(((n * it->h + h) * it->w + w) * it->c + c);
    if (layout == GG_LAYOUT_BATCH_LAST) return (size_t)(((c * it->h + h) * it->w + w) * gg_lanes_padded(it->n) + n);
    int64_t blocks = (it->c + block - 1) / block;
    return (size_t)((((n * blocks + c / block) * it->h + h) * it->w + w) * block + c % block);
}

#define EACH(it)                                                                                                       \
    for (int64_t n = 0; n < (it)->n; n++)                                                                              \
        for (int64_t c = 0; c < (it)->c; c++)                                                                          \
            for (int64_t h = 0; h < (it)->h; h++)                                                                      \
                for (int64_t w = 0; w < (it)->w; w++)

static gg_shape shape_of(const batch *it) { return (gg_shape){3, {it->c, it->h, it->w}}; }

/* NULL: room for it, filled with NaN. */
static buffer lay(const batch *it, gg_format format, bool filled) {
    gg_shape shape = shape_of(it);
    buffer b = buffer_create(gg_format_bytes(format, &shape, it->n));
    if (filled) {
        memset(b.data, 0, b.bytes);
        EACH(it) b.floats[place_of(it, format.layout, n, c, h, w)] = (float)*at(it, n, c, h, w);
    }
    return b;
}

static double largest(const double *value, int64_t count) {
    double most = 1e-3;
    for (int64_t i = 0; i < count; i++) most = fmax(most, fabs(value[i]));
    return most;
}

static double worst_value(const float *got, const double *wanted, int64_t count) {
    double worst = 0, scale = largest(wanted, count);
    for (int64_t i = 0; i < count; i++) {
        double error = fabs(got[i] - wanted[i]) / scale;
        if (!(error <= worst)) worst = error; /* NaN too */
        if (worst != worst) return worst;
    }
    return worst;
}

/* Largest difference relative to the largest value; the padding must be zero. */
static double worst(const buffer *b, const batch *it, gg_format format) {
    const int64_t count = batch_count(it);
    float *got = malloc((size_t)count * sizeof(float));
    bool *used = calloc(b->count, sizeof(bool));
    bool zero = true;
    EACH(it) {
        size_t place = place_of(it, format.layout, n, c, h, w);
        got[at(it, n, c, h, w) - it->value] = b->floats[place];
        used[place] = true;
    }
    if (format.layout != GG_LAYOUT_BATCH_LAST)
        for (size_t i = 0; i < b->count; i++) zero = zero && (used[i] || b->floats[i] == 0);
    CHECK(zero);
    double error = worst_value(got, it->value, count);
    free(got);
    free(used);
    return error;
}

#define TOLERANCE 3e-6

/* Runs an operation and compares everything it writes. x, y, dx by input; weights plain, NULL without. */
typedef struct trial {
    const char *name;
    gg_op_desc desc;
    batch x[GG_MAX_INPUTS], y, dy, dx[GG_MAX_INPUTS];
    double *w, *b, *dw, *db;
    int64_t weights, outputs;
    bool in_place;
    double tolerance;
} trial;

static buffer plain_buffer(const double *value, int64_t count) {
    buffer b = buffer_floats((size_t)count);
    for (int64_t i = 0; value != NULL && i < count; i++) b.floats[i] = (float)value[i];
    return b;
}

static const char *seen_layout[2];

static void run_trial(gg_device *device, trial *t) {
    gg_op *op = NULL;
    gg_op_args args = {0};
    buffer x[GG_MAX_INPUTS] = {0}, dx[GG_MAX_INPUTS] = {0}, y = {0}, dy = {0}, w = {0}, b = {0}, dw = {0}, db = {0};
    double tolerance = t->tolerance > 0 ? t->tolerance : TOLERANCE;
    long failed = check_failed;
    const int64_t before = gg_memory_live_bytes();

    if (!CHECK_OK(gg_backend_onednn.create[t->desc.kind](device, &t->desc, &op))) {
        fprintf(stderr, "  in %s\n", t->name);
        return;
    }
    seen_layout[0] = gg_layout_name(op->input[0].layout);
    seen_layout[1] = gg_layout_name(op->output.layout);
    buffer saved = buffer_create(op->saved_bytes), scratch = buffer_create(op->scratch_bytes);
    buffer prepared = buffer_create(op->prepared_bytes);
    const float *parameter[2] = {NULL, NULL};
    float *gradient[2] = {NULL, NULL};
    args.parameter = parameter;
    args.gradient = gradient;
    args.prepared = op->prepared_bytes > 0 ? prepared.data : NULL;
    args.saved = op->saved_bytes > 0 ? saved.data : NULL;
    args.scratch = op->scratch_bytes > 0 ? scratch.data : NULL;
    for (int i = 0; i < t->desc.inputs; i++) {
        x[i] = lay(&t->x[i], op->input[i], true);
        args.input[i] = x[i].data;
    }
    y = lay(&t->y, op->output, false);
    if (t->desc.training) dy = lay(&t->dy, op->output, true);
    for (int i = 0; t->desc.training && i < t->desc.inputs; i++) dx[i] = lay(&t->dx[i], op->input[i], false);
    args.output = t->in_place && op->in_place ? x[0].data : y.data;
    if (t->weights > 0) {
        w = plain_buffer(t->w, t->weights);
        parameter[GG_PARAMETER_WEIGHT] = w.data;
        dw = plain_buffer(NULL, t->weights);
        if (t->desc.bias) {
            b = plain_buffer(t->b, t->outputs);
            parameter[GG_PARAMETER_BIAS] = b.data;
            db = plain_buffer(NULL, t->outputs);
        }
    }
    const int64_t allocations = gg_memory_allocations();
    CHECK_OK(gg_op_prepare(op, &args, GG_PASS_FORWARD));
    CHECK_OK(gg_op_forward(op, &args));
    buffer *result = t->in_place && op->in_place ? &x[0] : &y;
    CHECK_NEAR(worst(result, &t->y, op->output), 0, tolerance);
    if (t->desc.training) {
        args.grad_output = dy.data;
        if (!op->backward_needs_output) args.output = NULL;
        for (int i = 0; i < t->desc.inputs; i++) {
            if ((op->backward_needs_input >> i & 1u) == 0) args.input[i] = NULL;
            if (t->desc.input_grad) args.grad_input[i] = dx[i].data;
        }
        if (t->in_place && op->in_place && t->desc.input_grad) args.grad_input[0] = dy.data;
        gradient[GG_PARAMETER_WEIGHT] = dw.data;
        gradient[GG_PARAMETER_BIAS] = db.data;
        memset(scratch.data, 0xff, scratch.bytes);
        CHECK_OK(gg_op_backward(op, &args));
        for (int i = 0; t->desc.input_grad && i < t->desc.inputs; i++) {
            const buffer *made = i == 0 && t->in_place && op->in_place ? &dy : &dx[i];
            CHECK_NEAR(worst(made, &t->dx[i], op->input[i]), 0, tolerance);
        }
        if (t->weights > 0) CHECK_NEAR(worst_value(dw.data, t->dw, t->weights), 0, tolerance);
        if (t->weights > 0 && t->desc.bias) CHECK_NEAR(worst_value(db.data, t->db, t->outputs), 0, tolerance);
        if (t->desc.input_grad && t->desc.kind != GG_OP_RELU) { /* one gradient not wanted */
            dy.data != NULL ? memset(dy.data, 0, dy.bytes) : NULL;
            args.grad_input[0] = NULL;
            CHECK_OK(gg_op_backward(op, &args));
        }
    } else {
        CHECK_FAILS(gg_op_backward(op, &args), GG_ERROR_STATE, "without training");
    }
    CHECK_INT(gg_memory_allocations() - allocations, 0);
    if (check_failed > failed)
        fprintf(stderr, "  in %s: batch %lld, %s to %s\n", t->name, (long long)t->desc.batch, seen_layout[0],
                seen_layout[1]);
    gg_op_destroy(op);
    for (int i = 0; i < t->desc.inputs; i++) {
        buffer_free(&x[i]);
        buffer_free(&dx[i]);
    }
    buffer *all[] = {&y, &dy, &w, &b, &dw, &db, &prepared, &saved, &scratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) buffer_free(all[i]);
    CHECK_INT(gg_memory_live_bytes() - before, 0);
}

static void drop_trial(trial *t) {
    for (int i = 0; i < t->desc.inputs; i++) {
        free(t->x[i].value);
        free(t->dx[i].value);
    }
    free(t->y.value);
    free(t->dy.value);
    free(t->w);
    free(t->b);
    free(t->dw);
    free(t->db);
}

static void prepare(trial *t) {
    for (int i = 0; i < t->desc.inputs; i++) {
        t->x[i] = batch_make(t->desc.batch, &t->desc.input[i]);
        t->dx[i] = batch_make(t->desc.batch, &t->desc.input[i]);
        randomise(t->x[i].value, batch_count(&t->x[i]));
    }
    t->y = batch_make(t->desc.batch, &t->desc.output);
    t->dy = batch_make(t->desc.batch, &t->desc.output);
    randomise(t->dy.value, batch_count(&t->dy));
    if (t->weights > 0) {
        t->w = calloc((size_t)t->weights, sizeof(double));
        t->dw = calloc((size_t)t->weights, sizeof(double));
        t->b = calloc((size_t)t->outputs, sizeof(double));
        t->db = calloc((size_t)t->outputs, sizeof(double));
        randomise(t->w, t->weights);
        randomise(t->b, t->outputs);
    }
}

/* ------------------------------------------------------------------------------------------ convolution */

typedef struct conv_case {
    int64_t batch, in, out, height, width, kernel[2], stride[2], padding[2], dilation[2], groups;
    bool bias, relu, input_grad;
} conv_case;

static int64_t conv_out(int64_t in, int64_t k, int64_t s, int64_t p, int64_t d) {
    return (in + 2 * p - d * (k - 1) - 1) / s + 1;
}

static void conv_reference(trial *t) {
    const gg_window *win = &t->desc.conv.window;
    const batch *x = &t->x[0], *y = &t->y, *dx = &t->dx[0];
    const int64_t ic = x->c / t->desc.conv.groups, oc = y->c / t->desc.conv.groups;
    for (int pass = 0; pass < 2; pass++) {
        EACH(y) {
            double sum = t->desc.bias ? t->b[c] : 0, g = *at(&t->dy, n, c, h, w);
            if (pass == 1 && t->desc.activation == GG_ACTIVATION_RELU && *at(y, n, c, h, w) <= 0) g = 0;
            if (pass == 1) t->db[c] += g;
            for (int64_t i = 0; i < ic; i++)
                for (int64_t kh = 0; kh < win->kernel[0]; kh++)
                    for (int64_t kw = 0; kw < win->kernel[1]; kw++) {
                        int64_t ih = h * win->stride[0] - win->padding[0] + kh * win->dilation[0];
                        int64_t iw = w * win->stride[1] - win->padding[1] + kw * win->dilation[1];
                        if (ih < 0 || ih >= x->h || iw < 0 || iw >= x->w) continue;
                        int64_t channel = c / oc * ic + i,
                                k = ((c * ic + i) * win->kernel[0] + kh) * win->kernel[1] + kw;
                        if (pass == 0) {
                            sum += t->w[k] * *at(x, n, channel, ih, iw);
                        } else {
                            t->dw[k] += g * *at(x, n, channel, ih, iw);
                            *at(dx, n, channel, ih, iw) += g * t->w[k];
                        }
                    }
            if (pass == 0) *at(y, n, c, h, w) = t->desc.activation == GG_ACTIVATION_RELU && sum < 0 ? 0 : sum;
        }
    }
}

static void test_conv(gg_device *device, const conv_case *it, gg_layout offered, bool training) {
    trial t = {.name = "conv2d", .outputs = it->out};
    t.weights = it->out * it->in / it->groups * it->kernel[0] * it->kernel[1];
    t.desc = (gg_op_desc){
        .kind = GG_OP_CONV2D,
        .batch = it->batch,
        .inputs = 1,
        .input = {{3, {it->in, it->height, it->width}}},
        .output = {3,
                   {it->out, conv_out(it->height, it->kernel[0], it->stride[0], it->padding[0], it->dilation[0]),
                    conv_out(it->width, it->kernel[1], it->stride[1], it->padding[1], it->dilation[1])}},
        .offered = {{GG_FLOAT32, offered}},
        .conv.groups = it->groups,
        .bias = it->bias,
        .activation = it->relu ? GG_ACTIVATION_RELU : GG_ACTIVATION_NONE,
        .training = training,
        .input_grad = it->input_grad};
    memcpy(t.desc.conv.window.kernel, it->kernel, sizeof it->kernel);
    memcpy(t.desc.conv.window.stride, it->stride, sizeof it->stride);
    memcpy(t.desc.conv.window.padding, it->padding, sizeof it->padding);
    memcpy(t.desc.conv.window.dilation, it->dilation, sizeof it->dilation);
    prepare(&t);
    conv_reference(&t);
    run_trial(device, &t);
    drop_trial(&t);
}

static void test_convs(gg_device *device) {
    static const conv_case cases[] = {
        {2, 1, 20, 28, 28, {5, 5}, {1, 1}, {0, 0}, {1, 1}, 1, true, false, false},
        {3, 20, 50, 12, 12, {5, 5}, {1, 1}, {0, 0}, {1, 1}, 1, true, true, true},
        {1, 3, 7, 9, 11, {3, 2}, {2, 1}, {1, 0}, {1, 1}, 1, false, true, true},
        {5, 16, 32, 8, 8, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, true, true, true},
        {2, 32, 32, 7, 9, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 1, false, false, true},
        {1, 64, 48, 6, 5, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1, true, false, true},
        {2, 64, 64, 7, 7, {1, 1}, {2, 2}, {0, 0}, {1, 1}, 1, false, true, true},
        {2, 6, 16, 14, 14, {5, 5}, {1, 1}, {0, 0}, {1, 1}, 1, true, true, true},
        {1, 24, 40, 10, 7, {3, 3}, {1, 1}, {2, 2}, {2, 2}, 1, true, false, true},
        {2, 8, 12, 6, 6, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 4, true, true, true},
        {2, 32, 64, 6, 6, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 2, true, true, true},
        {3, 20, 20, 5, 5, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 20, true, true, true},
        {2, 6, 18, 5, 6, {2, 3}, {1, 2}, {1, 1}, {1, 1}, 6, false, true, true},
        {1, 4, 5, 1, 1, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1, true, true, true},
        {2, 3, 16, 23, 23, {7, 7}, {2, 2}, {3, 3}, {1, 1}, 1, true, true, false},
        {2, 17, 33, 6, 7, {3, 3}, {3, 2}, {0, 1}, {2, 1}, 1, true, true, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        test_conv(device, &cases[i], GG_LAYOUT_PLAIN, true);
        test_conv(device, &cases[i], GG_LAYOUT_NHWC, true);
        test_conv(device, &cases[i], GG_LAYOUT_BATCH_LAST, false);
    }
}

/* ----------------------------------------------------------------------------------------------- linear */

static void test_linear(gg_device *device, int64_t batch_size, int64_t steps, int64_t in, int64_t out, bool bias,
                        bool relu) {
    trial t = {.name = "linear", .outputs = out, .weights = in * out};
    t.desc = (gg_op_desc){.kind = GG_OP_LINEAR,
                          .batch = batch_size,
                          .inputs = 1,
                          .offered = {{GG_FLOAT32, GG_LAYOUT_PLAIN}},
                          .bias = bias,
                          .activation = relu ? GG_ACTIVATION_RELU : GG_ACTIVATION_NONE,
                          .training = true,
                          .input_grad = true};
    t.desc.input[0] = steps > 0 ? (gg_shape){2, {steps, in}} : (gg_shape){1, {in}};
    t.desc.output = steps > 0 ? (gg_shape){2, {steps, out}} : (gg_shape){1, {out}};
    prepare(&t);
    double terms = 0; /* the largest sum of the absolute values that one output adds up */
    for (int pass = 0; pass < 2; pass++)
        for (int64_t r = 0; r < batch_size * (steps > 0 ? steps : 1); r++)
            for (int64_t o = 0; o < out; o++) {
                double *y = &t.y.value[r * out + o], sum = bias ? t.b[o] : 0, g = t.dy.value[r * out + o];
                double absolute = fabs(sum);
                if (pass == 1 && relu && *y <= 0) g = 0;
                if (pass == 1) t.db[o] += g;
                for (int64_t i = 0; i < in; i++) {
                    sum += t.w[o * in + i] * t.x[0].value[r * in + i];
                    absolute += fabs(t.w[o * in + i] * t.x[0].value[r * in + i]);
                    if (pass == 1) t.dw[o * in + i] += g * t.x[0].value[r * in + i];
                    if (pass == 1) t.dx[0].value[r * in + i] += g * t.w[o * in + i];
                }
                if (pass == 0) *y = relu && sum < 0 ? 0 : sum;
                if (absolute > terms) terms = absolute;
            }
    /* Where the terms cancel, the rounding of float32 is large beside the output. */
    double cancelled = 4 * 0x1p-24 * terms / largest(t.y.value, batch_count(&t.y));
    if (cancelled > TOLERANCE) t.tolerance = cancelled;
    run_trial(device, &t);
    drop_trial(&t);
}

/* ---------------------------------------------------------------------------------------------- pooling */

static int64_t pool_out(int64_t in, int64_t k, int64_t s, int64_t p, int64_t d, bool ceil_mode) {
    int64_t room = in + 2 * p - d * (k - 1) - 1, out = (room + (ceil_mode ? s - 1 : 0)) / s + 1;
    return ceil_mode && (out - 1) * s >= in + p ? out - 1 : out;
}

/* As PyTorch defines it, for one position of the window. */
static void pool_window(const trial *t, int64_t h, int64_t w, int64_t from[2], int64_t to[2], double *divisor) {
    const gg_window *win = &t->desc.pool;
    const int64_t in[2] = {t->x[0].h, t->x[0].w}, position[2] = {h, w};
    double all = 1, inside = 1;
    for (int i = 0; i < 2; i++) {
        int64_t begin = position[i] * win->stride[i] - win->padding[i];
        int64_t end = begin + win->dilation[i] * (win->kernel[i] - 1) + 1;
        if (end > in[i] + win->padding[i] && t->desc.kind == GG_OP_AVG_POOL2D) end = in[i] + win->padding[i];
        all *= (double)(end - begin);
        from[i] = begin;
        while (from[i] < 0) from[i] += win->dilation[i];
        to[i] = end < in[i] ? end : in[i];
        inside *= (double)(to[i] - from[i]);
    }
    *divisor = win->count_include_pad ? all : inside;
}

static gg_status test_pool(gg_device *device, gg_op_kind kind, int64_t batch_size, int64_t channels, int64_t height,
                           int64_t width, gg_window win, gg_layout offered, bool training) {
    trial t = {.name = gg_op_kind_name(kind)};
    t.desc = (gg_op_desc){
        .kind = kind,
        .batch = batch_size,
        .inputs = 1,
        .input = {{3, {channels, height, width}}},
        .output = {3,
                   {channels,
                    pool_out(height, win.kernel[0], win.stride[0], win.padding[0], win.dilation[0], win.ceil_mode),
                    pool_out(width, win.kernel[1], win.stride[1], win.padding[1], win.dilation[1], win.ceil_mode)}},
        .offered = {{GG_FLOAT32, offered}},
        .pool = win,
        .training = training,
        .input_grad = true};
    gg_op *op = NULL;
    gg_status status = gg_backend_onednn.create[kind](device, &t.desc, &op);
    if (status != GG_OK) return status;
    gg_op_destroy(op);
    prepare(&t);
    for (int64_t i = 0; i < batch_count(&t.x[0]); i++) /* ties, as a ReLU before makes them */
        if (t.x[0].value[i] < 0) t.x[0].value[i] = 0;
    const bool max = kind == GG_OP_MAX_POOL2D;
    EACH(&t.y) {
        int64_t from[2], to[2], best[2] = {-1, -1};
        double divisor, sum = 0, g = *at(&t.dy, n, c, h, w);
        pool_window(&t, h, w, from, to, &divisor);
        for (int64_t i = from[0]; i < to[0]; i += win.dilation[0])
            for (int64_t j = from[1]; j < to[1]; j += win.dilation[1]) {
                double value = *at(&t.x[0], n, c, i, j);
                sum += value;
                if (max && (best[0] < 0 || value > *at(&t.x[0], n, c, best[0], best[1]))) {
                    best[0] = i;
                    best[1] = j;
                }
                if (!max) *at(&t.dx[0], n, c, i, j) += g / divisor;
            }
        if (max) *at(&t.dx[0], n, c, best[0], best[1]) += g;
        *at(&t.y, n, c, h, w) = max ? *at(&t.x[0], n, c, best[0], best[1]) : sum / divisor;
    }
    run_trial(device, &t);
    drop_trial(&t);
    return GG_OK;
}

static void test_pools(gg_device *device) {
    static const gg_layout layouts[] = {GG_LAYOUT_PLAIN, GG_LAYOUT_CHANNELS16, GG_LAYOUT_CHANNELS8, GG_LAYOUT_NHWC,
                                        GG_LAYOUT_BATCH_LAST};
    static const gg_window windows[] = {
        {{2, 2}, {2, 2}, {0, 0}, {1, 1}, false, false}, {{3, 3}, {2, 2}, {0, 0}, {1, 1}, true, false},
        {{3, 3}, {2, 2}, {1, 1}, {1, 1}, false, true},  {{3, 3}, {1, 1}, {1, 1}, {1, 1}, false, false},
        {{3, 2}, {2, 3}, {1, 0}, {1, 1}, true, false},  {{2, 2}, {2, 2}, {0, 0}, {1, 1}, true, true},
        {{2, 3}, {3, 2}, {0, 1}, {1, 1}, true, false},  {{5, 4}, {3, 3}, {2, 2}, {1, 1}, false, true},
    };
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++)
        for (size_t k = 0; k < sizeof layouts / sizeof layouts[0]; k++) {
            const int64_t channels = k == 0 ? 3 : 20;
            CHECK_OK(test_pool(device, GG_OP_MAX_POOL2D, 2, channels, 13, 8, windows[i], layouts[k], true));
            CHECK_OK(test_pool(device, GG_OP_AVG_POOL2D, 3, channels, 8, 13, windows[i], layouts[k], true));
        }
    const gg_window dilated = {{2, 3}, {2, 1}, {1, 1}, {3, 2}, false, false};
    const gg_window all = {{7, 5}, {1, 1}, {0, 0}, {1, 1}, false, true};
    const gg_window clipped = {{3, 3}, {2, 2}, {1, 1}, {1, 1}, true, true};
    for (size_t k = 0; k < sizeof layouts / sizeof layouts[0]; k++) {
        CHECK_OK(test_pool(device, GG_OP_MAX_POOL2D, 1, 5, 13, 8, dilated, layouts[k], true));
        CHECK_OK(test_pool(device, GG_OP_AVG_POOL2D, 1, 33, 7, 5, all, layouts[k], true));
        CHECK_OK(test_pool(device, GG_OP_MAX_POOL2D, 1, 33, 7, 5, all, layouts[k], false));
        CHECK_OK(test_pool(device, GG_OP_AVG_POOL2D, 1, 16, 7, 7, clipped, layouts[k], true)); /* nothing is clipped */
        CHECK_FAILS(test_pool(device, GG_OP_AVG_POOL2D, 1, 16, 8, 7, clipped, layouts[k], true), GG_ERROR_UNSUPPORTED,
                    "padding");
    }
}

/* --------------------------------------------------------------- activations, sums, joins, reorders */

static void test_activation(gg_device *device, gg_op_kind kind, gg_shape shape, gg_layout layout, bool in_place) {
    trial t = {.name = gg_op_kind_name(kind), .in_place = in_place, .tolerance = 1e-5};
    t.desc = (gg_op_desc){.kind = kind,
                          .batch = 3,
                          .inputs = 1,
                          .input = {shape},
                          .output = shape,
                          .offered = {{GG_FLOAT32, layout}},
                          .training = true,
                          .input_grad = true};
    prepare(&t);
    for (int64_t i = 0; i < batch_count(&t.y); i++) {
        double x = t.x[0].value[i] *= 4, *y = &t.y.value[i], dy = t.dy.value[i], *dx = &t.dx[0].value[i];
        *y = kind == GG_OP_RELU ? fmax(x, 0) : kind == GG_OP_TANH ? tanh(x) : 1 / (1 + exp(-x));
        *dx = dy * (kind == GG_OP_RELU ? x > 0 : kind == GG_OP_TANH ? 1 - *y * *y : *y * (1 - *y));
    }
    run_trial(device, &t);
    drop_trial(&t);
}

static void test_add(gg_device *device, int inputs, gg_layout layout, bool in_place) {
    trial t = {.name = "add", .in_place = in_place};
    const gg_shape shape = {3, {20, 5, 3}};
    t.desc = (gg_op_desc){
        .kind = GG_OP_ADD, .batch = 3, .inputs = inputs, .output = shape, .training = true, .input_grad = true};
    for (int i = 0; i < inputs; i++) {
        t.desc.input[i] = shape;
        t.desc.offered[i] = (gg_format){GG_FLOAT32, i == 0 ? layout : GG_LAYOUT_PLAIN};
    }
    prepare(&t);
    for (int i = 0; i < inputs; i++)
        for (int64_t k = 0; k < batch_count(&t.y); k++) {
            t.y.value[k] += t.x[i].value[k];
            t.dx[i].value[k] = t.dy.value[k];
        }
    run_trial(device, &t);
    drop_trial(&t);
}

static void test_concat(gg_device *device, int inputs, const int64_t *channels, int dims, gg_layout layout) {
    trial t = {.name = "concat"};
    t.desc = (gg_op_desc){.kind = GG_OP_CONCAT,
                          .batch = 2,
                          .inputs = inputs,
                          .output = {dims, {0, 4, 3}},
                          .training = true,
                          .input_grad = true};
    for (int i = 0; i < inputs; i++) {
        t.desc.input[i] = (gg_shape){dims, {channels[i], 4, 3}};
        t.desc.offered[i] = (gg_format){GG_FLOAT32, layout};
        t.desc.output.size[0] += channels[i];
    }
    prepare(&t);
    int64_t before = 0;
    for (int i = 0; i < inputs; i++) {
        EACH(&t.x[i]) {
            *at(&t.y, n, before + c, h, w) = *at(&t.x[i], n, c, h, w);
            *at(&t.dx[i], n, c, h, w) = *at(&t.dy, n, before + c, h, w);
        }
        before += channels[i];
    }
    run_trial(device, &t);
    drop_trial(&t);
}

static void test_reorders(gg_device *device) {
    for (int from = 0; from < GG_LAYOUT_BATCH_LAST; from++)
        for (int to = 0; to < GG_LAYOUT_BATCH_LAST; to++)
            for (int64_t c = 1; c <= 33; c += 8) {
                trial t = {.name = "reorder"};
                t.desc = (gg_op_desc){.kind = GG_OP_REORDER,
                                      .batch = 3,
                                      .inputs = 1,
                                      .input = {{3, {c, 5, 7}}},
                                      .output = {3, {c, 5, 7}},
                                      .offered = {{GG_FLOAT32, (gg_layout)from}},
                                      .wanted_output = {GG_FLOAT32, (gg_layout)to},
                                      .training = true,
                                      .input_grad = true};
                prepare(&t);
                memcpy(t.y.value, t.x[0].value, (size_t)batch_count(&t.y) * sizeof(double));
                memcpy(t.dx[0].value, t.dy.value, (size_t)batch_count(&t.y) * sizeof(double));
                run_trial(device, &t);
                drop_trial(&t);
            }
}

static void test_refusals(gg_device *device) {
    gg_op *op = NULL;
    gg_op_desc desc = {.kind = GG_OP_CONV2D,
                       .batch = 2,
                       .inputs = 1,
                       .input = {{3, {3, 8, 8}}},
                       .output = {3, {4, 8, 8}},
                       .conv = {{{3, 3}, {1, 1}, {1, 1}, {1, 1}, false, false}, 1}};
    desc.output.size[2] = 7;
    CHECK_FAILS(gg_backend_onednn.create[GG_OP_CONV2D](device, &desc, &op), GG_ERROR_SHAPE,
                "width of 8 gives 8, not 7");
    desc.output.size[2] = 8;
    desc.conv.groups = 2;
    CHECK_FAILS(gg_backend_onednn.create[GG_OP_CONV2D](device, &desc, &op), GG_ERROR_SHAPE, "2 groups");
    desc.conv.groups = 1;
    desc.offered[0].dtype = GG_INT32;
    CHECK_FAILS(gg_backend_onednn.create[GG_OP_CONV2D](device, &desc, &op), GG_ERROR_UNSUPPORTED, "not int32");
    desc.offered[0].dtype = GG_FLOAT32;
    desc.conv.window.stride[0] = 0;
    CHECK_FAILS(gg_backend_onednn.create[GG_OP_CONV2D](device, &desc, &op), GG_ERROR_ARGUMENT, "stride 0");
    desc.kind = GG_OP_REORDER;
    desc.output = desc.input[0];
    desc.wanted_output = (gg_format){GG_FLOAT32, GG_LAYOUT_BATCH_LAST};
    CHECK_FAILS(gg_backend_onednn.create[GG_OP_REORDER](device, &desc, &op), GG_ERROR_UNSUPPORTED, "batch_last");
    desc.kind = GG_OP_ADD;
    CHECK_FAILS(gg_backend_onednn.create[GG_OP_ADD](device, &desc, &op), GG_ERROR_ARGUMENT, "at least 2");
    CHECK(op == NULL);
    CHECK(gg_backend_onednn.create[GG_OP_DROPOUT] == NULL);
}

static void test_all(int threads, gg_isa isa) {
    gg_device *device = NULL;
    if (!CHECK_OK(gg_backend_onednn.open(&(gg_device_options){.threads = threads, .isa = isa}, &device))) return;
    test_convs(device);
    /* Between these levels the native table has linear layers over positions. */
    const bool over_positions = device->isa < GG_ISA_AVX2 || device->isa >= GG_ISA_AVX512;
    for (int64_t batch_size = 1; batch_size <= 64; batch_size = batch_size * 4 + 1)
        for (int i = 0; i < 2; i++) {
            test_linear(device, batch_size, 0, 50, 10, true, i == 1);
            test_linear(device, batch_size, 0, 37, 64, false, i == 1);
            if (over_positions) test_linear(device, batch_size, 3, 16, 5, true, i == 1);
            test_linear(device, batch_size, 0, 130, 1, true, i == 1);
        }
    test_linear(device, 64, 0, 800, 500, true, true);
    test_pools(device);
    static const gg_shape image = {3, {20, 5, 3}}, features = {1, {37}}, sequence = {2, {7, 5}};
    for (int kind = GG_OP_RELU; kind <= GG_OP_SIGMOID; kind++)
        for (int in_place = 0; in_place < 2; in_place++) {
            for (int layout = 0; layout < GG_LAYOUT_COUNT; layout++)
                test_activation(device, (gg_op_kind)kind, image, (gg_layout)layout, in_place);
            test_activation(device, (gg_op_kind)kind, features, GG_LAYOUT_PLAIN, in_place);
            test_activation(device, (gg_op_kind)kind, sequence, GG_LAYOUT_PLAIN, in_place);
        }
    for (int layout = 0; layout < GG_LAYOUT_COUNT; layout++) {
        test_add(device, 2, (gg_layout)layout, false);
        test_add(device, 2, (gg_layout)layout, true);
        test_add(device, 3, (gg_layout)layout, false);
        test_add(device, GG_MAX_INPUTS, (gg_layout)layout, false);
        test_concat(device, 3, (const int64_t[]){16, 32, 16}, 3, (gg_layout)layout);
        test_concat(device, 2, (const int64_t[]){5, 19}, 3, (gg_layout)layout);
    }
    int64_t ones[GG_MAX_INPUTS];
    for (int i = 0; i < GG_MAX_INPUTS; i++) ones[i] = 1 + i % 3;
    test_concat(device, GG_MAX_INPUTS, ones, 3, GG_LAYOUT_PLAIN);
    test_concat(device, 2, (const int64_t[]){7, 3}, 1, GG_LAYOUT_PLAIN);
    test_concat(device, 2, (const int64_t[]){7, 3}, 2, GG_LAYOUT_PLAIN);
    test_reorders(device);
    test_refusals(device);
    gg_backend_onednn.close(device);
}

/* ------------------------------------------------------------------------------------------- measuring */

static void bench_op(gg_device *device, const char *name, const gg_op_desc *desc, double flops) {
    gg_op *op = NULL;
    gg_op_desc both = *desc;
    if (!CHECK_OK(gg_backend_onednn.create[desc->kind](device, &both, &op))) return;
    const int64_t weights = desc->kind == GG_OP_LINEAR ? desc->input[0].size[0] * desc->output.size[0]
                                                       : desc->input[0].size[0] * desc->output.size[0] *
                                                             desc->conv.window.kernel[0] * desc->conv.window.kernel[1];
    const size_t in = gg_format_bytes(op->input[0], &desc->input[0], desc->batch),
                 out = gg_format_bytes(op->output, &desc->output, desc->batch), w = (size_t)weights * sizeof(float);
    const size_t sizes[] = {in,
                            out,
                            out,
                            in,
                            w,
                            w,
                            (size_t)desc->output.size[0] * 4,
                            (size_t)desc->output.size[0] * 4,
                            op->scratch_bytes,
                            op->saved_bytes,
                            op->prepared_bytes};
    buffer b[11];
    for (int i = 0; i < 11; i++) {
        b[i] = buffer_create(sizes[i]);
        memset(b[i].data, 0, sizes[i]);
    }
    gg_op_args args = {.input = {b[0].data},
                       .output = b[1].data,
                       .grad_output = b[2].data,
                       .parameter = (const float *[]){b[4].data, b[6].data},
                       .gradient = (float *[]){b[5].data, b[7].data},
                       .scratch = b[8].data,
                       .saved = b[9].data,
                       .prepared = b[10].data};
    gg_op_prepare(op, &args, GG_PASS_FORWARD);
    double best[3] = {1e9, 1e9, 1e9};
    for (int pass = 0; pass < 3; pass++) {
        const double start = gg_clock_now();
        if (pass == 2) args.grad_input[0] = b[3].data;
        for (int i = 0; i < 5 || gg_clock_now() - start < 0.4; i++) {
            const double from = gg_clock_now();
            if (pass == 0) gg_op_forward(op, &args);
            else gg_op_backward(op, &args);
            best[pass] = fmin(best[pass], gg_clock_now() - from);
        }
    }
    printf(
        "%-28s %s to %s: forward %.3f ms %.0f GFLOP/s, backward weights %.3f ms %.0f, both %.3f ms %.0f (data %.0f)\n",
        name, gg_layout_name(op->input[0].layout), gg_layout_name(op->output.layout), best[0] * 1e3,
        flops / best[0] * 1e-9, best[1] * 1e3, flops / best[1] * 1e-9, best[2] * 1e3, 2 * flops / best[2] * 1e-9,
        flops / (best[2] - best[1]) * 1e-9);
    for (int i = 0; i < 11; i++) buffer_free(&b[i]);
    gg_op_destroy(op);
}

static void bench(gg_isa isa) {
    static const int64_t convs[][9] = {/* batch, in, out, size, kernel, stride, padding */
                                       {64, 1, 20, 28, 5, 1, 0}, {64, 20, 50, 12, 5, 1, 0}, {64, 3, 32, 32, 5, 1, 2},
                                       {64, 6, 16, 14, 5, 1, 0}, {8, 64, 64, 56, 3, 1, 1},  {8, 128, 128, 56, 3, 2, 1}};
    static const int64_t linears[][3] = {{64, 800, 500},   {64, 500, 10},    {8, 800, 500},
                                         {16, 4096, 4096}, {32, 4096, 4096}, {64, 4096, 4096}};
    gg_device *device = NULL;
    char name[64];
    if (!CHECK_OK(gg_backend_onednn.open(&(gg_device_options){.threads = 1, .isa = isa}, &device))) return;
    for (size_t i = 0; i < sizeof convs / sizeof convs[0]; i++) {
        const int64_t *it = convs[i], out = conv_out(it[3], it[4], it[5], it[6], 1);
        gg_op_desc desc = {.kind = GG_OP_CONV2D,
                           .batch = it[0],
                           .inputs = 1,
                           .input = {{3, {it[1], it[3], it[3]}}},
                           .output = {3, {it[2], out, out}},
                           .bias = true,
                           .training = true,
                           .input_grad = true,
                           .conv = {{{it[4], it[4]}, {it[5], it[5]}, {it[6], it[6]}, {1, 1}, false, false}, 1}};
        snprintf(name, sizeof name, "conv %d->%d %dx%d @%d", (int)it[1], (int)it[2], (int)it[4], (int)it[4],
                 (int)it[3]);
        bench_op(device, name, &desc, 2.0 * (double)(it[0] * it[1] * it[2] * it[4] * it[4] * out * out));
    }
    for (size_t i = 0; i < sizeof linears / sizeof linears[0]; i++) {
        const int64_t *it = linears[i];
        gg_op_desc desc = {.kind = GG_OP_LINEAR,
                           .batch = it[0],
                           .inputs = 1,
                           .input = {{1, {it[1]}}},
                           .output = {1, {it[2]}},
                           .bias = true,
                           .training = true,
                           .input_grad = true};
        snprintf(name, sizeof name, "linear %d->%d x%d", (int)it[1], (int)it[2], (int)it[0]);
        bench_op(device, name, &desc, 2.0 * (double)(it[0] * it[1] * it[2]));
    }
    gg_backend_onednn.close(device);
}

int main(int argc, char **argv) {
    gg_isa isa = GG_ISA_SCALAR;
    CHECK_OK(gg_isa_select(NULL, &isa));
    CHECK(gg_onednn_version()[0] == '3');
    if (argc > 1 && strcmp(argv[1], "bench") == 0) {
        bench(isa);
        return CHECK_RESULT;
    }
    test_all(1, isa);
    test_all(2, isa);
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
