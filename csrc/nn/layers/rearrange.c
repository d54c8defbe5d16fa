/* Another shape, another order of the axes, a part of one axis, zeros around one axis. Axes are those of a sample. */
#include "nn/layer.h"

static const gg_option reshape_options[] = {GG_LAYER_SIZES("shape", reshape), {.name = NULL}};
static const gg_option permute_options[] = {GG_LAYER_SIZES("order", order), {.name = NULL}};
static const gg_option slice_options[] = {GG_LAYER_NUMBER("axis", INT64, range.axis, 0, GG_ANY),
                                          GG_LAYER_NUMBER("begin", INT64, range.begin, 0, GG_ANY),
                                          GG_LAYER_NUMBER("end", INT64, range.end, 0, GG_ANY),
                                          GG_LAYER_NUMBER("step", INT64, range.step, 1, GG_AT_LEAST(1)),
                                          {.name = NULL}};
static const gg_option pad_options[] = {GG_LAYER_NUMBER("axis", INT64, pad.axis, 0, GG_ANY),
                                        GG_LAYER_PAIR("pads", pad.zeros, 0, GG_FROM_TO(0, GG_MAX_WINDOW)),
                                        {.name = NULL}};

static gg_status reshape_infer(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out) {
    char have[GG_SHAPE_TEXT], want[GG_SHAPE_TEXT];
    const int64_t count = gg_shape_count(&input[0]->shape);
    int64_t known = 1;
    int open = -1;
    *out = desc->reshape;
    for (int i = 0; i < out->dims; i++) {
        if (out->size[i] == -1 && open < 0) open = i;
        else if (out->size[i] < 1 || out->size[i] > count / known) known = 0;
        else known *= out->size[i];
        if (known == 0) break;
    }
    if (known > 0 && open >= 0 && count % known == 0) {
        out->size[open] = count / known;
        known = count;
    }
    if (out->dims < 1 || known != count)
        return gg_fail(GG_ERROR_SHAPE, "the %lld values of the input %s from '%s' do not have the shape %s",
                       (long long)count, gg_shape_text(&input[0]->shape, have), input[0]->desc.name,
                       gg_shape_text(&desc->reshape, want));
    return GG_OK;
}

static gg_status permute_infer(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out) {
    char have[GG_SHAPE_TEXT], want[GG_SHAPE_TEXT];
    const gg_shape *shape = &input[0]->shape;
    unsigned seen = 0;
    out->dims = shape->dims;
    for (int i = 0; i < shape->dims && desc->order.dims == shape->dims; i++) {
        const int64_t axis = desc->order.size[i];
        if (axis < 0 || axis >= shape->dims) break;
        seen |= 1u << axis;
        out->size[i] = shape->size[axis];
    }
    if (seen != (1u << shape->dims) - 1)
        return gg_fail(
            GG_ERROR_ARGUMENT, "the order must name each of the axes 0 to %d of the input %s from '%s' once, got %s",
            shape->dims - 1, gg_shape_text(shape, have), input[0]->desc.name, gg_shape_text(&desc->order, want));
    return GG_OK;
}

static gg_status check_axis(int64_t axis, const gg_node *input) {
    char text[GG_SHAPE_TEXT];
    const int64_t dims = input->shape.dims;
    if (axis < -dims || axis >= dims)
        return gg_fail(GG_ERROR_ARGUMENT, "axis must be %lld to %lld for the input %s from '%s', got %lld",
                       (long long)-dims, (long long)dims - 1, gg_shape_text(&input->shape, text), input->desc.name,
                       (long long)axis);
    return GG_OK;
}

static int64_t place_in(int64_t at, int64_t size) {
    if (at < 0) at = at < -size ? 0 : at + size;
    return at > size ? size : at;
}

gg_range gg_slice_range(const gg_layer_desc *desc, const gg_shape *shape) {
    gg_range range = desc->range;
    if (range.axis < 0) range.axis += shape->dims;
    range.begin = place_in(range.begin, shape->size[range.axis]);
    range.end = place_in(range.end, shape->size[range.axis]);
    if (range.step > shape->size[range.axis]) range.step = shape->size[range.axis]; /* which leaves the first alone */
    return range;
}

static gg_status slice_infer(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out) {
    char text[GG_SHAPE_TEXT];
    GG_TRY(check_axis(desc->range.axis, input[0]));
    const gg_range range = gg_slice_range(desc, &input[0]->shape);
    if (range.begin >= range.end)
        return gg_fail(GG_ERROR_SHAPE, "nothing of axis %lld of the input %s from '%s' is between %lld and %lld",
                       (long long)range.axis, gg_shape_text(&input[0]->shape, text), input[0]->desc.name,
                       (long long)desc->range.begin, (long long)desc->range.end);
    out->size[range.axis] = (range.end - range.begin - 1) / range.step + 1;
    return GG_OK;
}

static void slice_describe(const gg_layer_desc *desc, gg_op_desc *out) {
    out->range = gg_slice_range(desc, &out->input[0]);
}

static gg_status pad_infer(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out) {
    GG_TRY(check_axis(desc->pad.axis, input[0]));
    out->size[desc->pad.axis < 0 ? desc->pad.axis + out->dims : desc->pad.axis] +=
        desc->pad.zeros[0] + desc->pad.zeros[1];
    return GG_OK;
}

static void pad_describe(const gg_layer_desc *desc, gg_op_desc *out) {
    const gg_shape *shape = &out->input[0];
    const int64_t axis = desc->pad.axis < 0 ? desc->pad.axis + shape->dims : desc->pad.axis;
    out->range =
        (gg_range){.axis = axis, .begin = desc->pad.zeros[0], .end = desc->pad.zeros[0] + shape->size[axis], .step = 1};
}

const gg_layer_type gg_layer_reshape = {
    .name = "reshape", .options = reshape_options, .op = GG_OP_COUNT, .view = true, .infer = reshape_infer};
const gg_layer_type gg_layer_permute = {
    .name = "permute", .options = permute_options, .op = GG_OP_PERMUTE, .infer = permute_infer};
const gg_layer_type gg_layer_slice = {
    .name = "slice", .options = slice_options, .op = GG_OP_SLICE, .infer = slice_infer, .describe = slice_describe};
const gg_layer_type gg_layer_pad = {
    .name = "pad", .options = pad_options, .op = GG_OP_PAD, .infer = pad_infer, .describe = pad_describe};
