/* Convolutions of split numbers on AMX: tiles of points times tiles of weights, and transposed gradients times points.
 * tests/c/twin has scalar kernels as reference. Their bits are equal if denormal numbers count as 0. */
#include "cpu/conv/split_conv_kernels.h"
#include "cpu/simd/parts.h"

#if defined(GG_PARTS_AMX)

#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16")

#define TILE 512 /* bfloat16 */
#define POINT_BYTES ((long)GG_SPLIT_POINT * 2)

typedef struct parts {
    __m512 high, middle, low;
} parts;

GG_INLINE parts parts_of(__m512 x) {
    parts p = {.high = upper_half(x)};
    const __m512 left = _mm512_sub_ps(x, p.high);
    p.middle = upper_half(left);
    p.low = _mm512_sub_ps(left, p.middle);
    return p;
}

static void split_points(int64_t points, const float *from, int64_t step, uint16_t *to) {
    for (int64_t i = 0; i < points; ++i) {
        const parts p = parts_of(_mm512_loadu_ps(from + i * step));
        _mm512_store_si512(to + i * GG_SPLIT_POINT, pairs(p.high, p.middle));
        _mm512_store_si512(to + i * GG_SPLIT_POINT + 32, pairs(p.high, p.low));
    }
}

/* Row `row` of the second factor. */
GG_INLINE void store_factor(__m512 x, uint16_t *to, int row) {
    const parts p = parts_of(x);
    _mm512_store_si512(to + row * 32, pairs(p.high, p.high));
    _mm512_store_si512(to + TILE + row * 32, pairs(p.middle, p.middle));
    _mm512_store_si512(to + 2 * TILE + row * 32, pairs(p.low, p.high));
}

static void split_weights(const float *from, uint16_t *to) {
    for (int row = 0; row < 16; ++row) store_factor(_mm512_loadu_ps(from + row * 16), to, row);
}

static void turn_points(int64_t tiles, const float *from, uint16_t *to) {
    for (int64_t t = 0; t < tiles; ++t) {
        __m512 a[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_ps(from + (t * 16 + i) * 16);
        turn(a);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) store_factor(a[i], to + t * GG_SPLIT_FACTOR, i);
    }
}

/* Registers 0 to 3 hold sums, 4 to 6 the second factor, 7 points. Macros, because registers are named by constants. */
#define LOAD_FACTOR(from)                                                                                              \
    do {                                                                                                               \
        _tile_loadd(4, (from), 64);                                                                                    \
        _tile_loadd(5, (from) + TILE, 64);                                                                             \
        _tile_loadd(6, (from) + 2 * TILE, 64);                                                                         \
    } while (0)

#define FORWARD(number)                                                                                                \
    do {                                                                                                               \
        if (tiles > (number)) {                                                                                        \
            _tile_loadd(7, points + (number)*16 * GG_SPLIT_POINT, POINT_BYTES);                                        \
            _tile_dpbf16ps(number, 7, 4);                                                                              \
            _tile_dpbf16ps(number, 7, 5);                                                                              \
            _tile_loadd(7, points + (number)*16 * GG_SPLIT_POINT + 32, POINT_BYTES);                                   \
            _tile_dpbf16ps(number, 7, 6);                                                                              \
        }                                                                                                              \
    } while (0)

GG_INLINE void run_forward(const gg_split_forward *f, const int tiles) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    const float *from = f->ahead, *to = f->target;
    for (int64_t s = 0; s < f->steps; ++s) {
        const uint16_t *points = f->points + f->step[s].points, *weights = f->weights + f->step[s].weights;
        for (int64_t i = 0; i < f->ahead_lines; ++i) {
            __builtin_prefetch(from, 0, 2);
            from += 16;
        }
        for (int64_t i = 0; i < f->target_lines; ++i) {
            __builtin_prefetch(to, 1, 3);
            to += 16;
        }
        LOAD_FACTOR(weights);
        FORWARD(0);
        FORWARD(1);
        FORWARD(2);
        FORWARD(3);
    }
    _tile_stored(0, f->sums, 64);
    if (tiles > 1) _tile_stored(1, f->sums + 256, 64);
    if (tiles > 2) _tile_stored(2, f->sums + 512, 64);
    if (tiles > 3) _tile_stored(3, f->sums + 768, 64);
}

static void split_forward(const gg_split_forward *f) {
    _tile_loadconfig(&whole_tiles);
    ORDER_TILES;
    if (f->tiles == 4) run_forward(f, 4);
    else if (f->tiles == 3) run_forward(f, 3);
    else if (f->tiles == 2) run_forward(f, 2);
    else run_forward(f, 1);
    _tile_release();
}

#define GRADIENT(number)                                                                                               \
    do {                                                                                                               \
        if (places > (number)) {                                                                                       \
            _tile_loadd(7, points + g->step[number].points, POINT_BYTES);                                              \
            _tile_dpbf16ps(number, 4, 7);                                                                              \
            _tile_dpbf16ps(number, 5, 7);                                                                              \
            _tile_loadd(7, points + g->step[number].points + 32, POINT_BYTES);                                         \
            _tile_dpbf16ps(number, 6, 7);                                                                              \
        }                                                                                                              \
    } while (0)

GG_INLINE void run_gradient(const gg_split_gradient *g, const int places) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t t = 0; t < g->tiles; ++t) {
        const uint16_t *turned = g->turned + t * GG_SPLIT_FACTOR, *points = g->points + t * 16 * GG_SPLIT_POINT;
        LOAD_FACTOR(turned);
        GRADIENT(0);
        GRADIENT(1);
        GRADIENT(2);
        GRADIENT(3);
    }
    float buffer[4 * 256] __attribute__((aligned(64)));
    float *to = g->add ? buffer : g->sums;
    _tile_stored(0, to, 64);
    if (places > 1) _tile_stored(1, to + 256, 64);
    if (places > 2) _tile_stored(2, to + 512, 64);
    if (places > 3) _tile_stored(3, to + 768, 64);
    for (int i = 0; g->add && i < places * 256; i += 16)
        _mm512_storeu_ps(g->sums + i, _mm512_add_ps(_mm512_loadu_ps(g->sums + i), _mm512_load_ps(buffer + i)));
}

static void split_gradient(const gg_split_gradient *g) {
    _tile_loadconfig(&whole_tiles);
    ORDER_TILES;
    if (g->places == 4) run_gradient(g, 4);
    else if (g->places == 3) run_gradient(g, 3);
    else if (g->places == 2) run_gradient(g, 2);
    else run_gradient(g, 1);
    _tile_release();
}

static void finish_points(int64_t points, const float *sums, const float *bias, bool relu, float *to, int64_t step) {
    const __m512 start = bias != NULL ? _mm512_loadu_ps(bias) : _mm512_setzero_ps(), zero = _mm512_setzero_ps();
    for (int64_t i = 0; i < points; ++i) {
        __m512 x = _mm512_add_ps(_mm512_loadu_ps(sums + i * 16), start);
        if (relu) x = _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, zero, _CMP_LT_OQ), zero);
        _mm512_storeu_ps(to + i * step, x);
    }
}

const gg_split_conv_kernels gg_split_conv_kernels_amx = {split_points,  split_weights,  turn_points,
                                                         split_forward, split_gradient, finish_points};

#pragma GCC pop_options

#endif
