/* Tables of rows: one row for each token, or one added row for each position. PLAIN.
 *
 * The table's gradient is dense. Each thread owns some rows and adds their errors in the order of the tokens. Bits do
 * not depend on threads. */
#include <string.h>

#include "base/parallel.h"
#include "cpu/native.h"

typedef struct table_op {
    gg_op head;
    gg_device *device;
    int64_t positions; /* of a sample */
    int64_t tokens;    /* of the batch */
    int64_t features;
} table_op;

typedef struct table_job {
    const table_op *op;
    const gg_op_args *args;
    const gg_cpu_elementwise *kernels;
} table_job;

static void table_run(const table_op *op, gg_parallel_fn fn, const gg_op_args *args) {
    table_job job = {.op = op, .args = args, .kernels = gg_cpu_device_kernels(op->device)->elementwise};
    gg_parallel_run(gg_cpu_threads_for(op->device, (size_t)(op->tokens * op->features)), fn, &job);
}

/* ------------------------------------------------------------------------------------------ tokens */

gg_status gg_native_check_tokens(int64_t batch, int64_t positions, int64_t numbers, const int32_t *token) {
    for (int64_t i = 0; i < batch * positions; ++i)
        if (token[i] < 0 || token[i] >= numbers)
            return gg_fail(GG_ERROR_ARGUMENT,
                           "token %d at position %lld of sample %lld of the batch; allowed: 0 to %lld", token[i],
                           (long long)(i % positions), (long long)(i / positions), (long long)numbers - 1);
    return GG_OK;
}

static void look_up_part(void *context, int thread, int threads) {
    const table_job *j = context;
    const int64_t features = j->op->features;
    const int32_t *token = j->args->input[0];
    float *y = j->args->output;
    size_t begin, end;
    gg_parallel_split((size_t)j->op->tokens, 1, thread, threads, &begin, &end);
    for (size_t i = begin; i < end; ++i)
        memcpy(y + (int64_t)i * features, j->args->parameter[GG_PARAMETER_WEIGHT] + token[i] * features,
               (size_t)features * sizeof(float));
}

/* First the end of each row's list; a list begins at the end of the previous one. Then the lists. */
void gg_native_order_tokens(int64_t numbers, int64_t tokens, const int32_t *token, int32_t *order) {
    int32_t *end = order, *list = order + numbers;
    memset(end, 0, (size_t)numbers * sizeof *end);
    for (int64_t i = 0; i < tokens; ++i) ++end[token[i]];
    for (int64_t i = 0, begin = 0; i < numbers; ++i) {
        const int32_t count = end[i];
        end[i] = (int32_t)begin; /* advances with each listed token */
        begin += count;
    }
    for (int64_t i = 0; i < tokens; ++i) list[end[token[i]]++] = (int32_t)i;
}

void gg_native_add_rows(const gg_cpu_elementwise *kernels, const int32_t *order, int64_t numbers, int64_t number,
                        const float *in, int64_t in_row, size_t columns, float *out) {
    _Alignas(64) float part[GG_SUM_COLUMNS];
    const int64_t begin = number > 0 ? order[number - 1] : 0, count = order[number] - begin;
    const int32_t *row = order + numbers + begin;
    for (size_t at = 0, n; at < columns; at += n) {
        n = columns - at < GG_SUM_COLUMNS ? columns - at : GG_SUM_COLUMNS;
        if (count == 0) memset(out + at, 0, n * sizeof *out);
        for (int64_t i = 0; i < count; ++i) {
            const float *own = in + row[i] * in_row + at;
            float *sum = i < GG_SUM_ROWS ? out + at : part;
            if (i % GG_SUM_ROWS == 0) memcpy(sum, own, n * sizeof *sum);
            else kernels->add(n, sum, own, sum);
            if (sum == part && (i % GG_SUM_ROWS == GG_SUM_ROWS - 1 || i == count - 1))
                kernels->add(n, out + at, part, out + at);
        }
    }
}

static void table_gradient_part(void *context, int thread, int threads) {
    const table_job *j = context;
    const int64_t features = j->op->features, numbers = j->op->head.desc.embedding.numbers;
    float *dw = j->args->gradient[GG_PARAMETER_WEIGHT];
    size_t begin, end;
    gg_parallel_split((size_t)numbers, 1, thread, threads, &begin, &end);
    for (int64_t i = (int64_t)begin; i < (int64_t)end; ++i)
        gg_native_add_rows(j->kernels, j->args->scratch, numbers, i, j->args->grad_output, features, (size_t)features,
                           dw + i * features);
}

static gg_status embedding_forward(gg_op *head, const gg_op_args *args) {
    const table_op *op = (table_op *)head;
    GG_TRY(gg_native_check_tokens(head->desc.batch, op->positions, head->desc.embedding.numbers, args->input[0]));
    table_run(op, look_up_part, args);
    return GG_OK;
}

