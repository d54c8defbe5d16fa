/* gg_sgemm by split products; the same arguments and promises. */
#ifndef GG_CPU_SGEMM_SPLIT_H
#define GG_CPU_SGEMM_SPLIT_H

#include "cpu/gemm_kernels.h"
#include "cpu/split_kernels.h"

/* Whether the level has split products, and splitting the matrices costs less than it saves: a rule of shapes. */
bool gg_sgemm_is_split(gg_isa isa, const gg_sgemm *product);
size_t gg_sgemm_split_scratch(const gg_sgemm *product, int threads);
void gg_sgemm_split_run(const gg_split_kernels *kernels, const gg_sgemm *product, int threads, void *scratch);

#endif
