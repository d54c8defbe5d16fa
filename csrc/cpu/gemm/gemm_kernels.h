/* Kernels of convolutions, linear layers and matrix products, one set for each instruction-set level.
 *
 * Activations lie BATCH_LAST, so a convolution is a matrix product that reads its right-hand rows in place. An input
 * value is a row of `lanes` floats. Only weights are packed. Kernels are single-threaded, allocate nothing and have no
 * state. The caller splits the work. Lengths, offsets and distances are in floats. */
#ifndef GG_CPU_GEMM_GEMM_KERNELS_H
#define GG_CPU_GEMM_GEMM_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"

/* Number of blocks for `rows` rows of a result, at most `most` rows a block. Blocks are as equal as possible: 50 rows
 * by at most 14 are 13 + 13 + 12 + 12, not 14 + 14 + 14 + 8. */
static inline int64_t gg_block_count(int64_t rows, int64_t most) { return (rows + most - 1) / most; }

static inline int64_t gg_block_begin(int64_t rows, int64_t blocks, int64_t block) {
    const int64_t more = rows % blocks;
    return block * (rows / blocks) + (block < more ? block : more);
}

/* One place of the window along one axis, for one target position. Gives its part of the weight's index and of the
 * source offset. */
typedef struct gg_tap {
    int64_t w, x;
} gg_tap;

/* A target column, or two computed together because only a shift of the source distinguishes their taps. */
typedef struct gg_column {
    int32_t column[2]; /* second: -1 if alone */
    bool even;         /* the first column's taps have equal distances, in weights and in source */
    int64_t shift;     /* source offset of the second column's taps relative to the first's */
} gg_column;

/* Forward or backward-data convolution of one group, summed over a block of source channels:
 *   target[m][r][c][lane] = start + sum over taps (i of row r, j of column c) and source channels k of
 *       weight[i.w + j.w][k][m] * source[k*source_plane + i.x + j.x + lane]
 * start is target itself (add), bias[m], or 0. */
typedef struct gg_conv_pass {
    int64_t rows;  /* target channels */
    int64_t terms; /* source channels of the block */
    int64_t taps;  /* places of the window */
    int64_t lanes;
    const float *source;
    int64_t source_plane;
    float *target;
    int64_t target_plane, target_width;
    const float *weights; /* packed: for each block of rows [tap][term][row of the block] */
    const float *bias;    /* NULL means zeros */
    const gg_tap *row_taps, *col_taps;
    const int32_t *row_start, *col_start; /* taps of row r: [row_start[r], row_start[r+1]) */
    const gg_column *columns;
    int64_t column_count, strip; /* columns computed before the next block of rows */
    bool add, relu;
} gg_conv_pass;

/* Weight gradient of one group of a convolution, over a range of target rows:
 *   dw[m*dw_row + k] = start + sum over r < height, c < width and lanes of
 *       dy[m*dy_plane + r*dy_row + c*lanes + lane] * x[col_x[k] + r*x_row + c*x_col + lane]
 * start is dw itself (add) or 0. */
typedef struct gg_conv_dot {
    int64_t rows, cols; /* m and k */
    int64_t height, width, lanes;
    const float *x;
    const int64_t *col_x;
    int64_t x_row, x_col;
    const float *dy;
    int64_t dy_plane, dy_row;
    float *dw;
    int64_t dw_row;
    bool add;
} gg_conv_dot;

/* c[i*c_row + j] = start + sum over l < k of a[i*a_row + l*a_step] * b[l*b_row + j], i < m, j < n. a_row or a_step is
 * 1. start is c (add), bias[i], or 0. b is read in place: its rows must be readable up to n rounded up to `vector`. The
 * extra values are ignored. */
typedef struct gg_multiply {
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_step;
    const float *b;
    int64_t b_row;
    float *c;
    int64_t c_row;
    const float *bias; /* NULL means zeros */
    bool add, relu;
    /* Columns of the whole product if this product is a part of it; a_row of the whole is 1. Elements get the bits that
     * the whole would give. 0 means not a part. */
    int64_t part_of;
    int64_t most_terms; /* max terms summed at a time; 0 means a number that suits the caches */
} gg_multiply;

/* A gg_multiply product with b in panels of gg_gemm_kernels.panel columns, term after term. Column j of term l is at b
 * + j/panel*b_panel + l*panel + j%panel. start is c (add), bias[j], or 0. */
