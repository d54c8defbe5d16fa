/* RELU, TANH, SIGMOID, LEAKY_RELU, GELU, DROPOUT and ADD. */
#include <string.h>

#include "base/parallel.h"
#include "cpu/native.h"

typedef struct element_op {
    gg_op head;
    gg_device *device;
    gg_dtype dtype; /* type of activations: bfloat16 if all inputs are offered so */
    size_t n;       /* elements, padding included */
    /* DROPOUT */
    int64_t features, blocks; /* blocks of four samples */
    uint32_t threshold;
    float scale;
} element_op;

/* One run, for the threads. */
typedef struct element_job {
    const element_op *op;
    const gg_op_args *args;
    bool draw;
} element_job;

/* Elements between two reads of another array, so that computed values stay in the L1 cache. */
#define STRETCH ((size_t)1024)

/* Elements of an array from `at` on as float32: the array itself, or widened into `room`. */
static const float *read_elements(const element_op *op, const void *array, size_t at, size_t n, float *room) {
    if (op->dtype == GG_FLOAT32) return (const float *)array + at;
    gg_cpu_widen_any(gg_cpu_device_kernels(op->device), n, (const uint16_t *)array + at, room);
    return room;
}

/* Buffer in which elements of an array are computed; write_elements then writes them. */
static float *room_for(const element_op *op, void *array, size_t at, float *room) {
    return op->dtype == GG_FLOAT32 ? (float *)array + at : room;
}

static void write_elements(const element_op *op, void *array, size_t at, size_t n, const float *room) {
    if (op->dtype != GG_FLOAT32) gg_cpu_narrow_any(gg_cpu_device_kernels(op->device), n, room, (uint16_t *)array + at);
}

static void native_elementwise_run(const element_op *op, gg_parallel_fn fn, element_job *job) {
    gg_parallel_run(gg_cpu_threads_for(op->device, op->n), fn, job);
}

static gg_status native_elementwise_create(gg_device *device, const gg_op_desc *desc, const gg_op_class *type,
                                           gg_layout layout, gg_op **out) {
    gg_op *head;
    *out = NULL;
    GG_TRY(gg_native_op_create(desc, type, sizeof(element_op), &head));
    element_op *op = (element_op *)head;
    op->dtype = desc->dtype;
    for (int i = 0; i < desc->inputs; ++i)
        if (desc->offered[i].dtype != GG_BFLOAT16) op->dtype = GG_FLOAT32;
    if (layout == GG_LAYOUT_BATCH_LAST) op->dtype = GG_FLOAT32;
    for (int i = 0; i < desc->inputs; ++i) {
        if (!gg_shape_equal(&desc->input[i], &desc->output)) {
            char given[GG_SHAPE_TEXT], wanted[GG_SHAPE_TEXT];
            gg_native_op_free(head);
            return gg_fail(GG_ERROR_SHAPE, "%s: input %d is %s, the output %s", gg_op_kind_name(desc->kind), i,
                           gg_shape_text(&desc->input[i], given), gg_shape_text(&desc->output, wanted));
        }
        head->input[i] = (gg_format){op->dtype, layout};
    }
    head->output = (gg_format){op->dtype, layout};
    head->in_place = true;
    op->device = device;
    op->n = gg_format_bytes(head->output, &desc->output, desc->batch) / gg_dtype_size(op->dtype);
    *out = head;
    return GG_OK;
}

/* ------------------------------------------------------------------------------------------ activations */

static const gg_cpu_elementwise *kernels_of(const element_op *op) {
    return gg_cpu_device_kernels(op->device)->elementwise;
}

static void activate(const element_op *op, size_t n, const float *x, float *y) {
    const gg_cpu_elementwise *kernels = kernels_of(op);
    const gg_op_desc *desc = &op->head.desc;
    switch ((int)desc->kind) {
    case GG_OP_RELU: kernels->relu(n, x, y); break;
    case GG_OP_TANH: kernels->tanh(n, x, y); break;
    case GG_OP_SIGMOID: kernels->sigmoid(n, x, y); break;
    case GG_OP_LEAKY_RELU: kernels->leaky_relu(n, desc->leaky_relu.slope, x, y); break;
    default: (desc->gelu.tanh_form ? kernels->gelu_tanh : kernels->gelu)(n, x, y);
    }
}

