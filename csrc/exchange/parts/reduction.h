/* Private to the room: the weighted sum of a run of the arenas over ranks. Strategies hold reductions and do not know
 * how one comes about, which is decided at its creation. The calls are those of gg_allreduce and mean the same: the sum
 * is that of share[r] * data_r over r, the same bits on every rank (comm/allreduce.h), and is in `data`, but for
 * in_pieces. With a residue, (sum over the ranks of residue_r + share[r] * data_r) before a start is (sum over the
 * ranks of residue_r) + the sum afterwards; with `marks` the residues are those after gg_reduction_complete.
 *
 * Several may be in flight at once, each with a tag of its own: all ranks start them in one order, all of them before
 * they wait for one, and wait in the same order. After a failure nothing of a reduction is in flight. */
#ifndef GG_EXCHANGE_PARTS_REDUCTION_H
#define GG_EXCHANGE_PARTS_REDUCTION_H

#include "exchange/codec/packed.h"
#include "exchange/strategy.h"

typedef struct gg_reduction gg_reduction;

/* A run of the arenas, whole lanes from element `offset` on, and the sum there, with the lines that are filled; both
 * are valid during the call. */
typedef gg_pack_piece gg_reduction_piece;

typedef struct gg_reduction_table {
    gg_status (*start)(gg_reduction *reduction, float *data, const float *share);
    gg_status (*poll)(gg_reduction *reduction, bool *summed);
    gg_status (*wait)(gg_reduction *reduction);
    gg_status (*deliver)(gg_reduction *reduction, gg_reduction_piece *piece, void *context);
    gg_status (*finish)(gg_reduction *reduction);
    void (*complete)(gg_reduction *reduction);
    void (*destroy)(gg_reduction *reduction);
    /* NULL where `takes` is always false. */
    gg_status (*input)(gg_reduction *reduction, int layer, const gg_vectors *input, bool *taken);
    gg_status (*error)(gg_reduction *reduction, int layer, const gg_vectors *error);
    void (*need)(gg_reduction *reduction, int layer, gg_weight_rows *rows); /* NULL: all is delivered at once */
    bool (*can_wait)(const gg_reduction *reduction);                        /* NULL: never */
    bool (*is_asked)(const gg_reduction *reduction);                        /* likewise */
} gg_reduction_table;

/* The first member of every kind of reduction. */
struct gg_reduction {
    const gg_reduction_table *table;
    size_t bytes; /* of this rank's part of the last sum, as it travels */
    bool takes;   /* inputs and errors of some layers, in place of gradients (gg_reduction_input) */
};

typedef struct gg_reduction_run {
    gg_transport *group;  /* the ranks that sum: the owner's, or some of them */
    size_t offset, count; /* elements of the arenas, whole lanes */
    int tag;
    int64_t period; /* steps of the owner from one sum to the next; 0: 1 */
    /* What is made of values that do not arrive as they were: those of gg_allreduce_form. With a residue `applied` gets
     * what this rank sends, weighted by its share, before the sum is there. */
    float *applied, *rest;
    bool displaces;
    /* NULL: every value travels. Else packed messages do, and what is not sent goes there: an arena, private, given by
     * its element 0. No parameter is in two runs then, and owner->step says which of the first steps travel dense.
     * `rest` and `displaces` have no meaning. */
    float *residue;
    /* The sum is read by gg_reduction_deliver alone: what `data` holds is undefined from the start on, so that the sum
     * of packed messages need not be an array. */
    bool in_pieces;
    bool accumulates; /* packed: data go through gg_updater_accumulate before they are chosen from or travel */
    bool marks;       /* packed: the owner calls gg_reduction_complete before anybody else looks at the residue */
    gg_compression_counts *counts; /* packed: what is sent is added to it */
} gg_reduction_run;

/* Collective, in one order on all ranks of the group. Waits count as the owner's, in whose trace they are seen. */
gg_status gg_reduction_create(gg_strategy *owner, const gg_strategy_options *options, const gg_reduction_run *run,
                              gg_reduction **out);
/* Cancels what is in flight; NULL is fine. */
static inline void gg_reduction_destroy(gg_reduction *reduction) {
    if (reduction != NULL) reduction->table->destroy(reduction);
}

