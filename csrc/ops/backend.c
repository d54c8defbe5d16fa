#include "ops/backend.h"

const char *gg_op_kind_name(gg_op_kind kind) {
    static const char *const names[GG_OP_COUNT] = {
        [GG_OP_CONV2D] = "conv2d",
        [GG_OP_LINEAR] = "linear",
        [GG_OP_MAX_POOL2D] = "max_pool2d",
        [GG_OP_AVG_POOL2D] = "avg_pool2d",
        [GG_OP_ADAPTIVE_AVG_POOL2D] = "adaptive_avg_pool2d",
        [GG_OP_BATCH_NORM] = "batch_norm",
        [GG_OP_LAYER_NORM] = "layer_norm",
        [GG_OP_LOCAL_RESPONSE_NORM] = "local_response_norm",
        [GG_OP_SOFTMAX] = "softmax",
        [GG_OP_LEAKY_RELU] = "leaky_relu",
        [GG_OP_GELU] = "gelu",
        [GG_OP_RELU] = "relu",
        [GG_OP_TANH] = "tanh",
        [GG_OP_SIGMOID] = "sigmoid",
        [GG_OP_DROPOUT] = "dropout",
        [GG_OP_ADD] = "add",
        [GG_OP_CONCAT] = "concat",
        [GG_OP_REORDER] = "reorder",
        [GG_OP_EMBEDDING] = "embedding",
        [GG_OP_POSITION_EMBEDDING] = "position_embedding",
        [GG_OP_PERMUTE] = "permute",
        [GG_OP_SLICE] = "slice",
        [GG_OP_PAD] = "pad",
        [GG_OP_ATTENTION] = "attention",
        [GG_OP_LSTM] = "lstm",
        [GG_OP_MULTI_HEAD] = "multi_head",
    };
    return (unsigned)kind < GG_OP_COUNT ? names[kind] : "unknown";
}

const char *gg_algorithm_name(gg_algorithm algorithm) {
    static const char *const names[GG_ALGORITHM_COUNT] = {
        [GG_ALGORITHM_DIRECT] = "direct",       [GG_ALGORITHM_WINOGRAD4] = "winograd4",
        [GG_ALGORITHM_WINOGRAD2] = "winograd2", [GG_ALGORITHM_WINOGRAD6] = "winograd6",
        [GG_ALGORITHM_SPLIT] = "split",         [GG_ALGORITHM_WIDENED] = "widened",
        [GG_ALGORITHM_TURNED] = "turned",       [GG_ALGORITHM_TURNED4] = "turned4",
        [GG_ALGORITHM_TURNED2] = "turned2",     [GG_ALGORITHM_TURNED6] = "turned6",
        [GG_ALGORITHM_TILED] = "tiled",         [GG_ALGORITHM_CUDNN0] = "cudnn0",
        [GG_ALGORITHM_CUDNN0 + 1] = "cudnn1",   [GG_ALGORITHM_CUDNN0 + 2] = "cudnn2",
        [GG_ALGORITHM_CUDNN0 + 3] = "cudnn3",   [GG_ALGORITHM_CUDNN0 + 4] = "cudnn4",
        [GG_ALGORITHM_CUDNN0 + 5] = "cudnn5",   [GG_ALGORITHM_CUDNN0 + 6] = "cudnn6",
        [GG_ALGORITHM_CUDNN7] = "cudnn7",
    };
    return (unsigned)algorithm < GG_ALGORITHM_COUNT ? names[algorithm] : "unknown";
}

const char *gg_pass_name(gg_pass pass) {
    static const char *const names[GG_PASS_COUNT] = {"forward", "weights", "data"};
    return (unsigned)pass < GG_PASS_COUNT ? names[pass] : "unknown";
}

void gg_op_compile(gg_op *op) {
    if (op != NULL && op->type->compile != NULL) op->type->compile(op);
}

void gg_op_destroy(gg_op *op) {
    if (op) op->type->destroy(op);
}

gg_status gg_op_prepare(gg_op *op, const gg_op_args *args, gg_pass pass) {
    return op->type->prepare != NULL && op->prepared_bytes > 0 ? op->type->prepare(op, args, pass) : GG_OK;
}

