/* Maximum and average pooling, in the layout that is offered. Which value was the maximum is kept in `saved`. */
#include "cpu/onednn/common.h"

/* The algorithm whose divisor is PyTorch's: with the padding counted PyTorch clips a window at the padding's edge,
 * which only differs from oneDNN's full window in a last one that reaches beyond it (ceil_mode). */
static gg_status onednn_pool_algorithm(const gg_op_desc *desc, const int64_t right[2], dnnl_alg_kind_t *out) {
    const gg_window *window = &desc->window;
    bool beyond = right[0] > window->padding[0] || right[1] > window->padding[1];
    bool padded = window->padding[0] > 0 || window->padding[1] > 0;
    *out = dnnl_pooling_max;
    if (desc->kind == GG_OP_MAX_POOL2D) return GG_OK;
    *out = dnnl_pooling_avg_exclude_padding;
    if (beyond && padded && window->count_include_pad)
        return gg_fail(GG_ERROR_UNSUPPORTED,
                       "oneDNN's average pooling counts the padding of a clipped last window differently");
    if (!beyond && (!padded || window->count_include_pad)) *out = dnnl_pooling_avg_include_padding;
    return GG_OK;
}

gg_status gg_dnn_pool_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    gg_dnn_op *op = NULL;
    dnnl_primitive_desc_t forward = NULL, backward = NULL;
    const_dnnl_memory_desc_t input = NULL, output = NULL, workspace = NULL;
    dnnl_dims_t stride = {0}, kernel = {0}, dilation = {0}, left = {0}, right = {0};
    dnnl_alg_kind_t kind;
    char in_text[GG_SHAPE_TEXT], out_text[GG_SHAPE_TEXT];
    const char *name = gg_op_kind_name(desc->kind);
    *out = NULL;
    if (desc->inputs != 1 || desc->input[0].dims != 3 || desc->output.dims != 3 ||
        desc->input[0].size[0] != desc->output.size[0])
        return gg_fail(GG_ERROR_SHAPE, "%s takes one image and keeps its channels, not %d of shape %s to %s", name,
                       desc->inputs, gg_shape_text(&desc->input[0], in_text), gg_shape_text(&desc->output, out_text));
    for (int i = 0; i < 2; i++) {
        GG_TRY(gg_dnn_window(desc, i, &right[i]));
        stride[i] = desc->window.stride[i];
        kernel[i] = desc->window.kernel[i];
        left[i] = desc->window.padding[i];
        dilation[i] = desc->window.dilation[i] - 1;
        if (desc->kind == GG_OP_AVG_POOL2D && dilation[i] > 0)
            return gg_fail(GG_ERROR_UNSUPPORTED, "%s has no dilation, but it is %lld", name,
                           (long long)desc->window.dilation[i]);
        if (2 * left[i] > dilation[i] * (kernel[i] - 1) + kernel[i])
            return gg_fail(GG_ERROR_ARGUMENT, "%s: the padding %lld must be at most half of the kernel %lld", name,
                           (long long)left[i], (long long)kernel[i]);
        if (!gg_window_covers(&desc->window, i, desc->input[0].size[1 + i], desc->output.size[1 + i]))
            return gg_fail(GG_ERROR_SHAPE, "%s: a window holds no element of the image", name);
    }
    GG_TRY(onednn_pool_algorithm(desc, right, &kind));
    GG_TRY(gg_dnn_op_create(device, desc, &op));
    gg_layout layout = desc->offered[0].layout;
    if (layout == GG_LAYOUT_BATCH_LAST) layout = GG_LAYOUT_PLAIN;
    op->head.input[0].layout = op->head.output.layout = layout;
    GG_TRY(gg_dnn_batch_md(op, op->head.input[0], &desc->input[0], &input));
    GG_TRY(gg_dnn_batch_md(op, op->head.output, &desc->output, &output));
    GG_DNN_PD(op, &forward, dnnl_pooling_forward_primitive_desc_create, op->engine,
              desc->training ? dnnl_forward_training : dnnl_forward_inference, kind, input, output, stride, kernel,
              dilation, left, right, op->plain_attr);
    if (desc->training && kind == dnnl_pooling_max) {
        workspace = dnnl_primitive_desc_query_md(forward, dnnl_query_workspace_md, 0);
        if (workspace != NULL) op->head.saved_bytes = dnnl_memory_desc_get_size(workspace);
        if (op->head.saved_bytes == 0) workspace = NULL;
    }
    const gg_dnn_bind bind[3] = {{DNNL_ARG_SRC, input, gg_dnn_at(GG_DNN_INPUT)},
                                 {DNNL_ARG_DST, output, gg_dnn_at(GG_DNN_OUTPUT)},
                                 {DNNL_ARG_WORKSPACE, workspace, gg_dnn_at(GG_DNN_SAVED)}};
    GG_TRY(gg_dnn_add(op, GG_DNN_FORWARD, name, gg_dnn_at(GG_DNN_ALWAYS), forward, 3, bind));
    if (!desc->training || !desc->input_grad) goto cleanup;
    GG_DNN_PD(op, &backward, dnnl_pooling_backward_primitive_desc_create, op->engine, kind, input, output, stride,
              kernel, dilation, left, right, forward, op->plain_attr);
    const gg_dnn_bind bind2[3] = {{DNNL_ARG_DIFF_SRC, input, gg_dnn_at(GG_DNN_GRAD_INPUT)},
                                  {DNNL_ARG_DIFF_DST, output, gg_dnn_at(GG_DNN_GRAD_OUTPUT)},
                                  {DNNL_ARG_WORKSPACE, workspace, gg_dnn_at(GG_DNN_SAVED)}};
    GG_TRY(gg_dnn_add(op, GG_DNN_BACKWARD, name, gg_dnn_at(GG_DNN_GRAD_INPUT), backward, 3, bind2));
cleanup:
    return gg_dnn_op_finish(status, op, out);
}
