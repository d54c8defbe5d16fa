/* Shared by convolutions and linear layers. */
#include <string.h>

#include "nn/layer.h"

int gg_layer_weight_and_bias(const gg_layer_desc *desc, const gg_shape *shape, int64_t fan_out, gg_tensor_desc *out) {
    gg_tensor_desc weight = {.name = ".weight",
                             .shape = *shape,
                             .fan_in = gg_shape_count(shape) / desc->outputs,
                             .fan_out = fan_out,
                             .init = desc->weight_init};
    gg_tensor_desc bias = weight;
    memcpy(bias.name, ".bias", sizeof ".bias");
    bias.role = GG_ROLE_BIAS;
    bias.shape = (gg_shape){1, {desc->outputs}};
    bias.init = desc->bias_init;
    if (out != NULL) out[GG_PARAMETER_WEIGHT] = weight;
    if (out != NULL && desc->bias) out[GG_PARAMETER_BIAS] = bias;
    return desc->bias ? 2 : 1;
}
