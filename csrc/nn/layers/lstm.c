/* LSTM: (T, I) -> (T, H), with PyTorch's parameters and names. Layer k has weight_ih_lk (4H, I), weight_hh_lk
 * (4H, H), bias_ih_lk (4H), bias_hh_lk (4H), the gates in the order i, f, g, o. */
#include <stdio.h>

#include "nn/layer.h"

static const gg_option options[] = {GG_LAYER_OUTPUTS,
                                    GG_LAYER_BIAS,
                                    GG_LAYER_PROBABILITY,
                                    GG_LAYER_NUMBER("layers", INT64, lstm.layers, 0, GG_FROM_TO(1, 64)),
                                    GG_LAYER_FLAG("stateful", lstm.stateful, false),
                                    {.name = NULL}};

static gg_status lstm_infer(const gg_layer_desc *desc, const gg_node *const *input, gg_shape *out) {
    char text[GG_SHAPE_TEXT];
    const gg_shape *shape = &input[0]->shape;
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
    for (int layer = 0; layer < (int)desc->lstm.layers; layer++) {
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
    const int64_t hidden = node->desc.outputs, layers = node->desc.lstm.layers;
    return input->size[0] * 4 * hidden * (input->size[1] + hidden + (layers - 1) * 2 * hidden);
}

static int64_t lstm_carried(const gg_node *node, const gg_shape *input) {
    (void)input;
    return node->desc.lstm.stateful ? 2 * node->desc.lstm.layers * node->desc.outputs : 0;
}

const gg_layer_type gg_layer_lstm = {
    .name = "lstm",
    .options = options,
    .family = GG_FAMILY_RECURRENT,
    .op = GG_OP_LSTM,
    .infer = lstm_infer,
    .parameters = lstm_parameters,
    .macs = lstm_macs,
    .carried = lstm_carried,
};
