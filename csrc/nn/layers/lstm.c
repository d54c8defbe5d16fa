/* LSTM: (T, I) -> (T, H), with PyTorch's parameters and names. Layer k has weight_ih_lk (4H, I), weight_hh_lk
 * (4H, H), bias_ih_lk (4H), bias_hh_lk (4H), the gates in the order i, f, g, o. */
#include <stdio.h>

#include "nn/layer.h"

#define MAX_LAYERS 64

static gg_status lstm_infer(const gg_layer_desc *desc, int inputs, const gg_node *const *input, gg_shape *out) {
    char text[GG_SHAPE_TEXT];
    const gg_shape *shape = &input[0]->shape;
    (void)inputs;
    GG_TRY(gg_init_check(&desc->weight_init, "weight_init"));
    GG_TRY(gg_init_check(&desc->bias_init, "bias_init"));
    if (desc->layers < 1 || desc->layers > MAX_LAYERS)
        return gg_fail(GG_ERROR_ARGUMENT, "layers must be 1 to %d, got %lld", MAX_LAYERS, (long long)desc->layers);
    if (desc->outputs < 1)
        return gg_fail(GG_ERROR_ARGUMENT, "hidden units must be at least 1, got %lld", (long long)desc->outputs);
    if (!(desc->probability >= 0 && desc->probability < 1))
        return gg_fail(GG_ERROR_ARGUMENT, "probability must be at least 0 and less than 1, got %g", desc->probability);
    if (shape->dims != 2)
        return gg_fail(GG_ERROR_SHAPE, "input must be (positions, features), got %s from '%s'",
                       gg_shape_text(shape, text), input[0]->desc.name);
    const int64_t widest = shape->size[1] > desc->outputs ? shape->size[1] : desc->outputs;
    if (desc->outputs > GG_MAX_SAMPLE / 4 / widest)
        return gg_fail(GG_ERROR_SHAPE, "the weight (4 * %lld, %lld) has too many values (at most %lld)",
                       (long long)desc->outputs, (long long)widest, (long long)GG_MAX_SAMPLE);
    *out = (gg_shape){2, {shape->size[0], desc->outputs}};
    return GG_OK;
}

static int lstm_parameters(const gg_node *node, const gg_shape *input, gg_tensor_desc *out) {
    const gg_layer_desc *desc = &node->desc;
    const int64_t gates = 4 * desc->outputs;
    int count = 0;
    for (int layer = 0; layer < (int)desc->layers; layer++) {
        for (int which = 0; which < (desc->bias ? 4 : 2); which++) {
            static const char *const names[4] = {".weight_ih_l", ".weight_hh_l", ".bias_ih_l", ".bias_hh_l"};
            const int64_t from = which == 0 && layer == 0 ? input->size[1] : desc->outputs;
            /* PyTorch begins all of them within 1/sqrt(H). */
            gg_tensor_desc made = {.role = which < 2 ? GG_ROLE_WEIGHT : GG_ROLE_BIAS,
                                   .fan_in = desc->outputs,
                                   .fan_out = gates,
                                   .init = which < 2 ? desc->weight_init : desc->bias_init};
            made.shape = which < 2 ? (gg_shape){2, {gates, from}} : (gg_shape){1, {gates}};
            if (made.init.kind != GG_INIT_DEFAULT) made.fan_in = from;
            (void)snprintf(made.name, GG_SUFFIX_LENGTH, "%s%d", names[which], layer);
            if (out != NULL) out[count] = made;
            count++;
        }
    }
    return count;
}

static int64_t lstm_macs(const gg_node *node, const gg_shape *input) {
    const int64_t hidden = node->desc.outputs, layers = node->desc.layers;
    return input->size[0] * 4 * hidden * (input->size[1] + hidden + (layers - 1) * 2 * hidden);
}

static int64_t lstm_carried(const gg_node *node, const gg_shape *input) {
    (void)input;
    return node->desc.stateful ? 2 * node->desc.layers * node->desc.outputs : 0;
}

static void lstm_describe(const gg_layer_desc *desc, gg_op_desc *out) {
    out->layers = desc->layers;
    out->bias = desc->bias;
    out->probability = desc->probability;
    out->stateful = desc->stateful;
}

const gg_layer_type gg_layer_lstm = {
    .name = "lstm",
    .family = GG_FAMILY_RECURRENT,
    .least_inputs = 1,
    .most_inputs = 1,
    .op = GG_OP_LSTM,
    .infer = lstm_infer,
    .parameters = lstm_parameters,
    .macs = lstm_macs,
    .carried = lstm_carried,
    .describe = lstm_describe,
};
