/* RELU, TANH, SIGMOID, LEAKY_RELU, GELU, DROPOUT and ADD. */
#include <string.h>

#include "base/parallel.h"
#include "cpu/native/native.h"

typedef struct element_op {
    gg_op head;
    gg_device *device;
    size_t n; /* elements, padding included */
    /* DROPOUT */
    int64_t features, blocks; /* blocks of four samples */
    uint32_t threshold;
    float scale;
} element_op;

typedef void (*unary_fn)(size_t n, const float *x, float *y);
typedef void (*unary_backward_fn)(size_t n, const float *y, const float *dy, float *dx);

/* One run, for the threads. */
typedef struct element_job {
    const element_op *op;
    const gg_op_args *args;
    unary_fn forward;
    unary_backward_fn backward;
    bool draw;
} element_job;

static void native_elementwise_run(const element_op *op, gg_parallel_fn fn, element_job *job) {
    gg_parallel_run(gg_cpu_threads_for(op->device, op->n), fn, job);
}

static void native_elementwise_destroy(gg_op *op) { gg_native_op_free(op); }

static gg_status native_elementwise_create(gg_device *device, const gg_op_desc *desc, const gg_op_class *type,
                                           gg_layout layout, gg_op **out) {
    gg_status status = GG_OK;
    gg_op *head;
    *out = NULL;
    GG_TRY(gg_native_op_create(desc, type, sizeof(element_op), &head));
    element_op *op = (element_op *)head;
    for (int i = 0; i < desc->inputs; ++i) {
        if (!gg_shape_equal(&desc->input[i], &desc->output)) {
            char given[GG_SHAPE_TEXT], wanted[GG_SHAPE_TEXT];
            gg_native_op_free(head);
            GG_FAIL(GG_ERROR_SHAPE, "%s: input %d is %s, the output %s", gg_op_kind_name(desc->kind), i,
                    gg_shape_text(&desc->input[i], given), gg_shape_text(&desc->output, wanted));
        }
        head->input[i].layout = layout;
    }
    head->output.layout = layout;
    head->in_place = true;
    op->device = device;
    op->n = gg_format_bytes(head->output, &desc->output, desc->batch) / sizeof(float);
    *out = head;
cleanup:
    return status;
}

/* ------------------------------------------------------------------------------------------ activations */

static void native_elementwise_forward_part(void *context, int thread, int threads) {
    const element_job *job = context;
    size_t begin, end;
    gg_parallel_split(job->op->n, GG_LANES, thread, threads, &begin, &end);
    job->forward(end - begin, (const float *)job->args->input[0] + begin, (float *)job->args->output + begin);
}

static void backward_part(void *context, int thread, int threads) {
    const element_job *job = context;
    const gg_op_args *args = job->args;
    size_t begin, end;
    gg_parallel_split(job->op->n, GG_LANES, thread, threads, &begin, &end);
    job->backward(end - begin, (const float *)args->output + begin, (const float *)args->grad_output + begin,
                  (float *)args->grad_input[0] + begin);
}

static gg_status activation_forward(gg_op *head, const gg_op_args *args) {
    const element_op *op = (element_op *)head;
    const gg_cpu_elementwise *kernels = gg_cpu_device_kernels(op->device)->elementwise;
    element_job job = {.op = op, .args = args};
    job.forward = head->desc.kind == GG_OP_RELU   ? kernels->relu
                  : head->desc.kind == GG_OP_TANH ? kernels->tanh
                                                  : kernels->sigmoid;
    native_elementwise_run(op, native_elementwise_forward_part, &job);
    return GG_OK;
}

static gg_status activation_backward(gg_op *head, const gg_op_args *args) {
    const element_op *op = (element_op *)head;
    const gg_cpu_elementwise *kernels = gg_cpu_device_kernels(op->device)->elementwise;
    if (args->grad_input[0] == NULL) return GG_OK;
    element_job job = {.op = op, .args = args};
    job.backward = head->desc.kind == GG_OP_RELU   ? kernels->relu_backward
                   : head->desc.kind == GG_OP_TANH ? kernels->tanh_backward
                                                   : kernels->sigmoid_backward;
    native_elementwise_run(op, backward_part, &job);
    return GG_OK;
}

static const gg_op_class activation_class = {
    .forward = activation_forward, .backward_data = activation_backward, .destroy = native_elementwise_destroy};

