/* MAX_POOL2D, AVG_POOL2D and ADAPTIVE_AVG_POOL2D. */
#include <limits.h>

#include "cuda/kernels_nn.h"
#include "cuda/ops.h"

static gg_status pool_forward(gg_op *head, const gg_op_args *args) {
    gg_cuda_pool(gg_cuda_element_stream(head), &head->desc, head->input[0], args->input[0], args->output,
                 head->saved_bytes > 0 ? args->saved : NULL);
    return gg_cuda_element_done(head);
}

static gg_status pool_backward(gg_op *head, const gg_op_args *args) {
    if (args->grad_input[0] == NULL) return GG_OK;
    gg_cuda_pool_backward(gg_cuda_element_stream(head), &head->desc, head->input[0], args->grad_output, args->saved,
                          args->grad_input[0]);
    return gg_cuda_element_done(head);
}

static const gg_op_class pool_class = {
    .forward = pool_forward, .backward_data = pool_backward, .destroy = gg_cuda_op_free};

static gg_status check_pool_axis(const gg_op_desc *desc, int a) {
    static const char *const axes[2] = {"height", "width"};
    const gg_window *w = &desc->pool;
    const char *name = gg_op_kind_name(desc->kind);
    const int64_t in = desc->input[0].size[1 + a], outputs = desc->output.size[1 + a];
    if (w->kernel[a] < 1 || w->stride[a] < 1 || w->dilation[a] < 1 || w->padding[a] < 0 || w->kernel[a] > 32768 ||
        w->padding[a] > (w->dilation[a] * (w->kernel[a] - 1) + 1) / 2 ||
        (desc->kind == GG_OP_AVG_POOL2D && w->dilation[a] != 1))
        return gg_fail(GG_ERROR_ARGUMENT,
                       "%s, %s: kernel %lld, stride %lld, dilation %lld, padding %lld are out of range", name, axes[a],
                       (long long)w->kernel[a], (long long)w->stride[a], (long long)w->dilation[a],
                       (long long)w->padding[a]);
    if (gg_window_output(w, a, in, w->ceil_mode) != outputs)
        return gg_fail(GG_ERROR_SHAPE, "%s, %s: windows over %lld elements do not give %lld outputs", name, axes[a],
                       (long long)in, (long long)outputs);
    if (!gg_window_covers(w, a, in, outputs))
        return gg_fail(GG_ERROR_SHAPE, "%s, %s: a window holds no element of the image", name, axes[a]);
    return GG_OK;
}

gg_status gg_cuda_pool_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    *out = NULL;
    if (desc->inputs != 1 || desc->input[0].dims != 3 || desc->output.dims != 3 ||
        desc->input[0].size[0] != desc->output.size[0])
        return gg_fail(GG_ERROR_SHAPE, "%s maps one image (C, H, W) to another of as many channels",
                       gg_op_kind_name(desc->kind));
    if (gg_shape_count(&desc->input[0]) > INT_MAX || gg_shape_count(&desc->output) > INT_MAX)
        return gg_fail(GG_ERROR_UNSUPPORTED, "%s on a GPU: a sample has more than %d values",
                       gg_op_kind_name(desc->kind), INT_MAX);
    for (int a = 0; a < 2 && desc->kind != GG_OP_ADAPTIVE_AVG_POOL2D; ++a) GG_TRY(check_pool_axis(desc, a));
    GG_TRY(gg_cuda_element_create(device, desc, &pool_class, GG_CUDA_BFLOAT16 | GG_CUDA_NHWC, out));
    /* With one value a channel, all layouts are equal: PLAIN avoids a later reorder. */
    if (desc->output.size[1] == 1 && desc->output.size[2] == 1) (*out)->output.layout = GG_LAYOUT_PLAIN;
    (*out)->saved_bytes = desc->training ? gg_cuda_pool_saved(desc) : 0;
    return GG_OK;
}
