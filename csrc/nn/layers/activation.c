/* Element-wise functions of one input, any shape. */
#include "nn/layer.h"

static gg_status activation_infer(const gg_layer_desc *desc, int inputs, const gg_node *const *input, gg_shape *out) {
    (void)desc;
    (void)inputs;
    *out = input[0]->shape;
    return GG_OK;
}

const gg_layer_type gg_layer_relu = {
    .name = "relu", .least_inputs = 1, .most_inputs = 1, .op = GG_OP_RELU, .infer = activation_infer};

const gg_layer_type gg_layer_tanh = {
    .name = "tanh", .least_inputs = 1, .most_inputs = 1, .op = GG_OP_TANH, .infer = activation_infer};

const gg_layer_type gg_layer_sigmoid = {
    .name = "sigmoid", .least_inputs = 1, .most_inputs = 1, .op = GG_OP_SIGMOID, .infer = activation_infer};
