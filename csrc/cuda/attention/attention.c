/* Attention over the positions of a sample. Input: (T, 3C), a query, a key and a value for each position; output: (T,
 * C).
 *
 * First, queries, keys and values are collected head by head. Then each product of all heads of all samples is one call
 * of cuBLASLt, with the weights' kernels in between. Memory holds the weights of as many heads as fit in the device's
 * cache. If one head's do not fit, it holds those of a block of queries. Two numbers a row are saved; backward
 * recomputes the weights from them.
 *
 * With bfloat16 everything is bfloat16 except scores, their errors and sums. */
#include "base/memory.h"
#include "cuda/gemm/product.h"
#include "cuda/kernels_nn.h"
#include "cuda/ops.h"

/* Max bytes of scores at once: they fit in a large GPU's L2 cache together with the other operands. Tests use less. */
#ifndef GG_CUDA_ATTENTION_BYTES
#define GG_CUDA_ATTENTION_BYTES ((int64_t)32 << 20)
#endif

enum { SCORES = 0, MIXED, ERRORS, VALUES_GRADIENT, QUERIES_GRADIENT, KEYS_GRADIENT, PRODUCTS };
enum { WHOLE = 0, REST, BLOCKS };           /* blocks of queries; a head's last block may be shorter */
enum { QUERIES = 0, KEYS, VALUES, ARRAYS }; /* parts of the input */
enum { ROW_MULTIPLE = 8 };                  /* rows of weights begin at 16 bytes, also in bfloat16 */

typedef struct attention_op {
    gg_op head;
    gg_cuda_device *device;
    gg_dtype dtype;
    int64_t batch, positions, heads, size; /* size: features of a head */
    int64_t all, group;                    /* heads of all samples; heads at once, a divisor of `all` */
    int64_t block, row;                    /* queries at once; scores from one query to the next */
    gg_cuda_product product[BLOCKS][PRODUCTS];
    /* Offsets in scratch. packed, gradient: the input, head by head, and its gradient. mixed: the output or its error.
     * scores, error: scores and their errors. weights, score_error: operands of products made from both, the same
     * arrays in float32. product: scratch of products. */
    size_t packed_at, gradient_at, mixed_at, scores_at, error_at, weights_at, score_error_at, product_at;
} attention_op;

/* Values of the output, equal to those of each part of the input. */
static int64_t values_of(const attention_op *op) { return op->all * op->positions * op->size; }

static char *at_values(const attention_op *op, char *array, int64_t values) {
    return array + (size_t)values * gg_dtype_size(op->dtype);
}

/* A block of queries of a group of heads: those of the first head begin at `query`. */
typedef struct attention_block {
    attention_op *op;
    const gg_op_args *args;
    int64_t pair, first, queries;
    gg_cuda_product *product;
} attention_block;

/* Part `part` of the input, or of its gradient: all positions, or from the block's first query on. */
static char *part_of(const attention_block *b, size_t array, int part, bool own) {
    const attention_op *op = b->op;
    const int64_t position = own ? b->first : 0;
    return at_values(op, (char *)b->args->scratch + array,
                     part * values_of(op) + (b->pair * op->positions + position) * op->size);
}

static char *mixed_of(const attention_block *b) { return part_of(b, b->op->mixed_at, 0, true); }

static gg_status multiply(const attention_block *b, int which, const void *x, const void *y, void *z, bool add) {
    char *scratch = b->args->scratch;
    b->product[which].shape.add = add;
    return gg_cuda_product_run(b->op->device, &b->product[which], x, y, NULL, z, scratch + b->op->product_at);
}

static gg_cuda_attention_args weights_args(const attention_block *b) {
    const attention_op *op = b->op;
    const gg_op_args *args = b->args;
    const gg_op_desc *desc = &op->head.desc;
    const bool drops = desc->training && desc->probability > 0 && !args->evaluate;
    char *scratch = args->scratch;
    return (gg_cuda_attention_args){.heads = op->heads,
                                    .positions = op->positions,
                                    .first_head = b->pair,
                                    .count = op->group,
                                    .first = b->first,
                                    .queries = b->queries,
                                    .matrix = op->block * op->row,
                                    .row = op->row,
                                    .causal = desc->attention.causal,
                                    .scale = 1.0f / __builtin_sqrtf((float)op->size),
                                    .lengths = desc->inputs > 1 ? args->input[1] : NULL,
                                    .draw = {.seed = desc->seed,
                                             .step = args->step,
                                             .rank = args->rank,
                                             .probability = drops ? desc->probability : 0},
                                    .dtype = op->dtype,
                                    .scores = (const float *)(scratch + op->scores_at),
                                    .error = (const float *)(scratch + op->error_at),
                                    .weights = scratch + op->weights_at,
                                    .score_error = scratch + op->score_error_at,
                                    .saved = desc->training ? args->saved : NULL};
}

/* Moves a batch between the neighbours' layout and head by head. */
static void move_heads(const attention_op *op, int64_t parts, bool split, const void *from, void *to) {
    const gg_cuda_heads_args heads = {.samples = op->batch,
                                      .positions = op->positions,
                                      .parts = parts,
                                      .heads = op->heads,
                                      .size = op->size,
                                      .split = split,
                                      .dtype = op->dtype,
                                      .from = from,
                                      .to = to};
    gg_cuda_heads(gg_cuda_compute(op->device), &heads);
}

