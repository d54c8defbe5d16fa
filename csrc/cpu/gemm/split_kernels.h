/* Products of float32 matrices on units that multiply bfloat16 and add in float32 (AMX).
 *
 * A float32 x is exactly the sum of three bfloat16: the upper half of x, the upper half of the remainder, and the rest.
 *     x = high + middle + low,   |middle| < 2^-7 |x|,   |low| < 2^-15 |x|.
 * Six of the nine products are added: high*high, high*middle, middle*high, middle*middle, high*low, low*high. The
 * omitted products are below 2^-20 |a*b|, mostly far below. See Henry, Tang and Heinecke, "Leveraging the bfloat16
 * artificial intelligence datatype for higher-precision computations" (2019). Sums begin anew every 16 terms and every
 * GG_SPLIT_SUM terms; these partial sums are then added. From about 30 terms on the result is more exact than one sum
 * of fused multiply-adds. Infinite numbers give NaN; parts below 2^-126 count as 0.
 *
 * Kernels are single-threaded, allocate nothing and have no state. Each call configures the tile registers and releases
 * them before it returns. */
#ifndef GG_CPU_GEMM_SPLIT_KERNELS_H
#define GG_CPU_GEMM_SPLIT_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"

enum {
    GG_SPLIT_SIDE = 16,  /* rows or columns of a tile */
    GG_SPLIT_TERMS = 32, /* terms of a tile */
    GG_SPLIT_PARTS = 3,
    GG_SPLIT_SUM = 256, /* terms summed at a time: longer sums would round small products away */
    GG_SPLIT_TILE = GG_SPLIT_SIDE * GG_SPLIT_TERMS /* bfloat16 of a tile */
};

/* Distance between two groups of 16 packed rows or columns, in bfloat16. For every 32 of `terms` a group has three
 * tiles: upper, middle and lower parts. */
static inline int64_t gg_split_group(int64_t terms) {
    return (terms + GG_SPLIT_TERMS - 1) / GG_SPLIT_TERMS * GG_SPLIT_PARTS * GG_SPLIT_TILE;
}

/* bfloat16 of `count` packed rows or columns. */
static inline int64_t gg_split_packed(int64_t count, int64_t terms) {
    return (count + GG_SPLIT_SIDE - 1) / GG_SPLIT_SIDE * gg_split_group(terms);
}

/* Floats of `count` ordered columns: two groups side by side, tile after tile. */
static inline int64_t gg_split_ordered(int64_t count, int64_t terms) {
    const int64_t pair = 2 * GG_SPLIT_SIDE;
    return (count + pair - 1) / pair * pair * ((terms + GG_SPLIT_TERMS - 1) / GG_SPLIT_TERMS * GG_SPLIT_TERMS);
}

/* Rows of A, or columns of B, to be packed as tiles; 64-byte aligned. Missing vectors give zeros. */
typedef struct gg_split_pack {
    int64_t count, terms;
    const float *from;
    int64_t step; /* term l of row or column i is at from[i*step + l], or, across, at from[l*step + i] */
    bool across;
    uint16_t *out;
    float *ordered; /* output of order_cols, instead of `out` */
} gg_split_pack;

/* c[i*c_row + j] = start + sum over l < terms of a[i][l]*b[l][j]. start is c (add), bias[j], row_bias[i], or 0. The
 * bits of an element depend on its row of a, its column of b and its start alone. A sum may be split at a multiple of
 * GG_SPLIT_SUM terms and continued in c (add): the bits are equal. */
typedef struct gg_split_product {
    int64_t m, n, terms;
    const uint16_t *a, *b;    /* packed */
    int64_t a_group, b_group; /* gg_split_group of the packed terms: at least `terms` of them */
    const float *ordered;     /* replaces b and gives equal bits: `terms` terms of columns written by order_cols */
    float *c;
    int64_t c_row;
    const float *bias, *row_bias; /* at most one is set; NULL means zeros */
    bool add, relu;
    bool downwards; /* from the last columns to the first: the last columns are still in cache after an earlier product
                     */
} gg_split_product;

typedef struct gg_split_kernels {
    void (*pack_rows)(const gg_split_pack *pack);
    void (*pack_cols)(const gg_split_pack *pack);
    /* Orders columns as tiles without splitting them; `multiply` splits them, hidden by its products. 4 instead of 6
     * bytes a number: for columns that each product reads from beyond the L2 cache. */
    void (*order_cols)(const gg_split_pack *pack);
    void (*multiply)(const gg_split_product *product);
} gg_split_kernels;

#endif
