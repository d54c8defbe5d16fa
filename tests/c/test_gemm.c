/* Convolution, linear layers and matrix products of the native table: every instruction set of this CPU and the
 * scalar kernels, against sums in double.
 *
 * twins: amx */
#include <float.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cpu/cpu_backend.h"
#include "cpu/gemm/gemm_kernels.h"
#include "cpu/gemm/packed_products.h"
#include "cpu/gemm/paired_kernels.h"
#include "cpu/kernels.h"
#include "cpu/native.h"
#include "guarded.h"

/* Whether this process tests paired products alone: what else there is, the other one does. */
static bool only_paired;

/* The most multiply-adds of a case. An argument lowers it, for emulated CPUs. */
static int64_t most_work = INT64_MAX;

/* large: so much that the level amx, where it is a twin's plain loops, is left to the other process, too. */
static bool is_tested(gg_isa isa, bool large) {
    if (!gg_cpu_supports(isa)) return false;
    return !only_paired || (gg_paired_kernels_for(isa) != NULL && !(large && isa == GG_ISA_AMX));
}

static buffer buffer_random(size_t count) { return buffer_uniform(7, count, -1, 1); }

/* |actual - wanted| against the rounding that a sum of terms of this size may gather. */
static bool agree(const char *what, const char *place, const float *actual, const double *wanted, const double *size,
                  size_t n) {
    for (size_t i = 0; i < n; ++i) {
        const double bound = 8 * FLT_EPSILON * size[i] + FLT_MIN;
        if (!(fabs((double)actual[i] - wanted[i]) <= bound)) {
            fprintf(stderr, "%s, %s [%zu]: %.9g, wanted %.9g within %.2g\n", place, what, i, (double)actual[i],
                    wanted[i], bound);
            return false;
        }
    }
    return true;
}

/* --------------------------------------------------------------------------------------- reference in double */

/* Values and the sums of their terms' magnitudes. */
typedef struct reference {
    double *value, *size;
} reference;

static reference reference_create(size_t n) {
    reference r = {calloc(n, sizeof(double)), calloc(n, sizeof(double))};
    if (r.value == NULL || r.size == NULL) exit(2);
    return r;
}

static void reference_free(reference *r) {
    free(r->value);
    free(r->size);
}

static void reference_add(reference *r, size_t i, double a, double b) {
    r->value[i] += a * b;
    r->size[i] += fabs(a * b);
}

typedef struct layer_case {
    const char *name;
    gg_op_kind kind;
    int batch, in, out, height, width;
    int kernel[2], stride[2], padding[2], dilation[2], groups;
    bool bias, relu;
} layer_case;

/* Calls back for every product of the layer: output value, weight, input value; all without the lanes. */
typedef void (*product_fn)(void *context, size_t output, size_t weight, size_t input);

static void each_product(const gg_op_desc *d, product_fn call, void *context) {
    if (d->kind == GG_OP_LINEAR) {
        const size_t in = (size_t)gg_shape_count(&d->input[0]), out = (size_t)gg_shape_count(&d->output);
        for (size_t o = 0; o < out; ++o)
            for (size_t i = 0; i < in; ++i) call(context, o, o * in + i, i);
        return;
    }
    const gg_window *w = &d->conv.window;
    const int64_t *in = d->input[0].size, *out = d->output.size;
    const int64_t in_group = in[0] / d->conv.groups, out_group = out[0] / d->conv.groups;
    for (int64_t o = 0; o < out[0]; ++o)
        for (int64_t r = 0; r < out[1]; ++r)
            for (int64_t c = 0; c < out[2]; ++c)
                for (int64_t i = 0; i < in_group; ++i)
                    for (int64_t kr = 0; kr < w->kernel[0]; ++kr)
                        for (int64_t kc = 0; kc < w->kernel[1]; ++kc) {
                            const int64_t y = r * w->stride[0] - w->padding[0] + kr * w->dilation[0];
                            const int64_t x = c * w->stride[1] - w->padding[1] + kc * w->dilation[1];
                            if (y < 0 || y >= in[1] || x < 0 || x >= in[2]) continue;
                            const int64_t channel = o / out_group * in_group + i;
                            call(context, (size_t)((o * out[1] + r) * out[2] + c),
                                 (size_t)(((o * in_group + i) * w->kernel[0] + kr) * w->kernel[1] + kc),
                                 (size_t)((channel * in[1] + y) * in[2] + x));
                        }
}

