/* Dropout: zeroes values with a probability and scales the others up, in training only. */
#include "nn/layer.h"

static const gg_option options[] = {GG_LAYER_PROBABILITY, {.name = NULL}};

const gg_layer_type gg_layer_dropout = {.name = "dropout", .options = options, .op = GG_OP_DROPOUT};
