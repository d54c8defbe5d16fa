/* Backends for tests of the plan: every operation in plain C and double precision, in any layout. They use the whole
 * freedom of the contract: they fill output gradients and scratch with NaN, and destroy arrays that backward does not
 * read.
 *
 *   fake_plain     everything, PLAIN; reorders between PLAIN and BATCH_LAST
 *   fake_lanes     everything but reorders, BATCH_LAST
 *   fake_channels  convolution in CHANNELS16, pooling in NHWC, reorders between those and PLAIN only; no fusion */
#ifndef FAKE_BACKEND_H
#define FAKE_BACKEND_H

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/random.h"
#include "check.h"
#include "ops/backend.h"

/* Kernels on plain arrays ------------------------------------------------------------------------------------ */

static float fake_keep(const gg_op_desc *desc, uint32_t rank, uint64_t step, int64_t index) {
    uint32_t word[4];
    gg_random_key key = {.seed = 99, .purpose = GG_RANDOM_TEST, .rank = rank, .step = step};
    gg_random_block(&key, (uint32_t)index, word);
    return (double)word[0] / 4294967296.0 < (double)desc->probability ? 0 : 1 / (1 - desc->probability);
}

/* Calls for every (output element, input element, weight element) of a window; weight -1 for pooling. */
typedef struct fake_tap {
    int64_t out, in, weight, window; /* window: elements that the average divides by */
} fake_tap;

typedef struct fake_taps {
    fake_tap *tap;
    size_t count, room;
} fake_taps;

static void fake_push(fake_taps *taps, fake_tap tap) {
    if (taps->count == taps->room) {
        taps->room = taps->room ? 2 * taps->room : 1024;
        taps->tap = realloc(taps->tap, taps->room * sizeof(fake_tap));
    }
    taps->tap[taps->count++] = tap;
}

static fake_taps fake_window_taps(const gg_op_desc *desc) {
    fake_taps taps = {0};
    bool conv = desc->kind == GG_OP_CONV2D;
    const gg_window *win = conv ? &desc->conv.window : &desc->pool;
    const int64_t *in = desc->input[0].size, *out = desc->output.size;
    int64_t groups = conv ? desc->conv.groups : out[0], per = in[0] / groups, out_per = out[0] / groups;
    for (int64_t o = 0; o < out[0]; o++)
        for (int64_t y = 0; y < out[1]; y++)
            for (int64_t x = 0; x < out[2]; x++) {
                int64_t top = y * win->stride[0] - win->padding[0], left = x * win->stride[1] - win->padding[1];
                int64_t bottom = top + win->kernel[0], right = left + win->kernel[1];
                if (bottom > in[1] + win->padding[0]) bottom = in[1] + win->padding[0];
                if (right > in[2] + win->padding[1]) right = in[2] + win->padding[1];
                int64_t inside = 0, whole = (bottom - top) * (right - left);
                size_t begin = taps.count;
                for (int64_t c = 0; c < per; c++)
                    for (int64_t i = 0; i < win->kernel[0]; i++)
                        for (int64_t j = 0; j < win->kernel[1]; j++) {
                            int64_t h = top + i * win->dilation[0], w = left + j * win->dilation[1];
                            if (h < 0 || w < 0 || h >= in[1] || w >= in[2]) continue;
                            inside++;
                            fake_push(&taps,
                                      (fake_tap){.out = (o * out[1] + y) * out[2] + x,
                                                 .in = ((o / out_per * per + c) * in[1] + h) * in[2] + w,
                                                 .weight = ((o * per + c) * win->kernel[0] + i) * win->kernel[1] + j});
                        }
                for (size_t t = begin; t < taps.count; t++)
                    taps.tap[t].window = win->count_include_pad ? whole : inside;
            }
    return taps;
}

static fake_taps fake_linear_taps(const gg_op_desc *desc) {
    fake_taps taps = {0};
    int64_t in = desc->input[0].size[0], out = desc->output.size[0];
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) fake_push(&taps, (fake_tap){.out = o, .in = i, .weight = o * in + i});
    return taps;
}