typedef struct sums {
    size_t batch, lanes;
    const float *x, *w, *dy; /* dy after the activation's mask */
    reference y, dx, dw;
} sums;

static void add_forward(void *context, size_t output, size_t weight, size_t input) {
    sums *s = context;
    for (size_t n = 0; n < s->batch; ++n)
        reference_add(&s->y, output * s->lanes + n, (double)s->w[weight], (double)s->x[input * s->lanes + n]);
}

static void add_backward(void *context, size_t output, size_t weight, size_t input) {
    sums *s = context;
    for (size_t n = 0; n < s->batch; ++n) {
        const double dy = (double)s->dy[output * s->lanes + n];
        reference_add(&s->dx, input * s->lanes + n, (double)s->w[weight], dy);
        reference_add(&s->dw, weight, dy, (double)s->x[input * s->lanes + n]);
    }
}

/* ---------------------------------------------------------------------------------------------------- layers */

static void clear_lanes(float *p, size_t rows, size_t batch, size_t lanes) {
    for (size_t i = 0; i < rows; ++i)
        for (size_t n = batch; n < lanes; ++n) p[i * lanes + n] = 0;
}

static gg_op_desc describe(const layer_case *c) {
    gg_op_desc d = {.kind = c->kind,
                    .batch = c->batch,
                    .inputs = 1,
                    .bias = c->bias,
                    .activation = c->relu ? GG_ACTIVATION_RELU : GG_ACTIVATION_NONE,
                    .training = true,
                    .input_grad = true};
    d.offered[0] = (gg_format){GG_FLOAT32, GG_LAYOUT_BATCH_LAST};
    if (c->kind == GG_OP_LINEAR) {
        d.input[0] = (gg_shape){1, {c->in}};
        d.output = (gg_shape){1, {c->out}};
        return d;
    }
    d.input[0] = (gg_shape){3, {c->in, c->height, c->width}};
    d.output = (gg_shape){3, {c->out}};
    d.conv.groups = c->groups;
    for (int a = 0; a < 2; ++a) {
        d.conv.window.kernel[a] = c->kernel[a];
        d.conv.window.stride[a] = c->stride[a];
        d.conv.window.padding[a] = c->padding[a];
        d.conv.window.dilation[a] = c->dilation[a];
        d.output.size[1 + a] =
            (d.input[0].size[1 + a] + 2 * c->padding[a] - c->dilation[a] * (c->kernel[a] - 1) - 1) / c->stride[a] + 1;
    }
    return d;
}

static void run_layer(const layer_case *c, gg_isa isa, int threads, sums *s, const buffer *x, const buffer *w,
                      const buffer *b, const buffer *dy_given, const reference *bias_grad) {
    char place[160];
    snprintf(place, sizeof place, "%s batch %d, %s, %d threads", c->name, c->batch, gg_isa_name(isa), threads);
    gg_cpu_device device = {.head = {.isa = isa, .threads = threads}, .kernels = gg_cpu_kernels_for(isa)};
    const gg_op_desc d = describe(c);
    gg_op *op;
    if (!CHECK_OK(c->kind == GG_OP_LINEAR ? gg_native_linear_create(&device.head, &d, &op)
                                          : gg_native_conv2d_create(&device.head, &d, &op)))
        return;
    const size_t outputs = (size_t)gg_shape_count(&d.output), channels = (size_t)d.output.size[0];
    buffer y = buffer_floats(outputs * s->lanes), dx = buffer_create(x->bytes), dw = buffer_create(w->bytes);
    buffer db = buffer_floats(channels), dy = buffer_floats(outputs * s->lanes);
    buffer scratch = buffer_create(op->scratch_bytes);
    buffer prepared = buffer_create(op->prepared_bytes);
    memcpy(dy.data, dy_given->data, dy.bytes);
    float *gradient[] = {dw.data, c->bias ? db.data : NULL};
    gg_op_args args = {.input = {x->data},
                       .output = y.data,
                       .grad_output = dy.data,
                       .grad_input = {dx.data},
                       .parameter = (const float *[]){w->data, c->bias ? b->data : NULL},
                       .gradient = gradient,
                       .prepared = prepared.data,
                       .scratch = scratch.data};
    CHECK_INT(op->output.layout, GG_LAYOUT_BATCH_LAST);
    CHECK_OK(gg_op_prepare(op, &args, GG_PASS_FORWARD));
    CHECK_OK(gg_op_forward(op, &args));
    clear_lanes(y.data, outputs, s->batch, s->lanes);
    CHECK(agree("y", place, y.data, s->y.value, s->y.size, y.count));

    for (size_t i = 0; i < y.count && c->relu; ++i) /* the activation's mask must be the reference's own */
        y.floats[i] = s->y.value[i] > 0 ? 1 : 0;
    CHECK_OK(gg_op_backward(op, &args));
    CHECK(agree("dx", place, dx.data, s->dx.value, s->dx.size, dx.count));
    CHECK(agree("dw", place, dw.data, s->dw.value, s->dw.size, dw.count));
    if (c->bias) CHECK(agree("db", place, db.data, bias_grad->value, bias_grad->size, channels));

    /* A second run gives the same bits, also without the input's gradient. */
    buffer again = buffer_create(w->bytes);
    memcpy(dy.data, dy_given->data, dy.bytes);
    args.grad_input[0] = NULL;
    gradient[GG_PARAMETER_WEIGHT] = again.data;
    CHECK_OK(gg_op_backward(op, &args));
    CHECK(memcmp(again.data, dw.data, w->bytes) == 0);
    op->type->destroy(op);
    buffer *all[] = {&y, &dx, &dw, &db, &dy, &scratch, &prepared, &again};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) buffer_free(all[i]);
}

