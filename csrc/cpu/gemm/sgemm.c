/* General matrix product. B is packed into panels that kernels read sequentially. A strip is the number of columns
 * whose part of C stays in the L2 cache. Each thread then multiplies its rows of A with the strip, some blocks of rows
 * at a time. Rows that lie far apart and are read often are copied first.
 *
 * Special cases:
 * - Small A: each panel is multiplied with all of A as soon as it is packed.
 * - A transposed, with terms close together in both: both are read in place.
 * - If, in that case, B has the longer terms, A and B are exchanged. */
#include <string.h>

#include "base/parallel.h"
#include "cpu/gemm/gemm_kernels.h"
#include "cpu/gemm/packed_products.h"
#include "cpu/kernels.h"

/* Terms of a part: a panel of a part stays in the L1 cache. */
#define PART_TERMS GG_SGEMM_TERMS
/* Max columns, and max floats, packed at a time. */
#define STRIP_COLS 512
#define STRIP_FLOATS (1024 * 1024)
/* Max floats of a strip that stays in the L2 cache. */
#define NEAR_FLOATS (128 * 1024)
/* Blocks of rows multiplied with all panels of a part before the next blocks. */
#define GROUP_BLOCKS 8
/* Row of a copied block of A: 17 lines, so that rows lie in different sets of the L1 cache. */
#define BLOCK_ROW (PART_TERMS + 16)
/* Rows of A are read in place if they are at most this far apart, or multiplied with few columns. Not if all share the
 * same sets of the L1 cache. */
#define NEAR_ROWS 1280
#define FEW_COLS 128
#define SAME_SETS 1024

typedef struct job {
    const gg_gemm_kernels *kernels;
    const gg_sgemm *p;
    float *packed, *blocks;
    int64_t j, cols, panels; /* of the strip */
    int64_t parts;
    bool by_columns;
} job;

static int64_t group_floats(const gg_gemm_kernels *kernels) { return GROUP_BLOCKS * kernels->tile_rows * BLOCK_ROW; }

static bool in_place(const gg_sgemm *p) {
    return !p->transpose_a && p->lda % SAME_SETS != 0 && (p->lda <= NEAR_ROWS || p->n <= FEW_COLS);
}

/* Limits for reading both in place, when copies would be read too few times. TERM_FLOATS: max floats of a term of A
 * plus a term of B, for each row of a tile. TERM_FLOATS_OF_B: max floats of a term of B, which each block of rows reads
 * again. */
#define TERM_FLOATS 64
#define TERM_FLOATS_OF_B 256

static bool may_take_both_in_place(const gg_gemm_kernels *kernels, const gg_sgemm *p) {
    return p->transpose_a && !p->transpose_b && p->bias == NULL && kernels->vector > 1 &&
           p->lda + p->ldb <= TERM_FLOATS * kernels->tile_rows;
}

static bool takes_both_in_place(const gg_gemm_kernels *kernels, const gg_sgemm *p) {
    return may_take_both_in_place(kernels, p) && (p->n % kernels->vector == 0 || p->read_behind) &&
           p->ldb <= TERM_FLOATS_OF_B;
}

/* True if both are read in place and exchanged, because A has the shorter terms. The transposed product is computed,
 * and transposed at its end. */
static bool takes_exchanged(const gg_gemm_kernels *kernels, const gg_sgemm *p) {
    return may_take_both_in_place(kernels, p) && p->m % kernels->vector == 0 && p->lda <= TERM_FLOATS_OF_B &&
           p->ldb > TERM_FLOATS_OF_B && !p->relu;
}

static int64_t parts_of(const gg_sgemm *p) { return p->k > 0 ? gg_block_count(p->k, PART_TERMS) : 1; }

/* Term k of column j of op(B). */
static const float *columns_at(const gg_sgemm *p, int64_t j, int64_t k) {
    return p->transpose_b ? p->b + j * p->ldb + k : p->b + k * p->ldb + j;
}

/* Begin of a part of the strip's panels; a panel of a part has the part's terms times `panel` floats. */
static float *part_at(const job *j, int64_t k) { return j->packed + k * j->panels * j->kernels->panel; }

static void sgemm_pack_part(void *context, int thread, int threads) {
    const job *j = context;
    const gg_sgemm *p = j->p;
    const int64_t panel = j->kernels->panel;
    size_t begin, end;
    gg_parallel_split((size_t)(j->panels * j->parts), 1, thread, threads, &begin, &end);
    for (size_t unit = begin; unit < end; ++unit) {
        const int64_t part = (int64_t)unit / j->panels, first = (int64_t)unit % j->panels * panel;
        const int64_t k = gg_block_begin(p->k, j->parts, part), terms = gg_block_begin(p->k, j->parts, part + 1) - k;
        const int64_t cols = j->cols - first < panel ? j->cols - first : panel, at = j->j + first;
        j->kernels->pack_panels(cols, terms, columns_at(p, at, k), p->ldb, p->transpose_b,
                                part_at(j, k) + first * terms, 0);
    }
}

