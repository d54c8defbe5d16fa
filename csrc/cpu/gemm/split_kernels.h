/* Products of float32 matrices on units that multiply bfloat16 and add in float32 (AMX).
 *
 * A float32 is the sum of three bfloat16, exactly: the upper half of x, that of what it leaves, and the rest,
 *   x = high + middle + low,   |middle| < 2^-7 |x|,   |low| < 2^-15 |x|.
 * Of the nine products of parts six are added: high*high, high*middle, middle*high, middle*middle, high*low, low*high.
 * What is left out is below 2^-20 |a*b|, and mostly far below (Henry, Tang and Heinecke, "Leveraging the bfloat16
 * artificial intelligence datatype for higher-precision computations", 2019). Sums begin anew every 16 terms and
 * every GG_SPLIT_SUM terms, and are then added: from about 30 terms on the result is more exact than by fused
 * multiply-adds in one sum. Infinite numbers give NaN; parts below 2^-126 count as 0.
 *
 * Kernels are single-threaded, allocate nothing and have no state. The tile registers are configured in each call and
 * released before it returns. */
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
    GG_SPLIT_SUM = 256, /* terms that are summed at a time: in longer sums the small products would be rounded away */
    GG_SPLIT_TILE = GG_SPLIT_SIDE * GG_SPLIT_TERMS /* bfloat16 of a tile */
};

/* The distance of two groups of 16 packed rows or columns, in bfloat16: for each 32 of `terms` the tile of the upper
 * parts, that of the middle ones and that of the lower ones. */
static inline int64_t gg_split_group(int64_t terms) {
    return (terms + GG_SPLIT_TERMS - 1) / GG_SPLIT_TERMS * GG_SPLIT_PARTS * GG_SPLIT_TILE;
}

/* How many bfloat16 `count` rows or columns need when packed. */
static inline int64_t gg_split_packed(int64_t count, int64_t terms) {
    return (count + GG_SPLIT_SIDE - 1) / GG_SPLIT_SIDE * gg_split_group(terms);
}

/* How many floats `count` columns need when ordered: two groups side by side, tile after tile. */
static inline int64_t gg_split_ordered(int64_t count, int64_t terms) {
    const int64_t pair = 2 * GG_SPLIT_SIDE;
    return (count + pair - 1) / pair * pair * ((terms + GG_SPLIT_TERMS - 1) / GG_SPLIT_TERMS * GG_SPLIT_TERMS);
}

/* Rows of A, or columns of B, which become tiles; 64-byte aligned, zeros where there are no more. */
typedef struct gg_split_pack {
    int64_t count, terms;
    const float *from;
    int64_t step; /* term l of row or column i is at from[i*step + l], or, across, at from[l*step + i] */
    bool across;
    uint16_t *out;
    float *ordered; /* of order_cols, in place of `out` */
} gg_split_pack;

/* c[i*c_row + j] = start + sum over l < terms of a[i][l]*b[l][j]; start is c (add), or bias[j], or row_bias[i], or 0.
 * The bits of an element depend on its row of a, its column of b and its start alone, and a sum that goes on in c (add)
 * behind a multiple of GG_SPLIT_SUM terms has the bits of one that does not stop there. */
typedef struct gg_split_product {
    int64_t m, n, terms;
    const uint16_t *a, *b;    /* packed */
    int64_t a_group, b_group; /* gg_split_group of the terms that were packed: no fewer than `terms` */
    const float *ordered;     /* in place of b, with the same bits: `terms` terms of columns that order_cols wrote */
    float *c;
    int64_t c_row;
    const float *bias, *row_bias; /* one of them at most; NULL: zeros */
    bool add, relu;
    bool downwards; /* from the last columns to the first: what follows another product finds the last ones in cache */
} gg_split_product;

typedef struct gg_split_kernels {
    void (*pack_rows)(const gg_split_pack *pack);
    void (*pack_cols)(const gg_split_pack *pack);
    /* Orders columns as tiles but leaves them whole: `multiply` splits them in passing, which hides behind its
     * products. Four bytes a number in place of six: for columns that come from beyond the second-level cache for each
     * product. */
    void (*order_cols)(const gg_split_pack *pack);
    void (*multiply)(const gg_split_product *product);
} gg_split_kernels;

#endif
