#include "cpu/recurrent/lstm_shared.h"

#include <string.h>

void gg_lstm_add_biases(const gg_device *device, const gg_op *op, const gg_op_args *args, int64_t layer, float *out) {
    const float *input = gg_lstm_parameter(op, args, layer, GG_LSTM_BIAS_IH);
    const float *states = gg_lstm_parameter(op, args, layer, GG_LSTM_BIAS_HH);
    gg_cpu_device_kernels(device)->elementwise->add((size_t)(4 * op->desc.output.size[1]), input, states, out);
}

void gg_lstm_bias_gradients(gg_device *device, const gg_op *op, const gg_op_args *args, int64_t layer, int64_t rows,
                            const float *errors, int64_t errors_row) {
    const int64_t gates = 4 * op->desc.output.size[1];
    float *input = gg_lstm_gradient(op, args, layer, GG_LSTM_BIAS_IH);
    gg_cpu_column_sums(device, rows, gates, errors, errors_row, input);
    memcpy(gg_lstm_gradient(op, args, layer, GG_LSTM_BIAS_HH), input, (size_t)gates * sizeof(float));
}

float *gg_lstm_carried(const gg_op *op, const gg_op_args *args, int64_t layer, int64_t sample) {
    if (args->carried == NULL || !op->desc.lstm.stateful) return NULL;
    return args->carried + (sample * op->desc.lstm.layers + layer) * 2 * op->desc.output.size[1];
}

gg_lstm_dropout gg_lstm_dropout_of(const gg_op_desc *desc) {
    return (gg_lstm_dropout){.used = desc->training && desc->probability > 0 && desc->lstm.layers > 1,
                             .mask_row = (desc->output.size[1] + 3) / 4 * 4,
                             .threshold = (uint32_t)((double)desc->probability * 0x1p32),
                             .keep_scale = (float)(1.0 / (1.0 - (double)desc->probability))};
}

void gg_lstm_drop(const gg_device *device, const gg_op *op, const gg_op_args *args, int64_t layer, int64_t sample,
                  int64_t position, const float *states, uint8_t *mask, float *out) {
    const gg_cpu_elementwise *kernels = gg_cpu_device_kernels(device)->elementwise;
    const gg_lstm_dropout dropout = gg_lstm_dropout_of(&op->desc);
    const gg_random_key key = {op->desc.seed, GG_RANDOM_DROPOUT, args->rank, *args->step};
    const int64_t row = (layer * op->desc.batch + sample) * op->desc.output.size[0] + position;
    const int64_t blocks = dropout.mask_row / 4;
    uint8_t *const rows[4] = {mask, mask + 1, mask + 2, mask + 3};
    kernels->dropout_mask(&key, (uint32_t)(row * blocks), 1, (size_t)blocks, dropout.threshold, rows, 4);
    kernels->masked_scale((size_t)op->desc.output.size[1], states, mask, dropout.keep_scale, out);
}
