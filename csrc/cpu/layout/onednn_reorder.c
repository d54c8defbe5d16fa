/* Operations that move data without computing: REORDER and CONCAT. */
#include "cpu/onednn_common.h"

gg_status gg_dnn_reorder_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    gg_dnn_op *op = NULL;
    const_dnnl_memory_desc_t from = NULL, to = NULL;
    const gg_dnn_place always = gg_dnn_at(GG_DNN_ALWAYS), grad_input = gg_dnn_at(GG_DNN_GRAD_INPUT);
    *out = NULL;
    if (desc->inputs != 1 || !gg_shape_equal(&desc->input[0], &desc->output)) {
        char in[GG_SHAPE_TEXT], made[GG_SHAPE_TEXT];
        GG_FAIL_CLEANUP(GG_ERROR_SHAPE, "reorder has one input of the output's shape, not %d of shape %s to %s",
                        desc->inputs, gg_shape_text(&desc->input[0], in), gg_shape_text(&desc->output, made));
    }
    GG_TRY_CLEANUP(gg_dnn_op_create(device, desc, &op));
    op->head.input[0] = desc->offered[0];
    op->head.output = desc->wanted_output;
    GG_TRY_CLEANUP(gg_dnn_batch_md(op, op->head.input[0], &desc->input[0], &from));
    GG_TRY_CLEANUP(gg_dnn_batch_md(op, op->head.output, &desc->output, &to));
    GG_TRY_CLEANUP(gg_dnn_add_reorder(op, GG_DNN_FORWARD, "reorder", always, from, gg_dnn_at(GG_DNN_INPUT), to,
                                      gg_dnn_at(GG_DNN_OUTPUT)));
    if (desc->training && desc->input_grad)
        GG_TRY_CLEANUP(gg_dnn_add_reorder(op, GG_DNN_DATA, "reorder backward", grad_input, to,
                                          gg_dnn_at(GG_DNN_GRAD_OUTPUT), from, grad_input));
cleanup:
    return gg_dnn_op_finish(status, op, out);
}

/* The first input's layout; NHWC if its blocks of channels would have to be cut. */
static gg_layout concat_layout(const gg_op_desc *desc) {
    const gg_layout layout = desc->offered[0].layout;
    const int64_t block = layout == GG_LAYOUT_CHANNELS16 ? 16 : layout == GG_LAYOUT_CHANNELS8 ? 8 : 1;
    if (layout == GG_LAYOUT_BATCH_LAST || desc->output.dims != 3) return GG_LAYOUT_PLAIN;
    for (int i = 0; i < desc->inputs; i++)
        if (desc->input[i].size[0] % block != 0) return GG_LAYOUT_NHWC;
    return layout;
}

gg_status gg_dnn_concat_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    gg_dnn_op *op = NULL;
    const_dnnl_memory_desc_t input[GG_MAX_INPUTS], output = NULL;
    dnnl_primitive_desc_t pd = NULL;
    gg_dnn_bind bind[GG_MAX_INPUTS + 1];
    dnnl_dims_t offset = {0};
    int64_t joined = 0;
    *out = NULL;
    GG_TRY_CLEANUP(gg_dnn_op_create(device, desc, &op));
    for (int i = 0; i < desc->inputs; i++) {
        const gg_shape *in = &desc->input[i], *made = &desc->output;
        bool fits = in->dims == made->dims && in->dims >= 1;
        for (int k = 1; fits && k < in->dims; k++) fits = in->size[k] == made->size[k];
        if (!fits) {
            char given[GG_SHAPE_TEXT], wanted[GG_SHAPE_TEXT];
            GG_FAIL_CLEANUP(GG_ERROR_SHAPE, "concat: input %d is %s, the output %s", i, gg_shape_text(in, given),
                            gg_shape_text(made, wanted));
        }
        joined += in->size[0];
    }
    if (joined != desc->output.size[0])
        GG_FAIL_CLEANUP(GG_ERROR_SHAPE, "concat: the inputs' first axes add up to %lld, the output's is %lld",
                        (long long)joined, (long long)desc->output.size[0]);
    op->head.output.layout = concat_layout(desc);
    GG_TRY_CLEANUP(gg_dnn_batch_md(op, op->head.output, &desc->output, &output));
    for (int i = 0; i < desc->inputs; i++) {
        op->head.input[i].layout = op->head.output.layout;
        GG_TRY_CLEANUP(gg_dnn_batch_md(op, op->head.input[i], &desc->input[i], &input[i]));
        bind[i] = (gg_dnn_bind){DNNL_ARG_MULTIPLE_SRC + i, input[i], {GG_DNN_INPUT, i, 0}};
    }
    GG_DNN_PD_CLEANUP(op, &pd, dnnl_concat_primitive_desc_create, op->engine, output, desc->inputs, 1, input,
                      op->plain_attr);
    bind[desc->inputs] = (gg_dnn_bind){DNNL_ARG_DST, output, gg_dnn_at(GG_DNN_OUTPUT)};
    GG_TRY_CLEANUP(gg_dnn_add(op, GG_DNN_FORWARD, "concat", gg_dnn_at(GG_DNN_ALWAYS), pd, desc->inputs + 1, bind));
    if (!desc->training || !desc->input_grad) goto cleanup;
    for (int i = 0; i < desc->inputs; i++) {
        const gg_dnn_place place = {GG_DNN_GRAD_INPUT, i, 0};
        const_dnnl_memory_desc_t part = NULL;
        GG_TRY_CLEANUP(gg_dnn_part_md(op, output, &desc->input[i], offset, &part));
        GG_TRY_CLEANUP(gg_dnn_add_reorder(op, GG_DNN_DATA, "concat backward", place, part,
                                          gg_dnn_at(GG_DNN_GRAD_OUTPUT), input[i], place));
        offset[1] += desc->input[i].size[0];
    }
cleanup:
    return gg_dnn_op_finish(status, op, out);
}