/* For all activations but ReLU. from: the output or the input, as the operation declares. */
static void activate_backward(const element_op *op, size_t n, const float *from, const float *dy, float *dx) {
    const gg_cpu_elementwise *kernels = kernels_of(op);
    const gg_op_desc *desc = &op->head.desc;
    switch ((int)desc->kind) {
    case GG_OP_TANH: kernels->tanh_backward(n, from, dy, dx); break;
    case GG_OP_SIGMOID: kernels->sigmoid_backward(n, from, dy, dx); break;
    case GG_OP_LEAKY_RELU: kernels->leaky_relu_backward(n, desc->leaky_relu.slope, from, dy, dx); break;
    default: (desc->gelu.tanh_form ? kernels->gelu_tanh_backward : kernels->gelu_backward)(n, from, dy, dx);
    }
}

static void activation_forward_part(void *context, int thread, int threads) {
    const element_job *job = context;
    const element_op *op = job->op;
    _Alignas(64) float room[STRETCH];
    size_t begin, end;
    gg_parallel_split(op->n, GG_LANES, thread, threads, &begin, &end);
    for (size_t at = begin; at < end; at += STRETCH) {
        const size_t n = end - at < STRETCH ? end - at : STRETCH;
        float *y = room_for(op, job->args->output, at, room);
        activate(op, n, read_elements(op, job->args->input[0], at, n, room), y);
        write_elements(op, job->args->output, at, n, y);
    }
}

static void activation_backward_part(void *context, int thread, int threads) {
    const element_job *job = context;
    const element_op *op = job->op;
    const gg_op_args *args = job->args;
    const void *from = op->head.backward_needs_output ? args->output : args->input[0];
    _Alignas(64) float room[STRETCH], error[STRETCH];
    size_t begin, end;
    gg_parallel_split(op->n, GG_LANES, thread, threads, &begin, &end);
    for (size_t at = begin; at < end; at += STRETCH) {
        const size_t n = end - at < STRETCH ? end - at : STRETCH;
        const float *value = read_elements(op, from, at, n, room), *dy;
        dy = read_elements(op, args->grad_output, at, n, error);
        float *dx = room_for(op, args->grad_input[0], at, error);
        activate_backward(op, n, value, dy, dx);
        write_elements(op, args->grad_input[0], at, n, dx);
    }
}

/* A ReLU in bfloat16 compares bits. */
static void relu_narrow_part(void *context, int thread, int threads) {
    const element_job *job = context;
    const gg_op_args *args = job->args;
    size_t begin, end;
    gg_parallel_split(job->op->n, GG_LANES, thread, threads, &begin, &end);
    kernels_of(job->op)->relu_narrow(end - begin, (const uint16_t *)args->input[0] + begin,
                                     (uint16_t *)args->output + begin);
}

/* relu_backward of a piece, in either type. */
static void pass_gate(const element_op *op, size_t at, size_t n, const gg_op_args *args, void *to) {
    if (op->dtype == GG_BFLOAT16)
        kernels_of(op)->relu_narrow_backward(n, (const uint16_t *)args->output + at,
                                             (const uint16_t *)args->grad_output + at, (uint16_t *)to + at);
    else
        kernels_of(op)->relu_backward(n, (const float *)args->output + at, (const float *)args->grad_output + at,
                                      (float *)to + at);
}

static void relu_backward_part(void *context, int thread, int threads) {
    const element_job *job = context;
    size_t begin, end;
    gg_parallel_split(job->op->n, GG_LANES, thread, threads, &begin, &end);
    pass_gate(job->op, begin, end - begin, job->args, job->args->grad_input[0]);
}

static gg_status activation_forward(gg_op *head, const gg_op_args *args) {
    element_job job = {.op = (element_op *)head, .args = args};
    const bool bits = head->desc.kind == GG_OP_RELU && job.op->dtype == GG_BFLOAT16;
    native_elementwise_run(job.op, bits ? relu_narrow_part : activation_forward_part, &job);
    return GG_OK;
}

static gg_status activation_backward(gg_op *head, const gg_op_args *args) {
    element_job job = {.op = (element_op *)head, .args = args};
    const bool relu = head->desc.kind == GG_OP_RELU;
    if (args->grad_input[0] == NULL) return GG_OK;
    native_elementwise_run(job.op, relu ? relu_backward_part : activation_backward_part, &job);
    return GG_OK;
}

static const gg_op_class activation_class = {
    .forward = activation_forward, .backward_data = activation_backward, .destroy = gg_native_op_free};

