/* Convolutions of split numbers in plain loops: document and test the kernels on AMX, whose bits they have where
 * denormal numbers count as 0. */
#include "twin/amx.h"
#include "twin/parts.h"

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
