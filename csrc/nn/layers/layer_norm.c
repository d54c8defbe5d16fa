/* Normalisation of each sample over its last axes, with or without the mean, or over groups of channels, and softmax
 * along an axis, in PyTorch's forms. */
#include <string.h>

#include "nn/layer.h"

#define NORM_OPTIONS                                                                                                   \
    GG_LAYER_NUMBER("eps", FLOAT, layer_norm.epsilon, 0, GG_FINITE(0)),                                                \
        GG_LAYER_FLAG("affine", layer_norm.affine, false), GG_LAYER_BIAS
static const gg_option layer_options[] = {
    NORM_OPTIONS, GG_LAYER_SIZES("normalized_shape", layer_norm.shape), {.name = NULL}};
static const gg_option group_options[] = {
    NORM_OPTIONS, GG_LAYER_NUMBER("groups", INT64, layer_norm.groups, 0, GG_AT_LEAST(1)), {.name = NULL}};
static const gg_option softmax_options[] = {GG_LAYER_NUMBER("dim", INT64, softmax.axis, 0, GG_ANY), {.name = NULL}};

/* The first of the axes that are normalised: the last, or as many as the shape that is given. */
static int first_axis(const gg_layer_desc *desc, const gg_shape *input) {
    return input->dims - (desc->layer_norm.shape.dims > 0 ? desc->layer_norm.shape.dims : 1);
}

static gg_status layer_norm_infer(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out) {
    char text[GG_SHAPE_TEXT], wanted[GG_SHAPE_TEXT];
    const gg_shape *shape = out;
    const int first = first_axis(desc, shape);
    bool fits = first >= 0;
    for (int i = 0; fits && i < desc->layer_norm.shape.dims; i++)
        fits = desc->layer_norm.shape.size[i] == shape->size[first + i];
    if (!fits)
        return gg_fail(GG_ERROR_SHAPE, "normalized_shape is %s, which are not the last axes of %s from '%s'",
                       gg_shape_text(&desc->layer_norm.shape, wanted), gg_shape_text(shape, text), input[0]->desc.name);
    return GG_OK;
}

static gg_status group_norm_infer(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out) {
    char text[GG_SHAPE_TEXT];
    const gg_shape *shape = out;
    if (shape->size[0] % desc->layer_norm.groups != 0)
        return gg_fail(GG_ERROR_ARGUMENT, "groups is %lld; allowed: divisors of %lld, the channels of %s from '%s'",
                       (long long)desc->layer_norm.groups, (long long)shape->size[0], gg_shape_text(shape, text),
                       input[0]->desc.name);
    return GG_OK;
}

static int layer_norm_parameters(const gg_node *node, const gg_shape *input, gg_tensor_desc *out) {
    const gg_layer_desc *desc = &node->desc;
    const bool grouped = desc->kind == GG_LAYER_GROUP_NORM;
    const int first = grouped ? 0 : first_axis(desc, input), end = grouped ? 1 : input->dims;
    gg_tensor_desc made = {.name = ".weight", .role = GG_ROLE_SCALE, .init = {GG_INIT_CONSTANT, 1}};
    for (int i = first; i < end; i++) made.shape.size[made.shape.dims++] = input->size[i];
    made.fan_in = made.fan_out = gg_shape_count(&made.shape);
    if (!desc->layer_norm.affine) return 0;
    if (out != NULL) out[GG_PARAMETER_WEIGHT] = made;
    if (!desc->bias) return 1;
    memcpy(made.name, ".bias", sizeof ".bias");
    made.role = GG_ROLE_SHIFT;
    made.init.value = 0;
    if (out != NULL) out[GG_PARAMETER_BIAS] = made;
    return 2;
}

static void layer_norm_describe(const gg_layer_desc *desc, gg_op_desc *out) {
    if (desc->kind != GG_LAYER_GROUP_NORM) out->layer_norm.axis = first_axis(desc, &out->input[0]);
    out->layer_norm.root_mean_square = desc->kind == GG_LAYER_RMS_NORM;
}

#define ROW_NORM(text, own, infers)                                                                                    \
    {                                                                                                                  \
        .name = (text), .options = (own), .op = GG_OP_LAYER_NORM, .infer = (infers),                                   \
        .parameters = layer_norm_parameters, .describe = layer_norm_describe                                           \
    }

const gg_layer_type gg_layer_layer_norm = ROW_NORM("layer_norm", layer_options, layer_norm_infer);
const gg_layer_type gg_layer_rms_norm = ROW_NORM("rms_norm", layer_options, layer_norm_infer);
const gg_layer_type gg_layer_group_norm = ROW_NORM("group_norm", group_options, group_norm_infer);

/* PyTorch's dim counts the batch: 1 is the sample's first axis, -1 its last. */
static int64_t softmax_axis(const gg_layer_desc *desc, const gg_shape *input) {
    return desc->softmax.axis < 0 ? desc->softmax.axis + input->dims : desc->softmax.axis - 1;
}

static gg_status softmax_infer(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out) {
    char text[GG_SHAPE_TEXT];
    const gg_shape *shape = out;
    const int64_t axis = softmax_axis(desc, shape);
    if (axis < 0 || axis >= shape->dims)
        return gg_fail(
            GG_ERROR_ARGUMENT, "dim is %lld; allowed for %s from '%s': 1 to %d (0 is the batch), or -%d to -1",
            (long long)desc->softmax.axis, gg_shape_text(shape, text), input[0]->desc.name, shape->dims, shape->dims);
    return GG_OK;
}

static void softmax_describe(const gg_layer_desc *desc, gg_op_desc *out) {
    out->softmax.axis = softmax_axis(desc, &out->input[0]);
}

const gg_layer_type gg_layer_softmax = {.name = "softmax",
                                        .options = softmax_options,
                                        .op = GG_OP_SOFTMAX,
                                        .infer = softmax_infer,
                                        .describe = softmax_describe};
