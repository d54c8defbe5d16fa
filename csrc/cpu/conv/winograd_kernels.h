/* The kernels behind Winograd's convolution (cpu/conv/winograd.c says how it goes): one set for each instruction-set
 * level. A vector here is GG_LANES floats: samples of one channel where activations lie BATCH_LAST, channels of one
 * sample where they lie CHANNELS16. Kernels are single-threaded, allocate nothing and have no state. Distances are in
 * floats. */
#ifndef GG_CPU_CONV_WINOGRAD_KERNELS_H
#define GG_CPU_CONV_WINOGRAD_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"

/* F(2x2,3x3) has tiles of 4 x 4 places, F(4x4,3x3) and F(2x2,5x5) of 6 x 6, F(6x6,3x3) and F(4x4,5x5)
 * of 8 x 8.
 *
 * The same tile of `count` planes of an image. */
typedef struct gg_winograd_tiles {
    int outputs; /* of a tile along one axis: 2, 4, or 6 with 3 taps */
    int taps;    /* weights along one axis: 3 or 5 */
    int64_t count;
    int lanes;          /* of each vector that are computed: GG_LANES, or gg_winograd_kernels.least */
    float *image;       /* the tile's first element in the first plane, also where that lies in the padding */
    const float *ahead; /* the same of another tile, whose image is prefetched; NULL: none */
    int64_t plane, row, pixel;
    int begin[2], end[2]; /* the rows and columns of the tile that lie in the image */
    float *places;        /* vector i of place p: places + p*place_step + i*step */
    int64_t place_step, step;
    const float *bias; /* of plane i: a scalar, or a vector, at bias + i*bias_step; NULL: zeros */
    int64_t bias_step;
    bool bias_vectors, relu;
} gg_winograd_tiles;

/* Kernels of taps x taps weights, one a lane: lane l of element i is at weights + l*lane_step + i*step, and its places
 * follow each other at places + p*place_step + i*places_step. */
typedef struct gg_winograd_weights {
    int outputs, taps;
    int lanes, stored; /* lanes there are, and of places written, at most GG_LANES; those behind are 0 */
    int64_t count;
    float *weights;
    int64_t lane_step, step;
    float *places;
    int64_t place_step, places_step;
    bool rotated; /* by half a turn, for the way back */
} gg_winograd_weights;

/* y[r*y_row + column] = sum over terms k of scalar(r, k) * x[column], for panels of columns: panel p begins at
 * x + p*x_panel, has a row of `panel` floats for each term, and its result is at y + p*y_panel, where every GG_LANES
 * columns begin y_block behind those before. Place after place, each with operands and a result of its own.
 * Terms are summed GG_WINOGRAD_TERMS at a time, and these sums then added: that halves the error of long sums. With
 * scalar_row GG_LANES, what is left of less than GG_LANES terms is a sum of its own. */
#define GG_WINOGRAD_TERMS 64
typedef struct gg_winograd_product {
    int64_t rows, terms, panels;
    int panel;            /* gg_winograd_kernels.panel; or GG_LANES, where scalar_row is GG_LANES too */
    const float *scalars; /* of blocks of gg_winograd_kernels.rows: [term][row of the block]; or, with scalar_row, of
                             row r at scalars + r*scalar_row + k/GG_LANES*scalar_block + k%GG_LANES */
    int64_t scalar_row, scalar_block; /* scalar_row 0: packed in blocks; else one of them is GG_LANES */
    const float *x;
    int64_t x_panel;
    float *y;
    int64_t y_row, y_panel, y_block;
    int places;
    int64_t scalars_place, x_place, y_place; /* from one place to the next */
} gg_winograd_product;

typedef struct gg_winograd_kernels {
    int panel; /* columns of a wide panel: a multiple of GG_LANES */
    int rows;  /* most rows of a block */
    int least; /* lanes that transforms compute at a time, at most GG_LANES */
    /* image to places: of the input, tiles of outputs + taps - 1 rows and columns; of the output's gradient, of
     * `outputs`. */
    void (*input)(const gg_winograd_tiles *tiles);
    void (*gradient)(const gg_winograd_tiles *tiles);
    /* places to image, with bias and ReLU; zeros in the lanes that are not computed. */
    void (*output)(const gg_winograd_tiles *tiles);
    void (*weights)(const gg_winograd_weights *weights);         /* weights to places */
    void (*weight_gradient)(const gg_winograd_weights *weights); /* places to weights */
    void (*product)(const gg_winograd_product *product);
} gg_winograd_kernels;

#endif
