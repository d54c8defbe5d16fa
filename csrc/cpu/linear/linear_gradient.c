/* Parts of a linear layer's weight gradient: for the linear layers of both tables, and for gg_backend's entry. */
#include <string.h>

#include "base/parallel.h"
#include "cpu/gemm/gemm_kernels.h"
#include "cpu/gemm/packed_products.h"
#include "cpu/shared.h"

typedef struct job {
    const gg_gemm_kernels *kernels;
    const gg_packed_products *packed; /* NULL means multiply-adds */
    gg_isa isa;
    const gg_weight_gradient_args *args;
} job;

/* Runs packed products in blocks that fit on the stack. Sums are cut where the whole gradient cuts them, so the bits
 * are equal. */
static void packed_run(const gg_packed_products *packed, gg_isa isa, const gg_multiply *it) {
    _Alignas(64) unsigned char rows[GG_PACKED_BLOCK_BYTES], cols[2 * GG_PACKED_BLOCK_BYTES];
    const int64_t most_rows = packed->block, most_cols = 2 * packed->block;
    gg_packed_side a = {.step = it->a_step, .across = true, .out = rows};
    gg_packed_side b = {.step = it->b_row, .across = true, .columns = true, .out = cols};
    for (int64_t j = 0; j < it->n; j += most_cols)
        for (int64_t part = 0, l; (l = packed->part_begin(it->k, part)) < it->k; ++part) {
            a.terms = b.terms = packed->part_begin(it->k, part + 1) - l;
            b.count = it->n - j < most_cols ? it->n - j : most_cols;
            b.from = it->b + l * it->b_row + j;
            packed->pack(isa, &b, 0, b.count);
            for (int64_t i = 0; i < it->m; i += most_rows) {
                a.count = it->m - i < most_rows ? it->m - i : most_rows;
                a.from = it->a + l * it->a_step + i;
                packed->pack(isa, &a, 0, a.count);
                packed->multiply(isa, &(gg_packed_product){.m = a.count,
                                                           .n = b.count,
                                                           .terms = a.terms,
                                                           .a = rows,
                                                           .b = cols,
                                                           .a_count = a.count,
                                                           .c = it->c + i * it->c_row + j,
                                                           .c_row = it->c_row,
                                                           .add = part > 0});
            }
        }
}

/* A run: the rest of its first row, whole rows, and the first part of its last row. */
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
        if (j->packed != NULL) packed_run(j->packed, j->isa, &product);
        else j->kernels->multiply(&product, 0, gg_block_count(product.m, j->kernels->tile_rows));
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
    job j = {.kernels = gg_cpu_device_kernels(device)->gemm,
             .packed = gg_packed_gradient_for(device->isa, args->batch, args->in),
             .isa = device->isa,
             .args = args};
    gg_parallel_run(gg_cpu_threads_for(device, (size_t)(args->count * args->batch)), weight_gradient_part, &j);
}

typedef struct column_sums {
    const gg_cpu_elementwise *kernels;
    int64_t rows, cols, in_row;
    const float *in;
    float *out;
} column_sums;

static void column_sums_part(void *context, int thread, int threads) {
    const column_sums *c = context;
    size_t begin, end;
    gg_parallel_split((size_t)c->cols, GG_LANES, thread, threads, &begin, &end);
    for (size_t at = begin, n; at < end; at += n) {
        _Alignas(64) float sum[GG_SUM_COLUMNS];
        double total[GG_SUM_COLUMNS] = {0};
        n = end - at < GG_SUM_COLUMNS ? end - at : GG_SUM_COLUMNS;
        for (int64_t i = 0; i < c->rows; ++i) {
            const float *row = c->in + i * c->in_row + at;
            if (i % GG_SUM_ROWS == 0) memcpy(sum, row, n * sizeof *sum);
            else c->kernels->add(n, sum, row, sum);
            if (i % GG_SUM_ROWS != GG_SUM_ROWS - 1 && i != c->rows - 1) continue;
            for (size_t k = 0; k < n; ++k) total[k] += (double)sum[k];
        }
        for (size_t k = 0; k < n; ++k) c->out[at + k] = (float)total[k];
    }
}

void gg_cpu_column_sums(gg_device *device, int64_t rows, int64_t cols, const float *in, int64_t in_row, float *out) {
    column_sums c = {gg_cpu_device_kernels(device)->elementwise, rows, cols, in_row, in, out};
    gg_parallel_run(gg_cpu_threads_for(device, (size_t)(rows * cols)), column_sums_part, &c);
}

void gg_cpu_columns(gg_device *device, const gg_vectors *from, int64_t first, int64_t count, float *out) {
    if (from->layout == GG_LAYOUT_BATCH_LAST) {
        const float *data = from->data;
        gg_cpu_transpose(device, from->batch, count, false, data + first * gg_lanes_padded(from->batch), out);
        return;
    }
    for (int64_t i = 0; i < from->batch; ++i) {
        const int64_t at = i * from->features + first;
        if (from->dtype == GG_BFLOAT16)
            gg_cpu_widen_any(gg_cpu_device_kernels(device), (size_t)count, (const uint16_t *)from->data + at,
                             out + i * count);
        else memcpy(out + i * count, (const float *)from->data + at, (size_t)count * sizeof(float));
    }
}
