/* Max and average pooling in the offered layout. `saved` stores the place of each max. */
#include <math.h>

#include "cpu/native.h"
#include "cpu/onednn_common.h"

/* Chooses the algorithm with PyTorch's divisor. With counted padding, PyTorch clips a window at the padding's edge.
 * oneDNN's full window differs only if the last window reaches beyond the padding (ceil_mode). */
static gg_status onednn_pool_algorithm(const gg_op_desc *desc, const int64_t right[2], dnnl_alg_kind_t *out) {
    const gg_window *window = &desc->pool;
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

/* oneDNN's max ignores NaN, but PyTorch's result is NaN. The whole input is searched for a NaN, which costs less than
 * the pooling. Each window is searched only if there is one. */

/* The place of an element of an image in its layout. */
static size_t place_of(gg_layout layout, const gg_shape *shape, int64_t n, int64_t c, int64_t h, int64_t w) {
    const int64_t channels = shape->size[0], height = shape->size[1], width = shape->size[2];
    const int64_t block = layout == GG_LAYOUT_CHANNELS16 ? 16 : layout == GG_LAYOUT_CHANNELS8 ? 8 : 1;
    const int64_t blocks = (channels + block - 1) / block;
    if (layout == GG_LAYOUT_NHWC) return (size_t)(((n * height + h) * width + w) * channels + c);
    return (size_t)((((n * blocks + c / block) * height + h) * width + w) * block + c % block);
}

static bool is_nan(gg_dtype dtype, const void *data, size_t at) {
    if (dtype == GG_BFLOAT16) return (((const uint16_t *)data)[at] & 0x7fffu) > 0x7f80u;
    return isnan(((const float *)data)[at]);
}

/* Place of the last NaN in its window, row by row; -1 means none. */
static int64_t last_nan(const gg_op_desc *desc, gg_format format, const void *input, int64_t n, int64_t c, int64_t h,
                        int64_t w) {
    const gg_window *window = &desc->pool;
    const gg_shape *shape = &desc->input[0];
    int64_t found = -1;
    for (int64_t i = 0; i < window->kernel[0]; i++) {
        const int64_t row = h * window->stride[0] - window->padding[0] + i * window->dilation[0];
        for (int64_t j = 0; j < window->kernel[1]; j++) {
            const int64_t column = w * window->stride[1] - window->padding[1] + j * window->dilation[1];
            if (row < 0 || row >= shape->size[1] || column < 0 || column >= shape->size[2]) continue;
            if (is_nan(format.dtype, input, place_of(format.layout, shape, n, c, row, column)))
                found = i * window->kernel[1] + j;
        }
    }
    return found;
}

/* Any number of values. */
static bool all_finite(gg_device *device, gg_dtype dtype, size_t n, const void *data) {
    if (dtype == GG_BFLOAT16) return gg_cpu_all_finite_narrow(device, n, data);
    const float *values = data;
    size_t at = n / GG_LANES * GG_LANES;
    bool finite = gg_cpu_all_finite(device, at, values);
    for (; finite && at < n; ++at) finite = isfinite(values[at]);
    return finite;
}

/* Writes NaN to the outputs of windows with a NaN, and stores its place as that of the max. */
static void pass_nan(gg_device *device, const gg_dnn_op *op, const gg_op_args *args) {
    const gg_op_desc *desc = &op->head.desc;
    const gg_format format = op->head.output;
    const gg_shape *shape = &desc->output;
    const size_t size = gg_dtype_size(op->dtype), bytes = gg_format_bytes(format, shape, desc->batch);
    const size_t inputs = gg_format_bytes(op->head.input[0], &desc->input[0], desc->batch) / size;
    const size_t place_bytes = op->head.saved_bytes / (bytes / size);
    const bool narrow = op->dtype == GG_BFLOAT16;
    if (all_finite(device, op->dtype, inputs, args->input[0])) return;
    for (int64_t n = 0; n < desc->batch; n++)
        for (int64_t c = 0; c < shape->size[0]; c++)
            for (int64_t h = 0; h < shape->size[1]; h++)
                for (int64_t w = 0; w < shape->size[2]; w++) {
                    const int64_t found = last_nan(desc, format, args->input[0], n, c, h, w);
                    const size_t at = place_of(format.layout, shape, n, c, h, w);
                    if (found < 0) continue;
                    if (narrow) ((uint16_t *)args->output)[at] = 0x7fc0;
                    else ((float *)args->output)[at] = NAN;
                    if (args->saved == NULL) continue;
                    if (place_bytes == 1) ((uint8_t *)args->saved)[at] = (uint8_t)found;
                    else if (place_bytes == 4) ((int32_t *)args->saved)[at] = (int32_t)found;
                }
}

/* right: right padding that oneDNN needs. */
static gg_status onednn_pool_check(const gg_op_desc *desc, int64_t right[2]) {
    char in[GG_SHAPE_TEXT], out[GG_SHAPE_TEXT];
    const char *name = gg_op_kind_name(desc->kind);
    const gg_window *window = &desc->pool;
    if (desc->activation != GG_ACTIVATION_NONE) return gg_fail(GG_ERROR_UNSUPPORTED, "%s has no activation here", name);
    if (desc->inputs != 1 || desc->input[0].dims != 3 || desc->output.dims != 3 ||
        desc->input[0].size[0] != desc->output.size[0])
        return gg_fail(GG_ERROR_SHAPE, "%s has one image and the same number of channels, not %d of shape %s to %s",
                       name, desc->inputs, gg_shape_text(&desc->input[0], in), gg_shape_text(&desc->output, out));
    for (int i = 0; i < 2; i++) {
        GG_TRY(gg_dnn_window(desc, i, &right[i]));
        if (desc->kind == GG_OP_AVG_POOL2D && window->dilation[i] > 1)
            return gg_fail(GG_ERROR_UNSUPPORTED, "%s has no dilation, but it is %lld", name,
                           (long long)window->dilation[i]);
        if (2 * window->padding[i] > window->dilation[i] * (window->kernel[i] - 1) + 1)
            return gg_fail(GG_ERROR_ARGUMENT, "%s: the padding %lld must be at most half of the kernel %lld", name,
                           (long long)window->padding[i], (long long)window->kernel[i]);
        if (!gg_window_covers(window, i, desc->input[0].size[1 + i], desc->output.size[1 + i]))
            return gg_fail(GG_ERROR_SHAPE, "%s: a window holds no element of the image", name);
    }
    return GG_OK;
}

static gg_status create_pool(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    gg_dnn_op *op = NULL;
    dnnl_primitive_desc_t forward = NULL, backward = NULL;
    const_dnnl_memory_desc_t input = NULL, output = NULL, workspace = NULL;
    dnnl_dims_t stride = {0}, kernel = {0}, dilation = {0}, left = {0}, right = {0};
    dnnl_alg_kind_t kind;
    const char *name = gg_op_kind_name(desc->kind);
    *out = NULL;
    GG_TRY_CLEANUP(onednn_pool_check(desc, right));
    for (int i = 0; i < 2; i++) {
        stride[i] = desc->pool.stride[i];
        kernel[i] = desc->pool.kernel[i];
        left[i] = desc->pool.padding[i];
        dilation[i] = desc->pool.dilation[i] - 1;
    }
    GG_TRY_CLEANUP(onednn_pool_algorithm(desc, right, &kind));
    GG_TRY_CLEANUP(gg_dnn_op_create(device, desc, &op));
    gg_layout layout = desc->offered[0].layout;
    if (layout == GG_LAYOUT_BATCH_LAST) layout = GG_LAYOUT_PLAIN;
    op->head.input[0].layout = op->head.output.layout = layout;
    GG_TRY_CLEANUP(gg_dnn_batch_md(op, op->head.input[0], &desc->input[0], &input));
    GG_TRY_CLEANUP(gg_dnn_batch_md(op, op->head.output, &desc->output, &output));
    GG_DNN_PD_CLEANUP(op, &forward, dnnl_pooling_forward_primitive_desc_create, op->engine,
                      desc->training ? dnnl_forward_training : dnnl_forward_inference, kind, input, output, stride,
                      kernel, dilation, left, right, op->plain_attr);
    if (desc->training && kind == dnnl_pooling_max) {
        workspace = dnnl_primitive_desc_query_md(forward, dnnl_query_workspace_md, 0);
        if (workspace != NULL) op->head.saved_bytes = dnnl_memory_desc_get_size(workspace);
        if (op->head.saved_bytes == 0) workspace = NULL;
    }
    const gg_dnn_bind bind[3] = {{DNNL_ARG_SRC, input, gg_dnn_at(GG_DNN_INPUT)},
                                 {DNNL_ARG_DST, output, gg_dnn_at(GG_DNN_OUTPUT)},
                                 {DNNL_ARG_WORKSPACE, workspace, gg_dnn_at(GG_DNN_SAVED)}};
    GG_TRY_CLEANUP(gg_dnn_add(op, GG_DNN_FORWARD, name, gg_dnn_at(GG_DNN_ALWAYS), forward, 3, bind));
    if (kind == dnnl_pooling_max) op->behind[GG_DNN_FORWARD] = pass_nan;
    if (!desc->training || !desc->input_grad) goto cleanup;
    GG_DNN_PD_CLEANUP(op, &backward, dnnl_pooling_backward_primitive_desc_create, op->engine, kind, input, output,
                      stride, kernel, dilation, left, right, forward, op->plain_attr);
    const gg_dnn_bind bind2[3] = {{DNNL_ARG_DIFF_SRC, input, gg_dnn_at(GG_DNN_GRAD_INPUT)},
                                  {DNNL_ARG_DIFF_DST, output, gg_dnn_at(GG_DNN_GRAD_OUTPUT)},
                                  {DNNL_ARG_WORKSPACE, workspace, gg_dnn_at(GG_DNN_SAVED)}};
    GG_TRY_CLEANUP(gg_dnn_add(op, GG_DNN_DATA, name, gg_dnn_at(GG_DNN_GRAD_INPUT), backward, 3, bind2));
cleanup:
    return gg_dnn_op_finish(status, op, out);
}

/* With a fused ReLU the native table pools; it has this layout too. */
gg_status gg_dnn_pool_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    const bool cut = desc->activation != GG_ACTIVATION_NONE && desc->offered[0].layout == GG_LAYOUT_CHANNELS16;
    return cut ? gg_native_pool_create(device, desc, out) : create_pool(device, desc, out);
}