static gg_status embedding_backward_weights(gg_op *head, const gg_op_args *args) {
    const table_op *op = (table_op *)head;
    gg_native_order_tokens(head->desc.embedding.numbers, op->tokens, args->input[0], args->scratch);
    table_run(op, table_gradient_part, args);
    return GG_OK;
}

static const gg_op_class embedding_class = {
    .forward = embedding_forward, .backward_weights = embedding_backward_weights, .destroy = gg_native_op_free};

gg_status gg_native_embedding_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_op *head = NULL;
    gg_op_desc plain = *desc;
    *out = NULL;
    if (desc->inputs != 1 || desc->offered[0].dtype != GG_INT32 || desc->embedding.numbers < 1)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "an embedding has one int32 input and at least one row, not %d of %s and %lld", desc->inputs,
                       gg_dtype_name(desc->offered[0].dtype), (long long)desc->embedding.numbers);
    plain.offered[0].dtype = GG_FLOAT32; /* compute type of native operations */
    GG_TRY(gg_native_op_create(&plain, &embedding_class, sizeof(table_op), &head));
    table_op *op = (table_op *)head;
    head->desc = *desc;
    head->input[0] = (gg_format){GG_INT32, GG_LAYOUT_PLAIN};
    head->output.layout = GG_LAYOUT_PLAIN;
    head->backward_needs_input = 1;
    op->device = device;
    op->features = desc->output.size[desc->output.dims - 1];
    op->positions = gg_shape_count(&desc->input[0]);
    op->tokens = desc->batch * op->positions;
    if (desc->training)
        head->scratch_bytes = gg_native_order_size(desc->embedding.numbers, op->tokens) * sizeof(int32_t);
    *out = head;
    return GG_OK;
}

/* ------------------------------------------------------------------------------------------ positions */

static void add_positions_part(void *context, int thread, int threads) {
    const table_job *j = context;
    const int64_t sample = j->op->positions * j->op->features;
    const float *x = j->args->input[0];
    float *y = j->args->output;
    size_t begin, end;
    gg_parallel_split((size_t)(j->op->tokens / j->op->positions), 1, thread, threads, &begin, &end);
    for (size_t n = begin; n < end; ++n)
        j->kernels->add((size_t)sample, x + (int64_t)n * sample, j->args->parameter[GG_PARAMETER_WEIGHT],
                        y + (int64_t)n * sample);
}

static void sum_positions_part(void *context, int thread, int threads) {
    const table_job *j = context;
    const int64_t sample = j->op->positions * j->op->features, samples = j->op->tokens / j->op->positions;
    const float *dy = j->args->grad_output;
    float *dw = j->args->gradient[GG_PARAMETER_WEIGHT];
    size_t begin, end;
    gg_parallel_split((size_t)sample, GG_LANES, thread, threads, &begin, &end);
    if (begin == end) return;
    memcpy(dw + begin, dy + begin, (end - begin) * sizeof(float));
    for (int64_t n = 1; n < samples; ++n) j->kernels->add(end - begin, dw + begin, dy + n * sample + begin, dw + begin);
}

static gg_status position_embedding_forward(gg_op *head, const gg_op_args *args) {
    table_run((table_op *)head, add_positions_part, args);
    return GG_OK;
}

static gg_status position_embedding_backward_weights(gg_op *head, const gg_op_args *args) {
    const table_op *op = (table_op *)head;
    const size_t used = (size_t)(op->positions * op->features),
                 all = (size_t)(head->desc.embedding.numbers * op->features);
    table_run(op, sum_positions_part, args);
    memset(args->gradient[GG_PARAMETER_WEIGHT] + used, 0, (all - used) * sizeof(float));
    return GG_OK;
}

static gg_status position_embedding_backward_data(gg_op *head, const gg_op_args *args) {
    const table_op *op = (const table_op *)head;
    if (args->grad_input[0] != NULL && args->grad_input[0] != args->grad_output)
        memcpy(args->grad_input[0], args->grad_output, (size_t)(op->tokens * op->features) * sizeof(float));
    return GG_OK;
}

static const gg_op_class position_embedding_class = {.forward = position_embedding_forward,
                                                     .backward_weights = position_embedding_backward_weights,
                                                     .backward_data = position_embedding_backward_data,
                                                     .destroy = gg_native_op_free};

gg_status gg_native_position_embedding_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_op *head = NULL;
    *out = NULL;
    if (desc->inputs != 1 || desc->input[0].dims != 2 || desc->embedding.numbers < desc->input[0].size[0])
        return gg_fail(GG_ERROR_SHAPE,
                       "positions are added to one input (positions, features) of at most %lld positions",
                       (long long)desc->embedding.numbers);
    GG_TRY(gg_native_op_create(desc, &position_embedding_class, sizeof(table_op), &head));
    table_op *op = (table_op *)head;
    head->input[0].layout = head->output.layout = GG_LAYOUT_PLAIN;
    head->in_place = true;
    op->device = device;
    op->positions = desc->input[0].size[0];
    op->features = desc->input[0].size[1];
    op->tokens = desc->batch * op->positions;
    *out = head;
    return GG_OK;
}
