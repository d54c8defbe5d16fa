/* Attention over packed queries, keys and values: (T, 3C) -> (T, C). A second input has each sample's length. */
#include "nn/layer.h"

static gg_status attention_infer(const gg_layer_desc *desc, int inputs, const gg_node *const *input, gg_shape *out) {
    gg_status status = GG_OK;
    char text[GG_SHAPE_TEXT];
    const gg_shape *shape = &input[0]->shape;
    if (desc->heads < 1) GG_FAIL(GG_ERROR_ARGUMENT, "heads must be at least 1, got %lld", (long long)desc->heads);
    if (!(desc->probability >= 0 && desc->probability < 1))
        GG_FAIL(GG_ERROR_ARGUMENT, "probability must be at least 0 and less than 1, got %g", desc->probability);
    if (shape->dims != 2 || shape->size[1] % (3 * desc->heads) != 0)
        GG_FAIL(
            GG_ERROR_SHAPE,
            "input must be (positions, features), with queries, keys and values side by side, each divisible by the "
            "%lld heads, got %s from '%s'",
            (long long)desc->heads, gg_shape_text(shape, text), input[0]->desc.name);
    if (inputs == 2 && gg_shape_count(&input[1]->shape) != 1)
        GG_FAIL(GG_ERROR_SHAPE, "lengths must be one number a sample, got %s from '%s'",
                gg_shape_text(&input[1]->shape, text), input[1]->desc.name);
    *out = (gg_shape){2, {shape->size[0], shape->size[1] / 3}};
cleanup:
    return status;
}

static int64_t attention_macs(const gg_node *node, const gg_shape *input) {
    (void)input;
    return 2 * node->shape.size[0] * node->shape.size[0] * node->shape.size[1];
}

static void attention_describe(const gg_layer_desc *desc, gg_op_desc *out) {
    out->heads = desc->heads;
    out->causal = desc->causal;
    out->probability = desc->probability;
}

const gg_layer_type gg_layer_attention = {
    .name = "attention",
    .least_inputs = 1,
    .most_inputs = 2,
    .op = GG_OP_ATTENTION,
    .integer_inputs = 2,
    .infer = attention_infer,
    .macs = attention_macs,
    .describe = attention_describe,
};
