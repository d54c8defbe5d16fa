/* Gradients of linear layers' weights that are computed where they are read. In place of such a gradient the layer's
 * inputs and errors are kept, and rows of it are computed, some at a time, in memory that stays in cache, with the bits
 * of the whole (gg_backend.factors). So it is neither written to memory nor read from there.
 *
 * In each step: gg_factored_input and gg_factored_error for each layer that is taken, in this order; then
 * gg_factored_run, or gg_factored_next, for runs of a weight, one behind the other from its first element on. Called by
 * one thread. */
#ifndef GG_EXCHANGE_PARTS_FACTORED_H
#define GG_EXCHANGE_PARTS_FACTORED_H

#include "exchange/optim/state.h"
#include "ops/arena_layout.h"
#include "ops/backend.h"

typedef struct gg_factored gg_factored;

/* A linear layer, and the longest run of its weight, whole lanes, that gg_factored_run is asked for. */
typedef struct gg_factored_wish {
    int layer;
    size_t run;
} gg_factored_wish;

/* The first parameter of a layer, where it is the weight of a linear layer over flat samples; else NULL. */
const gg_parameter *gg_factored_weight(const gg_arena_layout *layout, int layer);
/* For those of these layers that have such a weight. *out NULL: there are none, or the device has no such kernels. */
gg_status gg_factored_create(gg_device *device, const gg_arena_layout *layout, const gg_factored_wish *wish, int wishes,
                             gg_factored **out);
/* Where the gradient is read, elements of this arena are used as well: they may be fetched into cache while
 * it is computed, the first arenas first. Whole arenas, whose gg_arena outlives this. */
void gg_factored_uses(gg_factored *factored, const gg_arena *arena);
void gg_factored_destroy(gg_factored *factored); /* NULL is fine */

/* *taken: the gradient of this layer's weight need not be computed in this step, and gg_factored_error is called. Never
 * of a layer that it has not. Allocates with the first batches and with larger ones than before. */
gg_status gg_factored_input(gg_factored *factored, int layer, const gg_vectors *input, bool *taken);
gg_status gg_factored_error(gg_factored *factored, int layer, const gg_vectors *error);
/* The gradient of a run of elements of the arenas, whole lanes and no more than was wished, with zeros behind a
 * parameter's end; it may be written, and is there up to the next call. NULL: it is of no weight that has been taken in
 * this step. */
float *gg_factored_run(gg_factored *factored, size_t offset, size_t count);
/* gg_gradient_source.run: as long a run as has been computed. */
const float *gg_factored_next(void *factored, size_t offset, size_t most, size_t *count);
/* Of what is kept, and of rows. */
size_t gg_factored_bytes(const gg_factored *factored);
/* Forgets what has been kept. */
void gg_factored_end(gg_factored *factored);
/* Writes the gradients of what is kept into an array of all, where they are after a step without gg_factored. */
void gg_factored_write(gg_factored *factored, float *gradients);

#endif
