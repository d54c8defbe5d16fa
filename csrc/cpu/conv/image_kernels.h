/* Products of bfloat16, summed in float32 (AMX), for the weight gradient of a convolution with few input channels.
 *
 * A tap is a channel at a place of the window. Tiles cover a run of 32 neighbouring pixels of an output row. A tile of
 * taps has one tap a row, with the 32 numbers that the tap sees; it has 16 rows. A tile of errors has 16 rows of two
 * pixels: the pairs of 16 filters. Their product is a tile of 16 taps by 16 filters.
 *
 * Kernels are single-threaded, allocate nothing and have no state. Tiles are 64-byte aligned. */
#ifndef GG_CPU_CONV_IMAGE_KERNELS_H
#define GG_CPU_CONV_IMAGE_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cpu.h"

enum {
    GG_IMAGE_SIDE = 16,   /* taps or filters of a tile */
    GG_IMAGE_PIXELS = 32, /* pixels of a tile */
    GG_IMAGE_TILE = GG_IMAGE_SIDE * GG_IMAGE_PIXELS
};

/* Turns a row of errors into tiles. Run k of group g of 16 filters is at to + g*group + k*GG_IMAGE_TILE. Missing pixels
 * and filters give zeros. */
typedef struct gg_image_errors {
    int64_t pixels, filters;
    const uint16_t *from; /* pixel i, filter f at from[i*filters + f] */
    uint16_t *to;
    int64_t group; /* bfloat16 from a group to the next */
} gg_image_errors;

/* sums[tap][filter] = sum over the pixels of `runs` tiles; add: added to the stored values. Denormal numbers may count
 * as 0. The instruction set fixes the order of a sum. */
typedef struct gg_image_product {
    int64_t tap_groups, filter_groups, runs;
    const uint16_t *taps, *errors; /* run k of group g at (g*runs + k)*GG_IMAGE_TILE */
    float *sums;                   /* rows of filter_groups*GG_IMAGE_SIDE */
    bool add;
} gg_image_product;

typedef struct gg_image_kernels {
    void (*pack_errors)(const gg_image_errors *errors);
    void (*multiply)(const gg_image_product *product);
} gg_image_kernels;

#endif
