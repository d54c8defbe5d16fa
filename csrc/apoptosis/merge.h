/* Redundant units of a network, and where their outgoing weights go.
 *
 * A unit's incoming weights and bias are a vector u, with the running statistics of a following batch normalisation
 * folded in. If u_i is about c * u_j, and the group's rule allows c, unit i can leave: its readers read j with c times
 * the weight. A nearly constant unit goes into its readers' biases. A unit that is nearly zero, or has no effect,
 * leaves without a trace.
 *
 * For each unit that leaves, the sums of its readers change by at most bound * |x| (2-norms) in evaluation. x are the
 * inputs of the unit's layer with a 1 for the bias; for a convolution, over all its windows. The bounds of a group's
 * units add up. If u_i = c * u_j within rounding, so are all sums. */
#ifndef GG_APOPTOSIS_MERGE_H
#define GG_APOPTOSIS_MERGE_H

#include "apoptosis/units.h"

/* W_into += scale * W_unit; readers' biases += value * sum of W_unit. */
typedef struct gg_merge {
    int unit;
    int into; /* another unit of its group, which may leave later; -1 means none */
    float scale, value;
    double bound;
} gg_merge;

typedef struct gg_merge_options {
    double budget; /* 0 to 1: max sum of a group's bounds, as a share of the sum over all its units for c = 0. 0 allows
                      only changes within rounding */
    const double *budgets; /* a budget a group; NULL means `budget` for all */
    int least;             /* min number of remaining units of each group; at least 1 */
    const int *leasts;     /* a min a group; NULL means `least` for all */
    const bool *groups;    /* one a group: its units may leave; NULL means all groups */
    gg_device *device;     /* for the products of all pairs */
} gg_merge_options;

typedef struct gg_merges {
    int count;
    gg_merge *merge; /* in the order of execution */
    int groups;
    double *bound; /* one a group: the sum of its bounds */
    double *share; /* one a group: that sum as a share, like the budget */
} gg_merges;

/* Finds merges, group by group from the network's input on. Each group sees the weights after the earlier merges. Units
 * leave in order of their bounds, smallest first.
 *
 * In an LSTM, and in a group of several layers, one layer's error is the next one's input. Their bound covers one step
 * or one layer only. Hidden units of an LSTM are redundant if all weights of their gates are equal in all its layers
 * (and their states, if carried). Heads of attention are redundant if all their rows are equal.
 *
 * GG_ERROR_ARGUMENT: an option out of range. GG_ERROR_NUMERIC: weights that are not finite. `weights` is an arena of
 * the graph and only read. The caller destroys `out`. */
gg_status gg_merges_find(const gg_graph *graph, const gg_units *units, const float *weights,
                         const gg_merge_options *options, gg_merges **out);
/* Creates an empty list with room for one merge a unit. */
gg_status gg_merges_create(const gg_units *units, gg_merges **out);
void gg_merges_destroy(gg_merges *merges);

/* Marks the units that leave: one entry a unit of the network, all written. */
void gg_merges_leaves(const gg_merges *merges, const gg_units *units, bool *leaves);

/* Applies the merges to an arena of the graph in place: weights, or an arena linear in them, such as residues.
 * Afterwards the outgoing weights of leaving units are zero. */
void gg_merges_fold(const gg_merges *merges, const gg_graph *graph, const gg_units *units, float *weights);

#endif
