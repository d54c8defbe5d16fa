/* Attention over the positions of a sample: (T, 3C), a query, a key and a value for each position, gives (T, C). The
 * products are cuBLASLt's: for one head at a time, of a group of samples together, whose rows of weights are in memory.
 * For the backward pass two numbers a row are saved, from which the weights are computed again. */
#include "cuda/kernels_nn.h"
#include "cuda/ops.h"
#include "cuda/product.h"

/* Memory for the weights of a group of samples; a sample's must fit in any case. */
#define GROUP_BYTES ((int64_t)256 << 20)

enum { SCORES = 0, MIXED, ERRORS, VALUES_GRADIENT, QUERIES_GRADIENT, KEYS_GRADIENT, PRODUCTS };

typedef struct attention_op {
    gg_op head;
    gg_cuda_device *device;
    int64_t positions, heads, size, group; /* size: features of a head; group: samples, divides the batch */
    gg_cuda_product product[PRODUCTS];
    size_t weights_bytes, product_at; /* in scratch: the weights, their errors, then what products want */
} attention_op;

static int64_t all_of(const attention_op *op) { return op->heads * op->size; }

static gg_cuda_attention_args weights_args(const attention_op *op, const gg_op_args *args, int64_t sample) {
    const gg_op_desc *desc = &op->head.desc;
    const bool drops = desc->training && desc->probability > 0 && !args->evaluate;
    return (gg_cuda_attention_args){.heads = op->heads,
                                    .positions = op->positions,
                                    .first_head = sample * op->heads,
                                    .count = op->group * op->heads,
                                    .queries = op->positions,
                                    .matrix = op->positions * op->positions,
                                    .row = op->positions,
                                    .causal = desc->causal,
                                    .scale = 1.0f / __builtin_sqrtf((float)op->size),
                                    .lengths = desc->inputs > 1 ? args->input[1] : NULL,
                                    .draw = {.seed = desc->seed,
                                             .step = args->step,
                                             .rank = args->rank,
                                             .probability = drops ? desc->probability : 0},
                                    .scores = args->scratch,
                                    .saved = desc->training ? args->saved : NULL};
}

/* Where a head of the first sample of a group begins: query, key or value of the input or its gradient; of the output;
 * of the weights. */
static size_t packed_at(const attention_op *op, int64_t sample, int64_t head, int what) {
    return (size_t)(sample * op->positions * 3 * all_of(op) + what * all_of(op) + head * op->size);
}
static size_t mixed_at(const attention_op *op, int64_t sample, int64_t head) {
    return (size_t)(sample * op->positions * all_of(op) + head * op->size);
}
static size_t weights_at(const attention_op *op, int64_t head) {
    return (size_t)(head * op->positions * op->positions);
}

static gg_status multiply(attention_op *op, const gg_op_args *args, int which, const float *a, const float *b,
                          float *c) {
    return gg_cuda_product_run(op->device, &op->product[which], a, b, NULL, c, (char *)args->scratch + op->product_at);
}

static gg_status make_scores(attention_op *op, const gg_op_args *args, int64_t sample) {
    const float *in = args->input[0];
    float *scores = args->scratch;
    gg_status status = GG_OK;
    for (int64_t h = 0; h < op->heads; ++h)
        GG_TRY(multiply(op, args, SCORES, in + packed_at(op, sample, h, 0), in + packed_at(op, sample, h, 1),
                        scores + weights_at(op, h)));
cleanup:
    return status;
}

static gg_status attention_forward(gg_op *head, const gg_op_args *args) {
    attention_op *op = (attention_op *)head;
    const float *in = args->input[0], *weights = args->scratch;
    gg_status status = GG_OK;
    gg_cuda_enter(op->device);
    for (int64_t sample = 0; sample < head->desc.batch; sample += op->group) {
        gg_cuda_attention_args own = weights_args(op, args, sample);
        own.bad = own.lengths != NULL ? gg_cuda_bad(op->device, GG_CUDA_BAD_LENGTH) : NULL;
        GG_TRY(make_scores(op, args, sample));
        gg_cuda_attention(gg_cuda_compute(op->device), &own);
        GG_TRY(gg_cuda_op_done(op->device, "attention"));
        for (int64_t h = 0; h < op->heads; ++h)
            GG_TRY(multiply(op, args, MIXED, weights + weights_at(op, h), in + packed_at(op, sample, h, 2),
                            (float *)args->output + mixed_at(op, sample, h)));
    }
    if (head->desc.inputs > 1) gg_cuda_report_bad(op->device, GG_CUDA_BAD_LENGTH, 1, op->positions);
cleanup:
    return status;
}

