/* Operations that move values without computing: REORDER and CONCAT. */
#include <string.h>

#include "cpu/native.h"

typedef struct move_op {
    gg_op head;
    gg_device *device;
} move_op;

/* ------------------------------------------------------------------------------------------ reorder */

static void native_reorder_move(const gg_op *op, gg_layout from, gg_layout to, const void *in, void *out) {
    const gg_op_desc *desc = &op->desc;
    if (from != to)
        gg_cpu_transpose(((const move_op *)op)->device, desc->batch, gg_shape_count(&desc->input[0]),
                         to == GG_LAYOUT_BATCH_LAST, in, out);
    else if (in != out) memcpy(out, in, gg_format_bytes(op->output, &desc->input[0], desc->batch));
}

static gg_status reorder_forward(gg_op *op, const gg_op_args *args) {
    native_reorder_move(op, op->input[0].layout, op->output.layout, args->input[0], args->output);
    return GG_OK;
}

static gg_status reorder_backward(gg_op *op, const gg_op_args *args) {
    if (args->grad_input[0] != NULL)
        native_reorder_move(op, op->output.layout, op->input[0].layout, args->grad_output, args->grad_input[0]);
    return GG_OK;
}

static const gg_op_class reorder_class = {
    .forward = reorder_forward, .backward_data = reorder_backward, .destroy = gg_native_op_free};

static bool native_reorder_known(gg_layout layout) {
    return layout == GG_LAYOUT_PLAIN || layout == GG_LAYOUT_BATCH_LAST;
}

gg_status gg_native_reorder_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    const gg_format from = desc->offered[0], to = desc->wanted_output;
    *out = NULL;
    if (from.dtype != GG_FLOAT32 || to.dtype != GG_FLOAT32 ||
        (from.layout != to.layout && !(native_reorder_known(from.layout) && native_reorder_known(to.layout))))
        return gg_fail(GG_ERROR_UNSUPPORTED, "native reorder: not from %s %s to %s %s", gg_dtype_name(from.dtype),
                       gg_layout_name(from.layout), gg_dtype_name(to.dtype), gg_layout_name(to.layout));
    GG_TRY(gg_native_op_create(desc, &reorder_class, sizeof(move_op), out));
    ((move_op *)*out)->device = device;
    (*out)->input[0] = from;
    (*out)->output = to;
    return GG_OK;
}

/* ------------------------------------------------------------------------------------------ concatenation */

/* In BATCH_LAST the first axis is the slowest, so the inputs are consecutive. */
static size_t input_bytes(const gg_op *op, int i) {
    return gg_format_bytes(op->input[i], &op->desc.input[i], op->desc.batch);
}

static gg_status concat_forward(gg_op *op, const gg_op_args *args) {
    char *out = args->output;
    for (int i = 0; i < op->desc.inputs; ++i) {
        memcpy(out, args->input[i], input_bytes(op, i));
        out += input_bytes(op, i);
    }
    return GG_OK;
}

static gg_status concat_backward(gg_op *op, const gg_op_args *args) {
    const char *in = args->grad_output;
    for (int i = 0; i < op->desc.inputs; ++i) {
        if (args->grad_input[i] != NULL) memcpy(args->grad_input[i], in, input_bytes(op, i));
        in += input_bytes(op, i);
    }
    return GG_OK;
}

static const gg_op_class concat_class = {
    .forward = concat_forward, .backward_data = concat_backward, .destroy = gg_native_op_free};

gg_status gg_native_concat_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    GG_TRY(gg_native_op_create(desc, &concat_class, sizeof(move_op), out));
    ((move_op *)*out)->device = device;
    int64_t rows = 0;
    bool fits = true;
    for (int i = 0; i < desc->inputs; ++i) {
        const gg_shape *in = &desc->input[i];
        rows += in->size[0];
        fits = fits && in->dims == desc->output.dims;
        for (int d = 1; fits && d < in->dims; ++d) fits = in->size[d] == desc->output.size[d];
    }
    if (!fits || rows != desc->output.size[0]) {
        gg_native_op_free(*out);
        *out = NULL;
        return gg_fail(GG_ERROR_SHAPE, "concat: the inputs' first axes sum to %lld of %lld, or other axes differ",
                       (long long)rows, (long long)desc->output.size[0]);
    }
    return GG_OK;
}