/* ------------------------------------------------------------------------------------------ running */

static gg_status block_forward(const attention_block *b) {
    attention_op *op = b->op;
    char *scratch = b->args->scratch;
    gg_cuda_attention_args weights = weights_args(b);
    weights.bad = weights.lengths != NULL ? gg_cuda_bad(op->device, GG_CUDA_BAD_LENGTH) : NULL;
    GG_TRY(multiply(b, SCORES, part_of(b, op->packed_at, QUERIES, true), part_of(b, op->packed_at, KEYS, false),
                    scratch + op->scores_at, false));
    gg_cuda_attention(gg_cuda_compute(op->device), &weights);
    return multiply(b, MIXED, weights.weights, part_of(b, op->packed_at, VALUES, false), mixed_of(b), false);
}

/* Gradients of keys and values are sums over the blocks of a head. */
static gg_status block_backward(const attention_block *b) {
    attention_op *op = b->op;
    char *scratch = b->args->scratch;
    const gg_cuda_attention_args weights = weights_args(b);
    const void *queries = part_of(b, op->packed_at, QUERIES, true), *keys = part_of(b, op->packed_at, KEYS, false);
    const bool add = b->first > 0;
    GG_TRY(multiply(b, SCORES, queries, keys, scratch + op->scores_at, false));
    GG_TRY(multiply(b, ERRORS, mixed_of(b), part_of(b, op->packed_at, VALUES, false), scratch + op->error_at, false));
    gg_cuda_attention_backward(gg_cuda_compute(op->device), &weights);
    GG_TRY(multiply(b, VALUES_GRADIENT, weights.weights, mixed_of(b), part_of(b, op->gradient_at, VALUES, false), add));
    GG_TRY(multiply(b, QUERIES_GRADIENT, weights.score_error, keys, part_of(b, op->gradient_at, QUERIES, true), false));
    return multiply(b, KEYS_GRADIENT, weights.score_error, queries, part_of(b, op->gradient_at, KEYS, false), add);
}

static gg_status run_blocks(attention_op *op, const gg_op_args *args, gg_status (*run)(const attention_block *block)) {
    for (int64_t pair = 0; pair < op->all; pair += op->group)
        for (int64_t first = 0; first < op->positions; first += op->block) {
            const int64_t left = op->positions - first, queries = left < op->block ? left : op->block;
            const attention_block block = {op, args, pair, first, queries, op->product[queries < op->block]};
            GG_TRY(run(&block));
        }
    return GG_OK;
}

static gg_status attention_forward(gg_op *head, const gg_op_args *args) {
    attention_op *op = (attention_op *)head;
    char *scratch = args->scratch;
    gg_cuda_enter(op->device);
    move_heads(op, ARRAYS, true, args->input[0], scratch + op->packed_at);
    GG_TRY(run_blocks(op, args, block_forward));
    move_heads(op, 1, false, scratch + op->mixed_at, args->output);
    if (head->desc.inputs > 1) gg_cuda_explain_bad(op->device, GG_CUDA_BAD_LENGTH, 1, op->positions);
    return gg_cuda_op_done(op->device, "attention");
}

static gg_status attention_backward(gg_op *head, const gg_op_args *args) {
    attention_op *op = (attention_op *)head;
    char *scratch = args->scratch;
    if (args->grad_input[0] == NULL) return GG_OK;
    gg_cuda_enter(op->device);
    move_heads(op, ARRAYS, true, args->input[0], scratch + op->packed_at);
    move_heads(op, 1, true, args->grad_output, scratch + op->mixed_at);
    GG_TRY(run_blocks(op, args, block_backward));
    move_heads(op, ARRAYS, false, scratch + op->gradient_at, args->grad_input[0]);
    return gg_cuda_op_done(op->device, "the backward pass of attention");
}

static void attention_destroy(gg_op *head) {
    attention_op *op = (attention_op *)head;
    for (int block = 0; block < BLOCKS; ++block)
        for (int i = 0; i < PRODUCTS; ++i) gg_cuda_product_destroy(op->device, &op->product[block][i]);
    gg_cuda_op_free(head);
}

static const gg_op_class attention_class = {
    .forward = attention_forward, .backward_data = attention_backward, .destroy = attention_destroy};

/* ------------------------------------------------------------------------------------------ creating */

/* Alignment of all arrays of products, at most that of scratch. */
static unsigned alignment_of(const attention_op *op) {
    const size_t element = gg_dtype_size(op->dtype);
    const size_t steps[] = {(size_t)values_of(op) * element, (size_t)(op->positions * op->size) * element,
                            (size_t)(op->block * op->size) * element};
    unsigned alignment = 64;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; ++i)
        while (steps[i] % alignment != 0) alignment /= 2;
    return alignment;
}

