/* Operations of the CUDA table; the device must outlive them. Running an operation only gives work to GG_QUEUE_COMPUTE.
 * Activations are float32; bfloat16 if gg_op_desc.dtype is and the operation has a form for it. They lie PLAIN; NHWC if
 * images are offered in NHWC and the operation has a form for it. */
#ifndef GG_CUDA_OPS_H
#define GG_CUDA_OPS_H

#include "cuda/device/device.h"

/* Alignment of the libraries' workspaces, in bytes; scratch is aligned to 64. */
#define GG_CUDA_WORKSPACE_ALIGNMENT 256
/* A workspace of `bytes` in scratch: its room including alignment, and its address. */
static inline size_t gg_cuda_workspace_room(size_t bytes) {
    return bytes > 0 ? bytes + GG_CUDA_WORKSPACE_ALIGNMENT : 0;
}
static inline void *gg_cuda_workspace(void *scratch) {
    const uintptr_t step = GG_CUDA_WORKSPACE_ALIGNMENT, at = (uintptr_t)scratch;
    return (char *)scratch + ((at + step - 1) / step * step - at);
}

/* Creates a zeroed operation of `bytes`, which begins with a gg_op, and fills its head: PLAIN float32 in and out.
 * Offered element types: float32, bfloat16 and, from input `integers` on, int32; GG_ERROR_UNSUPPORTED for others. Freed
 * by gg_cuda_op_free. */
gg_status gg_cuda_op_create(const gg_op_desc *desc, const gg_op_class *type, int integers, size_t bytes, gg_op **out);
void gg_cuda_op_free(gg_op *op);
/* Called after launches: the first failure since the last check, or GG_OK. */
gg_status gg_cuda_op_done(gg_cuda_device *device, const char *kernel);

/* Forms of an operation besides PLAIN float32. */
enum { GG_CUDA_BFLOAT16 = 1, GG_CUDA_NHWC = 2 };
/* Format of all inputs and the output, for operations that gain nothing from a reorder. bfloat16 if all inputs are,
 * NHWC if an image is. */
gg_format gg_cuda_offered_format(const gg_op_desc *desc, unsigned forms);

/* An operation with one own kernel forward and one backward. The kernels see the batch as outer x channels x inner
 * values. Created for a batch of samples (channels, ...) in the offered format; an operation with another view changes
 * these fields. */
typedef struct gg_cuda_element_op {
    gg_op head;
    gg_cuda_device *device;
    size_t n; /* values of the output's batch */
    int64_t outer, channels, inner;
} gg_cuda_element_op;
gg_status gg_cuda_element_create(gg_device *device, const gg_op_desc *desc, const gg_op_class *type, unsigned forms,
                                 gg_op **out);
/* GG_ERROR_SHAPE if the shape of an input differs from the output's. */
gg_status gg_cuda_check_same_shapes(const gg_op_desc *desc);
/* Makes the device current and returns its compute stream. */
gg_cuda_stream gg_cuda_element_stream(const gg_op *head);
gg_status gg_cuda_element_done(const gg_op *head);
/* Copies a batch's values unless `to` is `from`. */
void gg_cuda_element_copy(const gg_op *head, void *to, const void *from);

gg_status gg_cuda_conv2d_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* By own kernels: algorithm TILED. */
gg_status gg_cuda_tiled_conv2d_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_cuda_linear_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_cuda_attention_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* Uses cuDNN. Uses our own LSTM if cuDNN refuses, or in float32 if our own computes a position in one kernel. */
gg_status gg_cuda_lstm_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
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
