/* Flatten: any shape -> (values). A view wherever the layout allows it. */
#include "nn/layer.h"

static gg_status flatten_infer(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out) {
    (void)desc;
    *out = (gg_shape){1, {gg_shape_count(&input[0]->shape)}};
    return GG_OK;
}

const gg_layer_type gg_layer_flatten = {.name = "flatten", .op = GG_OP_COUNT, .view = true, .infer = flatten_infer};
