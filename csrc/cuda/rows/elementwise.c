/* RELU, TANH, SIGMOID, LEAKY_RELU, GELU, ADD and DROPOUT. */
#include "cuda/kernels_nn.h"
#include "cuda/ops.h"

/* ------------------------------------------------------------------------------------------ activations */

static gg_cuda_activation_args activation_args(const gg_op *head) {
    gg_cuda_activation_args own = {
        .dtype = head->output.dtype, .kind = head->desc.kind, .n = ((const gg_cuda_element_op *)head)->n};
    if (own.kind == GG_OP_LEAKY_RELU) own.slope = head->desc.leaky_relu.slope;
    if (own.kind == GG_OP_GELU) own.tanh_form = head->desc.gelu.tanh_form;
    return own;
}

static gg_status activation_forward(gg_op *head, const gg_op_args *args) {
    gg_cuda_activation_args own = activation_args(head);
    own.in = args->input[0];
    own.out = args->output;
    gg_cuda_activation(gg_cuda_element_stream(head), &own);
    return gg_cuda_element_done(head);
}

static gg_status activation_backward(gg_op *head, const gg_op_args *args) {
    gg_cuda_activation_args own = activation_args(head);
    if (args->grad_input[0] == NULL) return GG_OK;
    own.in = head->backward_needs_output ? args->output : args->input[0];
    own.grad = args->grad_output;
    own.out = args->grad_input[0];
    gg_cuda_activation_backward(gg_cuda_element_stream(head), &own);
    return gg_cuda_element_done(head);
}

static const gg_op_class activation_class = {
    .forward = activation_forward, .backward_data = activation_backward, .destroy = gg_cuda_op_free};

gg_status gg_cuda_activation_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    *out = NULL;
    GG_TRY(gg_cuda_check_same_shapes(desc));
    GG_TRY(gg_cuda_element_create(device, desc, &activation_class, GG_CUDA_BFLOAT16 | GG_CUDA_NHWC, out));
    const bool by_input = desc->kind == GG_OP_GELU || (desc->kind == GG_OP_LEAKY_RELU && desc->leaky_relu.slope < 0);
    (*out)->in_place = true;
    (*out)->backward_needs_output = !by_input;
    (*out)->backward_needs_input = by_input;
    return GG_OK;
}

/* ------------------------------------------------------------------------------------------ sums */

static gg_cuda_add_args add_args(const gg_op *head, const gg_op_args *args) {
    gg_cuda_add_args own = {.dtype = head->output.dtype,
                            .n = ((const gg_cuda_element_op *)head)->n,
                            .inputs = head->desc.inputs,
                            .relu = head->desc.activation == GG_ACTIVATION_RELU,
                            .output = args->output,
                            .grad_output = args->grad_output};
    for (int i = 0; i < own.inputs; ++i) {
        own.input[i] = args->input[i];
        own.grad[i] = args->grad_input[i];
    }
    return own;
}

static gg_status add_forward(gg_op *head, const gg_op_args *args) {
    const gg_cuda_add_args own = add_args(head, args);
    gg_cuda_add(gg_cuda_element_stream(head), &own);
    return gg_cuda_element_done(head);
}

static gg_status add_backward(gg_op *head, const gg_op_args *args) {
    const gg_cuda_add_args own = add_args(head, args);
    gg_cuda_add_backward(gg_cuda_element_stream(head), &own);
    return gg_cuda_element_done(head);
}

static const gg_op_class add_class = {
    .forward = add_forward, .backward_data = add_backward, .destroy = gg_cuda_op_free};

gg_status gg_cuda_add_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    *out = NULL;
    if (desc->inputs < 2) return gg_fail(GG_ERROR_ARGUMENT, "add has at least 2 inputs, not %d", desc->inputs);
    GG_TRY(gg_cuda_check_same_shapes(desc));
    GG_TRY(gg_cuda_element_create(device, desc, &add_class, GG_CUDA_BFLOAT16 | GG_CUDA_NHWC, out));
    (*out)->in_place = true;
    (*out)->backward_needs_output = desc->activation == GG_ACTIVATION_RELU;
    if ((*out)->backward_needs_output && desc->inputs == 2) (*out)->over_output = 1u << 1;
    return GG_OK;
}

/* ------------------------------------------------------------------------------------------ dropout */

static gg_status dropout_run(gg_op *head, const gg_op_args *args, const void *in, void *out) {
    const gg_op_desc *desc = &head->desc;
    if (out == NULL) return GG_OK;
    if (!desc->training || args->evaluate || desc->probability == 0.0f) {
        gg_cuda_element_copy(head, out, in);
        return gg_cuda_element_done(head);
    }
    const gg_cuda_dropout_args own = {
        .dtype = head->output.dtype,
        .layout = head->output.layout,
        .batch = desc->batch,
        .features = gg_shape_count(&desc->output),
        .channels = desc->output.size[0],
        .draw = {.seed = desc->seed, .step = args->step, .rank = args->rank, .probability = desc->probability},
        .in = in,
        .out = out};
    gg_cuda_dropout(gg_cuda_element_stream(head), &own);
    return gg_cuda_element_done(head);
}

static gg_status dropout_forward(gg_op *head, const gg_op_args *args) {
    return dropout_run(head, args, args->input[0], args->output);
}

static gg_status dropout_backward(gg_op *head, const gg_op_args *args) {
    return dropout_run(head, args, args->grad_output, args->grad_input[0]);
}

static const gg_op_class dropout_class = {
    .forward = dropout_forward, .backward_data = dropout_backward, .destroy = gg_cuda_op_free};

gg_status gg_cuda_dropout_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    const double p = (double)desc->probability;
    *out = NULL;
    if (!(p >= 0 && p <= 1)) return gg_fail(GG_ERROR_ARGUMENT, "dropout: the probability must be in 0..1, not %g", p);
    const int64_t features = gg_shape_count(&desc->output), blocks = (desc->batch + 3) / 4;
    if (features > (INT64_C(1) << 32) / (blocks > 0 ? blocks : 1))
        return gg_fail(GG_ERROR_UNSUPPORTED, "dropout: %lld x %lld elements are more than a stream has numbers",
                       (long long)features, (long long)desc->batch);
    GG_TRY(gg_cuda_check_same_shapes(desc));
    GG_TRY(gg_cuda_element_create(device, desc, &dropout_class, GG_CUDA_BFLOAT16 | GG_CUDA_NHWC, out));
    (*out)->in_place = true;
    return GG_OK;
}
