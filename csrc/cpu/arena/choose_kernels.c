/* AdaComp's choice: finds the max |G| of each bin, then the elements whose |H| is at least that. Compiled without fused
 * products, so that all levels choose the same elements. */
#include "cpu/simd/math.h"
#include "cpu/simd/simd.h"

#define MAGNITUDE 0x7fffffffu
#define INFINITE 0x7f800000u

/* For each element of a bin: the bits of |H|, or 0 where G is 0. The sign of G is in the top bit, except with AVX2. */
typedef struct magnitudes {
    uint32_t of[GG_MAX_CHOSEN_BIN] __attribute__((aligned(64)));
} magnitudes;

/* A bin: the n elements of the parameter from `at` on, their marks or NULL, and where their places are written. room:
 * entries from there to the end of all. */
typedef struct one_bin {
    size_t at, n, room;
    unsigned char *marks;
    uint16_t *place;
} one_bin;

/* Source of G: residue and gradient, residue and a gradient to be cleared, the residue alone, or a difference. A
 * compile-time constant at each use. */
typedef enum choose_source { FROM_GRADIENT = 0, FROM_CLEARED, FROM_RESIDUE, FROM_DIFFERENCE } choose_source;

/* The residue of a marked element minus the owed amount. */
GG_INLINE float without_owed(float residue, float owed) {
    return residue - float_of_bits((bits_of_float(residue) & ~MAGNITUDE) | bits_of_float(owed));
}

GG_INLINE bool is_marked(const unsigned char *marks, size_t i) { return marks[i / 8] >> i % 8 & 1; }

GG_INLINE bool has_gradient(choose_source source) { return source == FROM_GRADIENT || source == FROM_CLEARED; }

/* Measures element i of a bin: |H| into h; returns the bits of |G|. */
GG_INLINE uint32_t measure_one(const gg_choose_args *a, choose_source source, const one_bin *bin, size_t i,
                               magnitudes *h) {
    const size_t at = bin->at;
    float d, g;
    if (source == FROM_DIFFERENCE) {
        g = d = a->value[at + i] - a->known[at + i];
    } else {
        d = has_gradient(source) ? a->scale * a->gradient[at + i] : 0.0f;
        if (source == FROM_CLEARED) a->clear[at + i] = 0.0f;
        float before = a->residue[at + i];
        if (bin->marks != NULL && is_marked(bin->marks, i)) before = without_owed(before, a->owed);
        a->residue[at + i] = g = before + d;
    }
    const uint32_t bits = bits_of_float(g), size = bits & MAGNITUDE;
    h->of[i] = size > 0 ? (bits_of_float(g + (a->factor - 1) * d) & MAGNITUDE) | (bits & ~MAGNITUDE) : 0;
    return size;
}

/* Entry of a chosen place; the top bit of `sign` is that of G. */
GG_INLINE uint16_t entry_of(uint32_t sign, size_t place) {
    return (uint16_t)(place | (sign >> 17 & GG_CHOSEN_NEGATIVE));
}

#if defined(__AVX2__)

/* Prefetch distance in elements. Between two bins nothing else is read, and the hardware does not prefetch across
 * pages. */
#define AHEAD 768

GG_INLINE void request(const gg_choose_args *a, choose_source source, size_t i) {
    if (source == FROM_DIFFERENCE) {
        __builtin_prefetch(a->value + i + AHEAD);
        __builtin_prefetch(a->known + i + AHEAD);
        return;
    }
    __builtin_prefetch(a->residue + i + AHEAD, 1);
    if (source == FROM_CLEARED) __builtin_prefetch(a->gradient + i + AHEAD, 1);
    else if (has_gradient(source)) __builtin_prefetch(a->gradient + i + AHEAD);
}

#endif

#if defined(__AVX512F__)

