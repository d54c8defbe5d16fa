/* Products of float32 matrices whose sides are packed first, since that costs less than it saves where they are large:
 * split products (cpu/gemm/split_kernels.h) and paired ones (cpu/gemm/paired_kernels.h). Each kind is a table of
 * functions, and its users hold a pointer to one. NULL stands for none: multiply-adds of cpu/gemm/gemm_kernels.h.
 *
 * A side of a product is the rows of A or the columns of B: vectors of `terms` numbers. */
#ifndef GG_CPU_GEMM_PACKED_PRODUCTS_H
#define GG_CPU_GEMM_PACKED_PRODUCTS_H

#include "cpu/gemm/gemm_kernels.h"
#include "ops/backend.h"

typedef struct gg_packed_side {
    int64_t count, terms;
    const float *from;
    int64_t step; /* term l of vector i is at from[i*step + l], or, across, at from[l*step + i] */
    bool across;
    bool columns; /* of B, else rows of A */
    void *out;    /* side_bytes(count, terms), 64-byte aligned */
} gg_packed_side;

/* c[i*c_row + j] = start + the product of row first + i and column j, i < m, j < n; start is c (add), or row_bias[i],
 * or 0. */
typedef struct gg_packed_product {
    int64_t m, n, terms;
    const void *a, *b;      /* packed sides, of a_count rows and n columns */
    int64_t a_count, first; /* first: a multiple of `granule` */
    float *c;
    int64_t c_row;
    const float *row_bias; /* NULL: zeros */
    bool add, relu;
    /* So many arrays, `fetches` at most, are used after the product, of each used_count floats behind used_at: they are
     * fetched into cache beside it. */
    int used;
    const float *const *used_next;
    int64_t used_at, used_count;
} gg_packed_product;

/* The most bytes that `block` vectors need of one part of a sum. */
#define GG_PACKED_BLOCK_BYTES (48 * 1024)

typedef struct gg_packed_products {
    /* What a convolution by such products is: GG_ALGORITHM_DIRECT, or an algorithm of its own, which may be asked for
     * and is never taken in place of the direct one. */
    gg_algorithm convolution;
    /* Whether the level has the kind, and packing costs less than it saves: a rule of shapes. */
    bool (*pays)(gg_isa isa, const gg_sgemm *product);
    /* The same of the weight's gradient of a linear layer over flat samples, of which any run has the bits of the
     * whole: hence without the number of outputs. */
    bool (*gradient_pays)(gg_isa isa, int64_t batch, int64_t in);
    /* gg_sgemm by this kind; the same arguments and promises. row_bias: m of them, to each column, where the product
     * has no bias; NULL: none. */
    size_t (*scratch)(const gg_sgemm *product, int threads);
    void (*run)(gg_isa isa, const gg_sgemm *product, const float *row_bias, int threads, void *scratch);

    int64_t granule; /* of vectors: what is packed, multiplied or given to a thread begins at a multiple */
    size_t (*side_bytes)(int64_t count, int64_t terms);
    /* Vectors [begin, end) of a side. */
    void (*pack)(gg_isa isa, const gg_packed_side *side, int64_t begin, int64_t end);
    void (*multiply)(gg_isa isa, const gg_packed_product *product);

    /* Sums are cut there into parts: the first term of a part; `terms` behind the last. So sides of one part after the
     * other, with `add`, give the bits of whole ones. */
    int64_t (*part_begin)(int64_t terms, int64_t part);
    int fetches;   /* of gg_packed_product.used */
    int64_t block; /* so many rows, and twice as many columns, are enough to be packed for each other alone */
} gg_packed_products;

extern const gg_packed_products gg_split_products, gg_paired_products;

/* The kind for a product, and for the gradient of a linear layer's weight; NULL: none. */
const gg_packed_products *gg_packed_products_for(gg_isa isa, const gg_sgemm *product);
const gg_packed_products *gg_packed_gradient_for(gg_isa isa, int64_t batch, int64_t in);

#endif
