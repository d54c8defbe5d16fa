/* Shrinks a network in the middle of its training: redundant units of the consensus model are merged and removed.
 *
 * A shrink has two parts:
 *
 * 1. A plan lists the removed units, and the consensus model's loss before and after. Making a plan changes nothing,
 * but completes all that is in flight. So a plan that is not applied needs no undoing.
 * 2. Applying it reshapes all replicas (gg_trainer_reshape): weights and residues are folded and selected, moments
 *    selected.
 *
 * Every function is collective over the trainer's team. Results are equal on all ranks: rank 0 alone chooses the units.
 */
#ifndef GG_TRAIN_SHRINK_H
#define GG_TRAIN_SHRINK_H

#include "apoptosis/merge.h"
#include "train/trainer.h"

typedef struct gg_shrink {
    const double *budget; /* one a group of units, 0 to 1: as gg_merge_options.budget */
    const bool *groups;   /* one a group: its units may be removed; NULL means all removable ones */
    const int *least;     /* one a group: min units that stay, 1 or more */
    /* Set on which losses are compared, equal on all ranks; each evaluates a part of it. NULL means no comparison. */
    const gg_dataset *probe;
    int64_t batch;  /* samples at once, at least 1; with a probe */
    double epsilon; /* accepted if loss after <= loss before + epsilon * |loss before|; finite */
} gg_shrink;

/* Immutable. Outlives neither the trainer nor its network. */
typedef struct gg_shrink_plan gg_shrink_plan;

/* Makes a plan, which the caller destroys. Budgets and groups are those of gg_units_find of the trainer's network.
 * GG_ERROR_NUMERIC, on all ranks, for weights that are not finite. Also on all ranks, with the rank's number: the
 * failure of one rank to evaluate or to allocate. An error leaves the trainer unchanged, unless it is one of messages.
 */
gg_status gg_trainer_plan_shrink(gg_trainer *trainer, const gg_shrink *shrink, gg_shrink_plan **out);
void gg_shrink_plan_destroy(gg_shrink_plan *plan);

bool gg_shrink_plan_accepted(const gg_shrink_plan *plan); /* false also if no unit is removed */
const gg_units *gg_shrink_plan_units(const gg_shrink_plan *plan);
const gg_graph *gg_shrink_plan_graph(const gg_shrink_plan *plan); /* the smaller network */
/* Marks the removed units: one entry a unit, all written. Returns their number. */
int gg_shrink_plan_leaves(const gg_shrink_plan *plan, bool *leaves);
/* For a group: the sum of the bounds of its removed units (gg_merge), and this sum as the share that budgets limit. */
double gg_shrink_plan_bound(const gg_shrink_plan *plan, int group);
double gg_shrink_plan_share(const gg_shrink_plan *plan, int group);
/* Loss of the consensus model on the probe, all heads together (gg_replica_evaluated_loss), now and `after`; NaN
 * without a probe or removed units. */
double gg_shrink_plan_loss(const gg_shrink_plan *plan, bool after);
/* Hash of the removed units, their targets, and the smaller network. */
uint64_t gg_shrink_plan_hash(const gg_shrink_plan *plan);

/* Continues with the smaller network. small: a graph with the plan's layout that outlives the trainer; NULL means the
 * plan's own graph, and the plan then outlives the trainer. GG_ERROR_STATE on all ranks, before any change, if their
 * plans differ, or if they have trained or loaded weights since the plan. GG_ERROR_ARGUMENT if no unit is removed, or
 * the layout differs. After any other failure the trainer can only be destroyed. */
gg_status gg_trainer_apply_shrink(gg_trainer *trainer, const gg_shrink_plan *plan, const gg_graph *small);

/* Continues with a network that is alike and outlives the trainer. All arenas and carried states are zero: weights and
 * moments are to be loaded. The number of steps stays. Errors as of gg_trainer_reshape. */
gg_status gg_trainer_restore_graph(gg_trainer *trainer, const gg_graph *graph);

/* The ranks' comparison before a plan is applied. */
typedef enum gg_shrink_fault {
    GG_SHRINK_FITS = 0,
    GG_SHRINK_STALE,   /* the trainer has trained or loaded weights since, or has another network */
    GG_SHRINK_NOTHING, /* no unit is removed */
    GG_SHRINK_LAYOUT,  /* the given smaller network differs */
    GG_SHRINK_FAULTS
} gg_shrink_fault;

typedef struct gg_shrink_record {
    uint64_t hash;
    int64_t step, fault;
} gg_shrink_record;

/* *found and `text`: the resulting error, equal on all ranks. The text names the ranks that have a fault or differ from
 * rank 0; GG_OK if all fit. Collective. */
gg_status gg_shrink_compare(gg_transport *transport, const gg_shrink_record *own, gg_status *found, char *text,
                            size_t bytes);

#endif
