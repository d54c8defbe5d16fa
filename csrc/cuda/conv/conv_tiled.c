/* Convolution by our own kernels: NHWC images in float32 by TF32, for few channels, where cuDNN is slow. `prepare`
 * writes the weight as the pass's kernels read it; cuDNN is not involved. */
#include "cuda/kernels_nn.h"
#include "cuda/ops.h"

typedef struct tiled_op {
    gg_op head;
    gg_cuda_device *device;
    /* Shape of the convolution, and of its input gradient as a convolution. */
    gg_cuda_tiled_shape shape, mirrored;
} tiled_op;

static gg_status tiled_prepare(gg_op *head, const gg_op_args *args, gg_pass pass) {
    const tiled_op *op = (const tiled_op *)head;
    const bool data = pass == GG_PASS_DATA;
    if (data && args->grad_input[0] == NULL) return GG_OK;
    gg_cuda_enter(op->device);
    gg_cuda_tiled_weight(gg_cuda_compute(op->device), data ? &op->mirrored : &op->shape, data,
                         args->parameter[GG_PARAMETER_WEIGHT], args->prepared);
    return gg_cuda_op_done(op->device, "the weight of a convolution");
}

static gg_status tiled_forward(gg_op *head, const gg_op_args *args) {
    const tiled_op *op = (const tiled_op *)head;
    const gg_cuda_tiled_args own = {.shape = op->shape,
                                    .input = args->input[0],
                                    .weight = args->prepared,
                                    .bias = head->desc.bias ? args->parameter[GG_PARAMETER_BIAS] : NULL,
                                    .relu = head->desc.activation == GG_ACTIVATION_RELU,
                                    .output = args->output};
    gg_cuda_enter(op->device);
    gg_cuda_tiled(gg_cuda_compute(op->device), &own);
    return gg_cuda_op_done(op->device, "a convolution");
}

static int64_t outputs_of(const gg_cuda_tiled_shape *shape) {
    return shape->batch * shape->output[0] * shape->output[1];
}

static gg_status tiled_backward_weights(gg_op *head, const gg_op_args *args) {
    const tiled_op *op = (const tiled_op *)head;
    const bool relu = head->desc.activation == GG_ACTIVATION_RELU;
    const gg_cuda_bias_backward_args bias = {.dtype = GG_FLOAT32,
                                             .outer = outputs_of(&op->shape),
                                             .channels = op->shape.filters,
                                             .inner = 1,
                                             .y = relu ? args->output : NULL,
                                             .grad = args->grad_output,
                                             .bias = head->desc.bias ? args->gradient[GG_PARAMETER_BIAS] : NULL,
                                             .scratch = args->scratch};
    const gg_cuda_tiled_gradient_args own = {.shape = op->shape,
                                             .input = args->input[0],
                                             .error = args->grad_output,
                                             .scratch = args->scratch,
                                             .gradient = args->gradient[GG_PARAMETER_WEIGHT]};
    gg_cuda_enter(op->device);
    if (relu || head->desc.bias) gg_cuda_bias_backward(gg_cuda_compute(op->device), &bias);
    gg_cuda_tiled_gradient(gg_cuda_compute(op->device), &own);
    return gg_cuda_op_done(op->device, "the gradient of a convolution's weight");
}

static gg_status tiled_backward_data(gg_op *head, const gg_op_args *args) {
    const tiled_op *op = (const tiled_op *)head;
    const gg_cuda_tiled_args own = {
        .shape = op->mirrored, .input = args->grad_output, .weight = args->prepared, .output = args->grad_input[0]};
    if (args->grad_input[0] == NULL) return GG_OK;
    gg_cuda_enter(op->device);
    gg_cuda_tiled(gg_cuda_compute(op->device), &own);
    return gg_cuda_op_done(op->device, "the gradient of a convolution's input");
}

static const gg_op_class tiled_class = {.prepare = tiled_prepare,
                                        .forward = tiled_forward,
                                        .backward_weights = tiled_backward_weights,
                                        .backward_data = tiled_backward_data,
                                        .destroy = gg_cuda_op_free};

