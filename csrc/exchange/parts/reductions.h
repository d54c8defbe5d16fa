/* Private to the room: the reductions of a strategy that sums gradients, one a chunk of its buckets, and the code that
 * all such strategies share. The strategy owns the buckets, starts the reductions and waits for them. Errors name the
 * layers. */
#ifndef GG_EXCHANGE_PARTS_REDUCTIONS_H
#define GG_EXCHANGE_PARTS_REDUCTIONS_H

#include "exchange/parts/buckets.h"
#include "exchange/parts/reduction.h"

typedef struct gg_reductions {
    gg_strategy *owner;
    const gg_buckets *buckets; /* borrowed */
    gg_reduction **of_chunk;   /* NULL means that none were created */
    bool takes;                /* some reduction takes inputs and errors (gg_reduction.takes) */
} gg_reductions;

/* Creates a reduction for each chunk from `run`; offset and count become the chunk's, tags count from run->tag.
 * Collective, as gg_reduction_create. After a failure gg_reductions_destroy frees the created ones. */
gg_status gg_reductions_create(gg_strategy *owner, const gg_strategy_options *options, const gg_buckets *buckets,
                               const gg_reduction_run *run, gg_reductions *out);
void gg_reductions_destroy(gg_reductions *reductions); /* all zero is a no-op */

/* Adds the layers of a chunk, and the step, to the message of a failure, and returns it. */
gg_status gg_reductions_at(const gg_reductions *reductions, int chunk, gg_status status);

/* gg_reduction_start of a chunk, with this step's gradients. */
gg_status gg_reductions_start(gg_reductions *reductions, int chunk, const float *share);

/* gg_reduction_finish of a chunk whose sum is complete. A failure names the layers. A death is none: nothing is missing
 * here, and a peer that has not read yet may miss it. */
gg_status gg_reductions_finish(const gg_reductions *reductions, int chunk);

/* Updates the weights with a chunk's complete sum of this step. */
gg_status gg_reductions_update(gg_reductions *reductions, int chunk);

/* gg_reduction_complete of all reductions; gg_reduction_cancel of all. */
void gg_reductions_complete(const gg_reductions *reductions);
void gg_reductions_cancel(const gg_reductions *reductions);

/* gg_reduction_input and gg_reduction_error of the reduction whose bucket has this layer. A failure names the layer. */
gg_status gg_reductions_input(const gg_reductions *reductions, int layer, const gg_vectors *input, bool *taken);
gg_status gg_reductions_error(const gg_reductions *reductions, int layer, const gg_vectors *error);

#endif
