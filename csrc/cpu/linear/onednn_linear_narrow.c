/* Linear layers in bfloat16: inner products over PLAIN rows. Weights are prepared, for forward and backward data, in
 * the blocks of bfloat16 that the kernels read. Gradients of weight and bias are float32, in the parameters' layout.
 * Sums are float32. */
#include <string.h>

#include "cpu/onednn_common.h"

typedef struct linear {
    gg_dnn_op *op;
    const_dnnl_memory_desc_t input, output, bias; /* bias NULL means none */
    const_dnnl_memory_desc_t weight, weight_any;  /* the parameter, and as the kernels read it */
    dnnl_primitive_desc_t forward;
} linear;

static gg_status narrow_linear_forward(linear *it) {
    gg_dnn_op *op = it->op;
    gg_dnn_place weight;
    GG_DNN_PD(op, &it->forward, dnnl_inner_product_forward_primitive_desc_create, op->engine,
              op->head.desc.training ? dnnl_forward_training : dnnl_forward_inference, it->input, it->weight_any,
              it->bias, it->output, op->plain_attr);
    const_dnnl_memory_desc_t md = dnnl_primitive_desc_query_md(it->forward, dnnl_query_weights_md, 0);
    GG_TRY(gg_dnn_read_weight(op, GG_DNN_PREPARE_FORWARD, "linear weights", it->weight, md, &weight));
    const gg_dnn_bind bind[4] = {{DNNL_ARG_SRC, it->input, gg_dnn_at(GG_DNN_INPUT)},
                                 {DNNL_ARG_WEIGHTS, md, weight},
                                 {DNNL_ARG_BIAS, it->bias, gg_dnn_parameter(GG_PARAMETER_BIAS)},
                                 {DNNL_ARG_DST, it->output, gg_dnn_at(GG_DNN_OUTPUT)}};
    return gg_dnn_add(op, GG_DNN_FORWARD, "linear", gg_dnn_at(GG_DNN_ALWAYS), it->forward, 4, bind);
}

/* Bias gradient alone, if the weight gradient is computed elsewhere. */
static void bias_alone(gg_device *device, const gg_dnn_op *op, const gg_op_args *args) {
    enum { COLUMNS = 256 };
    const gg_op_desc *desc = &op->head.desc;
    const int64_t out = desc->output.size[desc->output.dims - 1];
    const int64_t rows = desc->batch * gg_shape_count(&desc->output) / out;
    const uint16_t *error = args->grad_output;
    if (!desc->bias || args->gradient[GG_PARAMETER_WEIGHT] != NULL) return;
    for (int64_t at = 0; at < out; at += COLUMNS) {
        const int64_t count = out - at < COLUMNS ? out - at : COLUMNS;
        float row[COLUMNS];
        double sum[COLUMNS] = {0};
        for (int64_t i = 0; i < rows; i++) {
            gg_cpu_widen_any(gg_cpu_device_kernels(device), (size_t)count, error + i * out + at, row);
            for (int64_t k = 0; k < count; k++) sum[k] += (double)row[k];
        }
        for (int64_t k = 0; k < count; k++) args->gradient[GG_PARAMETER_BIAS][at + k] = (float)sum[k];
    }
}

static gg_status narrow_linear_weights(linear *it) {
    gg_dnn_op *op = it->op;
    const gg_dnn_place wanted = gg_dnn_gradient(GG_PARAMETER_WEIGHT);
    dnnl_primitive_desc_t pd = NULL;
    GG_DNN_PD(op, &pd, dnnl_inner_product_backward_weights_primitive_desc_create, op->engine, it->input, it->weight,
              it->bias, it->output, it->forward, op->plain_attr);
    const gg_dnn_bind bind[4] = {{DNNL_ARG_SRC, it->input, gg_dnn_at(GG_DNN_INPUT)},
                                 {DNNL_ARG_DIFF_DST, it->output, gg_dnn_at(GG_DNN_GRAD_OUTPUT)},
                                 {DNNL_ARG_DIFF_WEIGHTS, it->weight, wanted},
                                 {DNNL_ARG_DIFF_BIAS, it->bias, gg_dnn_gradient(GG_PARAMETER_BIAS)}};
    GG_TRY(gg_dnn_add(op, GG_DNN_WEIGHTS, "linear backward weights", wanted, pd, 4, bind));
    op->behind[GG_DNN_WEIGHTS] = bias_alone;
    op->head.backward_needs_input = 1;
    return GG_OK;
}

static gg_status narrow_linear_data(linear *it) {
    gg_dnn_op *op = it->op;
    gg_dnn_place weight;
    dnnl_primitive_desc_t pd = NULL;
    GG_DNN_PD(op, &pd, dnnl_inner_product_backward_data_primitive_desc_create, op->engine, it->input, it->weight_any,
              it->output, it->forward, op->plain_attr);
    const_dnnl_memory_desc_t md = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    GG_TRY(gg_dnn_read_weight(op, GG_DNN_PREPARE_DATA, "linear weights", it->weight, md, &weight));
    const gg_dnn_bind bind[3] = {{DNNL_ARG_DIFF_SRC, it->input, gg_dnn_at(GG_DNN_GRAD_INPUT)},
                                 {DNNL_ARG_WEIGHTS, md, weight},
                                 {DNNL_ARG_DIFF_DST, it->output, gg_dnn_at(GG_DNN_GRAD_OUTPUT)}};
    return gg_dnn_add(op, GG_DNN_DATA, "linear backward data", gg_dnn_at(GG_DNN_GRAD_INPUT), pd, 3, bind);
}

gg_status gg_dnn_linear_narrow(gg_dnn_op *op, int64_t rows) {
    const gg_op_desc *desc = &op->head.desc;
    const int64_t inputs = desc->input[0].size[desc->input[0].dims - 1];
    const int64_t outputs = desc->output.size[desc->output.dims - 1];
    const int64_t input[2] = {rows, inputs}, output[2] = {rows, outputs}, weight[2] = {outputs, inputs};
    linear it = {.op = op};
    GG_TRY(gg_dnn_md(op, 2, input, GG_BFLOAT16, dnnl_ab, &it.input));
    GG_TRY(gg_dnn_md(op, 2, output, GG_BFLOAT16, dnnl_ab, &it.output));
    GG_TRY(gg_dnn_md(op, 2, weight, GG_FLOAT32, dnnl_ab, &it.weight));
    GG_TRY(gg_dnn_md(op, 2, weight, GG_BFLOAT16, dnnl_format_tag_any, &it.weight_any));
    if (desc->bias) GG_TRY(gg_dnn_md(op, 1, &outputs, GG_FLOAT32, dnnl_a, &it.bias));
    GG_TRY(narrow_linear_forward(&it));
    if (desc->activation == GG_ACTIVATION_RELU) GG_TRY(gg_dnn_add_relu(op));
    if (!desc->training) return GG_OK;
    GG_TRY(narrow_linear_weights(&it));
    if (desc->input_grad) GG_TRY(narrow_linear_data(&it));
    return GG_OK;
}