gg_status gg_op_forward(gg_op *op, const gg_op_args *args) { return op->type->forward(op, args); }

gg_status gg_op_backward(gg_op *op, const gg_op_args *args) {
    if (op->type->backward_weights != NULL) GG_TRY(op->type->backward_weights(op, args));
    if (op->type->backward_data != NULL) GG_TRY(gg_op_prepare(op, args, GG_PASS_DATA));
    if (op->type->backward_data != NULL) GG_TRY(op->type->backward_data(op, args));
    return GG_OK;
}

int64_t gg_window_output(const gg_window *window, int axis, int64_t input, bool ceil_mode) {
    const int64_t stride = window->stride[axis], padding = window->padding[axis];
    const int64_t room = input + 2 * padding - window->dilation[axis] * (window->kernel[axis] - 1) - 1;
    const int64_t rounded = ceil_mode ? room + stride - 1 : room;
    if (rounded < 0) return 0;
    const int64_t outputs = rounded / stride + 1;
    /* The last window must start inside the input or its left padding, or it would contain only right padding. */
    return ceil_mode && (outputs - 1) * stride >= input + padding ? outputs - 1 : outputs;
}

bool gg_window_covers(const gg_window *window, int axis, int64_t input, int64_t outputs) {
    const int64_t stride = window->stride[axis], padding = window->padding[axis], dilation = window->dilation[axis];
    /* Windows that start inside the image contain an element of it. */
    for (int64_t o = 0; o < outputs && o * stride < padding; ++o) {
        const int64_t outside = (padding - o * stride + dilation - 1) / dilation;
        if (outside >= window->kernel[axis] || o * stride - padding + outside * dilation >= input) return false;
    }
    return true;
}

/* Winograd's tiles are of square windows, without strides. */
static bool has_winograd(const gg_window *w, gg_algorithm algorithm) {
    const int64_t taps = w->kernel[0];
    if (taps != 3 && (taps != 5 || algorithm == GG_ALGORITHM_WINOGRAD6)) return false;
    for (int axis = 0; axis < 2; ++axis)
        if (w->kernel[axis] != taps || w->stride[axis] != 1) return false;
    return true;
}

gg_algorithm gg_conv_unturned(gg_algorithm algorithm) {
    switch (algorithm) {
    case GG_ALGORITHM_TURNED: return GG_ALGORITHM_DIRECT;
    case GG_ALGORITHM_TURNED4: return GG_ALGORITHM_WINOGRAD4;
    case GG_ALGORITHM_TURNED2: return GG_ALGORITHM_WINOGRAD2;
    case GG_ALGORITHM_TURNED6: return GG_ALGORITHM_WINOGRAD6;
    default: return GG_ALGORITHM_COUNT;
    }
}

/* Whether vectors of channels have so much padding, and vectors of samples so little, that turning images may pay. Few
 * channels of an input have kernels without padding. */
static bool wastes_lanes(const gg_op_desc *desc) {
    const int64_t in = desc->input[0].size[0], out = desc->output.size[0];
    const int64_t lanes_in = in > GG_CONV_FEW_CHANNELS ? gg_lanes_padded(in) : in;
    return 4 * lanes_in * gg_lanes_padded(out) >= 5 * in * out && 4 * gg_lanes_padded(desc->batch) <= 5 * desc->batch;
}

