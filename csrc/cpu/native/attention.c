/* Attention over the positions of a sample (Vaswani et al. 2017): (T, 3C), a query, a key and a value for each
 * position, gives (T, C). Each of the heads has C/heads features of all three.
 *
 * A head of a sample is computed by one thread, in blocks of its queries, so that no more than a block of rows of
 * weights is ever in memory. For the backward pass the largest score of each row and what its exponentials were
 * multiplied by are saved, from which the weights are computed again with the same bits; what dropout zeroes is drawn
 * again. PLAIN. */
#include <string.h>

#include "base/parallel.h"
#include "cpu/gemm_kernels.h"
#include "cpu/native/native.h"

/* Queries of a block. With a causal mask, small blocks multiply fewer keys that are masked; of long samples these are
 * few, and large blocks have longer sums. */
#define BLOCK 64
#define CAUSAL_BLOCK 16
#define LONG_SAMPLE 256

typedef struct attention_op {
    gg_op head;
    gg_device *device;
    const gg_gemm_kernels *kernels;
    int64_t batch, positions, heads, size; /* size: features of one head */
    int64_t block;                         /* queries at a time */
    int64_t row;                           /* floats of a row of weights, padded */
    int64_t mask_blocks;                   /* of four random words, for a row */
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
    int64_t first_row; /* number of its first row of weights among all */
    int64_t keys;      /* the first ones, which are not masked */
    const float *query, *key, *value;
    int64_t in_row, out_row;                            /* distances of positions */
    float *key_turned, *value_turned, *weights, *error; /* [feature][key], [feature][key], [query][key] twice */
    float *dropped;                                     /* [query][key]; NULL: without dropout */
    uint8_t *mask;                                      /* of a row */
    float *saved;                                       /* two numbers a row */
} attention_part;

static int64_t keys_of_row(const attention_part *p, int64_t query) {
    return p->op->head.desc.causal && query + 1 < p->keys ? query + 1 : p->keys;
}

static void product(const attention_op *op, gg_multiply it) {
    op->kernels->multiply(&it, 0, gg_block_count(it.m, op->kernels->tile_rows));
}

static attention_part part_of(const attention_job *j, int64_t number, int thread) {
    const attention_op *op = j->op;
    const int64_t sample = number / op->heads, head = number % op->heads, all = op->heads * op->size;
    const float *in = (const float *)j->args->input[0] + sample * op->positions * 3 * all + head * op->size;
    const int32_t *lengths = op->head.desc.inputs > 1 ? j->args->input[1] : NULL;
    float *scratch = (float *)j->args->scratch + (size_t)thread * op->thread_floats;
    attention_part p = {.op = op,
                        .args = j->args,
                        .drops = j->drops,
                        .first_row = number * op->positions,
                        .keys = lengths != NULL ? lengths[sample] : op->positions,
                        .query = in,
                        .key = in + all,
                        .value = in + 2 * all,
                        .in_row = 3 * all,
                        .out_row = all};
    p.key_turned = scratch;
    p.value_turned = p.key_turned + op->size * op->row;
    p.weights = p.value_turned + op->size * op->row;
    p.error = p.weights + op->block * op->row;
    p.dropped = j->drops ? p.error + op->block * op->row : NULL;
    p.mask = (uint8_t *)(p.error + 2 * op->block * op->row);
    p.saved = (float *)j->args->saved + 2 * p.first_row;
    return p;
}

static void turn(const attention_part *p, const float *from, float *to) {
    p->op->kernels->transpose(p->keys, p->op->size, from, p->in_row, p->op->row, to, p->op->row);
}

/* Scores of the queries [begin, end) with the first `keys` keys, into the weights' memory. */
static void score(const attention_part *p, int64_t begin, int64_t end, int64_t keys) {
    product(p->op, (gg_multiply){.m = end - begin,
                                 .n = keys,
                                 .k = p->op->size,
                                 .a = p->query + begin * p->in_row,
                                 .a_row = p->in_row,
                                 .a_step = 1,
                                 .b = p->key_turned,
                                 .b_row = p->op->row,
                                 .c = p->weights,
                                 .c_row = p->op->row});
}

