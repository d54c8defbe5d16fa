/* Element-wise functions of one input, any shape. */
#include "nn/layer.h"

const gg_layer_type gg_layer_relu = {.name = "relu", .op = GG_OP_RELU};
const gg_layer_type gg_layer_tanh = {.name = "tanh", .op = GG_OP_TANH};
const gg_layer_type gg_layer_sigmoid = {.name = "sigmoid", .op = GG_OP_SIGMOID};

static const gg_option leaky_relu_options[] = {
    GG_LAYER_NUMBER("negative_slope", FLOAT, leaky_relu.slope, 0, GG_FINITE(-FLT_MAX)), {.name = NULL}};
static const gg_option gelu_options[] = {GG_LAYER_FLAG("tanh_form", gelu.tanh_form, false), {.name = NULL}};

const gg_layer_type gg_layer_leaky_relu = {.name = "leaky_relu", .options = leaky_relu_options, .op = GG_OP_LEAKY_RELU};
const gg_layer_type gg_layer_gelu = {.name = "gelu", .options = gelu_options, .op = GG_OP_GELU};