/* Measures the elements in `mask`: stores their `magnitudes`, and updates *greatest with |G|. */
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
    /* Magnitude of |H|, sign of G. */
    return _mm512_maskz_ternarylogic_epi32(_mm512_test_epi32_mask(size, size), magnitude, _mm512_castps_si512(wanted),
                                           bits, 0xca);
}

GG_INLINE __mmask16 first_lanes(size_t n) { return (__mmask16)(n < 16 ? (1u << n) - 1u : 0xffffu); }

/* Writes the chosen places of a vector, and returns which these are. Writes a whole vector if there is room. */
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

GG_INLINE uint32_t choose_measure(const gg_choose_args *a, choose_source source, const one_bin *bin, magnitudes *h) {
    const unsigned char *const marks = bin->marks;
    const size_t at = bin->at, n = bin->n;
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

/* Lanes after the bin have |H| = 0. */
GG_INLINE size_t choose_collect(const gg_choose_args *a, choose_source source, const one_bin *bin, const magnitudes *h,
                                uint32_t greatest) {
    const size_t n = bin->n;
    const __m512i least = _mm512_set1_epi32((int)(2 * greatest));
    __m512i at = FIRST_PLACES;
    size_t count = 0;
    (void)a, (void)source;
    const bool enough = bin->room >= n + 16; /* room after the last candidate: true in all but the last bins */
    for (size_t i = 0; i < n; i += 16) {
        const uint16_t chosen = collect_vector(_mm512_load_si512(h->of + i), least, at, enough ? 16 : bin->room - count,
                                               bin->place + count);
        if (bin->marks != NULL) memcpy(bin->marks + i / 8, &chosen, sizeof chosen);
        count += (size_t)__builtin_popcount(chosen);
        at = _mm512_add_epi32(at, _mm512_set1_epi32(16));
    }
    return count;
}

/* Elements of the largest bin that fits in four vectors, which stay in registers. */
#define SHORT_BIN 64

typedef struct short_bin {
    __m512i h[4], greatest; /* greatest: in every lane */
} short_bin;

GG_INLINE short_bin short_measure(const gg_choose_args *a, choose_source source, const one_bin *bin, uint32_t *h) {
    const uint64_t lanes = UINT64_MAX >> (SHORT_BIN - bin->n);
    short_bin it = {.greatest = _mm512_setzero_si512()};
    uint64_t marked = 0;
    (void)h;
    if (bin->marks != NULL) memcpy(&marked, bin->marks, sizeof marked);
    for (size_t v = 0; v < 4; ++v)
        it.h[v] = measure_vector(a, source, bin->at + 16 * v, (__mmask16)(lanes >> 16 * v), bin->marks != NULL,
                                 (__mmask16)(marked >> 16 * v), &it.greatest);
    __m512i most = it.greatest;
    most = _mm512_max_epu32(most, _mm512_shuffle_i64x2(most, most, 0x4e));
    most = _mm512_max_epu32(most, _mm512_shuffle_i64x2(most, most, 0xb1));
    most = _mm512_max_epu32(most, _mm512_shuffle_epi32(most, 0x4e));
    it.greatest = _mm512_max_epu32(most, _mm512_shuffle_epi32(most, 0xb1));
    return it;
}

GG_INLINE uint32_t short_greatest(const short_bin *it) {
    return (uint32_t)_mm_cvtsi128_si32(_mm512_castsi512_si128(it->greatest));
}

GG_INLINE uint64_t short_collect(const gg_choose_args *a, choose_source source, const one_bin *bin,
                                 const short_bin *it) {
    const __m512i least = _mm512_add_epi32(it->greatest, it->greatest);
    __m512i places = FIRST_PLACES;
    uint64_t all = 0;
    size_t count = 0;
    (void)a, (void)source;
    for (size_t v = 0; v < 4; ++v) {
        const __mmask16 chosen = collect_vector(it->h[v], least, places, bin->room - count, bin->place + count);
        count += (size_t)__builtin_popcount(chosen);
        all |= (uint64_t)chosen << 16 * v;
        places = _mm512_add_epi32(places, _mm512_set1_epi32(16));
    }
    return all;
}

#elif defined(__AVX2__)

/* Elements whose bits fit in a word. */
#define WORD ((size_t)64)

/* The first n lanes, of fewer than eight. */
GG_INLINE __m256i first_lanes(size_t n) {
    static const int32_t from[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const __m256i *)(from + 8 - n));
}

