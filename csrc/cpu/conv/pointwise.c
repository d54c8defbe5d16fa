/* Direct convolution with 1 x 1 windows and stride 1 on BATCH_LAST activations. Uses packed products that count as the
 * direct algorithm (cpu/gemm/packed_products.h). This is a linear layer with the pixels of all lanes as samples; its
 * matrices already have that layout. */
#include "base/parallel.h"
#include "cpu/gemm/gemm_kernels.h"
#include "cpu/gemm/packed_products.h"
#include "cpu/linear/linear_private.h"
#include "cpu/native.h"

typedef struct pointwise_op {
    gg_op op;
    gg_isa isa;
    int threads;
    gg_native_features features; /* columns: the pixels of all lanes; all are summed */
    const gg_gemm_kernels *kernels;
    const gg_packed_products *packed[GG_PASS_COUNT];
} pointwise_op;

static void pointwise_run(const pointwise_op *op, gg_pass pass, const gg_op_args *args, const float *row_bias) {
    const gg_sgemm product = gg_native_linear_product(&op->features, pass, args);
    op->packed[pass]->run(op->isa, &product, row_bias, op->threads, args->scratch);
}

static gg_status pointwise_forward(gg_op *head, const gg_op_args *args) {
    const float *bias = head->desc.bias ? args->parameter[GG_PARAMETER_BIAS] : NULL;
    pointwise_run((const pointwise_op *)head, GG_PASS_FORWARD, args, bias);
    return GG_OK;
}

typedef struct pointwise_job {
    const pointwise_op *op;
    const gg_op_args *args;
} pointwise_job;

/* Numbers summed at a time: one sum over all pixels would lose digits. */
enum { SUMMED = 4096 };

/* Computes the error before the activation, and the bias gradient. */
static void pointwise_mask(void *context, int thread, int threads) {
    const pointwise_job *j = context;
    size_t begin, end;
    gg_parallel_split((size_t)j->op->features.out, 1, thread, threads, &begin, &end);
    gg_native_mask_rows(j->op->kernels, &j->op->op, j->args, SUMMED, (int64_t)begin, (int64_t)end);
}

static gg_status pointwise_backward_weights(gg_op *head, const gg_op_args *args) {
    const pointwise_op *op = (const pointwise_op *)head;
    if (head->desc.bias || head->desc.activation == GG_ACTIVATION_RELU)
        gg_parallel_run(op->threads, pointwise_mask, &(pointwise_job){op, args});
    pointwise_run(op, GG_PASS_WEIGHTS, args, NULL);
    return GG_OK;
}

static gg_status pointwise_backward_data(gg_op *head, const gg_op_args *args) {
    if (args->grad_input[0] != NULL) pointwise_run((const pointwise_op *)head, GG_PASS_DATA, args, NULL);
    return GG_OK;
}

static const gg_op_class pointwise_class = {.forward = pointwise_forward,
                                            .backward_weights = pointwise_backward_weights,
                                            .backward_data = pointwise_backward_data,
                                            .destroy = gg_native_op_free};

static bool is_pointwise(const gg_op_desc *desc) {
    const gg_window *w = &desc->conv.window;
    for (int axis = 0; axis < 2; ++axis)
        if (w->kernel[axis] != 1 || w->stride[axis] != 1 || w->padding[axis] != 0) return false;
    return desc->conv.groups == 1;
}

gg_status gg_native_pointwise_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    const gg_op_args none = {.parameter = (const float *const[]){NULL, NULL}};
    const int64_t *size = desc->output.size, pixels = size[1] * size[2] * gg_lanes_padded(desc->batch);
    pointwise_op shape = {.isa = device->isa,
                          .threads = device->threads,
                          .features = {.in = desc->input[0].size[0],
                                       .out = size[0],
                                       .columns = pixels,
                                       .summed = pixels,
                                       .relu = desc->activation == GG_ACTIVATION_RELU},
                          .kernels = gg_cpu_device_kernels(device)->gemm};
    size_t scratch = 0;
    *out = NULL;
    if (!is_pointwise(desc))
        return gg_fail(GG_ERROR_UNSUPPORTED, "packed products are of windows of 1 x 1 with stride 1");
    for (int pass = 0; pass < GG_PASS_COUNT; ++pass) {
        const gg_sgemm product = gg_native_linear_product(&shape.features, (gg_pass)pass, &none);
        shape.packed[pass] = gg_packed_products_for(device->isa, &product);
        if (shape.packed[pass] == NULL || shape.packed[pass]->convolution != desc->algorithm)
            return gg_fail(GG_ERROR_UNSUPPORTED, "no %s packed products pay for %lld to %lld channels, %lld pixels",
                           gg_algorithm_name(desc->algorithm), (long long)shape.features.in, (long long)size[0],
                           (long long)pixels);
        const size_t bytes = shape.packed[pass]->scratch(&product, device->threads);
        if (gg_op_has_pass(desc, (gg_pass)pass) && (pass == GG_PASS_FORWARD || desc->training) && bytes > scratch)
            scratch = bytes;
    }
    GG_TRY(gg_native_op_create(desc, &pointwise_class, sizeof(pointwise_op), out));
    shape.op = **out;
    shape.op.scratch_bytes = scratch;
    shape.op.backward_needs_input = gg_op_has_pass(desc, GG_PASS_WEIGHTS);
    shape.op.backward_needs_output = gg_op_has_pass(desc, GG_PASS_WEIGHTS) && desc->activation == GG_ACTIVATION_RELU;
    *(pointwise_op *)*out = shape;
    return GG_OK;
}
