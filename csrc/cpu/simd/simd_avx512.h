/* AVX-512 of a Knights Landing (F and CD). Included by simd.h. simd_scalar.h describes each function. */
#ifndef GG_CPU_SIMD_SIMD_AVX512_H
#define GG_CPU_SIMD_SIMD_AVX512_H

#define GG_VECTOR 16
#define GG_MAX(a, b) ((floats)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define GG_TILE_ROWS 14 /* rows of a tile two vectors wide: 28 accumulators, 2 vectors, 1 scalar of 32 registers */
#define GG_TILE_WIDE 6  /* rows of a tile four vectors wide */
#define GG_PANEL_VECTORS 2
#define GG_PANEL_HALF 1
#define GG_DOT_ROWS 5 /* a tile of dot products is this by GG_DOT_COLS */
#define GG_DOT_COLS 5

/* All tile shapes, as X(rows, vectors). */
#define GG_TILE_LIST_NARROW(X, V)                                                                                      \
    X(1, V) X(2, V) X(3, V) X(4, V) X(5, V) X(6, V) X(7, V) X(8, V) X(9, V) X(10, V) X(11, V) X(12, V) X(13, V) X(14, V)
#define GG_TILE_LIST_WIDE(X) X(1, 4) X(2, 4) X(3, 4) X(4, 4) X(5, 4) X(6, 4)

/* All shapes of tiles of dot products, as X(rows, columns). */
#define GG_DOT_LIST_OF(X, C) X(1, C) X(2, C) X(3, C) X(4, C) X(5, C)
#define GG_DOT_LIST(X)                                                                                                 \
    GG_DOT_LIST_OF(X, 1) GG_DOT_LIST_OF(X, 2) GG_DOT_LIST_OF(X, 3) GG_DOT_LIST_OF(X, 4) GG_DOT_LIST_OF(X, 5)

/* ---- sixteen lanes ---- */

typedef __m512 lanes_f;
typedef __m512i lanes_i;
typedef __mmask16 lanes_mask;

static inline lanes_f lanes_load(const float *p) { return _mm512_load_ps(p); }
static inline void lanes_store(float *p, lanes_f v) { _mm512_store_ps(p, v); }
static inline lanes_f lanes_load_any(const float *p) { return _mm512_loadu_ps(p); }
static inline void lanes_store_any(float *p, lanes_f v) { _mm512_storeu_ps(p, v); }
static inline lanes_f lanes_load_part(const float *p, int n) {
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
}
static inline void lanes_store_part(float *p, int n, lanes_f v) {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), v);
}
static inline lanes_f lanes_first(int n, lanes_f v) { return _mm512_maskz_mov_ps((__mmask16)((1u << n) - 1u), v); }
static inline lanes_f lanes_set(float value) { return _mm512_set1_ps(value); }
static inline lanes_i lanes_set_int(int32_t value) { return _mm512_set1_epi32(value); }
static inline lanes_f lanes_add(lanes_f a, lanes_f b) { return _mm512_add_ps(a, b); }
static inline lanes_f lanes_subtract(lanes_f a, lanes_f b) { return _mm512_sub_ps(a, b); }
static inline lanes_f lanes_multiply(lanes_f a, lanes_f b) { return _mm512_mul_ps(a, b); }
static inline lanes_f lanes_multiply_add(lanes_f a, lanes_f b, lanes_f c) { return _mm512_fmadd_ps(a, b, c); }
static inline lanes_mask lanes_wins(lanes_f a, lanes_f b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) | _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}
static inline lanes_mask lanes_positive(lanes_f a) { return _mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_NLE_UQ); }
static inline lanes_mask lanes_equal(lanes_i a, lanes_i b) { return _mm512_cmpeq_epi32_mask(a, b); }
static inline lanes_f lanes_choose(lanes_mask m, lanes_f yes, lanes_f no) { return _mm512_mask_blend_ps(m, no, yes); }
static inline lanes_i lanes_choose_int(lanes_mask m, lanes_i yes, lanes_i no) {
    return _mm512_mask_blend_epi32(m, no, yes);
}
static inline lanes_f lanes_select(lanes_mask m, lanes_f v) { return _mm512_maskz_mov_ps(m, v); }
static inline lanes_i lanes_load_u8(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
static inline void lanes_store_u8(uint8_t *p, lanes_i v) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(v)); }

static inline float lanes_total(lanes_f v) { return _mm512_reduce_add_ps(v); }
static inline lanes_f lanes_max(lanes_f a, lanes_f b) { return _mm512_max_ps(a, b); }
static inline lanes_f lanes_size(lanes_f v) { return _mm512_abs_ps(v); }
static inline lanes_f lanes_first_or(int n, lanes_f v, lanes_f other) {
    return _mm512_mask_mov_ps(other, (__mmask16)((1u << n) - 1u), v);
}

/* ---- vectors ---- */

GG_INLINE vec load_narrow(const uint16_t *p) {
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
}

GG_INLINE words rounded_words(vec v) {
    const __m512i bits = (__m512i)v, odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    return (words)_mm512_mask_or_epi32(sum, nan, bits, _mm512_set1_epi32(0x400000));
}

GG_INLINE half_value narrowed(words w) { return (half_value)_mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)w, 16)); }

GG_INLINE void stream(float *p, vec v) { _mm512_stream_ps(p, (__m512)v); }

GG_INLINE void stream_narrow(uint16_t *p, half_value v) { _mm256_stream_si256((__m256i *)p, (__m256i)v); }

GG_INLINE bool any_bit(words w) { return _mm512_test_epi32_mask((__m512i)w, (__m512i)w) != 0; }

GG_INLINE vec square_root(vec v) { return (vec)_mm512_sqrt_ps((__m512)v); }

GG_INLINE long_words low_product(long_words a, long_words b) {
    return (long_words)_mm512_mul_epu32((__m512i)a, (__m512i)b);
}

GG_INLINE void fence(void) { _mm_sfence(); }

GG_INLINE floats masked(floats y, floats dy) {
    return (floats)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask((__m512)y, _mm512_setzero_ps(), _CMP_NLE_UQ), (__m512)dy);
}

GG_INLINE __m256 both_halves(floats v) {
    return _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm256_castpd_ps(_mm512_extractf64x4_pd((__m512d)v, 1)));
}
GG_INLINE void store_totals(float *to, floats a, floats b, floats c, floats d) {
    const __m256 ab = _mm256_hadd_ps(both_halves(a), both_halves(b)),
                 cd = _mm256_hadd_ps(both_halves(c), both_halves(d));
    const __m256 abcd = _mm256_hadd_ps(ab, cd);
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)));
}

/* ---- transposition ---- */

#define TURN_SIDE 16

/* Transposes 16 rows of 16 numbers in place. */
GG_INLINE void turn(__m512 *a) {
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

GG_INLINE void turn_square(const float *from, int64_t from_row, float *to, int64_t to_row) {
    __m512 a[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_ps(from + i * from_row);
    turn(a);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm512_storeu_ps(to + i * to_row, a[i]);
}

#endif
