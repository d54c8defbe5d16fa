/* Maximum and average pooling: (C, H, W) -> (C, H', W'). */
#include "nn/layer.h"

static const gg_option options[] = {GG_LAYER_WINDOW(pool),
                                    GG_LAYER_FLAG("ceil_mode", pool.ceil_mode, false),
                                    GG_LAYER_FLAG("count_include_pad", pool.count_include_pad, true),
                                    {.name = NULL}};

static gg_status pool2d_infer(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out) {
    const gg_window *window = &desc->pool;
    char text[GG_SHAPE_TEXT];
    for (int i = 0; i < 2; i++) {
        /* PyTorch's rule; without dilation every window then holds an element of the input. */
        if (2 * window->padding[i] > window->kernel[i])
            return gg_fail(GG_ERROR_ARGUMENT, "padding must be at most half of the kernel, %lld, got %lld (%s)",
                           (long long)(window->kernel[i] / 2), (long long)window->padding[i],
                           i == 0 ? "height" : "width");
        if (desc->kind == GG_LAYER_AVG_POOL2D && window->dilation[i] != 1)
            return gg_fail(GG_ERROR_UNSUPPORTED, "average pooling has no dilation, got %lld (%s)",
                           (long long)window->dilation[i], i == 0 ? "height" : "width");
    }
    GG_TRY(gg_window_infer(window, window->ceil_mode, input[0], out));
    for (int i = 0; i < 2; i++)
        if (!gg_window_covers(window, i, input[0]->shape.size[1 + i], out->size[1 + i]))
            return gg_fail(GG_ERROR_ARGUMENT,
                           "dilation %lld with kernel %lld and padding %lld (%s) puts a window wholly outside of the "
                           "input %s from '%s'",
                           (long long)window->dilation[i], (long long)window->kernel[i], (long long)window->padding[i],
                           i == 0 ? "height" : "width", gg_shape_text(&input[0]->shape, text), input[0]->desc.name);
    return GG_OK;
}

const gg_layer_type gg_layer_max_pool2d = {
    .name = "max_pool2d", .options = options, .op = GG_OP_MAX_POOL2D, .infer = pool2d_infer};
const gg_layer_type gg_layer_avg_pool2d = {
    .name = "avg_pool2d", .options = options, .op = GG_OP_AVG_POOL2D, .infer = pool2d_infer};