static void test_layer(const layer_case *c) {
    const gg_op_desc d = describe(c);
    const size_t inputs = (size_t)gg_shape_count(&d.input[0]), outputs = (size_t)gg_shape_count(&d.output);
    const size_t channels = (size_t)d.output.size[0], area = outputs / channels;
    const size_t weights = c->kind == GG_OP_LINEAR
                               ? inputs * outputs
                               : (size_t)(c->out * (c->in / c->groups) * c->kernel[0] * c->kernel[1]);
    const int64_t products = (int64_t)(c->kind == GG_OP_LINEAR ? weights : weights * area) * c->batch;
    if (products > most_work) return;
    sums s = {.batch = (size_t)c->batch, .lanes = (size_t)gg_lanes_padded(c->batch)};
    buffer x = buffer_random(inputs * s.lanes), w = buffer_random(weights), b = buffer_random(channels);
    buffer dy = buffer_random(outputs * s.lanes), masked = buffer_create(dy.bytes);
    clear_lanes(dy.data, outputs, s.batch, s.lanes);
    s.x = x.data;
    s.w = w.data;
    s.y = reference_create(dy.count);
    s.dx = reference_create(x.count);
    s.dw = reference_create(weights);
    reference db = reference_create(channels);
    each_product(&d, add_forward, &s);
    for (size_t o = 0; o < outputs; ++o) {
        for (size_t n = 0; n < s.batch; ++n) {
            const size_t i = o * s.lanes + n;
            if (c->bias) reference_add(&s.y, i, (double)b.floats[o / area], 1);
            if (c->relu && s.y.value[i] < 0) s.y.value[i] = 0;
        }
    }
    for (size_t i = 0; i < dy.count; ++i) masked.floats[i] = c->relu && !(s.y.value[i] > 0) ? 0 : dy.floats[i];
    s.dy = masked.data;
    each_product(&d, add_backward, &s);
    for (size_t i = 0; i < dy.count; ++i) reference_add(&db, i / s.lanes / area, (double)masked.floats[i], 1);

    for (int isa = 0; isa < GG_ISA_COUNT; ++isa) {
        if (!is_tested((gg_isa)isa, true)) continue;
        for (int threads = 1; threads <= 3; threads += 2) run_layer(c, (gg_isa)isa, threads, &s, &x, &w, &b, &dy, &db);
    }
    buffer *all[] = {&x, &w, &b, &dy, &masked};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) buffer_free(all[i]);
    reference *sets[] = {&s.y, &s.dx, &s.dw, &db};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; ++i) reference_free(sets[i]);
}

#define CONV(...)                                                                                                      \
    { .kind = GG_OP_CONV2D, .stride = {1, 1}, .dilation = {1, 1}, .groups = 1, .bias = true, __VA_ARGS__ }
#define LINEAR(...)                                                                                                    \
    { .kind = GG_OP_LINEAR, .groups = 1, .bias = true, __VA_ARGS__ }

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init" /* the macros' defaults */

