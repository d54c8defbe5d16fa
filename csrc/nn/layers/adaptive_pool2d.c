/* Average pooling to a given size: (C, H, W) -> (C, H', W'). */
#include "nn/layer.h"

static const gg_option options[] = {GG_LAYER_PAIR("output_size", output_size, 0, GG_FROM_TO(0, GG_MAX_WINDOW)),
                                    {.name = NULL}};

static gg_status adaptive_pool2d_infer(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out) {
    char text[GG_SHAPE_TEXT];
    if (input[0]->shape.dims != 3)
        return gg_fail(GG_ERROR_SHAPE, "input must be (channels, height, width), got %s from '%s'",
                       gg_shape_text(&input[0]->shape, text), input[0]->desc.name);
    for (int i = 0; i < 2; i++) {
        if (desc->output_size[i] > 0) out->size[1 + i] = desc->output_size[i];
    }
    return GG_OK;
}

/* Where all windows have one size and follow each other, it is the plain average pooling, which more tables have. */
static void adaptive_pool2d_describe(const gg_layer_desc *desc, gg_op_desc *out) {
    (void)desc;
    gg_window window = {.dilation = {1, 1}, .count_include_pad = true};
    for (int i = 0; i < 2; i++) {
        if (out->input[0].size[1 + i] % out->output.size[1 + i] != 0) return;
        window.kernel[i] = window.stride[i] = out->input[0].size[1 + i] / out->output.size[1 + i];
    }
    out->kind = GG_OP_AVG_POOL2D;
    out->pool = window;
}

const gg_layer_type gg_layer_adaptive_avg_pool2d = {.name = "adaptive_avg_pool2d",
                                                    .options = options,
                                                    .op = GG_OP_ADAPTIVE_AVG_POOL2D,
                                                    .infer = adaptive_pool2d_infer,
                                                    .describe = adaptive_pool2d_describe};