static void fake_forward_sample(const gg_op_desc *desc, const fake_taps *taps, const double *const *in,
                                const float *weight, const float *bias, double *out) {
    int64_t n = gg_shape_count(&desc->output), first = desc->output.size[0];
    switch (desc->kind) {
    case GG_OP_CONV2D:
    case GG_OP_LINEAR:
        for (int64_t i = 0; i < n; i++) out[i] = bias ? (double)bias[i / (n / first)] : 0;
        for (size_t t = 0; t < taps->count; t++)
            out[taps->tap[t].out] += (double)weight[taps->tap[t].weight] * in[0][taps->tap[t].in];
        break;
    case GG_OP_MAX_POOL2D:
        for (int64_t i = 0; i < n; i++) out[i] = -INFINITY;
        for (size_t t = 0; t < taps->count; t++)
            if (in[0][taps->tap[t].in] > out[taps->tap[t].out]) out[taps->tap[t].out] = in[0][taps->tap[t].in];
        break;
    case GG_OP_AVG_POOL2D:
        for (int64_t i = 0; i < n; i++) out[i] = 0;
        for (size_t t = 0; t < taps->count; t++)
            out[taps->tap[t].out] += in[0][taps->tap[t].in] / (double)taps->tap[t].window;
        break;
    case GG_OP_RELU:
        for (int64_t i = 0; i < n; i++) out[i] = in[0][i] > 0 ? in[0][i] : 0;
        break;
    case GG_OP_TANH:
        for (int64_t i = 0; i < n; i++) out[i] = tanh(in[0][i]);
        break;
    case GG_OP_SIGMOID:
        for (int64_t i = 0; i < n; i++) out[i] = 1 / (1 + exp(-in[0][i]));
        break;
    case GG_OP_ADD:
        for (int64_t i = 0; i < n; i++) {
            out[i] = 0;
            for (int k = 0; k < desc->inputs; k++) out[i] += in[k][i];
        }
        break;
    case GG_OP_CONCAT:
        for (int64_t k = 0, at = 0; k < desc->inputs; k++) {
            int64_t count = gg_shape_count(&desc->input[k]);
            for (int64_t i = 0; i < count; i++) out[at++] = in[k][i];
        }
        break;
    default: /* DROPOUT, REORDER */
        for (int64_t i = 0; i < n; i++) out[i] = in[0][i];
        break;
    }
    for (int64_t i = 0; i < n; i++)
        if (desc->activation == GG_ACTIVATION_RELU && out[i] < 0) out[i] = 0;
}

