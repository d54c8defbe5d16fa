/* AVX2: sixteen lanes are two vectors. Included by simd.h. simd_scalar.h describes each function. */
#ifndef GG_CPU_SIMD_SIMD_AVX2_H
#define GG_CPU_SIMD_SIMD_AVX2_H

#define GG_VECTOR 8
#define GG_MAX(a, b) ((floats)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define GG_TILE_ROWS 6
#define GG_TILE_WIDE 2
#define GG_PANEL_VECTORS 2
#define GG_PANEL_HALF 1
#define GG_DOT_ROWS 3
#define GG_DOT_COLS 4

/* All tile shapes, as X(rows, vectors). */
#define GG_TILE_LIST_NARROW(X, V) X(1, V) X(2, V) X(3, V) X(4, V) X(5, V) X(6, V)
#define GG_TILE_LIST_WIDE(X) X(1, 4) X(2, 4)

/* All shapes of tiles of dot products, as X(rows, columns). */
#define GG_DOT_LIST_OF(X, C) X(1, C) X(2, C) X(3, C)
#define GG_DOT_LIST(X) GG_DOT_LIST_OF(X, 1) GG_DOT_LIST_OF(X, 2) GG_DOT_LIST_OF(X, 3) GG_DOT_LIST_OF(X, 4)

/* ---- sixteen lanes ---- */

typedef struct lanes_f {
    __m256 half[2];
} lanes_f;
typedef struct lanes_i {
    __m256i half[2];
} lanes_i;
typedef lanes_i lanes_mask;

static inline lanes_f lanes_load(const float *p) { return (lanes_f){{_mm256_load_ps(p), _mm256_load_ps(p + 8)}}; }
static inline void lanes_store(float *p, lanes_f v) {
    _mm256_store_ps(p, v.half[0]);
    _mm256_store_ps(p + 8, v.half[1]);
}
static inline lanes_f lanes_load_any(const float *p) { return (lanes_f){{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}}; }
static inline void lanes_store_any(float *p, lanes_f v) {
    _mm256_storeu_ps(p, v.half[0]);
    _mm256_storeu_ps(p + 8, v.half[1]);
}
/* Mask of the lanes in [from, from + 8) that are below n. */
static inline __m256i below(int n, int from) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n - from), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline lanes_f lanes_load_part(const float *p, int n) {
    return (lanes_f){{_mm256_maskload_ps(p, below(n, 0)), _mm256_maskload_ps(p + 8, below(n, 8))}};
}
static inline void lanes_store_part(float *p, int n, lanes_f v) {
    _mm256_maskstore_ps(p, below(n, 0), v.half[0]);
    _mm256_maskstore_ps(p + 8, below(n, 8), v.half[1]);
}
static inline lanes_f lanes_first(int n, lanes_f v) {
    return (lanes_f){{_mm256_and_ps(v.half[0], _mm256_castsi256_ps(below(n, 0))),
                      _mm256_and_ps(v.half[1], _mm256_castsi256_ps(below(n, 8)))}};
}
static inline lanes_f lanes_set(float value) {
    const __m256 v = _mm256_set1_ps(value);
    return (lanes_f){{v, v}};
}
static inline lanes_i lanes_set_int(int32_t value) {
    const __m256i v = _mm256_set1_epi32(value);
    return (lanes_i){{v, v}};
}
static inline lanes_f lanes_add(lanes_f a, lanes_f b) {
    return (lanes_f){{_mm256_add_ps(a.half[0], b.half[0]), _mm256_add_ps(a.half[1], b.half[1])}};
}
static inline lanes_f lanes_subtract(lanes_f a, lanes_f b) {
    return (lanes_f){{_mm256_sub_ps(a.half[0], b.half[0]), _mm256_sub_ps(a.half[1], b.half[1])}};
}
static inline lanes_f lanes_multiply(lanes_f a, lanes_f b) {
    return (lanes_f){{_mm256_mul_ps(a.half[0], b.half[0]), _mm256_mul_ps(a.half[1], b.half[1])}};
}
static inline lanes_f lanes_multiply_add(lanes_f a, lanes_f b, lanes_f c) {
    return (lanes_f){
        {_mm256_fmadd_ps(a.half[0], b.half[0], c.half[0]), _mm256_fmadd_ps(a.half[1], b.half[1], c.half[1])}};
}
static inline __m256i wins_half(__m256 a, __m256 b) {
    return _mm256_castps_si256(_mm256_or_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ), _mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}
