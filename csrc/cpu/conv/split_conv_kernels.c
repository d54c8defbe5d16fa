/* Convolutions of split numbers: the scalar kernels, which document them, and those on AMX: tiles of points times tiles
 * of weights, and turned gradients times points. Both compute the same bits where denormal numbers count as 0. */
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

/* Registers 0 to 3 are sums, 4 to 6 the second factor, 7 points. They are named by constants, hence macros. */
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

#elif defined(GG_PARTS_SCALAR)

enum { TILE = 512, ROW = 32 }; /* bfloat16 of a tile, and of one of its rows */

typedef struct parts {
    uint16_t high, middle, low;
} parts;

static parts parts_of(float x) {
    const float left = x - upper_half(x);
    return (parts){narrow_exactly(x), narrow_exactly(left), narrow_exactly(left - upper_half(left))};
}

static void split_scalar(int64_t points, const float *from, int64_t step, uint16_t *to) {
    for (int64_t i = 0; i < points; ++i, to += GG_SPLIT_POINT)
        for (int channel = 0; channel < 16; ++channel) {
            const parts p = parts_of(from[i * step + channel]);
            to[2 * channel] = to[ROW + 2 * channel] = p.high;
            to[2 * channel + 1] = p.middle;
            to[ROW + 2 * channel + 1] = p.low;
        }
}

/* Place (row, column) of a second factor. */
static void store_factor(float x, uint16_t *factor, int row, int column) {
    const parts p = parts_of(x);
    uint16_t *to = factor + row * ROW + 2 * column;
    to[0] = to[1] = to[2 * TILE + 1] = p.high;
    to[TILE] = to[TILE + 1] = p.middle;
    to[2 * TILE] = p.low;
}

static void weights_scalar(const float *from, uint16_t *to) {
    for (int row = 0; row < 16; ++row)
        for (int column = 0; column < 16; ++column) store_factor(from[row * 16 + column], to, row, column);
}

static void turn_scalar(int64_t tiles, const float *from, uint16_t *to) {
    for (int64_t t = 0; t < tiles; ++t, from += 256, to += GG_SPLIT_FACTOR)
        for (int point = 0; point < 16; ++point)
            for (int channel = 0; channel < 16; ++channel) store_factor(from[point * 16 + channel], to, channel, point);
}

/* sums[i][j] += sum over l of the pair a[i][l] times the pair b[l][j]; products of bfloat16 are exact. */
static void multiply_tiles(const uint16_t *a, int64_t a_row, const uint16_t *b, int64_t b_row, float *sums) {
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) {
            float first = 0, second = 0; /* of the pairs */
            for (int l = 0; l < 16; ++l) {
                const uint16_t *x = a + i * a_row + 2 * l, *y = b + l * b_row + 2 * j;
                first += widen_exactly(x[0]) * widen_exactly(y[0]);
                second += widen_exactly(x[1]) * widen_exactly(y[1]);
            }
            sums[i * 16 + j] += first + second;
        }
}

static void forward_scalar(const gg_split_forward *f) {
    memset(f->sums, 0, (size_t)f->tiles * 256 * sizeof(float));
    for (int64_t s = 0; s < f->steps; ++s)
        for (int tile = 0; tile < f->tiles; ++tile) {
            const uint16_t *points = f->points + f->step[s].points + tile * 16 * GG_SPLIT_POINT;
            const uint16_t *weights = f->weights + f->step[s].weights;
            float *sums = f->sums + tile * 256;
            multiply_tiles(points, GG_SPLIT_POINT, weights, ROW, sums);
            multiply_tiles(points, GG_SPLIT_POINT, weights + TILE, ROW, sums);
            multiply_tiles(points + ROW, GG_SPLIT_POINT, weights + 2 * TILE, ROW, sums);
        }
}

static void gradient_scalar(const gg_split_gradient *g) {
    for (int place = 0; place < g->places; ++place) {
        float sums[256] = {0};
        for (int64_t t = 0; t < g->tiles; ++t) {
            const uint16_t *turned = g->turned + t * GG_SPLIT_FACTOR;
            const uint16_t *points = g->points + g->step[place].points + t * 16 * GG_SPLIT_POINT;
            multiply_tiles(turned, ROW, points, GG_SPLIT_POINT, sums);
            multiply_tiles(turned + TILE, ROW, points, GG_SPLIT_POINT, sums);
            multiply_tiles(turned + 2 * TILE, ROW, points + ROW, GG_SPLIT_POINT, sums);
        }
        for (int i = 0; i < 256; ++i) g->sums[place * 256 + i] = g->add ? g->sums[place * 256 + i] + sums[i] : sums[i];
    }
}

static void finish_scalar(int64_t points, const float *sums, const float *bias, bool relu, float *to, int64_t step) {
    for (int64_t i = 0; i < points; ++i)
        for (int channel = 0; channel < 16; ++channel) {
            const float x = sums[i * 16 + channel] + (bias != NULL ? bias[channel] : 0);
            to[i * step + channel] = relu && x < 0 ? 0 : x;
        }
}

const gg_split_conv_kernels gg_split_conv_kernels_scalar = {split_scalar,   weights_scalar,  turn_scalar,
                                                            forward_scalar, gradient_scalar, finish_scalar};

#else

typedef int gg_split_conv_nothing; /* other levels have none */

#endif
