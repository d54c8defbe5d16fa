/* AdaComp's choice: of each bin the greatest |G|, then the elements whose |H| is not below it. This file is compiled
 * without fused products, so that all levels choose the same. */
#include "cpu/isa/isa.h"
#include "cpu/isa/math.h"
#include "cpu/isa/vectors.h"

#define MAGNITUDE 0x7fffffffu
#define INFINITE 0x7f800000u

/* Of the elements of a bin the bits of |H|, and above them the sign of G; 0 where G is 0. */
typedef struct magnitudes {
    uint32_t of[GG_MOST_CHOSEN_BIN] __attribute__((aligned(64)));
} magnitudes;

/* What G comes from: residue and gradient, the same with a gradient that is zeroed, the residue alone, or a difference.
 * A constant where it is used. */
typedef enum choose_source { FROM_GRADIENT = 0, FROM_CLEARED, FROM_RESIDUE, FROM_DIFFERENCE } choose_source;

/* What a marked element has without what is owed. */
GG_INLINE float without_owed(float residue, float owed) {
    return residue - float_of_bits((bits_of_float(residue) & ~MAGNITUDE) | bits_of_float(owed));
}

GG_INLINE bool is_marked(const unsigned char *marks, size_t i) { return marks[i / 8] >> i % 8 & 1; }

GG_INLINE bool has_gradient(choose_source source) { return source == FROM_GRADIENT || source == FROM_CLEARED; }

/* Element i of a bin that begins at `at`: |H| into h; the bits of |G|. marks: the bin's, or NULL. */
GG_INLINE uint32_t measure_one(const gg_choose_args *a, choose_source source, const unsigned char *marks, size_t at,
                               size_t i, magnitudes *h) {
    float d, g;
    if (source == FROM_DIFFERENCE) {
        g = d = a->value[at + i] - a->known[at + i];
    } else {
        d = has_gradient(source) ? a->scale * a->gradient[at + i] : 0.0f;
        if (source == FROM_CLEARED) a->clear[at + i] = 0.0f;
        float before = a->residue[at + i];
        if (marks != NULL && is_marked(marks, i)) before = without_owed(before, a->owed);
        a->residue[at + i] = g = before + d;
    }
    const uint32_t bits = bits_of_float(g), size = bits & MAGNITUDE;
    h->of[i] = size > 0 ? (bits_of_float(g + (a->factor - 1) * d) & MAGNITUDE) | (bits & ~MAGNITUDE) : 0;
    return size;
}

/* What is said of a place that is chosen. */
static inline uint16_t entry_of(uint32_t h, size_t place) { return (uint16_t)(place | (h >> 17 & GG_CHOSEN_NEGATIVE)); }

#if defined(__AVX2__)

/* Requests what is read so many elements later. Between two bins, while elements are collected, nothing else does, and
 * the hardware does not go from one page to the next. */
#define AHEAD 768

GG_INLINE void request(const gg_choose_args *a, choose_source source, size_t i) {
    if (source == FROM_DIFFERENCE) {
        __builtin_prefetch(a->value + i + AHEAD);
        __builtin_prefetch(a->known + i + AHEAD);
        return;
    }
    __builtin_prefetch(a->residue + i + AHEAD, 1);
    if (has_gradient(source)) __builtin_prefetch(a->gradient + i + AHEAD, source == FROM_CLEARED);
}

#endif

#if defined(__AVX512F__)

