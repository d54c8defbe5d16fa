/* Products of float32 matrices on processors whose vector units add beside their multiply-adds.
 *
 *   x1*y1 + x2*y2 = (x1 + y2)*(x2 + y1) - x1*x2 - y1*y2
 * (Winograd, "A new algorithm for inner product", 1968). What is subtracted depends on a row or on a column alone, and
 * is summed once for each. Of GG_PAIRED_STEP terms the first two are computed so, the third as it is: two multiply-adds
 * and two additions in place of three multiply-adds. Where both kinds have units of their own that takes two thirds of
 * the time.
 *
 * Sums x + y round what is small beside the other factor. So each vector, a row of A or a column of B, is multiplied by
 * the power of two that brings the mean of its absolute values to between 1 and 2, and sums begin anew after at most
 * GG_PAIRED_TERMS terms, with powers of their own. Where large numbers of a vector meet each other in a pair, so that
 * its sum of |x1*x2| is then above GG_PAIRED_LIMIT times its terms, its products are multiply-adds, as three sums, of
 * the first, the second and the third terms of all steps. With X and Y the sums of absolute values of a row and a
 * column, and n their terms, the error of such a sum is, but for terms of second order, at most 2^-24 * (n + 8) * (sum
 * of |x*y| + 2*Y/X * sum of |x1*x2| + 2*X/Y * sum of |y1*y2|)
 *     <= 2^-24 * (n + 8) * (sum of |x*y| + 2*GG_PAIRED_LIMIT*X*Y/n),
 * where that of multiply-adds is 2^-24 * n * (sum of |x*y|). A vector of zeros gives exact zeros. Infinite numbers may
 * give NaN, as may means whose product is beyond float32; where it is below, the result is 0.
 *
 * Kernels are single-threaded, allocate nothing and have no state. */
#ifndef GG_CPU_GEMM_PAIRED_KERNELS_H
#define GG_CPU_GEMM_PAIRED_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cpu/kernels.h"

enum {
    GG_PAIRED_LANES = 16, /* vectors of a group */
    GG_PAIRED_STEP = 3,
    GG_PAIRED_TERMS = 150, /* the most that are summed at a time */
    GG_PAIRED_LIMIT = 4
};

/* Floats of a packed group: its terms, up to a whole step, with one lane a vector; behind them the sums of what is
 * subtracted, what the results are multiplied by, and 1 where products are multiply-adds, else 0. */
static inline int64_t gg_paired_group(int64_t terms) {
    return ((terms + GG_PAIRED_STEP - 1) / GG_PAIRED_STEP * GG_PAIRED_STEP + 3) * GG_PAIRED_LANES;
}

/* Of a group of the most terms. */
enum { GG_PAIRED_ROOM = (GG_PAIRED_TERMS + 3) * GG_PAIRED_LANES };

/* Rows of A, or columns of B, in groups; zeros where there are no more. */
typedef struct gg_paired_pack {
    int64_t count, terms; /* terms: at most GG_PAIRED_TERMS */
    const float *from;
    int64_t step; /* term l of vector i is at from[i*step + l], or, across, at from[l*step + i] */
    bool across;
    float *out;    /* 64-byte aligned */
    int64_t group; /* the distance of groups, in floats: gg_paired_group(terms) or more */
} gg_paired_pack;

/* Memory that is used next: from each of `rows` places, `step` floats apart, on `lines` lines of the cache. */
typedef struct gg_paired_next {
    const float *from; /* NULL: nothing */
    int64_t rows, step, lines;
} gg_paired_next;

/* c[i*c_row + j] = start + sum over l < terms of a[i][l]*b[l][j]; start is c (add), or bias[j], or row_bias[i], or 0.
 * The bits of an element depend on its row, its column and its start alone. */
typedef struct gg_paired_product {
    int64_t m, n, terms;
    const float *a, *b;       /* packed */
    int64_t a_group, b_group; /* the distances of their groups, in floats */
    float *c;
    int64_t c_row;
    const float *bias, *row_bias; /* one of them at most; NULL: zeros */
    bool add, relu;
    gg_paired_next next; /* vector kernels fetch it into the second-level cache meanwhile: two lines in each step */
} gg_paired_product;

typedef struct gg_paired_kernels {
    void (*pack)(const gg_paired_pack *pack);
    void (*multiply)(const gg_paired_product *product);
} gg_paired_kernels;

extern const gg_paired_kernels gg_paired_kernels_scalar; /* documents the others, and tests them */

/* The kernels of a level where they are used (gg_cpu_pairs_products), behind split products. Else NULL. */
static inline const gg_paired_kernels *gg_paired_kernels_for(gg_isa isa) {
    return gg_cpu_pairs_products() ? gg_cpu_kernels_for(isa)->paired : NULL;
}

#endif
