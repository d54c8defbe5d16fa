/* Sixteen floats or integers as one value, for the kernels whose loops the compiler does not turn into good vector
 * code. The plain arrays at the end say what each function does; the others only do it faster. Pointers to floats
 * are aligned to 64 bytes (those of _any and _part need not be), pointers to saved places need not be. */
#ifndef GG_CPU_SIMD_LANES_H
#define GG_CPU_SIMD_LANES_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)

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
/* a > b, or a is NaN */
static inline lanes_mask lanes_wins(lanes_f a, lanes_f b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) | _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}
/* !(a <= 0): positive or NaN */
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

#elif defined(__AVX2__)

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
/* All bits in the lanes [from, from + 8) that are below n. */
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

#else

typedef struct lanes_f {
    float lane[16];
} lanes_f;
typedef struct lanes_i {
    int32_t lane[16];
} lanes_i;
typedef lanes_i lanes_mask; /* 0 or 1 */

#define EACH_LANE for (int i = 0; i < 16; ++i)

static inline lanes_f lanes_load(const float *p) {
    lanes_f v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void lanes_store(float *p, lanes_f v) { memcpy(p, &v, sizeof v); }
static inline lanes_f lanes_load_any(const float *p) { return lanes_load(p); }
static inline void lanes_store_any(float *p, lanes_f v) { lanes_store(p, v); }
/* The first n lanes, zeros behind them. */
static inline lanes_f lanes_load_part(const float *p, int n) {
    lanes_f v = {{0}};
    memcpy(&v, p, (size_t)n * sizeof(float));
    return v;
}
static inline void lanes_store_part(float *p, int n, lanes_f v) { memcpy(p, &v, (size_t)n * sizeof(float)); }
static inline lanes_f lanes_first(int n, lanes_f v) {
    EACH_LANE v.lane[i] = i < n ? v.lane[i] : 0.0f;
    return v;
}
static inline lanes_f lanes_set(float value) {
    lanes_f v = {{0}};
    EACH_LANE v.lane[i] = value;
    return v;
}
static inline lanes_i lanes_set_int(int32_t value) {
    lanes_i v = {{0}};
    EACH_LANE v.lane[i] = value;
    return v;
}
static inline lanes_f lanes_add(lanes_f a, lanes_f b) {
    EACH_LANE a.lane[i] += b.lane[i];
    return a;
}
static inline lanes_f lanes_subtract(lanes_f a, lanes_f b) {
    EACH_LANE a.lane[i] -= b.lane[i];
    return a;
}
static inline lanes_f lanes_multiply(lanes_f a, lanes_f b) {
    EACH_LANE a.lane[i] *= b.lane[i];
    return a;
}
static inline lanes_f lanes_multiply_add(lanes_f a, lanes_f b, lanes_f c) {
    EACH_LANE c.lane[i] += a.lane[i] * b.lane[i];
    return c;
}
static inline lanes_mask lanes_wins(lanes_f a, lanes_f b) {
    lanes_mask m;
    EACH_LANE m.lane[i] = a.lane[i] > b.lane[i] || a.lane[i] != a.lane[i];
    return m;
}
static inline lanes_mask lanes_positive(lanes_f a) {
    lanes_mask m;
    EACH_LANE m.lane[i] = !(a.lane[i] <= 0.0f);
    return m;
}
static inline lanes_mask lanes_equal(lanes_i a, lanes_i b) {
    EACH_LANE a.lane[i] = a.lane[i] == b.lane[i];
    return a;
}
static inline lanes_f lanes_choose(lanes_mask m, lanes_f yes, lanes_f no) {
    EACH_LANE no.lane[i] = m.lane[i] ? yes.lane[i] : no.lane[i];
    return no;
}
static inline lanes_i lanes_choose_int(lanes_mask m, lanes_i yes, lanes_i no) {
    EACH_LANE no.lane[i] = m.lane[i] ? yes.lane[i] : no.lane[i];
    return no;
}
static inline lanes_f lanes_select(lanes_mask m, lanes_f v) {
    EACH_LANE v.lane[i] = m.lane[i] ? v.lane[i] : 0.0f;
    return v;
}
static inline lanes_i lanes_load_u8(const uint8_t *p) {
    lanes_i v = {{0}};
    EACH_LANE v.lane[i] = p[i];
    return v;
}
static inline void lanes_store_u8(uint8_t *p, lanes_i v) { EACH_LANE p[i] = (uint8_t)v.lane[i]; }

#undef EACH_LANE

#endif

/* The sum of all lanes: halves, quarters and so on are added to each other, at every level the same. The larger of two
 * lanes: of NaN and a number either. lanes_size: without the sign. */
#if defined(__AVX512F__)
static inline float lanes_total(lanes_f v) { return _mm512_reduce_add_ps(v); }
static inline lanes_f lanes_max(lanes_f a, lanes_f b) { return _mm512_max_ps(a, b); }
static inline lanes_f lanes_size(lanes_f v) { return _mm512_abs_ps(v); }
static inline lanes_f lanes_first_or(int n, lanes_f v, lanes_f other) {
    return _mm512_mask_mov_ps(other, (__mmask16)((1u << n) - 1u), v);
}
#elif defined(__AVX2__)
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
#else
static inline float lanes_total(lanes_f v) {
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) v.lane[i] += v.lane[i + width];
    return v.lane[0];
}
static inline lanes_f lanes_max(lanes_f a, lanes_f b) {
    for (int i = 0; i < 16; ++i) a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
    return a;
}
static inline lanes_f lanes_size(lanes_f v) {
    for (int i = 0; i < 16; ++i) v.lane[i] = v.lane[i] < 0 ? -v.lane[i] : v.lane[i];
    return v;
}
/* The first n lanes of v, behind them those of other. */
static inline lanes_f lanes_first_or(int n, lanes_f v, lanes_f other) {
    for (int i = n; i < 16; ++i) v.lane[i] = other.lane[i];
    return v;
}
#endif

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