/* The same of the elements in `mask`: what belongs to them in `magnitudes`; and *greatest with |G|. */
GG_INLINE __m512i measure_vector(const gg_choose_args *a, choose_source source, size_t i, __mmask16 mask,
                                 const bool has_marks, __mmask16 marked, __m512i *greatest) {
    const __m512i magnitude = _mm512_set1_epi32((int)MAGNITUDE);
    __m512 d = _mm512_setzero_ps(), g;
    request(a, source, i);
    if (source == FROM_DIFFERENCE) {
        g = d = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, a->value + i), _mm512_maskz_loadu_ps(mask, a->known + i));
    } else {
        if (has_gradient(source))
            d = _mm512_mul_ps(_mm512_set1_ps(a->scale), _mm512_maskz_loadu_ps(mask, a->gradient + i));
        if (source == FROM_CLEARED) _mm512_mask_storeu_ps(a->clear + i, mask, _mm512_setzero_ps());
        __m512 before = _mm512_maskz_loadu_ps(mask, a->residue + i);
        if (has_marks) {
            const __m512i owed = _mm512_castps_si512(_mm512_set1_ps(a->owed));
            const __m512i sent = /* ~magnitude & before | owed */
                _mm512_ternarylogic_epi32(magnitude, _mm512_castps_si512(before), owed, 0xae);
            before = _mm512_mask_sub_ps(before, marked, before, _mm512_castsi512_ps(sent));
        }
        g = _mm512_add_ps(before, d);
        _mm512_mask_storeu_ps(a->residue + i, mask, g);
    }
    const __m512i bits = _mm512_castps_si512(g), size = _mm512_and_si512(bits, magnitude);
    *greatest = _mm512_max_epu32(*greatest, size);
    const __m512 wanted = _mm512_add_ps(g, _mm512_mul_ps(_mm512_set1_ps(a->factor - 1), d));
    /* Magnitude of the one, sign of the other. */
    return _mm512_maskz_ternarylogic_epi32(_mm512_test_epi32_mask(size, size), magnitude, _mm512_castps_si512(wanted),
                                           bits, 0xca);
}

GG_INLINE __mmask16 first_lanes(size_t n) { return (__mmask16)(n < 16 ? (1u << n) - 1u : 0xffffu); }

/* Writes the places of a vector that are chosen; which these are. A whole vector is written where there is room for it.
 */
GG_INLINE __mmask16 collect_vector(__m512i h, __m512i twice_greatest, __m512i at, size_t room, uint16_t *place) {
    const __mmask16 chosen = _mm512_cmpge_epu32_mask(_mm512_add_epi32(h, h), twice_greatest); /* without the sign */
    const __m512i negative = _mm512_set1_epi32(GG_CHOSEN_NEGATIVE);
    const __m512i signs = _mm512_srli_epi32(h, 17);
    const __m512i places = _mm512_maskz_compress_epi32(
        chosen, _mm512_ternarylogic_epi32(at, signs, negative, 0xf8)); /* at | (signs & n) */
    if (room >= 16) _mm256_storeu_si256((__m256i *)place, _mm512_cvtepi32_epi16(places));
    else _mm512_mask_cvtepi32_storeu_epi16(place, first_lanes((size_t)__builtin_popcount(chosen)), places);
    return chosen;
}

#define FIRST_PLACES _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)

GG_INLINE __mmask16 marks_at(const unsigned char *marks, size_t i) {
    uint16_t word = 0;
    if (marks != NULL) memcpy(&word, marks + i / 8, sizeof word);
    return word;
}

GG_INLINE uint32_t choose_measure(const gg_choose_args *a, choose_source source, const unsigned char *marks, size_t at,
                                  size_t n, magnitudes *h) {
    __m512i greatest = _mm512_setzero_si512();
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm512_store_si512(h->of + i,
                           measure_vector(a, source, at + i, 0xffff, marks != NULL, marks_at(marks, i), &greatest));
    if (i < n)
        _mm512_store_si512(h->of + i, measure_vector(a, source, at + i, first_lanes(n - i), marks != NULL,
                                                     marks_at(marks, i), &greatest));
    return (uint32_t)_mm512_reduce_max_epu32(greatest);
}