/* Adds to grad_in (entries may be NULL), grad_weight and grad_bias; changes grad_out. `out` is the forward's output. */
static void fake_backward_sample(const gg_op_desc *desc, const fake_taps *taps, const double *const *in,
                                 const double *out, double *grad_out, const float *weight, double *const *grad_in,
                                 double *grad_weight, double *grad_bias) {
    int64_t n = gg_shape_count(&desc->output), first = desc->output.size[0];
    double *to = grad_in[0];
    for (int64_t i = 0; i < n; i++)
        if (desc->activation == GG_ACTIVATION_RELU && out[i] <= 0) grad_out[i] = 0;
    switch (desc->kind) {
    case GG_OP_CONV2D:
    case GG_OP_LINEAR:
        for (int64_t i = 0; i < n; i++)
            if (grad_bias) grad_bias[i / (n / first)] += grad_out[i];
        for (size_t t = 0; t < taps->count; t++) {
            const fake_tap *tap = &taps->tap[t];
            grad_weight[tap->weight] += grad_out[tap->out] * in[0][tap->in];
            if (to) to[tap->in] += grad_out[tap->out] * (double)weight[tap->weight];
        }
        break;
    case GG_OP_MAX_POOL2D:
        for (size_t t = 0; to && t < taps->count;) {
            const fake_tap *best = &taps->tap[t];
            int64_t o = best->out;
            for (; t < taps->count && taps->tap[t].out == o; t++)
                if (in[0][taps->tap[t].in] > in[0][best->in]) best = &taps->tap[t];
            to[best->in] += grad_out[o];
        }
        break;
    case GG_OP_AVG_POOL2D:
        for (size_t t = 0; to && t < taps->count; t++)
            to[taps->tap[t].in] += grad_out[taps->tap[t].out] / (double)taps->tap[t].window;
        break;
    case GG_OP_RELU:
        for (int64_t i = 0; to && i < n; i++) to[i] += out[i] > 0 ? grad_out[i] : 0;
        break;
    case GG_OP_TANH:
        for (int64_t i = 0; to && i < n; i++) to[i] += grad_out[i] * (1 - out[i] * out[i]);
        break;
    case GG_OP_SIGMOID:
        for (int64_t i = 0; to && i < n; i++) to[i] += grad_out[i] * out[i] * (1 - out[i]);
        break;
    case GG_OP_ADD:
        for (int k = 0; k < desc->inputs; k++)
            for (int64_t i = 0; grad_in[k] && i < n; i++) grad_in[k][i] += grad_out[i];
        break;
    case GG_OP_CONCAT:
        for (int k = 0; k < desc->inputs; k++) {
            int64_t count = gg_shape_count(&desc->input[k]);
            for (int64_t i = 0; grad_in[k] && i < count; i++) grad_in[k][i] += grad_out[i];
            grad_out += count;
        }
        break;
    default: /* DROPOUT, REORDER */
        for (int64_t i = 0; to && i < n; i++) to[i] += grad_out[i];
        break;
    }
}

static fake_taps fake_taps_of(const gg_op_desc *desc) {
    if (desc->kind == GG_OP_LINEAR) return fake_linear_taps(desc);
    if (desc->kind == GG_OP_CONV2D || desc->kind == GG_OP_MAX_POOL2D || desc->kind == GG_OP_AVG_POOL2D)
        return fake_window_taps(desc);
    return (fake_taps){0};
}

/* Losses in double, over plain predictions (batch, features). */
static void fake_loss_kernel(gg_loss_kind kind, int64_t batch, int64_t features, const double *p, const void *targets,
                             double *grad, double *sum, int64_t *correct) {
    const float *real = targets;
    *sum = 0;
    *correct = 0;
    for (int64_t n = 0; n < batch; n++, p += features, grad += features) {
        if (kind == GG_LOSS_CROSS_ENTROPY) {
            int32_t right = ((const int32_t *)targets)[n];
            double total = 0, top = p[0];
            int64_t best = 0;
            for (int64_t i = 1; i < features; i++)
                if (p[i] > top) top = p[best = i];
            for (int64_t i = 0; i < features; i++) total += exp(p[i] - top);
            *sum += log(total) + top - p[right];
            *correct += best == right;
            for (int64_t i = 0; i < features; i++) grad[i] = (exp(p[i] - top) / total - (i == right)) / (double)batch;
            continue;
        }
        for (int64_t i = 0; i < features; i++) {
            double t = (double)real[n * features + i], share = (double)features;
            if (kind == GG_LOSS_MEAN_SQUARED_ERROR) {
                *sum += (p[i] - t) * (p[i] - t) / share;
                grad[i] = 2 * (p[i] - t) / share / (double)batch;
            } else {
                *sum += (log1p(exp(-fabs(p[i]))) + fmax(p[i], 0) - p[i] * t) / share;
                grad[i] = (1 / (1 + exp(-p[i])) - t) / share / (double)batch;
            }
        }
    }
}

/* Layouts ---------------------------------------------------------------------------------------------------- */

