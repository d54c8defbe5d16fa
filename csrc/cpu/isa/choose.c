/* AdaComp's choice: of each bin the greatest |G|, then the elements whose |H| is not below it. This file is compiled
 * without fused products, so that all levels choose the same. */
#include "cpu/isa/isa.h"
#include "cpu/isa/math.h"
#include "cpu/isa/vectors.h"

#define MAGNITUDE 0x7fffffffu
#define INFINITE 0x7f800000u

/* |H| of the elements of a bin, as bits. */
typedef struct magnitudes {
    uint32_t of[GG_MOST_CHOSEN_BIN] __attribute__((aligned(64)));
} magnitudes;

/* What G comes from: residue and gradient, the residue alone, or a difference. A constant where it is used. */
typedef enum choose_source { FROM_GRADIENT = 0, FROM_RESIDUE, FROM_DIFFERENCE } choose_source;

/* Element i of a bin that begins at `at`: |H| into h; the bits of |G|. */
GG_INLINE uint32_t measure_one(const gg_choose_args *a, choose_source source, size_t at, size_t i, magnitudes *h) {
    float d, g;
    if (source == FROM_DIFFERENCE) {
        g = d = a->value[at + i] - a->known[at + i];
    } else {
        d = source == FROM_GRADIENT ? a->scale * a->gradient[at + i] : 0.0f;
        a->residue[at + i] = g = a->residue[at + i] + d;
    }
    h->of[i] = bits_of_float(g + (a->factor - 1) * d) & MAGNITUDE;
    return bits_of_float(g) & MAGNITUDE;
}

#if defined(__AVX512F__)

/* The same of the elements in `mask`. */
GG_INLINE __m512i measure_vector(const gg_choose_args *a, choose_source source, size_t i, __mmask16 mask, uint32_t *h) {
    const __m512i magnitude = _mm512_set1_epi32((int)MAGNITUDE);
    __m512 d = _mm512_setzero_ps(), g;
    if (source == FROM_DIFFERENCE) {
        g = d = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, a->value + i), _mm512_maskz_loadu_ps(mask, a->known + i));
    } else {
        if (source == FROM_GRADIENT)
            d = _mm512_mul_ps(_mm512_set1_ps(a->scale), _mm512_maskz_loadu_ps(mask, a->gradient + i));
        g = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, a->residue + i), d);
        _mm512_mask_storeu_ps(a->residue + i, mask, g);
    }
    const __m512 wanted = _mm512_add_ps(g, _mm512_mul_ps(_mm512_set1_ps(a->factor - 1), d));
    _mm512_store_si512(h, _mm512_and_si512(_mm512_castps_si512(wanted), magnitude));
    return _mm512_and_si512(_mm512_castps_si512(g), magnitude);
}

GG_INLINE uint32_t choose_measure(const gg_choose_args *a, choose_source source, size_t at, size_t n, magnitudes *h) {
    __m512i greatest = _mm512_setzero_si512();
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        greatest = _mm512_max_epu32(greatest, measure_vector(a, source, at + i, 0xffff, h->of + i));
    if (i < n) {
        const __mmask16 rest = (__mmask16)((1u << (n - i)) - 1u);
        greatest = _mm512_max_epu32(greatest, measure_vector(a, source, at + i, rest, h->of + i));
    }
    return (uint32_t)_mm512_reduce_max_epu32(greatest);
}

/* A full vector of places fits where the elements before it were fewer or as many: a whole vector is written, however
 * many are chosen. */
GG_INLINE size_t choose_collect(const magnitudes *h, size_t n, uint32_t greatest, uint16_t *place) {
    const __m512i least = _mm512_set1_epi32((int)greatest);
    __m512i at = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    size_t count = 0, i = 0;
    for (; i + 16 <= n; i += 16) {
        const __mmask16 chosen = _mm512_cmpge_epu32_mask(_mm512_load_si512(h->of + i), least);
        const __m256i places = _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(chosen, at));
        _mm256_storeu_si256((__m256i *)(place + count), places);
        count += (size_t)__builtin_popcount(chosen);
        at = _mm512_add_epi32(at, _mm512_set1_epi32(16));
    }
    for (; i < n; ++i) {
        place[count] = (uint16_t)i;
        count += h->of[i] >= greatest;
    }
    return count;
}

#elif defined(__AVX2__)

