/* Fully connected, over the last axis: (..., I) -> (..., O), weight (O, I). */
#include "nn/layer.h"

static const gg_option options[] = {GG_LAYER_OUTPUTS, GG_LAYER_BIAS, {.name = NULL}};

static int64_t last_size(const gg_shape *shape) { return shape->size[shape->dims - 1]; }

static gg_status linear_infer(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out) {
    const int64_t features = last_size(&input[0]->shape);
    if (desc->outputs > GG_MAX_SAMPLE / features)
        return gg_fail(GG_ERROR_SHAPE, "the weight (%lld, %lld) has too many values (at most %lld)",
                       (long long)desc->outputs, (long long)features, (long long)GG_MAX_SAMPLE);
    out->size[out->dims - 1] = desc->outputs;
    return GG_OK;
}

static int linear_parameters(const gg_node *node, const gg_shape *input, gg_tensor_desc *out) {
    const gg_shape weight = {2, {node->desc.outputs, last_size(input)}};
    return gg_layer_weight_and_bias(&node->desc, &weight, node->desc.outputs, out);
}

static int64_t linear_macs(const gg_node *node, const gg_shape *input) {
    return node->desc.outputs * gg_shape_count(input);
}

const gg_layer_type gg_layer_linear = {
    .name = "linear",
    .options = options,
    .family = GG_FAMILY_LINEAR,
    .op = GG_OP_LINEAR,
    .infer = linear_infer,
    .parameters = linear_parameters,
    .macs = linear_macs,
};
