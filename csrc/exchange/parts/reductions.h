/* Private to the room: the reductions of a strategy that sums its gradients, one a chunk of its buckets, and what all
 * such strategies do with them alike. The strategy owns the buckets; it starts the reductions, waits for them, and
 * names the layers where that fails. */
#ifndef GG_EXCHANGE_PARTS_REDUCTIONS_H
#define GG_EXCHANGE_PARTS_REDUCTIONS_H

#include "exchange/parts/buckets.h"
#include "exchange/parts/reduction.h"

typedef struct gg_reductions {
    gg_strategy *owner;
    const gg_buckets *buckets; /* borrowed */
    gg_reduction **of_chunk;   /* NULL: none have been created */
    struct gg_summed *summed;  /* one a chunk */
    int left;                  /* sums that are waited for where the next step needs them */
    bool takes;                /* one of them takes inputs and errors (gg_reduction.takes) */
} gg_reductions;

/* run: of all of them, but for offset and count, which are the chunk's, and tags, which count from run->tag. Collective
 * as gg_reduction_create. After a failure gg_reductions_destroy ends what there is. */
gg_status gg_reductions_create(gg_strategy *owner, const gg_strategy_options *options, const gg_buckets *buckets,
                               const gg_reduction_run *run, gg_reductions *out);
void gg_reductions_destroy(gg_reductions *reductions); /* all zero is fine */

/* Adds the layers of a chunk, and the step, to the message of a failure, and returns it. */
gg_status gg_reductions_at(const gg_reductions *reductions, int chunk, gg_status status);

/* gg_reduction_start of a chunk of this step's gradients. */
gg_status gg_reductions_start(gg_reductions *reductions, int chunk, const float *share);

/* gg_reduction_finish of a chunk; a failure names the layers, and the step whose gradients were summed. */
gg_status gg_reductions_finish(const gg_reductions *reductions, int chunk);

/* The sum of a chunk of this step is there: the weights are updated, but where rows have been asked for. */
gg_status gg_reductions_update(gg_reductions *reductions, int chunk);

/* Leaves the sum of a chunk of this step to gg_reductions_need, if rows of it have been asked for and it can wait; else
 * *left is false. A failure names the layers, as one of the next two does. */
gg_status gg_reductions_leave(gg_reductions *reductions, int chunk, bool *left);

/* gg_strategy_table.need; and with rows, gg_strategy.need_rows: if the layer's sum has been left, it is waited for, and
 * the weights are updated. */
gg_status gg_reductions_need(gg_reductions *reductions, int layer, gg_weight_rows *rows);

/* The same of all that has been left. */
gg_status gg_reductions_need_all(gg_reductions *reductions);

/* Nothing is in flight: what rows have been left are updated, and what has been sent leaves the residues. */
void gg_reductions_settle(const gg_reductions *reductions);

/* gg_reduction_complete of all. */
void gg_reductions_complete(const gg_reductions *reductions);

/* gg_reduction_input and gg_reduction_error of the reduction whose bucket has this layer; a failure names the layer. */
gg_status gg_reductions_input(const gg_reductions *reductions, int layer, const gg_vectors *input, bool *taken);
gg_status gg_reductions_error(const gg_reductions *reductions, int layer, const gg_vectors *error);

#endif
