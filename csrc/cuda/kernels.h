/* Our own kernels of the CUDA backend, as C functions that launch them.
 * - Each gives its work to a stream and returns at once.
 * - Structs and arrays of pointers are read before the call returns. Arrays of numbers are read and written by the
 *   device: they lie in device memory, or in host memory that the device shares (ops/device.h).
 * - A failed launch is reported by cudaGetLastError.
 * - The order of sums depends on sizes alone, so results do not depend on timing.
 *
 * "The CPU's bits" are those of its scalar kernels (level "scalar"), which round each product and each sum. */
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
 * Entries of gg_backend with the CPU's bits; update.cu and arena.cu. Any n, and any pointer aligned for its type.
 * Elements move in fours if all arrays are aligned to 16 bytes; updates also need a multiple of 4 elements. */
void gg_cuda_update(gg_cuda_stream stream, int count, const gg_update_args *args);
void gg_cuda_mix(gg_cuda_stream stream, size_t n, gg_dtype wire, float share, const float *base, const void *received,
                 const float *sent, float *out);
void gg_cuda_narrow(gg_cuda_stream stream, size_t n, const float *in, uint16_t *out);
void gg_cuda_widen(gg_cuda_stream stream, size_t n, const uint16_t *in, float *out);
void gg_cuda_widen_add(gg_cuda_stream stream, size_t n, const uint16_t *in, float *out);
/* Max sources of a sum. */
#define GG_CUDA_MAX_SOURCES 2048
void gg_cuda_weighted_sum(gg_cuda_stream stream, size_t n, int sources, const float *const *source, const float *scale,
                          float *out);
void gg_cuda_narrow_sum(gg_cuda_stream stream, size_t n, int sources, const uint16_t *const *source, const float *scale,
                        float *out, uint16_t *rounded);
void gg_cuda_narrow_difference(gg_cuda_stream stream, size_t n, const float *a, const uint16_t *b, uint16_t *out);

/* ------------------------------------------------------------------------------------------------ sums.cu
 * partial: scratch, GG_CUDA_PARTIALS doubles of device memory. result: written when the work is done. */
#define GG_CUDA_PARTIALS 1024
/* Sum of squares of a - b in double; b NULL means the squares of a. */
void gg_cuda_sum_squares(gg_cuda_stream stream, size_t n, const float *a, const float *b, double *partial,
                         double *result);
/* *result = 1 if no element is NaN or infinite, otherwise 0. */
void gg_cuda_all_finite(gg_cuda_stream stream, size_t n, const float *a, double *partial, int32_t *result);
/* out[c] = sum over all rows of in[row*columns + c]. float32 sums of at most 256 rows are added in double. */
void gg_cuda_column_sums(gg_cuda_stream stream, int64_t rows, int64_t columns, const float *in, float *out);

/* ------------------------------------------------------------------------------------------------ pack.cu
 * Gives the CPU's bits. Requires a call of `prepare` with the arguments. Results and lists are written when the work is
 * done. */
void gg_cuda_pack(gg_cuda_stream stream, int count, const gg_pack_args *args);
void gg_cuda_add_elements(gg_cuda_stream stream, const gg_elements_args *args);
void gg_cuda_take_elements(gg_cuda_stream stream, const gg_elements_args *args);

/* ------------------------------------------------------------------------------------------------ layout.cu
 * Gives the CPU's bits, in PLAIN and BATCH_LAST. gather also writes NHWC, and rounds to bfloat16. */
void gg_cuda_gather(gg_cuda_stream stream, const gg_gather_args *args);
void gg_cuda_columns(gg_cuda_stream stream, const gg_vectors *from, int64_t first, int64_t count, float *out);
void gg_cuda_transpose(gg_cuda_stream stream, int64_t n, int64_t values, bool to_lanes, const float *in, float *out);

/* ------------------------------------------------------------------------------------------------ products.cu
 * An element's bits depend on the numbers of its row and column alone, for any run. Reads nothing past the last
 * input. */
void gg_cuda_weight_gradient(gg_cuda_stream stream, const gg_weight_gradient_args *args);

/* ------------------------------------------------------------------------------------------------ loss.cu
 * PLAIN only. scratch: gg_cuda_loss_scratch doubles of device memory. The device reads the options' arrays.
 * args->result is written when the work is done. */
size_t gg_cuda_loss_scratch(const gg_loss_args *args);
void gg_cuda_loss(gg_cuda_stream stream, const gg_loss_args *args, double *scratch);

#ifdef __cplusplus
}
#endif

#endif
