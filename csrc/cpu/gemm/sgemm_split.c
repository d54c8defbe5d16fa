/* General matrix product on bfloat16 units. A strip of B's columns is split into tiles. Each thread splits its rows of
 * A, some at a time, and multiplies them by the strip. Few threads split a strip each, without waiting. Long sums are
 * computed in parts. */
#include "base/parallel.h"
#include "cpu/gemm/packed_products.h"
#include "cpu/gemm/split_kernels.h"
#include "cpu/kernels.h"

/* Terms of a part: once or twice the terms that kernels sum at a time. So the ends of parts do not change bits. Results
 * that stay in the L2 cache have the shorter parts. */
#define PART_TERMS (2 * GG_SPLIT_SUM)
#define NEAR_PART_TERMS GG_SPLIT_SUM
#define NEAR_RESULT (192 * 1024) /* floats */
/* Max bfloat16 of a strip, and of a thread's chunk of rows. A strip in the L2 cache is read for each chunk; otherwise
 * the chunk stays there. */
#define STRIP_NUMBERS (2 * 1024 * 1024)
#define NEAR_STRIP (384 * 1024)
#define NEAR_CHUNK (24 * 1024)
#define CHUNK_NUMBERS (512 * 1024)
/* Up to this many threads split all of the side that they do not share, each for itself. That is faster than reading
 * tiles from each other's caches. */
#define FEW_THREADS 4
/* Rows or columns of two tiles, which the kernels compute at a time. */
#define BLOCK (2 * GG_SPLIT_SIDE)

typedef struct job {
    const gg_split_kernels *kernels;
    const gg_sgemm *p;
    const float *row_bias; /* p->m of them; NULL means none */
    uint16_t *strip, *chunks;
    int64_t most_terms, most_cols, most_rows;
    int64_t term, terms; /* of the part */
    int64_t col, cols;   /* of the strip */
    int64_t row, rows;   /* by_columns: of the chunk; otherwise the rows that a thread splits at a time */
} job;

static int64_t part_terms(const gg_sgemm *p) {
    const int64_t most = p->m * p->n <= NEAR_RESULT ? NEAR_PART_TERMS : PART_TERMS;
    const int64_t terms = p->k < most ? p->k : most;
    return (terms + GG_SPLIT_TERMS - 1) / GG_SPLIT_TERMS * GG_SPLIT_TERMS;
}

/* The part of `count`, in whole blocks, with at most `numbers` numbers. */
static int64_t most_of(int64_t count, int64_t numbers, int64_t terms) {
    int64_t most = numbers / (2 * gg_split_group(terms)) * BLOCK;
    if (most < BLOCK) most = BLOCK;
    return most < count ? most : count;
}

static int64_t strip_cols(const gg_sgemm *p) { return most_of(p->n, STRIP_NUMBERS, part_terms(p)); }

/* The rows that a thread splits at a time. */
static int64_t chunk_rows(const gg_sgemm *p) {
    const int64_t terms = part_terms(p);
    const bool near = gg_split_packed(strip_cols(p), terms) <= NEAR_STRIP;
    return most_of(p->m, near ? NEAR_CHUNK : CHUNK_NUMBERS, terms);
}

/* True if threads share the columns, because each would have few rows. */
static bool is_by_columns(const gg_sgemm *p, int threads) {
    return (p->by_columns && threads <= FEW_THREADS) || (p->m < 2 * BLOCK * threads && p->n > p->m);
}

/* The thread's part of `count` rows or columns; begins with a block. */
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

static void pack_chunk(const job *j, int64_t row, int64_t rows, uint16_t *out) {
    const gg_sgemm *p = j->p;
    const gg_split_pack pack = {.count = rows,
                                .terms = j->terms,
                                .from = p->transpose_a ? p->a + j->term * p->lda + row : p->a + row * p->lda + j->term,
                                .step = p->lda,
                                .across = p->transpose_a,
                                .out = out};
    j->kernels->pack_rows(&pack);
}

