/* Attention over packed queries, keys and values: (T, 3C) -> (T, C). A second input has each sample's length. */
#include "nn/layer.h"

#define ATTENTION_OPTIONS                                                                                              \
    GG_LAYER_NUMBER("heads", INT64, attention.heads, 0, GG_FROM_TO(1, GG_MAX_WINDOW)),                                 \
        GG_LAYER_FLAG("causal", attention.causal, false), GG_LAYER_PROBABILITY
static const gg_option attention_options[] = {ATTENTION_OPTIONS, {.name = NULL}};
static const gg_option multi_head_options[] = {
    ATTENTION_OPTIONS,
    GG_LAYER_OUTPUTS,
    GG_LAYER_BIAS,
    GG_LAYER_NUMBER("head_size", INT64, attention.head_size, 0, GG_FROM_TO(0, GG_MAX_WINDOW)),
    {.name = NULL}};

static gg_status attention_infer(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out) {
    char text[GG_SHAPE_TEXT];
    const gg_shape *shape = &input[0]->shape;
    if (shape->dims != 2 || desc->attention.heads > shape->size[1] || shape->size[1] % (3 * desc->attention.heads) != 0)
        return gg_fail(
            GG_ERROR_SHAPE,
            "input must be (positions, features), with queries, keys and values side by side, each divisible by the "
            "%lld heads, got %s from '%s'",
            (long long)desc->attention.heads, gg_shape_text(shape, text), input[0]->desc.name);
    if (input[1] != NULL && gg_shape_count(&input[1]->shape) != 1)
        return gg_fail(GG_ERROR_SHAPE, "lengths must be one number a sample, got %s from '%s'",
                       gg_shape_text(&input[1]->shape, text), input[1]->desc.name);
    *out = (gg_shape){2, {shape->size[0], shape->size[1] / 3}};
    return GG_OK;
}

/* Of all heads. */
static int64_t inner_features(const gg_layer_desc *desc) {
    return desc->attention.head_size > 0 ? desc->attention.heads * desc->attention.head_size : desc->outputs;
}

static gg_status multi_head_infer(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out) {
    char text[GG_SHAPE_TEXT];
    gg_node packed = *input[0];
    const gg_node *const inner[3] = {&packed, input[1], NULL};
    if (packed.shape.dims != 2 || packed.shape.size[1] != desc->outputs)
        return gg_fail(GG_ERROR_SHAPE, "input must be (positions, %lld), got %s from '%s'", (long long)desc->outputs,
                       gg_shape_text(&packed.shape, text), packed.desc.name);
    if (desc->outputs > GG_MAX_SAMPLE / 3 / desc->outputs || inner_features(desc) > GG_MAX_SAMPLE / 3 / desc->outputs)
        return gg_fail(GG_ERROR_SHAPE, "%lld features make a weight of too many values (at most %lld)",
                       (long long)desc->outputs, (long long)GG_MAX_SAMPLE);
    packed.shape.size[1] = 3 * inner_features(desc);
    GG_TRY(attention_infer(desc, inner, out));
    *out = input[0]->shape;
    return GG_OK;
}

/* PyTorch's names and initial values. */
static int multi_head_parameters(const gg_node *node, const gg_shape *input, gg_tensor_desc *out) {
    const gg_layer_desc *desc = &node->desc;
    const int64_t features = input->size[1], inner = inner_features(desc);
    const gg_init in =
        desc->weight_init.kind == GG_INIT_DEFAULT ? (gg_init){GG_INIT_XAVIER_UNIFORM, 0} : desc->weight_init;
    const gg_init zero = {GG_INIT_CONSTANT, 0};
    const gg_tensor_desc all[4] = {
        {".in_proj_weight", .shape = {2, {3 * inner, features}}, .fan_out = 3 * inner, .init = in},
        {".in_proj_bias", .role = GG_ROLE_BIAS, .shape = {1, {3 * inner}}, .fan_out = 3 * inner, .init = zero},
        {".out_proj.weight", .shape = {2, {features, inner}}, .fan_out = features, .init = desc->weight_init},
        {".out_proj.bias", .role = GG_ROLE_BIAS, .shape = {1, {features}}, .fan_out = features, .init = zero}};
    int count = 0;
    for (int i = 0; i < 4; i++) {
        if (!desc->bias && all[i].role == GG_ROLE_BIAS) continue;
        if (out != NULL) {
            out[count] = all[i];
            out[count].fan_in = i < 2 ? features : inner;
        }
        count++;
    }
    return count;
}

static int64_t multi_head_macs(const gg_node *node, const gg_shape *input) {
    const int64_t inner = inner_features(&node->desc);
    return 4 * input->size[0] * input->size[1] * inner + 2 * node->shape.size[0] * node->shape.size[0] * inner;
}

static int64_t attention_macs(const gg_node *node, const gg_shape *input) {
    (void)input;
    return 2 * node->shape.size[0] * node->shape.size[0] * node->shape.size[1];
}

static void multi_head_describe(const gg_layer_desc *desc, gg_op_desc *out) {
    out->attention.head_size = inner_features(desc) / desc->attention.heads;
}

static gg_integers attention_lengths(const gg_node *node, int input) {
    return input == 1 ? (gg_integers){1, node->shape.size[0] + 1} : (gg_integers){0, 0};
}

const gg_layer_type gg_layer_attention = {
    .name = "attention",
    .options = attention_options,
    .family = GG_FAMILY_LINEAR,
    .inputs = {1, 2},
    .op = GG_OP_ATTENTION,
    .integer_inputs = 2,
    .infer = attention_infer,
    .integers = attention_lengths,
    .macs = attention_macs,
};

const gg_layer_type gg_layer_multi_head = {
    .name = "multi_head",
    .options = multi_head_options,
    .family = GG_FAMILY_LINEAR,
    .inputs = {1, 2},
    .op = GG_OP_MULTI_HEAD,
    .integer_inputs = 2,
    .infer = multi_head_infer,
    .integers = attention_lengths,
    .parameters = multi_head_parameters,
    .macs = multi_head_macs,
    .describe = multi_head_describe,
};
