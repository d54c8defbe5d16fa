/* Operations in bfloat16 that compute in float32. The bfloat16 input and error are widened into scratch memory
 * (widened_conversions.c), the operation of some table for float32 runs there, for the whole batch or for its parts one
 * after the other (widened_parts.c), and what it gives is rounded. Products read the weights as they are. */
#include "base/memory.h"
#include "cpu/widened_private.h"

/* inner, data: in float32, of a part of the batch, without an activation. Of several parts both may be different ones.
 */
typedef struct widened_op {
    gg_op head;
    gg_device *device;
    gg_op *inner, *data;
    int64_t parts;                           /* more than 1: of a convolution */
    gg_widened_side in, out;                 /* of a part */
    size_t weights, biases;                  /* of a convolution */
    size_t input, output, error, grad_input; /* where they lie in scratch, in bytes */
    size_t gradient;                         /* with several parts: the weights', then the biases' */
    bool keeps; /* the weights' pass of the same operation leaves the error to that of the data */
} widened_op;

/* The input, which is not written. */
static float *widen_input(const widened_op *op, const gg_op_args *args) {
    float *wide = (float *)((char *)args->scratch + op->input);
    gg_widened_widen(op->device, &op->in, NULL, (uint16_t *)(uintptr_t)args->input[0], wide);
    return wide;
}

/* What has the output's shape; `masked`: the error behind a ReLU is left in it. */
static float *widen_outputs(const widened_op *op, const gg_op_args *args, const void *from, size_t offset,
                            bool masked) {
    float *wide = (float *)((char *)args->scratch + offset);
    gg_widened_widen(op->device, &op->out, masked ? args->output : NULL, (uint16_t *)(uintptr_t)from, wide);
    return wide;
}

static gg_op_args args_of_part(const widened_op *op, const gg_op_args *args, int64_t part) {
    const size_t in = (size_t)part * op->in.narrow, out = (size_t)part * op->out.narrow;
    gg_op_args own = *args;
    if (part == 0) return own;
    if (args->input[0] != NULL) own.input[0] = (const uint16_t *)args->input[0] + in;
    if (args->output != NULL) own.output = (uint16_t *)args->output + out;
    if (args->grad_output != NULL) own.grad_output = (uint16_t *)args->grad_output + out;
    if (args->grad_input[0] != NULL) own.grad_input[0] = (uint16_t *)args->grad_input[0] + in;
    return own;
}

typedef gg_status (*part_fn)(const widened_op *op, const gg_op_args *args, int64_t part);

static gg_status run_parts(gg_op *head, const gg_op_args *args, part_fn run) {
    const widened_op *op = (const widened_op *)head;
    for (int64_t part = 0; part < op->parts; ++part) {
        const gg_op_args own = args_of_part(op, args, part);
        GG_TRY(run(op, &own, part));
    }
    return GG_OK;
}

static gg_status widened_prepare(gg_op *head, const gg_op_args *args, gg_pass pass) {
    const widened_op *op = (widened_op *)head;
    return gg_op_prepare(pass == GG_PASS_DATA ? op->data : op->inner, args, pass);
}

static gg_status forward_part(const widened_op *op, const gg_op_args *args, int64_t part) {
    gg_status status = GG_OK;
    gg_op_args wide = *args;
    float *output = (float *)((char *)args->scratch + op->output);
    wide.input[0] = widen_input(op, args);
    wide.output = output;
    GG_TRY_CLEANUP(gg_op_forward(op->inner, &wide));
    gg_widened_narrow(op->device, &op->out, op->head.desc.activation == GG_ACTIVATION_RELU, output, args->output);
cleanup:
    (void)part;
    return status;
}

static gg_status widened_forward(gg_op *head, const gg_op_args *args) { return run_parts(head, args, forward_part); }

/* What the float32 operation reads of the forward pass. */
static void widen_forward(const widened_op *op, const gg_op_args *args, gg_op_args *wide) {
    if (op->inner->backward_needs_input != 0) wide->input[0] = widen_input(op, args);
    if (op->inner->backward_needs_output) wide->output = widen_outputs(op, args, args->output, op->output, false);
}

/* Parameters behind each other in scratch. */
static void place_gradient(const widened_op *op, const gg_op_args *args, float *gradient[2]) {
    gradient[GG_PARAMETER_WEIGHT] = (float *)((char *)args->scratch + op->gradient);
    gradient[GG_PARAMETER_BIAS] = gradient[GG_PARAMETER_WEIGHT] + (op->weights + GG_LANES - 1) / GG_LANES * GG_LANES;
}