bool gg_conv_has_form(const gg_op_desc *desc, gg_layout layout, gg_algorithm algorithm) {
    const gg_window *w = &desc->conv.window;
    const bool blocks = layout == GG_LAYOUT_CHANNELS16;
    const gg_algorithm unturned = gg_conv_unturned(algorithm);
    if (desc->kind != GG_OP_CONV2D || desc->conv.groups != 1) return false;
    for (int axis = 0; axis < 2; ++axis)
        if (w->dilation[axis] != 1 || w->padding[axis] < 0 || w->padding[axis] >= w->kernel[axis]) return false;
    if (unturned != GG_ALGORITHM_COUNT)
        return layout != GG_LAYOUT_CHANNELS8 && layout != GG_LAYOUT_BATCH_LAST && wastes_lanes(desc) &&
               (unturned == GG_ALGORITHM_DIRECT || has_winograd(w, unturned));
    switch (algorithm) {
    case GG_ALGORITHM_WINOGRAD2:
    case GG_ALGORITHM_WINOGRAD4:
    case GG_ALGORITHM_WINOGRAD6: return (blocks || layout == GG_LAYOUT_BATCH_LAST) && has_winograd(w, algorithm);
    case GG_ALGORITHM_SPLIT:
        return blocks && w->stride[0] <= GG_CONV_SPLIT_STRIDE && w->stride[1] <= GG_CONV_SPLIT_STRIDE;
    case GG_ALGORITHM_TILED:
        return (layout == GG_LAYOUT_NHWC || layout == GG_LAYOUT_PLAIN) &&
               desc->input[0].size[0] <= GG_CONV_FEW_CHANNELS;
    default: return false;
    }
}

gg_status gg_op_check_lstm(const gg_op_desc *desc) {
    char in[GG_SHAPE_TEXT], out[GG_SHAPE_TEXT];
    if (desc->lstm.numbers > 0) return gg_fail(GG_ERROR_UNSUPPORTED, "lstm: it reads (T, I), not tokens");
    if (desc->inputs != 1 || desc->input[0].dims != 2 || desc->output.dims != 2 ||
        desc->input[0].size[0] != desc->output.size[0] || desc->lstm.layers < 1)
        return gg_fail(GG_ERROR_SHAPE, "an LSTM of %lld layers makes (T, H) of one (T, I), not %s of %s",
                       (long long)desc->lstm.layers, gg_shape_text(&desc->output, out),
                       gg_shape_text(&desc->input[0], in));
    if (!(desc->probability >= 0 && desc->probability < 1))
        return gg_fail(GG_ERROR_ARGUMENT, "lstm: the probability must be at least 0 and less than 1, not %g",
                       (double)desc->probability);
    const double words = (double)desc->batch * (double)gg_shape_count(&desc->output) * (double)desc->lstm.layers;
    if (desc->probability > 0 && words > 0x1p32)
        return gg_fail(GG_ERROR_UNSUPPORTED, "lstm: %g states are more than a stream has numbers for dropout", words);
    return GG_OK;
}

gg_status gg_op_check_attention(const gg_op_desc *desc) {
    char in[GG_SHAPE_TEXT], out[GG_SHAPE_TEXT];
    const gg_shape *input = &desc->input[0];
    const int64_t features = input->dims == 2 ? input->size[1] / 3 : 0;
    if (desc->inputs < 1 || desc->inputs > 2 || features < 1 || input->size[1] % 3 != 0 || desc->output.dims != 2 ||
        desc->output.size[0] != input->size[0] || desc->output.size[1] != features || desc->attention.heads < 1 ||
        features % desc->attention.heads != 0)
        return gg_fail(GG_ERROR_SHAPE, "attention of %lld heads makes (T, C) of (T, 3C), not %s of %s",
                       (long long)desc->attention.heads, gg_shape_text(&desc->output, out), gg_shape_text(input, in));
    if (desc->inputs == 2 && (desc->offered[1].dtype != GG_INT32 || gg_shape_count(&desc->input[1]) != 1))
        return gg_fail(GG_ERROR_SHAPE, "the lengths for attention are one int32 a sample, not %s %s",
                       gg_dtype_name(desc->offered[1].dtype), gg_shape_text(&desc->input[1], in));
    if (!(desc->probability >= 0 && desc->probability < 1))
        return gg_fail(GG_ERROR_ARGUMENT, "attention: the probability must be at least 0 and less than 1, not %g",
                       (double)desc->probability);
    const double words =
        (double)desc->batch * (double)desc->attention.heads * (double)input->size[0] * (double)input->size[0];
    if (desc->probability > 0 && words > 0x1p33)
        return gg_fail(GG_ERROR_UNSUPPORTED, "attention: %g weights are more than a stream has numbers for dropout",
                       words);
    return GG_OK;
}
