/* Tables of learned rows. Embedding, a row a token: (T) or any shape -> (T, C), weight (numbers, C). Position
 * embedding, a row added at each position: (T, C) -> (T, C), weight (numbers, C) with at least T rows. */
#include <string.h>

#include "nn/layer.h"

static const gg_option embedding_options[] = {
    GG_LAYER_OUTPUTS,
    GG_LAYER_NUMBER("numbers", INT64, embedding.numbers, 0, GG_FROM_TO(1, INT32_MAX)),
    {.name = NULL}};
static const gg_option position_options[] = {
    GG_LAYER_NUMBER("numbers", INT64, embedding.numbers, 0, GG_FROM_TO(0, INT32_MAX)), {.name = NULL}};

static gg_status check_table(int64_t numbers, int64_t features) {
    if (features > GG_MAX_SAMPLE / numbers)
        return gg_fail(GG_ERROR_SHAPE, "the weight (%lld, %lld) has too many values (at most %lld)", (long long)numbers,
                       (long long)features, (long long)GG_MAX_SAMPLE);
    return GG_OK;
}

/* The table; the default is PyTorch's for embeddings, normal numbers of deviation 1. */
static int table_of(const gg_layer_desc *desc, int64_t numbers, int64_t features, gg_tensor_desc *out) {
    gg_tensor_desc weight = {
        .name = ".weight", .shape = {2, {numbers, features}}, .fan_in = numbers, .fan_out = features};
    weight.init = desc->weight_init;
    if (weight.init.kind == GG_INIT_DEFAULT) weight.init = (gg_init){GG_INIT_NORMAL, 1};
    if (out != NULL) *out = weight;
    return 1;
}

static gg_status embedding_infer(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out) {
    char text[GG_SHAPE_TEXT];
    GG_TRY(check_table(desc->embedding.numbers, desc->outputs));
    if (out->dims == GG_MAX_DIMS)
        return gg_fail(GG_ERROR_SHAPE, "input must have at most %d axes, got %s from '%s'", GG_MAX_DIMS - 1,
                       gg_shape_text(out, text), input[0]->desc.name);
    out->size[out->dims++] = desc->outputs;
    return GG_OK;
}

static int embedding_parameters(const gg_node *node, const gg_shape *input, gg_tensor_desc *out) {
    (void)input;
    return table_of(&node->desc, node->desc.embedding.numbers, node->desc.outputs, out);
}

static gg_integers embedding_tokens(const gg_node *node, int input) {
    (void)input;
    return (gg_integers){0, node->desc.embedding.numbers};
}

static int64_t rows_of_positions(const gg_layer_desc *desc, const gg_shape *input) {
    return desc->embedding.numbers > 0 ? desc->embedding.numbers : input->size[0];
}

static gg_status position_embedding_infer(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out) {
    char text[GG_SHAPE_TEXT];
    if (out->dims != 2)
        return gg_fail(GG_ERROR_SHAPE, "input must be (positions, features), got %s from '%s'",
                       gg_shape_text(out, text), input[0]->desc.name);
    const int64_t numbers = rows_of_positions(desc, out);
    GG_TRY(check_table(numbers, out->size[1]));
    if (numbers < out->size[0])
        return gg_fail(GG_ERROR_SHAPE, "the table has %lld positions, the input %s from '%s' has %lld",
                       (long long)numbers, gg_shape_text(out, text), input[0]->desc.name, (long long)out->size[0]);
    return GG_OK;
}

static int position_embedding_parameters(const gg_node *node, const gg_shape *input, gg_tensor_desc *out) {
    return table_of(&node->desc, rows_of_positions(&node->desc, input), input->size[1], out);
}

static void position_embedding_describe(const gg_layer_desc *desc, gg_op_desc *out) {
    out->embedding.numbers = rows_of_positions(desc, &out->input[0]);
}

const gg_layer_type gg_layer_embedding = {
    .name = "embedding",
    .options = embedding_options,
    .op = GG_OP_EMBEDDING,
    .integer_inputs = 1,
    .infer = embedding_infer,
    .integers = embedding_tokens,
    .parameters = embedding_parameters,
};

const gg_layer_type gg_layer_position_embedding = {
    .name = "position_embedding",
    .options = position_options,
    .op = GG_OP_POSITION_EMBEDDING,
    .infer = position_embedding_infer,
    .parameters = position_embedding_parameters,
    .describe = position_embedding_describe,
};
