/* Applies an optimiser to the arenas of a graph: any run of elements, cut where the parameters' groups change. */
#ifndef GG_OPTIM_UPDATER_H
#define GG_OPTIM_UPDATER_H

#include "optim/optim.h"

/* How the elements [begin, end) of every arena are updated, whole parameters with their padding. */
typedef struct gg_group {
    size_t begin, end;
    bool statistic;                /* not trained: w -= gradient, whatever the optimiser, and its moments stay 0 */
    float lr_factor, decay_factor; /* multiply the optimiser's learning rate and weight decay */
} gg_group;

/* The groups of a graph for one optimiser, in the order of the arenas; neighbours that are alike are one. */
typedef struct gg_updater {
    const gg_optimizer *optimizer;
    gg_group *group;
    int groups;
} gg_updater;

/* The optimiser must outlive it; its rate may change between steps. */
gg_status gg_updater_create(const gg_graph *graph, const gg_optimizer *optimizer, gg_updater *out);
void gg_updater_destroy(gg_updater *updater);

/* The group of an element of the arenas. */
const gg_group *gg_updater_group(const gg_updater *updater, size_t at);

/* The update of a run of elements. */
typedef struct gg_update {
    int64_t step;          /* from 0 */
    size_t offset, count;  /* elements of the arenas, whole lanes */
    size_t owned_offset;   /* where the run begins in the arenas of moments: `offset`, unless a rank owns only a part */
    const float *gradient; /* of the first element */
    /* Of the weights and then of each moment, from the run's first element on, in elements of the type `wire`: what a
     * partner sent, which is mixed in as gg_update_args says, and what partners will read. NULL: none. */
    gg_dtype wire;
    const void *received[1 + GG_MOST_MOMENTS];
    void *copy[1 + GG_MOST_MOMENTS];
} gg_update;

/* An element's result does not depend on how the arenas are cut into runs. */
void gg_updater_apply(const gg_updater *updater, gg_device *device, const gg_state *state, const gg_update *update);

/* Half of what the difference between a partner's gradient and the own one, in the step of an update that did without
 * it, would have changed: update->gradient is the own one, and update->received[0] what came in exchange for it, of the
 * type `wire`. */
void gg_updater_late(const gg_updater *updater, gg_device *device, const gg_state *state, const gg_update *update);

#endif
