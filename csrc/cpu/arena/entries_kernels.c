/* Entries of chosen elements, read a vector at a time while each follows the previous one. */
#include "cpu/simd/simd.h"

/* Bits of a unit that hold the place; the two flags are above. */
GG_INLINE unsigned place_bits(const bool wide) { return wide ? 14 : 6; }

GG_INLINE uint32_t all_ones(const bool wide) { return (1u << place_bits(wide)) - 1u; }

GG_INLINE uint32_t unit_at(const gg_entries_args *a, const bool wide, size_t i) {
    uint16_t unit;
    if (!wide) return a->at[i];
    memcpy(&unit, a->at + 2 * i, sizeof unit);
    return unit;
}

/* Reads entries one by one, from unit `first` on. */
GG_INLINE size_t read_singly(gg_entries_args *a, const bool wide, size_t first) {
    const unsigned bits = place_bits(wide);
    uint32_t start = a->start, least = a->least;
    size_t i = first;
    for (; i < a->n; ++i) {
        const uint32_t unit = unit_at(a, wide, i), place = unit & all_ones(wide);
        const uint32_t begins = -(unit >> (bits + 1)), negative = unit >> bits & 1; /* the former: all bits or none */
        if (place >= a->bin || place == all_ones(wide) || place < (least & ~begins)) break;
        start += a->bin & begins;
        least = place + 1;
        a->element[i] = (start + place) | negative * GG_ELEMENT_NEGATIVE;
    }
    a->start = start;
    a->least = least;
    return i;
}

#if defined(__AVX512F__)

#define VECTOR ((size_t)16)

typedef __m512i entries_v;

GG_INLINE entries_v entries_set(uint32_t one) { return _mm512_set1_epi32((int)one); }

/* Reads the vector at unit i, with any content. Returns a bit for each unit that is no entry. *first: a bit for each
 * unit that begins a bin. *places: the places of the previous vector, then its own. */
GG_INLINE unsigned read_vector(const gg_entries_args *a, const bool wide, size_t i, uint32_t start, entries_v *places,
                               unsigned *first) {
    const unsigned bits = place_bits(wide);
    const __m512i zero = _mm512_setzero_si512();
    const __m512i units = wide ? _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(a->at + 2 * i)))
                               : _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(a->at + i)));
    const __m512i place = _mm512_and_si512(units, entries_set(all_ones(wide)));
    const __m512i before = _mm512_alignr_epi32(place, *places, 15);
    const __mmask16 begins = _mm512_test_epi32_mask(units, entries_set(2u << bits));
    const __mmask16 follows = begins | _mm512_cmpgt_epi32_mask(place, before);
    const uint32_t limit = a->bin < all_ones(wide) ? a->bin : all_ones(wide);
    /* For each entry, the advance by all bins that have begun up to it. */
    __m512i sum = _mm512_maskz_mov_epi32(begins, entries_set(a->bin));
    sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, zero, 15));
    sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, zero, 14));
    sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, zero, 12));
    sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, zero, 8));
    sum = _mm512_add_epi32(_mm512_add_epi32(sum, place), entries_set(start));
    /* sum | (the flag & the top bit) */
    _mm512_storeu_si512(a->element + i, _mm512_ternarylogic_epi32(sum, _mm512_slli_epi32(units, 31 - bits),
                                                                  entries_set(GG_ELEMENT_NEGATIVE), 0xf8));
    *places = place;
    *first = begins;
    return (uint16_t) ~(follows & _mm512_cmplt_epi32_mask(place, entries_set(limit)));
}

#elif defined(__AVX2__)

#define VECTOR ((size_t)8)

typedef __m256i entries_v;

GG_INLINE entries_v entries_set(uint32_t one) { return _mm256_set1_epi32((int)one); }

/* The lanes of v moved up by n; zeros enter. */
GG_INLINE __m256i higher(__m256i v, const int n) {
    const __m256i lanes = _mm256_sub_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(n));
    return _mm256_andnot_si256(_mm256_srai_epi32(lanes, 31), _mm256_permutevar8x32_epi32(v, lanes));
}

GG_INLINE unsigned entries_bits(__m256i lanes) { return (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(lanes)); }

/* Reads the vector at unit i, with any content. Returns a bit for each unit that is no entry. *first: a bit for each
 * unit that begins a bin. *places: the places of the previous vector, then its own. */
GG_INLINE unsigned read_vector(const gg_entries_args *a, const bool wide, size_t i, uint32_t start, entries_v *places,
                               unsigned *first) {
    const unsigned bits = place_bits(wide);
    const __m256i units = wide ? _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(a->at + 2 * i)))
                               : _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(a->at + i)));
    const __m256i place = _mm256_and_si256(units, entries_set(all_ones(wide)));
    const __m256i last = _mm256_permutevar8x32_epi32(*places, _mm256_set1_epi32(7));
    const __m256i before = _mm256_blend_epi32(higher(place, 1), last, 1);
    const __m256i begins = _mm256_srai_epi32(_mm256_slli_epi32(units, 30 - (int)bits), 31);
    const __m256i follows = _mm256_or_si256(begins, _mm256_cmpgt_epi32(place, before));
    const uint32_t limit = a->bin < all_ones(wide) ? a->bin : all_ones(wide);
    /* For each entry, the advance by all bins that have begun up to it. */
    __m256i sum = _mm256_and_si256(begins, entries_set(a->bin));
    sum = _mm256_add_epi32(sum, higher(sum, 1));
    sum = _mm256_add_epi32(sum, higher(sum, 2));
    sum = _mm256_add_epi32(sum, higher(sum, 4));
    sum = _mm256_add_epi32(_mm256_add_epi32(sum, place), entries_set(start));
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(units, 31 - (int)bits), entries_set(GG_ELEMENT_NEGATIVE));
    _mm256_storeu_si256((__m256i *)(a->element + i), _mm256_or_si256(sum, sign));
    *places = place;
    *first = entries_bits(begins);
    return 0xffu & ~entries_bits(_mm256_and_si256(follows, _mm256_cmpgt_epi32(entries_set(limit), place)));
}

#endif

#ifdef VECTOR

GG_INLINE size_t read_entries(gg_entries_args *a, const bool wide) {
    uint32_t start = a->start;
    unsigned wrong = 0;
    size_t i = 0, read = 0;
    entries_v places = entries_set(a->least - 1);
    for (; wrong == 0 && i + VECTOR <= a->n; i += VECTOR) {
        unsigned first;
        wrong = read_vector(a, wide, i, start, &places, &first);
        const unsigned right = wrong != 0 ? (unsigned)__builtin_ctz(wrong) : (unsigned)VECTOR;
        start += a->bin * (uint32_t)__builtin_popcount(first & ((1u << right) - 1u));
        read += right;
    }
    if (read > 0) a->least = (unit_at(a, wide, read - 1) & all_ones(wide)) + 1;
    a->start = start;
    return wrong != 0 ? read : read_singly(a, wide, read);
}

#else

GG_INLINE size_t read_entries(gg_entries_args *a, const bool wide) { return read_singly(a, wide, 0); }

#endif

size_t GG_VARIANT(gg_cpu_read_entries)(gg_entries_args *args) {
    return args->wide ? read_entries(args, true) : read_entries(args, false);
}
