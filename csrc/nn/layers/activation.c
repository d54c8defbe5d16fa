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

static const gg_option leaky_relu_options[] = {
    GG_LAYER_NUMBER("negative_slope", FLOAT, leaky_relu.slope, 0, GG_FINITE(-FLT_MAX)), {.name = NULL}};
static const gg_option gelu_options[] = {GG_LAYER_FLAG("tanh_form", gelu.tanh_form, false), {.name = NULL}};

const gg_layer_type gg_layer_leaky_relu = {
    .name = "leaky_relu",
    .options = leaky_relu_options,
    .least_inputs = 1,
    .most_inputs = 1,
    .op = GG_OP_LEAKY_RELU,
    .infer = activation_infer,
};

const gg_layer_type gg_layer_gelu = {
    .name = "gelu",
    .options = gelu_options,
    .least_inputs = 1,
    .most_inputs = 1,
    .op = GG_OP_GELU,
    .infer = activation_infer,
};
