/* Which units of a network are redundant, and what becomes of their outgoing weights.
 *
 * The incoming weights of a unit with its bias are a vector u; with a batch normalisation behind, those of its running
 * statistics folded into it. Where u_i is about c * u_j, for a c that the group's rule allows, i can leave: what reads
 * it reads j with c times the weight instead. A unit that is nearly constant goes into the biases of what reads it, and
 * one that is nearly zero, or that nobody listens to, leaves without a trace.
 *
 * For each unit that leaves, the sums of the layers that read it change by at most bound * |x| (2-norms): |x| that of
 * the inputs of the layer that produces it, with a 1 for the bias, in evaluation; of a convolution, over all windows
 * that it sees. The bounds of units of a group add up. Merging stays within rounding where u_i = c * u_j but for
 * rounding. */
#ifndef GG_APOPTOSIS_MERGE_H
#define GG_APOPTOSIS_MERGE_H

#include "apoptosis/units.h"

/* W_into += scale * W_unit, and the biases of the readers += value * the sum of W_unit. */
typedef struct gg_merge {
    int unit;
    int into; /* another one of its group, which may leave later; -1: none */
    float scale, value;
    double bound;
} gg_merge;

typedef struct gg_merge_options {
    double budget; /* 0 to 1: the sum of bounds of a group, as a share of the sum over all its units of what they would
                      be for c = 0. 0: only what changes nothing but rounding */
    const double *budgets; /* the same, one a group; NULL: `budget` of all */
    int least;             /* so many units stay in each group at least, 1 or more */
    const int *leasts;     /* the same, one a group; NULL: `least` of all */
    const bool *groups;    /* one a group: whether its units may leave; NULL: all */
    gg_device *device;     /* for the products of all pairs */
} gg_merge_options;

typedef struct gg_merges {
    int count;
    gg_merge *merge; /* in the order in which they are to be done */
    int groups;
    double *bound; /* one a group: the sum of its bounds */
    double *share; /* one a group: the same as a share, as the budget is */
} gg_merges;

/* Groups are gone through from the network's input on, each with the weights that the merges before have left; units
 * leave from the smallest bound. Of LSTMs, and of groups with several layers, where an error of one is an input of the
 * next, the bound is that of one step or one layer, without what the following ones make of the error. Hidden units of
 * an LSTM are redundant where all weights of their gates are equal, in all its layers (and, where their state is
 * carried, their
 * states), heads of attention where all their rows are equal. GG_ERROR_ARGUMENT: an option out of range.
 * GG_ERROR_NUMERIC: weights that are not finite. `weights` is an arena of the graph, and only read. The caller destroys
 * `out`. */
gg_status gg_merges_find(const gg_graph *graph, const gg_units *units, const float *weights,
                         const gg_merge_options *options, gg_merges **out);
/* None, with room for as many as the network has units. */
gg_status gg_merges_create(const gg_units *units, gg_merges **out);
void gg_merges_destroy(gg_merges *merges);

/* Marks the units that leave: one entry a unit of the network, all written. */
void gg_merges_leaves(const gg_merges *merges, const gg_units *units, bool *leaves);

/* Does the merges in an arena of the graph's, in place: weights, or what is linear in them, as residues; the outgoing
 * weights of the units that leave are zero afterwards. */
void gg_merges_fold(const gg_merges *merges, const gg_graph *graph, const gg_units *units, float *weights);

#endif
