/* Dropout: zeroes values with a probability and scales the others up, in training only. */
#include "nn/layer.h"

static const gg_option options[] = {GG_LAYER_PROBABILITY, {.name = NULL}};

static gg_status dropout_infer(const gg_layer_desc *desc, int inputs, const gg_node *const *input, gg_shape *out) {
    (void)desc;
    (void)inputs;
    *out = input[0]->shape;
    return GG_OK;
}

const gg_layer_type gg_layer_dropout = {
    .name = "dropout",
    .options = options,
    .least_inputs = 1,
    .most_inputs = 1,
    .op = GG_OP_DROPOUT,
    .infer = dropout_infer,
};
