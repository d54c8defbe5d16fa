/* Abilities of the CPU, and the level of kernels that this process uses. */
#ifndef GG_BASE_CPU_H
#define GG_BASE_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Levels as X(NAME, name), the best last; every kernel is compiled once a level. NEON is aarch64's. AVX512F is the
 * Knights Landing subset (F and CD only). AMX adds split products of matrices to AVX512's kernels. */
#define GG_ISAS(X) X(SCALAR, scalar) X(NEON, neon) X(AVX2, avx2) X(AVX512F, avx512f) X(AVX512, avx512) X(AMX, amx)

#define GG_ISA_VALUE(NAME, name) GG_ISA_##NAME,
typedef enum gg_isa { GG_ISAS(GG_ISA_VALUE) GG_ISA_COUNT } gg_isa;

/* GG_IF_BUILT(NAME, yes, no) is `yes` if the build has kernels of that level: if setup.py defines GG_HAS_NAME as 1.
 * AMX's kernels come with AVX512's if the compiler knows tiles: gcc 11 and newer, clang with the header. */
#define GG_HAS_SCALAR 1
#if defined(__has_include) && defined(GG_HAS_AVX512)
#if __has_include(<amxbf16intrin.h>)
#define GG_HAS_AMX 1
#endif
#endif
#define GG_IF_BUILT(NAME, yes, no) GG_IF_1(GG_HAS_##NAME, yes, no)
#define GG_IF_1(has, yes, no) GG_IF_1_(has, yes, no)
#define GG_IF_1_(has, yes, no) GG_SECOND(GG_COMMA_##has yes, no, )
#define GG_COMMA_1 0,
#define GG_SECOND(...) GG_SECOND_(__VA_ARGS__)
#define GG_SECOND_(first, second, ...) second

/* True if this CPU, operating system and build run kernels of that level. For AMX the process asks the system once. */
bool gg_cpu_supports(gg_isa isa);
const char *gg_isa_name(gg_isa isa);
/* The level for this process: `name` if not NULL, else $GOSSIPGRAD_ISA, else the best that gg_cpu_supports.
 * GG_ERROR_ARGUMENT: an unknown name. GG_ERROR_UNSUPPORTED: a level that the CPU or the build lacks. */
gg_status gg_isa_select(const char *name, gg_isa *out);
/* The best level that this CPU runs, if the build lacks it and has none above it. Else GG_ISA_SCALAR. */
gg_isa gg_isa_not_built(void);
/* The CPU's own name, or "unknown". */
const char *gg_cpu_name(void);
/* The instructions for bfloat16: "amx", "avx512_bf16", or "" without any. */
const char *gg_cpu_bfloat16(void);
/* True if bfloat16 products are faster than float32 ones: AMX, and AMD's AVX512_BF16. Intel's AVX512_BF16 made
 * convolutions 2 to 3 times slower than float32. */
bool gg_cpu_bfloat16_is_fast(void);
/* True if float32 matrix products are paired at levels with paired kernels. $GOSSIPGRAD_PAIRED (0 or 1) decides; unset,
 * processors on which pairing is faster use it. Read once a process. */
bool gg_cpu_pairs_products(void);
/* GG_ERROR_ARGUMENT if $GOSSIPGRAD_PAIRED is neither 0 nor 1. */
gg_status gg_cpu_check_paired(void);
/* The calling thread's control register: rounding, denormal numbers, and exceptions that trap. */
typedef uint64_t gg_float_mode;
gg_float_mode gg_cpu_float_mode(void);
void gg_cpu_set_float_mode(gg_float_mode mode);
/* The core's mode, whatever the caller's: to nearest, no traps, denormal inputs and results are 0. Denormal numbers do
 * not affect training, but an operation on one costs a hundred cycles. A CPU without this setting keeps the calling
 * thread's mode. */
gg_float_mode gg_cpu_compute_mode(void);
/* Bytes of the L2 cache of a core, or of the cores that share one; 1 MiB if unknown. */
size_t gg_cpu_second_cache(void);
/* Processors this process may run on. */
int gg_cpu_count(void);

#endif
