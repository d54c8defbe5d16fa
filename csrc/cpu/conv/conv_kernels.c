/* Forward and backward-data convolution on BATCH_LAST activations. */
#include "cpu/simd/tile.h"

#ifndef GG_VECTOR

void GG_VARIANT(gg_kernel_conv)(const gg_conv_pass *pass, int64_t block_begin, int64_t block_end, int64_t row_begin,
                                int64_t row_end) {
    const int64_t lanes = pass->lanes;
    for (int64_t m = block_begin; m < block_end; ++m) { /* a block is one row here */
        const float *weights = pass->weights + m * pass->taps * pass->terms;
        for (int64_t r = row_begin; r < row_end; ++r) {
            for (int64_t c = 0; c < pass->target_width; ++c) {
                float *y = pass->target + m * pass->target_plane + (r * pass->target_width + c) * lanes;
                if (!pass->add)
                    for (int64_t n = 0; n < lanes; ++n) y[n] = pass->bias ? pass->bias[m] : 0;
                for (int32_t i = pass->row_start[r]; i < pass->row_start[r + 1]; ++i) {
                    for (int32_t j = pass->col_start[c]; j < pass->col_start[c + 1]; ++j) {
                        const float *w = weights + (pass->row_taps[i].w + pass->col_taps[j].w) * pass->terms;
                        const float *x = pass->source + pass->row_taps[i].x + pass->col_taps[j].x;
                        for (int64_t k = 0; k < pass->terms; ++k)
                            for (int64_t n = 0; n < lanes; ++n) y[n] += w[k] * x[k * pass->source_plane + n];
                    }
                }
                if (pass->relu)
                    for (int64_t n = 0; n < lanes; ++n) y[n] = y[n] < 0 ? 0 : y[n];
            }
        }
    }
}

#else

#define TILE(R, V)                                                                                                     \
    static __attribute__((noinline)) void near_##R##x##V(const gg_tile *t) { gg_tile_run(t, R, V, GG_TILE_PACKED); }   \
    static __attribute__((noinline)) void far_##R##x##V(const gg_tile *t) { gg_tile_run(t, R, V, GG_TILE_PACKED_FAR); }
GG_TILE_LIST_NARROW(TILE, 1)
GG_TILE_LIST_NARROW(TILE, 2)
GG_TILE_LIST_WIDE(TILE)
#undef TILE

/* [short sums][vectors][rows]. No prefetch: these read from the L1 cache. */
#define NEAR(R, V) [V][R] = near_##R##x##V,
#define FAR(R, V) [V][R] = far_##R##x##V,
static const gg_tile_fn tiles[2][5][GG_TILE_ROWS + 1] = {
    {GG_TILE_LIST_NARROW(FAR, 1) GG_TILE_LIST_NARROW(FAR, 2) GG_TILE_LIST_WIDE(FAR)},
    {GG_TILE_LIST_NARROW(NEAR, 1) GG_TILE_LIST_NARROW(NEAR, 2) GG_TILE_LIST_WIDE(NEAR)}};
#undef NEAR
#undef FAR

/* All vectors of one column, or of two side by side. The second column's vectors follow the first's. */
static void column(const gg_conv_pass *pass, const gg_column *column, gg_tile *t, const float *source, float *target,
                   int rows) {
    const int64_t each = pass->lanes / GG_VECTOR, all = column->column[1] < 0 ? each : 2 * each;
    const int64_t leap = (column->column[1] - column->column[0]) * pass->lanes;
    const int64_t c = column->column[0];
    target += c * pass->lanes;
    t->col_taps = pass->col_taps + pass->col_start[c];
    t->col_count = pass->col_start[c + 1] - pass->col_start[c];
    /* With one source channel, a row of the window is a longer run than the channels. */
    const gg_tap *taps = t->col_taps;
    if (pass->terms == 1 && t->col_count > 1 && column->even) {
        t->terms = t->col_count;
        t->x_step = taps[1].x - taps[0].x;
        t->w_step = (taps[1].w - taps[0].w) * rows;
        t->col_count = 1;
    } else {
        t->terms = pass->terms;
        t->x_step = pass->source_plane;
        t->w_step = rows;
    }
    const bool near = pass->terms * pass->taps < 256;
    for (int64_t i = 0; i < all;) {
        const int64_t at = i < each ? i * GG_VECTOR : column->shift + (i - each) * GG_VECTOR;
        const int64_t to = i < each ? i * GG_VECTOR : leap + (i - each) * GG_VECTOR;
        int vectors = 1;
        t->x_delta = t->y_delta = GG_VECTOR;
        if (rows <= GG_TILE_WIDE && i + 4 <= all && (i + 4 <= each || i >= each)) {
            vectors = 4;
        } else if (i + 2 <= all) {
            vectors = 2;
            if (i + 1 == each) {
                t->x_delta = column->shift - at;
                t->y_delta = leap - to;
            }
        }
        t->x = source + at;
        t->y = target + to;
        tiles[near][vectors][rows](t);
        i += vectors;
    }
}

void GG_VARIANT(gg_kernel_conv)(const gg_conv_pass *pass, int64_t block_begin, int64_t block_end, int64_t row_begin,
                                int64_t row_end) {
    const int64_t blocks = gg_block_count(pass->rows, GG_TILE_ROWS);
    gg_tile t = {.y_row = pass->target_plane, .add = pass->add, .relu = pass->relu};
    for (int64_t r = row_begin; r < row_end; ++r) {
        t.row_taps = pass->row_taps + pass->row_start[r];
        t.row_count = pass->row_start[r + 1] - pass->row_start[r];
        float *target = pass->target + r * pass->target_width * pass->lanes;
        /* Each strip of columns is computed for all blocks of rows. The strip's source stays in the L2 cache, and most
         * of the block's weights in the L1 cache. */
        for (int64_t begin = 0; begin < pass->column_count; begin += pass->strip) {
            const int64_t end = begin + pass->strip < pass->column_count ? begin + pass->strip : pass->column_count;
            for (int64_t b = block_begin; b < block_end; ++b) {
                const int64_t m = gg_block_begin(pass->rows, blocks, b);
                const int64_t rows = gg_block_begin(pass->rows, blocks, b + 1) - m;
                t.w = pass->weights + m * pass->taps * pass->terms;
                t.w_tap = rows * pass->terms;
                t.bias = pass->bias ? pass->bias + m : NULL;
                for (int64_t c = begin; c < end; ++c)
                    column(pass, &pass->columns[c], &t, pass->source, target + m * pass->target_plane, (int)rows);
            }
        }
    }
}

#endif
