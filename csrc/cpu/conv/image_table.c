#include "cpu/conv/image_kernels.h"

#include "cpu/amx_private.h"

const gg_image_kernels *gg_image_kernels_for(gg_isa isa) { return GG_AMX_KERNELS(isa, gg_image_kernels_amx); }
