/* Linear layers: inner products over PLAIN rows, with PLAIN weights. oneDNN would choose blocked weights, which need a
 * reorder of the weights and of their gradient in each step. From 8 to 64 rows these were slower or at best equal in
 * all three passes. The weight gradient was up to three times slower.
 *
 * The gradients of weight and bias are our own. A strategy may compute any run of the weight's elsewhere, with equal
 * bits. Large ones are faster (1024 to 1000, 4 rows: 151 us instead of 205). Small ones are slower (800 to 500: 33 us
 * instead of 21).
 *
 * Float32 layers over positions are refused; the native table then computes them. */
#include <string.h>

#include "cpu/cpu_backend.h"
#include "cpu/gemm/gemm_kernels.h"
#include "cpu/gemm/packed_products.h"
#include "cpu/onednn_common.h"

typedef struct linear {
    gg_dnn_op *op;
    const_dnnl_memory_desc_t input, output, weight, bias; /* bias NULL means none */
    const_dnnl_memory_desc_t weight_transposed, bias_row; /* views of this memory as (in, out) and (1, out) */
    dnnl_primitive_desc_t forward;
} linear;

/* Forward as a matrix product: its kernels read large plain weights up to 2.4 times faster than the inner product's.
 * For backward data the inner product is faster. NULL means that this CPU has no such kernels. */
static gg_status onednn_linear_product(linear *it, dnnl_primitive_desc_t *out) {
    gg_status status = GG_OK;
    gg_dnn_op *op = it->op;
    GG_DNN_PD_CLEANUP(op, out, dnnl_matmul_primitive_desc_create, op->engine, it->input, it->weight_transposed,
                      it->bias_row, it->output, op->plain_attr);
    if (gg_dnn_is_slow(*out)) *out = NULL;
cleanup:
    return status == GG_ERROR_UNSUPPORTED ? GG_OK : status;
}

static gg_status onednn_linear_add_forward(linear *it) {
    gg_dnn_op *op = it->op;
    const gg_op_desc *desc = &op->head.desc;
    dnnl_primitive_desc_t fast = NULL;
    /* always made: the backward passes need it as a hint */
    GG_DNN_PD(op, &it->forward, dnnl_inner_product_forward_primitive_desc_create, op->engine,
              desc->training ? dnnl_forward_training : dnnl_forward_inference, it->input, it->weight, it->bias,
              it->output, op->plain_attr);
    GG_TRY(onednn_linear_product(it, &fast));
    const gg_dnn_bind bind[4] = {
        {DNNL_ARG_SRC, it->input, gg_dnn_at(GG_DNN_INPUT)},
        {DNNL_ARG_WEIGHTS, fast != NULL ? it->weight_transposed : it->weight, gg_dnn_parameter(GG_PARAMETER_WEIGHT)},
        {DNNL_ARG_BIAS, fast != NULL ? it->bias_row : it->bias, gg_dnn_parameter(GG_PARAMETER_BIAS)},
        {DNNL_ARG_DST, it->output, gg_dnn_at(GG_DNN_OUTPUT)}};
    return gg_dnn_add(op, GG_DNN_FORWARD, "linear", gg_dnn_at(GG_DNN_ALWAYS), fast != NULL ? fast : it->forward, 4,
                      bind);
}

/* Weight gradient of a layer over positions: (out, rows) times (rows, in). */
static gg_sgemm weights_product(const gg_op_desc *desc, const gg_op_args *args) {
    const int64_t in = desc->input[0].size[desc->input[0].dims - 1], out = desc->output.size[desc->output.dims - 1];
    return (gg_sgemm){.m = out,
                      .n = in,
                      .k = desc->batch * gg_shape_count(&desc->output) / out,
                      .a = args->grad_output,
                      .b = args->input[0],
                      .c = args->gradient != NULL ? args->gradient[GG_PARAMETER_WEIGHT] : NULL,
                      .lda = out,
                      .ldb = in,
                      .ldc = in,
                      .transpose_a = true,
                      .read_behind = true};
}

/* Runs after the primitives, which leave the error before the activation in grad_output. oneDNN's products for the
 * weights change bits with the number of threads. */
static void parameter_gradients(gg_device *device, const gg_dnn_op *op, const gg_op_args *args) {
    const gg_op_desc *desc = &op->head.desc;
    const int64_t in = desc->input[0].size[desc->input[0].dims - 1], out = desc->output.size[desc->output.dims - 1];
    const int64_t rows = desc->batch * gg_shape_count(&desc->output) / out;
    const float *error = args->grad_output;
    if (desc->bias) gg_cpu_column_sums(device, rows, out, error, out, args->gradient[GG_PARAMETER_BIAS]);
    if (args->gradient[GG_PARAMETER_WEIGHT] == NULL) return;
    if (desc->input[0].dims > 1) {
        const gg_sgemm product = weights_product(desc, args);
        gg_sgemm_run(device->isa, &product, device->threads, args->scratch);
        return;
    }
    /* Gives the bits of any part of the gradient. */
    const gg_weight_gradient_args all = {.batch = rows,
                                         .in = in,
                                         .error = error,
                                         .input = args->input[0],
                                         .error_row = out,
                                         .count = in * out,
                                         .out = args->gradient[GG_PARAMETER_WEIGHT]};
    gg_cpu_weight_gradient(device, &all);
}

