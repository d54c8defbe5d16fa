/* BATCH_NORM, LAYER_NORM, LOCAL_RESPONSE_NORM and SOFTMAX. */
#include "cuda/kernels_nn.h"
#include "cuda/ops.h"

/* ------------------------------------------------------------------------------------------ batch norm */

static gg_cuda_batch_norm_args batch_norm_args(const gg_op *head, const gg_op_args *args) {
    const gg_cuda_element_op *op = (const gg_cuda_element_op *)head;
    const gg_op_desc *desc = &head->desc;
    const int mean = desc->batch_norm.affine ? 2 : 0;
    gg_cuda_batch_norm_args own = {.dtype = head->output.dtype,
                                   .outer = op->outer,
                                   .channels = op->channels,
                                   .inner = op->inner,
                                   .relu = desc->activation == GG_ACTIVATION_RELU,
                                   .batch_statistics =
                                       (desc->training && !args->evaluate) || !desc->batch_norm.track_statistics,
                                   .epsilon = desc->batch_norm.epsilon,
                                   .momentum = desc->batch_norm.momentum,
                                   .input = args->input[0],
                                   .output = args->output,
                                   .saved = args->saved,
                                   .scratch = args->scratch};
    if (desc->batch_norm.affine) {
        own.weight = args->parameter[GG_PARAMETER_WEIGHT];
        own.bias = args->parameter[GG_PARAMETER_BIAS];
    }
    if (desc->batch_norm.track_statistics) {
        own.running_mean = args->parameter[mean];
        own.running_variance = args->parameter[mean + 1];
    }
    return own;
}

static gg_status batch_norm_forward(gg_op *head, const gg_op_args *args) {
    gg_cuda_batch_norm_args own = batch_norm_args(head, args);
    own.added = head->desc.inputs == 2 ? args->input[1] : NULL;
    gg_cuda_batch_norm(gg_cuda_element_stream(head), &own);
    return gg_cuda_element_done(head);
}

static gg_status batch_norm_backward(gg_op *head, const gg_op_args *args) {
    gg_cuda_batch_norm_args own = batch_norm_args(head, args);
    const gg_op_desc *desc = &head->desc;
    const int mean = desc->batch_norm.affine ? 2 : 0;
    own.batch_statistics = true;
    own.added = desc->inputs == 2 ? args->grad_output : NULL; /* declares an added input; it is not read */
    own.grad_output = args->grad_output;
    own.grad_input = args->grad_input[0];
    own.grad_added = desc->inputs == 2 ? args->grad_input[1] : NULL;
    if (desc->batch_norm.affine) {
        own.grad_weight = args->gradient[GG_PARAMETER_WEIGHT];
        own.grad_bias = args->gradient[GG_PARAMETER_BIAS];
    }
    if (desc->batch_norm.track_statistics) {
        own.grad_mean = args->gradient[mean];
        own.grad_variance = args->gradient[mean + 1];
    }
    gg_cuda_batch_norm_backward(gg_cuda_element_stream(head), &own);
    return gg_cuda_element_done(head);
}

static const gg_op_class batch_norm_class = {
    .forward = batch_norm_forward, .backward_data = batch_norm_backward, .destroy = gg_cuda_op_free};

gg_status gg_cuda_batch_norm_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    char in[GG_SHAPE_TEXT];
    *out = NULL;
    if (desc->inputs < 1 || desc->inputs > 2)
        return gg_fail(GG_ERROR_SHAPE, "batch_norm has one or two inputs, not %d", desc->inputs);
    GG_TRY(gg_cuda_check_same_shapes(desc));
    const int64_t channels = desc->input[0].size[0], values = gg_shape_count(&desc->input[0]) / channels * desc->batch;
    if (values < 2 && (desc->training || !desc->batch_norm.track_statistics))
        return gg_fail(
            GG_ERROR_SHAPE,
            "in training a channel must have more than one value in a batch, but a batch of %lld sample of shape "
            "%s has %lld; choose another batch_size, or drop_last=True of fit, which leaves a last batch out that "
            "is not full",
            (long long)desc->batch, gg_shape_text(&desc->input[0], in), (long long)values);
    GG_TRY(gg_cuda_element_create(device, desc, &batch_norm_class, GG_CUDA_BFLOAT16 | GG_CUDA_NHWC, out));
    const gg_cuda_element_op *op = (const gg_cuda_element_op *)*out;
    gg_op *head = *out;
    head->in_place = true;
    head->backward_needs_input = 1;
    head->backward_needs_output = desc->inputs == 2 && desc->activation == GG_ACTIVATION_RELU;
    head->over_output = desc->inputs == 2 ? 1u << 1 : 0;
    head->saved_bytes = gg_cuda_batch_norm_saved(channels);
    head->scratch_bytes = gg_cuda_batch_norm_scratch(op->outer, op->channels, op->inner);
    return GG_OK;
}

