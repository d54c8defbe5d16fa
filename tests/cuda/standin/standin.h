/* A stand-in for the CUDA runtime, cuDNN and cuBLASLt, for machines without a GPU.
 *
 * It fills the table of csrc/cuda/cuda_api.h. What a real device does silently wrong, or only sometimes, is an error
 * here that is recorded with a text:
 *
 * - Memory of the device has addresses whose pages nobody may touch; what the host reads or writes there is a
 *   SIGSEGV. Work finds the same memory elsewhere. New memory is full of NaN, and bytes behind a block are guarded.
 * - Work is done late, by one thread, ordered only by streams, events and waits for them. A seed varies the order.
 * - Kernels that are given host memory that is not pinned, host memory that is released while work uses it, handles and
 * descriptors that are not set, not alive or not destroyed, shapes, strides, alignment and workspace that do not fit:
 * each is a violation. The call then fails with the code that the real library would give.
 *
 * With GOSSIPGRAD_STANDIN_OPEN in the environment the host, and so a library that sends messages, may touch memory of
 * the device, as an MPI library does that is built for CUDA. What is done too early is then wrong, and no error.
 *
 * Functions of this header may be called by any thread; tests call them through ctypes, too. */
#ifndef GG_STANDIN_H
#define GG_STANDIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/cuda_api.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GG_STANDIN_PUBLIC __attribute__((visibility("default")))

/* The table, filled. */
GG_STANDIN_PUBLIC const gg_cuda_api *gg_standin_api(void);

/* Forgets violations, counts and planted errors; waits for all work first. Work from here on is ordered by the seed. 0:
 * nothing is held back longer than needed. */
GG_STANDIN_PUBLIC void gg_standin_begin(uint64_t seed);
/* Bytes of memory that the device has. */
GG_STANDIN_PUBLIC void gg_standin_memory(size_t bytes);
/* Devices there are; 0: cudaGetDeviceCount gives an error as where there is no driver. */
GG_STANDIN_PUBLIC void gg_standin_devices(int count);
/* The call number `nth`, from 1 on, of the function that has this name in the table fails with `code`. lost: and all
 * later calls of the runtime too, with the same code, as after the loss of a device. late: the call succeeds, and the
 * device is lost when the work that it gives is done. nth 0: all calls. "cudnnConvolutionForward 1", and the same of
 * the other convolutions and of the questions for their workspace: the calls with this algorithm, which is listed all
 * the same. "cublasLtMatmulAlgoGetHeuristic bfloat16": those for factors of this type. */
GG_STANDIN_PUBLIC void gg_standin_plant(const char *function, int nth, int code, bool lost, bool late);
/* How often the function was called since gg_standin_begin; "kernel": kernels that were launched; "kernel NAME": that
 * one; "pageable": copies from or to host memory that is not pinned; "nondeterministic", "tf32": convolutions and
 * products that were run so; "algorithm 3": convolutions of any pass that were run by the one with this number. */
GG_STANDIN_PUBLIC long gg_standin_count(const char *what);
/* Writes the texts of violations since gg_standin_begin, a line each, and gives their number. */
GG_STANDIN_PUBLIC int gg_standin_violations(char *text, size_t bytes);
/* Counts everything that was ever created or allocated, and is still alive. Waits for all work. */
GG_STANDIN_PUBLIC int gg_standin_leaks(char *text, size_t bytes);

/* In the library with kernels: what the emulation found wrong in them, ever; it prints what. */
GG_STANDIN_PUBLIC long gg_standin_kernel_failures(void);

#ifdef __cplusplus
}
#endif

#endif