static int64_t fake_index(gg_layout layout, const gg_shape *shape, int64_t batch, int64_t n, int64_t i) {
    int64_t count = gg_shape_count(shape);
    if (layout == GG_LAYOUT_PLAIN) return n * count + i;
    if (layout == GG_LAYOUT_BATCH_LAST) return i * gg_lanes_padded(batch) + n;
    int64_t area = shape->size[1] * shape->size[2], c = i / area, at = i % area;
    if (layout == GG_LAYOUT_NHWC) return (n * area + at) * shape->size[0] + c;
    return ((n * ((shape->size[0] + 15) / 16) + c / 16) * area + at) * 16 + c % 16;
}

static double *fake_load(gg_layout layout, const gg_shape *shape, int64_t batch, const void *from) {
    int64_t count = gg_shape_count(shape);
    double *out = calloc((size_t)(batch * count), sizeof(double));
    for (int64_t n = 0; from && n < batch; n++)
        for (int64_t i = 0; i < count; i++)
            out[n * count + i] = (double)((const float *)from)[fake_index(layout, shape, batch, n, i)];
    return out;
}

static void fake_store(gg_layout layout, const gg_shape *shape, int64_t batch, const double *from, void *to) {
    int64_t count = gg_shape_count(shape);
    memset(to, 0, gg_format_bytes((gg_format){GG_FLOAT32, layout}, shape, batch));
    for (int64_t n = 0; n < batch; n++)
        for (int64_t i = 0; i < count; i++)
            ((float *)to)[fake_index(layout, shape, batch, n, i)] = (float)from[n * count + i];
}

static void fake_spoil(void *at, size_t bytes) {
    for (size_t i = 0; i < bytes / sizeof(float); i++) ((float *)at)[i] = NAN;
}

/* Operations --------------------------------------------------------------------------------------------------- */

typedef struct fake_op {
    gg_op head;
    fake_taps taps;
    bool compiled;
} fake_op;

static void fake_compile(gg_op *op) { ((fake_op *)op)->compiled = true; }

/* Weights are read where they were prepared: a convolution's not at all after that. */
static int fake_prepares;
static bool fake_prepared_once; /* of operations that are made from here on */

static gg_status fake_prepare(gg_op *op, const gg_op_args *args, gg_pass pass) {
    CHECK(pass == GG_PASS_FORWARD || pass == GG_PASS_DATA);
    fake_prepares++;
    memcpy(args->prepared, args->parameter[GG_PARAMETER_WEIGHT], op->prepared_bytes);
    return GG_OK;
}

static const float *fake_weight(const gg_op *op, const gg_op_args *args) {
    return op->prepared_bytes > 0 ? args->prepared : args->parameter[GG_PARAMETER_WEIGHT];
}

static bool fake_has_weight(const gg_op_desc *desc) { return desc->kind == GG_OP_CONV2D || desc->kind == GG_OP_LINEAR; }

static gg_status fake_forward(gg_op *op, const gg_op_args *args) {
    const gg_op_desc *desc = &op->desc;
    CHECK(((fake_op *)op)->compiled);
    const float *weight = fake_has_weight(desc) ? fake_weight(op, args) : NULL;
    const float *bias = weight && desc->bias ? args->parameter[GG_PARAMETER_BIAS] : NULL;
    double *in[GG_MAX_INPUTS], *out = fake_load(GG_LAYOUT_PLAIN, &desc->output, desc->batch, NULL);
    int64_t count = gg_shape_count(&desc->output);
    for (int k = 0; k < desc->inputs; k++) {
        CHECK(args->input[k] != args->output || (k == 0 && op->in_place));
        in[k] = fake_load(op->input[k].layout, &desc->input[k], desc->batch, args->input[k]);
    }
    if (op->scratch_bytes) fake_spoil(args->scratch, op->scratch_bytes);
    for (int64_t n = 0; n < desc->batch; n++) {
        const double *sample[GG_MAX_INPUTS];
        for (int k = 0; k < desc->inputs; k++) sample[k] = in[k] + n * gg_shape_count(&desc->input[k]);
        fake_forward_sample(desc, &((fake_op *)op)->taps, sample, weight, bias, out + n * count);
    }
    for (int64_t i = 0; desc->kind == GG_OP_DROPOUT && i < desc->batch * count; i++) {
        float keep = desc->training && !args->evaluate ? fake_keep(desc, args->rank, *args->step, i) : 1;
        ((float *)args->saved)[i] = keep;
        out[i] *= (double)keep;
    }
    fake_store(op->output.layout, &desc->output, desc->batch, out, args->output);
    for (int k = 0; k < desc->inputs; k++) free(in[k]);
    free(out);
    return GG_OK;
}

