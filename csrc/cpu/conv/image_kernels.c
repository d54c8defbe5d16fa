/* Products for the weight gradient of convolutions with few channels, on AMX. tests/c/twin has scalar kernels as
 * reference; they read the same tiles. */
#include "cpu/conv/image_kernels.h"
#include "cpu/simd/parts.h"

enum { SIDE = GG_IMAGE_SIDE, PIXELS = GG_IMAGE_PIXELS, TILE = GG_IMAGE_TILE };

#if defined(GG_PARTS_AMX)

/* Sixteen filters of a pixel, each in a word. */
GG_INLINE __m512i filters_of(const gg_image_errors *e, int64_t pixel, int64_t filter, __mmask16 mask) {
    if (pixel >= e->pixels) return _mm512_setzero_si512();
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, e->from + pixel * e->filters + filter));
}

static void pack_errors(const gg_image_errors *e) {
    const int64_t rows = (e->pixels + PIXELS - 1) / PIXELS * SIDE;
    for (int64_t filter = 0; filter < e->filters; filter += SIDE) {
        const int64_t left = e->filters - filter;
        const __mmask16 mask = left < SIDE ? (__mmask16)((1u << left) - 1u) : (__mmask16)0xffff;
        uint16_t *to = e->to + filter / SIDE * e->group;
        for (int64_t row = 0; row < rows; ++row)
            _mm512_store_si512(to + row * PIXELS,
                               _mm512_or_si512(filters_of(e, 2 * row, filter, mask),
                                               _mm512_slli_epi32(filters_of(e, 2 * row + 1, filter, mask), 16)));
    }
}

#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16")

/* Multiplies tiles: two by two tiles of sums in registers 0 to 3, taps in 4 and 5, errors in 6 and 7. Registers are
 * named by constants. */
GG_INLINE void multiply_tiles(const gg_image_product *p, int64_t t, int64_t f, const bool second_tap,
                              const bool second_filter) {
    const long across = (long)(p->filter_groups * SIDE), bytes = across * (long)sizeof(float), row = 2 * PIXELS;
    const uint16_t *taps = p->taps + t * p->runs * TILE, *errors = p->errors + f * p->runs * TILE;
    const int64_t next = p->runs * TILE;
    float *sums = p->sums + t * SIDE * across + f * SIDE;
    if (p->add) {
        _tile_loadd(0, sums, bytes);
        if (second_filter) _tile_loadd(1, sums + SIDE, bytes);
        if (second_tap) _tile_loadd(2, sums + SIDE * across, bytes);
        if (second_tap && second_filter) _tile_loadd(3, sums + SIDE * across + SIDE, bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < p->runs; ++k, taps += TILE, errors += TILE) {
        _tile_loadd(4, taps, row);
        _tile_loadd(6, errors, row);
        _tile_dpbf16ps(0, 4, 6);
        if (second_filter) {
            _tile_loadd(7, errors + next, row);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (second_tap) {
            _tile_loadd(5, taps + next, row);
            _tile_dpbf16ps(2, 5, 6);
            if (second_filter) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, bytes);
    if (second_filter) _tile_stored(1, sums + SIDE, bytes);
    if (second_tap) _tile_stored(2, sums + SIDE * across, bytes);
    if (second_tap && second_filter) _tile_stored(3, sums + SIDE * across + SIDE, bytes);
}

static void multiply_amx(const gg_image_product *p) {
    _tile_loadconfig(&whole_tiles);
    ORDER_TILES;
    for (int64_t t = 0; t < p->tap_groups; t += 2) {
        for (int64_t f = 0; f < p->filter_groups; f += 2) {
            const bool tap = t + 1 < p->tap_groups, filter = f + 1 < p->filter_groups;
            if (tap && filter) multiply_tiles(p, t, f, true, true);
            else if (tap) multiply_tiles(p, t, f, true, false);
            else if (filter) multiply_tiles(p, t, f, false, true);
            else multiply_tiles(p, t, f, false, false);
        }
    }
    ORDER_TILES;
    _tile_release();
}

#pragma GCC pop_options

const gg_image_kernels gg_image_kernels_amx = {.pack_errors = pack_errors, .multiply = multiply_amx};

#endif