static const layer_case layers[] = {
    CONV(.name = "first 5x5", .in = 1, .out = 20, .height = 9, .width = 8, .kernel = {5, 5}),
    CONV(.name = "second 5x5, relu", .in = 20, .out = 50, .height = 6, .width = 5, .kernel = {5, 5}, .relu = true),
    CONV(.name = "padded", .in = 3, .out = 5, .height = 7, .width = 9, .kernel = {3, 3}, .padding = {1, 1},
         .bias = false),
    CONV(.name = "strided", .in = 5, .out = 3, .height = 9, .width = 8, .kernel = {3, 3}, .stride = {2, 2},
         .padding = {1, 1}, .relu = true),
    CONV(.name = "stride over the kernel", .in = 3, .out = 20, .height = 10, .width = 11, .kernel = {2, 1},
         .stride = {3, 4}),
    CONV(.name = "uneven window", .in = 3, .out = 7, .height = 9, .width = 12, .kernel = {2, 5}, .stride = {1, 3},
         .padding = {0, 4}, .dilation = {3, 2}),
    CONV(.name = "dilated", .in = 5, .out = 5, .height = 11, .width = 10, .kernel = {3, 3}, .padding = {2, 3},
         .dilation = {2, 3}),
    CONV(.name = "1x1", .in = 20, .out = 33, .height = 5, .width = 3, .kernel = {1, 1}, .relu = true),
    CONV(.name = "kernel over image", .in = 3, .out = 5, .height = 2, .width = 3, .kernel = {5, 7}, .padding = {2, 3}),
    CONV(.name = "padding over kernel", .in = 1, .out = 3, .height = 2, .width = 1, .kernel = {2, 2},
         .padding = {3, 4}),
    CONV(.name = "padding, far stride", .in = 2, .out = 3, .height = 3, .width = 2, .kernel = {1, 1}, .stride = {5, 7},
         .padding = {1, 2}),
    CONV(.name = "groups", .in = 6, .out = 9, .height = 6, .width = 5, .kernel = {3, 3}, .padding = {1, 1},
         .groups = 3),
    CONV(.name = "depthwise", .in = 5, .out = 5, .height = 7, .width = 8, .kernel = {3, 3}, .stride = {2, 1},
         .padding = {1, 1}, .groups = 5, .relu = true),
    CONV(.name = "parts of channels", .in = 150, .out = 15, .height = 3, .width = 4, .kernel = {1, 1}),
    CONV(.name = "slabs of rows", .in = 2, .out = 6, .height = 60, .width = 14, .kernel = {3, 2}, .padding = {1, 0}),
    LINEAR(.name = "linear 1x1", .in = 1, .out = 1),
    LINEAR(.name = "linear 28x33, relu", .in = 28, .out = 33, .relu = true),
    LINEAR(.name = "linear 65x3", .in = 65, .out = 3, .bias = false),
    LINEAR(.name = "linear 300x1", .in = 300, .out = 1),
    LINEAR(.name = "linear 256x29", .in = 256, .out = 29, .relu = true),
    LINEAR(.name = "linear 1030x20", .in = 1030, .out = 20),
};

static void test_layers(void) {
    static const int batches[] = {1, 37, 64};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; ++i) {
        for (size_t n = 0; n < sizeof batches / sizeof *batches; ++n) {
            layer_case c = layers[i];
            c.batch = batches[n];
            test_layer(&c);
        }
    }
    /* Channels cut into parts, and strips of columns. */
    layer_case wide = CONV(.name = "wide", .batch = 100, .in = 16, .out = 15, .height = 2, .width = 120,
                           .kernel = {3, 3}, .padding = {1, 1});
    test_layer(&wide);
    layer_case deep = LINEAR(.name = "deep", .batch = 150, .in = 1100, .out = 16);
    test_layer(&deep);
    /* Large enough for split products in all passes, with blocks that are not whole. */
    layer_case split = LINEAR(.name = "split", .batch = 100, .in = 150, .out = 70, .relu = true);
    test_layer(&split);
    layer_case split_deep = LINEAR(.name = "split, deep", .batch = 70, .in = 1100, .out = 530);
    test_layer(&split_deep);
}

#pragma GCC diagnostic pop