static gg_status attention_backward(gg_op *head, const gg_op_args *args) {
    attention_op *op = (attention_op *)head;
    const float *in = args->input[0], *dy = args->grad_output, *weights = args->scratch;
    float *error = (float *)((char *)args->scratch + op->weights_bytes), *dx = args->grad_input[0];
    gg_status status = GG_OK;
    if (dx == NULL) goto cleanup;
    gg_cuda_enter(op->device);
    for (int64_t sample = 0; sample < head->desc.batch; sample += op->group) {
        gg_cuda_attention_args own = weights_args(op, args, sample);
        own.error = error;
        GG_TRY(make_scores(op, args, sample));
        for (int64_t h = 0; h < op->heads; ++h)
            GG_TRY(multiply(op, args, ERRORS, dy + mixed_at(op, sample, h), in + packed_at(op, sample, h, 2),
                            error + weights_at(op, h)));
        gg_cuda_attention_backward(gg_cuda_compute(op->device), &own);
        GG_TRY(gg_cuda_op_done(op->device, "the backward pass of attention"));
        for (int64_t h = 0; h < op->heads; ++h) {
            const size_t at = weights_at(op, h);
            GG_TRY(multiply(op, args, VALUES_GRADIENT, weights + at, dy + mixed_at(op, sample, h),
                            dx + packed_at(op, sample, h, 2)));
            GG_TRY(multiply(op, args, QUERIES_GRADIENT, error + at, in + packed_at(op, sample, h, 1),
                            dx + packed_at(op, sample, h, 0)));
            GG_TRY(multiply(op, args, KEYS_GRADIENT, error + at, in + packed_at(op, sample, h, 0),
                            dx + packed_at(op, sample, h, 1)));
        }
    }
cleanup:
    return status;
}

static void attention_destroy(gg_op *head) {
    attention_op *op = (attention_op *)head;
    for (int i = 0; i < PRODUCTS; ++i) gg_cuda_product_destroy(op->device, &op->product[i]);
    gg_cuda_op_free(head);
}

static const gg_op_class attention_class = {
    .forward = attention_forward, .backward_data = attention_backward, .destroy = attention_destroy};

/* ------------------------------------------------------------------------------------------ creating */

static gg_status create_products(attention_op *op) {
    const int64_t t = op->positions, d = op->size, all = all_of(op), weights = op->heads * t * t;
    const bool training = op->head.desc.training;
    const unsigned alignment = d % 4 == 0 && t % 2 == 0 ? 16 : 4;
    gg_cuda_product_shape shape = {.batch = op->group, .alignment = alignment};
    gg_status status = GG_OK;
    /* (T, T) of queries and keys, or of errors and values. */
    shape.m = shape.n = shape.c_row = t;
    shape.k = d;
    shape.b_row = 3 * all;
    shape.b_step = 3 * all * t;
    shape.c_step = weights;
    shape.transpose_b = true;
    shape.a_row = 3 * all;
    shape.a_step = 3 * all * t;
    GG_TRY(gg_cuda_product_create(op->device, &shape, &op->product[SCORES]));
    shape.a_row = all;
    shape.a_step = all * t;
    if (training) GG_TRY(gg_cuda_product_create(op->device, &shape, &op->product[ERRORS]));
    /* (T, d) of weights and values. */
    shape = (gg_cuda_product_shape){.m = t,
                                    .n = d,
                                    .k = t,
                                    .a_row = t,
                                    .b_row = 3 * all,
                                    .c_row = all,
                                    .batch = op->group,
                                    .a_step = weights,
                                    .b_step = 3 * all * t,
                                    .c_step = all * t,
                                    .alignment = alignment};
    GG_TRY(gg_cuda_product_create(op->device, &shape, &op->product[MIXED]));
    if (!training) goto cleanup;
    /* (T, d) of errors and keys; turned, of errors and queries, and of weights and errors. */
    shape.c_row = 3 * all;
    shape.c_step = 3 * all * t;
    GG_TRY(gg_cuda_product_create(op->device, &shape, &op->product[QUERIES_GRADIENT]));
    shape.transpose_a = true;
    GG_TRY(gg_cuda_product_create(op->device, &shape, &op->product[KEYS_GRADIENT]));
    shape.b_row = all;
    shape.b_step = all * t;
    GG_TRY(gg_cuda_product_create(op->device, &shape, &op->product[VALUES_GRADIENT]));
cleanup:
    return status;
}

gg_status gg_cuda_attention_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    gg_op *head = NULL;
    *out = NULL;
    GG_TRY(gg_op_check_attention(desc));
    GG_TRY(gg_cuda_op_create(desc, &attention_class, 1, sizeof(attention_op), &head));
    attention_op *op = (attention_op *)head;
    op->device = gg_cuda_of(device);
    op->positions = desc->input[0].size[0];
    op->heads = desc->heads;
    op->size = desc->output.size[1] / desc->heads;
    const int64_t sample_bytes = op->heads * op->positions * op->positions * (int64_t)sizeof(float);
    op->group = desc->batch;
    while (op->group > 1 && (desc->batch % op->group != 0 || op->group * sample_bytes > GROUP_BYTES)) --op->group;
    head->backward_needs_input = 1u << 0 | 1u << 1;
    GG_TRY(create_products(op));
    op->weights_bytes = ((size_t)(op->group * sample_bytes) + 63) / 64 * 64;
    op->product_at = (desc->training ? 2 : 1) * op->weights_bytes;
    size_t most = 0;
    for (int i = 0; i < PRODUCTS; ++i) {
        const size_t room = gg_cuda_workspace_room(op->product[i].workspace);
        if (room > most) most = room;
    }
    head->scratch_bytes = op->product_at + most;
    if (desc->training) head->saved_bytes = (size_t)(2 * desc->batch * op->heads * op->positions) * sizeof(float);
    *out = head;
    head = NULL;
cleanup:
    if (head != NULL) attention_destroy(head);
    return status;
}
