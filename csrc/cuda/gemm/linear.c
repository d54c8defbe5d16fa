/* Linear layer over the last axis. The positions of all samples are rows of one matrix:
 *   Y = X W^T + b,   dX = dY W,   dW = dY^T X.
 * The product adds the bias if cuBLASLt has such a form; otherwise an own kernel does. The ReLU is our own kernel's,
 * because cuBLASLt's makes NaN 0. In exact float32, dW is the sum of the table's weight_gradient, whose runs have equal
 * bits. Otherwise dW is a product of cuBLASLt. In bfloat16 products read a weight and a bias rounded by `prepare`; the
 * gradients of both are float32. */
#include "cuda/gemm/product.h"
#include "cuda/kernels_nn.h"
#include "cuda/ops.h"

typedef struct linear_op {
    gg_op head;
    gg_cuda_device *device;
    gg_dtype dtype; /* of the activations */
    int64_t rows, in, out;
    gg_cuda_product forward, weights, data;
} linear_op;

/* Bytes of the weight in `prepared`; the bias follows it. */
static size_t narrow_weight_bytes(const linear_op *op) {
    const size_t step = GG_CUDA_WORKSPACE_ALIGNMENT;
    return ((size_t)(op->out * op->in) * sizeof(uint16_t) + step - 1) / step * step;
}

static gg_status linear_prepare(gg_op *head, const gg_op_args *args, gg_pass pass) {
    const linear_op *op = (const linear_op *)head;
    uint16_t *weight = args->prepared, *bias = (uint16_t *)((char *)args->prepared + narrow_weight_bytes(op));
    if (pass == GG_PASS_DATA && args->grad_input[0] == NULL) return GG_OK;
    gg_cuda_enter(op->device);
    gg_cuda_narrow(gg_cuda_compute(op->device), (size_t)(op->out * op->in), args->parameter[GG_PARAMETER_WEIGHT],
                   weight);
    if (head->desc.bias && pass == GG_PASS_FORWARD)
        gg_cuda_narrow(gg_cuda_compute(op->device), (size_t)op->out, args->parameter[GG_PARAMETER_BIAS], bias);
    return gg_cuda_op_done(op->device, "the rounding of a linear layer's weight");
}

/* Weight as read by the products. */
static const void *linear_weight(const linear_op *op, const gg_op_args *args) {
    return op->dtype == GG_BFLOAT16 ? args->prepared : args->parameter[GG_PARAMETER_WEIGHT];
}

static const void *linear_bias(const linear_op *op, const gg_op_args *args) {
    if (!op->head.desc.bias) return NULL;
    return op->dtype == GG_BFLOAT16 ? (const char *)args->prepared + narrow_weight_bytes(op)
                                    : (const void *)args->parameter[GG_PARAMETER_BIAS];
}

static gg_status linear_forward(gg_op *head, const gg_op_args *args) {
    linear_op *op = (linear_op *)head;
    const bool bias = head->desc.bias && !op->forward.shape.bias;
    const gg_cuda_bias_args rest = {.dtype = op->dtype,
                                    .outer = op->rows,
                                    .channels = op->out,
                                    .inner = 1,
                                    .relu = head->desc.activation == GG_ACTIVATION_RELU,
                                    .bias = bias ? args->parameter[GG_PARAMETER_BIAS] : NULL,
                                    .y = args->output};
    GG_TRY(gg_cuda_product_run(op->device, &op->forward, args->input[0], linear_weight(op, args), linear_bias(op, args),
                               args->output, args->scratch));
    if (!bias && !rest.relu) return GG_OK;
    gg_cuda_bias(gg_cuda_compute(op->device), &rest);
    return gg_cuda_op_done(op->device, "the bias of a linear layer");
}

static gg_status linear_backward_weights(gg_op *head, const gg_op_args *args) {
    linear_op *op = (linear_op *)head;
    const bool relu = head->desc.activation == GG_ACTIVATION_RELU;
    if (relu || head->desc.bias) {
        const gg_cuda_bias_backward_args bias = {.dtype = op->dtype,
                                                 .outer = op->rows,
                                                 .channels = op->out,
                                                 .inner = 1,
                                                 .y = relu ? args->output : NULL,
                                                 .grad = args->grad_output,
                                                 .bias = head->desc.bias ? args->gradient[GG_PARAMETER_BIAS] : NULL,
                                                 .scratch = args->scratch};
        gg_cuda_enter(op->device);
        gg_cuda_bias_backward(gg_cuda_compute(op->device), &bias);
        GG_TRY(gg_cuda_op_done(op->device, "the backward pass of a bias"));
    }
    if (args->gradient[GG_PARAMETER_WEIGHT] == NULL) return GG_OK;
    if (op->weights.desc == NULL) {
        const gg_weight_gradient_args weights = {.batch = op->rows,
                                                 .in = op->in,
                                                 .error = args->grad_output,
                                                 .input = args->input[0],
                                                 .error_row = op->out,
                                                 .count = op->out * op->in,
                                                 .out = args->gradient[GG_PARAMETER_WEIGHT]};
        gg_cuda_enter(op->device);
        gg_cuda_weight_gradient(gg_cuda_compute(op->device), &weights);
        GG_TRY(gg_cuda_op_done(op->device, "the gradient of a linear layer's weight"));
    } else
        GG_TRY(gg_cuda_product_run(op->device, &op->weights, args->grad_output, args->input[0], NULL,
                                   args->gradient[GG_PARAMETER_WEIGHT], args->scratch));
    return GG_OK;
}

