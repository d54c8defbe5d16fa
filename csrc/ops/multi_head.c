/* Multi-head attention with its projections, as PyTorch's layer has them: (T, E) gives (T, E); all heads together may
 * have fewer features. Three operations of the device's table compute it: a linear layer to packed queries, keys and
 * values, attention, and a linear layer. The values between them are saved. */
#include "base/memory.h"
#include "ops/backend.h"

enum { PROJECT_IN = 0, ATTEND, PROJECT_OUT, STEPS };

typedef struct multi_head_op {
    gg_op head;
    gg_op *step[STEPS];
    size_t prepared_at[STEPS];
    size_t packed_at, mixed_at, saved_at[STEPS];      /* in saved memory; without training in scratch */
    size_t grad_packed_at, grad_mixed_at, scratch_at; /* in scratch */
} multi_head_op;

static void multi_head_destroy(gg_op *head) {
    multi_head_op *op = (multi_head_op *)head;
    for (int i = 0; i < STEPS; ++i) gg_op_destroy(op->step[i]);
    gg_free(op);
}

/* Arguments of the whole that all steps share, and a linear step's parameters. */
static gg_op_args args_of(const multi_head_op *op, const gg_op_args *args, int step) {
    const int first = step == PROJECT_OUT ? (op->head.desc.bias ? 2 : 1) : 0;
    char *scratch = args->scratch, *prepared = args->prepared;
    char *base = op->head.desc.training ? args->saved : scratch;
    gg_op_args own = {.rank = args->rank, .step = args->step, .evaluate = args->evaluate};
    if (op->step[step]->prepared_bytes > 0) own.prepared = prepared + op->prepared_at[step];
    own.saved = base + op->saved_at[step];
    own.scratch = scratch + op->scratch_at;
    own.parameter = args->parameter + first;
    if (args->gradient != NULL) own.gradient = args->gradient + first;
    own.input[0] = step == PROJECT_IN ? args->input[0] : base + (step == ATTEND ? op->packed_at : op->mixed_at);
    own.input[1] = step == ATTEND ? args->input[1] : NULL;
    return own;
}

static void multi_head_compile(gg_op *head) {
    for (int i = 0; i < STEPS; ++i) gg_op_compile(((multi_head_op *)head)->step[i]);
}

/* The backward pass of each step prepares it. */
static gg_status multi_head_prepare(gg_op *head, const gg_op_args *args, gg_pass pass) {
    multi_head_op *op = (multi_head_op *)head;
    for (int i = 0; i < STEPS && pass == GG_PASS_FORWARD; ++i) {
        const gg_op_args own = args_of(op, args, i);
        GG_TRY(gg_op_prepare(op->step[i], &own, pass));
    }
    return GG_OK;
}

static gg_status multi_head_forward(gg_op *head, const gg_op_args *args) {
    multi_head_op *op = (multi_head_op *)head;
    char *base = head->desc.training ? args->saved : args->scratch;
    void *const output[STEPS] = {base + op->packed_at, base + op->mixed_at, args->output};
    for (int i = 0; i < STEPS; ++i) {
        gg_op_args own = args_of(op, args, i);
        own.output = output[i];
        GG_TRY(gg_op_forward(op->step[i], &own));
    }
    return GG_OK;
}

static gg_status multi_head_backward(gg_op *head, const gg_op_args *args) {
    multi_head_op *op = (multi_head_op *)head;
    char *scratch = args->scratch;
    void *const error[STEPS] = {scratch + op->grad_packed_at, scratch + op->grad_mixed_at, args->grad_output};
    for (int i = STEPS - 1; i >= 0; --i) {
        gg_op_args own = args_of(op, args, i);
        own.grad_output = error[i];
        own.grad_input[0] = i > 0 ? error[i - 1] : args->grad_input[0];
        GG_TRY(gg_op_backward(op->step[i], &own));
    }
    return GG_OK;
}

static const gg_op_class multi_head_class = {.prepare = multi_head_prepare,
                                             .forward = multi_head_forward,
                                             .backward_data = multi_head_backward,
                                             .compile = multi_head_compile,
                                             .destroy = multi_head_destroy};