GG_INLINE __m256i measure_vector(const gg_choose_args *a, choose_source source, size_t i, uint32_t *h) {
    const __m256i magnitude = _mm256_set1_epi32((int)MAGNITUDE);
    __m256 d = _mm256_setzero_ps(), g;
    if (source == FROM_DIFFERENCE) {
        g = d = _mm256_sub_ps(_mm256_loadu_ps(a->value + i), _mm256_loadu_ps(a->known + i));
    } else {
        if (source == FROM_GRADIENT) d = _mm256_mul_ps(_mm256_set1_ps(a->scale), _mm256_loadu_ps(a->gradient + i));
        g = _mm256_add_ps(_mm256_loadu_ps(a->residue + i), d);
        _mm256_storeu_ps(a->residue + i, g);
    }
    const __m256 wanted = _mm256_add_ps(g, _mm256_mul_ps(_mm256_set1_ps(a->factor - 1), d));
    _mm256_store_si256((__m256i *)h, _mm256_and_si256(_mm256_castps_si256(wanted), magnitude));
    return _mm256_and_si256(_mm256_castps_si256(g), magnitude);
}

GG_INLINE uint32_t choose_measure(const gg_choose_args *a, choose_source source, size_t at, size_t n, magnitudes *h) {
    __m256i vector = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + 8 <= n; i += 8) vector = _mm256_max_epu32(vector, measure_vector(a, source, at + i, h->of + i));
    __m128i four = _mm_max_epu32(_mm256_castsi256_si128(vector), _mm256_extracti128_si256(vector, 1));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
    uint32_t greatest = (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1)));
    for (; i < n; ++i) {
        const uint32_t size = measure_one(a, source, at, i, h);
        greatest = size > greatest ? size : greatest;
    }
    return greatest;
}

/* Few vectors have one that is chosen where bins are long. */
GG_INLINE size_t choose_collect(const magnitudes *h, size_t n, uint32_t greatest, uint16_t *place) {
    const __m256i least = _mm256_set1_epi32((int)greatest - 1); /* both are below 2^31 */
    size_t count = 0, i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i above = _mm256_cmpgt_epi32(_mm256_load_si256((const __m256i *)(h->of + i)), least);
        unsigned chosen = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(above));
        for (; chosen != 0; chosen &= chosen - 1) place[count++] = (uint16_t)(i + (size_t)__builtin_ctz(chosen));
    }
    for (; i < n; ++i) {
        place[count] = (uint16_t)i;
        count += h->of[i] >= greatest;
    }
    return count;
}

#else

GG_INLINE uint32_t choose_measure(const gg_choose_args *a, choose_source source, size_t at, size_t n, magnitudes *h) {
    uint32_t greatest = 0;
    for (size_t i = 0; i < n; ++i) {
        const uint32_t size = measure_one(a, source, at, i, h);
        greatest = size > greatest ? size : greatest;
    }
    return greatest;
}

/* Writes the places with |H| >= greatest, and gives how many there are. */
GG_INLINE size_t choose_collect(const magnitudes *h, size_t n, uint32_t greatest, uint16_t *place) {
    size_t count = 0;
    for (size_t i = 0; i < n; ++i)
        if (h->of[i] >= greatest) place[count++] = (uint16_t)i;
    return count;
}

#endif

GG_INLINE size_t choose_from(const gg_choose_args *args, choose_source source) {
    magnitudes h;
    size_t chosen = 0;
    for (size_t at = 0, bin = 0; at < args->n; at += args->bin, ++bin) {
        const size_t n = args->n - at < args->bin ? args->n - at : args->bin;
        const uint32_t greatest = choose_measure(args, source, at, n, &h);
        args->greatest[bin] = greatest;
        if (args->place == NULL) continue;
        size_t count = 0;
        if (greatest > 0 && greatest < INFINITE) count = choose_collect(&h, n, greatest, args->place + chosen);
        args->count[bin] = (uint16_t)count;
        chosen += count;
    }
    return chosen;
}

size_t GG_VARIANT(gg_cpu_choose_bins)(const gg_choose_args *args) {
    if (args->residue == NULL) return choose_from(args, FROM_DIFFERENCE);
    return args->gradient != NULL ? choose_from(args, FROM_GRADIENT) : choose_from(args, FROM_RESIDUE);
}
