#include "cpu/gemm/paired_kernels.h"

const gg_paired_kernels *gg_paired_kernels_for(gg_isa isa) {
#ifdef GG_HAS_AVX512F
    if (isa == GG_ISA_AVX512F && gg_cpu_pairs_products()) return &gg_paired_kernels_avx512f;
#endif
#ifdef GG_HAS_AVX512
    if ((isa == GG_ISA_AVX512 || isa == GG_ISA_AMX) && gg_cpu_pairs_products()) return &gg_paired_kernels_avx512;
#endif
    (void)isa;
    return NULL;
}