static gg_status fake_backward(gg_op *op, const gg_op_args *args) {
    const gg_op_desc *desc = &op->desc;
    const float *weight = fake_has_weight(desc) ? fake_weight(op, args) : NULL;
    double *in[GG_MAX_INPUTS], *to[GG_MAX_INPUTS], *grad_weight = NULL, *grad_bias = NULL;
    double *out = fake_load(op->output.layout, &desc->output, desc->batch, args->output);
    double *grad_out = fake_load(op->output.layout, &desc->output, desc->batch, args->grad_output);
    int64_t count = gg_shape_count(&desc->output), first = desc->output.size[0], weights = 0;
    bool wanted = false;
    CHECK(desc->training);
    CHECK((args->output != NULL) == op->backward_needs_output);
    for (int64_t i = 0; desc->kind == GG_OP_DROPOUT && i < desc->batch * count; i++)
        grad_out[i] *= (double)((float *)args->saved)[i];
    for (int k = 0; k < desc->inputs; k++) {
        CHECK((args->input[k] != NULL) == ((op->backward_needs_input >> k & 1u) != 0));
        in[k] = fake_load(op->input[k].layout, &desc->input[k], desc->batch, args->input[k]);
        to[k] = args->grad_input[k] ? fake_load(GG_LAYOUT_PLAIN, &desc->input[k], desc->batch, NULL) : NULL;
        if (to[k]) wanted = true;
        CHECK(!args->grad_input[k] || args->grad_input[k] != args->grad_output || (k == 0 && op->in_place));
    }
    CHECK(wanted == desc->input_grad);
    if (weight != NULL) {
        for (size_t t = 0; t < ((fake_op *)op)->taps.count; t++)
            if (((fake_op *)op)->taps.tap[t].weight >= weights) weights = ((fake_op *)op)->taps.tap[t].weight + 1;
        if (desc->kind == GG_OP_CONV2D)
            weights = first * desc->input[0].size[0] / desc->conv.groups * desc->conv.window.kernel[0] *
                      desc->conv.window.kernel[1];
        grad_weight = calloc((size_t)weights, sizeof(double));
        grad_bias = desc->bias ? calloc((size_t)first, sizeof(double)) : NULL;
    }
    for (int64_t n = 0; n < desc->batch; n++) {
        const double *sample[GG_MAX_INPUTS];
        double *grad[GG_MAX_INPUTS];
        for (int k = 0; k < desc->inputs; k++) {
            sample[k] = in[k] + n * gg_shape_count(&desc->input[k]);
            grad[k] = to[k] ? to[k] + n * gg_shape_count(&desc->input[k]) : NULL;
        }
        fake_backward_sample(desc, &((fake_op *)op)->taps, sample, out + n * count, grad_out + n * count, weight, grad,
                             grad_weight, grad_bias);
    }
    fake_spoil(args->grad_output, gg_format_bytes(op->output, &desc->output, desc->batch));
    if (op->scratch_bytes) fake_spoil(args->scratch, op->scratch_bytes);
    for (int k = 0; k < desc->inputs; k++) {
        if (to[k]) fake_store(op->input[k].layout, &desc->input[k], desc->batch, to[k], args->grad_input[k]);
        free(in[k]);
        free(to[k]);
    }
    for (int64_t i = 0; i < weights; i++) args->gradient[GG_PARAMETER_WEIGHT][i] = (float)grad_weight[i];
    for (int64_t i = 0; grad_bias && i < first; i++) args->gradient[GG_PARAMETER_BIAS][i] = (float)grad_bias[i];
    free(grad_weight);
    free(grad_bias);
    free(out);
    free(grad_out);
    return GG_OK;
}

