/* Dropout: zeroes values with a probability and scales the others up, in training only. */
#include "nn/layer.h"

static gg_status dropout_infer(const gg_layer_desc *desc, int inputs, const gg_node *const *input, gg_shape *out) {
    (void)inputs;
    if (!(desc->probability >= 0 && desc->probability < 1))
        return gg_fail(GG_ERROR_ARGUMENT, "probability must be at least 0 and less than 1, got %g", desc->probability);
    *out = input[0]->shape;
    return GG_OK;
}

static void dropout_describe(const gg_layer_desc *desc, gg_op_desc *out) { out->probability = desc->probability; }

const gg_layer_type gg_layer_dropout = {
    .name = "dropout",
    .least_inputs = 1,
    .most_inputs = 1,
    .op = GG_OP_DROPOUT,
    .infer = dropout_infer,
    .describe = dropout_describe,
};
