/* Windows of convolution and pooling: PyTorch's rules. */
#include "nn/layer.h"

gg_status gg_window_infer(const gg_window *window, bool ceil_mode, const gg_node *input, gg_shape *out) {
    char text[GG_SHAPE_TEXT];
    if (input->shape.dims != 3)
        return gg_fail(GG_ERROR_SHAPE, "input must be (channels, height, width), got %s from '%s'",
                       gg_shape_text(&input->shape, text), input->desc.name);
    for (int i = 0; i < 2; i++) {
        if (window->dilation[i] * (window->kernel[i] - 1) >= GG_MAX_WINDOW)
            return gg_fail(GG_ERROR_ARGUMENT, "kernel %lld with dilation %lld (%s) is too large",
                           (long long)window->kernel[i], (long long)window->dilation[i], i == 0 ? "height" : "width");
        int64_t size = gg_window_output(window, i, input->shape.size[1 + i], ceil_mode);
        if (size < 1)
            return gg_fail(GG_ERROR_SHAPE,
                           "kernel (%lld, %lld) with dilation (%lld, %lld) and padding (%lld, %lld) is larger than the "
                           "input %s from '%s'",
                           (long long)window->kernel[0], (long long)window->kernel[1], (long long)window->dilation[0],
                           (long long)window->dilation[1], (long long)window->padding[0], (long long)window->padding[1],
                           gg_shape_text(&input->shape, text), input->desc.name);
        out->size[1 + i] = size;
    }
    return GG_OK;
}
