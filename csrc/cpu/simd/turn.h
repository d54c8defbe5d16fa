/* Squares of floats, transposed in registers: as many rows as a vector has floats. For levels with vectors. */
#ifndef GG_CPU_SIMD_TURN_H
#define GG_CPU_SIMD_TURN_H

#include <immintrin.h>
#include <stdint.h>

#if defined(__AVX512F__)

#define TURN_SIDE 16

/* Sixteen rows of sixteen numbers, turned. */
static inline __attribute__((always_inline)) void turn(__m512 *a) {
    __m512 b[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        a[i] = (__m512)_mm512_unpacklo_pd((__m512d)b[i], (__m512d)b[i + 2]);
        a[i + 1] = (__m512)_mm512_unpackhi_pd((__m512d)b[i], (__m512d)b[i + 2]);
        a[i + 2] = (__m512)_mm512_unpacklo_pd((__m512d)b[i + 1], (__m512d)b[i + 3]);
        a[i + 3] = (__m512)_mm512_unpackhi_pd((__m512d)b[i + 1], (__m512d)b[i + 3]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
        const __m512 low = _mm512_shuffle_f32x4(a[c], a[c + 4], 0x88),
                     high = _mm512_shuffle_f32x4(a[c], a[c + 4], 0xdd);
        const __m512 low2 = _mm512_shuffle_f32x4(a[c + 8], a[c + 12], 0x88);
        const __m512 high2 = _mm512_shuffle_f32x4(a[c + 8], a[c + 12], 0xdd);
        b[c] = _mm512_shuffle_f32x4(low, low2, 0x88);
        b[c + 4] = _mm512_shuffle_f32x4(high, high2, 0x88);
        b[c + 8] = _mm512_shuffle_f32x4(low, low2, 0xdd);
        b[c + 12] = _mm512_shuffle_f32x4(high, high2, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) a[i] = b[i];
}

/* to[j*to_row + i] = from[i*from_row + j] for i, j < TURN_SIDE; nothing need be aligned. */
static inline __attribute__((always_inline)) void turn_square(const float *from, int64_t from_row, float *to,
                                                              int64_t to_row) {
    __m512 a[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_ps(from + i * from_row);
    turn(a);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm512_storeu_ps(to + i * to_row, a[i]);
}

#else

#define TURN_SIDE 8

static inline __attribute__((always_inline)) void turn_square(const float *from, int64_t from_row, float *to,
                                                              int64_t to_row) {
    __m256 a[8], b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(from + i * from_row);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        a[i] = (__m256)_mm256_unpacklo_pd((__m256d)b[i], (__m256d)b[i + 2]);
        a[i + 1] = (__m256)_mm256_unpackhi_pd((__m256d)b[i], (__m256d)b[i + 2]);
        a[i + 2] = (__m256)_mm256_unpacklo_pd((__m256d)b[i + 1], (__m256d)b[i + 3]);
        a[i + 3] = (__m256)_mm256_unpackhi_pd((__m256d)b[i + 1], (__m256d)b[i + 3]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
        _mm256_storeu_ps(to + c * to_row, _mm256_permute2f128_ps(a[c], a[c + 4], 0x20));
        _mm256_storeu_ps(to + (c + 4) * to_row, _mm256_permute2f128_ps(a[c], a[c + 4], 0x31));
    }
}

#endif

#endif
