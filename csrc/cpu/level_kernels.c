/* The row of a level in the table of kernels (kernels.c). */
#include "cpu/simd/isa.h"
#include "cpu/simd/parts.h"

/* Levels with paired products. */
#define PAIRS_avx512f 1
#define PAIRS_avx512 1
#if GG_JOIN(PAIRS, GG_ISA) == 1
#define PAIRED &GG_VARIANT(gg_paired_kernels)
#else
#define PAIRED NULL
#endif

/* Kernels shared by a level and its variant with AMX. */
#define KERNELS                                                                                                        \
    .elementwise = &GG_VARIANT(gg_cpu_elementwise), .pool = &GG_VARIANT(gg_cpu_pool),                                  \
    .norm = &GG_VARIANT(gg_cpu_norm), .rows = &GG_VARIANT(gg_cpu_rows), .lrn = &GG_VARIANT(gg_cpu_lrn),                \
    .loss = &GG_VARIANT(gg_cpu_loss_kernels), .arena = &GG_VARIANT(gg_cpu_arena),                                      \
    .choose = GG_VARIANT(gg_cpu_choose_bins), .entries = GG_VARIANT(gg_cpu_read_entries),                              \
    .layout = &GG_VARIANT(gg_cpu_layout), .attention = &GG_VARIANT(gg_cpu_attention),                                  \
    .lstm = &GG_VARIANT(gg_cpu_lstm), .gemm = &GG_VARIANT(gg_gemm_kernels),                                            \
    .winograd = &GG_VARIANT(gg_winograd_kernels), .paired = PAIRED

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