/* Creates the products of blocks of `queries` queries. */
static gg_status create_products(attention_op *op, int64_t queries, gg_cuda_product *product) {
    const int64_t t = op->positions, d = op->size, row = op->row, head = t * d, matrix = op->block * row;
    const bool training = op->head.desc.training;
    /* (queries, T): of queries and keys, or of errors and values */
    const gg_cuda_product_shape scores = {.m = queries,
                                          .n = t,
                                          .k = d,
                                          .in = op->dtype,
                                          .a_row = d,
                                          .b_row = d,
                                          .c_row = row,
                                          .transpose_b = true,
                                          .batch = op->group,
                                          .a_step = head,
                                          .b_step = head,
                                          .c_step = matrix,
                                          .alignment = alignment_of(op)};
    /* (queries, d): of weights and values, or of errors and keys */
    const gg_cuda_product_shape mixed = {.m = queries,
                                         .n = d,
                                         .k = t,
                                         .in = op->dtype,
                                         .out = op->dtype,
                                         .a_row = row,
                                         .b_row = d,
                                         .c_row = d,
                                         .batch = op->group,
                                         .a_step = matrix,
                                         .b_step = head,
                                         .c_step = head,
                                         .alignment = alignment_of(op)};
    /* (T, d), transposed: of errors and queries, or of weights and errors */
    gg_cuda_product_shape turned = mixed;
    turned.m = t;
    turned.k = queries;
    turned.transpose_a = true;
    GG_TRY(gg_cuda_product_create(op->device, &scores, &product[SCORES]));
    GG_TRY(gg_cuda_product_create(op->device, &mixed, &product[MIXED]));
    if (!training) return GG_OK;
    GG_TRY(gg_cuda_product_create(op->device, &scores, &product[ERRORS]));
    GG_TRY(gg_cuda_product_create(op->device, &mixed, &product[QUERIES_GRADIENT]));
    GG_TRY(gg_cuda_product_create(op->device, &turned, &product[KEYS_GRADIENT]));
    return gg_cuda_product_create(op->device, &turned, &product[VALUES_GRADIENT]);
}

static size_t add_bytes(size_t *used, size_t bytes) {
    const size_t at = *used;
    *used += gg_aligned(bytes);
    return at;
}

static void lay_out(attention_op *op) {
    const bool training = op->head.desc.training, narrow = op->dtype == GG_BFLOAT16;
    const size_t values = (size_t)values_of(op) * gg_dtype_size(op->dtype);
    const size_t weights = (size_t)(op->group * op->block * op->row);
    size_t used = 0, most = 0;
    op->packed_at = add_bytes(&used, ARRAYS * values);
    op->mixed_at = add_bytes(&used, values);
    op->scores_at = add_bytes(&used, weights * sizeof(float));
    op->weights_at = narrow ? add_bytes(&used, weights * sizeof(uint16_t)) : op->scores_at;
    if (training) {
        op->gradient_at = add_bytes(&used, ARRAYS * values);
        op->error_at = add_bytes(&used, weights * sizeof(float));
        op->score_error_at = narrow ? add_bytes(&used, weights * sizeof(uint16_t)) : op->error_at;
        op->head.saved_bytes = (size_t)(2 * op->all * op->positions) * sizeof(float);
    }
    op->product_at = used;
    for (int block = 0; block < BLOCKS; ++block)
        for (int i = 0; i < PRODUCTS; ++i) {
            const size_t room = gg_cuda_workspace_room(op->product[block][i].workspace);
            if (room > most) most = room;
        }
    op->head.scratch_bytes = used + most;
}

/* Chooses the amount computed at once. */
static void choose_blocks(attention_op *op) {
    const int64_t row = (op->positions + ROW_MULTIPLE - 1) / ROW_MULTIPLE * ROW_MULTIPLE;
    const int64_t row_bytes = row * (int64_t)sizeof(float), most = GG_CUDA_ATTENTION_BYTES / row_bytes;
    op->row = row;
    op->block = op->positions <= most ? op->positions : most > 1 ? most : 1;
    op->group = op->all;
    while (op->group > 1 && (op->all % op->group != 0 || op->group * op->block > most)) --op->group;
}

gg_status gg_cuda_attention_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    gg_op *head = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(gg_op_check_attention(desc));
    GG_TRY_CLEANUP(gg_cuda_op_create(desc, &attention_class, 1, sizeof(attention_op), &head));
    attention_op *op = (attention_op *)head;
    op->device = gg_cuda_of(device);
    op->dtype = desc->dtype;
    head->input[0].dtype = head->output.dtype = op->dtype;
    op->batch = desc->batch;
    op->positions = desc->input[0].size[0];
    op->heads = desc->attention.heads;
    op->size = desc->output.size[1] / desc->attention.heads;
    op->all = desc->batch * desc->attention.heads;
    head->backward_needs_input = 1u << 0 | 1u << 1;
    choose_blocks(op);
    GG_TRY_CLEANUP(create_products(op, op->block, op->product[WHOLE]));
    if (op->positions % op->block != 0)
        GG_TRY_CLEANUP(create_products(op, op->positions % op->block, op->product[REST]));
    lay_out(op);
    *out = head;
    head = NULL;
cleanup:
    if (head != NULL) attention_destroy(head);
    return status;
}
