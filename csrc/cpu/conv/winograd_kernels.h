/* Kernels of Winograd's convolution, one set for each instruction-set level. cpu/conv/winograd.c explains the
 * algorithm. A vector here is GG_LANES floats: samples of one channel in BATCH_LAST, channels of one sample in
 * CHANNELS16. Kernels are single-threaded, allocate nothing and have no state. Distances are in floats. */
#ifndef GG_CPU_CONV_WINOGRAD_KERNELS_H
#define GG_CPU_CONV_WINOGRAD_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"

/* Tiles have 4 x 4 places for F(2x2,3x3), 6 x 6 for F(4x4,3x3) and F(2x2,5x5), 8 x 8 for F(6x6,3x3) and F(4x4,5x5).
 *
 * The struct names one tile, at one position of `count` planes of an image. */
typedef struct gg_winograd_tiles {
    int outputs; /* outputs of a tile along one axis: 2, 4, or 6 with 3 taps */
    int taps;    /* weights along one axis: 3 or 5 */
    int64_t count;
    int lanes;          /* lanes computed of each vector: GG_LANES, or gg_winograd_kernels.least */
    float *image;       /* the tile's first element in the first plane, even if it lies in the padding */
    const float *ahead; /* first element of a tile to prefetch; NULL means none */
    int64_t plane, row, pixel;
    int begin[2], end[2]; /* the rows and columns of the tile that lie in the image */
    float *places;        /* vector i of place p: places + p*place_step + i*step */
    int64_t place_step, step;
    const float *bias; /* bias of plane i: a scalar, or a vector, at bias + i*bias_step; NULL means zeros */
    int64_t bias_step;
    bool bias_vectors, relu;
} gg_winograd_tiles;

/* Kernels of taps x taps weights, one a lane. Lane l of element i is at weights + l*lane_step + i*step. Its places
 * begin at places + i*places_step, p*place_step apart. */
typedef struct gg_winograd_weights {
    int outputs, taps;
    int lanes, stored; /* number of lanes, and of places written, at most GG_LANES; places after the last lane are 0 */
    int64_t count;
    float *weights;
    int64_t lane_step, step;
    float *places;
    int64_t place_step, places_step;
    bool rotated; /* rotated by 180 degrees, for backward */
} gg_winograd_weights;

/* y[r*y_row + column] = sum over terms k of scalar(r, k) * x[column], for panels of columns.
 * - Panel p begins at x + p*x_panel and has a row of `panel` floats for each term.
 * - Its result is at y + p*y_panel, where blocks of GG_LANES columns are y_block apart.
 * - Each place has its own operands and result.
 * - Partial sums of GG_WINOGRAD_TERMS terms are added at the end, which halves the error of long sums.
 * - With scalar_row GG_LANES the last terms, fewer than GG_LANES, are a partial sum of their own. */
#define GG_WINOGRAD_TERMS 64
typedef struct gg_winograd_product {
    int64_t rows, terms, panels;
    int panel;            /* gg_winograd_kernels.panel; GG_LANES if scalar_row is GG_LANES */
    const float *scalars; /* scalar_row 0: blocks of gg_winograd_kernels.rows rows, [term][row of the block]. Otherwise
                             row r is at scalars + r*scalar_row + k/GG_LANES*scalar_block + k%GG_LANES */
    int64_t scalar_row,
        scalar_block; /* scalar_row 0: packed in blocks; otherwise scalar_row or scalar_block is GG_LANES */
    const float *x;
    int64_t x_panel;
    float *y;
    int64_t y_row, y_panel, y_block;
    int places;
    int64_t scalars_place, x_place, y_place; /* from one place to the next */
} gg_winograd_product;

typedef struct gg_winograd_kernels {
    int panel; /* columns of a wide panel: a multiple of GG_LANES */
    int rows;  /* max rows of a block */
    int least; /* min lanes that transforms compute at a time, at most GG_LANES */
    /* Transforms an image to places: tiles of outputs + taps - 1 rows and columns for the input, of `outputs` for the
     * output's gradient. */
    void (*input)(const gg_winograd_tiles *tiles);
    void (*gradient)(const gg_winograd_tiles *tiles);
    /* Transforms places to an image, with bias and ReLU. Lanes that are not computed become zeros. */
    void (*output)(const gg_winograd_tiles *tiles);
    void (*weights)(const gg_winograd_weights *weights);         /* weights to places */
    void (*weight_gradient)(const gg_winograd_weights *weights); /* places to weights */
    void (*product)(const gg_winograd_product *product);
} gg_winograd_kernels;

#endif
