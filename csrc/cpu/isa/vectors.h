/* Vectors of the level that is being compiled, for kernels on arenas. Not exported. */
#ifndef GG_CPU_ISA_VECTORS_H
#define GG_CPU_ISA_VECTORS_H

#include <stdbool.h>
#include <stdint.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "cpu/isa/isa.h"

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

/* Elements of float32 in a vector. */
#define FLOATS ((size_t)(VECTOR_BYTES / 4))

/* In memory, and as a value. */
typedef float floats __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef float value __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t words __attribute__((vector_size(VECTOR_BYTES)));

/* As many bfloat16 as a vector has float32. */
typedef uint16_t halves __attribute__((vector_size(VECTOR_BYTES / 2), aligned(2), may_alias));
typedef uint16_t half_value __attribute__((vector_size(VECTOR_BYTES / 2)));

#define GG_INLINE static inline __attribute__((always_inline))

/* Tells the compiler that no remainder loop is needed. */
GG_INLINE size_t whole_lanes(size_t n) { return n & ~(size_t)(GG_LANES - 1); }

GG_INLINE value load(const float *p) { return *(const floats *)p; }

GG_INLINE value load_narrow(const uint16_t *p) {
    const half_value v = *(const halves *)p;
    return (value)(__builtin_convertvector(v, words) << 16);
}

/* Rounds to bfloat16, to nearest, ties to even, and leaves it in the upper half; a NaN stays a (quiet) NaN. The instruction
 * for it would flush denormals. */
GG_INLINE words rounded_words(value v) {
    const words bits = (words)v;
    const words rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const words nan = (words)(v != v);
    return (((bits | 0x400000u) & nan) | (rounded & ~nan)) & 0xffff0000u;
}

/* What a partner reads for v where bfloat16 is sent. */
GG_INLINE value rounded(value v) { return (value)rounded_words(v); }

/* The upper halves. */
GG_INLINE half_value narrowed(words w) { return __builtin_convertvector(w >> 16, half_value); }

/* Write past the cache where the level can. */
GG_INLINE void stream(float *p, value v) {
#if defined(__AVX512F__)
    _mm512_stream_ps(p, (__m512)v);
#elif defined(__AVX2__)
    _mm256_stream_ps(p, (__m256)v);
#else
    *(floats *)p = v;
#endif
}

GG_INLINE void stream_narrow(uint16_t *p, half_value v) {
#if defined(__AVX512F__)
    _mm256_stream_si256((__m256i *)p, (__m256i)v);
#elif defined(__AVX2__)
    _mm_stream_si128((__m128i *)p, (__m128i)v);
#else
    *(halves *)p = v;
#endif
}

/* Streamed stores are seen by others in order only after it. */
GG_INLINE void fence(void) {
#if defined(__AVX2__)
    _mm_sfence();
#endif
}

/* Correctly rounded at every level. */
GG_INLINE value square_root(value v) {
#if defined(__AVX512F__)
    return (value)_mm512_sqrt_ps((__m512)v);
#elif defined(__AVX2__)
    return (value)_mm256_sqrt_ps((__m256)v);
#else
    for (size_t i = 0; i < FLOATS; ++i) v[i] = __builtin_sqrtf(v[i]);
    return v;
#endif
}

#endif
