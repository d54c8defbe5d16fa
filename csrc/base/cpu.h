/* What the CPU can do, and which kernels are to be used. */
#ifndef GG_BASE_CPU_H
#define GG_BASE_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* setup.py defines GG_HAS_AVX2, GG_HAS_AVX512F and GG_HAS_AVX512, each if the build has the kernels of that level.
 * Those of GG_ISA_AMX come with AVX512's if the compiler knows tiles: gcc 11 and newer, clang with the header. */
#if defined(__has_include) && defined(GG_HAS_AVX512)
#if __has_include(<amxbf16intrin.h>)
#define GG_HAS_AMX 1
#endif
#endif

/* One build of every kernel a level. AVX512F is the Knights Landing subset (F and CD only). AMX has the kernels of
 * AVX512, and products of matrices in addition (cpu/gemm/split_kernels.h). */
typedef enum gg_isa { GG_ISA_SCALAR = 0, GG_ISA_AVX2, GG_ISA_AVX512F, GG_ISA_AVX512, GG_ISA_AMX, GG_ISA_COUNT } gg_isa;

/* True if this CPU, operating system and build run kernels of that level. For AMX the process asks the system once. */
bool gg_cpu_supports(gg_isa isa);
const char *gg_isa_name(gg_isa isa);
/* The level for this process: `name` if not NULL, else $GOSSIPGRAD_ISA, else the best that gg_cpu_supports. An unknown
 * name is GG_ERROR_ARGUMENT, one that the CPU or the build lacks GG_ERROR_UNSUPPORTED. */
gg_status gg_isa_select(const char *name, gg_isa *out);
/* The best level that this CPU runs, if the build lacks it and has none above it. Else GG_ISA_SCALAR. */
gg_isa gg_isa_not_built(void);
/* The CPU's own name, or "unknown". */
const char *gg_cpu_name(void);
/* The instructions for bfloat16: "amx", "avx512_bf16", or "" without any. */
const char *gg_cpu_bfloat16(void);
/* Whether products of bfloat16 are faster than those of float32: with AMX, and with AMD's AVX512_BF16. With Intel's
 * convolutions took two to three times as long as in float32. */
bool gg_cpu_bfloat16_is_fast(void);
/* Whether products of float32 matrices are paired at levels that have such kernels (cpu/gemm/paired_kernels.h):
 * $GOSSIPGRAD_PAIRED, 0 or 1; where that is not set, on processors on which they are faster. Asked once a process. */
bool gg_cpu_pairs_products(void);
/* GG_ERROR_ARGUMENT where $GOSSIPGRAD_PAIRED is something else. */
gg_status gg_cpu_check_paired(void);
/* The calling thread's control register: rounding, denormal numbers, and exceptions that trap. */
typedef uint64_t gg_float_mode;
gg_float_mode gg_cpu_float_mode(void);
void gg_cpu_set_float_mode(gg_float_mode mode);
/* The mode in which the core computes, whatever the caller's is: to nearest, without traps, and denormal numbers count
 * as 0 and become 0. Such numbers do not affect training, but an operation on one costs a hundred cycles. A CPU without
 * this setting: the calling thread's mode. */
gg_float_mode gg_cpu_compute_mode(void);
/* Bytes of the second-level cache of a core, or of those that share one; 1 MiB where the system does not know. */
size_t gg_cpu_second_cache(void);
/* Processors this process may run on. */
int gg_cpu_count(void);

#endif