/* Each step is offered the previous step's format, and must read it. */
static gg_status create_steps(gg_device *device, multi_head_op *op) {
    const gg_op_desc *desc = &op->head.desc;
    const int64_t positions = desc->output.size[0], inner = desc->attention.heads * desc->attention.head_size;
    const gg_shape wide = {2, {positions, 3 * inner}}, mixed = {2, {positions, inner}};
    gg_format given = {desc->offered[0].dtype, GG_LAYOUT_PLAIN};
    for (int i = 0; i < STEPS; ++i) {
        gg_op_desc own = *desc;
        own.kind = i == ATTEND ? GG_OP_ATTENTION : GG_OP_LINEAR;
        own.inputs = i == ATTEND ? desc->inputs : 1;
        own.input[0] = i == PROJECT_IN ? desc->output : i == ATTEND ? wide : mixed;
        own.output = i == PROJECT_IN ? wide : i == ATTEND ? mixed : desc->output;
        own.offered[0] = given;
        own.input_grad = i > 0 ? desc->training : desc->input_grad;
        GG_TRY(device->table->create[own.kind](device, &own, &op->step[i]));
        const gg_format reads = op->step[i]->input[0];
        if (reads.layout != GG_LAYOUT_PLAIN || (i > 0 && reads.dtype != given.dtype))
            return gg_fail(GG_ERROR_UNSUPPORTED, "multi-head attention by '%s': %s reads %s of %s", device->table->name,
                           gg_op_kind_name(own.kind), gg_layout_name(reads.layout), gg_dtype_name(reads.dtype));
        given = op->step[i]->output;
    }
    op->head.input[0] = op->step[PROJECT_IN]->input[0];
    op->head.input[1] = (gg_format){GG_INT32, GG_LAYOUT_PLAIN};
    op->head.output = given;
    return GG_OK;
}

static size_t add_bytes(size_t *used, size_t bytes) {
    const size_t at = *used;
    *used += gg_aligned(bytes);
    return at;
}

static void lay_out(multi_head_op *op) {
    const gg_op_desc *desc = &op->head.desc;
    const gg_shape mixed = {2, {desc->output.size[0], desc->attention.heads * desc->attention.head_size}};
    const size_t packed_bytes = 3 * gg_format_bytes(op->step[PROJECT_IN]->output, &mixed, desc->batch);
    const size_t mixed_bytes = gg_format_bytes(op->step[ATTEND]->output, &mixed, desc->batch);
    size_t saved = 0, scratch = 0, most = 0;
    op->packed_at = add_bytes(&saved, packed_bytes + GG_READ_BEHIND);
    op->mixed_at = add_bytes(&saved, mixed_bytes + GG_READ_BEHIND);
    for (int i = 0; i < STEPS; ++i) {
        op->saved_at[i] = add_bytes(&saved, op->step[i]->saved_bytes);
        op->prepared_at[i] = add_bytes(&op->head.prepared_bytes, op->step[i]->prepared_bytes);
        if (op->step[i]->scratch_bytes > most) most = op->step[i]->scratch_bytes;
    }
    if (desc->training) {
        op->head.saved_bytes = saved;
        op->grad_packed_at = add_bytes(&scratch, packed_bytes + GG_READ_BEHIND);
        op->grad_mixed_at = add_bytes(&scratch, mixed_bytes + GG_READ_BEHIND);
    } else {
        scratch = saved;
    }
    op->scratch_at = scratch;
    op->head.scratch_bytes = scratch + most;
}

gg_status gg_multi_head_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    multi_head_op *op = NULL;
    *out = NULL;
    if (desc->inputs < 1 || desc->inputs > 2 || desc->output.dims != 2 || desc->attention.heads < 1 ||
        desc->attention.head_size < 1 || !gg_shape_equal(&desc->input[0], &desc->output))
        GG_FAIL_CLEANUP(GG_ERROR_SHAPE, "multi-head attention makes (T, E) of (T, E)");
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *op, "an operation", &op));
    op->head = (gg_op){.type = &multi_head_class,
                       .backend = device->table->name,
                       .desc = *desc,
                       .backward_needs_input = 1u << 0 | 1u << 1};
    GG_TRY_CLEANUP(create_steps(device, op));
    lay_out(op);
    *out = &op->head;
    op = NULL;
cleanup:
    if (op != NULL) multi_head_destroy(&op->head);
    return status;
}
