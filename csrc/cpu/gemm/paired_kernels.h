/* Products of float32 matrices on processors whose vector units add in parallel to multiply-adds.
 *
 *   x1*y1 + x2*y2 = (x1 + y2)*(x2 + y1) - x1*x2 - y1*y2
 * (Winograd, "A new algorithm for inner product", 1968). The subtracted products depend on a row or on a column alone,
 * and are summed once for each. In each step of GG_PAIRED_STEP terms this replaces the first two; the third stays a
 * multiply-add. Two multiply-adds and two additions replace three multiply-adds. If additions have units of their own,
 * this takes two thirds of the time.
 *
 * Sums x + y round away small values if the other factor is large. Two rules bound the error:
 * - Each vector (a row of A or a column of B) is scaled by a power of two. The mean of its absolute values is then
 *   between 1 and 2. Sums begin anew after at most GG_PAIRED_TERMS terms, with new powers.
 * - If large numbers of a vector meet in pairs, its sum of |x1*x2| exceeds GG_PAIRED_LIMIT times its terms. Its
 *   products are then multiply-adds in three sums: of the first, second and third terms of all steps.
 *
 * Let X and Y be the sums of absolute values of a row and a column with n terms. Up to terms of second order, the error
 * of a sum is at most
 *     2^-24 * (n + 8) * (sum of |x*y| + 2*Y/X * sum of |x1*x2| + 2*X/Y * sum of |y1*y2|)
 *     <= 2^-24 * (n + 8) * (sum of |x*y| + 2*GG_PAIRED_LIMIT*X*Y/n).
 * Multiply-adds have 2^-24 * n * (sum of |x*y|). A vector of zeros gives exact zeros. Infinite numbers may give NaN.
 * Means whose product overflows float32 may give NaN too; if it underflows, the result is 0.
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
    GG_PAIRED_TERMS = 150, /* max terms summed at a time */
    GG_PAIRED_LIMIT = 4
};

/* Floats of a packed group, one lane a vector: the terms, padded to a whole step, then three rows. These hold the
 * subtracted sums, the factors of the results, and a flag: 1 for multiply-adds, otherwise 0. */
static inline int64_t gg_paired_group(int64_t terms) {
    return ((terms + GG_PAIRED_STEP - 1) / GG_PAIRED_STEP * GG_PAIRED_STEP + 3) * GG_PAIRED_LANES;
}

/* Floats of a group with GG_PAIRED_TERMS terms. */
enum { GG_PAIRED_ROOM = (GG_PAIRED_TERMS + 3) * GG_PAIRED_LANES };

/* Rows of A, or columns of B, in groups; missing vectors give zeros. */
typedef struct gg_paired_pack {
    int64_t count, terms; /* terms: at most GG_PAIRED_TERMS */
    const float *from;
    int64_t step; /* term l of vector i is at from[i*step + l], or, across, at from[l*step + i] */
    bool across;
    float *out;    /* 64-byte aligned */
    int64_t group; /* distance between groups, in floats: at least gg_paired_group(terms) */
} gg_paired_pack;

/* Memory to prefetch: `rows` places, `step` floats apart, `lines` cache lines each. */
typedef struct gg_paired_next {
    const float *from; /* NULL means nothing */
    int64_t rows, step, lines;
} gg_paired_next;

/* c[i*c_row + j] = start + sum over l < terms of a[i][l]*b[l][j]. start is c (add), bias[j], row_bias[i], or 0. The
 * bits of an element depend on its row, its column and its start alone. */
typedef struct gg_paired_product {
    int64_t m, n, terms;
    const float *a, *b;       /* packed */
    int64_t a_group, b_group; /* distances between groups, in floats */
    float *c;
    int64_t c_row;
    const float *bias, *row_bias; /* at most one is set; NULL means zeros */
    bool add, relu;
    gg_paired_next next; /* prefetched into the L2 cache by vector kernels, two lines a step */
} gg_paired_product;

typedef struct gg_paired_kernels {
    void (*pack)(const gg_paired_pack *pack);
    void (*multiply)(const gg_paired_product *product);
} gg_paired_kernels;

extern const gg_paired_kernels gg_paired_kernels_scalar; /* reference for the vector kernels; tests compare with it */

/* The kernels of a level if this CPU uses them (gg_cpu_pairs_products); split products take precedence. NULL means
 * none. */
static inline const gg_paired_kernels *gg_paired_kernels_for(gg_isa isa) {
    return gg_cpu_pairs_products() ? gg_cpu_kernels_for(isa)->paired : NULL;
}

#endif
