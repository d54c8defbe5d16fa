/* Windows of convolution and pooling: PyTorch's rules. */
#include "nn/layer.h"

gg_status gg_window_check(const gg_window *window) {
    static const char *const axis[2] = {"height", "width"};
    for (int i = 0; i < 2; i++) {
        const struct {
            const char *name;
            int64_t value, least;
        } field[4] = {{"kernel", window->kernel[i], 1},
                      {"stride", window->stride[i], 1},
                      {"padding", window->padding[i], 0},
                      {"dilation", window->dilation[i], 1}};
        for (int k = 0; k < 4; k++) {
            if (field[k].value < field[k].least || field[k].value > GG_MAX_WINDOW)
                return gg_fail(GG_ERROR_ARGUMENT, "%s (%s) must be %lld to %lld, got %lld", field[k].name, axis[i],
                               (long long)field[k].least, (long long)GG_MAX_WINDOW, (long long)field[k].value);
        }
        if (window->dilation[i] * (window->kernel[i] - 1) >= GG_MAX_WINDOW)
            return gg_fail(GG_ERROR_ARGUMENT, "kernel %lld with dilation %lld (%s) is too large",
                           (long long)window->kernel[i], (long long)window->dilation[i], axis[i]);
    }
    return GG_OK;
}

gg_status gg_window_infer(const gg_window *window, bool ceil_mode, const gg_node *input, gg_shape *out) {
    char text[GG_SHAPE_TEXT];
    if (input->shape.dims != 3)
        return gg_fail(GG_ERROR_SHAPE, "input must be (channels, height, width), got %s from '%s'",
                       gg_shape_text(&input->shape, text), input->desc.name);
    out->dims = 3;
    for (int i = 0; i < 2; i++) {
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
