#include "cpu/split_kernels.h"

#include <stddef.h>

#include "cpu/split_conv_kernels.h"

const gg_split_kernels *gg_split_kernels_for(gg_isa isa) {
#ifdef GG_HAS_AMX
    if (isa == GG_ISA_AMX) return &gg_split_kernels_amx;
#else
    (void)isa;
#endif
    return NULL;
}

const gg_split_conv_kernels *gg_split_conv_kernels_for(gg_isa isa) {
#ifdef GG_HAS_AMX
    if (isa == GG_ISA_AMX) return &gg_split_conv_kernels_amx;
#else
    (void)isa;
#endif
    return NULL;
}
