#include "cpu/simd/isa.h"

#define LEVEL_scalar GG_ISA_SCALAR
#define LEVEL_avx2 GG_ISA_AVX2
#define LEVEL_avx512f GG_ISA_AVX512F
#define LEVEL_avx512 GG_ISA_AVX512

const gg_cpu_kernels GG_VARIANT(gg_cpu_kernels) = {
    .isa = GG_JOIN(LEVEL, GG_ISA),
    .elementwise = &GG_VARIANT(gg_cpu_elementwise),
    .pool = &GG_VARIANT(gg_cpu_pool),
    .norm = &GG_VARIANT(gg_cpu_norm),
    .rows = &GG_VARIANT(gg_cpu_rows),
    .lrn = &GG_VARIANT(gg_cpu_lrn),
    .loss = &GG_VARIANT(gg_cpu_loss_kernels),
    .arena = &GG_VARIANT(gg_cpu_arena),
    .choose = GG_VARIANT(gg_cpu_choose_bins),
    .entries = GG_VARIANT(gg_cpu_read_entries),
    .layout = &GG_VARIANT(gg_cpu_layout),
    .attention = &GG_VARIANT(gg_cpu_attention),
    .lstm = &GG_VARIANT(gg_cpu_lstm),
};