/* Rows [i, i + rows) times panels [first, last). */
static void multiply_group(const job *j, int64_t i, int64_t rows, int64_t first, int64_t last, float *block) {
    const gg_sgemm *p = j->p;
    const int64_t panel = j->kernels->panel, col = first * panel;
    for (int64_t part = 0; part < j->parts; ++part) {
        const int64_t k = gg_block_begin(p->k, j->parts, part), terms = gg_block_begin(p->k, j->parts, part + 1) - k;
        gg_panels product = {
            .m = rows,
            .n = (last * panel < j->cols ? last * panel : j->cols) - col,
            .k = terms,
            .a = block,
            .a_row = BLOCK_ROW,
            .b = part_at(j, k) + col * terms,
            .b_panel = panel * terms,
            .c = p->c + i * p->ldc + j->j + col,
            .c_row = p->ldc,
            .bias = p->bias && part == 0 ? p->bias + j->j + col : NULL,
            .add = part > 0,
            .relu = p->relu && part == j->parts - 1,
            .far = j->panels * panel * p->k > NEAR_FLOATS,
        };
        if (in_place(p)) {
            product.a = p->a + i * p->lda + k;
            product.a_row = p->lda;
        } else if (p->transpose_a) {
            j->kernels->pack(rows, terms, p->a + k * p->lda + i, p->lda, block);
            product.a_row = 0;
        } else {
            for (int64_t r = 0; r < rows; ++r)
                memcpy(block + r * BLOCK_ROW, p->a + (i + r) * p->lda + k, (size_t)terms * sizeof(float));
        }
        j->kernels->panels(&product);
    }
}

static void multiply_part(void *context, int thread, int threads) {
    const job *j = context;
    const gg_sgemm *p = j->p;
    float *block = j->blocks + thread * group_floats(j->kernels);
    size_t begin = 0, end = (size_t)p->m, first = 0, last = (size_t)j->panels;
    if (j->by_columns) gg_parallel_split((size_t)j->panels, 1, thread, threads, &first, &last);
    else gg_parallel_split((size_t)p->m, 1, thread, threads, &begin, &end);
    if (begin == end || first == last) return;
    const int64_t rows = (int64_t)(end - begin), blocks = gg_block_count(rows, j->kernels->tile_rows);
    const int64_t groups = gg_block_count(blocks, GROUP_BLOCKS);
    for (int64_t g = 0; g < groups; ++g) {
        const int64_t from = gg_block_begin(rows, blocks, gg_block_begin(blocks, groups, g));
        const int64_t to = gg_block_begin(rows, blocks, gg_block_begin(blocks, groups, g + 1));
        multiply_group(j, (int64_t)begin + from, to - from, (int64_t)first, (int64_t)last, block);
    }
}

/* One panel after the other, multiplied by the thread that packs it: it never leaves the L1 cache. */
static void panel_by_panel(void *context, int thread, int threads) {
    const job *j = context;
    const gg_sgemm *p = j->p;
    const int64_t panel = j->kernels->panel;
    float *own = j->packed + thread * panel * p->k;
    size_t first, last;
    gg_parallel_split((size_t)j->panels, 1, thread, threads, &first, &last);
    for (int64_t at = (int64_t)first * panel; at < (int64_t)last * panel; at += panel) {
        const int64_t cols = p->n - at < panel ? p->n - at : panel;
        j->kernels->pack_panels(cols, p->k, columns_at(p, at, 0), p->ldb, p->transpose_b, own, 0);
        j->kernels->panels(&(gg_panels){.m = p->m,
                                        .n = cols,
                                        .k = p->k,
                                        .a = p->a,
                                        .a_row = p->lda,
                                        .b = own,
                                        .c = p->c + at,
                                        .c_row = p->ldc,
                                        .bias = p->bias ? p->bias + at : NULL,
                                        .relu = p->relu});
    }
}

/* Rows [i, i + m) of columns [j, j + n) of the product of A transposed and B, both read in place. */
static void multiply_in_place(const gg_gemm_kernels *kernels, const gg_sgemm *p, int64_t i, int64_t m, int64_t j,
                              int64_t n) {
    const gg_multiply product = {.m = m,
                                 .n = n,
                                 .k = p->k,
                                 .a = p->a + i,
                                 .a_row = 1,
                                 .a_step = p->lda,
                                 .b = p->b + j,
                                 .b_row = p->ldb,
                                 .c = p->c + i * p->ldc + j,
                                 .c_row = p->ldc,
                                 .relu = p->relu,
                                 .most_terms = PART_TERMS};
    kernels->multiply(&product, 0, gg_block_count(m, kernels->tile_rows));
}

