#include "cpu/image_kernels.h"

#include <stddef.h>

const gg_image_kernels *gg_image_kernels_for(gg_isa isa) {
#ifdef GG_HAS_AMX
    if (isa == GG_ISA_AMX) return &gg_image_kernels_amx;
#else
    (void)isa;
#endif
    return NULL;
}
