/* Private to the room: what a step is thought to cost where nothing better is known. */
#ifndef GG_TRAIN_COSTS_PRIVATE_H
#define GG_TRAIN_COSTS_PRIVATE_H

/* The rate of arithmetic: that of a modest core. */
#define GG_MODEL_FLOPS_PER_SECOND 50e9
/* Sizes of buckets and chunks are tuned before the batch size is known. It is assumed to be this, or so small that a
 * step needs no more than this part of the time. */
#define GG_USUAL_BATCH 64
#define GG_LEAST_OF_USUAL (1.0 / 64)

#endif