/* Sends, and returns at once. `data` must not be touched before the sum is there, and not be written before the finish.
 * share[size of the group] must remain valid until the sum is there. */
static inline gg_status gg_reduction_start(gg_reduction *reduction, float *data, const float *share) {
    return reduction->table->start(reduction, data, share);
}

/* Continues without waiting, as far as messages have arrived. *summed: the sum is there, for gg_reduction_deliver, and
 * without in_pieces in data; also if nothing was started. */
static inline gg_status gg_reduction_poll(gg_reduction *reduction, bool *summed) {
    return reduction->table->poll(reduction, summed);
}

/* Until the sum is there. */
static inline gg_status gg_reduction_wait(gg_reduction *reduction) { return reduction->table->wait(reduction); }

/* Whether there may be rows that are asked for, on this or another rank, and no other rank waits for more than to
 * receive what this one has sent: then there is time for the wait up to the next use of what is summed, and for the
 * finish up to the next start. The shares are not read any more; the data must be left alone up to the deliver. A poll
 * before may make it so. */
static inline bool gg_reduction_can_wait(const gg_reduction *reduction) {
    return reduction->table->can_wait != NULL && reduction->table->can_wait(reduction);
}

/* Whether rows of the next sum, or of the one in flight, have been asked for (gg_reduction_need). */
static inline bool gg_reduction_is_asked(const gg_reduction *reduction) {
    return reduction->table->is_asked != NULL && reduction->table->is_asked(reduction);
}

/* The sum is there: calls `piece` with runs that cover each element once, but for padding where the sum is zero. With
 * in_pieces it is called once a sum, before the finish; and where rows have been asked for, `piece` and its context are
 * valid up to gg_reduction_need. */
static inline gg_status gg_reduction_deliver(gg_reduction *reduction, gg_reduction_piece *piece, void *context) {
    return reduction->table->deliver(reduction, piece, context);
}

/* Until the peers have read it, too: data may be written. */
static inline gg_status gg_reduction_finish(gg_reduction *reduction) { return reduction->table->finish(reduction); }

/* Nothing is in flight: what has been sent leaves the residue, where it had been marked. */
static inline void gg_reduction_complete(gg_reduction *reduction) { reduction->table->complete(reduction); }

/* A linear layer's inputs and the errors of its outputs, offered before the start. Where the inputs are `taken`, `data`
 * need not hold the gradient of the layer's weight, and the errors follow. The vectors are read before the calls
 * return.
 */
static inline gg_status gg_reduction_input(gg_reduction *reduction, int layer, const gg_vectors *input, bool *taken) {
    *taken = false;
    return reduction->takes ? reduction->table->input(reduction, layer, input, taken) : GG_OK;
}
static inline gg_status gg_reduction_error(gg_reduction *reduction, int layer, const gg_vectors *error) {
    return reduction->table->error(reduction, layer, error);
}

#define GG_ALL_LAYERS (-1)

/* Delivers what has been left for this layer's next use, or with GG_ALL_LAYERS for any. rows not NULL: asks that of the
 * layer's weight what the next sum brings be left so, which it may be; and where it has been, rows->make delivers it,
 * as gg_weight_rows says, before any other call. */
static inline void gg_reduction_need(gg_reduction *reduction, int layer, gg_weight_rows *rows) {
    if (reduction->table->need != NULL) reduction->table->need(reduction, layer, rows);
}

/* All of it, blocking. */
static inline gg_status gg_reduction_run_all(gg_reduction *reduction, float *data, const float *share) {
    const gg_status status = gg_reduction_start(reduction, data, share);
    return status == GG_OK ? gg_reduction_finish(reduction) : status;
}

/* ---- its kinds ---- */

/* By gg_allreduce: every value travels. */
gg_status gg_dense_reduction_create(gg_strategy *owner, const gg_strategy_options *options, const gg_reduction_run *run,
                                    gg_reduction **out);

/* By packed messages; run->residue is not NULL. */
gg_status gg_packed_reduction_create(gg_strategy *owner, const gg_strategy_options *options,
                                     const gg_reduction_run *run, gg_reduction **out);

#endif