GG_INLINE __m256 load_lanes(const float *p, size_t n) {
    return n == 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, first_lanes(n));
}

/* Writes nothing after the n lanes. A masked store is slow on AMD's processors before Zen 4. */
GG_INLINE void store_lanes(float *p, __m256 v, size_t n) {
    if (n == 8) {
        _mm256_storeu_ps(p, v);
        return;
    }
    __m128 left = _mm256_castps256_ps128(v);
    if ((n & 4) != 0) {
        _mm_storeu_ps(p, left);
        left = _mm256_extractf128_ps(v, 1);
        p += 4;
    }
    if ((n & 2) != 0) {
        _mm_storel_pi((__m64 *)(void *)p, left);
        left = _mm_movehl_ps(left, left);
        p += 2;
    }
    if ((n & 1) != 0) _mm_store_ss(p, left);
}

/* Measures the first n of eight elements of a bin: |H| into h; updates *greatest with |G|. A lane is marked if `marked`
 * has a bit of `bits`. */
GG_INLINE void measure_vector(const gg_choose_args *a, choose_source source, const bool has_marks, __m256i marked,
                              __m256i bits, size_t i, size_t n, uint32_t *h, __m256i *greatest) {
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32((int)MAGNITUDE));
    __m256 d = _mm256_setzero_ps(), g;
    if (source == FROM_DIFFERENCE) {
        g = d = _mm256_sub_ps(load_lanes(a->value + i, n), load_lanes(a->known + i, n));
    } else {
        if (has_gradient(source)) d = _mm256_mul_ps(_mm256_set1_ps(a->scale), load_lanes(a->gradient + i, n));
        if (source == FROM_CLEARED) store_lanes(a->clear + i, _mm256_setzero_ps(), n);
        __m256 before = load_lanes(a->residue + i, n);
        if (has_marks) {
            const __m256 sent = _mm256_or_ps(_mm256_andnot_ps(magnitude, before), _mm256_set1_ps(a->owed));
            const __m256i lanes = _mm256_cmpeq_epi32(_mm256_and_si256(marked, bits), bits);
            before = _mm256_sub_ps(before, _mm256_and_ps(sent, _mm256_castsi256_ps(lanes)));
        }
        g = _mm256_add_ps(before, d);
        store_lanes(a->residue + i, g, n);
    }
    const __m256i size = _mm256_castps_si256(_mm256_and_ps(g, magnitude));
    const __m256 wanted = _mm256_add_ps(g, _mm256_mul_ps(_mm256_set1_ps(a->factor - 1), d));
    *greatest = _mm256_max_epu32(*greatest, size);
    /* 0 where G is 0: sign gives 0 for a zero. */
    _mm256_store_si256((__m256i *)h, _mm256_sign_epi32(_mm256_castps_si256(_mm256_and_ps(wanted, magnitude)), size));
}

/* Measures the n elements of a word. marked: a bit for each. */
GG_INLINE void measure_word(const gg_choose_args *a, choose_source source, const bool has_marks, uint64_t marked,
                            size_t at, size_t n, uint32_t *h, __m256i *greatest) {
    const __m256i low = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128), high = _mm256_slli_epi32(low, 8);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m256i bits = _mm256_set1_epi32((int)(marked >> i));
        request(a, source, at + i);
        measure_vector(a, source, has_marks, bits, low, at + i, 8, h + i, greatest);
        measure_vector(a, source, has_marks, bits, high, at + i + 8, 8, h + i + 8, greatest);
    }
    if (i == n) return;
    request(a, source, at + i);
    const __m256i bits = _mm256_set1_epi32((int)(marked >> i));
    if (i + 8 <= n) measure_vector(a, source, has_marks, bits, low, at + i, 8, h + i, greatest);
    if (i + 8 < n) measure_vector(a, source, has_marks, bits, high, at + i + 8, n - i - 8, h + i + 8, greatest);
    if (i + 8 > n) measure_vector(a, source, has_marks, bits, low, at + i, n - i, h + i, greatest);
}

