/* The own kernels of the CUDA backend, as C functions that launch them. Each gives its work to a stream and returns at
 * once. Structs and arrays of pointers are read before it returns; what they point to is read and written by the
 * device: arrays of numbers lie in memory of the device, or in host memory that it shares (backend/device.h).
 * Failures of a launch are those of the stream: cudaGetLastError.
 *
 * The sums have an order that depends on sizes alone, so results do not depend on timing. "The CPU's bits" are those
 * of its scalar kernels (cpu/isa, level "scalar"), which round each product and each sum. */
#ifndef GG_CUDA_KERNELS_H
#define GG_CUDA_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "backend/backend.h"

/* A cudaStream_t. */
typedef struct CUstream_st *gg_cuda_stream;

/* ------------------------------------------------------------------------------------------------ arenas (arena.cu)
 * As the entries of gg_backend of the same names: the CPU's bits. n may be any number; elements need the alignment of
 * their type alone, and are read by fours where all pointers are aligned to 16 bytes. */
void gg_cuda_update(gg_cuda_stream stream, const gg_update_args *args);

#ifdef __cplusplus
}
#endif

#endif
