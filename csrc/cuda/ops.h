/* The operations of the CUDA table. Each creates its kind for float32, PLAIN; the device must outlive it. Running one
 * only gives work to GG_QUEUE_COMPUTE. */
#ifndef GG_CUDA_OPS_H
#define GG_CUDA_OPS_H

#include "cuda/device.h"

/* Workspaces of the libraries begin at multiples of so many bytes; scratch is aligned to 64. */
#define GG_CUDA_WORKSPACE_ALIGNMENT 256
/* A workspace of so many bytes in scratch: what it takes with its alignment, and where it begins. */
static inline size_t gg_cuda_workspace_room(size_t bytes) {
    return bytes > 0 ? bytes + GG_CUDA_WORKSPACE_ALIGNMENT : 0;
}
static inline void *gg_cuda_workspace(void *scratch) {
    const uintptr_t step = GG_CUDA_WORKSPACE_ALIGNMENT, at = (uintptr_t)scratch;
    return (char *)scratch + ((at + step - 1) / step * step - at);
}

/* A zeroed operation of `bytes` (it begins with a gg_op) with its head filled in: PLAIN float32 in and out. Fails with
 * GG_ERROR_UNSUPPORTED if an offered element type is neither float32 nor, from input `integers` on, int32. Freed by
 * gg_cuda_op_free. */
gg_status gg_cuda_op_create(const gg_op_desc *desc, const gg_op_class *type, int integers, size_t bytes, gg_op **out);
void gg_cuda_op_free(gg_op *op);
/* GG_OK, or what has failed since the last check; after launches. */
gg_status gg_cuda_op_done(gg_cuda_device *device, const char *kernel);

gg_status gg_cuda_conv2d_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_cuda_linear_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_cuda_attention_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_cuda_multi_head_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_cuda_lstm_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* ops_elements.c: all others. */
gg_status gg_cuda_activation_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_cuda_add_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_cuda_dropout_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_cuda_pool_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_cuda_batch_norm_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_cuda_layer_norm_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_cuda_lrn_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_cuda_softmax_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_cuda_embedding_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_cuda_position_embedding_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_cuda_rearrange_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_cuda_concat_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_cuda_reorder_create(gg_device *device, const gg_op_desc *desc, gg_op **out);

#endif