gg_status gg_native_activation_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_layout layout = desc->offered[0].layout;
    /* sigmoid(0) = 1/2: padding of the channels would not stay zero. */
    const int64_t block = layout == GG_LAYOUT_CHANNELS16 ? 16 : layout == GG_LAYOUT_CHANNELS8 ? 8 : 1;
    if (desc->kind == GG_OP_SIGMOID && desc->output.size[0] % block != 0) layout = GG_LAYOUT_PLAIN;
    const gg_status status = native_elementwise_create(device, desc, &activation_class, layout, out);
    if (status == GG_OK) (*out)->backward_needs_output = true;
    return status;
}

/* ------------------------------------------------------------------------------------------ leaky ReLU, GELU */

static void curve_forward_part(void *context, int thread, int threads) {
    const element_job *job = context;
    const element_op *op = job->op;
    const gg_cpu_elementwise *kernels = gg_cpu_device_kernels(op->device)->elementwise;
    size_t begin, end;
    gg_parallel_split(op->n, GG_LANES, thread, threads, &begin, &end);
    const float *x = (const float *)job->args->input[0] + begin;
    float *y = (float *)job->args->output + begin;
    if (op->head.desc.kind == GG_OP_LEAKY_RELU) kernels->leaky_relu(end - begin, op->head.desc.slope, x, y);
    else (op->head.desc.tanh_form ? kernels->gelu_tanh : kernels->gelu)(end - begin, x, y);
}

static void curve_backward_part(void *context, int thread, int threads) {
    const element_job *job = context;
    const element_op *op = job->op;
    const gg_op_args *args = job->args;
    const gg_cpu_elementwise *kernels = gg_cpu_device_kernels(op->device)->elementwise;
    const float *from = op->head.backward_needs_output ? args->output : args->input[0];
    size_t begin, end;
    gg_parallel_split(op->n, GG_LANES, thread, threads, &begin, &end);
    const float *dy = (const float *)args->grad_output + begin;
    float *dx = (float *)args->grad_input[0] + begin;
    if (op->head.desc.kind == GG_OP_LEAKY_RELU)
        kernels->leaky_relu_backward(end - begin, op->head.desc.slope, from + begin, dy, dx);
    else if (op->head.desc.tanh_form) kernels->gelu_tanh_backward(end - begin, from + begin, dy, dx);
    else kernels->gelu_backward(end - begin, from + begin, dy, dx);
}

static gg_status curve_forward(gg_op *head, const gg_op_args *args) {
    element_job job = {.op = (element_op *)head, .args = args};
    native_elementwise_run(job.op, curve_forward_part, &job);
    return GG_OK;
}

static gg_status curve_backward(gg_op *head, const gg_op_args *args) {
    element_job job = {.op = (element_op *)head, .args = args};
    if (args->grad_input[0] != NULL) native_elementwise_run(job.op, curve_backward_part, &job);
    return GG_OK;
}

static const gg_op_class curve_class = {
    .forward = curve_forward, .backward_data = curve_backward, .destroy = native_elementwise_destroy};

gg_status gg_native_curve_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    GG_TRY(native_elementwise_create(device, desc, &curve_class, desc->offered[0].layout, out));
    (*out)->backward_needs_output = desc->kind == GG_OP_LEAKY_RELU && desc->slope >= 0;
    (*out)->backward_needs_input = !(*out)->backward_needs_output;
cleanup:
    return status;
}

/* ------------------------------------------------------------------------------------------ sum */

/* Elements between two inputs, so that the sum stays in the first cache. */
#define STRETCH ((size_t)4096)

static void add_part(void *context, int thread, int threads) {
    const element_job *job = context;
    const gg_op_args *args = job->args;
    const gg_cpu_elementwise *kernels = gg_cpu_device_kernels(job->op->device)->elementwise;
    float *out = args->output;
    size_t begin, end;
    gg_parallel_split(job->op->n, GG_LANES, thread, threads, &begin, &end);
    for (size_t at = begin; at < end; at += STRETCH) {
        const size_t n = end - at < STRETCH ? end - at : STRETCH;
        const float *sum = (const float *)args->input[0] + at;
        for (int i = 1; i < job->op->head.desc.inputs; ++i) {
            kernels->add(n, sum, (const float *)args->input[i] + at, out + at);
            sum = out + at;
        }
        if (job->op->head.desc.activation == GG_ACTIVATION_RELU) kernels->relu(n, out + at, out + at);
    }
}