static void test_refusals(void) {
    gg_cpu_device device = {.head = {.isa = GG_ISA_SCALAR, .threads = 1}, .kernels = gg_cpu_kernels_for(GG_ISA_SCALAR)};
    const layer_case c = {.kind = GG_OP_CONV2D,
                          .batch = 2,
                          .in = 4,
                          .out = 6,
                          .height = 5,
                          .width = 5,
                          .kernel = {3, 3},
                          .stride = {1, 1},
                          .dilation = {1, 1},
                          .groups = 2};
    gg_op *op;
    gg_op_desc d = describe(&c);
    d.offered[0].dtype = GG_BFLOAT16;
    CHECK_OK(gg_native_conv2d_create(&device.head, &d, &op)); /* bfloat16 is converted before it */
    CHECK_INT(op->input[0].dtype, GG_FLOAT32);
    gg_op_destroy(op);
    d = describe(&c);
    d.conv.groups = 3;
    CHECK_FAILS(gg_native_conv2d_create(&device.head, &d, &op), GG_ERROR_ARGUMENT, "groups is 3");
    d = describe(&c);
    d.output.size[2] = 4;
    CHECK_FAILS(gg_native_conv2d_create(&device.head, &d, &op), GG_ERROR_SHAPE, "output size is 4");
    d = describe(&c);
    d.conv.window.stride[1] = 0;
    CHECK_FAILS(gg_native_conv2d_create(&device.head, &d, &op), GG_ERROR_ARGUMENT, "stride 0");
}

/* -------------------------------------------------------------------------------------------------- products */

/* What products are tried: 1 and 2 transpose, with 4 memory behind B may be read. */
enum { TRANSPOSE_A = 1, TRANSPOSE_B = 2, READ_BEHIND = 4, RELU = 8, BIAS = 16 };

/* Close to the reference, and the same bits with any number of threads. */
static void test_product(int64_t m, int64_t n, int64_t k, int flags) {
    static const int threads[] = {1, 2, 5};
    if (m * n * k > most_work) return;
    const bool transpose_a = flags & TRANSPOSE_A, transpose_b = flags & TRANSPOSE_B;
    const int64_t lda = (transpose_a ? m : k) + 3, ldb = (transpose_b ? k : n) + 1, ldc = n + 5;
    buffer a = buffer_random((size_t)(lda * (transpose_a ? k : m)));
    buffer b = buffer_random((size_t)(ldb * (transpose_b ? n : k)));
    buffer start = buffer_random((size_t)(ldc * m));
    buffer bias = buffer_random((size_t)n);
    reference wanted = reference_create(start.count);
    for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < ldc; ++j) {
            const size_t at = (size_t)(i * ldc + j);
            if (j >= n) reference_add(&wanted, at, (double)start.floats[at], 1);
            if (j < n && (flags & BIAS)) reference_add(&wanted, at, (double)bias.floats[j], 1);
            for (int64_t l = 0; l < k && j < n; ++l)
                reference_add(&wanted, at, (double)a.floats[transpose_a ? l * lda + i : i * lda + l],
                              (double)b.floats[transpose_b ? j * ldb + l : l * ldb + j]);
            if (j < n && (flags & RELU) && wanted.value[at] < 0) wanted.value[at] = 0;
        }
    }
    for (int isa = 0; isa < GG_ISA_COUNT; ++isa) {
        if (!is_tested((gg_isa)isa, true)) continue;
        char place[120];
        snprintf(place, sizeof place, "product %d x %d x %d, %d, %s", (int)m, (int)n, (int)k, flags,
                 gg_isa_name((gg_isa)isa));
        buffer first = buffer_create(start.bytes);
        for (size_t t = 0; t < sizeof threads / sizeof *threads; ++t) {
            buffer c = buffer_create(start.bytes);
            memcpy(c.data, start.data, c.bytes);
            const gg_sgemm p = {.m = m,
                                .n = n,
                                .k = k,
                                .a = a.data,
                                .b = b.data,
                                .c = c.data,
                                .lda = lda,
                                .ldb = ldb,
                                .ldc = ldc,
                                .transpose_a = transpose_a,
                                .transpose_b = transpose_b,
                                .bias = flags & BIAS ? bias.data : NULL,
                                .relu = flags & RELU,
                                .read_behind = flags & READ_BEHIND};
            buffer scratch = buffer_create(gg_sgemm_scratch((gg_isa)isa, &p, threads[t]));
            gg_sgemm_run((gg_isa)isa, &p, threads[t], scratch.data);
            CHECK(agree("c", place, c.data, wanted.value, wanted.size, c.count));
            if (t == 0) memcpy(first.data, c.data, c.bytes);
            CHECK(memcmp(first.data, c.data, c.bytes) == 0);
            buffer_free(&c);
            buffer_free(&scratch);
        }
        buffer_free(&first);
    }
    reference_free(&wanted);
    buffer_free(&a);
    buffer_free(&b);
    buffer_free(&start);
    buffer_free(&bias);
}