/* Lanes behind the bin have |H| = 0. */
GG_INLINE size_t choose_collect(const magnitudes *h, size_t n, uint32_t greatest, size_t room, uint16_t *place,
                                unsigned char *marks) {
    const __m512i least = _mm512_set1_epi32((int)(2 * greatest));
    __m512i at = FIRST_PLACES;
    size_t count = 0;
    const bool enough = room >= n + 16; /* behind every element that can be chosen: so it is in all but the last bins */
    for (size_t i = 0; i < n; i += 16) {
        const uint16_t chosen =
            collect_vector(_mm512_load_si512(h->of + i), least, at, enough ? 16 : room - count, place + count);
        if (marks != NULL) memcpy(marks + i / 8, &chosen, sizeof chosen);
        count += (size_t)__builtin_popcount(chosen);
        at = _mm512_add_epi32(at, _mm512_set1_epi32(16));
    }
    return count;
}

#elif defined(__AVX2__)

GG_INLINE __m256i measure_vector(const gg_choose_args *a, choose_source source, const bool has_marks, unsigned marked,
                                 size_t i, uint32_t *h) {
    const __m256i magnitude = _mm256_set1_epi32((int)MAGNITUDE);
    __m256 d = _mm256_setzero_ps(), g;
    request(a, source, i);
    if (source == FROM_DIFFERENCE) {
        g = d = _mm256_sub_ps(_mm256_loadu_ps(a->value + i), _mm256_loadu_ps(a->known + i));
    } else {
        if (has_gradient(source)) d = _mm256_mul_ps(_mm256_set1_ps(a->scale), _mm256_loadu_ps(a->gradient + i));
        if (source == FROM_CLEARED) _mm256_storeu_ps(a->clear + i, _mm256_setzero_ps());
        const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        const __m256i lanes = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)marked), bits), bits);
        const __m256i owed = _mm256_castps_si256(_mm256_set1_ps(a->owed));
        __m256 before = _mm256_loadu_ps(a->residue + i);
        const __m256i sent = _mm256_or_si256(_mm256_andnot_si256(magnitude, _mm256_castps_si256(before)), owed);
        if (has_marks) before = _mm256_sub_ps(before, _mm256_castsi256_ps(_mm256_and_si256(sent, lanes)));
        g = _mm256_add_ps(before, d);
        _mm256_storeu_ps(a->residue + i, g);
    }
    const __m256i bits = _mm256_castps_si256(g), size = _mm256_and_si256(bits, magnitude);
    const __m256 wanted = _mm256_add_ps(g, _mm256_mul_ps(_mm256_set1_ps(a->factor - 1), d));
    const __m256i both =
        _mm256_or_si256(_mm256_and_si256(_mm256_castps_si256(wanted), magnitude), _mm256_andnot_si256(magnitude, bits));
    _mm256_store_si256((__m256i *)h, _mm256_andnot_si256(_mm256_cmpeq_epi32(size, _mm256_setzero_si256()), both));
    return size;
}

GG_INLINE uint32_t choose_measure(const gg_choose_args *a, choose_source source, const unsigned char *marks, size_t at,
                                  size_t n, magnitudes *h) {
    __m256i vector = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        vector = _mm256_max_epu32(
            vector, measure_vector(a, source, marks != NULL, marks != NULL ? marks[i / 8] : 0, at + i, h->of + i));
    __m128i four = _mm_max_epu32(_mm256_castsi256_si128(vector), _mm256_extracti128_si256(vector, 1));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
    uint32_t greatest = (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1)));
    for (; i < n; ++i) {
        const uint32_t size = measure_one(a, source, marks, at, i, h);
        greatest = size > greatest ? size : greatest;
    }
    return greatest;
}