/* All inputs have the same gradient; the first one's may be that of the output itself, the last one's the output. */
static void add_gated_part(void *context, int thread, int threads) {
    const element_job *job = context;
    const gg_op_args *args = job->args;
    const gg_cpu_elementwise *kernels = gg_cpu_device_kernels(job->op->device)->elementwise;
    size_t begin, end;
    gg_parallel_split(job->op->n, GG_LANES, thread, threads, &begin, &end);
    for (size_t at = begin; at < end; at += STRETCH) {
        const size_t n = end - at < STRETCH ? end - at : STRETCH;
        const float *passed = NULL;
        for (int i = job->op->head.desc.inputs - 1; i >= 0; --i) {
            if (args->grad_input[i] == NULL) continue;
            float *to = (float *)args->grad_input[i] + at;
            if (passed != NULL) memcpy(to, passed, n * sizeof(float));
            else kernels->relu_backward(n, (const float *)args->output + at, (const float *)args->grad_output + at, to);
            passed = to;
        }
    }
}

static gg_status native_elementwise_add_forward(gg_op *head, const gg_op_args *args) {
    element_job job = {.op = (element_op *)head, .args = args};
    native_elementwise_run(job.op, add_part, &job);
    return GG_OK;
}

static gg_status native_elementwise_add_backward(gg_op *head, const gg_op_args *args) {
    const element_op *op = (element_op *)head;
    if (head->desc.activation == GG_ACTIVATION_RELU) {
        element_job job = {.op = op, .args = args};
        native_elementwise_run(op, add_gated_part, &job);
        return GG_OK;
    }
    for (int i = 0; i < head->desc.inputs; ++i)
        if (args->grad_input[i] != NULL && args->grad_input[i] != args->grad_output)
            memcpy(args->grad_input[i], args->grad_output, op->n * sizeof(float));
    return GG_OK;
}

static const gg_op_class add_class = {.forward = native_elementwise_add_forward,
                                      .backward_data = native_elementwise_add_backward,
                                      .destroy = native_elementwise_destroy};

gg_status gg_native_add_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    *out = NULL;
    if (desc->inputs < 2) GG_FAIL(GG_ERROR_ARGUMENT, "add has at least 2 inputs, not %d", desc->inputs);
    GG_TRY(native_elementwise_create(device, desc, &add_class, desc->offered[0].layout, out));
    (*out)->backward_needs_output = desc->activation == GG_ACTIVATION_RELU;
    if ((*out)->backward_needs_output && desc->inputs == 2) (*out)->over_output = 1u << 1;
cleanup:
    return status;
}

/* ------------------------------------------------------------------------------------------ dropout */

/* Feature f of sample n draws word n%4 of block f*blocks + n/4, whatever the layout. The mask, one byte an element in
 * the same order, is saved for the backward pass. */
static void draw_lanes(const element_op *op, const gg_random_key *key, size_t begin, size_t end, uint8_t *mask) {
    const gg_cpu_elementwise *kernels = gg_cpu_device_kernels(op->device)->elementwise;
    const size_t batch = (size_t)op->head.desc.batch, lanes = (size_t)gg_lanes_padded(op->head.desc.batch);
    const size_t blocks = (size_t)op->blocks;
    if (batch == lanes) {
        uint8_t *row = mask + begin * lanes;
        uint8_t *const rows[4] = {row, row + 1, row + 2, row + 3};
        kernels->dropout_mask(key, (uint32_t)(begin * blocks), 1, (end - begin) * blocks, op->threshold, rows, 4);
        return;
    }
    for (size_t f = begin; f < end; ++f) {
        uint8_t *row = mask + f * lanes;
        uint8_t *const rows[4] = {row, row + 1, row + 2, row + 3};
        kernels->dropout_mask(key, (uint32_t)(f * blocks), 1, blocks, op->threshold, rows, 4);
        memset(row + batch, 0, lanes - batch);
    }
}

