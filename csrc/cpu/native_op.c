/* Creation of the head of every native operation. */
#include "base/memory.h"
#include "cpu/native.h"

gg_status gg_native_op_create(const gg_op_desc *desc, const gg_op_class *type, size_t bytes, gg_op **out) {
    *out = NULL;
    if (desc->inputs < 1 || desc->inputs > GG_MAX_INPUTS)
        return gg_fail(GG_ERROR_ARGUMENT, "%s has 1 to %d inputs, not %d", gg_op_kind_name(desc->kind), GG_MAX_INPUTS,
                       desc->inputs);
    if (desc->batch < 1)
        return gg_fail(GG_ERROR_ARGUMENT, "the batch must be at least 1, not %lld", (long long)desc->batch);
    for (int i = 0; i < desc->inputs; ++i)
        if (desc->offered[i].dtype != GG_FLOAT32 && desc->offered[i].dtype != GG_BFLOAT16)
            return gg_fail(GG_ERROR_UNSUPPORTED, "native %s reads float32 or bfloat16, not %s",
                           gg_op_kind_name(desc->kind), gg_dtype_name(desc->offered[i].dtype));
    gg_op *op;
    GG_TRY(gg_calloc(1, bytes, "an operation", &op));
    const gg_format lanes = {GG_FLOAT32, GG_LAYOUT_BATCH_LAST};
    op->type = type;
    op->backend = GG_NATIVE_NAME;
    op->desc = *desc;
    for (int i = 0; i < desc->inputs; ++i) op->input[i] = lanes;
    op->output = lanes;
    *out = op;
    return GG_OK;
}

void gg_native_op_free(gg_op *op) { gg_free(op); }

int64_t gg_native_parts(int64_t batch, int64_t bytes) {
    const int64_t most = 16, least = 4, usual = 4 * 1024 * 1024;
    int64_t parts = usual / bytes;
    if (parts < least) parts = GG_NATIVE_SUM_BYTES / bytes < least ? GG_NATIVE_SUM_BYTES / bytes : least;
    if (parts > most) parts = most;
    return parts < batch ? parts : batch;
}