static void test_products(void) {
    static const int64_t sizes[][3] = {{1, 1, 1},       {1, 40, 7},     {3, 1, 5},      {14, 32, 16},   {15, 33, 17},
                                       {29, 31, 300},   {50, 500, 64},  {7, 1000, 530}, {130, 16, 256}, {5, 6, 0},
                                       {33, 45, 1100},  {200, 65, 90},  {40, 700, 256}, {1, 300, 256},  {70, 48, 700},
                                       {20, 200, 1400}, {15, 40, 1021}, {40, 200, 300}, {48, 300, 530}};
    static const int flags[] = {0,
                                TRANSPOSE_A,
                                TRANSPOSE_B,
                                TRANSPOSE_A | TRANSPOSE_B | BIAS,
                                TRANSPOSE_A | READ_BEHIND,
                                TRANSPOSE_A | READ_BEHIND | RELU,
                                TRANSPOSE_A | READ_BEHIND | RELU | BIAS,
                                TRANSPOSE_B | RELU | BIAS};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i)
        for (size_t k = 0; k < sizeof flags / sizeof *flags; ++k)
            test_product(sizes[i][0], sizes[i][1], sizes[i][2], flags[k]);
}

static void test_transpose(void) {
    for (int isa = 0; isa < GG_ISA_COUNT; ++isa) {
        if (!gg_cpu_supports((gg_isa)isa)) continue;
        const gg_gemm_kernels *kernels = gg_cpu_kernels_for((gg_isa)isa)->gemm;
        if (isa == GG_ISA_AMX) CHECK(kernels->isa < GG_ISA_AMX);
        else CHECK_INT(kernels->isa, isa);
        const int64_t rows = 37, cols = 21, in_row = 23, padded = 48, out_row = 50;
        buffer in = buffer_random((size_t)(rows * in_row)), out = buffer_floats((size_t)(cols * out_row));
        kernels->transpose(rows, cols, in.data, in_row, padded, out.data, out_row);
        bool good = true;
        for (int64_t j = 0; j < cols; ++j)
            for (int64_t i = 0; i < padded; ++i)
                good = good && out.floats[j * out_row + i] == (i < rows ? in.floats[i * in_row + j] : 0);
        CHECK(good);
        buffer_free(&in);
        buffer_free(&out);
    }
}

/* The gradient of a linear layer's weight, as its backward pass gives it: from values turned to BATCH_LAST. */
static buffer whole_gradient(gg_device *device, int64_t batch, int64_t in, int64_t out, const buffer *x,
                             const buffer *dy) {
    const gg_op_desc desc = {.kind = GG_OP_LINEAR,
                             .batch = batch,
                             .inputs = 1,
                             .input = {{1, {in}}},
                             .output = {1, {out}},
                             .offered = {{GG_FLOAT32, GG_LAYOUT_BATCH_LAST}},
                             .training = true};
    const size_t lanes = (size_t)gg_lanes_padded(batch);
    gg_op *op = NULL;
    buffer dw = buffer_floats((size_t)(in * out));
    if (!CHECK_OK(gg_native_linear_create(device, &desc, &op))) return dw;
    buffer x_lanes = buffer_floats(lanes * (size_t)in), dy_lanes = buffer_floats(lanes * (size_t)out);
    buffer scratch = buffer_create(op->scratch_bytes);
    device->table->transpose(device, batch, in, true, x->data, x_lanes.data);
    device->table->transpose(device, batch, out, true, dy->data, dy_lanes.data);
    const gg_op_args args = {.input = {x_lanes.data},
                             .grad_output = dy_lanes.data,
                             .gradient = (float *[]){dw.data},
                             .scratch = scratch.data};
    CHECK_OK(gg_op_backward(op, &args));
    gg_op_destroy(op);
    buffer_free(&x_lanes);
    buffer_free(&dy_lanes);
    buffer_free(&scratch);
    return dw;
}

