/* Vectors of the level being compiled. Not exported.
 *
 * A header simd_WIDTH.h implements one width:
 * - sixteen lanes as one value (lanes_*) at any width, for loops that compilers vectorise badly;
 * - PART lanes as one value (part_*), for loops that keep sixteen values in registers; missing if PART is sixteen;
 * - single vectors (floats, vec, words, long_words, halves);
 * - transposition of squares of floats (turn_square);
 * - the shape of tiles (tile.h).
 * A new width needs one such header, and its lines here.
 *
 * turn_square sets to[j*to_row + i] to from[i*from_row + j] for i, j < TURN_SIDE, at any alignment.
 *
 * Pointers of lanes_* to floats are 64-byte aligned, except for _any and _part. Pointers to saved places have any
 * alignment. */
#ifndef GG_CPU_SIMD_SIMD_H
#define GG_CPU_SIMD_SIMD_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "cpu/simd/isa.h"

/* Every aarch64 has NEON, so its level is known by name alone. */
#define NEON_neon 1

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

/* Elements of float32 in a vector. */
#define FLOATS ((size_t)(VECTOR_BYTES / 4))

/* floats: a vector in memory. vec: a vector as a value. */
typedef float floats __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef float vec __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t words __attribute__((vector_size(VECTOR_BYTES)));

typedef uint64_t long_words __attribute__((vector_size(VECTOR_BYTES)));

/* bfloat16, as many as a vector has float32. */
typedef uint16_t halves __attribute__((vector_size(VECTOR_BYTES / 2), aligned(2), may_alias));
typedef uint16_t half_value __attribute__((vector_size(VECTOR_BYTES / 2)));

/* Rounds n down to whole lanes, which lets the compiler omit the remainder loop. */
GG_INLINE size_t whole_lanes(size_t n) { return n & ~(size_t)(GG_LANES - 1); }

GG_INLINE vec load(const float *p) { return *(const floats *)p; }

#if defined(__AVX512F__)
#include <immintrin.h>

#include "cpu/simd/simd_avx512.h"
#elif defined(__AVX2__)
#include <immintrin.h>

#include "cpu/simd/simd_avx2.h"
#elif GG_JOIN(NEON, GG_ISA) == 1
#include <arm_neon.h>

#include "cpu/simd/simd_neon.h"
#else
#include "cpu/simd/simd_scalar.h"
#endif

#ifndef PART
#define PART GG_LANES
typedef lanes_f part_f;
#define part_load lanes_load_any
#define part_load_first lanes_load_part
#define part_store lanes_store_any
#define part_store_first lanes_store_part
#define part_set lanes_set
#define part_add lanes_add
#define part_subtract lanes_subtract
#define part_multiply lanes_multiply
#define part_multiply_add lanes_multiply_add
static inline part_f part_relu(part_f a) { return lanes_choose(lanes_positive(a), a, lanes_set(0)); }
#endif

/* The value that a partner reads for v if bfloat16 is sent. */
GG_INLINE vec rounded(vec v) { return (vec)(rounded_words(v) & 0xffff0000u); }

/* Wider places are rare (windows of more than 256 elements): one plain form serves all levels. */
static inline void lanes_store_wide(void *p, size_t at, int bytes, lanes_i v) {
    int32_t lane[16];
    memcpy(lane, &v, sizeof lane);
    for (int i = 0; i < 16; ++i) {
        if (bytes == 2) ((uint16_t *)p)[at + (size_t)i] = (uint16_t)lane[i];
        else ((int32_t *)p)[at + (size_t)i] = lane[i];
    }
}
static inline lanes_i lanes_load_wide(const void *p, size_t at, int bytes) {
    int32_t lane[16];
    lanes_i v;
    for (int i = 0; i < 16; ++i)
        lane[i] = bytes == 2 ? ((const uint16_t *)p)[at + (size_t)i] : ((const int32_t *)p)[at + (size_t)i];
    memcpy(&v, lane, sizeof v);
    return v;
}

#endif
