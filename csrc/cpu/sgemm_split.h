/* gg_sgemm by split products; the same arguments and promises. */
#ifndef GG_CPU_SGEMM_SPLIT_H
#define GG_CPU_SGEMM_SPLIT_H

#include "cpu/gemm_kernels.h"
#include "cpu/split_kernels.h"

/* Whether the level has split products, and splitting the matrices costs less than it saves: a rule of shapes. */
bool gg_sgemm_is_split(gg_isa isa, const gg_sgemm *product);
/* The same of the weight's gradient of a linear layer over flat samples, of which any run has the bits of the whole:
 * hence without the number of outputs. */
bool gg_weight_gradient_is_split(gg_isa isa, int64_t batch, int64_t in);
size_t gg_sgemm_split_scratch(const gg_sgemm *product, int threads);
/* row_bias: m of them, to each column, where the product has no bias; NULL: none. */
void gg_sgemm_split_run(const gg_split_kernels *kernels, const gg_sgemm *product, const float *row_bias, int threads,
                        void *scratch);

#endif
