/* The general matrix product on units for bfloat16: a strip of B's columns and a chunk of A's rows are split into
 * tiles, and each thread multiplies its rows, or columns, of both. Long sums are computed in parts. */
#include "cpu/sgemm_split.h"
#include "base/parallel.h"

/* Terms of a part: with more, a chunk would have few rows. Where parts end depends on the number of terms alone. */
#define PART_TERMS 1024
/* Of a strip, and of a chunk for each thread: the latter stays in the second-level cache. In bfloat16. */
#define STRIP_NUMBERS (2 * 1024 * 1024)
#define CHUNK_NUMBERS (256 * 1024)
/* Rows or columns of two tiles: what the kernels compute at a time. */
#define BLOCK (2 * GG_SPLIT_SIDE)

typedef struct job {
    const gg_split_kernels *kernels;
    const gg_sgemm *p;
    uint16_t *strip, *chunk;
    int64_t term, terms;          /* of the part */
    int64_t row, rows, col, cols; /* of the chunk and of the strip */
    bool by_columns;
} job;

static int64_t parts_of(const gg_sgemm *p) { return (p->k + PART_TERMS - 1) / PART_TERMS; }

static int64_t part_terms(const gg_sgemm *p) {
    const int64_t parts = parts_of(p), terms = (p->k + parts - 1) / parts;
    return (terms + GG_SPLIT_TERMS - 1) / GG_SPLIT_TERMS * GG_SPLIT_TERMS;
}

/* As many of `count` as have so many numbers, in whole blocks. */
static int64_t most_of(int64_t count, int64_t numbers, int64_t terms) {
    int64_t most = numbers / (2 * gg_split_group(terms)) * BLOCK;
    if (most < BLOCK) most = BLOCK;
    return most < count ? most : count;
}

static int64_t strip_cols(const gg_sgemm *p) { return most_of(p->n, STRIP_NUMBERS, part_terms(p)); }
static int64_t chunk_rows(const gg_sgemm *p, int threads) {
    return most_of(p->m, CHUNK_NUMBERS * (int64_t)threads, part_terms(p));
}

/* The thread's part of `count` rows or columns, which begins with a block. */
static int64_t share_of(int64_t count, int thread, int threads, int64_t *first) {
    size_t begin, end;
    gg_parallel_split((size_t)count, BLOCK, thread, threads, &begin, &end);
    *first = (int64_t)begin;
    return (int64_t)(end - begin);
}

static void pack_strip_part(void *context, int thread, int threads) {
    const job *j = context;
    const gg_sgemm *p = j->p;
    int64_t first;
    gg_split_pack pack = {.terms = j->terms, .step = p->ldb, .across = !p->transpose_b};
    pack.count = share_of(j->cols, thread, threads, &first);
    pack.from = p->transpose_b ? p->b + (j->col + first) * p->ldb + j->term : p->b + j->term * p->ldb + j->col + first;
    pack.out = j->strip + gg_split_packed(first, j->terms);
    j->kernels->pack_cols(&pack);
}

static void pack_chunk_part(void *context, int thread, int threads) {
    const job *j = context;
    const gg_sgemm *p = j->p;
    int64_t first;
    gg_split_pack pack = {.terms = j->terms, .step = p->lda, .across = p->transpose_a};
    pack.count = share_of(j->rows, thread, threads, &first);
    pack.from = p->transpose_a ? p->a + j->term * p->lda + j->row + first : p->a + (j->row + first) * p->lda + j->term;
    pack.out = j->chunk + gg_split_packed(first, j->terms);
    j->kernels->pack_rows(&pack);
}

static void multiply_split_part(void *context, int thread, int threads) {
    const job *j = context;
    const gg_sgemm *p = j->p;
    int64_t row = 0, rows = j->rows, col = 0, cols = j->cols;
    if (j->by_columns) cols = share_of(j->cols, thread, threads, &col);
    else rows = share_of(j->rows, thread, threads, &row);
    const gg_split_product product = {.m = rows,
                                      .n = cols,
                                      .terms = j->terms,
                                      .a = j->chunk + gg_split_packed(row, j->terms),
                                      .b = j->strip + gg_split_packed(col, j->terms),
                                      .a_group = gg_split_group(j->terms),
                                      .b_group = gg_split_group(j->terms),
                                      .c = p->c + (j->row + row) * p->ldc + j->col + col,
                                      .c_row = p->ldc,
                                      .bias = p->bias != NULL ? p->bias + j->col + col : NULL,
                                      .add = p->add || j->term > 0,
                                      .relu = p->relu && j->term + j->terms == p->k};
    if (rows > 0 && cols > 0) j->kernels->multiply(&product);
}

bool gg_sgemm_is_split(gg_isa isa, const gg_sgemm *p) {
    enum { LEAST_SIDE = 28, LEAST_WORK = 1 << 17 };
    return gg_split_kernels_for(isa) != NULL && p->m >= LEAST_SIDE && p->n >= LEAST_SIDE && p->k >= LEAST_SIDE &&
           p->m * p->n * p->k > LEAST_WORK;
}

size_t gg_sgemm_split_scratch(const gg_sgemm *p, int threads) {
    const int64_t terms = part_terms(p);
    return (size_t)(gg_split_packed(strip_cols(p), terms) + gg_split_packed(chunk_rows(p, threads), terms)) *
           sizeof(uint16_t);
}

void gg_sgemm_split_run(const gg_split_kernels *kernels, const gg_sgemm *p, int threads, void *scratch) {
    const int64_t most_terms = part_terms(p), most_cols = strip_cols(p), most_rows = chunk_rows(p, threads);
    job j = {.kernels = kernels, .p = p, .strip = scratch};
    j.chunk = j.strip + gg_split_packed(most_cols, most_terms);
    for (j.term = 0; j.term < p->k; j.term += most_terms) {
        j.terms = p->k - j.term < most_terms ? p->k - j.term : most_terms;
        for (j.col = 0; j.col < p->n; j.col += most_cols) {
            j.cols = p->n - j.col < most_cols ? p->n - j.col : most_cols;
            gg_parallel_run(threads, pack_strip_part, &j);
            for (j.row = 0; j.row < p->m; j.row += most_rows) {
                j.rows = p->m - j.row < most_rows ? p->m - j.row : most_rows;
                j.by_columns = j.rows < 2 * BLOCK * threads && j.cols > j.rows;
                gg_parallel_run(threads, pack_chunk_part, &j);
                gg_parallel_run(threads, multiply_split_part, &j);
            }
        }
    }
}
