/* Gradient of convolution weights on BATCH_LAST activations: sums of products over all lanes and positions. */
#include "cpu/simd/tile.h"

#ifndef GG_VECTOR

void GG_VARIANT(gg_kernel_dot)(const gg_conv_dot *dot, int64_t block_begin, int64_t block_end) {
    for (int64_t m = block_begin; m < block_end; ++m) { /* a block is one row here */
        for (int64_t k = 0; k < dot->cols; ++k) {
            /* One partial sum a lane, as in the vector kernels: a single long sum would lose digits. */
            float sum[16] = {0};
            for (int64_t r = 0; r < dot->height; ++r) {
                for (int64_t c = 0; c < dot->width; ++c) {
                    const float *dy = dot->dy + m * dot->dy_plane + r * dot->dy_row + c * dot->lanes;
                    const float *x = dot->x + dot->col_x[k] + r * dot->x_row + c * dot->x_col;
                    for (int64_t n = 0; n < dot->lanes; n += 16)
                        for (int64_t i = 0; i < 16; ++i) sum[i] += dy[n + i] * x[n + i];
                }
            }
            float *dw = &dot->dw[m * dot->dw_row + k], total = 0;
            for (int64_t i = 0; i < 16; ++i) total += sum[i];
            *dw = dot->add ? *dw + total : total;
        }
    }
}

#else

typedef struct dot_tile {
    int64_t height, width, vectors; /* vectors are consecutive in both operands */
    const float *dy;
    int64_t dy_plane, dy_row, dy_col;
    const float *x[GG_DOT_COLS];
    int64_t x_row, x_col;
    float *dw;
    int64_t dw_row;
    bool add;
} dot_tile;

GG_INLINE void dot_run(const dot_tile *t, const int R, const int C) {
    floats sum[GG_DOT_ROWS * GG_DOT_COLS + 3];
#pragma GCC unroll 28
    for (int i = 0; i < GG_DOT_ROWS * GG_DOT_COLS + 3; ++i) sum[i] = (floats){0};
    const int64_t plane = t->dy_plane;
    for (int64_t r = 0; r < t->height; ++r) {
        for (int64_t c = 0; c < t->width; ++c) {
            const float *dy = t->dy + r * t->dy_row + c * t->dy_col;
            const float *x[GG_DOT_COLS];
#pragma GCC unroll 8
            for (int j = 0; j < C; ++j) x[j] = t->x[j] + r * t->x_row + c * t->x_col;
            for (int64_t n = 0; n < t->vectors; ++n) {
                floats a[GG_DOT_ROWS];
#pragma GCC unroll 8
                for (int i = 0; i < R; ++i) a[i] = *(const floats *)(dy + i * plane + n * GG_VECTOR);
#pragma GCC unroll 8
                for (int j = 0; j < C; ++j) {
                    const floats b = *(const floats *)(x[j] + n * GG_VECTOR);
#pragma GCC unroll 8
                    for (int i = 0; i < R; ++i) sum[i * C + j] += a[i] * b;
                }
            }
        }
    }
    float total[GG_DOT_ROWS * GG_DOT_COLS + 3];
#pragma GCC unroll 8
    for (int i = 0; i < R * C; i += 4) store_totals(total + i, sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
    for (int i = 0; i < R; ++i) {
        for (int j = 0; j < C; ++j) {
            float *dw = t->dw + i * t->dw_row + j;
            *dw = t->add ? *dw + total[i * C + j] : total[i * C + j];
        }
    }
}

#define TILE(R, C)                                                                                                     \
    static __attribute__((noinline)) void dot_##R##x##C(const dot_tile *t) { dot_run(t, R, C); }
GG_DOT_LIST(TILE)
#undef TILE
#define TILE(R, C) [R][C] = dot_##R##x##C,
static void (*const tiles[GG_DOT_ROWS + 1][GG_DOT_COLS + 1])(const dot_tile *t) = {GG_DOT_LIST(TILE)};
#undef TILE

void GG_VARIANT(gg_kernel_dot)(const gg_conv_dot *dot, int64_t block_begin, int64_t block_end) {
    const int64_t blocks = gg_block_count(dot->rows, GG_DOT_ROWS), parts = gg_block_count(dot->cols, GG_DOT_COLS);
    dot_tile t = {.height = dot->height,
                  .width = dot->width,
                  .vectors = dot->lanes / GG_VECTOR,
                  .dy_plane = dot->dy_plane,
                  .dy_row = dot->dy_row,
                  .dy_col = dot->lanes,
                  .x_row = dot->x_row,
                  .x_col = dot->x_col,
                  .dw_row = dot->dw_row,
                  .add = dot->add};
    /* If positions are adjacent in both operands, a row is one run of vectors, or the whole plane is. */
    if (t.x_col == dot->lanes) {
        t.vectors *= t.width;
        t.width = 1;
        if (t.x_row == t.dy_row && t.dy_row == dot->width * dot->lanes) {
            t.vectors *= t.height;
            t.height = 1;
        }
    }
    for (int64_t b = block_begin; b < block_end; ++b) {
        const int64_t m = gg_block_begin(dot->rows, blocks, b), rows = gg_block_begin(dot->rows, blocks, b + 1) - m;
        t.dy = dot->dy + m * dot->dy_plane;
        for (int64_t p = 0; p < parts; ++p) {
            const int64_t k = gg_block_begin(dot->cols, parts, p), cols = gg_block_begin(dot->cols, parts, p + 1) - k;
            for (int64_t j = 0; j < cols; ++j) t.x[j] = dot->x + dot->col_x[k + j];
            t.dw = dot->dw + m * dot->dw_row + k;
            tiles[rows][cols](&t);
        }
    }
}

#endif
