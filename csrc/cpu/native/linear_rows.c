/* The linear layer over the last axis of samples that lie PLAIN: the positions of all samples are rows of one matrix,
 *   Y = X W^T + b,   dX = dY W,   dW = dY^T X.
 * The weight's gradient is computed as that of other linear layers is. */
#include <string.h>

#include "base/parallel.h"
#include "cpu/gemm_kernels.h"
#include "cpu/native/native.h"

typedef struct rows_op {
    gg_op head;
    gg_device *device;
    const gg_gemm_kernels *kernels;
    int64_t rows, in, out;
} rows_op;

typedef struct rows_job {
    const rows_op *op;
    const gg_op_args *args;
} rows_job;

static gg_sgemm forward_product(const rows_op *op, const gg_op_args *args) {
    return (gg_sgemm){.m = op->rows,
                      .n = op->out,
                      .k = op->in,
                      .a = args->input[0],
                      .b = args->parameter[GG_PARAMETER_WEIGHT],
                      .c = args->output,
                      .lda = op->in,
                      .ldb = op->in,
                      .ldc = op->out,
                      .transpose_b = true,
                      .add = op->head.desc.bias};
}

static gg_sgemm data_product(const rows_op *op, const gg_op_args *args) {
    return (gg_sgemm){.m = op->rows,
                      .n = op->in,
                      .k = op->out,
                      .a = args->grad_output,
                      .b = args->parameter[GG_PARAMETER_WEIGHT],
                      .c = args->grad_input[0],
                      .lda = op->out,
                      .ldb = op->in,
                      .ldc = op->in};
}

static void start_with_bias(void *context, int thread, int threads) {
    const rows_job *j = context;
    const rows_op *op = j->op;
    float *y = j->args->output;
    size_t begin, end;
    gg_parallel_split((size_t)op->rows, 1, thread, threads, &begin, &end);
    for (size_t i = begin; i < end; ++i)
        memcpy(y + (int64_t)i * op->out, j->args->parameter[GG_PARAMETER_BIAS], (size_t)op->out * sizeof(float));
}

static void relu_of_rows(void *context, int thread, int threads) {
    const rows_job *j = context;
    const rows_op *op = j->op;
    float *y = j->args->output;
    size_t begin, end;
    gg_parallel_split((size_t)(op->rows * op->out), GG_LANES, thread, threads, &begin, &end);
    gg_cpu_device_kernels(op->device)->elementwise->relu(end - begin, y + begin, y + begin);
}

static void mask_rows(void *context, int thread, int threads) {
    const rows_job *j = context;
    const rows_op *op = j->op;
    const float *y = j->args->output;
    float *dy = j->args->grad_output;
    size_t begin, end;
    gg_parallel_split((size_t)(op->rows * op->out), GG_LANES, thread, threads, &begin, &end);
    gg_cpu_device_kernels(op->device)->elementwise->relu_backward(end - begin, y + begin, dy + begin, dy + begin);
}

static gg_status rows_forward(gg_op *head, const gg_op_args *args) {
    const rows_op *op = (rows_op *)head;
    rows_job j = {.op = op, .args = args};
    const gg_sgemm product = forward_product(op, args);
    const int threads = gg_cpu_threads_for(op->device, (size_t)(op->rows * op->out));
    if (head->desc.bias) gg_parallel_run(threads, start_with_bias, &j);
    gg_sgemm_run(op->kernels, &product, op->device->threads, args->scratch);
    if (head->desc.activation == GG_ACTIVATION_RELU) gg_parallel_run(threads, relu_of_rows, &j);
    return GG_OK;
}

static gg_status rows_backward_weights(gg_op *head, const gg_op_args *args) {
    const rows_op *op = (rows_op *)head;
    rows_job j = {.op = op, .args = args};
    const float *dy = args->grad_output;
    if (head->desc.activation == GG_ACTIVATION_RELU)
        gg_parallel_run(gg_cpu_threads_for(op->device, (size_t)(op->rows * op->out)), mask_rows, &j);
    if (head->desc.bias) gg_cpu_column_sums(op->device, op->rows, op->out, dy, args->gradient[GG_PARAMETER_BIAS]);
    if (args->gradient[GG_PARAMETER_WEIGHT] != NULL) {
        const gg_weight_gradient_args all = {.batch = op->rows,
                                             .in = op->in,
                                             .error = dy,
                                             .input = args->input[0],
                                             .error_row = op->out,
                                             .count = op->in * op->out,
                                             .out = args->gradient[GG_PARAMETER_WEIGHT]};
        gg_cpu_weight_gradient(op->device, &all);
    }
    return GG_OK;
}

static gg_status rows_backward_data(gg_op *head, const gg_op_args *args) {
    const rows_op *op = (rows_op *)head;
    if (args->grad_input[0] != NULL) {
        const gg_sgemm product = data_product(op, args);
        gg_sgemm_run(op->kernels, &product, op->device->threads, args->scratch);
    }
    return GG_OK;
}

static const gg_op_class rows_class = {.forward = rows_forward,
                                       .backward_weights = rows_backward_weights,
                                       .backward_data = rows_backward_data,
                                       .destroy = gg_native_op_free};

gg_status gg_native_linear_rows_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    gg_op *head = NULL;
    *out = NULL;
    const gg_gemm_kernels *kernels = gg_gemm_kernels_for(device->isa);
    if (kernels == NULL)
        GG_FAIL(GG_ERROR_UNSUPPORTED, "no linear layer for the instruction set %s here", gg_isa_name(device->isa));
    GG_TRY(gg_native_op_create(desc, &rows_class, sizeof(rows_op), &head));
    rows_op *op = (rows_op *)head;
    op->device = device;
    op->kernels = kernels;
    op->in = desc->input[0].size[desc->input[0].dims - 1];
    op->out = desc->output.size[desc->output.dims - 1];
    op->rows = desc->batch * (gg_shape_count(&desc->input[0]) / op->in);
    head->input[0].layout = head->output.layout = GG_LAYOUT_PLAIN;
    head->backward_needs_input = true;
    head->backward_needs_output = desc->activation == GG_ACTIVATION_RELU;
    const gg_op_args none = {.parameter = (const float *const[]){NULL}};
    const gg_sgemm forward = forward_product(op, &none), data = data_product(op, &none);
    head->scratch_bytes = gg_sgemm_scratch(kernels, &forward, device->threads);
    const size_t back = desc->training ? gg_sgemm_scratch(kernels, &data, device->threads) : 0;
    if (back > head->scratch_bytes) head->scratch_bytes = back;
    *out = head;
cleanup:
    return status;
}