/* The max of all lanes, in each lane. */
GG_INLINE __m256i greatest_lane(__m256i v) {
    v = _mm256_max_epu32(v, _mm256_permute2x128_si256(v, v, 1));
    v = _mm256_max_epu32(v, _mm256_shuffle_epi32(v, 0x4e));
    return _mm256_max_epu32(v, _mm256_shuffle_epi32(v, 0xb1));
}

/* Bits of the elements of a word whose |H| is above `below`. */
GG_INLINE uint64_t choose_word(const uint32_t *h, size_t n, __m256i below) {
    uint64_t chosen = 0;
    for (size_t i = 0; i < n; i += 8) {
        const __m256i above = _mm256_cmpgt_epi32(_mm256_load_si256((const __m256i *)(h + i)), below);
        chosen |= (uint64_t)(unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(above)) << i;
    }
    return chosen;
}

/* The sign of G in the top bit; G has been measured. */
GG_INLINE uint32_t sign_at(const gg_choose_args *a, choose_source source, size_t i) {
    return bits_of_float(source == FROM_DIFFERENCE ? a->value[i] - a->known[i] : a->residue[i]);
}

/* Writes the places of a word's chosen elements; the word begins at place `first` of the bin at `at`. With room for a
 * whole word, always writes `usual` places, because the count cannot be predicted. */
GG_INLINE size_t put_places(const gg_choose_args *a, choose_source source, size_t at, size_t first, uint64_t chosen,
                            const size_t usual, uint16_t *place) {
    const size_t count = (size_t)__builtin_popcountll(chosen);
    const uint64_t last = (uint64_t)1 << (WORD - 1); /* read if there are no more */
    size_t i = 0;
    if (at + first + WORD <= a->n)
        for (; i < usual; ++i, chosen &= chosen - 1) {
            const size_t own = first + (unsigned)__builtin_ctzll(chosen | last);
            place[i] = entry_of(sign_at(a, source, at + own), own);
        }
    for (; i < count; ++i, chosen &= chosen - 1) {
        const size_t own = first + (unsigned)__builtin_ctzll(chosen);
        place[i] = entry_of(sign_at(a, source, at + own), own);
    }
    return count;
}

/* Marks of n elements, at most a word: pairs of bytes. */
GG_INLINE uint64_t read_marks(const unsigned char *marks, size_t n) {
    uint64_t word = 0;
    if (n == WORD) {
        memcpy(&word, marks, sizeof word);
        return word;
    }
    for (size_t i = 0; i < n; i += 16) {
        uint16_t pair;
        memcpy(&pair, marks + i / 8, sizeof pair);
        word |= (uint64_t)pair << i;
    }
    return word;
}

GG_INLINE void write_marks(uint64_t word, size_t n, unsigned char *marks) {
    if (n == WORD) {
        memcpy(marks, &word, sizeof word);
        return;
    }
    for (size_t i = 0; i < n; i += 16) {
        const uint16_t pair = (uint16_t)(word >> i);
        memcpy(marks + i / 8, &pair, sizeof pair);
    }
}

