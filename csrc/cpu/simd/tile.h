/* Register tiles of the matrix-like kernels, for one instruction set.
 *
 * A tile is R rows by V vectors of the output. The tile stays in registers for the whole sum. Each term loads V
 * vectors, broadcasts each of R scalars and multiplies them. R*V accumulators hide the latency of the multiply-adds. R
 * + V loads for R*V multiply-adds leave the load ports idle half of the time. The scalar build does not use tiles.
 *
 * A level's header names its shapes: GG_TILE_ROWS rows by up to two vectors, GG_TILE_WIDE rows by four, panels of
 * GG_PANEL_VECTORS vectors or half of that, and dot products of GG_DOT_ROWS by GG_DOT_COLS. A panel has at least
 * GG_LANES columns. */
#ifndef GG_CPU_SIMD_TILE_H
#define GG_CPU_SIMD_TILE_H

#include "cpu/gemm/gemm_kernels.h"
#include "cpu/simd/simd.h"

/* Kernels of one instruction set, from several files; level_kernels.c collects them. */
void GG_VARIANT(gg_kernel_conv)(const gg_conv_pass *pass, int64_t block_begin, int64_t block_end, int64_t row_begin,
                                int64_t row_end);
void GG_VARIANT(gg_kernel_dot)(const gg_conv_dot *dot, int64_t block_begin, int64_t block_end);

#ifdef GG_VECTOR

typedef struct gg_tile {
    const gg_tap *row_taps, *col_taps; /* the sum runs over pairs of these... */
    int row_count, col_count;
    int64_t terms;  /* ...and for each pair over this many terms */
    const float *x; /* a term's vectors: x + taps + term*x_step + v*x_delta */
    int64_t x_step, x_delta;
    const float *w; /* a term's scalars: w + taps*w_tap + term*w_step + r*w_row */
    int64_t w_tap, w_step, w_row;
    float *y; /* the result: y + r*y_row + v*y_delta */
    int64_t y_row, y_delta;
    const float *bias;  /* one a row, NULL means zeros */
    const float *start; /* start values of all rows, instead of a bias; NULL means none */
    const float *ahead; /* PANEL: address to prefetch for a term: ahead + term*ahead_step */
    int64_t ahead_step;
    bool add; /* adds to y instead of to the bias */
    bool relu;
} gg_tile;

typedef void (*gg_tile_fn)(const gg_tile *tile);

/* Layout of a term's scalars. */
enum {
    GG_TILE_PACKED,       /* adjacent, term after term */
    GG_TILE_PACKED_FAR,   /* like PACKED, with large distances between the vectors of successive terms */
    GG_TILE_DOWN,         /* adjacent; terms are w_step apart, in a matrix read in place */
    GG_TILE_ACROSS,       /* w_row apart; terms are adjacent */
    GG_TILE_LANES,        /* like ACROSS, GG_LANES apart, so that one register addresses all; no bias, start or ReLU */
    GG_TILE_PANEL_PACKED, /* like PACKED and ACROSS, and prefetches into the L2 cache */
    GG_TILE_PANEL_ACROSS,
    GG_TILE_PANEL_NEAR /* like ACROSS, and prefetches a line a term into the L1 cache */
};

GG_INLINE void gg_tile_run(const gg_tile *t, const int R, const int V, const int scalars) {
    const bool near = scalars == GG_TILE_PANEL_NEAR;
    const bool lanes = scalars == GG_TILE_LANES;
    const bool across = scalars == GG_TILE_ACROSS || scalars == GG_TILE_PANEL_ACROSS || lanes || near;
    const bool ahead = scalars == GG_TILE_PANEL_PACKED || scalars == GG_TILE_PANEL_ACROSS || near;
    floats sum[GG_TILE_ROWS][4];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sum[r][v] = (floats){0};

    const int64_t x_delta = t->x_delta, x_step = t->x_step, w_row = lanes ? GG_LANES : t->w_row, w_step = t->w_step;
    const float *next = t->ahead;
    if (ahead) /* also prefetches the output, which may be in memory */
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < V; v += 16 / GG_VECTOR) __builtin_prefetch(t->y + r * t->y_row + v * t->y_delta, 1);
    for (int i = 0; i < t->row_count; ++i) {
        for (int j = 0; j < t->col_count; ++j) {
            const float *x = t->x + t->row_taps[i].x + t->col_taps[j].x;
            const float *w = t->w + (t->row_taps[i].w + t->col_taps[j].w) * t->w_tap;
            for (int64_t k = t->terms; k > 0; --k) {
                /* Hardware prefetchers do not follow steps of whole rows or planes. Prefetches the block of rows after
                 * the next, or the vectors to the right. */
                if (scalars == GG_TILE_DOWN) __builtin_prefetch(w + 2 * R);
                if (scalars == GG_TILE_PACKED_FAR)
#pragma GCC unroll 4
                    for (int v = 0; v < V; v += 16 / GG_VECTOR) __builtin_prefetch(x + (V + v) * GG_VECTOR);
                if (near) __builtin_prefetch(next);
                else if (ahead)
#pragma GCC unroll 4
                    for (int v = 0; v < V; v += 16 / GG_VECTOR) __builtin_prefetch(next + v * GG_VECTOR, 0, 2);
                if (ahead) next += t->ahead_step;
                floats value[4];
#pragma GCC unroll 4
                for (int v = 0; v < V; ++v) value[v] = *(const floats *)(x + v * x_delta);
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) {
                    const float scalar = across ? w[r * w_row] : w[r];
#pragma GCC unroll 4
                    for (int v = 0; v < V; ++v) sum[r][v] += scalar * value[v];
                }
                x += x_step;
                w += across ? 1 : w_step;
            }
        }
    }

    /* Branches once a tile: a branch for each vector takes longer than the sums. */
    const int64_t y_row = t->y_row, y_delta = t->y_delta;
    float *const y = t->y;
#define GG_TILE_EACH(statement)                                                                                        \
    _Pragma("GCC unroll 16") for (int r = 0; r < R; ++r) _Pragma("GCC unroll 4") for (int v = 0; v < V; ++v) statement
    if (t->add) {
        GG_TILE_EACH(sum[r][v] += *(const floats *)(y + r * y_row + v * y_delta));
    } else if (!lanes && t->bias) {
        GG_TILE_EACH(sum[r][v] += t->bias[r]);
    } else if (!lanes && t->start) {
        GG_TILE_EACH(sum[r][v] += *(const floats *)(t->start + v * GG_VECTOR));
    }
    if (!lanes && t->relu) GG_TILE_EACH(sum[r][v] = GG_MAX((floats){0}, sum[r][v])); /* in this order NaN stays NaN */
    GG_TILE_EACH(*(floats *)(y + r * y_row + v * y_delta) = sum[r][v]);
#undef GG_TILE_EACH
}

#endif
#endif
