/* Local response normalisation across channels (Krizhevsky et al. 2012), in PyTorch's form. */
#include "nn/layer.h"

static const gg_option options[] = {GG_LAYER_NUMBER("size", INT64, lrn.size, 0, GG_FROM_TO(1, GG_MAX_WINDOW)),
                                    GG_LAYER_NUMBER("alpha", FLOAT, lrn.alpha, 0, GG_FINITE(-FLT_MAX)),
                                    GG_LAYER_NUMBER("beta", FLOAT, lrn.beta, 0, GG_FINITE(-FLT_MAX)),
                                    GG_LAYER_NUMBER("k", FLOAT, lrn.k, 0, GG_FINITE(-FLT_MAX)),
                                    {.name = NULL}};

static gg_status lrn_infer(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out) {
    char text[GG_SHAPE_TEXT];
    (void)desc;
    if (out->dims < 2)
        return gg_fail(GG_ERROR_SHAPE, "input must be (channels, ...), got %s from '%s'", gg_shape_text(out, text),
                       input[0]->desc.name);
    return GG_OK;
}

const gg_layer_type gg_layer_local_response_norm = {
    .name = "local_response_norm", .options = options, .op = GG_OP_LOCAL_RESPONSE_NORM, .infer = lrn_infer};
