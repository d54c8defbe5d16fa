/* What moves values: PERMUTE, SLICE, PAD, CONCAT and REORDER. */
#include "cuda/kernels_nn.h"
#include "cuda/ops.h"

static gg_status rearrange_forward(gg_op *head, const gg_op_args *args) {
    gg_cuda_rearrange(gg_cuda_element_stream(head), &head->desc, false, args->input[0], args->output);
    return gg_cuda_element_done(head);
}

static gg_status rearrange_backward(gg_op *head, const gg_op_args *args) {
    if (args->grad_input[0] == NULL) return GG_OK;
    gg_cuda_rearrange(gg_cuda_element_stream(head), &head->desc, true, args->grad_output, args->grad_input[0]);
    return gg_cuda_element_done(head);
}

static const gg_op_class rearrange_class = {
    .forward = rearrange_forward, .backward_data = rearrange_backward, .destroy = gg_cuda_op_free};

gg_status gg_cuda_rearrange_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    *out = NULL;
    if (desc->inputs != 1 || desc->input[0].dims != desc->output.dims)
        GG_FAIL(GG_ERROR_SHAPE, "%s: one input with as many axes as the output", gg_op_kind_name(desc->kind));
    GG_TRY(gg_cuda_element_create(device, desc, &rearrange_class, out));
cleanup:
    return status;
}

static gg_status concat_forward(gg_op *head, const gg_op_args *args) {
    for (int i = 0; i < head->desc.inputs; ++i)
        gg_cuda_concat(gg_cuda_element_stream(head), &head->desc, GG_LAYOUT_PLAIN, i, false, (float *)args->input[i],
                       args->output);
    return gg_cuda_element_done(head);
}

static gg_status concat_backward(gg_op *head, const gg_op_args *args) {
    for (int i = 0; i < head->desc.inputs; ++i)
        if (args->grad_input[i] != NULL)
            gg_cuda_concat(gg_cuda_element_stream(head), &head->desc, GG_LAYOUT_PLAIN, i, true, args->grad_input[i],
                           args->grad_output);
    return gg_cuda_element_done(head);
}

static const gg_op_class concat_class = {
    .forward = concat_forward, .backward_data = concat_backward, .destroy = gg_cuda_op_free};

gg_status gg_cuda_concat_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
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
        GG_FAIL(GG_ERROR_SHAPE, "concat: the inputs' first axes sum to %lld of %lld, or other axes differ",
                (long long)rows, (long long)desc->output.size[0]);
    GG_TRY(gg_cuda_element_create(device, desc, &concat_class, out));
cleanup:
    return status;
}

/* From one layout to another; `n` is of one that is not padded. */
static void move(const gg_op *head, gg_layout from_layout, gg_layout to_layout, const void *from, void *to) {
    const gg_op_desc *desc = &head->desc;
    const int64_t values = gg_shape_count(&desc->output);
    if (from_layout == to_layout) {
        const size_t bytes = gg_format_bytes(head->output, &desc->output, desc->batch);
        if (from != to)
            gg_cuda_memory.copy(&((const gg_cuda_element_op *)head)->device->head, GG_QUEUE_COMPUTE, to, from, bytes);
    } else if (from_layout == GG_LAYOUT_BATCH_LAST || to_layout == GG_LAYOUT_BATCH_LAST) {
        gg_cuda_transpose(gg_cuda_element_stream(head), desc->batch, values, to_layout == GG_LAYOUT_BATCH_LAST, from,
                          to);
    } else {
        gg_cuda_reorder(gg_cuda_element_stream(head), &desc->output, desc->batch, from_layout, to_layout, from, to);
    }
}

static gg_status reorder_forward(gg_op *head, const gg_op_args *args) {
    move(head, head->input[0].layout, head->output.layout, args->input[0], args->output);
    return gg_cuda_element_done(head);
}

static gg_status reorder_backward(gg_op *head, const gg_op_args *args) {
    if (args->grad_input[0] == NULL) return GG_OK;
    move(head, head->output.layout, head->input[0].layout, args->grad_output, args->grad_input[0]);
    return gg_cuda_element_done(head);
}

static const gg_op_class reorder_class = {
    .forward = reorder_forward, .backward_data = reorder_backward, .destroy = gg_cuda_op_free};

static bool is_known(gg_layout layout, const gg_shape *shape) {
    return layout == GG_LAYOUT_PLAIN || layout == GG_LAYOUT_BATCH_LAST ||
           (layout == GG_LAYOUT_NHWC && shape->dims == 3);
}

gg_status gg_cuda_reorder_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    const gg_format from = desc->offered[0], to = desc->wanted_output;
    const bool lanes = from.layout == GG_LAYOUT_BATCH_LAST || to.layout == GG_LAYOUT_BATCH_LAST;
    const bool channels = from.layout == GG_LAYOUT_NHWC || to.layout == GG_LAYOUT_NHWC;
    *out = NULL;
    if (from.dtype != GG_FLOAT32 || to.dtype != GG_FLOAT32 || !is_known(from.layout, &desc->output) ||
        !is_known(to.layout, &desc->output) || (lanes && channels))
        GG_FAIL(GG_ERROR_UNSUPPORTED, "reorder on a GPU: not from %s %s to %s %s", gg_dtype_name(from.dtype),
                gg_layout_name(from.layout), gg_dtype_name(to.dtype), gg_layout_name(to.layout));
    GG_TRY(gg_cuda_element_create(device, desc, &reorder_class, out));
    (*out)->input[0] = from;
    (*out)->output = to;
cleanup:
    return status;
}
