#include "cpu/gemm/split_kernels.h"

#include "cpu/amx_private.h"
#include "cpu/conv/split_conv_kernels.h"

const gg_split_kernels *gg_split_kernels_for(gg_isa isa) { return GG_AMX_KERNELS(isa, gg_split_kernels_amx); }

const gg_split_conv_kernels *gg_split_conv_kernels_for(gg_isa isa) {
    return GG_AMX_KERNELS(isa, gg_split_conv_kernels_amx);
}