/* Of each mask of eight the places that are set, four bits each, from the lowest on. */
static const uint32_t places_of[256] = {
    0x0,      0x0,       0x1,      0x10,      0x2,       0x20,      0x21,     0x210,     0x3,      0x30,
    0x31,     0x310,     0x32,     0x320,     0x321,     0x3210,    0x4,      0x40,      0x41,     0x410,
    0x42,     0x420,     0x421,    0x4210,    0x43,      0x430,     0x431,    0x4310,    0x432,    0x4320,
    0x4321,   0x43210,   0x5,      0x50,      0x51,      0x510,     0x52,     0x520,     0x521,    0x5210,
    0x53,     0x530,     0x531,    0x5310,    0x532,     0x5320,    0x5321,   0x53210,   0x54,     0x540,
    0x541,    0x5410,    0x542,    0x5420,    0x5421,    0x54210,   0x543,    0x5430,    0x5431,   0x54310,
    0x5432,   0x54320,   0x54321,  0x543210,  0x6,       0x60,      0x61,     0x610,     0x62,     0x620,
    0x621,    0x6210,    0x63,     0x630,     0x631,     0x6310,    0x632,    0x6320,    0x6321,   0x63210,
    0x64,     0x640,     0x641,    0x6410,    0x642,     0x6420,    0x6421,   0x64210,   0x643,    0x6430,
    0x6431,   0x64310,   0x6432,   0x64320,   0x64321,   0x643210,  0x65,     0x650,     0x651,    0x6510,
    0x652,    0x6520,    0x6521,   0x65210,   0x653,     0x6530,    0x6531,   0x65310,   0x6532,   0x65320,
    0x65321,  0x653210,  0x654,    0x6540,    0x6541,    0x65410,   0x6542,   0x65420,   0x65421,  0x654210,
    0x6543,   0x65430,   0x65431,  0x654310,  0x65432,   0x654320,  0x654321, 0x6543210, 0x7,      0x70,
    0x71,     0x710,     0x72,     0x720,     0x721,     0x7210,    0x73,     0x730,     0x731,    0x7310,
    0x732,    0x7320,    0x7321,   0x73210,   0x74,      0x740,     0x741,    0x7410,    0x742,    0x7420,
    0x7421,   0x74210,   0x743,    0x7430,    0x7431,    0x74310,   0x7432,   0x74320,   0x74321,  0x743210,
    0x75,     0x750,     0x751,    0x7510,    0x752,     0x7520,    0x7521,   0x75210,   0x753,    0x7530,
    0x7531,   0x75310,   0x7532,   0x75320,   0x75321,   0x753210,  0x754,    0x7540,    0x7541,   0x75410,
    0x7542,   0x75420,   0x75421,  0x754210,  0x7543,    0x75430,   0x75431,  0x754310,  0x75432,  0x754320,
    0x754321, 0x7543210, 0x76,     0x760,     0x761,     0x7610,    0x762,    0x7620,    0x7621,   0x76210,
    0x763,    0x7630,    0x7631,   0x76310,   0x7632,    0x76320,   0x76321,  0x763210,  0x764,    0x7640,
    0x7641,   0x76410,   0x7642,   0x76420,   0x76421,   0x764210,  0x7643,   0x76430,   0x76431,  0x764310,
    0x76432,  0x764320,  0x764321, 0x7643210, 0x765,     0x7650,    0x7651,   0x76510,   0x7652,   0x76520,
    0x76521,  0x765210,  0x7653,   0x76530,   0x76531,   0x765310,  0x76532,  0x765320,  0x765321, 0x7653210,
    0x7654,   0x76540,   0x76541,  0x765410,  0x76542,   0x765420,  0x765421, 0x7654210, 0x76543,  0x765430,
    0x765431, 0x7654310, 0x765432, 0x7654320, 0x7654321, 0x76543210};