/* Divides the larger matrix among the threads; each reads all of the other. */
static void in_place_part(void *context, int thread, int threads) {
    const job *j = context;
    const gg_sgemm *p = j->p;
    const int64_t panel = j->kernels->panel;
    size_t begin = 0, end = (size_t)p->m, first = 0, last = (size_t)j->panels;
    if (p->n > p->m) gg_parallel_split((size_t)j->panels, 1, thread, threads, &first, &last);
    else gg_parallel_split((size_t)p->m, 1, thread, threads, &begin, &end);
    const int64_t col = (int64_t)first * panel, behind = (int64_t)last * panel < p->n ? (int64_t)last * panel : p->n;
    if (begin < end && first < last)
        multiply_in_place(j->kernels, p, (int64_t)begin, (int64_t)(end - begin), col, behind - col);
}

/* Rows of the transposed product: columns of C. */
static void exchanged_part(void *context, int thread, int threads) {
    const job *j = context;
    const gg_sgemm *p = j->p;
    const gg_sgemm exchanged = {.m = p->n,
                                .n = p->m,
                                .k = p->k,
                                .a = p->b,
                                .b = p->a,
                                .c = j->packed,
                                .lda = p->ldb,
                                .ldb = p->lda,
                                .ldc = p->m};
    size_t begin, end;
    gg_parallel_split((size_t)p->n, 1, thread, threads, &begin, &end);
    const int64_t first = (int64_t)begin, rows = (int64_t)(end - begin);
    if (rows < 1) return;
    multiply_in_place(j->kernels, &exchanged, first, rows, 0, p->m);
    j->kernels->transpose(rows, p->m, j->packed + first * p->m, p->m, rows, p->c + first, p->ldc);
}

/* True if all of A is near and read in place, and the panels divide evenly among the threads. A can then be read again
 * for each panel. */
static bool takes_panels(const gg_gemm_kernels *kernels, const gg_sgemm *p, int threads) {
    const int64_t panels = gg_block_count(p->n, kernels->panel);
    return in_place(p) && p->k <= PART_TERMS && p->m * p->k <= NEAR_FLOATS &&
           (panels % threads == 0 || panels >= 4 * threads);
}

/* Columns of a strip: whole panels, except at the end of the matrix. */
static int64_t strip_cols(const gg_gemm_kernels *kernels, const gg_sgemm *p) {
    int64_t most = p->k > 0 ? STRIP_FLOATS / p->k : STRIP_COLS;
    if (most > STRIP_COLS) most = STRIP_COLS;
    most = most / kernels->panel * kernels->panel;
    return most > kernels->panel ? most : kernels->panel;
}

static int64_t strip_floats(const gg_gemm_kernels *kernels, const gg_sgemm *p) {
    const int64_t most = strip_cols(kernels, p), cols = p->n < most ? p->n : most;
    return gg_block_count(cols, kernels->panel) * kernels->panel * p->k;
}

size_t gg_sgemm_scratch(gg_isa isa, const gg_sgemm *p, int threads) {
    const gg_gemm_kernels *kernels = gg_cpu_kernels_for(isa)->gemm;
    if (p->n < 1) return 0;
    const gg_packed_products *packed = gg_packed_products_for(isa, p);
    if (packed != NULL) return packed->scratch(p, threads);
    if (takes_both_in_place(kernels, p)) return 0;
    if (takes_exchanged(kernels, p)) return (size_t)(p->m * p->n) * sizeof(float);
    if (takes_panels(kernels, p, threads)) return (size_t)(threads * kernels->panel * p->k) * sizeof(float);
    const int64_t copies = in_place(p) ? 0 : threads * group_floats(kernels);
    return (size_t)(strip_floats(kernels, p) + copies) * sizeof(float);
}

void gg_sgemm_run(gg_isa isa, const gg_sgemm *p, int threads, void *scratch) {
    const gg_gemm_kernels *kernels = gg_cpu_kernels_for(isa)->gemm;
    if (p->m < 1 || p->n < 1) return;
    const gg_packed_products *packed = gg_packed_products_for(isa, p);
    if (packed != NULL) {
        packed->run(isa, p, NULL, threads, scratch);
        return;
    }
    job j = {.kernels = kernels,
             .p = p,
             .packed = scratch,
             .panels = gg_block_count(p->n, kernels->panel),
             .parts = parts_of(p)};
    if (takes_both_in_place(kernels, p)) {
        gg_parallel_run(threads, in_place_part, &j);
        return;
    }
    if (takes_exchanged(kernels, p)) {
        gg_parallel_run(threads, exchanged_part, &j);
        return;
    }
    if (takes_panels(kernels, p, threads)) {
        gg_parallel_run(threads, panel_by_panel, &j);
        return;
    }
    j.blocks = j.packed + strip_floats(kernels, p);
    const int64_t most = strip_cols(kernels, p);
    for (j.j = 0; j.j < p->n; j.j += most) {
        j.cols = p->n - j.j < most ? p->n - j.j : most;
        j.panels = gg_block_count(j.cols, kernels->panel);
        j.by_columns = gg_block_count(p->m, kernels->tile_rows) < 2 * threads;
        gg_parallel_run(threads, sgemm_pack_part, &j);
        gg_parallel_run(threads, multiply_part, &j);
    }
}
