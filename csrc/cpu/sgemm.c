/* The general matrix product: a part of B at a time is put into rows of whole tiles that stay in the second-level cache
 * while all of A is multiplied with it, a block of rows at a time, copied so that rows whose distance is a power of two
 * do not share sets of the cache. */
#include <string.h>

#include "base/parallel.h"
#include "cpu/gemm_kernels.h"

#define PART_TERMS 256
/* 30 cache lines: rows of a part then lie in different sets of the first-level cache, as a power of two would not. */
#define PART_COLS 480
/* Row of a packed block of A, likewise. */
#define BLOCK_ROW (PART_TERMS + 16)

typedef struct job {
    const gg_gemm_kernels *kernels;
    const gg_sgemm *p;
    float *packed, *blocks;
    int64_t k, terms, j, cols, row;
} job;

static int64_t packed_row(const gg_gemm_kernels *kernels, int64_t cols) {
    const int64_t row = (cols + kernels->width - 1) / kernels->width * kernels->width;
    return row % 256 == 0 ? row + 16 : row;
}

static int64_t block_size(const gg_gemm_kernels *kernels) { return kernels->tile_rows * BLOCK_ROW; }

static void sgemm_pack_part(void *context, int thread, int threads) {
    const job *j = context;
    const gg_sgemm *p = j->p;
    size_t begin, end;
    if (p->transpose_b) {
        gg_parallel_split((size_t)j->cols, 16, thread, threads, &begin, &end);
        if (begin == end) return;
        const int64_t padded = (int64_t)end == j->cols ? j->row : (int64_t)end;
        j->kernels->transpose((int64_t)(end - begin), j->terms, p->b + (j->j + (int64_t)begin) * p->ldb + j->k, p->ldb,
                              padded - (int64_t)begin, j->packed + begin, j->row);
        return;
    }
    gg_parallel_split((size_t)j->terms, 1, thread, threads, &begin, &end);
    for (int64_t l = (int64_t)begin; l < (int64_t)end; ++l) {
        float *to = j->packed + l * j->row;
        memcpy(to, p->b + (j->k + l) * p->ldb + j->j, (size_t)j->cols * sizeof(float));
        memset(to + j->cols, 0, (size_t)(j->row - j->cols) * sizeof(float));
    }
}

static void multiply_part(void *context, int thread, int threads) {
    const job *j = context;
    const gg_sgemm *p = j->p;
    const int64_t blocks = gg_block_count(p->m, j->kernels->tile_rows);
    float *block = j->blocks + thread * block_size(j->kernels);
    size_t begin, end;
    gg_parallel_split((size_t)blocks, 1, thread, threads, &begin, &end);
    for (size_t b = begin; b < end; ++b) {
        const int64_t i = gg_block_begin(p->m, blocks, (int64_t)b);
        const int64_t rows = gg_block_begin(p->m, blocks, (int64_t)b + 1) - i;
        if (p->transpose_a) {
            for (int64_t l = 0; l < j->terms; ++l)
                memcpy(block + l * rows, p->a + (j->k + l) * p->lda + i, (size_t)rows * sizeof(float));
        } else {
            for (int64_t r = 0; r < rows; ++r)
                memcpy(block + r * BLOCK_ROW, p->a + (i + r) * p->lda + j->k, (size_t)j->terms * sizeof(float));
        }
        const gg_multiply product = {
            .m = rows,
            .n = j->cols,
            .k = j->terms,
            .a = block,
            .a_row = p->transpose_a ? 1 : BLOCK_ROW,
            .a_step = p->transpose_a ? rows : 1,
            .b = j->packed,
            .b_row = j->row,
            .c = p->c + i * p->ldc + j->j,
            .c_row = p->ldc,
            .add = p->add || j->k > 0,
        };
        j->kernels->multiply(&product, 0, 1);
    }
}

static int64_t part_size(const gg_gemm_kernels *kernels, const gg_sgemm *p) {
    const int64_t cols = gg_block_count(p->n, gg_block_count(p->n, PART_COLS));
    const int64_t terms = p->k < PART_TERMS ? p->k : PART_TERMS;
    return packed_row(kernels, cols) * terms;
}

size_t gg_sgemm_scratch(const gg_gemm_kernels *kernels, const gg_sgemm *p, int threads) {
    if (p->n < 1) return 0;
    return (size_t)(part_size(kernels, p) + threads * block_size(kernels)) * sizeof(float);
}

void gg_sgemm_run(const gg_gemm_kernels *kernels, const gg_sgemm *p, int threads, void *scratch) {
    if (p->m < 1 || p->n < 1) return;
    job j = {.kernels = kernels, .p = p, .packed = scratch};
    j.blocks = j.packed + part_size(kernels, p);
    const int64_t strips = gg_block_count(p->n, PART_COLS);
    /* One pass also for k = 0: it writes the zeros. */
    const int64_t parts = p->k > 0 ? gg_block_count(p->k, PART_TERMS) : 1;
    for (int64_t strip = 0; strip < strips; ++strip) {
        j.j = gg_block_begin(p->n, strips, strip);
        j.cols = gg_block_begin(p->n, strips, strip + 1) - j.j;
        j.row = packed_row(kernels, j.cols);
        for (int64_t part = 0; part < parts; ++part) {
            j.k = gg_block_begin(p->k, parts, part);
            j.terms = gg_block_begin(p->k, parts, part + 1) - j.k;
            gg_parallel_run(threads, sgemm_pack_part, &j);
            gg_parallel_run(threads, multiply_part, &j);
        }
    }
}