static gg_status linear_backward_data(gg_op *head, const gg_op_args *args) {
    linear_op *op = (linear_op *)head;
    if (args->grad_input[0] == NULL) return GG_OK;
    return gg_cuda_product_run(op->device, &op->data, args->grad_output, linear_weight(op, args), NULL,
                               args->grad_input[0], args->scratch);
}

static void linear_destroy(gg_op *head) {
    linear_op *op = (linear_op *)head;
    gg_cuda_product_destroy(op->device, &op->forward);
    gg_cuda_product_destroy(op->device, &op->weights);
    gg_cuda_product_destroy(op->device, &op->data);
    gg_cuda_op_free(head);
}

static const gg_op_class linear_class = {.prepare = linear_prepare,
                                         .forward = linear_forward,
                                         .backward_weights = linear_backward_weights,
                                         .backward_data = linear_backward_data,
                                         .destroy = linear_destroy};

static gg_status create_products(linear_op *op) {
    const gg_op_desc *desc = &op->head.desc;
    const int64_t rows = op->rows, in = op->in, out = op->out;
    const gg_cuda_product_shape forward = {.m = rows,
                                           .n = out,
                                           .k = in,
                                           .in = op->dtype,
                                           .out = op->dtype,
                                           .a_row = in,
                                           .b_row = in,
                                           .c_row = out,
                                           .transpose_b = true,
                                           .bias = desc->bias};
    GG_TRY(gg_cuda_product_create(op->device, &forward, &op->forward));
    if (!desc->training) return GG_OK;
    const gg_cuda_product_shape weights = {
        .m = out, .n = in, .k = rows, .in = op->dtype, .a_row = out, .b_row = in, .c_row = in, .transpose_a = true};
    const gg_cuda_product_shape data = {
        .m = rows, .n = in, .k = out, .in = op->dtype, .out = op->dtype, .a_row = out, .b_row = in, .c_row = in};
    if (op->device->fast || op->dtype == GG_BFLOAT16)
        GG_TRY(gg_cuda_product_create(op->device, &weights, &op->weights));
    if (desc->input_grad) GG_TRY(gg_cuda_product_create(op->device, &data, &op->data));
    return GG_OK;
}

static gg_status create_as(gg_device *device, const gg_op_desc *desc, gg_dtype dtype, gg_op **out) {
    gg_op *head = NULL;
    char in[GG_SHAPE_TEXT], given[GG_SHAPE_TEXT];
    gg_status status = GG_OK;
    *out = NULL;
    const int last = desc->input[0].dims - 1;
    if (desc->activation == GG_ACTIVATION_GELU) GG_FAIL_CLEANUP(GG_ERROR_UNSUPPORTED, "linear has no GELU here");
    if (desc->inputs != 1 || last < 0 || desc->output.dims < 1 ||
        gg_shape_count(&desc->input[0]) / desc->input[0].size[last] !=
            gg_shape_count(&desc->output) / desc->output.size[desc->output.dims - 1])
        GG_FAIL_CLEANUP(GG_ERROR_SHAPE, "a linear layer changes the last axis of one input, not %s into %s",
                        gg_shape_text(&desc->input[0], in), gg_shape_text(&desc->output, given));
    GG_TRY_CLEANUP(gg_cuda_op_create(desc, &linear_class, 1, sizeof(linear_op), &head));
    linear_op *op = (linear_op *)head;
    op->device = gg_cuda_of(device);
    op->in = desc->input[0].size[last];
    op->out = desc->output.size[desc->output.dims - 1];
    op->rows = desc->batch * (gg_shape_count(&desc->input[0]) / op->in);
    op->dtype = dtype;
    head->prepared_once = true;
    head->input[0].dtype = head->output.dtype = op->dtype;
    if (op->dtype == GG_BFLOAT16)
        head->prepared_bytes = narrow_weight_bytes(op) + (desc->bias ? (size_t)op->out * sizeof(uint16_t) : 0);
    head->backward_needs_input = 1;
    head->backward_needs_output = desc->activation == GG_ACTIVATION_RELU;
    GG_TRY_CLEANUP(create_products(op));
    const gg_cuda_product *const products[3] = {&op->forward, &op->weights, &op->data};
    if (desc->training && desc->bias) head->scratch_bytes = gg_cuda_bias_backward_scratch(op->rows, op->out, 1);
    for (int i = 0; i < 3; ++i) {
        const size_t room = gg_cuda_workspace_room(products[i]->workspace);
        if (room > head->scratch_bytes) head->scratch_bytes = room;
    }
    *out = head;
    head = NULL;
cleanup:
    if (head != NULL) linear_destroy(head);
    return status;
}

/* Uses float32 if cuBLASLt has no bfloat16 product of these sizes. */
gg_status gg_cuda_linear_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = create_as(device, desc, desc->dtype, out);
    if (status != GG_ERROR_UNSUPPORTED || desc->dtype != GG_BFLOAT16) return status;
    return create_as(device, desc, GG_FLOAT32, out);
}
