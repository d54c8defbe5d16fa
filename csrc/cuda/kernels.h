/* The own kernels of the CUDA backend, as C functions that launch them. Each gives its work to a stream and returns at
 * once. Structs and arrays of pointers are read before it returns; what they point to is read and written by the
 * device: arrays of numbers lie in memory of the device, or in host memory that it shares (ops/device.h).
 * Failures of a launch are those of the stream: cudaGetLastError.
 *
 * The sums have an order that depends on sizes alone, so results do not depend on timing. "The CPU's bits" are those
 * of its scalar kernels (level "scalar"), which round each product and each sum. */
#ifndef GG_CUDA_KERNELS_H
#define GG_CUDA_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "ops/backend.h"

/* A cudaStream_t. */
typedef struct CUstream_st *gg_cuda_stream;

/* ------------------------------------------------------------------------------------------------ arenas
 * As the entries of gg_backend of the same names, with the CPU's bits; update.cu and arena.cu. n may be any number, and
 * pointers need the alignment of their type alone: elements are moved by fours where all are aligned to 16 bytes, and
 * updated so where their number is a multiple of 4. */
void gg_cuda_update(gg_cuda_stream stream, int count, const gg_update_args *args);
void gg_cuda_mix(gg_cuda_stream stream, size_t n, gg_dtype wire, float share, const float *base, const void *received,
                 const float *sent, float *out);
void gg_cuda_halve(gg_cuda_stream stream, size_t n, gg_dtype wire, const float *own, const void *received, float *out);
void gg_cuda_narrow(gg_cuda_stream stream, size_t n, const float *in, uint16_t *out);
void gg_cuda_widen(gg_cuda_stream stream, size_t n, const uint16_t *in, float *out);
void gg_cuda_widen_add(gg_cuda_stream stream, size_t n, const uint16_t *in, float *out);
/* Sources of a sum, at most. */
#define GG_CUDA_MOST_SOURCES 2048
void gg_cuda_weighted_sum(gg_cuda_stream stream, size_t n, int sources, const float *const *source, const float *scale,
                          float *out);
void gg_cuda_narrow_sum(gg_cuda_stream stream, size_t n, int sources, const uint16_t *const *source, const float *scale,
                        float *out, uint16_t *rounded);
void gg_cuda_narrow_difference(gg_cuda_stream stream, size_t n, const float *a, const uint16_t *b, uint16_t *out);

/* ------------------------------------------------------------------------------------------------ sums.cu
 * partial: GG_CUDA_PARTIALS doubles of device memory, lost. result: written when the work is done. */
#define GG_CUDA_PARTIALS 1024
/* The sum of squares of a - b (b NULL: of a), in double. */
void gg_cuda_sum_squares(gg_cuda_stream stream, size_t n, const float *a, const float *b, double *partial,
                         double *result);
/* 1: no element is NaN or infinite; else 0. */
void gg_cuda_all_finite(gg_cuda_stream stream, size_t n, const float *a, double *partial, int32_t *result);
/* out[c] = the sum over all rows of in[row*columns + c]: float32 sums of 256 rows at most, which are added in double.
 */
void gg_cuda_column_sums(gg_cuda_stream stream, int64_t rows, int64_t columns, const float *in, float *out);

/* ------------------------------------------------------------------------------------------------ pack.cu
 * The CPU's bits. `prepare` of the arguments has been called. Results and lists are written when the work is done. */
void gg_cuda_pack(gg_cuda_stream stream, int count, const gg_pack_args *args);
void gg_cuda_add_elements(gg_cuda_stream stream, const gg_elements_args *args);
void gg_cuda_take_elements(gg_cuda_stream stream, const gg_elements_args *args);

/* ------------------------------------------------------------------------------------------------ layout.cu
 * The CPU's bits, in PLAIN and BATCH_LAST; and gather's in NHWC and rounded to bfloat16. */
void gg_cuda_gather(gg_cuda_stream stream, const gg_gather_args *args);
void gg_cuda_columns(gg_cuda_stream stream, const gg_vectors *from, int64_t first, int64_t count, float *out);
void gg_cuda_transpose(gg_cuda_stream stream, int64_t n, int64_t values, bool to_lanes, const float *in, float *out);

/* ------------------------------------------------------------------------------------------------ products.cu
 * An element's bits depend on the numbers of its row and column alone, whatever the run. Nothing is read behind the
 * last input. */
void gg_cuda_weight_gradient(gg_cuda_stream stream, const gg_weight_gradient_args *args);

/* ------------------------------------------------------------------------------------------------ loss.cu
 * PLAIN alone. scratch: gg_cuda_loss_scratch doubles of device memory, lost. What options point to is read by the
 * device. args->result is written when the work is done. */
size_t gg_cuda_loss_scratch(const gg_loss_args *args);
void gg_cuda_loss(gg_cuda_stream stream, const gg_loss_args *args, double *scratch);

#ifdef __cplusplus
}
#endif

#endif
