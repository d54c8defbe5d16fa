/* Element-wise functions of one input, any shape. */
#include <math.h>

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

static gg_status leaky_relu_infer(const gg_layer_desc *desc, int inputs, const gg_node *const *input, gg_shape *out) {
    if (!isfinite(desc->slope)) return gg_fail(GG_ERROR_ARGUMENT, "negative_slope must be finite, got %g", desc->slope);
    return activation_infer(desc, inputs, input, out);
}

static void leaky_relu_describe(const gg_layer_desc *desc, gg_op_desc *out) { out->slope = desc->slope; }

const gg_layer_type gg_layer_leaky_relu = {
    .name = "leaky_relu",
    .least_inputs = 1,
    .most_inputs = 1,
    .op = GG_OP_LEAKY_RELU,
    .infer = leaky_relu_infer,
    .describe = leaky_relu_describe,
};

static void gelu_describe(const gg_layer_desc *desc, gg_op_desc *out) { out->tanh_form = desc->tanh_form; }

const gg_layer_type gg_layer_gelu = {
    .name = "gelu",
    .least_inputs = 1,
    .most_inputs = 1,
    .op = GG_OP_GELU,
    .infer = activation_infer,
    .describe = gelu_describe,
};
