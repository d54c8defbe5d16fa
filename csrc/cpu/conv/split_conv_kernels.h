/* Convolutions of float32 on units that multiply bfloat16 and add in float32 (AMX). cpu/gemm/split_kernels.h describes
 * how numbers are split and the loss of accuracy.
 *
 * A point is a pixel of a block of 16 channels: 16 floats. A split point has 16 pairs (high, middle), then 16 pairs
 * (high, low). A run of 16 points is therefore a tile of 32 terms, wherever the run begins. Three products of tiles
 * give the six products of parts:
 *     (high, middle) * (high, high) + (high, middle) * (middle, middle) + (high, low) * (low, high)
 * The second factor is the weights, or the output's gradient.
 *
 * Kernels are single-threaded, allocate nothing and have no state. Memory is 64-byte aligned. */
#ifndef GG_CPU_CONV_SPLIT_CONV_KERNELS_H
#define GG_CPU_CONV_SPLIT_CONV_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"

enum {
    GG_SPLIT_POINTS = 16,      /* points of a tile; also channels of a point */
    GG_SPLIT_POINT = 64,       /* bfloat16 of a split point */
    GG_SPLIT_FACTOR = 3 * 512, /* bfloat16 of the second factor's three tiles of 16 rows */
    GG_SPLIT_RUN = 4           /* tiles of points, or places of the window, computed at a time */
};

/* Offsets, in bfloat16, of the points and of the weights of one place of the window. */
typedef struct gg_split_step {
    int64_t points, weights;
} gg_split_step;

/* sums[point][row] = sum over steps and channels, for up to GG_SPLIT_RUN consecutive tiles of points. */
typedef struct gg_split_forward {
    const gg_split_step *step;
    int64_t steps;
    const uint16_t *points, *weights;
    int tiles;
    float *sums;
    /* Prefetched meanwhile, a number of lines each step: `ahead` is read soon, `target` is written next. */
    const float *ahead, *target;
    int64_t ahead_lines, target_lines;
} gg_split_forward;

/* sums[place][row][channel] = sum over points of the transposed output gradient times the points `step` later. Up to
 * GG_SPLIT_RUN places. add: added to the stored values. */
typedef struct gg_split_gradient {
    const uint16_t *turned, *points;
    int64_t tiles;
    const gg_split_step *step;
    int places;
    float *sums;
    bool add;
} gg_split_gradient;

typedef struct gg_split_conv_kernels {
    /* step: floats from a point to the next. */
    void (*split)(int64_t points, const float *from, int64_t step, uint16_t *to);
    /* Turns 16 rows of 16 floats into the second factor: weights[channel][row]. */
    void (*weights)(const float *from, uint16_t *to);
    /* Transposes tiles of 16 points into second factors, with channels in rows. */
    void (*turn)(int64_t tiles, const float *from, uint16_t *to);
    void (*forward)(const gg_split_forward *run);
    void (*gradient)(const gg_split_gradient *run);
    /* Makes points from sums: adds 16 biases (NULL means zeros) and applies ReLU, which keeps NaN. */
    void (*finish)(int64_t points, const float *sums, const float *bias, bool relu, float *to, int64_t step);
} gg_split_conv_kernels;

#endif