/* A whole vector is written, however many are chosen: the places before it are no more than the elements before it. */
GG_INLINE size_t choose_collect(const magnitudes *h, size_t n, uint32_t greatest, size_t room, uint16_t *place,
                                unsigned char *marks) {
    (void)room;
    const __m256i least = _mm256_set1_epi32((int)greatest - 1); /* both are below 2^31 */
    const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28), low = _mm256_set1_epi32(7);
    const __m256i magnitude = _mm256_set1_epi32((int)MAGNITUDE), negative = _mm256_set1_epi32(GG_CHOSEN_NEGATIVE);
    __m128i at = _mm_setzero_si128();
    size_t count = 0, i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i own = _mm256_load_si256((const __m256i *)(h->of + i));
        const __m256i above = _mm256_cmpgt_epi32(_mm256_and_si256(own, magnitude), least);
        const __m256i signs = _mm256_and_si256(_mm256_srli_epi32(own, 17), negative);
        const unsigned chosen = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(above));
        const __m256i packed = _mm256_srlv_epi32(_mm256_set1_epi32((int)places_of[chosen]), shifts);
        const __m256i lanes = _mm256_and_si256(packed, low);
        const __m256i wide = _mm256_or_si256(lanes, _mm256_permutevar8x32_epi32(signs, lanes));
        const __m128i places = _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
        _mm_storeu_si128((__m128i *)(place + count), _mm_add_epi16(places, at));
        count += (size_t)__builtin_popcount(chosen);
        if (marks != NULL) marks[i / 8] = (unsigned char)chosen;
        at = _mm_add_epi16(at, _mm_set1_epi16(8));
    }
    if (marks != NULL && i < n) marks[i / 8] = 0;
    for (; i < n; ++i) {
        const bool chosen = (h->of[i] & MAGNITUDE) >= greatest;
        place[count] = entry_of(h->of[i], i);
        count += chosen;
        if (marks != NULL) marks[i / 8] |= (unsigned char)(chosen << i % 8);
    }
    return count;
}

#else

GG_INLINE uint32_t choose_measure(const gg_choose_args *a, choose_source source, const unsigned char *marks, size_t at,
                                  size_t n, magnitudes *h) {
    uint32_t greatest = 0;
    for (size_t i = 0; i < n; ++i) {
        const uint32_t size = measure_one(a, source, marks, at, i, h);
        greatest = size > greatest ? size : greatest;
    }
    return greatest;
}

/* Writes the places with |H| >= greatest, and gives how many these are. room: entries up to the end of all. */
GG_INLINE size_t choose_collect(const magnitudes *h, size_t n, uint32_t greatest, size_t room, uint16_t *place,
                                unsigned char *marks) {
    (void)room;
    size_t count = 0;
    if (marks != NULL) memset(marks, 0, (n + 7) / 8);
    for (size_t i = 0; i < n; ++i) {
        if ((h->of[i] & MAGNITUDE) < greatest) continue;
        place[count++] = entry_of(h->of[i], i);
        if (marks != NULL) marks[i / 8] |= (unsigned char)(1u << i % 8);
    }
    return count;
}

#endif

/* What is to be known of a bin that is chosen from. */
GG_INLINE void choose_record(const gg_choose_args *a, size_t bin, uint32_t greatest, uint16_t *place, size_t count) {
    a->greatest[bin] = greatest;
    if (place == NULL) return;
    a->chosen[bin] = (uint16_t)count;
    if (count > 0) *place |= GG_CHOSEN_FIRST;
}

#if defined(__AVX512F__)

/* Bins that four vectors hold, which stay in registers. */
#define SHORT_BIN 64

typedef struct short_bin {
    __m512i h[4], greatest; /* the latter in every lane */
} short_bin;

/* lanes: those of the bin's vectors. */
GG_INLINE short_bin short_measure(const gg_choose_args *a, choose_source source, const bool has_marks, size_t bin,
                                  uint64_t lanes) {
    short_bin it = {.greatest = _mm512_setzero_si512()};
    uint64_t marked = 0;
    if (has_marks) memcpy(&marked, a->marks + bin * sizeof marked, sizeof marked);
    for (size_t v = 0; v < 4; ++v)
        it.h[v] = measure_vector(a, source, bin * a->bin + 16 * v, (__mmask16)(lanes >> 16 * v), has_marks,
                                 (__mmask16)(marked >> 16 * v), &it.greatest);
    __m512i most = it.greatest;
    most = _mm512_max_epu32(most, _mm512_shuffle_i64x2(most, most, 0x4e));
    most = _mm512_max_epu32(most, _mm512_shuffle_i64x2(most, most, 0xb1));
    most = _mm512_max_epu32(most, _mm512_shuffle_epi32(most, 0x4e));
    it.greatest = _mm512_max_epu32(most, _mm512_shuffle_epi32(most, 0xb1));
    return it;
}

