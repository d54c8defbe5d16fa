/* Shrinking a network in the middle of its training: redundant units of the consensus model are merged and leave.
 *
 * A shrink has two parts. A plan says what would leave and what the consensus model would lose by it; making one
 * changes nothing but that everything in flight is completed, so a plan that is not applied has undone nothing.
 * Applying it reshapes all replicas (gg_trainer_reshape): weights and residues are folded and selected, moments
 * selected.
 *
 * Every function is collective over the trainer's team, and what it gives is the same on all ranks: rank 0 alone
 * chooses what leaves. */
#ifndef GG_TRAIN_SHRINK_H
#define GG_TRAIN_SHRINK_H

#include "apoptosis/merge.h"
#include "train/trainer.h"

typedef struct gg_shrink {
    const double *budget; /* one a group of units, 0 to 1: as gg_merge_options.budget */
    const bool *groups;   /* one a group: whether its units may leave; NULL: all that can */
    const int *least;     /* likewise: so many of its units stay at least, 1 or more */
    /* What the loss is compared on, the same set on all ranks, each of which evaluates a part of it; NULL: it is not.
     */
    const gg_dataset *probe;
    int64_t batch;  /* samples at once, at least 1; with a probe */
    double epsilon; /* accepted where loss after <= loss before + epsilon * |loss before|; finite */
} gg_shrink;

/* Immutable. Outlives neither the trainer nor the network that it is of. */
typedef struct gg_shrink_plan gg_shrink_plan;

/* The caller destroys `out`. Budgets and groups are those of gg_units_find of the trainer's network. GG_ERROR_NUMERIC,
 * on all ranks: weights that are not finite. On all ranks, with the rank's number: what one cannot evaluate or has no
 * memory for. An error, unless it is one of messages, leaves the trainer as it is. */
gg_status gg_trainer_plan_shrink(gg_trainer *trainer, const gg_shrink *shrink, gg_shrink_plan **out);
void gg_shrink_plan_destroy(gg_shrink_plan *plan);

bool gg_shrink_plan_accepted(const gg_shrink_plan *plan); /* false also where nothing leaves */
const gg_units *gg_shrink_plan_units(const gg_shrink_plan *plan);
const gg_graph *gg_shrink_plan_graph(const gg_shrink_plan *plan); /* the smaller network */
/* Marks the units that leave: one entry a unit, all written. Returns how many they are. */
int gg_shrink_plan_leaves(const gg_shrink_plan *plan, bool *leaves);
/* Of a group: the sum of the bounds of its units that leave (gg_merge), and the same as the share that budgets limit.
 */
double gg_shrink_plan_bound(const gg_shrink_plan *plan, int group);
double gg_shrink_plan_share(const gg_shrink_plan *plan, int group);
/* Of the consensus model on the probe, all heads together (gg_replica_evaluated_loss), and what it would be afterwards;
 * NaN: there is no probe, or nothing leaves. */
double gg_shrink_plan_loss(const gg_shrink_plan *plan, bool after);
uint64_t gg_shrink_plan_hash(const gg_shrink_plan *plan); /* of what leaves, into what, and the smaller network */

/* Goes on with the smaller network: `small`, of the same layout as the plan's, which outlives the trainer; NULL: the
 * plan's own, and the plan must outlive the trainer. GG_ERROR_STATE on all ranks, before anything has changed, where
 * they have different plans, or have trained or loaded weights since it was made; GG_ERROR_ARGUMENT where nothing
 * leaves, or the layout is another. After any other failure the trainer can only be destroyed. */
gg_status gg_trainer_apply_shrink(gg_trainer *trainer, const gg_shrink_plan *plan, const gg_graph *small);

/* Goes on with a network that is alike, in which all arenas are zero, as are states that layers carry: their weights
 * and moments are to be loaded. The number of steps stays. It outlives the trainer. Errors as of gg_trainer_reshape. */
gg_status gg_trainer_restore_graph(gg_trainer *trainer, const gg_graph *graph);

/* What the ranks compare before a plan is applied. */
typedef enum gg_shrink_fault {
    GG_SHRINK_FITS = 0,
    GG_SHRINK_STALE,   /* the trainer has trained or loaded weights since, or is of another network */
    GG_SHRINK_NOTHING, /* nothing leaves */
    GG_SHRINK_LAYOUT,  /* the smaller network that is given is another one */
    GG_SHRINK_FAULTS
} gg_shrink_fault;

typedef struct gg_shrink_record {
    uint64_t hash;
    int64_t step, fault;
} gg_shrink_record;

/* *found, and `text`: the error to end with, the same on all ranks, which names those that have a fault, or differ from
 * rank 0; GG_OK where all fit. Collective. */
gg_status gg_shrink_compare(gg_transport *transport, const gg_shrink_record *own, gg_status *found, char *text,
                            size_t bytes);

#endif
