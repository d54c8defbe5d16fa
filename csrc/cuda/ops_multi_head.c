/* Multi-head attention with its projections: a linear layer to packed queries, keys and values, attention, and a linear
 * layer; each is the operation of that kind, and what lies between them is saved. */
#include "cuda/ops.h"

enum { PROJECT_IN = 0, ATTEND, PROJECT_OUT, STEPS };

typedef struct multi_head_op {
    gg_op head;
    gg_op *step[STEPS];
    size_t packed_at, mixed_at, saved_at[STEPS];      /* in what is saved; without training in scratch */
    size_t grad_packed_at, grad_mixed_at, scratch_at; /* in scratch */
} multi_head_op;

static void multi_head_destroy(gg_op *head) {
    multi_head_op *op = (multi_head_op *)head;
    for (int i = 0; i < STEPS; ++i) gg_op_destroy(op->step[i]);
    gg_cuda_op_free(head);
}

/* What all steps have of the whole's arguments, and the parameters of one that is linear. */
static gg_op_args args_of(const multi_head_op *op, const gg_op_args *args, int step) {
    const int first = step == PROJECT_OUT ? (op->head.desc.bias ? 2 : 1) : 0;
    char *scratch = args->scratch, *base = op->head.desc.training ? args->saved : scratch;
    gg_op_args own = {.rank = args->rank, .step = args->step, .evaluate = args->evaluate};
    own.saved = base + op->saved_at[step];
    own.scratch = scratch + op->scratch_at;
    own.parameter = args->parameter + first;
    if (args->gradient != NULL) own.gradient = args->gradient + first;
    own.input[0] = step == PROJECT_IN ? args->input[0] : base + (step == ATTEND ? op->packed_at : op->mixed_at);
    own.input[1] = step == ATTEND ? args->input[1] : NULL;
    return own;
}

static gg_status multi_head_forward(gg_op *head, const gg_op_args *args) {
    gg_status status = GG_OK;
    multi_head_op *op = (multi_head_op *)head;
    char *base = head->desc.training ? args->saved : args->scratch;
    void *const output[STEPS] = {base + op->packed_at, base + op->mixed_at, args->output};
    for (int i = 0; i < STEPS; ++i) {
        gg_op_args own = args_of(op, args, i);
        own.output = output[i];
        GG_TRY(gg_op_forward(op->step[i], &own));
    }
cleanup:
    return status;
}

static gg_status multi_head_backward(gg_op *head, const gg_op_args *args) {
    gg_status status = GG_OK;
    multi_head_op *op = (multi_head_op *)head;
    char *scratch = args->scratch;
    void *const error[STEPS] = {scratch + op->grad_packed_at, scratch + op->grad_mixed_at, args->grad_output};
    for (int i = STEPS - 1; i >= 0; --i) {
        gg_op_args own = args_of(op, args, i);
        own.grad_output = error[i];
        own.grad_input[0] = i > 0 ? error[i - 1] : args->grad_input[0];
        GG_TRY(gg_op_backward(op->step[i], &own));
    }
cleanup:
    return status;
}

static const gg_op_class multi_head_class = {
    .forward = multi_head_forward, .backward_data = multi_head_backward, .destroy = multi_head_destroy};

static gg_status create_steps(gg_device *device, multi_head_op *op) {
    gg_status status = GG_OK;
    const gg_op_desc *desc = &op->head.desc;
    const int64_t positions = desc->output.size[0], inner = desc->heads * desc->head_size;
    const gg_shape wide = {2, {positions, 3 * inner}}, mixed = {2, {positions, inner}};
    for (int i = 0; i < STEPS; ++i) {
        gg_op_desc own = *desc;
        own.kind = i == ATTEND ? GG_OP_ATTENTION : GG_OP_LINEAR;
        own.inputs = i == ATTEND ? desc->inputs : 1;
        own.input[0] = i == PROJECT_IN ? desc->output : i == ATTEND ? wide : mixed;
        own.output = i == PROJECT_IN ? wide : i == ATTEND ? mixed : desc->output;
        own.offered[0] = (gg_format){GG_FLOAT32, GG_LAYOUT_PLAIN};
        own.input_grad = i > 0 ? desc->training : desc->input_grad;
        GG_TRY(i == ATTEND ? gg_cuda_attention_create(device, &own, &op->step[i])
                           : gg_cuda_linear_create(device, &own, &op->step[i]));
    }
cleanup:
    return status;
}

static size_t add_bytes(size_t *used, size_t bytes) {
    const size_t at = *used;
    *used += (bytes + 63) / 64 * 64;
    return at;
}

gg_status gg_cuda_multi_head_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    gg_op *head = NULL;
    size_t saved = 0, scratch = 0, most = 0;
    *out = NULL;
    const gg_shape mixed = {2, {desc->output.size[0], desc->heads * desc->head_size}};
    if (desc->inputs < 1 || desc->inputs > 2 || desc->output.dims != 2 || desc->heads < 1 || desc->head_size < 1 ||
        !gg_shape_equal(&desc->input[0], &desc->output))
        GG_FAIL(GG_ERROR_SHAPE, "multi-head attention makes (T, E) of (T, E)");
    GG_TRY(gg_cuda_op_create(desc, &multi_head_class, 1, sizeof(multi_head_op), &head));
    multi_head_op *op = (multi_head_op *)head;
    head->backward_needs_input = 1u << 0 | 1u << 1;
    GG_TRY(create_steps(device, op));
    const size_t bytes = gg_format_bytes(head->output, &mixed, desc->batch);
    op->packed_at = add_bytes(&saved, 3 * bytes);
    op->mixed_at = add_bytes(&saved, bytes);
    for (int i = 0; i < STEPS; ++i) {
        op->saved_at[i] = add_bytes(&saved, op->step[i]->saved_bytes);
        if (op->step[i]->scratch_bytes > most) most = op->step[i]->scratch_bytes;
    }
    if (desc->training) {
        head->saved_bytes = saved;
        op->grad_packed_at = add_bytes(&scratch, 3 * bytes);
        op->grad_mixed_at = add_bytes(&scratch, bytes);
    } else {
        scratch = saved;
    }
    op->scratch_at = scratch;
    head->scratch_bytes = scratch + most;
    *out = head;
    head = NULL;
cleanup:
    gg_op_destroy(head);
    return status;
}
