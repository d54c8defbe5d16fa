/* The operations of the CUDA table; the device must outlive them. Running one only gives work to GG_QUEUE_COMPUTE.
 * Activations are float32, and bfloat16 where gg_op_desc.dtype is and the operation has a form for it; PLAIN, and NHWC
 * where images are offered so and the operation has a form for that. */
#ifndef GG_CUDA_OPS_H
#define GG_CUDA_OPS_H

#include "cuda/device/device.h"

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
 * GG_ERROR_UNSUPPORTED if an offered element type is neither float32, bfloat16 nor, from input `integers` on, int32.
 * Freed by gg_cuda_op_free. */
gg_status gg_cuda_op_create(const gg_op_desc *desc, const gg_op_class *type, int integers, size_t bytes, gg_op **out);
void gg_cuda_op_free(gg_op *op);
/* GG_OK, or what has failed since the last check; after launches. */
gg_status gg_cuda_op_done(gg_cuda_device *device, const char *kernel);

/* What forms an operation has beside float32, PLAIN. */
enum { GG_CUDA_BFLOAT16 = 1, GG_CUDA_NHWC = 2 };
/* The format of all inputs and of the output of an operation that gains nothing by another one than it is offered:
 * bfloat16 where all inputs are, NHWC where an image is. */
gg_format gg_cuda_offered_format(const gg_op_desc *desc, unsigned forms);

/* An operation that is one own kernel forward and one backward, and the batch's axes as these see them: outer x
 * channels x inner values. Created for a batch of samples (channels, ...) in the offered format; who needs another view
 * changes it. */
typedef struct gg_cuda_element_op {
    gg_op head;
    gg_cuda_device *device;
    size_t n; /* values of the output's batch */
    int64_t outer, channels, inner;
} gg_cuda_element_op;
gg_status gg_cuda_element_create(gg_device *device, const gg_op_desc *desc, const gg_op_class *type, unsigned forms,
                                 gg_op **out);
/* Fails with GG_ERROR_SHAPE if an input has another shape than the output. */
gg_status gg_cuda_check_same_shapes(const gg_op_desc *desc);
/* Where its kernels go, with its device the current one. */
gg_cuda_stream gg_cuda_element_stream(const gg_op *head);
gg_status gg_cuda_element_done(const gg_op *head);
/* The values of a batch, where they are not there already. */
void gg_cuda_element_copy(const gg_op *head, void *to, const void *from);

gg_status gg_cuda_conv2d_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* By own kernels: algorithm TILED. */
gg_status gg_cuda_tiled_conv2d_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_cuda_linear_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_cuda_attention_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* By cuDNN; where it refuses, and in float32 where the own one makes a position in one kernel, by that. */
gg_status gg_cuda_lstm_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
bool gg_cuda_own_lstm_steps(gg_device *device, const gg_op_desc *desc);
gg_status gg_cuda_own_lstm_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
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
