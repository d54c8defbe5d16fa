/* Linear layers: inner products over PLAIN rows. */
#include "cpu/onednn/common.h"

typedef struct linear {
    gg_dnn_op *op;
    const_dnnl_memory_desc_t input, output, weight, weight_any, bias; /* bias NULL: none */
    dnnl_primitive_desc_t forward;
} linear;

/* A blocked copy of the weights costs one pass over them and pays from a few dozen rows on: with fewer the
 * product itself is bound by reading them. */
#define ROWS_THAT_PAY 48

static gg_status add_forward(linear *it, const_dnnl_memory_desc_t wanted) {
    gg_status status = GG_OK;
    gg_dnn_op *op = it->op;
    const gg_op_desc *desc = &op->head.desc;
    gg_dnn_place place;
    GG_DNN_PD(op, &it->forward, dnnl_inner_product_forward_primitive_desc_create, op->engine,
              desc->training ? dnnl_forward_training : dnnl_forward_inference, it->input, wanted, it->bias, it->output,
              desc->activation == GG_ACTIVATION_RELU ? op->relu_attr : op->plain_attr);
    const_dnnl_memory_desc_t weight = dnnl_primitive_desc_query_md(it->forward, dnnl_query_weights_md, 0);
    GG_TRY(gg_dnn_read_as(op, GG_DNN_FORWARD, "linear weights", gg_dnn_at(GG_DNN_ALWAYS), it->weight, gg_dnn_at(GG_DNN_WEIGHT),
                          weight, &place));
    const gg_dnn_bind bind[4] = {{DNNL_ARG_SRC, it->input, gg_dnn_at(GG_DNN_INPUT)},
                                 {DNNL_ARG_WEIGHTS, weight, place},
                                 {DNNL_ARG_BIAS, it->bias, gg_dnn_at(GG_DNN_BIAS)},
                                 {DNNL_ARG_DST, it->output, gg_dnn_at(GG_DNN_OUTPUT)}};
    GG_TRY(gg_dnn_add(op, GG_DNN_FORWARD, "linear", gg_dnn_at(GG_DNN_ALWAYS), it->forward, 4, bind));
cleanup:
    return status;
}

static gg_status add_backward(linear *it, const_dnnl_memory_desc_t wanted) {
    gg_status status = GG_OK;
    gg_dnn_op *op = it->op;
    const gg_dnn_place always = gg_dnn_at(GG_DNN_ALWAYS), grad_input = gg_dnn_at(GG_DNN_GRAD_INPUT);
    dnnl_primitive_desc_t weights = NULL, data = NULL;
    gg_dnn_place place;

    if (op->head.desc.activation == GG_ACTIVATION_RELU) GG_TRY(gg_dnn_add_relu_mask(op));
    GG_DNN_PD(op, &weights, dnnl_inner_product_backward_weights_primitive_desc_create, op->engine, it->input, wanted, it->bias,
              it->output, it->forward, op->plain_attr);
    const_dnnl_memory_desc_t dw = dnnl_primitive_desc_query_md(weights, dnnl_query_diff_weights_md, 0);
    const bool direct = dnnl_memory_desc_equal(dw, it->weight) != 0;
    place = direct ? gg_dnn_at(GG_DNN_GRAD_WEIGHT) : gg_dnn_temporary(op, GG_DNN_BACKWARD, dw);
    const gg_dnn_bind bind[4] = {{DNNL_ARG_SRC, it->input, gg_dnn_at(GG_DNN_INPUT)},
                                 {DNNL_ARG_DIFF_DST, it->output, gg_dnn_at(GG_DNN_GRAD_OUTPUT)},
                                 {DNNL_ARG_DIFF_WEIGHTS, dw, place},
                                 {DNNL_ARG_DIFF_BIAS, it->bias, gg_dnn_at(GG_DNN_GRAD_BIAS)}};
    GG_TRY(gg_dnn_add(op, GG_DNN_BACKWARD, "linear backward weights", always, weights, 4, bind));
    if (!direct)
        GG_TRY(gg_dnn_add_reorder(op, GG_DNN_BACKWARD, "linear weight gradient", always, dw, place, it->weight,
                                  gg_dnn_at(GG_DNN_GRAD_WEIGHT)));
    op->head.backward_needs_input = true;
    if (!op->head.desc.input_grad) goto cleanup;

    GG_DNN_PD(op, &data, dnnl_inner_product_backward_data_primitive_desc_create, op->engine, it->input, wanted, it->output,
              it->forward, op->plain_attr);
    const_dnnl_memory_desc_t w = dnnl_primitive_desc_query_md(data, dnnl_query_weights_md, 0);
    GG_TRY(gg_dnn_read_as(op, GG_DNN_BACKWARD, "linear weights", grad_input, it->weight, gg_dnn_at(GG_DNN_WEIGHT), w, &place));
    const gg_dnn_bind bind2[3] = {{DNNL_ARG_DIFF_SRC, it->input, grad_input},
                                  {DNNL_ARG_WEIGHTS, w, place},
                                  {DNNL_ARG_DIFF_DST, it->output, gg_dnn_at(GG_DNN_GRAD_OUTPUT)}};
    GG_TRY(gg_dnn_add(op, GG_DNN_BACKWARD, "linear backward data", grad_input, data, 3, bind2));
cleanup:
    return status;
}

gg_status gg_dnn_linear_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
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
        return gg_fail(GG_ERROR_SHAPE, "linear takes one input, whose last axis it changes, not %d of shape %s to %s",
                       desc->inputs, gg_shape_text(in, in_text), gg_shape_text(made, out_text));
    GG_TRY(gg_dnn_op_create(device, desc, &it.op));
    const int64_t taken = in->size[in->dims - 1], given = made->size[made->dims - 1];
    const int64_t input[2] = {rows, taken}, output[2] = {rows, given}, weight[2] = {given, taken};
    GG_TRY(gg_dnn_md(it.op, 2, input, GG_FLOAT32, dnnl_ab, &it.input));
    GG_TRY(gg_dnn_md(it.op, 2, output, GG_FLOAT32, dnnl_ab, &it.output));
    GG_TRY(gg_dnn_md(it.op, 2, weight, GG_FLOAT32, dnnl_ab, &it.weight));
    GG_TRY(gg_dnn_md(it.op, 2, weight, GG_FLOAT32, dnnl_format_tag_any, &it.weight_any));
    if (desc->bias) GG_TRY(gg_dnn_md(it.op, 1, &given, GG_FLOAT32, dnnl_a, &it.bias));
    const_dnnl_memory_desc_t wanted = rows >= ROWS_THAT_PAY ? it.weight_any : it.weight;
    GG_TRY(add_forward(&it, wanted));
    if (desc->training) GG_TRY(add_backward(&it, wanted));
cleanup:
    return gg_dnn_op_finish(status, it.op, out);
}