static gg_status onednn_linear_add_backward(linear *it) {
    gg_dnn_op *op = it->op;
    const gg_dnn_place grad_input = gg_dnn_at(GG_DNN_GRAD_INPUT);
    dnnl_primitive_desc_t data = NULL;

    op->behind[GG_DNN_WEIGHTS] = parameter_gradients;
    if (op->head.desc.input[0].dims > 1) {
        const gg_op_args none = {0};
        const gg_sgemm product = weights_product(&op->head.desc, &none);
        const size_t bytes = gg_sgemm_scratch(op->device->isa, &product, op->threads);
        if (bytes > op->head.scratch_bytes) op->head.scratch_bytes = bytes;
    }
    op->head.backward_needs_input = 1;
    if (!op->head.desc.input_grad) return GG_OK;

    GG_DNN_PD(op, &data, dnnl_inner_product_backward_data_primitive_desc_create, op->engine, it->input, it->weight,
              it->output, it->forward, op->plain_attr);
    const gg_dnn_bind bind[3] = {{DNNL_ARG_DIFF_SRC, it->input, grad_input},
                                 {DNNL_ARG_WEIGHTS, it->weight, gg_dnn_parameter(GG_PARAMETER_WEIGHT)},
                                 {DNNL_ARG_DIFF_DST, it->output, gg_dnn_at(GG_DNN_GRAD_OUTPUT)}};
    return gg_dnn_add(op, GG_DNN_DATA, "linear backward data", grad_input, data, 3, bind);
}

/* Layers over positions are left to the native table in two cases. With AVX2 only, because oneDNN's bits depend on the
 * number of threads. If the native table has packed products, because they are faster. */
static bool is_left_to_native(gg_isa isa, int64_t rows, int64_t outputs, int64_t inputs) {
    const gg_sgemm forward = {.m = rows, .n = outputs, .k = inputs};
    return isa == GG_ISA_AVX2 || isa == GG_ISA_AVX512F || gg_packed_products_for(isa, &forward) != NULL;
}

static gg_status onednn_linear_direct(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    linear it = {0};
    char in_text[GG_SHAPE_TEXT], out_text[GG_SHAPE_TEXT];
    const gg_shape *in = &desc->input[0], *made = &desc->output;
    *out = NULL;
    bool fits = desc->inputs == 1 && in->dims >= 1 && in->dims == made->dims;
    int64_t rows = desc->batch;
    for (int i = 0; fits && i < in->dims - 1; i++) {
        fits = in->size[i] == made->size[i];
        rows *= in->size[i];
    }
    if (!fits)
        GG_FAIL_CLEANUP(GG_ERROR_SHAPE,
                        "linear has one input, of which it changes the last axis, not %d of shape %s to %s",
                        desc->inputs, gg_shape_text(in, in_text), gg_shape_text(made, out_text));
    const int64_t inputs = in->size[in->dims - 1], outputs = made->size[made->dims - 1];
    if (desc->dtype == GG_FLOAT32 && in->dims > 1 && is_left_to_native(device->isa, rows, outputs, inputs))
        GG_FAIL_CLEANUP(GG_ERROR_UNSUPPORTED, "linear over %lld positions of %lld to %lld: left to the table '%s'",
                        (long long)rows, (long long)inputs, (long long)outputs, gg_backend_native.name);
    if (desc->activation == GG_ACTIVATION_GELU)
        GG_FAIL_CLEANUP(GG_ERROR_UNSUPPORTED, "oneDNN's linear layer has no GELU here");
    GG_TRY_CLEANUP(gg_dnn_op_create(device, desc, &it.op));
    if (it.op->dtype == GG_BFLOAT16) {
        status = gg_dnn_linear_narrow(it.op, rows);
        goto cleanup;
    }
    const int64_t input[2] = {rows, inputs}, output[2] = {rows, outputs}, weight[2] = {outputs, inputs};
    const int64_t transposed[2] = {inputs, outputs}, row[2] = {1, outputs};
    GG_TRY_CLEANUP(gg_dnn_md(it.op, 2, input, GG_FLOAT32, dnnl_ab, &it.input));
    GG_TRY_CLEANUP(gg_dnn_md(it.op, 2, output, GG_FLOAT32, dnnl_ab, &it.output));
    GG_TRY_CLEANUP(gg_dnn_md(it.op, 2, weight, GG_FLOAT32, dnnl_ab, &it.weight));
    GG_TRY_CLEANUP(gg_dnn_md(it.op, 2, transposed, GG_FLOAT32, dnnl_ba, &it.weight_transposed));
    if (desc->bias) {
        GG_TRY_CLEANUP(gg_dnn_md(it.op, 1, &outputs, GG_FLOAT32, dnnl_a, &it.bias));
        GG_TRY_CLEANUP(gg_dnn_md(it.op, 2, row, GG_FLOAT32, dnnl_ab, &it.bias_row));
    }
    GG_TRY_CLEANUP(onednn_linear_add_forward(&it));
    if (desc->activation == GG_ACTIVATION_RELU) GG_TRY_CLEANUP(gg_dnn_add_relu(it.op));
    if (desc->training) GG_TRY_CLEANUP(onednn_linear_add_backward(&it));
cleanup:
    return gg_dnn_op_finish(status, it.op, out);
}

gg_status gg_dnn_linear_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    const bool widened = desc->algorithm == GG_ALGORITHM_WIDENED && gg_dnn_dtype_of(device, desc) == GG_BFLOAT16;
    return widened ? gg_cpu_widened_create(device, desc, onednn_linear_direct, out)
                   : onednn_linear_direct(device, desc, out);
}
