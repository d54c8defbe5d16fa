/* The operations of the native CPU table. Each creates its kind for a device that begins with a gg_cpu_device; the
 * device must outlive the operation. They compute in float32; some read and give bfloat16 where that is offered. */
#ifndef GG_CPU_NATIVE_H
#define GG_CPU_NATIVE_H

#include "cpu/gemm/gemm_kernels.h"
#include "cpu/shared.h"

#define GG_NATIVE_NAME "native" /* of the table, and of the backend in every operation */

/* An odd number of cache lines, of floats: rows whose distance is a power of two share few sets of the caches. */
static inline int64_t gg_odd_lines(int64_t n) {
    const int64_t lines = (n + GG_LANES - 1) / GG_LANES;
    return (lines + (lines % 2 == 0)) * GG_LANES;
}

/* In how many parts a batch is summed, each of which has `bytes` of sums of its own: so that bits do not depend on
 * threads. As many as fit in 4 MiB, 16 at most; where those are fewer than 4, it is 4, or what fits in
 * GG_NATIVE_SUM_BYTES: the most bytes that the sums of a part may have. */
#define GG_NATIVE_SUM_BYTES (16 * 1024 * 1024)
int64_t gg_native_parts(int64_t batch, int64_t bytes);

/* A zeroed operation of `bytes` (it begins with a gg_op) with its head filled in: BATCH_LAST float32 in and out. Fails
 * with GG_ERROR_UNSUPPORTED if an offered element type is neither float32 nor bfloat16. Freed by gg_native_op_free. */
gg_status gg_native_op_create(const gg_op_desc *desc, const gg_op_class *type, size_t bytes, gg_op **out);
void gg_native_op_free(gg_op *op);

/* By desc->algorithm. */
gg_status gg_native_conv2d_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_native_winograd_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* BATCH_LAST, windows of 1 x 1 where packed products pay. */
gg_status gg_native_pointwise_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* CHANNELS16, where the CPU has AMX. */
gg_status gg_native_split_conv_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* The gradient of the weights alone, of few channels in bfloat16, where the CPU has AMX; output NHWC. */
gg_status gg_native_image_conv_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* BATCH_LAST on flat samples. */
gg_status gg_native_linear_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* The same over the last axis of samples with several: PLAIN, one product for the positions of the whole batch. */
gg_status gg_native_linear_rows_create(gg_device *device, const gg_op_desc *desc, gg_op **out);

/* All poolings; CHANNELS16 if offered, else BATCH_LAST. */
gg_status gg_native_pool_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* RELU, TANH, SIGMOID, LEAKY_RELU and GELU: in the layout offered (but a sigmoid in PLAIN where padded channels would
 * not stay zero). */
gg_status gg_native_activation_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* In the first input's layout. */
gg_status gg_native_add_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* PLAIN if offered, else BATCH_LAST; the mask does not depend on it. */
gg_status gg_native_dropout_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* PLAIN if offered, else BATCH_LAST. */
gg_status gg_native_layer_norm_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_native_softmax_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_native_lrn_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* In the layout offered. */
gg_status gg_native_batch_norm_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* BATCH_LAST. */
gg_status gg_native_concat_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* PLAIN; an error names the first token that is no row of the table. */
gg_status gg_native_embedding_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_native_position_embedding_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* That error. */
gg_status gg_native_check_tokens(int64_t batch, int64_t positions, int64_t numbers, const int32_t *token);
/* Of so many tokens of a table of `numbers` rows, which of them are each row's: gg_native_order_size numbers. */
static inline size_t gg_native_order_size(int64_t numbers, int64_t tokens) { return (size_t)(numbers + tokens); }
void gg_native_order_tokens(int64_t numbers, int64_t tokens, const int32_t *token, int32_t *order);
/* The sum of the rows of `in`, one a token and in_row apart, whose token is `number`. */
void gg_native_add_rows(const gg_cpu_elementwise *kernels, const int32_t *order, int64_t numbers, int64_t number,
                        const float *in, int64_t in_row, size_t columns, float *out);
/* PERMUTE, SLICE and PAD: BATCH_LAST if offered, else PLAIN. */
gg_status gg_native_rearrange_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* PLAIN. */
gg_status gg_native_attention_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* PLAIN; one of tokens in float32 alone, and where the batch has at least twice as many as the table has rows. */
gg_status gg_native_lstm_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* Between PLAIN and BATCH_LAST. */
gg_status gg_native_reorder_create(gg_device *device, const gg_op_desc *desc, gg_op **out);

/* Backward of a convolution or a linear layer: leaves the error behind the activation in grad_output, and the bias's
 * gradient where it has one. Of BATCH_LAST output, channels or features [begin, end) by the calling thread; summed: so
 * many numbers have a sum in float32, and these sums one in double; 0: all have one in float32. */
void gg_native_mask_rows(const gg_gemm_kernels *kernels, const gg_op *op, const gg_op_args *args, int64_t summed,
                         int64_t begin, int64_t end);
/* Of output in blocks of sixteen channels. */
void gg_native_mask_blocks(gg_device *device, const gg_op *op, const gg_op_args *args);

#endif