/* ------------------------------------------------------------------------------------------ layer norm */

static gg_cuda_layer_norm_args layer_norm_args(const gg_op *head, const gg_op_args *args) {
    const gg_op_desc *desc = &head->desc;
    return (gg_cuda_layer_norm_args){.dtype = head->output.dtype,
                                     .batch = desc->batch,
                                     .rows = gg_norm_rows_of(desc),
                                     .epsilon = desc->layer_norm.epsilon,
                                     .input = args->input[0],
                                     .output = args->output,
                                     .weight = desc->layer_norm.affine ? args->parameter[GG_PARAMETER_WEIGHT] : NULL,
                                     .bias = desc->layer_norm.affine && desc->bias ? args->parameter[GG_PARAMETER_BIAS]
                                                                                   : NULL,
                                     .saved = args->saved,
                                     .scratch = args->scratch};
}

static gg_status layer_norm_forward(gg_op *head, const gg_op_args *args) {
    const gg_cuda_layer_norm_args own = layer_norm_args(head, args);
    gg_cuda_layer_norm(gg_cuda_element_stream(head), &own);
    return gg_cuda_element_done(head);
}

static gg_status layer_norm_backward(gg_op *head, const gg_op_args *args) {
    gg_cuda_layer_norm_args own = layer_norm_args(head, args);
    own.grad_output = args->grad_output;
    own.grad_input = args->grad_input[0];
    own.grad_weight = head->desc.layer_norm.affine ? args->gradient[GG_PARAMETER_WEIGHT] : NULL;
    own.grad_bias = own.bias != NULL ? args->gradient[GG_PARAMETER_BIAS] : NULL;
    gg_cuda_layer_norm_backward(gg_cuda_element_stream(head), &own);
    return gg_cuda_element_done(head);
}

static const gg_op_class layer_norm_class = {
    .forward = layer_norm_forward, .backward_data = layer_norm_backward, .destroy = gg_cuda_op_free};

gg_status gg_cuda_layer_norm_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    *out = NULL;
    GG_TRY(gg_cuda_check_same_shapes(desc));
    if (desc->inputs != 1 || desc->layer_norm.axis < 0 || desc->layer_norm.axis >= desc->output.dims)
        return gg_fail(GG_ERROR_SHAPE, "layer_norm has one input and begins at one of its axes, not at %lld",
                       (long long)desc->layer_norm.axis);
    GG_TRY(gg_cuda_element_create(device, desc, &layer_norm_class, GG_CUDA_BFLOAT16, out));
    const gg_norm_rows rows = gg_norm_rows_of(desc);
    gg_op *head = *out;
    head->in_place = true;
    head->backward_needs_input = 1;
    head->saved_bytes = gg_cuda_layer_norm_saved(desc->batch, &rows);
    if (desc->training && desc->layer_norm.affine) head->scratch_bytes = gg_cuda_layer_norm_scratch(desc->batch, &rows);
    return GG_OK;
}

/* ------------------------------------------------------------------------------------------ LRN */

static gg_cuda_lrn_args lrn_args(const gg_op *head, const gg_op_args *args) {
    const gg_cuda_element_op *op = (const gg_cuda_element_op *)head;
    return (gg_cuda_lrn_args){.dtype = head->output.dtype,
                              .outer = op->outer,
                              .channels = op->channels,
                              .inner = op->inner,
                              .size = head->desc.lrn.size,
                              .alpha = head->desc.lrn.alpha,
                              .beta = head->desc.lrn.beta,
                              .k = head->desc.lrn.k,
                              .input = args->input[0],
                              .output = args->output,
                              .saved = head->desc.training ? args->saved : NULL,
                              .scratch = args->scratch};
}

