/* Names of this compilation. Every file *_kernels.c of cpu/ is compiled once a level of gg_isa, with GG_ISA set to the
 * level's name. All exported names contain that name. */
#ifndef GG_CPU_SIMD_ISA_H
#define GG_CPU_SIMD_ISA_H

#include <string.h>

#include "cpu/kernels.h"

/* gcc's analyzer takes a vector's lanes for its bits, and reports every shift of lanes as too large. */
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#pragma GCC diagnostic ignored "-Wanalyzer-shift-count-overflow"
#endif

#ifndef GG_ISA
#define GG_ISA scalar
#endif
#define GG_JOIN_(a, b) a##_##b
#define GG_JOIN(a, b) GG_JOIN_(a, b)
#define GG_VARIANT(name) GG_JOIN(name, GG_ISA)
#define GG_LEVEL_OF(NAME, name) GG_LEVEL_##name = GG_ISA_##NAME,
enum { GG_ISAS(GG_LEVEL_OF) };
#define GG_LEVEL ((gg_isa)GG_VARIANT(GG_LEVEL))

extern const gg_cpu_elementwise GG_VARIANT(gg_cpu_elementwise);
extern const gg_cpu_pool GG_VARIANT(gg_cpu_pool);
extern const gg_cpu_norm GG_VARIANT(gg_cpu_norm);
extern const gg_cpu_rows GG_VARIANT(gg_cpu_rows);
extern const gg_cpu_lrn GG_VARIANT(gg_cpu_lrn);
extern const gg_cpu_loss_kernels GG_VARIANT(gg_cpu_loss_kernels);
extern const gg_cpu_arena GG_VARIANT(gg_cpu_arena);
void GG_VARIANT(gg_cpu_update)(const gg_update_args *args); /* entry of the arena table, in a file of its own */
size_t GG_VARIANT(gg_cpu_choose_bins)(const gg_choose_args *args);
size_t GG_VARIANT(gg_cpu_read_entries)(gg_entries_args *args);
extern const gg_cpu_layout GG_VARIANT(gg_cpu_layout);
extern const gg_cpu_attention GG_VARIANT(gg_cpu_attention);
extern const gg_cpu_lstm GG_VARIANT(gg_cpu_lstm);
extern const gg_gemm_kernels GG_VARIANT(gg_gemm_kernels);
extern const gg_winograd_kernels GG_VARIANT(gg_winograd_kernels);
extern const gg_paired_kernels GG_VARIANT(gg_paired_kernels);
extern const gg_split_kernels gg_split_kernels_amx;
extern const gg_split_conv_kernels gg_split_conv_kernels_amx;
extern const gg_image_kernels gg_image_kernels_amx;

#define GG_INLINE static inline __attribute__((always_inline))

/* Declares iterations independent: the compiler cannot see it, because an output may be an input's memory. */
#define GG_INDEPENDENT _Pragma("GCC ivdep")

/* Declares the alignment of arenas and activations to the compiler. */
#define GG_ALIGNED(p) __builtin_assume_aligned((p), 64)

#endif
