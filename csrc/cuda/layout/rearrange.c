/* Operations that move values: PERMUTE, SLICE, PAD, CONCAT and REORDER. */
#include "cuda/kernels_nn.h"
#include "cuda/ops.h"

static gg_status rearrange_forward(gg_op *head, const gg_op_args *args) {
    gg_cuda_rearrange(gg_cuda_element_stream(head), &head->desc, head->output.dtype, false, args->input[0],
                      args->output);
    return gg_cuda_element_done(head);
}

static gg_status rearrange_backward(gg_op *head, const gg_op_args *args) {
    if (args->grad_input[0] == NULL) return GG_OK;
    gg_cuda_rearrange(gg_cuda_element_stream(head), &head->desc, head->output.dtype, true, args->grad_output,
                      args->grad_input[0]);
    return gg_cuda_element_done(head);
}

static const gg_op_class rearrange_class = {
    .forward = rearrange_forward, .backward_data = rearrange_backward, .destroy = gg_cuda_op_free};

gg_status gg_cuda_rearrange_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    *out = NULL;
    if (desc->inputs != 1 || desc->input[0].dims != desc->output.dims)
        return gg_fail(GG_ERROR_SHAPE, "%s: one input with as many axes as the output", gg_op_kind_name(desc->kind));
    return gg_cuda_element_create(device, desc, &rearrange_class, GG_CUDA_BFLOAT16, out);
}

static gg_status concat_forward(gg_op *head, const gg_op_args *args) {
    for (int i = 0; i < head->desc.inputs; ++i)
        gg_cuda_concat(gg_cuda_element_stream(head), &head->desc, head->output, i, false, (void *)args->input[i],
                       args->output);
    return gg_cuda_element_done(head);
}

static gg_status concat_backward(gg_op *head, const gg_op_args *args) {
    for (int i = 0; i < head->desc.inputs; ++i)
        if (args->grad_input[i] != NULL)
            gg_cuda_concat(gg_cuda_element_stream(head), &head->desc, head->output, i, true, args->grad_input[i],
                           args->grad_output);
    return gg_cuda_element_done(head);
}

static const gg_op_class concat_class = {
    .forward = concat_forward, .backward_data = concat_backward, .destroy = gg_cuda_op_free};

gg_status gg_cuda_concat_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    int64_t rows = 0;
    bool fits = true;
    *out = NULL;
    for (int i = 0; i < desc->inputs; ++i) {
        const gg_shape *in = &desc->input[i];
        rows += in->size[0];
        fits = fits && in->dims == desc->output.dims;
        for (int d = 1; fits && d < in->dims; ++d) fits = in->size[d] == desc->output.size[d];
    }
    if (!fits || rows != desc->output.size[0])
        return gg_fail(GG_ERROR_SHAPE, "concat: the inputs' first axes sum to %lld of %lld, or other axes differ",
                       (long long)rows, (long long)desc->output.size[0]);
    return gg_cuda_element_create(device, desc, &concat_class, GG_CUDA_BFLOAT16 | GG_CUDA_NHWC, out);
}

/* Converts between formats without padding, and in float32 from and to lanes. */
static void move(const gg_op *head, gg_format from_format, gg_format to_format, const void *from, void *to) {
    const gg_op_desc *desc = &head->desc;
    const int64_t values = gg_shape_count(&desc->output);
    const bool lanes = to_format.layout == GG_LAYOUT_BATCH_LAST, same = from_format.layout == to_format.layout;
    if (same && from_format.dtype == to_format.dtype) {
        const size_t bytes = gg_format_bytes(to_format, &desc->output, desc->batch);
        if (from != to)
            gg_cuda_memory.copy(&((const gg_cuda_element_op *)head)->device->head, GG_QUEUE_COMPUTE, to, from, bytes);
    } else if (lanes || from_format.layout == GG_LAYOUT_BATCH_LAST) {
        gg_cuda_transpose(gg_cuda_element_stream(head), desc->batch, values, lanes, from, to);
    } else {
        gg_cuda_reorder(gg_cuda_element_stream(head), &desc->output, desc->batch, from_format, to_format, from, to);
    }
}

static gg_status reorder_forward(gg_op *head, const gg_op_args *args) {
    move(head, head->input[0], head->output, args->input[0], args->output);
    return gg_cuda_element_done(head);
}

static gg_status reorder_backward(gg_op *head, const gg_op_args *args) {
    if (args->grad_input[0] == NULL) return GG_OK;
    move(head, head->output, head->input[0], args->grad_output, args->grad_input[0]);
    return gg_cuda_element_done(head);
}

static const gg_op_class reorder_class = {
    .forward = reorder_forward, .backward_data = reorder_backward, .destroy = gg_cuda_op_free};

static bool is_known(gg_format format, const gg_shape *shape) {
    if (format.layout == GG_LAYOUT_BATCH_LAST) return format.dtype == GG_FLOAT32;
    return (format.dtype == GG_FLOAT32 || format.dtype == GG_BFLOAT16) &&
           (format.layout == GG_LAYOUT_PLAIN || (format.layout == GG_LAYOUT_NHWC && shape->dims == 3));
}

gg_status gg_cuda_reorder_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    const gg_format from = desc->offered[0], to = desc->wanted_output;
    const bool lanes = from.layout == GG_LAYOUT_BATCH_LAST || to.layout == GG_LAYOUT_BATCH_LAST;
    const bool dense = from.layout == GG_LAYOUT_PLAIN || to.layout == GG_LAYOUT_PLAIN;
    const bool same = from.layout == to.layout && from.dtype == to.dtype, narrow = from.dtype != to.dtype;
    *out = NULL;
    if (!is_known(from, &desc->output) || !is_known(to, &desc->output) || (lanes && !same && (!dense || narrow)))
        return gg_fail(GG_ERROR_UNSUPPORTED, "reorder on a GPU: not from %s %s to %s %s", gg_dtype_name(from.dtype),
                       gg_layout_name(from.layout), gg_dtype_name(to.dtype), gg_layout_name(to.layout));
    GG_TRY(gg_cuda_element_create(device, desc, &reorder_class, 0, out));
    (*out)->input[0] = from;
    (*out)->output = to;
    return GG_OK;
}
