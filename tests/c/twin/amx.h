/* Scalar kernels of the level amx: they document those of csrc/cpu, and test them. */
#ifndef TWIN_AMX_H
#define TWIN_AMX_H

#include "cpu/conv/image_kernels.h"
#include "cpu/conv/split_conv_kernels.h"
#include "cpu/gemm/split_kernels.h"
#include "cpu/kernels.h"

extern const gg_split_kernels gg_split_kernels_scalar;
extern const gg_split_conv_kernels gg_split_conv_kernels_scalar;
extern const gg_image_kernels gg_image_kernels_scalar;

#endif