static gg_status lrn_forward(gg_op *head, const gg_op_args *args) {
    const gg_cuda_lrn_args own = lrn_args(head, args);
    gg_cuda_lrn(gg_cuda_element_stream(head), &own);
    return gg_cuda_element_done(head);
}

static gg_status lrn_backward(gg_op *head, const gg_op_args *args) {
    gg_cuda_lrn_args own = lrn_args(head, args);
    if (args->grad_input[0] == NULL) return GG_OK;
    own.grad_output = args->grad_output;
    own.grad_input = args->grad_input[0];
    gg_cuda_lrn_backward(gg_cuda_element_stream(head), &own);
    return gg_cuda_element_done(head);
}

static const gg_op_class lrn_class = {
    .forward = lrn_forward, .backward_data = lrn_backward, .destroy = gg_cuda_op_free};

gg_status gg_cuda_lrn_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    *out = NULL;
    GG_TRY(gg_cuda_check_same_shapes(desc));
    if (desc->inputs != 1 || desc->lrn.size < 1)
        return gg_fail(GG_ERROR_ARGUMENT, "local_response_norm has one input, and its size is at least 1, not %lld",
                       (long long)desc->lrn.size);
    GG_TRY(gg_cuda_element_create(device, desc, &lrn_class, GG_CUDA_BFLOAT16 | GG_CUDA_NHWC, out));
    (*out)->backward_needs_input = 1;
    if (desc->training) (*out)->saved_bytes = (*out)->scratch_bytes = ((gg_cuda_element_op *)*out)->n * sizeof(float);
    return GG_OK;
}

/* ------------------------------------------------------------------------------------------ softmax */

static gg_cuda_softmax_args softmax_args(const gg_op *head) {
    const gg_cuda_element_op *op = (const gg_cuda_element_op *)head;
    return (gg_cuda_softmax_args){
        .dtype = head->output.dtype, .outer = op->outer, .length = op->channels, .inner = op->inner};
}

static gg_status softmax_forward(gg_op *head, const gg_op_args *args) {
    gg_cuda_softmax_args own = softmax_args(head);
    own.input = args->input[0];
    own.output = args->output;
    gg_cuda_softmax(gg_cuda_element_stream(head), &own);
    return gg_cuda_element_done(head);
}

static gg_status softmax_backward(gg_op *head, const gg_op_args *args) {
    gg_cuda_softmax_args own = softmax_args(head);
    if (args->grad_input[0] == NULL) return GG_OK;
    own.output = args->output;
    own.grad_output = args->grad_output;
    own.grad_input = args->grad_input[0];
    gg_cuda_softmax_backward(gg_cuda_element_stream(head), &own);
    return gg_cuda_element_done(head);
}

static const gg_op_class softmax_class = {
    .forward = softmax_forward, .backward_data = softmax_backward, .destroy = gg_cuda_op_free};

gg_status gg_cuda_softmax_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    *out = NULL;
    GG_TRY(gg_cuda_check_same_shapes(desc));
    if (desc->inputs != 1 || desc->softmax.axis < 0 || desc->softmax.axis >= desc->output.dims)
        return gg_fail(GG_ERROR_SHAPE, "softmax has one input and goes along one of its axes, not %lld",
                       (long long)desc->softmax.axis);
    GG_TRY(gg_cuda_element_create(device, desc, &softmax_class, GG_CUDA_BFLOAT16, out));
    gg_cuda_element_op *op = (gg_cuda_element_op *)*out;
    op->channels = desc->output.size[desc->softmax.axis];
    op->inner = 1;
    for (int i = (int)desc->softmax.axis + 1; i < desc->output.dims; ++i) op->inner *= desc->output.size[i];
    op->outer = (int64_t)op->n / op->channels / op->inner;
    op->head.in_place = true;
    op->head.backward_needs_output = true;
    return GG_OK;
}
