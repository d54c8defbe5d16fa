/* Products for the gradient of the weights of a convolution whose input has few channels, of bfloat16 that are added in
 * float32 (AMX).
 *
 * A channel at a place of the window is a tap. Of a run of 32 pixels that follow each other in a row of the output, a
 * tile of taps has the 32 numbers that each of sixteen taps sees, one tap a row; a tile of errors has sixteen rows of
 * two pixels: the pairs of sixteen filters. Their product is a tile of sixteen taps by sixteen filters.
 *
 * Kernels are single-threaded, allocate nothing and have no state; tiles are 64-byte aligned. */
#ifndef GG_CPU_CONV_IMAGE_KERNELS_H
#define GG_CPU_CONV_IMAGE_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cpu.h"

enum {
    GG_IMAGE_SIDE = 16,   /* taps or filters of a tile */
    GG_IMAGE_PIXELS = 32, /* of a tile */
    GG_IMAGE_TILE = GG_IMAGE_SIDE * GG_IMAGE_PIXELS
};

/* A row of errors becomes tiles: run k of group g of sixteen filters at to + g*group + k*GG_IMAGE_TILE, with zeros
 * where there are no more pixels or filters. */
typedef struct gg_image_errors {
    int64_t pixels, filters;
    const uint16_t *from; /* pixel i, filter f at from[i*filters + f] */
    uint16_t *to;
    int64_t group; /* bfloat16 from a group to the next */
} gg_image_errors;

/* sums[tap][filter] = sum over the pixels of `runs` tiles; add: that sum is added to what is there. Denormal numbers
 * may count as 0, and the order of a sum is the instruction set's. */
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