static gg_status weights_part(const widened_op *op, const gg_op_args *args, int64_t part) {
    const gg_op_desc *desc = &op->head.desc;
    const gg_cpu_elementwise *kernels = gg_cpu_device_kernels(op->device)->elementwise;
    gg_op_args wide = *args;
    float *own[2];
    widen_forward(op, args, &wide);
    wide.grad_output = widen_outputs(op, args, args->grad_output, op->error, desc->activation == GG_ACTIVATION_RELU);
    wide.grad_input[0] = NULL;
    place_gradient(op, args, own);
    if (part > 0) wide.gradient = own;
    GG_TRY(op->inner->type->backward_weights(op->inner, &wide));
    if (part == 0) return GG_OK;
    float *const *sum = args->gradient;
    kernels->add(op->weights, sum[GG_PARAMETER_WEIGHT], own[GG_PARAMETER_WEIGHT], sum[GG_PARAMETER_WEIGHT]);
    if (desc->bias) kernels->add(op->biases, sum[GG_PARAMETER_BIAS], own[GG_PARAMETER_BIAS], sum[GG_PARAMETER_BIAS]);
    return GG_OK;
}

static gg_status widened_weights(gg_op *head, const gg_op_args *args) { return run_parts(head, args, weights_part); }

static gg_status data_part(const widened_op *op, const gg_op_args *args, int64_t part) {
    gg_status status = GG_OK;
    gg_op_args wide = *args;
    float *grad_input = (float *)((char *)args->scratch + op->grad_input);
    if (op->keeps) {
        wide.grad_output = (char *)args->scratch + op->error;
    } else {
        if (op->inner->type->backward_weights == NULL) widen_forward(op, args, &wide);
        wide.grad_output = widen_outputs(op, args, args->grad_output, op->error, false);
    }
    if (args->grad_input[0] != NULL) wide.grad_input[0] = grad_input;
    GG_TRY_CLEANUP(op->data->type->backward_data(op->data, &wide));
    if (args->grad_input[0] != NULL) gg_widened_narrow(op->device, &op->in, false, grad_input, args->grad_input[0]);
cleanup:
    (void)part;
    return status;
}

static gg_status widened_data(gg_op *head, const gg_op_args *args) { return run_parts(head, args, data_part); }

static void widened_destroy(gg_op *head) {
    widened_op *op = (widened_op *)head;
    if (op->data != op->inner) gg_op_destroy(op->data);
    gg_op_destroy(op->inner);
    gg_free(op);
}

/* With the gradients of the parameters in a pass of their own, or together with that of the input. */
static const gg_op_class widened_class = {.prepare = widened_prepare,
                                          .forward = widened_forward,
                                          .backward_weights = widened_weights,
                                          .backward_data = widened_data,
                                          .destroy = widened_destroy};
static const gg_op_class widened_class_at_once = {
    .prepare = widened_prepare, .forward = widened_forward, .backward_data = widened_data, .destroy = widened_destroy};

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* Room for so many float32 in scratch, behind what has been laid out. */
static size_t lay_out_numbers(size_t *bytes, size_t count) {
    const size_t at = *bytes;
    *bytes += gg_aligned(count * sizeof(float) + GG_READ_BEHIND);
    return at;
}

/* What follows another in time lies in its place, unless both are read together. */
static void lay_out_scratch(widened_op *op) {
    const gg_op *inner = op->inner;
    const size_t most = larger(inner->scratch_bytes, op->data->scratch_bytes);
    size_t bytes = gg_aligned(most);
    op->input = lay_out_numbers(&bytes, op->in.wide);
    op->output = lay_out_numbers(&bytes, op->out.wide);
    op->error = inner->backward_needs_output ? lay_out_numbers(&bytes, op->out.wide) : op->output;
    op->grad_input = inner->type->backward_weights == NULL ? lay_out_numbers(&bytes, op->in.wide) : op->input;
    if (op->parts > 1 && op->head.desc.training)
        op->gradient = lay_out_numbers(&bytes, op->weights + GG_LANES + op->biases);
    op->head.scratch_bytes = bytes;
}

static gg_status widened_check(const gg_op_desc *desc) {
    if (desc->inputs != 1 || desc->dtype != GG_BFLOAT16)
        return gg_fail(GG_ERROR_UNSUPPORTED, "%s of %d inputs in %s has no widened form", gg_op_kind_name(desc->kind),
                       desc->inputs, gg_dtype_name(desc->dtype));
    if (desc->activation != GG_ACTIVATION_NONE && desc->activation != GG_ACTIVATION_RELU)
        return gg_fail(GG_ERROR_UNSUPPORTED, "%s with activation %d has no widened form", gg_op_kind_name(desc->kind),
                       (int)desc->activation);
    return GG_OK;
}

/* What computes in float32. */
static gg_op_desc wide_desc(const gg_op_desc *desc) {
    const gg_algorithm unturned = gg_conv_unturned(desc->algorithm);
    gg_op_desc wide = *desc;
    wide.dtype = wide.offered[0].dtype = GG_FLOAT32;
    wide.activation = GG_ACTIVATION_NONE;
    if (unturned != GG_ALGORITHM_COUNT) {
        wide.algorithm = unturned;
        wide.offered[0].layout = GG_LAYOUT_BATCH_LAST;
    }
    if (wide.algorithm == GG_ALGORITHM_WIDENED) wide.algorithm = GG_ALGORITHM_DIRECT;
    return wide;
}