/* Elements [first, first + count) from the errors of their rows alone have the bits of the whole. */
static void check_run(gg_device *device, int64_t batch, int64_t in, int64_t out, const buffer *x, const buffer *dy,
                      const buffer *whole, int64_t first, int64_t count) {
    const int64_t row = first / in, rows = (first + count - 1) / in + 1 - row;
    buffer error = buffer_floats((size_t)(batch * rows)), run = buffer_floats((size_t)count);
    const gg_vectors errors = {.data = dy->data, .layout = GG_LAYOUT_PLAIN, .batch = batch, .features = out};
    device->table->columns(device, &errors, row, rows, error.data);
    const gg_weight_gradient_args args = {.batch = batch,
                                          .in = in,
                                          .error = error.data,
                                          .input = x->data,
                                          .error_row = rows,
                                          .first = first,
                                          .count = count,
                                          .out = run.data};
    device->table->weight_gradient(device, &args);
    CHECK(memcmp(run.data, whole->floats + first, (size_t)count * sizeof(float)) == 0);
    buffer_free(&error);
    buffer_free(&run);
}

/* Rows that are computed from what is kept have the bits of the whole, whatever the layout that it came in. */
static void check_rows(gg_device *device, int64_t batch, int64_t in, int64_t out, const buffer *x, const buffer *dy,
                       const buffer *whole, bool lanes) {
    gg_gradient_factors f = {.batch = batch, .in = in, .out = out};
    if (!device->table->factors(device, &f)) return;
    const size_t padded = lanes ? (size_t)gg_lanes_padded(batch) : (size_t)batch;
    buffer input = buffer_floats(padded * (size_t)in), error = buffer_floats(padded * (size_t)out);
    buffer inputs = buffer_create(f.input_bytes), errors = buffer_create(f.error_bytes);
    gg_vectors vectors = {.layout = lanes ? GG_LAYOUT_BATCH_LAST : GG_LAYOUT_PLAIN, .batch = batch};
    if (lanes) device->table->transpose(device, batch, in, true, x->data, input.data);
    else memcpy(input.data, x->data, padded * (size_t)in * sizeof(float));
    if (lanes) device->table->transpose(device, batch, out, true, dy->data, error.data);
    else memcpy(error.data, dy->data, padded * (size_t)out * sizeof(float));
    vectors.data = input.data;
    vectors.features = in;
    device->table->keep_input(device, &f, &vectors, inputs.data);
    vectors.data = error.data;
    vectors.features = out;
    device->table->keep_error(device, &f, &vectors, errors.data);
    for (int64_t first = 0; first < out; first += f.rows) {
        const int64_t rows = out - first < f.rows ? out - first : f.rows;
        buffer run = buffer_floats((size_t)(rows * in));
        const int used = (int)(first / f.rows % (GG_MAX_USED_NEXT + 1));
        gg_gradient_rows args = {.first = first, .count = rows, .out = run.data, .used = used};
        for (int i = 0; i < used; ++i) args.used_next[i] = whole->floats + first * in;
        device->table->gradient_rows(device, &f, inputs.data, errors.data, &args);
        CHECK(memcmp(run.data, whole->floats + first * in, (size_t)(rows * in) * sizeof(float)) == 0);
        buffer_free(&run);
    }
    buffer_free(&input);
    buffer_free(&error);
    buffer_free(&inputs);
    buffer_free(&errors);
}

/* Whether a weight's gradient is a split or a paired product. */
static bool is_packed(gg_isa isa, int64_t batch, int64_t in) { return gg_packed_gradient_for(isa, batch, in) != NULL; }

/* Layers whose rows are computed: few samples; rows so long that four of them are a block; samples that paired products
 * sum in two parts. */
