/* gg_sgemm by paired products; the same arguments and promises. */
#ifndef GG_CPU_SGEMM_PAIRED_H
#define GG_CPU_SGEMM_PAIRED_H

#include "cpu/gemm_kernels.h"
#include "cpu/paired_kernels.h"

/* Whether the level uses paired products here, and packing costs less than they save: a rule of shapes. */
bool gg_sgemm_is_paired(gg_isa isa, const gg_sgemm *product);
/* The same of the weight's gradient of a linear layer over flat samples, of which any run has the bits of the whole:
 * hence without the number of outputs. */
bool gg_weight_gradient_is_paired(gg_isa isa, int64_t batch, int64_t in);
size_t gg_sgemm_paired_scratch(const gg_sgemm *product, int threads);
/* row_bias: m of them, to each column, where the product has no bias; NULL: none. */
void gg_sgemm_paired_run(const gg_paired_kernels *kernels, const gg_sgemm *product, const float *row_bias, int threads,
                         void *scratch);

/* Terms are summed in so many parts, which begin with whole steps: those of part i are from gg_paired_part(k, i) to
 * gg_paired_part(k, i + 1). */
static inline int64_t gg_paired_parts(int64_t k) { return k > 0 ? gg_block_count(k, GG_PAIRED_TERMS) : 1; }

static inline int64_t gg_paired_part(int64_t k, int64_t part) {
    const int64_t steps = gg_block_count(k, GG_PAIRED_STEP);
    const int64_t first = gg_block_begin(steps, gg_paired_parts(k), part) * GG_PAIRED_STEP;
    return first < k ? first : k;
}

/* Vectors of k terms, packed: the floats from a group to the next, and from a part, with all groups, to the next. */
static inline int64_t gg_paired_group_step(int64_t k) { return gg_paired_group(gg_paired_part(k, 1)); }
static inline int64_t gg_paired_part_step(int64_t count, int64_t k) {
    return gg_block_count(count, GG_PAIRED_LANES) * gg_paired_group_step(k);
}

/* Rows of A or columns of B as gg_paired_pack has them, of any number of terms. */
typedef struct gg_paired_side {
    int64_t count, terms;
    const float *from;
    int64_t step;
    bool across;
    float *out; /* gg_paired_parts(terms) * gg_paired_part_step(count, terms) floats */
} gg_paired_side;

/* Packs vectors [begin, end); begin is a multiple of GG_PAIRED_LANES. */
void gg_paired_pack_side(const gg_paired_kernels *kernels, const gg_paired_side *side, int64_t begin, int64_t end);

#endif