static gg_widened_side side_of(const gg_op *inner, const gg_shape *shape, gg_format narrow, gg_format wide) {
    const int64_t samples = inner->desc.batch;
    return (gg_widened_side){.shape = *shape,
                             .layout = narrow.layout,
                             .turned = wide.layout == GG_LAYOUT_BATCH_LAST,
                             .samples = samples,
                             .narrow = gg_format_bytes(narrow, shape, samples) / sizeof(uint16_t),
                             .wide = gg_format_bytes(wide, shape, samples) / sizeof(float)};
}

/* layout: of the input and the output in bfloat16; NULL: those of the operation in float32. */
static gg_status create_in_layouts(gg_device *device, const gg_op_desc *desc, gg_cpu_create_fn create,
                                   const gg_layout layout[2], gg_op **out) {
    gg_status status = GG_OK;
    gg_op *inner = NULL, *data = NULL;
    void *block = NULL;
    const gg_op_desc wide = wide_desc(desc);
    int64_t parts = gg_widened_parts(desc);
    *out = NULL;
    GG_TRY_CLEANUP(widened_check(desc));
    if (layout != NULL && parts > 1 && desc->batch / parts % GG_LANES != 0)
        GG_FAIL_CLEANUP(GG_ERROR_UNSUPPORTED, "a part of %lld samples would not fill vectors",
                        (long long)(desc->batch / parts));
    GG_TRY_CLEANUP(gg_widened_create_parts(device, &wide, create, &parts, &inner, &data));
    const bool lanes = inner->input[0].layout == GG_LAYOUT_BATCH_LAST || inner->output.layout == GG_LAYOUT_BATCH_LAST;
    if (lanes != (layout != NULL))
        GG_FAIL_CLEANUP(GG_ERROR_UNSUPPORTED, "bfloat16 does not lie %s", gg_layout_name(GG_LAYOUT_BATCH_LAST));
    GG_TRY_CLEANUP(gg_calloc(1, sizeof(widened_op), "an operation", &block));
    widened_op *op = block;
    gg_op *head = &op->head;
    head->type = inner->type->backward_weights != NULL ? &widened_class : &widened_class_at_once;
    head->backend = inner->backend;
    head->desc = *desc;
    head->input[0] = (gg_format){GG_BFLOAT16, layout != NULL ? layout[0] : inner->input[0].layout};
    head->output = (gg_format){GG_BFLOAT16, layout != NULL ? layout[1] : inner->output.layout};
    head->prepared_bytes = larger(inner->prepared_bytes, data->prepared_bytes);
    head->prepared_once = data == inner && inner->prepared_once;
    head->saved_bytes = inner->saved_bytes;
    head->backward_needs_input = inner->backward_needs_input;
    head->backward_needs_output = inner->backward_needs_output;
    op->device = device;
    op->inner = inner;
    op->data = data;
    op->parts = parts;
    op->in = side_of(inner, &inner->desc.input[0], head->input[0], inner->input[0]);
    op->out = side_of(inner, &inner->desc.output, head->output, inner->output);
    if (desc->kind == GG_OP_CONV2D) {
        op->weights = (size_t)gg_widened_weights(desc);
        op->biases = (size_t)desc->output.size[0];
    }
    if (desc->training && inner->type->backward_weights != NULL && gg_op_has_pass(desc, GG_PASS_WEIGHTS)) {
        op->keeps = parts == 1;
        if (desc->activation == GG_ACTIVATION_RELU) head->backward_needs_output = true;
    }
    lay_out_scratch(op);
    *out = head;
    inner = data = NULL;
cleanup:
    if (data != inner) gg_op_destroy(data);
    gg_op_destroy(inner);
    return status;
}

gg_status gg_cpu_widened_create(gg_device *device, const gg_op_desc *desc, gg_cpu_create_fn create, gg_op **out) {
    return create_in_layouts(device, desc, create, NULL, out);
}

gg_status gg_cpu_turned_create(gg_device *device, const gg_op_desc *desc, gg_layout input, gg_layout output,
                               gg_cpu_create_fn create, gg_op **out) {
    const gg_layout layout[2] = {input, output};
    *out = NULL;
    for (int i = 0; i < 2; ++i)
        if (layout[i] != GG_LAYOUT_PLAIN && layout[i] != GG_LAYOUT_NHWC && layout[i] != GG_LAYOUT_CHANNELS16)
            return gg_fail(GG_ERROR_UNSUPPORTED, "images that lie %s are not turned", gg_layout_name(layout[i]));
    return create_in_layouts(device, desc, create, layout, out);
}