static inline lanes_mask lanes_wins(lanes_f a, lanes_f b) {
    return (lanes_mask){{wins_half(a.half[0], b.half[0]), wins_half(a.half[1], b.half[1])}};
}
static inline lanes_mask lanes_positive(lanes_f a) {
    const __m256 zero = _mm256_setzero_ps();
    return (lanes_mask){{_mm256_castps_si256(_mm256_cmp_ps(a.half[0], zero, _CMP_NLE_UQ)),
                         _mm256_castps_si256(_mm256_cmp_ps(a.half[1], zero, _CMP_NLE_UQ))}};
}
static inline lanes_mask lanes_equal(lanes_i a, lanes_i b) {
    return (lanes_mask){{_mm256_cmpeq_epi32(a.half[0], b.half[0]), _mm256_cmpeq_epi32(a.half[1], b.half[1])}};
}
static inline __m256 choose_half(__m256i m, __m256 yes, __m256 no) {
    return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(m));
}
static inline lanes_f lanes_choose(lanes_mask m, lanes_f yes, lanes_f no) {
    return (lanes_f){
        {choose_half(m.half[0], yes.half[0], no.half[0]), choose_half(m.half[1], yes.half[1], no.half[1])}};
}
static inline lanes_i lanes_choose_int(lanes_mask m, lanes_i yes, lanes_i no) {
    return (lanes_i){{_mm256_blendv_epi8(no.half[0], yes.half[0], m.half[0]),
                      _mm256_blendv_epi8(no.half[1], yes.half[1], m.half[1])}};
}
static inline lanes_f lanes_select(lanes_mask m, lanes_f v) {
    return (lanes_f){{_mm256_and_ps(_mm256_castsi256_ps(m.half[0]), v.half[0]),
                      _mm256_and_ps(_mm256_castsi256_ps(m.half[1]), v.half[1])}};
}
static inline lanes_i lanes_load_u8(const uint8_t *p) {
    return (lanes_i){{_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)),
                      _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8)))}};
}
static inline void lanes_store_u8(uint8_t *p, lanes_i v) {
    const __m128i low = _mm_packus_epi32(_mm256_castsi256_si128(v.half[0]), _mm256_extracti128_si256(v.half[0], 1));
    const __m128i high = _mm_packus_epi32(_mm256_castsi256_si128(v.half[1]), _mm256_extracti128_si256(v.half[1], 1));
    _mm_storeu_si128((__m128i *)p, _mm_packus_epi16(low, high));
}

static inline float lanes_total(lanes_f v) {
    const __m256 eight = _mm256_add_ps(v.half[0], v.half[1]);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
static inline lanes_f lanes_max(lanes_f a, lanes_f b) {
    return (lanes_f){{_mm256_max_ps(a.half[0], b.half[0]), _mm256_max_ps(a.half[1], b.half[1])}};
}
static inline lanes_f lanes_size(lanes_f v) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (lanes_f){{_mm256_andnot_ps(sign, v.half[0]), _mm256_andnot_ps(sign, v.half[1])}};
}
static inline lanes_f lanes_first_or(int n, lanes_f v, lanes_f other) {
    return (lanes_f){{_mm256_blendv_ps(other.half[0], v.half[0], _mm256_castsi256_ps(below(n, 0))),
                      _mm256_blendv_ps(other.half[1], v.half[1], _mm256_castsi256_ps(below(n, 8)))}};
}

/* ---- a part of the lanes ---- */

#define PART 8
typedef __m256 part_f;
static inline part_f part_load(const float *p) { return _mm256_loadu_ps(p); }
static inline part_f part_load_first(const float *p, int n) { return _mm256_maskload_ps(p, below(n, 0)); }
static inline void part_store(float *p, part_f v) { _mm256_storeu_ps(p, v); }
static inline void part_store_first(float *p, int n, part_f v) { _mm256_maskstore_ps(p, below(n, 0), v); }
static inline part_f part_set(float value) { return _mm256_set1_ps(value); }
static inline part_f part_add(part_f a, part_f b) { return _mm256_add_ps(a, b); }
static inline part_f part_subtract(part_f a, part_f b) { return _mm256_sub_ps(a, b); }
static inline part_f part_multiply(part_f a, part_f b) { return _mm256_mul_ps(a, b); }
static inline part_f part_multiply_add(part_f a, part_f b, part_f c) { return _mm256_fmadd_ps(a, b, c); }
static inline part_f part_relu(part_f a) {
    return _mm256_and_ps(a, _mm256_cmp_ps(a, _mm256_setzero_ps(), _CMP_NLE_UQ));
}

/* ---- vectors ---- */

GG_INLINE vec load_narrow(const uint16_t *p) {
    return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
}

GG_INLINE words rounded_words(vec v) {
    const __m256i bits = (__m256i)v, odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    return (words)_mm256_blendv_epi8(sum, quiet, (__m256i)_mm256_cmp_ps((__m256)v, (__m256)v, _CMP_UNORD_Q));
}

GG_INLINE half_value narrowed(words w) {
    const __m256i upper = _mm256_srli_epi32((__m256i)w, 16), packed = _mm256_packus_epi32(upper, upper);
    return (half_value)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}

GG_INLINE void stream(float *p, vec v) { _mm256_stream_ps(p, (__m256)v); }

GG_INLINE void stream_narrow(uint16_t *p, half_value v) { _mm_stream_si128((__m128i *)p, (__m128i)v); }

GG_INLINE bool any_bit(words w) { return !_mm256_testz_si256((__m256i)w, (__m256i)w); }

GG_INLINE vec square_root(vec v) { return (vec)_mm256_sqrt_ps((__m256)v); }

GG_INLINE long_words low_product(long_words a, long_words b) {
    return (long_words)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}

GG_INLINE void fence(void) { _mm_sfence(); }

GG_INLINE floats masked(floats y, floats dy) {
    return (floats)_mm256_and_ps(_mm256_cmp_ps((__m256)y, _mm256_setzero_ps(), _CMP_NLE_UQ), (__m256)dy);
}

GG_INLINE void store_totals(float *to, floats a, floats b, floats c, floats d) {
    const __m256 ab = _mm256_hadd_ps((__m256)a, (__m256)b), cd = _mm256_hadd_ps((__m256)c, (__m256)d);
    const __m256 abcd = _mm256_hadd_ps(ab, cd);
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)));
}

/* ---- transposition ---- */

#define TURN_SIDE 8

GG_INLINE void turn_square(const float *from, int64_t from_row, float *to, int64_t to_row) {
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