static void fake_destroy(gg_op *op) {
    free(((fake_op *)op)->taps.tap);
    gg_free(op);
}

static const gg_op_class fake_class = {.prepare = fake_prepare,
                                       .forward = fake_forward,
                                       .backward_data = fake_backward,
                                       .compile = fake_compile,
                                       .destroy = fake_destroy};

static uint64_t fake_seed[64]; /* of the dropout operations made */
static int fake_seeds;

static gg_status fake_make(const gg_op_desc *desc, gg_layout in, gg_layout out, gg_op **made) {
    void *block;
    gg_status status = gg_calloc(1, sizeof(fake_op), "fake operation", &block);
    if (status != GG_OK) return status;
    fake_op *op = block;
    bool pointwise = desc->kind == GG_OP_RELU || desc->kind == GG_OP_TANH || desc->kind == GG_OP_SIGMOID;
    op->head.type = &fake_class;
    op->head.desc = *desc;
    op->taps = fake_taps_of(desc);
    for (int k = 0; k < desc->inputs; k++) op->head.input[k] = (gg_format){GG_FLOAT32, in};
    op->head.output = (gg_format){GG_FLOAT32, out};
    op->head.scratch_bytes = desc->kind == GG_OP_LINEAR ? 192 : desc->kind == GG_OP_CONV2D ? 1024 : 0;
    op->head.prepared_once = fake_prepared_once;
    if (desc->kind == GG_OP_CONV2D)
        op->head.prepared_bytes = (size_t)(desc->output.size[0] * desc->input[0].size[0] / desc->conv.groups *
                                           desc->conv.window.kernel[0] * desc->conv.window.kernel[1]) *
                                  sizeof(float);
    op->head.in_place = pointwise || desc->kind == GG_OP_DROPOUT || desc->kind == GG_OP_ADD;
    op->head.backward_needs_input =
        desc->kind == GG_OP_CONV2D || desc->kind == GG_OP_LINEAR || desc->kind == GG_OP_MAX_POOL2D;
    op->head.backward_needs_output = pointwise || desc->activation == GG_ACTIVATION_RELU;
    if (desc->kind == GG_OP_DROPOUT) {
        op->head.saved_bytes = (size_t)(desc->batch * gg_shape_count(&desc->output)) * sizeof(float);
        fake_seed[fake_seeds++ % 64] = desc->seed;
    }
    *made = &op->head;
    return GG_OK;
}

static gg_status fake_create_plain(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    (void)device;
    return fake_make(desc, GG_LAYOUT_PLAIN, GG_LAYOUT_PLAIN, out);
}

static gg_status fake_create_lanes(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    (void)device;
    return fake_make(desc, GG_LAYOUT_BATCH_LAST, GG_LAYOUT_BATCH_LAST, out);
}

static gg_status fake_create_channels(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    (void)device;
    gg_layout layout = desc->kind == GG_OP_CONV2D ? GG_LAYOUT_CHANNELS16 : GG_LAYOUT_NHWC;
    if (desc->activation != GG_ACTIVATION_NONE || (desc->kind == GG_OP_CONV2D && desc->conv.groups > 1))
        return gg_fail(GG_ERROR_UNSUPPORTED, "not here");
    return fake_make(desc, layout, layout, out);
}

static gg_status fake_create_reorder(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_layout from = desc->offered[0].layout, to = desc->wanted_output.layout;
    bool lanes = strcmp(device->table->name, "fake-plain") == 0;
    bool known = true;
    gg_layout both[2] = {from, to};
    for (int i = 0; i < 2; i++)
        if (both[i] != GG_LAYOUT_PLAIN && (both[i] == GG_LAYOUT_BATCH_LAST) != lanes) known = false;
    if (!known || (from != GG_LAYOUT_PLAIN && to != GG_LAYOUT_PLAIN)) return gg_fail(GG_ERROR_UNSUPPORTED, "no way");
    return fake_make(desc, from, to, out);
}

