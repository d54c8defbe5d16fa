/* Private to the room: the weighted sum of a run of the arenas over ranks. Strategies hold reductions without knowing
 * their kind, which their creation decides.
 *
 * The calls are those of gg_allreduce (comm/allreduce.h). The sum is that of share[r] * data_r over r, with equal bits
 * on every rank, and is stored in `data` unless in_pieces. With a residue nothing is lost: (sum over the ranks of
 * residue_r + share[r] * data_r) before a start equals (sum over the ranks of residue_r) + the sum afterwards. With
 * `marks` this holds for the residues after gg_reduction_complete.
 *
 * Several reductions may be in flight at once, each with its own tag. All ranks start them in one order, all before
 * they wait for one, and wait in that order. After a failure nothing of a reduction is in flight. */
#ifndef GG_EXCHANGE_PARTS_REDUCTION_H
#define GG_EXCHANGE_PARTS_REDUCTION_H

#include "exchange/codec/packed.h"
#include "exchange/strategy.h"

typedef struct gg_reduction gg_reduction;

/* Receives a run of the arenas, whole lanes from element `offset` on, the sum there, and its filled lines. Both are
 * valid during the call. */
typedef gg_pack_piece gg_reduction_piece;

typedef struct gg_reduction_table {
    gg_status (*start)(gg_reduction *reduction, float *data, const float *share);
    gg_status (*poll)(gg_reduction *reduction, bool *summed);
    gg_status (*wait)(gg_reduction *reduction);
    gg_status (*deliver)(gg_reduction *reduction, gg_reduction_piece *piece, void *context);
    gg_status (*finish)(gg_reduction *reduction);
    void (*complete)(gg_reduction *reduction);
    void (*cancel)(gg_reduction *reduction);
    void (*destroy)(gg_reduction *reduction);
    /* NULL if `takes` is always false. */
    gg_status (*input)(gg_reduction *reduction, int layer, const gg_vectors *input, bool *taken);
    gg_status (*error)(gg_reduction *reduction, int layer, const gg_vectors *error);
} gg_reduction_table;

/* First member of every kind of reduction. */
struct gg_reduction {
    const gg_reduction_table *table;
    size_t bytes; /* of this rank's part of the last sum, on the wire */
    bool takes;   /* inputs and errors of some layers instead of gradients (gg_reduction_input) */
};

typedef struct gg_reduction_run {
    gg_transport *group;  /* the ranks that sum: all of the owner's, or some */
    size_t offset, count; /* elements of the arenas, whole lanes */
    int tag;
    int64_t period; /* steps of the owner from one sum to the next; 0 means 1 */
    /* Handling of values that the wire rounds, as in gg_allreduce_form. With a residue, `applied` receives the values
     * that this rank sends, weighted by its share, before the sum is complete. */
    float *applied, *rest;
    bool displaces;
    /* NULL means that every value travels. Else packed messages travel, and unsent values go to this arena, private,
     * given by its element 0. No parameter is in two runs then, and owner->step decides which first steps travel dense.
     * `rest` and `displaces` are ignored. */
    float *residue;
    /* Only gg_reduction_deliver reads the sum: `data` is undefined from the start on. So a sum of packed messages need
     * not be an array. */
    bool in_pieces;
    bool accumulates;              /* packed: data pass gg_updater_accumulate before they are chosen from or sent */
    bool marks;                    /* packed: the owner calls gg_reduction_complete before others read the residue */
    gg_compression_counts *counts; /* packed: counts sent values */
} gg_reduction_run;

/* Creates the kind that `run` asks for. Collective, in one order on all ranks of the group. Waits count as the owner's
 * and appear in its trace. */
gg_status gg_reduction_create(gg_strategy *owner, const gg_strategy_options *options, const gg_reduction_run *run,
                              gg_reduction **out);
/* Cancels a sum in flight; NULL is a no-op. */
static inline void gg_reduction_destroy(gg_reduction *reduction) {
    if (reduction != NULL) reduction->table->destroy(reduction);
}

/* Sends and returns at once. `data` must not be touched before the sum is complete, nor written before the finish.
 * share[size of the group] stays valid until the sum is complete. */
static inline gg_status gg_reduction_start(gg_reduction *reduction, float *data, const float *share) {
    return reduction->table->start(reduction, data, share);
}

/* Continues without waiting, as far as messages have arrived. *summed: the sum is complete, for gg_reduction_deliver
 * and, without in_pieces, in data. Also true if nothing was started. */
static inline gg_status gg_reduction_poll(gg_reduction *reduction, bool *summed) {
    return reduction->table->poll(reduction, summed);
}

/* Waits until the sum is complete. */
static inline gg_status gg_reduction_wait(gg_reduction *reduction) { return reduction->table->wait(reduction); }

/* Calls `piece` on the complete sum with runs that cover each element once, but for padding where the sum is zero. With
 * in_pieces, called once a sum, before the finish. */
static inline gg_status gg_reduction_deliver(gg_reduction *reduction, gg_reduction_piece *piece, void *context) {
    return reduction->table->deliver(reduction, piece, context);
}

/* Waits until the peers have read the data too: data may be written. */
static inline gg_status gg_reduction_finish(gg_reduction *reduction) { return reduction->table->finish(reduction); }

/* Subtracts sent values that were only marked from the residue. Nothing is in flight. */
static inline void gg_reduction_complete(gg_reduction *reduction) { reduction->table->complete(reduction); }

/* Everything in flight is lost: the next sum may be started. */
static inline void gg_reduction_cancel(gg_reduction *reduction) { reduction->table->cancel(reduction); }

/* Offers a linear layer's inputs and the errors of its outputs, before the start. If the inputs are `taken`, `data`
 * need not hold the gradient of the layer's weight, and the errors must follow. The vectors are read before the calls
 * return. */
static inline gg_status gg_reduction_input(gg_reduction *reduction, int layer, const gg_vectors *input, bool *taken) {
    *taken = false;
    return reduction->takes ? reduction->table->input(reduction, layer, input, taken) : GG_OK;
}
static inline gg_status gg_reduction_error(gg_reduction *reduction, int layer, const gg_vectors *error) {
    return reduction->table->error(reduction, layer, error);
}

/* Starts, waits and finishes. */
static inline gg_status gg_reduction_run_all(gg_reduction *reduction, float *data, const float *share) {
    const gg_status status = gg_reduction_start(reduction, data, share);
    return status == GG_OK ? gg_reduction_finish(reduction) : status;
}

/* ---- kinds ---- */

/* By gg_allreduce: every value travels. */
gg_status gg_dense_reduction_create(gg_strategy *owner, const gg_strategy_options *options, const gg_reduction_run *run,
                                    gg_reduction **out);

/* By packed messages; run->residue is not NULL. */
gg_status gg_packed_reduction_create(gg_strategy *owner, const gg_strategy_options *options,
                                     const gg_reduction_run *run, gg_reduction **out);

#endif
