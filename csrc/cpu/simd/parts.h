/* Splits numbers into bfloat16 parts; shared by the AMX kernels. */
#ifndef GG_CPU_SIMD_PARTS_H
#define GG_CPU_SIMD_PARTS_H

#include "cpu/simd/simd.h"

/* The avx512 build holds the AMX kernels. Tests the level's name, because a compiler may use more than the level has.
 * tests/c/twin has scalar versions as reference. */
#define GG_PARTS_avx512 1
#if GG_JOIN(GG_PARTS, GG_ISA) == 1 && defined(GG_HAS_AMX)
#define GG_PARTS_AMX 1
#endif

#ifdef GG_PARTS_AMX

/* Configuration of the eight tile registers: 16 rows of 64 bytes each. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} whole_tiles = {.palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

/* Orders stores and tile loads: the compiler does not know which memory a tile is loaded from. */
#define ORDER_TILES __asm__ volatile("" ::: "memory")

GG_INLINE __m512 upper_half(__m512 x) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0xffff0000)));
}

/* Packs two bfloat16-valued numbers into each of 16 words, `first` in the lower half. */
GG_INLINE __m512i pairs(__m512 first, __m512 second) {
    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(_mm512_castps_si512(first), 16),
                                   _mm512_castps_si512(second));
}

#endif

#endif
