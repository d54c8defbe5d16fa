/* Two-dimensional convolution: (C, H, W) -> (O, H', W'), weight (O, C/groups, kH, kW). */
#include "nn/layer.h"

static const gg_option options[] = {GG_LAYER_OUTPUTS,
                                    GG_LAYER_WINDOW(conv.window),
                                    GG_LAYER_NUMBER("groups", INT64, conv.groups, 1, GG_AT_LEAST(1)),
                                    GG_LAYER_BIAS,
                                    {.name = NULL}};

static gg_status conv2d_infer(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out) {
    char text[GG_SHAPE_TEXT];
    GG_TRY(gg_window_infer(&desc->conv.window, false, input[0], out));
    int64_t channels = input[0]->shape.size[0];
    if (channels % desc->conv.groups != 0 || desc->outputs % desc->conv.groups != 0)
        return gg_fail(
            GG_ERROR_SHAPE,
            "groups = %lld must divide the %lld output channels and the %lld channels of the input %s from '%s'",
            (long long)desc->conv.groups, (long long)desc->outputs, (long long)channels,
            gg_shape_text(&input[0]->shape, text), input[0]->desc.name);
    if (desc->conv.window.kernel[0] * desc->conv.window.kernel[1] > GG_MAX_SAMPLE / desc->outputs / channels)
        return gg_fail(GG_ERROR_SHAPE, "the weight has too many values (at most %lld)", (long long)GG_MAX_SAMPLE);
    out->size[0] = desc->outputs;
    return GG_OK;
}

static int conv2d_parameters(const gg_node *node, const gg_shape *input, gg_tensor_desc *out) {
    const gg_layer_desc *desc = &node->desc;
    const int64_t *kernel = desc->conv.window.kernel, channels = input->size[0] / desc->conv.groups;
    const gg_shape weight = {4, {desc->outputs, channels, kernel[0], kernel[1]}};
    return gg_layer_weight_and_bias(desc, &weight, desc->outputs * kernel[0] * kernel[1], out);
}

static int64_t conv2d_macs(const gg_node *node, const gg_shape *input) {
    const gg_layer_desc *desc = &node->desc;
    return gg_shape_count(&node->shape) * (input->size[0] / desc->conv.groups) * desc->conv.window.kernel[0] *
           desc->conv.window.kernel[1];
}

const gg_layer_type gg_layer_conv2d = {
    .name = "conv2d",
    .options = options,
    .family = GG_FAMILY_CONV,
    .op = GG_OP_CONV2D,
    .infer = conv2d_infer,
    .parameters = conv2d_parameters,
    .macs = conv2d_macs,
};
