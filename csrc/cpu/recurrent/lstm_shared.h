/* Shared by the LSTMs of both tables: parameters, the state carried from batch to batch, and the dropout between
 * layers. The dropout draws equal numbers in both. */
#ifndef GG_CPU_RECURRENT_LSTM_SHARED_H
#define GG_CPU_RECURRENT_LSTM_SHARED_H

#include "cpu/shared.h"

/* First parameter of an LSTM over tokens. */
enum { GG_LSTM_TABLE = 0 };

/* Parameters of a layer; layers without biases have the first two. */
enum { GG_LSTM_WEIGHT_IH = 0, GG_LSTM_WEIGHT_HH, GG_LSTM_BIAS_IH, GG_LSTM_BIAS_HH };

/* Index among all parameters; an LSTM over tokens has its table first. */
static inline int64_t gg_lstm_place(const gg_op *op, int64_t layer, int which) {
    return (op->desc.lstm.numbers > 0 ? 1 : 0) + layer * (op->desc.bias ? 4 : 2) + which;
}

static inline const float *gg_lstm_parameter(const gg_op *op, const gg_op_args *args, int64_t layer, int which) {
    return args->parameter[gg_lstm_place(op, layer, which)];
}

static inline float *gg_lstm_gradient(const gg_op *op, const gg_op_args *args, int64_t layer, int which) {
    return args->gradient[gg_lstm_place(op, layer, which)];
}

/* out = the sum of both biases of a layer. */
void gg_lstm_add_biases(const gg_device *device, const gg_op *op, const gg_op_args *args, int64_t layer, float *out);
/* Gradients of both biases, from the errors of `rows` rows of gates. */
void gg_lstm_bias_gradients(gg_device *device, const gg_op *op, const gg_op_args *args, int64_t layer, int64_t rows,
                            const float *errors, int64_t errors_row);

/* A sample's carried state of a layer: states, then cells. NULL means that it begins at zero and is not kept. */
float *gg_lstm_carried(const gg_op *op, const gg_op_args *args, int64_t layer, int64_t sample);

/* Dropout between layers, in training. */
typedef struct gg_lstm_dropout {
    bool used;
    int64_t mask_row; /* bytes of a position's mask */
    uint32_t threshold;
    float keep_scale;
} gg_lstm_dropout;

gg_lstm_dropout gg_lstm_dropout_of(const gg_op_desc *desc);
/* Draws the mask of a sample's position, and writes the masked states to `out`. */
void gg_lstm_drop(const gg_device *device, const gg_op *op, const gg_op_args *args, int64_t layer, int64_t sample,
                  int64_t position, const float *states, uint8_t *mask, float *out);

#endif
