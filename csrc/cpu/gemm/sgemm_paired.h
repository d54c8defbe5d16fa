/* Paired products: the parts of a sum, and gg_sgemm by given kernels. */
#ifndef GG_CPU_GEMM_SGEMM_PAIRED_H
#define GG_CPU_GEMM_SGEMM_PAIRED_H

#include "cpu/gemm/packed_products.h"
#include "cpu/gemm/paired_kernels.h"

/* gg_paired_products.run with the kernels of any level. */
void gg_sgemm_paired_run(const gg_paired_kernels *kernels, const gg_sgemm *product, const float *row_bias, int threads,
                         void *scratch);

/* Number of parts of a sum of k terms. Part i has the terms from gg_paired_part(k, i) to gg_paired_part(k, i + 1).
 * Parts begin at whole steps. */
static inline int64_t gg_paired_parts(int64_t k) { return k > 0 ? gg_block_count(k, GG_PAIRED_TERMS) : 1; }

static inline int64_t gg_paired_part(int64_t k, int64_t part) {
    const int64_t steps = gg_block_count(k, GG_PAIRED_STEP);
    const int64_t first = gg_block_begin(steps, gg_paired_parts(k), part) * GG_PAIRED_STEP;
    return first < k ? first : k;
}

/* Packed vectors of k terms: distance between groups, and distance between parts with all groups, in floats. */
static inline int64_t gg_paired_group_step(int64_t k) { return gg_paired_group(gg_paired_part(k, 1)); }
static inline int64_t gg_paired_part_step(int64_t count, int64_t k) {
    return gg_block_count(count, GG_PAIRED_LANES) * gg_paired_group_step(k);
}

/* Floats of all parts. */
static inline int64_t gg_paired_packed(int64_t count, int64_t k) {
    return gg_paired_parts(k) * gg_paired_part_step(count, k);
}

#endif