static gg_cuda_tiled_shape shape_of(const gg_op_desc *desc) {
    const gg_window *w = &desc->conv.window;
    gg_cuda_tiled_shape shape = {
        .batch = desc->batch, .channels = (int)desc->input[0].size[0], .filters = (int)desc->output.size[0]};
    for (int a = 0; a < 2; ++a) {
        shape.image[a] = (int)desc->input[0].size[1 + a];
        shape.output[a] = (int)desc->output.size[1 + a];
        shape.kernel[a] = (int)w->kernel[a];
        shape.stride[a] = (int)w->stride[a];
        shape.padding[a] = (int)w->padding[a];
        shape.dilation[a] = (int)w->dilation[a];
    }
    return shape;
}

/* The error is the image. */
static gg_cuda_tiled_shape mirrored_of(const gg_cuda_tiled_shape *shape) {
    gg_cuda_tiled_shape made = *shape;
    made.channels = shape->filters;
    made.filters = shape->channels;
    for (int a = 0; a < 2; ++a) {
        made.image[a] = shape->output[a];
        made.output[a] = shape->image[a];
        made.padding[a] = shape->dilation[a] * (shape->kernel[a] - 1) - shape->padding[a];
    }
    return made;
}

static bool has_pass(const tiled_op *op, gg_pass pass) {
    const gg_cuda_tiled_shape *s = &op->shape;
    if (pass == GG_PASS_FORWARD) return gg_cuda_tiled_fits(s);
    if (pass == GG_PASS_WEIGHTS) return gg_cuda_tiled_gradient_fits(s);
    return s->stride[0] == 1 && s->stride[1] == 1 && op->mirrored.padding[0] >= 0 && op->mirrored.padding[1] >= 0 &&
           gg_cuda_tiled_fits(&op->mirrored);
}

gg_status gg_cuda_tiled_conv2d_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_op *head = NULL;
    gg_status status = GG_OK;
    *out = NULL;
    GG_TRY_CLEANUP(gg_cuda_op_create(desc, &tiled_class, 1, sizeof(tiled_op), &head));
    tiled_op *op = (tiled_op *)head;
    op->device = gg_cuda_of(device);
    op->shape = shape_of(desc);
    op->mirrored = mirrored_of(&op->shape);
    head->input[0] = head->output = (gg_format){GG_FLOAT32, GG_LAYOUT_NHWC};
    head->backward_needs_input = gg_op_has_pass(desc, GG_PASS_WEIGHTS);
    head->backward_needs_output = gg_op_has_pass(desc, GG_PASS_WEIGHTS) && desc->activation == GG_ACTIVATION_RELU;
    if (!op->device->fast || desc->dtype != GG_FLOAT32 || desc->conv.groups != 1)
        GG_FAIL_CLEANUP(GG_ERROR_UNSUPPORTED,
                        "conv2d on a GPU: the algorithm 'tiled' is for precision \"fast\" and one group, in float32");
    for (int pass = 0; pass < GG_PASS_COUNT; ++pass) {
        const bool run = pass == GG_PASS_FORWARD || (desc->training && (pass == GG_PASS_WEIGHTS || desc->input_grad));
        if (!run || !gg_op_has_pass(desc, (gg_pass)pass)) continue;
        if (!has_pass(op, (gg_pass)pass))
            GG_FAIL_CLEANUP(GG_ERROR_UNSUPPORTED,
                            "conv2d on a GPU: the algorithm 'tiled' has no form for the %s pass of this convolution",
                            gg_pass_name((gg_pass)pass));
        const size_t weight = pass == GG_PASS_FORWARD ? gg_cuda_tiled_weight_bytes(&op->shape)
                              : pass == GG_PASS_DATA  ? gg_cuda_tiled_weight_bytes(&op->mirrored)
                                                      : 0;
        if (weight > head->prepared_bytes) head->prepared_bytes = weight;
        if (pass == GG_PASS_WEIGHTS) head->scratch_bytes = gg_cuda_tiled_gradient_scratch(&op->shape);
    }
    if (desc->bias && desc->training && gg_op_has_pass(desc, GG_PASS_WEIGHTS)) {
        const size_t sums = gg_cuda_bias_backward_scratch(outputs_of(&op->shape), op->shape.filters, 1);
        if (sums > head->scratch_bytes) head->scratch_bytes = sums;
    }
    *out = head;
    head = NULL;
cleanup:
    if (head != NULL) gg_cuda_op_free(head);
    return status;
}
