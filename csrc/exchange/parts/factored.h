/* Weight gradients of linear layers, computed where they are read. Instead of the gradient the layer's inputs and
 * errors are kept. Rows of it are computed a few at a time in memory that stays in cache, with the bits of the whole
 * (gg_backend.factors). So the gradient is neither written to memory nor read from there.
 *
 * In each step: gg_factored_input and gg_factored_error for each layer that is taken, in this order. Then
 * gg_factored_run or gg_factored_next for runs of a weight, one after the other from its first element on. Called by
 * one thread. */
#ifndef GG_EXCHANGE_PARTS_FACTORED_H
#define GG_EXCHANGE_PARTS_FACTORED_H

#include "exchange/optim/state.h"
#include "ops/arena_layout.h"
#include "ops/backend.h"

typedef struct gg_factored gg_factored;

/* A linear layer, and the max run of its weight, in whole lanes, that gg_factored_run is asked for. */
typedef struct gg_factored_wish {
    int layer;
    size_t run;
} gg_factored_wish;

/* The first parameter of a layer if it is the weight of a linear layer over flat samples; else NULL. */
const gg_parameter *gg_factored_weight(const gg_arena_layout *layout, int layer);
/* For the wished layers that have such a weight. *out NULL means that none has, or that the device lacks such kernels.
 */
gg_status gg_factored_create(gg_device *device, const gg_arena_layout *layout, const gg_factored_wish *wish, int wishes,
                             gg_factored **out);
/* Registers a whole arena whose elements are used where the gradient is read: prefetch it if convenient, earlier
 * registered arenas first. The gg_arena outlives this. */
void gg_factored_uses(gg_factored *factored, const gg_arena *arena);
void gg_factored_destroy(gg_factored *factored); /* NULL is a no-op */

/* *taken: this layer's weight gradient need not be computed in this step, and gg_factored_error must follow. False for
 * layers that were not wished. Allocates for the first batch and for larger ones than before. */
gg_status gg_factored_input(gg_factored *factored, int layer, const gg_vectors *input, bool *taken);
gg_status gg_factored_error(gg_factored *factored, int layer, const gg_vectors *error);
/* Returns the gradient of a run of the arenas, whole lanes, at most the wished count, with zeros behind a parameter's
 * end. The caller may write it; it is valid up to the next call. NULL means that the run is in no weight taken in this
 * step.
 */
float *gg_factored_run(gg_factored *factored, size_t offset, size_t count);
/* gg_gradient_source.run: returns as long a run as has been computed. */
const float *gg_factored_next(void *factored, size_t offset, size_t most, size_t *count);
/* Bytes of the kept vectors and of rows. */
size_t gg_factored_bytes(const gg_factored *factored);
/* Forgets the kept vectors. */
void gg_factored_end(gg_factored *factored);
/* Writes the kept layers' gradients into an array of all, as after a step without gg_factored. */
void gg_factored_write(gg_factored *factored, float *gradients);

#endif
