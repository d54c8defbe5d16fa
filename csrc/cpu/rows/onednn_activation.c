/* TANH, SIGMOID and ADD: element by element, in the offered layout and type. RELU is the native table's, which accepts
 * any layout too: oneDNN's turns NaN into 0. */
#include "cpu/native.h"
#include "cpu/onednn_common.h"

static gg_status check_shapes(const gg_op_desc *desc) {
    for (int i = 0; i < desc->inputs && i < GG_MAX_INPUTS; i++) {
        if (!gg_shape_equal(&desc->input[i], &desc->output)) {
            char given[GG_SHAPE_TEXT], wanted[GG_SHAPE_TEXT];
            return gg_fail(GG_ERROR_SHAPE, "%s: input %d is %s, the output %s", gg_op_kind_name(desc->kind), i,
                           gg_shape_text(&desc->input[i], given), gg_shape_text(&desc->output, wanted));
        }
    }
    return GG_OK;
}

/* Sets all inputs and the output to the first input's layout. Uses one row if padding may be computed too: zeros stay
 * zeros, except for the sigmoid of padded channels. */
static gg_status set_layout(gg_dnn_op *op, const_dnnl_memory_desc_t *md) {
    const gg_op_desc *desc = &op->head.desc;
    const gg_layout layout = desc->offered[0].layout;
    for (int i = 0; i < desc->inputs; i++) op->head.input[i].layout = layout;
    op->head.output.layout = layout;
    if (desc->kind == GG_OP_SIGMOID && (layout == GG_LAYOUT_CHANNELS16 || layout == GG_LAYOUT_CHANNELS8))
        return gg_dnn_batch_md(op, op->head.output, &desc->output, md);
    return gg_dnn_flat_md(op, gg_format_bytes(op->head.output, &desc->output, desc->batch), md);
}

gg_status gg_dnn_activation_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    gg_dnn_op *op = NULL;
    const_dnnl_memory_desc_t md = NULL;
    dnnl_primitive_desc_t forward = NULL, backward = NULL;
    const dnnl_alg_kind_t kind =
        desc->kind == GG_OP_TANH ? dnnl_eltwise_tanh_use_dst_for_bwd : dnnl_eltwise_logistic_use_dst_for_bwd;
    const char *name = gg_op_kind_name(desc->kind);
    *out = NULL;
    if (desc->inputs != 1) GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "%s has one input, not %d", name, desc->inputs);
    GG_TRY_CLEANUP(check_shapes(desc));
    GG_TRY_CLEANUP(gg_dnn_op_create(device, desc, &op));
    op->head.in_place = true;
    GG_TRY_CLEANUP(set_layout(op, &md));
    GG_DNN_PD_CLEANUP(op, &forward, dnnl_eltwise_forward_primitive_desc_create, op->engine,
                      desc->training ? dnnl_forward_training : dnnl_forward_inference, kind, md, md, 0, 0,
                      op->plain_attr);
    const gg_dnn_bind bind[2] = {{DNNL_ARG_SRC, md, gg_dnn_at(GG_DNN_INPUT)},
                                 {DNNL_ARG_DST, md, gg_dnn_at(GG_DNN_OUTPUT)}};
    GG_TRY_CLEANUP(gg_dnn_add(op, GG_DNN_FORWARD, name, gg_dnn_at(GG_DNN_ALWAYS), forward, 2, bind));
    if (!desc->training || !desc->input_grad) goto cleanup;
    GG_DNN_PD_CLEANUP(op, &backward, dnnl_eltwise_backward_primitive_desc_create, op->engine, kind, md, md, md, 0, 0,
                      forward, op->plain_attr);
    const gg_dnn_bind bind2[3] = {{DNNL_ARG_DST, md, gg_dnn_at(GG_DNN_OUTPUT)},
                                  {DNNL_ARG_DIFF_DST, md, gg_dnn_at(GG_DNN_GRAD_OUTPUT)},
                                  {DNNL_ARG_DIFF_SRC, md, gg_dnn_at(GG_DNN_GRAD_INPUT)}};
    GG_TRY_CLEANUP(gg_dnn_add(op, GG_DNN_DATA, name, gg_dnn_at(GG_DNN_GRAD_INPUT), backward, 3, bind2));
    op->head.backward_needs_output = true;
cleanup:
    return gg_dnn_op_finish(status, op, out);
}

static gg_status create_add(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    gg_dnn_op *op = NULL;
    const_dnnl_memory_desc_t md = NULL;
    dnnl_primitive_desc_t pd = NULL;
    *out = NULL;
    if (desc->inputs < 2) GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "add has at least 2 inputs, not %d", desc->inputs);
    GG_TRY_CLEANUP(check_shapes(desc));
    GG_TRY_CLEANUP(gg_dnn_op_create(device, desc, &op));
    GG_TRY_CLEANUP(set_layout(op, &md));
    gg_dnn_bind bind[GG_MAX_INPUTS + 1];
    const bool pair = desc->inputs == 2;
    op->head.in_place = pair;
    if (pair) {
        GG_DNN_PD_CLEANUP(op, &pd, dnnl_binary_primitive_desc_create, op->engine, dnnl_binary_add, md, md, md,
                          op->plain_attr);
    } else {
        const_dnnl_memory_desc_t all[GG_MAX_INPUTS];
        float scale[GG_MAX_INPUTS];
        for (int i = 0; i < desc->inputs; i++) {
            all[i] = md;
            scale[i] = 1;
        }
        GG_DNN_PD_CLEANUP(op, &pd, dnnl_sum_primitive_desc_create, op->engine, md, desc->inputs, scale, all,
                          op->plain_attr);
    }
    for (int i = 0; i < desc->inputs; i++)
        bind[i] = (gg_dnn_bind){
            pair ? (i == 0 ? DNNL_ARG_SRC_0 : DNNL_ARG_SRC_1) : DNNL_ARG_MULTIPLE_SRC + i, md, {GG_DNN_INPUT, i, 0}};
    bind[desc->inputs] = (gg_dnn_bind){DNNL_ARG_DST, md, gg_dnn_at(GG_DNN_OUTPUT)};
    GG_TRY_CLEANUP(gg_dnn_add(op, GG_DNN_FORWARD, "add", gg_dnn_at(GG_DNN_ALWAYS), pd, desc->inputs + 1, bind));
    if (!desc->training || !desc->input_grad) goto cleanup;
    for (int i = 0; i < desc->inputs; i++) { /* input 0's may be grad_output itself */
        const gg_dnn_place place = {GG_DNN_GRAD_INPUT, i, 0};
        GG_TRY_CLEANUP(
            gg_dnn_add_reorder(op, GG_DNN_DATA, "add backward", place, md, gg_dnn_at(GG_DNN_GRAD_OUTPUT), md, place));
    }
cleanup:
    return gg_dnn_op_finish(status, op, out);
}

/* A fused ReLU is left to the native table. */
gg_status gg_dnn_add_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    const bool plain = desc->activation == GG_ACTIVATION_NONE;
    return plain ? create_add(device, desc, out) : gg_native_add_create(device, desc, out);
}