/* Rows of a chunk times columns of the strip. */
static void multiply_chunk(const job *j, const uint16_t *chunk, int64_t row, int64_t rows, int64_t col, int64_t cols) {
    const gg_sgemm *p = j->p;
    const gg_split_product product = {.m = rows,
                                      .n = cols,
                                      .terms = j->terms,
                                      .a = chunk,
                                      .b = j->strip + gg_split_packed(col, j->terms),
                                      .a_group = gg_split_group(j->terms),
                                      .b_group = gg_split_group(j->terms),
                                      .c = p->c + row * p->ldc + j->col + col,
                                      .c_row = p->ldc,
                                      .bias = p->bias != NULL ? p->bias + j->col + col : NULL,
                                      .row_bias = j->row_bias != NULL ? j->row_bias + row : NULL,
                                      .add = j->term > 0,
                                      .relu = p->relu && j->term + j->terms == p->k};
    j->kernels->multiply(&product);
}

static void rows_part(void *context, int thread, int threads) {
    const job *j = context;
    uint16_t *chunk = j->chunks + thread * gg_split_packed(j->rows, j->terms);
    int64_t first;
    const int64_t count = share_of(j->p->m, thread, threads, &first);
    for (int64_t row = first, rows; row < first + count; row += rows) {
        rows = first + count - row < j->rows ? first + count - row : j->rows;
        pack_chunk(j, row, rows, chunk);
        multiply_chunk(j, chunk, row, rows, 0, j->cols);
    }
}

static void pack_chunk_part(void *context, int thread, int threads) {
    const job *j = context;
    int64_t first;
    const int64_t count = share_of(j->rows, thread, threads, &first);
    if (count > 0) pack_chunk(j, j->row + first, count, j->chunks + gg_split_packed(first, j->terms));
}

static void columns_part(void *context, int thread, int threads) {
    const job *j = context;
    int64_t col;
    const int64_t cols = share_of(j->cols, thread, threads, &col);
    if (cols > 0) multiply_chunk(j, j->chunks, j->row, j->rows, col, cols);
}

static bool split_gradient_pays(gg_isa isa, int64_t batch, int64_t in) {
    enum { MIN_BATCH = 64, MIN_IN = 16 };
    return gg_cpu_kernels_for(isa)->split != NULL && batch >= MIN_BATCH && in >= MIN_IN;
}

static bool split_pays(gg_isa isa, const gg_sgemm *p) {
    enum { MIN_SIDE = 28, MIN_WORK = 1 << 17 };
    return gg_cpu_kernels_for(isa)->split != NULL && p->m >= MIN_SIDE && p->n >= MIN_SIDE && p->k >= MIN_SIDE &&
           p->m * p->n * p->k > MIN_WORK;
}

/* Numbers of a strip and a thread's chunk. */
static int64_t strip_numbers(const gg_sgemm *p) { return gg_split_packed(strip_cols(p), part_terms(p)); }
static int64_t chunk_numbers(const gg_sgemm *p) { return gg_split_packed(chunk_rows(p), part_terms(p)); }

static size_t split_scratch(const gg_sgemm *p, int threads) {
    const int64_t strips = threads <= FEW_THREADS ? threads : 1;
    return (size_t)(strips * strip_numbers(p) + threads * chunk_numbers(p)) * sizeof(uint16_t);
}

/* Rows or columns of one thread, as a product. *row_bias becomes the row biases of that product. */
static gg_sgemm own_product(const gg_sgemm *p, int thread, int threads, const float **row_bias) {
    const bool columns = is_by_columns(p, threads);
    int64_t first;
    const int64_t count = share_of(columns ? p->n : p->m, thread, threads, &first);
    if (!columns && *row_bias != NULL) *row_bias += first;
    return gg_sgemm_share(p, columns, first, count);
}

static void own_part(void *context, int thread, int threads) {
    const job *whole = context;
    job j = *whole;
    const gg_sgemm own = own_product(whole->p, thread, threads, &j.row_bias);
    if (own.m < 1 || own.n < 1) return;
    j.p = &own;
    j.strip += thread * (strip_numbers(whole->p) + chunk_numbers(whole->p));
    j.chunks = j.strip + strip_numbers(whole->p);
    for (j.term = 0; j.term < own.k; j.term += j.most_terms) {
        j.terms = own.k - j.term < j.most_terms ? own.k - j.term : j.most_terms;
        for (j.col = 0; j.col < own.n; j.col += j.most_cols) {
            j.cols = own.n - j.col < j.most_cols ? own.n - j.col : j.most_cols;
            pack_strip_part(&j, 0, 1);
            rows_part(&j, 0, 1);
        }
    }
}