GG_INLINE uint32_t choose_measure(const gg_choose_args *a, choose_source source, const one_bin *bin, magnitudes *h) {
    const bool has_marks = bin->marks != NULL;
    __m256i greatest = _mm256_setzero_si256();
    for (size_t i = 0; i < bin->n; i += WORD) {
        const size_t n = bin->n - i < WORD ? bin->n - i : WORD;
        const uint64_t marked = has_marks ? read_marks(bin->marks + i / 8, n) : 0;
        measure_word(a, source, has_marks, marked, bin->at + i, n, h->of + i, &greatest);
    }
    return (uint32_t)_mm256_extract_epi32(greatest_lane(greatest), 0);
}

GG_INLINE size_t choose_collect(const gg_choose_args *a, choose_source source, const one_bin *bin, const magnitudes *h,
                                uint32_t greatest) {
    const __m256i below = _mm256_set1_epi32((int)greatest - 1); /* both are below 2^31 */
    size_t count = 0;
    for (size_t i = 0; i < bin->n; i += WORD) {
        const size_t n = bin->n - i < WORD ? bin->n - i : WORD;
        const uint64_t chosen = choose_word(h->of + i, n, below);
        if (bin->marks != NULL) write_marks(chosen, n, bin->marks + i / 8);
        count += put_places(a, source, bin->at, i, chosen, 2, bin->place + count);
    }
    return count;
}

/* Elements of the largest bin whose bits fit in a word. */
#define SHORT_BIN WORD

typedef struct short_bin {
    const uint32_t *h;
    __m256i greatest; /* in every lane */
} short_bin;

GG_INLINE short_bin short_measure(const gg_choose_args *a, choose_source source, const one_bin *bin, uint32_t *h) {
    short_bin it = {.h = h, .greatest = _mm256_setzero_si256()};
    uint64_t marked = 0;
    if (bin->marks != NULL) memcpy(&marked, bin->marks, sizeof marked);
    measure_word(a, source, bin->marks != NULL, marked, bin->at, bin->n, h, &it.greatest);
    it.greatest = greatest_lane(it.greatest);
    return it;
}

GG_INLINE uint32_t short_greatest(const short_bin *it) { return (uint32_t)_mm256_extract_epi32(it->greatest, 0); }

GG_INLINE uint64_t short_collect(const gg_choose_args *a, choose_source source, const one_bin *bin,
                                 const short_bin *it) {
    const __m256i below = _mm256_add_epi32(it->greatest, _mm256_set1_epi32(-1));
    const uint64_t chosen = choose_word(it->h, bin->n, below);
    (void)put_places(a, source, bin->at, 0, chosen, 6, bin->place);
    return chosen;
}

#else

GG_INLINE uint32_t choose_measure(const gg_choose_args *a, choose_source source, const one_bin *bin, magnitudes *h) {
    uint32_t greatest = 0;
    for (size_t i = 0; i < bin->n; ++i) {
        const uint32_t size = measure_one(a, source, bin, i, h);
        greatest = size > greatest ? size : greatest;
    }
    return greatest;
}

/* Writes the places with |H| >= greatest, and marks them; returns their number. */
GG_INLINE size_t choose_collect(const gg_choose_args *a, choose_source source, const one_bin *bin, const magnitudes *h,
                                uint32_t greatest) {
    size_t count = 0;
    (void)a, (void)source;
    if (bin->marks != NULL) memset(bin->marks, 0, (bin->n + 7) / 8);
    for (size_t i = 0; i < bin->n; ++i) {
        if ((h->of[i] & MAGNITUDE) < greatest) continue;
        bin->place[count++] = entry_of(h->of[i], i);
        if (bin->marks != NULL) bin->marks[i / 8] |= (unsigned char)(1u << i % 8);
    }
    return count;
}

#endif

/* Bin `index`, whose first entry is number `entries`. */
GG_INLINE one_bin bin_at(const gg_choose_args *a, size_t index, size_t entries) {
    const size_t at = index * a->bin;
    return (one_bin){.at = at,
                     .n = a->n - at < a->bin ? a->n - at : a->bin,
                     .room = a->n - entries,
                     .marks = a->marks != NULL ? a->marks + index * gg_pack_mark_bytes(a->bin) : NULL,
                     .place = a->place != NULL ? a->place + entries : NULL};
}