/* Each bin is measured before the one in front of it is chosen from: that the greatest of its vectors must be known
 * first takes longer than either. */
GG_INLINE size_t choose_short(const gg_choose_args *a, choose_source source, const bool has_marks) {
    const size_t bins = (a->n + a->bin - 1) / a->bin, last = a->n - (bins - 1) * a->bin;
    const uint64_t whole = UINT64_MAX >> (64 - a->bin), part = UINT64_MAX >> (64 - last);
    size_t entries = 0;
    short_bin next = short_measure(a, source, has_marks, 0, bins > 1 ? whole : part);
    for (size_t bin = 0; bin < bins; ++bin) {
        const short_bin it = next;
        const uint32_t greatest = (uint32_t)_mm_cvtsi128_si32(_mm512_castsi512_si128(it.greatest));
        const __m512i least = _mm512_add_epi32(it.greatest, it.greatest);
        const size_t room = a->n - entries;
        uint16_t *const place = a->place != NULL ? a->place + entries : NULL;
        __m512i places = FIRST_PLACES;
        uint64_t all = 0;
        size_t count = 0;
        if (bin + 1 < bins) next = short_measure(a, source, has_marks, bin + 1, bin + 2 < bins ? whole : part);
        for (size_t v = 0; v < 4 && place != NULL && greatest > 0 && greatest < INFINITE; ++v) {
            const __mmask16 chosen = collect_vector(it.h[v], least, places, room - count, place + count);
            count += (size_t)__builtin_popcount(chosen);
            all |= (uint64_t)chosen << 16 * v;
            places = _mm512_add_epi32(places, _mm512_set1_epi32(16));
        }
        if (has_marks) memcpy(a->marks + bin * sizeof all, &all, sizeof all);
        choose_record(a, bin, greatest, place, count);
        entries += count;
    }
    return entries;
}

#else

#define SHORT_BIN 0

GG_INLINE size_t choose_short(const gg_choose_args *a, choose_source source, const bool has_marks) {
    (void)a, (void)source, (void)has_marks;
    return 0;
}

#endif

GG_INLINE size_t choose_from(const gg_choose_args *args, choose_source source, const bool marked) {
    const gg_choose_args a = *args; /* a copy that no store can change */
    const size_t mark_bytes = gg_pack_mark_bytes(a.bin);
    magnitudes h;
    size_t entries = 0;
    if (a.n > 0 && a.bin <= SHORT_BIN) return choose_short(&a, source, marked);
    for (size_t at = 0, bin = 0; at < a.n; at += a.bin, ++bin) {
        const size_t n = a.n - at < a.bin ? a.n - at : a.bin, room = a.n - entries;
        uint16_t *const place = a.place != NULL ? a.place + entries : NULL;
        unsigned char *const marks = marked ? a.marks + bin * mark_bytes : NULL;
        const uint32_t greatest = choose_measure(&a, source, marks, at, n, &h);
        size_t count = 0;
        if (place != NULL && greatest > 0 && greatest < INFINITE)
            count = choose_collect(&h, n, greatest, room, place, marks);
        else if (marks != NULL) memset(marks, 0, mark_bytes);
        choose_record(&a, bin, greatest, place, count);
        entries += count;
    }
    return entries;
}

size_t GG_VARIANT(gg_cpu_choose_bins)(const gg_choose_args *args) {
    if (args->residue == NULL) return choose_from(args, FROM_DIFFERENCE, false);
    if (args->gradient == NULL)
        return args->marks == NULL ? choose_from(args, FROM_RESIDUE, false) : choose_from(args, FROM_RESIDUE, true);
    if (args->marks == NULL)
        return args->clear != NULL ? choose_from(args, FROM_CLEARED, false) : choose_from(args, FROM_GRADIENT, false);
    return args->clear != NULL ? choose_from(args, FROM_CLEARED, true) : choose_from(args, FROM_GRADIENT, true);
}