/* One strip at a time, which all threads split and read. */
static void run_together(job *j, int threads) {
    const gg_sgemm *p = j->p;
    j->chunks = j->strip + strip_numbers(p);
    for (j->term = 0; j->term < p->k; j->term += j->most_terms) {
        j->terms = p->k - j->term < j->most_terms ? p->k - j->term : j->most_terms;
        for (j->col = 0; j->col < p->n; j->col += j->most_cols) {
            j->cols = p->n - j->col < j->most_cols ? p->n - j->col : j->most_cols;
            gg_parallel_run(threads, pack_strip_part, j);
            if (!is_by_columns(p, threads)) {
                j->rows = j->most_rows;
                gg_parallel_run(threads, rows_part, j);
                continue;
            }
            for (j->row = 0; j->row < p->m; j->row += j->most_rows) {
                j->rows = p->m - j->row < j->most_rows ? p->m - j->row : j->most_rows;
                gg_parallel_run(threads, pack_chunk_part, j);
                gg_parallel_run(threads, columns_part, j);
            }
        }
    }
}

static void split_run(gg_isa isa, const gg_sgemm *p, const float *row_bias, int threads, void *scratch) {
    job j = {.kernels = gg_cpu_kernels_for(isa)->split,
             .p = p,
             .row_bias = row_bias,
             .strip = scratch,
             .most_terms = part_terms(p),
             .most_cols = strip_cols(p),
             .most_rows = chunk_rows(p),
             .rows = chunk_rows(p)};
    if (threads <= FEW_THREADS) gg_parallel_run(threads, own_part, &j);
    else run_together(&j, threads);
}

static size_t split_side_bytes(int64_t count, int64_t terms) {
    return (size_t)gg_split_packed(count, terms) * sizeof(uint16_t);
}

static void split_pack(gg_isa isa, const gg_packed_side *s, int64_t begin, int64_t end) {
    const gg_split_kernels *kernels = gg_cpu_kernels_for(isa)->split;
    const gg_split_pack pack = {.count = end - begin,
                                .terms = s->terms,
                                .from = s->from + (s->across ? begin : begin * s->step),
                                .step = s->step,
                                .across = s->across,
                                .out = (uint16_t *)s->out + gg_split_packed(begin, s->terms)};
    (s->columns ? kernels->pack_cols : kernels->pack_rows)(&pack);
}

static void split_multiply(gg_isa isa, const gg_packed_product *p) {
    const gg_split_product product = {.m = p->m,
                                      .n = p->n,
                                      .terms = p->terms,
                                      .a = (const uint16_t *)p->a + gg_split_packed(p->first, p->terms),
                                      .b = p->b,
                                      .a_group = gg_split_group(p->terms),
                                      .b_group = gg_split_group(p->terms),
                                      .c = p->c,
                                      .c_row = p->c_row,
                                      .add = p->add};
    gg_cpu_kernels_for(isa)->split->multiply(&product);
}

static int64_t split_part_begin(int64_t terms, int64_t part) {
    return part * GG_SPLIT_SUM < terms ? part * GG_SPLIT_SUM : terms;
}

enum { BLOCK_BYTES = BLOCK * GG_SPLIT_SUM * GG_SPLIT_PARTS * sizeof(uint16_t) };
_Static_assert(BLOCK_BYTES <= GG_PACKED_BLOCK_BYTES, "a part of a block");

const gg_packed_products gg_split_products = {
    .convolution = GG_ALGORITHM_SPLIT,
    .pays = split_pays,
    .gradient_pays = split_gradient_pays,
    .scratch = split_scratch,
    .run = split_run,
    .granule = BLOCK,
    .side_bytes = split_side_bytes,
    .pack = split_pack,
    .multiply = split_multiply,
    .part_begin = split_part_begin,
    .block = BLOCK,
};