/* True if an element of the bin is chosen. */
GG_INLINE bool has_choice(const one_bin *bin, uint32_t greatest) {
    return bin->place != NULL && greatest > 0 && greatest < INFINITE;
}

/* Stores the results of a bin with chosen elements. */
GG_INLINE void choose_record(const gg_choose_args *a, size_t index, const one_bin *bin, uint32_t greatest,
                             size_t count) {
    a->greatest[index] = greatest;
    if (bin->place == NULL) return;
    a->chosen[index] = (uint16_t)count;
    if (count > 0) *bin->place |= GG_CHOSEN_FIRST;
}

#ifdef SHORT_BIN

/* Measures each bin before choosing from the previous one: the wait for a bin's max takes longer than either. */
GG_INLINE size_t choose_short(const gg_choose_args *a, choose_source source) {
    const size_t bins = (a->n + a->bin - 1) / a->bin;
    uint32_t h[2][SHORT_BIN] __attribute__((aligned(64)));
    size_t entries = 0;
    one_bin bin = bin_at(a, 0, 0);
    short_bin next = short_measure(a, source, &bin, h[0]);
    for (size_t index = 0; index < bins; ++index) {
        const short_bin it = next;
        const uint32_t greatest = short_greatest(&it);
        uint64_t chosen = 0;
        if (index + 1 < bins) {
            bin = bin_at(a, index + 1, 0);
            next = short_measure(a, source, &bin, h[(index + 1) % 2]);
        }
        bin = bin_at(a, index, entries);
        if (has_choice(&bin, greatest)) chosen = short_collect(a, source, &bin, &it);
        if (bin.marks != NULL) memcpy(bin.marks, &chosen, sizeof chosen);
        const size_t count = (size_t)__builtin_popcountll(chosen);
        choose_record(a, index, &bin, greatest, count);
        entries += count;
    }
    return entries;
}

#else

#define SHORT_BIN 0

GG_INLINE size_t choose_short(const gg_choose_args *a, choose_source source) {
    (void)a, (void)source;
    return 0;
}

#endif

GG_INLINE size_t choose_long(const gg_choose_args *a, choose_source source) {
    magnitudes h;
    size_t entries = 0;
    for (size_t index = 0; index * a->bin < a->n; ++index) {
        const one_bin bin = bin_at(a, index, entries);
        const uint32_t greatest = choose_measure(a, source, &bin, &h);
        size_t count = 0;
        if (has_choice(&bin, greatest)) count = choose_collect(a, source, &bin, &h, greatest);
        else if (bin.marks != NULL) memset(bin.marks, 0, gg_pack_mark_bytes(a->bin));
        choose_record(a, index, &bin, greatest, count);
        entries += count;
    }
    return entries;
}

/* marked: there are marks; a compile-time constant too. */
GG_INLINE size_t choose_from(const gg_choose_args *args, choose_source source, const bool marked) {
    gg_choose_args a = *args; /* a copy, so that no store can change it */
    if ((a.marks != NULL) != marked) __builtin_unreachable();
    return a.n > 0 && a.bin <= SHORT_BIN ? choose_short(&a, source) : choose_long(&a, source);
}

size_t GG_VARIANT(gg_cpu_choose_bins)(const gg_choose_args *args) {
    if (args->residue == NULL) return choose_from(args, FROM_DIFFERENCE, false);
    if (args->gradient == NULL)
        return args->marks == NULL ? choose_from(args, FROM_RESIDUE, false) : choose_from(args, FROM_RESIDUE, true);
    if (args->marks == NULL)
        return args->clear != NULL ? choose_from(args, FROM_CLEARED, false) : choose_from(args, FROM_GRADIENT, false);
    return args->clear != NULL ? choose_from(args, FROM_CLEARED, true) : choose_from(args, FROM_GRADIENT, true);
}
