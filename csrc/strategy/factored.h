/* Private to the room: gradients of linear layers' weights that are computed where they are read. In place of such a
 * gradient the layer's inputs and errors are kept, and rows of it are computed, some at a time, in memory that stays in
 * cache, with the bits of the whole (gg_backend.factors). So it is neither written to memory nor read from there.
 *
 * In each step: gg_factored_input and gg_factored_error for each layer that is taken, in this order; then
 * gg_factored_run for runs of a weight, one behind the other; then gg_factored_end. */
#ifndef GG_STRATEGY_FACTORED_H
#define GG_STRATEGY_FACTORED_H

#include "backend/backend.h"
#include "compress/compression.h"

typedef struct gg_factored gg_factored;

/* For the weights among these segments, of which each is a parameter. *out NULL: there are none, or the device has no
 * such kernels. */
gg_status gg_factored_create(gg_device *device, const gg_arena_layout *layout, const gg_segment *segment, int segments,
                             gg_factored **out);
void gg_factored_destroy(gg_factored *factored); /* NULL is fine */

/* *taken: the gradient of this layer's weight need not be computed in this step, and gg_factored_error is called. Never
 * of a layer that it has not. Allocates with the first batches and with larger ones than before. */
gg_status gg_factored_input(gg_factored *factored, int layer, const gg_vectors *input, bool *taken);
gg_status gg_factored_error(gg_factored *factored, int layer, const gg_vectors *error);
/* The gradient of a run of elements of the arenas, whole lanes and no more than gg_pack_run of the segment's bins, with
 * zeros behind a parameter's end; it may be written, and is there up to the next call. NULL: it is of no weight that
 * has been taken in this step. */
float *gg_factored_run(gg_factored *factored, size_t offset, size_t count);
void gg_factored_end(gg_factored *factored);

#endif
