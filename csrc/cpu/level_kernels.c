/* The row of a level in the table of kernels (kernels.c). */
#include "cpu/simd/isa.h"
#include "cpu/simd/parts.h"

#define PAIRED_scalar NULL
#define PAIRED_avx2 NULL
#define PAIRED_avx512f &gg_paired_kernels_avx512f
#define PAIRED_avx512 &gg_paired_kernels_avx512

/* Kernels shared by a level and its variant with AMX. */
#define KERNELS                                                                                                        \
    .elementwise = &GG_VARIANT(gg_cpu_elementwise), .pool = &GG_VARIANT(gg_cpu_pool),                                  \
    .norm = &GG_VARIANT(gg_cpu_norm), .rows = &GG_VARIANT(gg_cpu_rows), .lrn = &GG_VARIANT(gg_cpu_lrn),                \
    .loss = &GG_VARIANT(gg_cpu_loss_kernels), .arena = &GG_VARIANT(gg_cpu_arena),                                      \
    .choose = GG_VARIANT(gg_cpu_choose_bins), .entries = GG_VARIANT(gg_cpu_read_entries),                              \
    .layout = &GG_VARIANT(gg_cpu_layout), .attention = &GG_VARIANT(gg_cpu_attention),                                  \
    .lstm = &GG_VARIANT(gg_cpu_lstm), .gemm = &GG_VARIANT(gg_gemm_kernels),                                            \
    .winograd = &GG_VARIANT(gg_winograd_kernels), .paired = GG_JOIN(PAIRED, GG_ISA)

const gg_cpu_kernels GG_VARIANT(gg_cpu_kernels) = {.isa = GG_LEVEL, KERNELS};

#ifdef GG_PARTS_AMX
const gg_cpu_kernels gg_cpu_kernels_amx = {
    .isa = GG_ISA_AMX,
    KERNELS,
    .split = &gg_split_kernels_amx,
    .split_conv = &gg_split_conv_kernels_amx,
    .image = &gg_image_kernels_amx,
};
#endif
