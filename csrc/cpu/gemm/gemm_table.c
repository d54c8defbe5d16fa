#include "cpu/gemm/gemm_kernels.h"

const gg_gemm_kernels *gg_gemm_kernels_for(gg_isa isa) {
    switch (isa) {
    case GG_ISA_SCALAR: return &gg_gemm_kernels_scalar;
#ifdef GG_HAS_AVX2
    case GG_ISA_AVX2: return &gg_gemm_kernels_avx2;
#endif
#ifdef GG_HAS_AVX512F
    case GG_ISA_AVX512F: return &gg_gemm_kernels_avx512f;
#endif
#ifdef GG_HAS_AVX512
    case GG_ISA_AVX512:
    case GG_ISA_AMX: return &gg_gemm_kernels_avx512;
#endif
    default: return NULL;
    }
}
