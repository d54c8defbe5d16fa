/* Attention over the positions of a sample (Vaswani et al. 2017). Input: (T, 3C), a query, a key and a value for each
 * position; output: (T, C). Each head has C/heads features of all three.
 *
 * A thread computes a head of a sample in blocks of queries, so memory holds one block of weights. Weights lie with the
 * block's queries side by side, [key][query]. Softmax then works on whole vectors, and only a block's queries and
 * errors are transposed. Two values of each query are saved for backward: the max score and the factor of its
 * exponentials. Backward recomputes equal bits of the weights from them, and draws dropout again. PLAIN. */
#include <string.h>

#include "base/parallel.h"
#include "cpu/gemm/gemm_kernels.h"
#include "cpu/native.h"

/* Queries of a block, in whole vectors. With a causal mask, small blocks multiply fewer masked keys. In long samples
 * these are few, and large blocks give longer sums. */
#define BLOCK 64
#define CAUSAL_BLOCK 32
#define LONG_SAMPLE 256

typedef struct attention_op {
    gg_op head;
    gg_device *device;
    const gg_gemm_kernels *kernels;
    int64_t batch, positions, heads, size; /* size: features of one head */
    int64_t block;                         /* queries at a time */
    int64_t groups;                        /* of GG_LANES queries */
    int64_t mask_blocks;                   /* of four random words, for a query */
    float scale, keep_scale;
    uint32_t threshold;
    size_t thread_floats; /* scratch of a thread */
} attention_op;

typedef struct attention_job {
    const attention_op *op;
    const gg_op_args *args;
    bool drops;
} attention_job;

/* One head of one sample, and the scratch of the thread that computes it. */
typedef struct attention_part {
    const attention_op *op;
    const gg_op_args *args;
    bool drops;
    int64_t number;
    int64_t keys; /* the first ones, which are not masked */
    const float *query, *key, *value;
    int64_t in_row, out_row; /* distances of positions */
    float *turned;           /* [feature][query] */
    float *weights, *error;  /* [key][query] */
    float *dropped;          /* weights after dropout; NULL means without dropout */
    uint8_t *mask;           /* [query][key] */
    float *saved;            /* for each group of GG_LANES queries, two numbers a lane */
} attention_part;

/* Number of keys seen by at least one query below `end`. */
static int64_t keys_below(const attention_part *p, int64_t end) {
    return p->op->head.desc.attention.causal && end < p->keys ? end : p->keys;
}

/* Number of keys, among `keys`, seen by query `first` of its block; each later query sees one more. */
static int64_t keys_of_query(const attention_part *p, int64_t first, int64_t keys) {
    return p->op->head.desc.attention.causal && first + 1 < keys ? first + 1 : keys;
}

static void product(const attention_op *op, gg_multiply it) {
    op->kernels->multiply(&it, 0, gg_block_count(it.m, op->kernels->tile_rows));
}

static const gg_cpu_attention *kernels_of(const attention_op *op) {
    return gg_cpu_device_kernels(op->device)->attention;
}

static attention_part part_of(const attention_job *j, int64_t number, int thread) {
    const attention_op *op = j->op;
    const int64_t sample = number / op->heads, head = number % op->heads, all = op->heads * op->size;
    const float *in = (const float *)j->args->input[0] + sample * op->positions * 3 * all + head * op->size;
    const int32_t *lengths = op->head.desc.inputs > 1 ? j->args->input[1] : NULL;
    attention_part p = {.op = op,
                        .args = j->args,
                        .drops = j->drops,
                        .number = number,
                        .keys = lengths != NULL ? lengths[sample] : op->positions,
                        .query = in,
                        .key = in + all,
                        .value = in + 2 * all,
                        .in_row = 3 * all,
                        .out_row = all};
    p.turned = (float *)j->args->scratch + (size_t)thread * op->thread_floats;
    p.weights = p.turned + op->size * op->block;
    p.error = p.weights + op->positions * op->block;
    p.dropped = j->drops ? p.error + op->positions * op->block : NULL;
    p.mask = (uint8_t *)(p.error + 2 * op->positions * op->block);
    p.saved = (float *)j->args->saved + number * op->groups * 2 * GG_LANES;
    return p;
}

/* Products of positions [begin, end) of `from` with the first `keys` keys (or values): [key][query]. */
static void products_with(const attention_part *p, const float *from, int64_t from_row, const float *keyed,
                          int64_t keys, int64_t begin, int64_t end, float *out) {
    const attention_op *op = p->op;
    op->kernels->transpose(end - begin, op->size, from + begin * from_row, from_row, op->block, p->turned, op->block);
    product(op, (gg_multiply){.m = keys,
                              .n = op->block,
                              .k = op->size,
                              .a = keyed,
                              .a_row = p->in_row,
                              .a_step = 1,
                              .b = p->turned,
                              .b_row = op->block,
                              .c = out,
                              .c_row = op->block});
}

