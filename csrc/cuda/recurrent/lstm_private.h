/* Both LSTMs of a GPU: cuDNN's (lstm.c) and our own (lstm_own.c). */
#ifndef GG_CUDA_LSTM_PRIVATE_H
#define GG_CUDA_LSTM_PRIVATE_H

#include "cuda/kernels_nn.h"
#include "cuda/ops.h"

/* True if our own LSTM computes a position in one kernel. */
bool gg_cuda_own_lstm_steps(gg_device *device, const gg_op_desc *desc);
gg_status gg_cuda_own_lstm_create(gg_device *device, const gg_op_desc *desc, gg_op **out);

/* Parameters of a layer; the biases only with `bias`. */
enum { WEIGHT_IH = 0, WEIGHT_HH, BIAS_IH, BIAS_HH };
static inline int gg_cuda_lstm_first(const gg_op_desc *desc, int64_t layer) {
    return (int)layer * (desc->bias ? 4 : 2);
}

/* Dropout of the states of a layer, or of their errors. */
static inline void gg_cuda_lstm_drop(gg_cuda_device *device, const gg_op_desc *desc, const gg_op_args *args,
                                     gg_dtype dtype, int64_t layer, const void *in, void *out) {
    const int64_t rows = desc->batch * desc->output.size[0];
    const gg_cuda_dropout_rows_args own = {
        .rows = rows,
        .length = desc->output.size[1],
        .first_row = layer * rows,
        .draw = {.seed = desc->seed, .step = args->step, .rank = args->rank, .probability = desc->probability},
        .dtype = dtype,
        .in = in,
        .out = out};
    gg_cuda_dropout_rows(gg_cuda_compute(device), &own);
}

#endif