static void draw_plain(const element_op *op, const gg_random_key *key, size_t begin, size_t end, uint8_t *mask) {
    const gg_cpu_elementwise *kernels = gg_cpu_device_kernels(op->device)->elementwise;
    const size_t batch = (size_t)op->head.desc.batch, features = (size_t)op->features, blocks = (size_t)op->blocks;
    for (size_t b = 0; b < blocks; ++b) {
        uint8_t *rows[4];
        for (size_t w = 0; w < 4; ++w) rows[w] = 4 * b + w < batch ? mask + (4 * b + w) * features + begin : NULL;
        kernels->dropout_mask(key, (uint32_t)(begin * blocks + b), (uint32_t)blocks, end - begin, op->threshold, rows,
                              1);
    }
}

static void dropout_part(void *context, int thread, int threads) {
    const element_job *job = context;
    const element_op *op = job->op;
    const gg_op_args *args = job->args;
    const gg_cpu_elementwise *kernels = gg_cpu_device_kernels(op->device)->elementwise;
    const bool plain = op->head.output.layout == GG_LAYOUT_PLAIN;
    const gg_random_key key = {op->head.desc.seed, GG_RANDOM_DROPOUT, args->rank, args->step};
    const float *in = job->draw ? args->input[0] : args->grad_output;
    float *out = job->draw ? args->output : args->grad_input[0];
    uint8_t *mask = args->saved;
    const size_t features = (size_t)op->features, row = op->n / features;
    size_t begin, end;
    gg_parallel_split(features, 1, thread, threads, &begin, &end);
    if (begin == end) return;
    if (job->draw) (plain ? draw_plain : draw_lanes)(op, &key, begin, end, mask);
    if (!plain) {
        const size_t at = begin * row;
        kernels->masked_scale((end - begin) * row, in + at, mask + at, op->scale, out + at);
        return;
    }
    for (size_t n = 0; n < row; ++n) {
        const size_t at = n * features + begin;
        kernels->masked_scale(end - begin, in + at, mask + at, op->scale, out + at);
    }
}

static bool native_elementwise_copies(const gg_op *op) { return !op->desc.training || op->desc.probability == 0.0f; }

/* If all are zeroed there is no scale 1/(1 - 1). */
static gg_status dropout_run(const element_op *op, const gg_op_args *args, bool draw) {
    const float *in = draw ? args->input[0] : args->grad_output;
    float *out = draw ? args->output : args->grad_input[0];
    if (out == NULL) return GG_OK;
    if (native_elementwise_copies(&op->head) || args->evaluate) {
        if (out != in) memcpy(out, in, op->n * sizeof(float));
        return GG_OK;
    }
    if (op->head.desc.probability >= 1.0f) {
        memset(out, 0, op->n * sizeof(float));
        return GG_OK;
    }
    element_job job = {.op = op, .args = args, .draw = draw};
    native_elementwise_run(op, dropout_part, &job);
    return GG_OK;
}

static gg_status dropout_forward(gg_op *op, const gg_op_args *args) {
    return dropout_run((element_op *)op, args, true);
}
static gg_status dropout_backward(gg_op *op, const gg_op_args *args) {
    return dropout_run((element_op *)op, args, false);
}

static const gg_op_class dropout_class = {
    .forward = dropout_forward, .backward_data = dropout_backward, .destroy = native_elementwise_destroy};

gg_status gg_native_dropout_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    const bool plain = desc->offered[0].layout == GG_LAYOUT_PLAIN;
    const double p = (double)desc->probability;
    *out = NULL;
    if (!(p >= 0 && p <= 1)) GG_FAIL(GG_ERROR_ARGUMENT, "dropout: the probability must be in 0..1, not %g", p);
    const int64_t features = gg_shape_count(&desc->output), blocks = (desc->batch + 3) / 4;
    if (features > (INT64_C(1) << 32) / (blocks > 0 ? blocks : 1))
        GG_FAIL(GG_ERROR_UNSUPPORTED, "dropout: %lld x %lld elements are more than a stream has numbers",
                (long long)features, (long long)desc->batch);
    GG_TRY(
        native_elementwise_create(device, desc, &dropout_class, plain ? GG_LAYOUT_PLAIN : GG_LAYOUT_BATCH_LAST, out));
    element_op *op = (element_op *)*out;
    op->features = features;
    op->blocks = blocks;
    op->threshold = p < 1 ? (uint32_t)(p * 0x1p32) : 0;
    op->scale = p < 1 ? (float)(1.0 / (1.0 - p)) : 0.0f;
    op->head.saved_bytes = native_elementwise_copies(&op->head) || p >= 1 ? 0 : op->n;
cleanup:
    return status;
}