/* What of a row of weights is not dropped, times what makes up for the rest. `out` may be `row`. */
static void drop_row(const attention_part *p, int64_t query, int64_t n, const float *row, float *out) {
    const attention_op *op = p->op;
    const gg_cpu_elementwise *kernels = gg_cpu_device_kernels(op->device)->elementwise;
    const gg_random_key key = {op->head.desc.seed, GG_RANDOM_DROPOUT, p->args->rank, *p->args->step};
    uint8_t *const rows[4] = {p->mask, p->mask + 1, p->mask + 2, p->mask + 3};
    const int64_t first = (p->first_row + query) * op->mask_blocks;
    kernels->dropout_mask(&key, (uint32_t)first, 1, (size_t)(n + 3) / 4, op->threshold, rows, 4);
    kernels->masked_scale((size_t)n, row, p->mask, op->keep_scale, out);
}

/* ------------------------------------------------------------------------------------------ forward */

static void forward_block(const attention_part *p, int64_t begin, int64_t end) {
    const attention_op *op = p->op;
    const gg_cpu_attention *kernels = gg_cpu_device_kernels(op->device)->attention;
    const int64_t keys = keys_of_row(p, end - 1), number = p->first_row / op->positions;
    float unsaved[2];
    score(p, begin, end, keys);
    for (int64_t i = begin; i < end; ++i) {
        float *row = p->weights + (i - begin) * op->row;
        const int64_t n = keys_of_row(p, i);
        kernels->softmax(n, op->scale, row, op->head.desc.training ? p->saved + 2 * i : unsaved);
        if (p->drops) drop_row(p, i, n, row, row);
        memset(row + n, 0, (size_t)(keys - n) * sizeof(float));
    }
    float *out = (float *)p->args->output + (number / op->heads * op->positions + begin) * p->out_row +
                 number % op->heads * op->size;
    product(op, (gg_multiply){.m = end - begin,
                              .n = op->size,
                              .k = keys,
                              .a = p->weights,
                              .a_row = op->row,
                              .a_step = 1,
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
        turn(&p, p.key, p.key_turned);
        for (int64_t i = 0; i < op->positions; i += op->block)
            forward_block(&p, i, i + op->block < op->positions ? i + op->block : op->positions);
    }
}

/* ------------------------------------------------------------------------------------------ backward */

static void backward_block(const attention_part *p, const float *error, float *grad, int64_t begin, int64_t end) {
    const attention_op *op = p->op;
    const gg_cpu_attention *kernels = gg_cpu_device_kernels(op->device)->attention;
    const int64_t keys = keys_of_row(p, end - 1), all = p->out_row, rows = end - begin;
    const float *weights = p->drops ? p->dropped : p->weights; /* those that met the values */
    score(p, begin, end, keys);
    product(op, (gg_multiply){.m = rows,
                              .n = keys,
                              .k = op->size,
                              .a = error + begin * p->out_row,
                              .a_row = p->out_row,
                              .a_step = 1,
                              .b = p->value_turned,
                              .b_row = op->row,
                              .c = p->error,
                              .c_row = op->row});
    for (int64_t i = begin; i < end; ++i) {
        float *row = p->weights + (i - begin) * op->row, *d = p->error + (i - begin) * op->row;
        const int64_t n = keys_of_row(p, i);
        const size_t rest = (size_t)(keys - n) * sizeof(float);
        kernels->again(n, op->scale, p->saved + 2 * i, row);
        if (p->drops) {
            float *dropped = p->dropped + (i - begin) * op->row;
            drop_row(p, i, n, row, dropped);
            gg_cpu_device_kernels(op->device)->elementwise->masked_scale((size_t)n, d, p->mask, op->keep_scale, d);
            memset(dropped + n, 0, rest);
        }
        kernels->error(n, op->scale, row, d);
        memset(row + n, 0, rest);
        memset(d + n, 0, rest);
    }
    gg_multiply it = {.m = keys, .n = op->size, .k = rows, .a_row = 1, .a_step = op->row, .c_row = p->in_row};
    it.add = true;
    it.a = weights; /* the values' gradient */
    it.b = error + begin * p->out_row;
    it.b_row = p->out_row;
    it.c = grad + 2 * all;
    product(op, it);
    it.a = p->error; /* the keys' */
    it.b = p->query + begin * p->in_row;
    it.b_row = p->in_row;
    it.c = grad + all;
    product(op, it);
    product(op, (gg_multiply){.m = rows,
                              .n = op->size,
                              .k = keys,
                              .a = p->error,
                              .a_row = op->row,
                              .a_step = 1,
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
        turn(&p, p.key, p.key_turned);
        turn(&p, p.value, p.value_turned);
        for (int64_t i = 0; i < op->positions; ++i)
            for (int64_t what = 1; what < 3; ++what)
                memset(grad + i * p.in_row + what * p.out_row, 0, (size_t)op->size * sizeof(float));
        for (int64_t i = 0; i < op->positions; i += op->block)
            backward_block(&p, error, grad, i, i + op->block < op->positions ? i + op->block : op->positions);
    }
}

/* ------------------------------------------------------------------------------------------ the operation */

static gg_status check_lengths(const attention_op *op, const int32_t *length) {
    gg_status status = GG_OK;
    for (int64_t n = 0; n < op->batch; ++n)
        if (length[n] < 1 || length[n] > op->positions)
            GG_FAIL(GG_ERROR_ARGUMENT, "the length of sample %lld of the batch is %d; allowed: 1 to %lld", (long long)n,
                    length[n], (long long)op->positions);
cleanup:
    return status;
}

static attention_job job_of(const attention_op *op, const gg_op_args *args) {
    const bool drops = op->head.desc.training && op->head.desc.probability > 0 && !args->evaluate;
    return (attention_job){.op = op, .args = args, .drops = drops};
}

static gg_status attention_forward(gg_op *head, const gg_op_args *args) {
    gg_status status = GG_OK;
    const attention_op *op = (attention_op *)head;
    attention_job j = job_of(op, args);
    if (head->desc.inputs > 1) GG_TRY(check_lengths(op, args->input[1]));
    gg_parallel_run(op->device->threads, attention_forward_part, &j);
cleanup:
    return status;
}

static gg_status attention_backward(gg_op *head, const gg_op_args *args) {
    attention_job j = job_of((attention_op *)head, args);
    if (args->grad_input[0] != NULL) gg_parallel_run(j.op->device->threads, attention_backward_part, &j);
    return GG_OK;
}

static const gg_op_class attention_class = {
    .forward = attention_forward, .backward_data = attention_backward, .destroy = gg_native_op_free};

gg_status gg_native_attention_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    gg_op *head = NULL;
    gg_op_desc floats = *desc;
    *out = NULL;
    GG_TRY(gg_op_check_attention(desc));
    const gg_gemm_kernels *kernels = gg_gemm_kernels_for(device->isa);
    if (kernels == NULL)
        GG_FAIL(GG_ERROR_UNSUPPORTED, "no attention for the instruction set %s here", gg_isa_name(device->isa));
    floats.inputs = 1; /* that native operations compute in */
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
    op->heads = desc->heads;
    op->size = desc->output.size[1] / desc->heads;
    op->row = (op->positions + 31) / 32 * 32;
    op->block = desc->causal && op->positions <= LONG_SAMPLE ? CAUSAL_BLOCK : BLOCK;
    if (op->row % 256 == 0) op->row += 32;
    op->mask_blocks = (op->positions + 3) / 4;
    op->scale = 1.0f / __builtin_sqrtf((float)op->size);
    op->threshold = (uint32_t)((double)desc->probability * 0x1p32);
    op->keep_scale = (float)(1.0 / (1.0 - (double)desc->probability));
    op->thread_floats = (size_t)(op->row * (2 * op->size + 3 * op->block + 1));
    head->scratch_bytes = (size_t)device->threads * op->thread_floats * sizeof(float);
    if (desc->training) head->saved_bytes = (size_t)(2 * op->batch * op->heads * op->positions) * sizeof(float);
    *out = head;
cleanup:
    return status;
}