/* Draws the dropout masks of `keys` keys for the queries [begin, end). */
static void draw_masks(const attention_part *p, int64_t begin, int64_t end, int64_t keys) {
    const attention_op *op = p->op;
    const gg_cpu_elementwise *kernels = gg_cpu_device_kernels(op->device)->elementwise;
    const gg_random_key key = {op->head.desc.seed, GG_RANDOM_DROPOUT, p->args->rank, *p->args->step};
    for (int64_t i = begin; i < end; ++i) {
        uint8_t *mask = p->mask + (i - begin) * 4 * op->mask_blocks;
        uint8_t *const rows[4] = {mask, mask + 1, mask + 2, mask + 3};
        const int64_t first = (p->number * op->positions + i) * op->mask_blocks;
        kernels->dropout_mask(&key, (uint32_t)first, 1, (size_t)(keys + 3) / 4, op->threshold, rows, 4);
    }
}

/* Zeroes dropped weights, and scales the others. `out` may be `x`. */
static void drop(const attention_part *p, int64_t keys, int64_t lane, const float *x, float *out) {
    const attention_op *op = p->op;
    const int64_t mask_row = 4 * op->mask_blocks;
    kernels_of(op)->drop(keys, op->block, p->mask + lane * mask_row, mask_row, op->keep_scale, x + lane, out + lane);
}

/* ------------------------------------------------------------------------------------------ forward */

static void forward_block(const attention_part *p, int64_t begin, int64_t end) {
    const attention_op *op = p->op;
    const int64_t keys = keys_below(p, end);
    float unsaved[2 * GG_LANES];
    products_with(p, p->query, p->in_row, p->key, keys, begin, end, p->weights);
    if (p->drops) draw_masks(p, begin, end, keys);
    for (int64_t lane = 0; lane < end - begin; lane += GG_LANES) {
        const int64_t first = begin + lane;
        kernels_of(op)->softmax(keys, keys_of_query(p, first, keys), op->block, op->scale, p->weights + lane,
                                op->head.desc.training ? p->saved + 2 * first : unsaved);
        if (p->drops) drop(p, keys, lane, p->weights, p->weights);
    }
    float *out = (float *)p->args->output + (p->number / op->heads * op->positions + begin) * p->out_row +
                 p->number % op->heads * op->size;
    product(op, (gg_multiply){.m = end - begin,
                              .n = op->size,
                              .k = keys,
                              .a = p->weights,
                              .a_row = 1,
                              .a_step = op->block,
                              .b = p->value,
                              .b_row = p->in_row,
                              .c = out,
                              .c_row = p->out_row});
}

static void attention_forward_part(void *context, int thread, int threads) {
    const attention_job *j = context;
    const attention_op *op = j->op;
    size_t begin, end;
    gg_parallel_split((size_t)(op->batch * op->heads), 1, thread, threads, &begin, &end);
    for (size_t number = begin; number < end; ++number) {
        const attention_part p = part_of(j, (int64_t)number, thread);
        for (int64_t i = 0; i < op->positions; i += op->block)
            forward_block(&p, i, i + op->block < op->positions ? i + op->block : op->positions);
    }
}

/* ------------------------------------------------------------------------------------------ backward */

/* add: to the gradients of keys and values from other blocks. */
static void backward_block(const attention_part *p, const float *error, float *grad, int64_t begin, int64_t end,
                           bool add) {
    const attention_op *op = p->op;
    const int64_t keys = keys_below(p, end), all = p->out_row;
    products_with(p, p->query, p->in_row, p->key, keys, begin, end, p->weights);
    products_with(p, error, p->out_row, p->value, keys, begin, end, p->error);
    if (p->drops) draw_masks(p, begin, end, keys);
    for (int64_t lane = 0; lane < end - begin; lane += GG_LANES) {
        const int64_t first = begin + lane;
        kernels_of(op)->again(keys, keys_of_query(p, first, keys), op->block, op->scale, p->saved + 2 * first,
                              p->weights + lane);
        if (p->drops) {
            drop(p, keys, lane, p->weights, p->dropped);
            drop(p, keys, lane, p->error, p->error);
        }
        kernels_of(op)->error(keys, op->block, op->scale, p->weights + lane, p->error + lane);
    }
    gg_multiply it = {.m = keys, .n = op->size, .k = end - begin, .a_row = op->block, .a_step = 1, .c_row = p->in_row};
    it.add = add;
    it.a = p->drops ? p->dropped : p->weights; /* gradient of the values, from the weights after dropout */
    it.b = error + begin * p->out_row;
    it.b_row = p->out_row;
    it.c = grad + 2 * all;
    product(op, it);
    it.a = p->error; /* the keys' */
    it.b = p->query + begin * p->in_row;
    it.b_row = p->in_row;
    it.c = grad + all;
    product(op, it);
    product(op, (gg_multiply){.m = end - begin,
                              .n = op->size,
                              .k = keys,
                              .a = p->error,
                              .a_row = 1,
                              .a_step = op->block,
                              .b = p->key,
                              .b_row = p->in_row,
                              .c = grad + begin * p->in_row,
                              .c_row = p->in_row});
}

