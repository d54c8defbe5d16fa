#include "cpu/cpu_backend.h"
#include "cpu/native.h"

static gg_status native_open(const gg_device_options *options, gg_device **out) {
    return gg_cpu_device_open(&gg_backend_native, sizeof(gg_cpu_device), options, out);
}

const gg_backend gg_backend_native = {
    .name = GG_NATIVE_NAME,
    .fills_lanes = true,
    .open = native_open,
    .close = gg_cpu_device_close,
    .create =
        {
            [GG_OP_CONV2D] = gg_native_conv2d_create,
            [GG_OP_LINEAR] = gg_native_linear_create,
            [GG_OP_MAX_POOL2D] = gg_native_pool_create,
            [GG_OP_AVG_POOL2D] = gg_native_pool_create,
            [GG_OP_ADAPTIVE_AVG_POOL2D] = gg_native_pool_create,
            [GG_OP_BATCH_NORM] = gg_native_batch_norm_create,
            [GG_OP_LOCAL_RESPONSE_NORM] = gg_native_lrn_create,
            [GG_OP_LAYER_NORM] = gg_native_layer_norm_create,
            [GG_OP_SOFTMAX] = gg_native_softmax_create,
            [GG_OP_LEAKY_RELU] = gg_native_activation_create,
            [GG_OP_GELU] = gg_native_activation_create,
            [GG_OP_RELU] = gg_native_activation_create,
            [GG_OP_TANH] = gg_native_activation_create,
            [GG_OP_SIGMOID] = gg_native_activation_create,
            [GG_OP_DROPOUT] = gg_native_dropout_create,
            [GG_OP_ADD] = gg_native_add_create,
            [GG_OP_CONCAT] = gg_native_concat_create,
            [GG_OP_REORDER] = gg_native_reorder_create,
            [GG_OP_EMBEDDING] = gg_native_embedding_create,
            [GG_OP_POSITION_EMBEDDING] = gg_native_position_embedding_create,
            [GG_OP_PERMUTE] = gg_native_rearrange_create,
            [GG_OP_SLICE] = gg_native_rearrange_create,
            [GG_OP_PAD] = gg_native_rearrange_create,
            [GG_OP_ATTENTION] = gg_native_attention_create,
            [GG_OP_LSTM] = gg_native_lstm_create,
            [GG_OP_MULTI_HEAD] = gg_multi_head_create,
        },
    GG_CPU_SHARED_ENTRIES,
};