/* Kernels of the table ----------------------------------------------------------------------------------------- */

static void fake_loss(gg_device *device, const gg_loss_args *args) {
    (void)device;
    CHECK(args->sample_weights == NULL);
    gg_shape shape = {1, {args->features}};
    double *p = fake_load(args->layout, &shape, args->batch, args->prediction);
    double *grad = fake_load(GG_LAYOUT_PLAIN, &shape, args->batch, NULL);
    *args->result = (gg_loss_result){.divisor = (double)args->batch, .counted = args->batch};
    fake_loss_kernel(args->loss.kind, args->batch, args->features, p, args->targets, grad, &args->result->loss_sum,
                     &args->result->correct);
    if (args->gradient) fake_store(args->layout, &shape, args->batch, grad, args->gradient);
    free(p);
    free(grad);
}

static void fake_weighted_sum(gg_device *device, size_t n, int sources, const float *const *source, const float *scale,
                              float *out) {
    (void)device;
    CHECK(n % GG_LANES == 0 && (uintptr_t)out % GG_ALIGNMENT == 0);
    for (size_t i = 0; i < n; i++) {
        float sum = 0;
        for (int k = 0; k < sources; k++) sum += scale[k] * source[k][i];
        out[i] = sum;
    }
}

static void fake_transpose(gg_device *device, int64_t n, int64_t values, bool to_lanes, const float *in, float *out) {
    (void)device;
    int64_t lanes = gg_lanes_padded(n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t v = 0; v < values; v++) {
            if (to_lanes) out[v * lanes + i] = in[i * values + v];
            else out[i * values + v] = in[v * lanes + i];
        }
}

#define FAKE_ALL(create)                                                                                               \
    {                                                                                                                  \
        [GG_OP_CONV2D] = create, [GG_OP_LINEAR] = create, [GG_OP_MAX_POOL2D] = create, [GG_OP_AVG_POOL2D] = create,    \
        [GG_OP_RELU] = create, [GG_OP_TANH] = create, [GG_OP_SIGMOID] = create, [GG_OP_DROPOUT] = create,              \
        [GG_OP_ADD] = create, [GG_OP_CONCAT] = create, [GG_OP_REORDER] = fake_create_reorder                           \
    }

static const gg_backend fake_plain_table = {
    .name = "fake-plain",
    .create = FAKE_ALL(fake_create_plain),
    .loss = fake_loss,
    .weighted_sum = fake_weighted_sum,
    .transpose = fake_transpose,
};

static const gg_backend fake_lanes_table = {
    .name = "fake-lanes",
    .create = {[GG_OP_CONV2D] = fake_create_lanes,
               [GG_OP_LINEAR] = fake_create_lanes,
               [GG_OP_MAX_POOL2D] = fake_create_lanes,
               [GG_OP_AVG_POOL2D] = fake_create_lanes,
               [GG_OP_RELU] = fake_create_lanes,
               [GG_OP_TANH] = fake_create_lanes,
               [GG_OP_SIGMOID] = fake_create_lanes,
               [GG_OP_DROPOUT] = fake_create_lanes,
               [GG_OP_ADD] = fake_create_lanes,
               [GG_OP_CONCAT] = fake_create_lanes},
};

static const gg_backend fake_channels_table = {
    .name = "fake-channels",
    .create = {[GG_OP_CONV2D] = fake_create_channels,
               [GG_OP_MAX_POOL2D] = fake_create_channels,
               [GG_OP_AVG_POOL2D] = fake_create_channels,
               [GG_OP_REORDER] = fake_create_reorder},
};

static gg_device fake_plain = {.table = &fake_plain_table, .threads = 1};
static gg_device fake_lanes = {.table = &fake_lanes_table, .threads = 1};
static gg_device fake_channels = {.table = &fake_channels_table, .threads = 1};

#endif
