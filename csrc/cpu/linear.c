/* What the linear layers of both tables share with gg_backend's entry for a part of their weight's gradient. */
#include <string.h>

#include "base/parallel.h"
#include "cpu/gemm_kernels.h"
#include "cpu/shared.h"

typedef struct job {
    const gg_gemm_kernels *kernels;
    const gg_weight_gradient_args *args;
} job;

/* The rest of the row in which the run begins, whole rows, and the first part of the last row. */
static void run_of(const job *j, int64_t begin, int64_t end) {
    const gg_weight_gradient_args *args = j->args;
    for (int64_t i = begin; i < end;) {
        const int64_t column = i % args->in, left = end - i;
        const bool whole = column == 0 && left >= args->in;
        const gg_multiply product = {
            .m = whole ? left / args->in : 1,
            .n = left < args->in - column ? left : args->in - column,
            .k = args->batch,
            .a = args->error + (i / args->in - args->first / args->in),
            .a_row = 1,
            .a_step = args->error_row,
            .b = args->input + column,
            .b_row = args->in,
            .c = args->out + (i - args->first),
            .c_row = args->in,
            .part_of = args->in,
        };
        j->kernels->multiply(&product, 0, gg_block_count(product.m, j->kernels->tile_rows));
        i += product.m * product.n;
    }
}

static void weight_gradient_part(void *context, int thread, int threads) {
    const job *j = context;
    size_t begin, end;
    gg_parallel_split((size_t)j->args->count, GG_LANES, thread, threads, &begin, &end);
    run_of(j, j->args->first + (int64_t)begin, j->args->first + (int64_t)end);
}

void gg_cpu_weight_gradient(gg_device *device, const gg_weight_gradient_args *args) {
    job j = {.kernels = gg_gemm_kernels_for(device->isa), .args = args};
    gg_parallel_run(gg_cpu_threads_for(device, (size_t)(args->count * args->batch)), weight_gradient_part, &j);
}

typedef struct column_sums {
    const gg_cpu_elementwise *kernels;
    int64_t rows, cols;
    const float *in;
    float *out;
} column_sums;

static void column_sums_part(void *context, int thread, int threads) {
    const column_sums *c = context;
    size_t begin, end;
    gg_parallel_split((size_t)c->cols, GG_LANES, thread, threads, &begin, &end);
    if (begin == end) return;
    memcpy(c->out + begin, c->in + begin, (end - begin) * sizeof(float));
    for (int64_t i = 1; i < c->rows; ++i)
        c->kernels->add(end - begin, c->out + begin, c->in + i * c->cols + begin, c->out + begin);
}

void gg_cpu_column_sums(gg_device *device, int64_t rows, int64_t cols, const float *in, float *out) {
    column_sums c = {gg_cpu_device_kernels(device)->elementwise, rows, cols, in, out};
    gg_parallel_run(gg_cpu_threads_for(device, (size_t)(rows * cols)), column_sums_part, &c);
}

void gg_cpu_columns(gg_device *device, const gg_vectors *from, int64_t first, int64_t count, float *out) {
    if (from->layout == GG_LAYOUT_BATCH_LAST) {
        gg_cpu_transpose(device, from->batch, count, false, from->data + first * gg_lanes_padded(from->batch), out);
        return;
    }
    for (int64_t i = 0; i < from->batch; ++i)
        memcpy(out + i * count, from->data + i * from->features + first, (size_t)count * sizeof(float));
}
