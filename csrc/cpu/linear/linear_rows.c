/* Linear layer over the last axis of PLAIN samples. The positions of all samples are rows of one matrix:
 *   Y = X W^T + b,   dX = dY W,   dW = dY^T X.
 * For a fused GELU its slopes are saved and replace its inputs in backward. */
#include <string.h>

#include "base/parallel.h"
#include "cpu/gemm/gemm_kernels.h"
#include "cpu/native.h"

typedef struct rows_op {
    gg_op head;
    gg_device *device;
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
                      .bias = op->head.desc.bias ? args->parameter[GG_PARAMETER_BIAS] : NULL,
                      .transpose_b = true,
                      .relu = op->head.desc.activation == GG_ACTIVATION_RELU};
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

static gg_sgemm weight_product(const rows_op *op, const gg_op_args *args) {
    return (gg_sgemm){.m = op->out,
                      .n = op->in,
                      .k = op->rows,
                      .a = args->grad_output,
                      .b = args->input[0],
                      .c = args->gradient != NULL ? args->gradient[GG_PARAMETER_WEIGHT] : NULL,
                      .lda = op->out,
                      .ldb = op->in,
                      .ldc = op->in,
                      .transpose_a = true,
                      .read_behind = true};
}

static const gg_cpu_elementwise *elementwise(const rows_op *op) {
    return gg_cpu_device_kernels(op->device)->elementwise;
}

static void gelu_rows(void *context, int thread, int threads) {
    const rows_job *j = context;
    const rows_op *op = j->op;
    const gg_cpu_elementwise *kernels = elementwise(op);
    const bool tanh_form = op->head.desc.gelu.tanh_form;
    size_t begin, end;
    gg_parallel_split((size_t)(op->rows * op->out), GG_LANES, thread, threads, &begin, &end);
    float *y = (float *)j->args->output + begin;
    if (!op->head.desc.training || j->args->evaluate) {
        (tanh_form ? kernels->gelu_tanh : kernels->gelu)(end - begin, y, y);
    } else {
        float *slope = (float *)j->args->saved + begin;
        (tanh_form ? kernels->gelu_tanh_and_slope : kernels->gelu_and_slope)(end - begin, y, y, slope);
    }
}

static void slope_rows(void *context, int thread, int threads) {
    const rows_job *j = context;
    float *dy = j->args->grad_output;
    size_t begin, end;
    gg_parallel_split((size_t)(j->op->rows * j->op->out), GG_LANES, thread, threads, &begin, &end);
    elementwise(j->op)->multiply(end - begin, dy + begin, (const float *)j->args->saved + begin, dy + begin);
}

static void mask_rows(void *context, int thread, int threads) {
    const rows_job *j = context;
    const rows_op *op = j->op;
    const float *y = j->args->output;
    float *dy = j->args->grad_output;
    size_t begin, end;
    gg_parallel_split((size_t)(op->rows * op->out), GG_LANES, thread, threads, &begin, &end);
    elementwise(op)->relu_backward(end - begin, y + begin, dy + begin, dy + begin);
}

static void run_on_outputs(const rows_op *op, const gg_op_args *args, gg_parallel_fn part) {
    rows_job j = {.op = op, .args = args};
    gg_parallel_run(gg_cpu_threads_for(op->device, (size_t)(op->rows * op->out)), part, &j);
}

static gg_status rows_forward(gg_op *head, const gg_op_args *args) {
    const rows_op *op = (rows_op *)head;
    const gg_sgemm product = forward_product(op, args);
    gg_sgemm_run(op->device->isa, &product, op->device->threads, args->scratch);
    if (head->desc.activation == GG_ACTIVATION_GELU) run_on_outputs(op, args, gelu_rows);
    return GG_OK;
}

static gg_status rows_backward_weights(gg_op *head, const gg_op_args *args) {
    const rows_op *op = (rows_op *)head;
    const float *dy = args->grad_output;
    if (head->desc.activation == GG_ACTIVATION_RELU) run_on_outputs(op, args, mask_rows);
    if (head->desc.activation == GG_ACTIVATION_GELU) run_on_outputs(op, args, slope_rows);
    if (head->desc.bias)
        gg_cpu_column_sums(op->device, op->rows, op->out, dy, op->out, args->gradient[GG_PARAMETER_BIAS]);
    if (args->gradient[GG_PARAMETER_WEIGHT] != NULL) {
        const gg_sgemm product = weight_product(op, args);
        gg_sgemm_run(op->device->isa, &product, op->device->threads, args->scratch);
    }
    return GG_OK;
}

static gg_status rows_backward_data(gg_op *head, const gg_op_args *args) {
    const rows_op *op = (rows_op *)head;
    if (args->grad_input[0] != NULL) {
        const gg_sgemm product = data_product(op, args);
        gg_sgemm_run(op->device->isa, &product, op->device->threads, args->scratch);
    }
    return GG_OK;
}

static const gg_op_class rows_class = {.forward = rows_forward,
                                       .backward_weights = rows_backward_weights,
                                       .backward_data = rows_backward_data,
                                       .destroy = gg_native_op_free};

gg_status gg_native_linear_rows_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_op *head = NULL;
    *out = NULL;
    GG_TRY(gg_native_op_create(desc, &rows_class, sizeof(rows_op), &head));
    rows_op *op = (rows_op *)head;
    op->device = device;
    op->in = desc->input[0].size[desc->input[0].dims - 1];
    op->out = desc->output.size[desc->output.dims - 1];
    op->rows = desc->batch * (gg_shape_count(&desc->input[0]) / op->in);
    head->input[0].layout = head->output.layout = GG_LAYOUT_PLAIN;
    head->backward_needs_input = 1;
    head->backward_needs_output = desc->activation == GG_ACTIVATION_RELU;
    if (desc->training && desc->activation == GG_ACTIVATION_GELU)
        head->saved_bytes = (size_t)(op->rows * op->out) * sizeof(float);
    const gg_op_args none = {.parameter = (const float *const[]){NULL, NULL}};
    const gg_sgemm products[] = {forward_product(op, &none), data_product(op, &none), weight_product(op, &none)};
    for (int i = 0; i < (desc->training ? 3 : 1); ++i) {
        const size_t bytes = gg_sgemm_scratch(device->isa, &products[i], device->threads);
        if (bytes > head->scratch_bytes) head->scratch_bytes = bytes;
    }
    *out = head;
    return GG_OK;
}