typedef struct gg_panels {
    int64_t m, n, k; /* m above 0 */
    const float *a;  /* row i at a + i*a_row; a_row 0 means packed in blocks by gg_gemm_kernels.pack */
    int64_t a_row;
    const float *b;
    int64_t b_panel;
    float *c;
    int64_t c_row;
    const float *bias; /* one a column; NULL means zeros */
    bool add, relu;
    bool far; /* b does not fit in the L2 cache */
    /* The next operation reads m*n floats from used_at on of each of `used` arrays. Vector kernels then prefetch these
     * into the L2 cache, and nothing of b. Requires k > 0. */
    int used;
    const float *const *used_next;
    int64_t used_at;
    bool downwards; /* from the last panel to the first: the last panels are still in cache after an earlier product */
} gg_panels;

typedef struct gg_gemm_kernels {
    gg_isa isa;
    int vector;    /* floats of a vector; 1 means scalar */
    int panel;     /* columns of a panel */
    int tile_rows; /* max rows of a block in conv and multiply */
    int dot_rows;  /* max rows of a block in dot */
    /* Blocks [block_begin, block_end) of gg_block_count(rows, tile_rows), target rows [row_begin, row_end). */
    void (*conv)(const gg_conv_pass *pass, int64_t block_begin, int64_t block_end, int64_t row_begin, int64_t row_end);
    /* Blocks of gg_block_count(rows, dot_rows). */
    void (*dot)(const gg_conv_dot *dot, int64_t block_begin, int64_t block_end);
    /* Blocks of gg_block_count(m, tile_rows). */
    void (*multiply)(const gg_multiply *product, int64_t block_begin, int64_t block_end);
    void (*panels)(const gg_panels *product);
    /* Packs columns [0, n) of b for `panels`; zeros fill the last panel. b is k x n with rows b_row apart, or,
     * transposed, n x k. */
    void (*pack_panels)(int64_t n, int64_t k, const float *b, int64_t b_row, bool transposed, float *out,
                        int64_t out_panel);
    /* Packs a for `panels`; term l of row i is at a[l*a_step + i]. The result is gg_block_count(m, tile_rows) blocks of
     * [term][row of the block]. */
    void (*pack)(int64_t m, int64_t k, const float *a, int64_t a_step, float *out);
    /* out[j*out_row + i] = in[i*in_row + j], i < rows, j < cols. Rows of out are padded with zeros from `rows` to
     * `padded`. */
    void (*transpose)(int64_t rows, int64_t cols, const float *in, int64_t in_row, int64_t padded, float *out,
                      int64_t out_row);
    /* Masks n floats in place: dy = y <= 0 ? 0 : dy, which keeps dy where y is NaN. Returns the sum of dy. y NULL means
     * no mask. */
    float (*mask_sum)(int64_t n, const float *y, float *dy);
} gg_gemm_kernels;

/* Max terms summed at a time. Longer sums are cut into parts of at least half of this. */
#define GG_SGEMM_TERMS 256

/* General product of row-major matrices, C = op(A)*op(B) + bias: op(A) is m x k, op(B) k x n, C m x n. op transposes on
 * request; lda, ldb, ldc are the distances of rows as stored. Parts of both are packed into scratch of gg_sgemm_scratch
 * bytes, 64-byte aligned. The bits do not depend on the number of threads. Levels with packed products
 * (cpu/gemm/packed_products.h) use them if they are faster. */
typedef struct gg_sgemm {
    int64_t m, n, k;
    const float *a, *b;
    float *c;
    int64_t lda, ldb, ldc;
    const float *bias; /* n values, added to each row; NULL means none */
    bool transpose_a, transpose_b, relu;
    bool by_columns;  /* split products: each thread has B's columns in its caches instead of A's rows */
    bool read_behind; /* GEMM may read up to a whole vector past B's last row, as with activations (GG_READ_BEHIND) */
} gg_sgemm;

/* Returns a part of a product as a product: `count` columns, or rows, from `first` on. */
static inline gg_sgemm gg_sgemm_share(const gg_sgemm *p, bool columns, int64_t first, int64_t count) {
    gg_sgemm own = *p;
    if (columns) {
        own.n = count;
        own.b += p->transpose_b ? first * p->ldb : first;
        own.c += first;
        if (p->bias != NULL) own.bias += first;
    } else {
        own.m = count;
        own.a += p->transpose_a ? first : first * p->lda;
        own.c += first * p->ldc;
    }
    return own;
}

size_t gg_sgemm_scratch(gg_isa isa, const gg_sgemm *product, int threads);
void gg_sgemm_run(gg_isa isa, const gg_sgemm *product, int threads, void *scratch);

#endif