static void attention_backward_part(void *context, int thread, int threads) {
    const attention_job *j = context;
    const attention_op *op = j->op;
    size_t begin, end;
    gg_parallel_split((size_t)(op->batch * op->heads), 1, thread, threads, &begin, &end);
    for (size_t number = begin; number < end; ++number) {
        const attention_part p = part_of(j, (int64_t)number, thread);
        const int64_t sample = (int64_t)number / op->heads, head = (int64_t)number % op->heads;
        const float *error = (const float *)j->args->grad_output + sample * op->positions * p.out_row + head * op->size;
        float *grad = (float *)j->args->grad_input[0] + sample * op->positions * p.in_row + head * op->size;
        for (int64_t i = p.keys; i < op->positions; ++i)
            for (int64_t what = 1; what < 3; ++what)
                memset(grad + i * p.in_row + what * p.out_row, 0, (size_t)op->size * sizeof(float));
        /* The last block sees all keys. */
        const int64_t last = (op->positions - 1) / op->block * op->block;
        for (int64_t i = last; i >= 0; i -= op->block)
            backward_block(&p, error, grad, i, i < last ? i + op->block : op->positions, i < last);
    }
}

/* ------------------------------------------------------------------------------------------ the operation */

static gg_status check_lengths(const attention_op *op, const int32_t *length) {
    for (int64_t n = 0; n < op->batch; ++n)
        if (length[n] < 1 || length[n] > op->positions)
            return gg_fail(GG_ERROR_ARGUMENT, "the length of sample %lld of the batch is %d; allowed: 1 to %lld",
                           (long long)n, length[n], (long long)op->positions);
    return GG_OK;
}

static attention_job job_of(const attention_op *op, const gg_op_args *args) {
    const bool drops = op->head.desc.training && op->head.desc.probability > 0 && !args->evaluate;
    return (attention_job){.op = op, .args = args, .drops = drops};
}

static gg_status attention_forward(gg_op *head, const gg_op_args *args) {
    const attention_op *op = (attention_op *)head;
    attention_job j = job_of(op, args);
    if (head->desc.inputs > 1) GG_TRY(check_lengths(op, args->input[1]));
    gg_parallel_run(op->device->threads, attention_forward_part, &j);
    return GG_OK;
}

static gg_status attention_backward(gg_op *head, const gg_op_args *args) {
    attention_job j = job_of((attention_op *)head, args);
    if (args->grad_input[0] != NULL) gg_parallel_run(j.op->device->threads, attention_backward_part, &j);
    return GG_OK;
}

static const gg_op_class attention_class = {
    .forward = attention_forward, .backward_data = attention_backward, .destroy = gg_native_op_free};

gg_status gg_native_attention_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_op *head = NULL;
    gg_op_desc floats = *desc;
    *out = NULL;
    GG_TRY(gg_op_check_attention(desc));
    const gg_gemm_kernels *kernels = gg_cpu_device_kernels(device)->gemm;
    floats.inputs = 1; /* compute type of native operations */
    GG_TRY(gg_native_op_create(&floats, &attention_class, sizeof(attention_op), &head));
    attention_op *op = (attention_op *)head;
    head->desc = *desc;
    head->input[0].layout = head->output.layout = GG_LAYOUT_PLAIN;
    head->input[1] = (gg_format){GG_INT32, GG_LAYOUT_PLAIN};
    head->backward_needs_input = 1u << 0 | 1u << 1;
    op->device = device;
    op->kernels = kernels;
    op->batch = desc->batch;
    op->positions = desc->input[0].size[0];
    op->heads = desc->attention.heads;
    op->size = desc->output.size[1] / desc->attention.heads;
    op->block = desc->attention.causal && op->positions <= LONG_SAMPLE ? CAUSAL_BLOCK : BLOCK;
    if (op->block > gg_lanes_padded(op->positions)) op->block = gg_lanes_padded(op->positions);
    op->groups = gg_lanes_padded(op->positions) / GG_LANES;
    op->mask_blocks = (op->positions + 3) / 4;
    op->scale = 1.0f / __builtin_sqrtf((float)op->size);
    op->threshold = (uint32_t)((double)desc->probability * 0x1p32);
    op->keep_scale = (float)(1.0 / (1.0 - (double)desc->probability));
    /* Masks are bytes; products may read past the last row of an operand. */
    op->thread_floats = (size_t)(op->block * (op->size + 3 * op->positions + op->mask_blocks) + GG_LANES);
    op->thread_floats = (op->thread_floats + GG_LANES - 1) / GG_LANES * GG_LANES;
    head->scratch_bytes = (size_t)device->threads * op->thread_floats * sizeof(float);
    if (desc->training) head->saved_bytes = (size_t)(2 * op->batch * op->heads * op->groups * GG_LANES) * sizeof(float);
    *out = head;
    return GG_OK;
}
