/* Creation of every operation's head in the CUDA table, and the operations' failures. */
#include "cuda/ops.h"

#include "base/memory.h"

gg_status gg_cuda_op_create(const gg_op_desc *desc, const gg_op_class *type, int integers, size_t bytes, gg_op **out) {
    *out = NULL;
    if (desc->inputs < 1 || desc->inputs > GG_MAX_INPUTS)
        return gg_fail(GG_ERROR_ARGUMENT, "%s has 1 to %d inputs, not %d", gg_op_kind_name(desc->kind), GG_MAX_INPUTS,
                       desc->inputs);
    if (desc->batch < 1)
        return gg_fail(GG_ERROR_ARGUMENT, "the batch must be at least 1, not %lld", (long long)desc->batch);
    for (int i = 0; i < desc->inputs; ++i) {
        const gg_dtype dtype = desc->offered[i].dtype;
        if (i < integers ? dtype != GG_FLOAT32 && dtype != GG_BFLOAT16 : dtype != GG_INT32)
            return gg_fail(GG_ERROR_UNSUPPORTED, "%s on a GPU: input %d is %s; allowed is %s",
                           gg_op_kind_name(desc->kind), i, gg_dtype_name(dtype),
                           i < integers ? "float32 or bfloat16" : "int32");
    }
    gg_op *op;
    GG_TRY(gg_calloc(1, bytes, "an operation", &op));
    op->type = type;
    op->backend = GG_CUDA_NAME;
    op->desc = *desc;
    for (int i = 0; i < desc->inputs; ++i)
        op->input[i] = (gg_format){i < integers ? GG_FLOAT32 : GG_INT32, GG_LAYOUT_PLAIN};
    op->output = (gg_format){GG_FLOAT32, GG_LAYOUT_PLAIN};
    *out = op;
    return GG_OK;
}

void gg_cuda_op_free(gg_op *op) { gg_free(op); }

gg_status gg_cuda_op_done(gg_cuda_device *device, const char *kernel) {
    gg_cuda_launched(device, kernel);
    return device->failed == GG_OK ? GG_OK : gg_cuda_memory.check(&device->head, (gg_mark){0});
}

/* ------------------------------------------------------------------------------------------ one kernel */

gg_format gg_cuda_offered_format(const gg_op_desc *desc, unsigned forms) {
    bool narrow = desc->dtype == GG_BFLOAT16 && (forms & GG_CUDA_BFLOAT16) != 0, nhwc = false;
    for (int i = 0; i < desc->inputs; ++i) {
        narrow = narrow && desc->offered[i].dtype == GG_BFLOAT16;
        nhwc = nhwc || (desc->offered[i].layout == GG_LAYOUT_NHWC && desc->input[i].dims == 3);
    }
    return (gg_format){narrow ? GG_BFLOAT16 : GG_FLOAT32,
                       nhwc && (forms & GG_CUDA_NHWC) != 0 ? GG_LAYOUT_NHWC : GG_LAYOUT_PLAIN};
}

gg_status gg_cuda_element_create(gg_device *device, const gg_op_desc *desc, const gg_op_class *type, unsigned forms,
                                 gg_op **out) {
    GG_TRY(gg_cuda_op_create(desc, type, desc->inputs, sizeof(gg_cuda_element_op), out));
    gg_cuda_element_op *op = (gg_cuda_element_op *)*out;
    op->device = gg_cuda_of(device);
    op->n = (size_t)(gg_shape_count(&desc->output) * desc->batch);
    op->outer = desc->batch;
    op->channels = desc->output.size[0];
    op->inner = gg_shape_count(&desc->output) / op->channels;
    op->head.output = gg_cuda_offered_format(desc, forms);
    for (int i = 0; i < desc->inputs; ++i) op->head.input[i] = op->head.output;
    if (op->head.output.layout == GG_LAYOUT_NHWC) {
        op->outer *= op->inner;
        op->inner = 1;
    }
    return GG_OK;
}

gg_status gg_cuda_check_same_shapes(const gg_op_desc *desc) {
    char given[GG_SHAPE_TEXT], wanted[GG_SHAPE_TEXT];
    for (int i = 0; i < desc->inputs; ++i)
        if (!gg_shape_equal(&desc->input[i], &desc->output))
            return gg_fail(GG_ERROR_SHAPE, "%s: input %d is %s, the output %s", gg_op_kind_name(desc->kind), i,
                           gg_shape_text(&desc->input[i], given), gg_shape_text(&desc->output, wanted));
    return GG_OK;
}

gg_cuda_stream gg_cuda_element_stream(const gg_op *head) {
    gg_cuda_device *device = ((const gg_cuda_element_op *)head)->device;
    gg_cuda_enter(device);
    return gg_cuda_compute(device);
}

gg_status gg_cuda_element_done(const gg_op *head) {
    return gg_cuda_op_done(((const gg_cuda_element_op *)head)->device, gg_op_kind_name(head->desc.kind));
}

void gg_cuda_element_copy(const gg_op *head, void *to, const void *from) {
    const gg_cuda_element_op *op = (const gg_cuda_element_op *)head;
    const size_t bytes = op->n * gg_dtype_size(head->output.dtype);
    if (to != from) gg_cuda_memory.copy(&op->device->head, GG_QUEUE_COMPUTE, to, from, bytes);
}
