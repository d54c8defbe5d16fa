/* Vectors of the level that is being compiled, for kernels on arenas. Not exported. */
#ifndef GG_CPU_SIMD_VECTORS_H
#define GG_CPU_SIMD_VECTORS_H

#include <stdbool.h>
#include <stdint.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "cpu/simd/isa.h"

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

/* Lets the compiler omit the remainder loop. */
GG_INLINE size_t whole_lanes(size_t n) { return n & ~(size_t)(GG_LANES - 1); }

GG_INLINE value load(const float *p) { return *(const floats *)p; }

/* bfloat16 is the upper half of float32. Rounding is to nearest, ties to even; a NaN stays a (quiet) NaN. The
 * instruction for it would flush denormals. The compiler does not turn the plain form below into few instructions. */
#if defined(__AVX512F__)
GG_INLINE value load_narrow(const uint16_t *p) {
    return (value)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
}

GG_INLINE words rounded_words(value v) {
    const __m512i bits = (__m512i)v, odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    return (words)_mm512_mask_or_epi32(sum, nan, bits, _mm512_set1_epi32(0x400000));
}

GG_INLINE half_value narrowed(words w) { return (half_value)_mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)w, 16)); }
#elif defined(__AVX2__)
GG_INLINE value load_narrow(const uint16_t *p) {
    return (value)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
}

GG_INLINE words rounded_words(value v) {
    const __m256i bits = (__m256i)v, odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    return (words)_mm256_blendv_epi8(sum, quiet, (__m256i)_mm256_cmp_ps((__m256)v, (__m256)v, _CMP_UNORD_Q));
}

GG_INLINE half_value narrowed(words w) {
    const __m256i upper = _mm256_srli_epi32((__m256i)w, 16), packed = _mm256_packus_epi32(upper, upper);
    return (half_value)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
#else
GG_INLINE value load_narrow(const uint16_t *p) {
    const half_value v = *(const halves *)p;
    return (value)(__builtin_convertvector(v, words) << 16);
}

GG_INLINE words rounded_words(value v) {
    const words bits = (words)v;
    const words rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const words nan = (words)(v != v);
    return ((bits | 0x400000u) & nan) | (rounded & ~nan);
}

/* The upper halves. */
GG_INLINE half_value narrowed(words w) { return __builtin_convertvector(w >> 16, half_value); }
#endif

/* What a partner reads for v where bfloat16 is sent. */
GG_INLINE value rounded(value v) { return (value)(rounded_words(v) & 0xffff0000u); }

/* Non-temporal stores, where the level has them. */
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

/* Other cores see non-temporal stores in order only after it. */
GG_INLINE void fence(void) {
#if defined(__AVX2__)
    _mm_sfence();
#endif
}

/* Whether any bit is set. */
GG_INLINE bool any_bit(words w) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)w, (__m512i)w) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)w, (__m256i)w);
#else
    uint32_t all = 0;
    for (size_t i = 0; i < FLOATS; ++i) all |= w[i];
    return all != 0;
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
