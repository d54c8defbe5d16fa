#include "backend/backend.h"

const char *gg_op_kind_name(gg_op_kind kind) {
    static const char *const names[GG_OP_COUNT] = {
        [GG_OP_CONV2D] = "conv2d",         [GG_OP_LINEAR] = "linear",   [GG_OP_MAX_POOL2D] = "max_pool2d",
        [GG_OP_AVG_POOL2D] = "avg_pool2d", [GG_OP_RELU] = "relu",       [GG_OP_TANH] = "tanh",
        [GG_OP_SIGMOID] = "sigmoid",       [GG_OP_DROPOUT] = "dropout", [GG_OP_ADD] = "add",
        [GG_OP_CONCAT] = "concat",         [GG_OP_REORDER] = "reorder",
    };
    return (unsigned)kind < GG_OP_COUNT ? names[kind] : "unknown";
}

void gg_op_destroy(gg_op *op) {
    if (op) op->type->destroy(op);
}
