/* Convolutions of float32 on units that multiply bfloat16 and add in float32 (AMX); cpu/gemm/split_kernels.h says how
 * numbers are split, and what that costs in accuracy.
 *
 * A point is a pixel of a block of sixteen channels: sixteen floats, or split: sixteen pairs (high, middle), then
 * sixteen pairs (high, low). A tile of 32 terms is so a run of sixteen points, wherever it begins, and three products
 * of tiles give the six products of parts: (high, middle) * (high, high) + (high, middle) * (middle, middle) + (high,
 * low) * (low, high) where the second factor is that of the weights, or of the output's gradient.
 *
 * Kernels are single-threaded, allocate nothing and have no state; memory is 64-byte aligned. */
#ifndef GG_CPU_CONV_SPLIT_CONV_KERNELS_H
#define GG_CPU_CONV_SPLIT_CONV_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"

enum {
    GG_SPLIT_POINTS = 16,      /* of a tile; also channels of a point */
    GG_SPLIT_POINT = 64,       /* bfloat16 of a split point */
    GG_SPLIT_FACTOR = 3 * 512, /* bfloat16 of the three tiles of sixteen rows of the second factor */
    GG_SPLIT_RUN = 4           /* tiles of points, or places of the window, that are computed at a time */
};

/* Where a place of the window finds its points, and its weights, in bfloat16. */
typedef struct gg_split_step {
    int64_t points, weights;
} gg_split_step;

/* sums[point][row] = sum over steps and channels: up to GG_SPLIT_RUN tiles of points that follow each other. */
typedef struct gg_split_forward {
    const gg_split_step *step;
    int64_t steps;
    const uint16_t *points, *weights;
    int tiles;
    float *sums;
    /* What is fetched into caches meanwhile, so many lines a step: to be read soon, and to be written next. */
    const float *ahead, *target;
    int64_t ahead_lines, target_lines;
} gg_split_forward;

/* sums[place][row][channel] of up to GG_SPLIT_RUN places: sum over points of the output's gradient, turned, times the
 * points `step` behind. add: that sum is added to what is there. */
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
    /* Sixteen rows of sixteen floats, as they lie, become the second factor: weights[channel][row]. */
    void (*weights)(const float *from, uint16_t *to);
    /* Tiles of sixteen points become second factors, channels in rows. */
    void (*turn)(int64_t tiles, const float *from, uint16_t *to);
    void (*forward)(const gg_split_forward *run);
    void (*gradient)(const gg_split_gradient *run);
    /* Points from sums, with sixteen biases (NULL: zeros) and ReLU, which leaves NaN. */
    void (*finish)(int64_t points, const float *sums, const float *bias, bool relu, float *to, int64_t step);
} gg_split_conv_kernels;

#endif
