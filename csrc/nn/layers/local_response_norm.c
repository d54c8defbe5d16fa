/* Local response normalisation across channels (Krizhevsky et al. 2012), in PyTorch's form. */
#include <math.h>

#include "nn/layer.h"

static gg_status lrn_infer(const gg_layer_desc *desc, int inputs, const gg_node *const *input, gg_shape *out) {
    char text[GG_SHAPE_TEXT];
    (void)inputs;
    if (input[0]->shape.dims < 2)
        return gg_fail(GG_ERROR_SHAPE, "input must be (channels, ...), got %s from '%s'",
                       gg_shape_text(&input[0]->shape, text), input[0]->desc.name);
    if (desc->size < 1 || desc->size > GG_MAX_WINDOW)
        return gg_fail(GG_ERROR_ARGUMENT, "size must be 1 to %lld, got %lld", (long long)GG_MAX_WINDOW,
                       (long long)desc->size);
    if (!isfinite(desc->alpha) || !isfinite(desc->beta) || !isfinite(desc->k))
        return gg_fail(GG_ERROR_ARGUMENT, "alpha, beta and k must be finite, got %g, %g and %g", desc->alpha,
                       desc->beta, desc->k);
    *out = input[0]->shape;
    return GG_OK;
}

static void lrn_describe(const gg_layer_desc *desc, gg_op_desc *out) {
    out->size = desc->size;
    out->alpha = desc->alpha;
    out->beta = desc->beta;
    out->k = desc->k;
}

const gg_layer_type gg_layer_local_response_norm = {
    .name = "local_response_norm",
    .least_inputs = 1,
    .most_inputs = 1,
    .op = GG_OP_LOCAL_RESPONSE_NORM,
    .infer = lrn_infer,
    .describe = lrn_describe,
};
