/* Operations of the native CPU table. The device must begin with a gg_cpu_device and outlive the operation. All compute
 * in float32; some read and write bfloat16 if offered. */
#ifndef GG_CPU_NATIVE_H
#define GG_CPU_NATIVE_H

#include "cpu/gemm/gemm_kernels.h"
#include "cpu/shared.h"

#define GG_NATIVE_NAME "native" /* name of the table, and of the backend in every operation */

/* Rounds n floats up to an odd number of cache lines. Rows at distances of a power of two share few cache sets. */
static inline int64_t gg_odd_lines(int64_t n) {
    const int64_t lines = (n + GG_LANES - 1) / GG_LANES;
    return (lines + (lines % 2 == 0)) * GG_LANES;
}

/* Number of parts in which a batch is summed, so that bits do not depend on threads. Each part has `bytes` of own sums.
 * As many parts as fit in 4 MiB, at most 16. If fewer than 4 fit: 4, or the number that fits in GG_NATIVE_SUM_BYTES.
 * GG_NATIVE_SUM_BYTES is also the max bytes of a part's sums. */
#define GG_NATIVE_SUM_BYTES (16 * 1024 * 1024)
int64_t gg_native_parts(int64_t batch, int64_t bytes);

/* Creates a zeroed operation of `bytes`, which begins with a gg_op, and fills its head: BATCH_LAST float32 in and out.
 * GG_ERROR_UNSUPPORTED if an offered element type is neither float32 nor bfloat16. Freed by gg_native_op_free. */
gg_status gg_native_op_create(const gg_op_desc *desc, const gg_op_class *type, size_t bytes, gg_op **out);
void gg_native_op_free(gg_op *op);

/* The algorithm is desc->algorithm. */
gg_status gg_native_conv2d_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_native_winograd_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* BATCH_LAST, 1 x 1 windows, if packed products pay off. */
gg_status gg_native_pointwise_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* CHANNELS16, if the CPU has AMX. */
gg_status gg_native_split_conv_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* Only the weight gradient, for few channels in bfloat16, if the CPU has AMX; output NHWC. */
gg_status gg_native_image_conv_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* BATCH_LAST on flat samples. */
gg_status gg_native_linear_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* Linear over the last axis of samples with several axes: PLAIN, one product for all positions of the batch. */
gg_status gg_native_linear_rows_create(gg_device *device, const gg_op_desc *desc, gg_op **out);

/* All poolings; CHANNELS16 if offered, otherwise BATCH_LAST. */
gg_status gg_native_pool_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* RELU, TANH, SIGMOID, LEAKY_RELU and GELU in the offered layout. A sigmoid is PLAIN if padded channels would not stay
 * zero. */
gg_status gg_native_activation_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* In the first input's layout. */
gg_status gg_native_add_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* PLAIN if offered, otherwise BATCH_LAST; the mask does not depend on the layout. */
gg_status gg_native_dropout_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* PLAIN if offered, otherwise BATCH_LAST. */
gg_status gg_native_layer_norm_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_native_softmax_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_native_lrn_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* In the offered layout. */
gg_status gg_native_batch_norm_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* BATCH_LAST. */
gg_status gg_native_concat_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* PLAIN; an error names the first token without a row in the table. */
gg_status gg_native_embedding_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_native_position_embedding_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* Returns the error of a forward pass for the first token outside of the table; GG_OK if there is none. */
gg_status gg_native_check_tokens(int64_t batch, int64_t positions, int64_t numbers, const int32_t *token);
/* Sorts tokens by their row of a table with `numbers` rows; `order` has gg_native_order_size numbers. */
static inline size_t gg_native_order_size(int64_t numbers, int64_t tokens) { return (size_t)(numbers + tokens); }
void gg_native_order_tokens(int64_t numbers, int64_t tokens, const int32_t *token, int32_t *order);
/* The sum of the rows of `in` whose token is `number`; `in` has one row a token, in_row apart. */
void gg_native_add_rows(const gg_cpu_elementwise *kernels, const int32_t *order, int64_t numbers, int64_t number,
                        const float *in, int64_t in_row, size_t columns, float *out);
/* PERMUTE, SLICE and PAD: BATCH_LAST if offered, otherwise PLAIN. */
gg_status gg_native_rearrange_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* PLAIN. */
gg_status gg_native_attention_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* PLAIN. With tokens: float32 only. The batch must have at least twice as many tokens as the table has rows. */
gg_status gg_native_lstm_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* Between PLAIN and BATCH_LAST. */
gg_status gg_native_reorder_create(gg_device *device, const gg_op_desc *desc, gg_op **out);

/* Backward of a convolution or a linear layer. Leaves the error before the activation in grad_output, and writes the
 * bias gradient if there is a bias. BATCH_LAST output; the calling thread does channels or features [begin, end).
 * summed: numbers in each float32 sum; these sums are added in double. 0 means one float32 sum. */
void gg_native_mask_rows(const gg_gemm_kernels *kernels, const gg_op *op, const gg_op_args *args, int64_t summed,
                         int64_t begin, int64_t end);
/* gg_native_mask_rows for output in blocks of 16 channels. */
void gg_native_mask_blocks(gg_device *device, const gg_op *op, const gg_op_args *args);

#endif
