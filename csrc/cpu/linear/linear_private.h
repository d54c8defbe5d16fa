/* Products of layers whose activations have a row of floats for each feature. These are linear layers over flat samples
 * (linear.c) and 1 x 1 convolutions (pointwise.c). The columns of a 1 x 1 convolution are pixels of all lanes. */
#ifndef GG_CPU_LINEAR_LINEAR_PRIVATE_H
#define GG_CPU_LINEAR_LINEAR_PRIVATE_H

#include "cpu/gemm/gemm_kernels.h"
#include "ops/backend.h"

typedef struct gg_native_features {
    int64_t in, out;
    int64_t columns; /* columns of a row */
    int64_t summed;  /* the first columns; the weight gradient sums over them */
    bool relu;
} gg_native_features;

/* y = W x, dW = dy x^T or dx = W^T dy, with W as out x in. */
gg_sgemm gg_native_linear_product(const gg_native_features *features, gg_pass pass, const gg_op_args *args);

#endif