static void test_rows_of_gradients(void) {
    enum { IN_PARTS = 160 };
    static const int64_t sizes[][3] = {{1, 50, 33},       {5, 50, 300},   {16, 700, 150},
                                       {17, 90, 129},     {64, 300, 600}, {90, 700, 650},
                                       {256, 1060, 1050}, {5, 20011, 39}, {IN_PARTS, 700, 800}};
    for (int isa = 0; isa < GG_ISA_COUNT; ++isa) {
        if (!is_tested((gg_isa)isa, true)) continue;
        gg_device *device = NULL, *threads = NULL;
        CHECK_OK(gg_backend_native.open(&(gg_device_options){.threads = 1, .isa = (gg_isa)isa}, &device));
        CHECK_OK(gg_backend_native.open(&(gg_device_options){.threads = 3, .isa = (gg_isa)isa}, &threads));
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
            const int64_t batch = sizes[i][0], in = sizes[i][1], out = sizes[i][2];
            gg_gradient_factors f = {.batch = batch, .in = in, .out = out};
            if (batch * in * out > most_work) continue;
            if (batch == IN_PARTS && gg_packed_gradient_for((gg_isa)isa, batch, in) != &gg_paired_products) continue;
            buffer x = buffer_random((size_t)(batch * in)), dy = buffer_random((size_t)(batch * out));
            buffer whole = whole_gradient(device, batch, in, out, &x, &dy);
            /* What split and paired products read is longer, and would not be less than half of the gradient. */
            const bool worth = batch < 256 || !is_packed((gg_isa)isa, batch, in);
            CHECK(device->table->factors(device, &f) == worth && threads->table->factors(threads, &f) == worth);
            for (int lanes = 0; lanes < 2; ++lanes) {
                check_rows(device, batch, in, out, &x, &dy, &whole, lanes);
                check_rows(threads, batch, in, out, &x, &dy, &whole, lanes);
            }
            buffer_free(&x);
            buffer_free(&dy);
            buffer_free(&whole);
        }
        CHECK(!device->table->factors(device, &(gg_gradient_factors){.batch = 64, .in = 64, .out = 64}));
        CHECK(device->table->factors(device, &(gg_gradient_factors){.batch = 257, .in = 4096, .out = 4096}) ==
              is_packed((gg_isa)isa, 257, 4096));
        gg_backend_native.close(device);
        gg_backend_native.close(threads);
    }
}

static void test_weight_gradient(void) {
    /* batch, in, out: sums in several parts, whose number depends on `in`, from 257 samples on. */
    static const int64_t sizes[][3] = {{1, 1, 1},     {3, 7, 5},      {64, 50, 33},   {5, 33, 300},
                                       {300, 600, 9}, {1500, 20, 3},  {2000, 90, 4},  {257, 2000, 3},
                                       {64, 16, 40},  {100, 150, 70}, {600, 300, 40}, {50, 150, 70}};
    for (int isa = 0; isa < GG_ISA_COUNT; ++isa) {
        if (!is_tested((gg_isa)isa, false)) continue;
        for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; ++i) {
            const int64_t batch = sizes[i / 2][0], in = sizes[i / 2][1], out = sizes[i / 2][2], all = in * out;
            if (batch * all > most_work) continue;
            gg_device *device = NULL;
            if (!CHECK_OK(gg_backend_native.open(&(gg_device_options){.threads = i % 2 ? 3 : 1, .isa = (gg_isa)isa},
                                                 &device)))
                continue;
            buffer x = buffer_random((size_t)(batch * in)), dy = buffer_random((size_t)(batch * out));
            buffer whole = whole_gradient(device, batch, in, out, &x, &dy);
            check_run(device, batch, in, out, &x, &dy, &whole, 0, all);
            for (int64_t part = 0; part < 7; ++part) {
                const int64_t begin = all * part / 7, end = all * (part + 1) / 7;
                if (begin < end) check_run(device, batch, in, out, &x, &dy, &whole, begin, end - begin);
            }
            check_run(device, batch, in, out, &x, &dy, &whole, all - 1, 1);
            buffer_free(&x);
            buffer_free(&dy);
            buffer_free(&whole);
            gg_backend_native.close(device);
        }
    }
}

static int test_all(void) {
    test_weight_gradient();
    test_rows_of_gradients();
    test_layers();
    test_refusals();
    test_products();
    test_transpose();
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}

/* Whether some level of this CPU has paired products. */
static bool has_paired(void) {
    bool has = false;
    for (int isa = 0; isa < GG_ISA_COUNT; ++isa)
        has = has || (gg_cpu_supports((gg_isa)isa) && gg_paired_kernels_for((gg_isa)isa) != NULL);
    return has;
}

/* test_gemm [MAX_WORK]
 *
 * Without paired products and with them, on any CPU: which it is, a process asks once. */
int main(int argc, char **argv) {
    int failed = 0;
    if (argc > 1) most_work = strtoll(argv[1], NULL, 10);
    for (int paired = 0; paired < 2; ++paired) {
        fflush(NULL);
        const pid_t child = fork();
        if (child == 0) {
            setenv("GOSSIPGRAD_PAIRED", paired ? "1" : "0", 1);
            only_paired = paired > 0;
            exit(only_paired && !has_paired() ? 0 : test_all());
        }
        int state = 1;
        if (child < 0 || waitpid(child, &state, 0) < 0 || state != 0) failed = 1;
    }
    return failed;
}