gg_status gg_native_activation_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_layout layout = desc->offered[0].layout;
    /* sigmoid(0) = 1/2: padding of channels would not stay zero. */
    const int64_t block = layout == GG_LAYOUT_CHANNELS16 ? 16 : layout == GG_LAYOUT_CHANNELS8 ? 8 : 1;
    if (desc->kind == GG_OP_SIGMOID && desc->output.size[0] % block != 0) layout = GG_LAYOUT_PLAIN;
    GG_TRY(native_elementwise_create(device, desc, &activation_class, layout, out));
    (*out)->backward_needs_output =
        desc->kind == GG_OP_LEAKY_RELU ? desc->leaky_relu.slope >= 0 : desc->kind != GG_OP_GELU;
    (*out)->backward_needs_input = !(*out)->backward_needs_output;
    return GG_OK;
}

/* ------------------------------------------------------------------------------------------ sum */

static void add_part(void *context, int thread, int threads) {
    const element_job *job = context;
    const element_op *op = job->op;
    const gg_op_args *args = job->args;
    _Alignas(64) float room[STRETCH], other[STRETCH];
    size_t begin, end;
    gg_parallel_split(op->n, GG_LANES, thread, threads, &begin, &end);
    for (size_t at = begin; at < end; at += STRETCH) {
        const size_t n = end - at < STRETCH ? end - at : STRETCH;
        float *out = room_for(op, args->output, at, room);
        const float *sum = read_elements(op, args->input[0], at, n, room);
        for (int i = 1; i < op->head.desc.inputs; ++i) {
            kernels_of(op)->add(n, sum, read_elements(op, args->input[i], at, n, other), out);
            sum = out;
        }
        if (op->head.desc.activation == GG_ACTIVATION_RELU) kernels_of(op)->relu(n, out, out);
        write_elements(op, args->output, at, n, out);
    }
}

/* All inputs have one gradient. The first one's may be grad_output itself, the last one's the output. */
static void add_gated_part(void *context, int thread, int threads) {
    const element_job *job = context;
    const element_op *op = job->op;
    const gg_op_args *args = job->args;
    const size_t size = gg_dtype_size(op->dtype);
    size_t begin, end;
    gg_parallel_split(op->n, GG_LANES, thread, threads, &begin, &end);
    for (size_t at = begin; at < end; at += STRETCH) {
        const size_t n = end - at < STRETCH ? end - at : STRETCH;
        const char *passed = NULL;
        for (int i = op->head.desc.inputs - 1; i >= 0; --i) {
            char *to = args->grad_input[i];
            if (to == NULL) continue;
            if (passed != NULL) memcpy(to + at * size, passed + at * size, n * size);
            else pass_gate(op, at, n, args, to);
            passed = to;
        }
    }
}

/* Without an activation all gradients are the output's. */
static void add_copied_part(void *context, int thread, int threads) {
    const element_job *j = context;
    const gg_op_args *args = j->args;
    const size_t size = gg_dtype_size(j->op->dtype);
    size_t begin, end;
    gg_parallel_split(j->op->n, GG_LANES, thread, threads, &begin, &end);
    for (int i = 0; i < j->op->head.desc.inputs; ++i)
        if (args->grad_input[i] != NULL && args->grad_input[i] != args->grad_output)
            memcpy((char *)args->grad_input[i] + begin * size, (const char *)args->grad_output + begin * size,
                   (end - begin) * size);
}

static gg_status native_elementwise_add_forward(gg_op *head, const gg_op_args *args) {
    element_job job = {.op = (element_op *)head, .args = args};
    native_elementwise_run(job.op, add_part, &job);
    return GG_OK;
}

static gg_status native_elementwise_add_backward(gg_op *head, const gg_op_args *args) {
    element_job job = {.op = (element_op *)head, .args = args};
    const bool gated = head->desc.activation == GG_ACTIVATION_RELU;
    native_elementwise_run(job.op, gated ? add_gated_part : add_copied_part, &job);
    return GG_OK;
}

static const gg_op_class add_class = {.forward = native_elementwise_add_forward,
                                      .backward_data = native_elementwise_add_backward,
                                      .destroy = gg_native_op_free};

