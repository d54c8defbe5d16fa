/* Products of float32 matrices whose sides are packed first, which pays off for large sides. Two kinds exist: split
 * products (cpu/gemm/split_kernels.h) and paired products (cpu/gemm/paired_kernels.h). Each kind is a table of
 * functions; users hold a pointer to a table. NULL means multiply-adds of cpu/gemm/gemm_kernels.h.
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
    bool columns; /* columns of B; false means rows of A */
    void *out;    /* side_bytes(count, terms), 64-byte aligned */
} gg_packed_side;

/* c[i*c_row + j] = start + the product of row first + i and column j, i < m, j < n. start is c (add) or 0. */
typedef struct gg_packed_product {
    int64_t m, n, terms;
    const void *a, *b;      /* packed sides with a_count rows and n columns */
    int64_t a_count, first; /* first: a multiple of `granule` */
    float *c;
    int64_t c_row;
    bool add;
    /* The next operation reads used_count floats from used_at on of each of `used` arrays. The product prefetches these
     * floats. `used` is at most `fetches`. */
    int used;
    const float *const *used_next;
    int64_t used_at, used_count;
} gg_packed_product;

/* Max bytes that `block` vectors need of one part of a sum. */
#define GG_PACKED_BLOCK_BYTES (48 * 1024)

typedef struct gg_packed_products {
    /* Algorithm of a convolution by these products: GG_ALGORITHM_DIRECT, or an own algorithm. An own algorithm is used
     * only on request, never in place of the direct one. */
    gg_algorithm convolution;
    /* True if the level has the kind and packing pays off. Depends on shapes only. */
    bool (*pays)(gg_isa isa, const gg_sgemm *product);
    /* True if the kind pays off for the weight gradient of a linear layer over flat samples. Any run of outputs gets
     * the bits of the whole, so the number of outputs is no argument. */
    bool (*gradient_pays)(gg_isa isa, int64_t batch, int64_t in);
    /* gg_sgemm by this kind, with equal arguments and guarantees. row_bias: m values, one a row of C, if the product
     * has no bias; NULL means none. */
    size_t (*scratch)(const gg_sgemm *product, int threads);
    void (*run)(gg_isa isa, const gg_sgemm *product, const float *row_bias, int threads, void *scratch);

    int64_t granule; /* of vectors: packing, products and shares of threads begin at multiples of it */
    size_t (*side_bytes)(int64_t count, int64_t terms);
    /* Packs vectors [begin, end) of a side. */
    void (*pack)(gg_isa isa, const gg_packed_side *side, int64_t begin, int64_t end);
    void (*multiply)(gg_isa isa, const gg_packed_product *product);

    /* First term of a part of a sum; `terms` after the last part. Summing parts in order, with `add`, is bit-identical
     * to one call. */
    int64_t (*part_begin)(int64_t terms, int64_t part);
    int fetches;   /* max gg_packed_product.used */
    int64_t block; /* rows of a block; a block has twice as many columns. Large enough to pack its sides for it alone */
} gg_packed_products;

extern const gg_packed_products gg_split_products, gg_paired_products;

/* The kind for a product, or for the weight gradient of a linear layer; NULL means none. */
const gg_packed_products *gg_packed_products_for(gg_isa isa, const gg_sgemm *product);
const gg_packed_products *gg_packed_gradient_for(gg_isa isa, int64_t batch, int64_t in);

#endif
