/* Where branches meet: the sum of inputs, or their concatenation along the first axis. */
#include "nn/layer.h"

static gg_status infer_add(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out) {
    char first[GG_SHAPE_TEXT], other[GG_SHAPE_TEXT];
    (void)desc;
    for (int i = 1; input[i] != NULL; i++) {
        if (!gg_shape_equal(out, &input[i]->shape))
            return gg_fail(GG_ERROR_SHAPE, "inputs must have one shape, got %s from '%s' and %s from '%s'",
                           gg_shape_text(out, first), input[0]->desc.name, gg_shape_text(&input[i]->shape, other),
                           input[i]->desc.name);
    }
    return GG_OK;
}

static gg_status infer_concat(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out) {
    char first[GG_SHAPE_TEXT], other[GG_SHAPE_TEXT];
    (void)desc;
    for (int i = 1; input[i] != NULL; i++) {
        gg_shape shape = input[i]->shape;
        shape.size[0] = input[0]->shape.size[0];
        if (!gg_shape_equal(&input[0]->shape, &shape))
            return gg_fail(GG_ERROR_SHAPE,
                           "inputs may differ in their first axis only, got %s from '%s' and %s from '%s'",
                           gg_shape_text(&input[0]->shape, first), input[0]->desc.name,
                           gg_shape_text(&input[i]->shape, other), input[i]->desc.name);
        out->size[0] += input[i]->shape.size[0];
    }
    return GG_OK;
}

const gg_layer_type gg_layer_add = {.name = "add", .inputs = {2, GG_MAX_INPUTS}, .op = GG_OP_ADD, .infer = infer_add};

const gg_layer_type gg_layer_concat = {
    .name = "concat", .inputs = {2, GG_MAX_INPUTS}, .op = GG_OP_CONCAT, .infer = infer_concat};
