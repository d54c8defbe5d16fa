/* Batch normalisation over the first axis: (C), (C, L) or (C, H, W), in PyTorch's forms. */
#include <string.h>

#include "nn/layer.h"

static const gg_option options[] = {GG_LAYER_NUMBER("eps", FLOAT, batch_norm.epsilon, 0, GG_FINITE(0)),
                                    GG_LAYER_NUMBER("momentum", FLOAT, batch_norm.momentum, 0, GG_FROM_TO(0, 1)),
                                    GG_LAYER_FLAG("affine", batch_norm.affine, false),
                                    GG_LAYER_FLAG("track_running_stats", batch_norm.track_statistics, false),
                                    {.name = NULL}};

static gg_status batch_norm_infer(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out) {
    char text[GG_SHAPE_TEXT];
    const gg_shape *shape = out;
    if (desc->kind == GG_LAYER_BATCH_NORM2D && shape->dims != 3)
        return gg_fail(GG_ERROR_SHAPE, "input must be (channels, height, width), got %s from '%s'",
                       gg_shape_text(shape, text), input[0]->desc.name);
    if (desc->kind == GG_LAYER_BATCH_NORM1D && shape->dims != 1 && shape->dims != 2)
        return gg_fail(GG_ERROR_SHAPE, "input must be (channels) or (channels, length), got %s from '%s'",
                       gg_shape_text(shape, text), input[0]->desc.name);
    return GG_OK;
}

static gg_tensor_desc batch_norm_parameter(const char *name, gg_role role, int64_t channels, float value) {
    gg_tensor_desc made = {.role = role,
                           .shape = {1, {channels}},
                           .fan_in = channels,
                           .fan_out = channels,
                           .init = {GG_INIT_CONSTANT, value}};
    memcpy(made.name, name, strlen(name) + 1);
    return made;
}

static int batch_norm_parameters(const gg_node *node, const gg_shape *input, gg_tensor_desc *out) {
    const gg_layer_desc *desc = &node->desc;
    const int64_t channels = input->size[0];
    int count = 0;
    if (desc->batch_norm.affine) {
        if (out != NULL) {
            out[count] = batch_norm_parameter(".weight", GG_ROLE_SCALE, channels, 1);
            out[count + 1] = batch_norm_parameter(".bias", GG_ROLE_SHIFT, channels, 0);
        }
        count += 2;
    }
    if (desc->batch_norm.track_statistics) {
        if (out != NULL) {
            out[count] = batch_norm_parameter(".running_mean", GG_ROLE_STATISTIC, channels, 0);
            out[count + 1] = batch_norm_parameter(".running_var", GG_ROLE_STATISTIC, channels, 1);
        }
        count += 2;
    }
    return count;
}

const gg_layer_type gg_layer_batch_norm1d = {
    .name = "batch_norm1d",
    .options = options,
    .op = GG_OP_BATCH_NORM,
    .infer = batch_norm_infer,
    .parameters = batch_norm_parameters,
};

const gg_layer_type gg_layer_batch_norm2d = {
    .name = "batch_norm2d",
    .options = options,
    .op = GG_OP_BATCH_NORM,
    .infer = batch_norm_infer,
    .parameters = batch_norm_parameters,
};
