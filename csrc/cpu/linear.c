/* What the linear layers of both tables share with gg_backend's entry for a part of their weight's gradient. */
#include <string.h>

#include "base/parallel.h"
#include "cpu/gemm_kernels.h"
#include "cpu/sgemm_paired.h"
#include "cpu/sgemm_split.h"
#include "cpu/shared.h"

typedef struct job {
    const gg_gemm_kernels *kernels;
    const gg_split_kernels *split;   /* NULL: not by split products */
    const gg_paired_kernels *paired; /* NULL: nor by paired ones */
    const gg_weight_gradient_args *args;
} job;

/* The product by split products, in blocks whose tiles fit on the stack. The sums stop where the kernels stop them, so
 * their bits are those of the whole gradient. */
static void split_run(const gg_split_kernels *kernels, const gg_multiply *it) {
    enum { TERMS = GG_SPLIT_SUM, ROWS = 2 * GG_SPLIT_SIDE, COLS = 64, TILES = TERMS / GG_SPLIT_TERMS * GG_SPLIT_PARTS };
    _Alignas(64) uint16_t rows[ROWS / GG_SPLIT_SIDE * TILES * GG_SPLIT_TILE];
    _Alignas(64) uint16_t cols[COLS / GG_SPLIT_SIDE * TILES * GG_SPLIT_TILE];
    for (int64_t j = 0; j < it->n; j += COLS)
        for (int64_t l = 0; l < it->k; l += TERMS) {
            const int64_t terms = it->k - l < TERMS ? it->k - l : TERMS, n = it->n - j < COLS ? it->n - j : COLS;
            const gg_split_pack pack_cols = {.count = n,
                                             .terms = terms,
                                             .from = it->b + l * it->b_row + j,
                                             .step = it->b_row,
                                             .across = true,
                                             .out = cols};
            kernels->pack_cols(&pack_cols);
            for (int64_t i = 0; i < it->m; i += ROWS) {
                const int64_t m = it->m - i < ROWS ? it->m - i : ROWS;
                const gg_split_pack pack_rows = {.count = m,
                                                 .terms = terms,
                                                 .from = it->a + l * it->a_step + i,
                                                 .step = it->a_step,
                                                 .across = true,
                                                 .out = rows};
                const gg_split_product product = {.m = m,
                                                  .n = n,
                                                  .terms = terms,
                                                  .a = rows,
                                                  .b = cols,
                                                  .a_group = gg_split_group(terms),
                                                  .b_group = gg_split_group(terms),
                                                  .c = it->c + i * it->c_row + j,
                                                  .c_row = it->c_row,
                                                  .add = l > 0};
                kernels->pack_rows(&pack_rows);
                kernels->multiply(&product);
            }
        }
}

/* The same by paired products. */
static void paired_run(const gg_paired_kernels *kernels, const gg_multiply *it) {
    enum { ROWS = 4 * GG_PAIRED_LANES, COLS = 8 * GG_PAIRED_LANES };
    _Alignas(64) float rows[GG_PAIRED_ROOM * ROWS / GG_PAIRED_LANES], cols[GG_PAIRED_ROOM * COLS / GG_PAIRED_LANES];
    for (int64_t j = 0; j < it->n; j += COLS)
        for (int64_t part = 0; part < gg_paired_parts(it->k); ++part) {
            const int64_t l = gg_paired_part(it->k, part), terms = gg_paired_part(it->k, part + 1) - l;
            const int64_t n = it->n - j < COLS ? it->n - j : COLS;
            const gg_paired_pack pack_cols = {.count = n,
                                              .terms = terms,
                                              .from = it->b + l * it->b_row + j,
                                              .step = it->b_row,
                                              .across = true,
                                              .out = cols};
            kernels->pack(&pack_cols);
            for (int64_t i = 0; i < it->m; i += ROWS) {
                const int64_t m = it->m - i < ROWS ? it->m - i : ROWS;
                const gg_paired_pack pack_rows = {.count = m,
                                                  .terms = terms,
                                                  .from = it->a + l * it->a_step + i,
                                                  .step = it->a_step,
                                                  .across = true,
                                                  .out = rows};
                const gg_paired_product product = {.m = m,
                                                   .n = n,
                                                   .terms = terms,
                                                   .a = rows,
                                                   .b = cols,
                                                   .a_group = gg_paired_group(terms),
                                                   .b_group = gg_paired_group(terms),
                                                   .c = it->c + i * it->c_row + j,
                                                   .c_row = it->c_row,
                                                   .add = part > 0};
                kernels->pack(&pack_rows);
                kernels->multiply(&product);
            }
        }
}

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
        if (j->split != NULL) split_run(j->split, &product);
        else if (j->paired != NULL) paired_run(j->paired, &product);
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
    const bool split = gg_weight_gradient_is_split(device->isa, args->batch, args->in);
    const bool paired = !split && gg_weight_gradient_is_paired(device->isa, args->batch, args->in);
    job j = {.kernels = gg_gemm_kernels_for(device->isa),
             .split = split ? gg_split_kernels_for(device->isa) : NULL,
             .paired = paired ? gg_paired_kernels_for(device->isa) : NULL,
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