gg_status gg_native_add_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    *out = NULL;
    if (desc->inputs < 2) return gg_fail(GG_ERROR_ARGUMENT, "add has at least 2 inputs, not %d", desc->inputs);
    GG_TRY(native_elementwise_create(device, desc, &add_class, desc->offered[0].layout, out));
    (*out)->backward_needs_output = desc->activation == GG_ACTIVATION_RELU;
    if ((*out)->backward_needs_output && desc->inputs == 2) (*out)->over_output = 1u << 1;
    return GG_OK;
}

/* ------------------------------------------------------------------------------------------ dropout */

/* Feature f of sample n draws word n%4 of block f*blocks + n/4 in any layout. The mask, one byte an element in that
 * order, is saved for backward. */
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

static void mask_elements(const element_op *op, size_t from, size_t end, const void *in, const uint8_t *mask,
                          void *out) {
    _Alignas(64) float room[STRETCH];
    for (size_t at = from; at < end; at += STRETCH) {
        const size_t n = end - at < STRETCH ? end - at : STRETCH;
        const float *x = read_elements(op, in, at, n, room);
        float *y = room_for(op, out, at, room);
        kernels_of(op)->masked_scale(n, x, mask + at, op->scale, y);
        write_elements(op, out, at, n, y);
    }
}

static void dropout_part(void *context, int thread, int threads) {
    const element_job *job = context;
    const element_op *op = job->op;
    const gg_op_args *args = job->args;
    const bool plain = op->head.output.layout == GG_LAYOUT_PLAIN;
    const gg_random_key key = {op->head.desc.seed, GG_RANDOM_DROPOUT, args->rank, *args->step};
    const void *in = job->draw ? args->input[0] : args->grad_output;
    void *out = job->draw ? args->output : args->grad_input[0];
    uint8_t *mask = args->saved;
    const size_t features = (size_t)op->features, row = op->n / features;
    size_t begin, end;
    gg_parallel_split(features, 1, thread, threads, &begin, &end);
    if (begin == end) return;
    if (job->draw) (plain ? draw_plain : draw_lanes)(op, &key, begin, end, mask);
    if (!plain) {
        mask_elements(op, begin * row, end * row, in, mask, out);
        return;
    }
    for (size_t n = 0; n < row; ++n) mask_elements(op, n * features + begin, n * features + end, in, mask, out);
}

static bool native_elementwise_copies(const gg_op *op) { return !op->desc.training || op->desc.probability == 0.0f; }

/* If all are zeroed, the scale 1/(1 - 1) does not exist. */
static gg_status dropout_run(const element_op *op, const gg_op_args *args, bool draw) {
    const void *in = draw ? args->input[0] : args->grad_output;
    void *out = draw ? args->output : args->grad_input[0];
    const size_t bytes = op->n * gg_dtype_size(op->dtype);
    if (out == NULL) return GG_OK;
    if (native_elementwise_copies(&op->head) || args->evaluate) {
        if (out != in) memcpy(out, in, bytes);
        return GG_OK;
    }
    if (op->head.desc.probability >= 1.0f) {
        memset(out, 0, bytes);
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
    .forward = dropout_forward, .backward_data = dropout_backward, .destroy = gg_native_op_free};

gg_status gg_native_dropout_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    const bool plain = desc->offered[0].layout == GG_LAYOUT_PLAIN;
    const double p = (double)desc->probability;
    *out = NULL;
    if (!(p >= 0 && p <= 1)) return gg_fail(GG_ERROR_ARGUMENT, "dropout: the probability must be in 0..1, not %g", p);
    const int64_t features = gg_shape_count(&desc->output), blocks = (desc->batch + 3) / 4;
    if (features > (INT64_C(1) << 32) / (blocks > 0 ? blocks : 1))
        return gg_fail(GG_ERROR_UNSUPPORTED, "dropout: %lld x %lld elements are more than a stream has numbers",
                       (long long)features, (long long)desc->batch);
    GG_TRY(
        native_elementwise_create(device, desc, &dropout_class, plain ? GG_LAYOUT_PLAIN : GG_LAYOUT_BATCH_LAST, out));
    element_op *op = (element_op *)*out;
    op->features = features;
    op->blocks = blocks;
    op->threshold = p < 1 ? (uint32_t)(p * 0x1p32) : 0;
    op->scale = p < 1 ? (float)(1.0 / (1.0 - p)) : 0.0f;
    op->head.saved_bytes = native_elementwise_copies(&op->head) || p >= 1 ? 0 : op->n;
    return GG_OK;
}
