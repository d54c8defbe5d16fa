/* Applies an optimiser to the arenas: any run of elements, cut where the parameters' groups change. */
#ifndef GG_EXCHANGE_OPTIM_UPDATER_H
#define GG_EXCHANGE_OPTIM_UPDATER_H

#include "exchange/optim/optim.h"

/* How the elements [begin, end) of every arena are updated, whole parameters with their padding. */
typedef struct gg_group {
    size_t begin, end;
    bool statistic;                /* not trained: w -= gradient, whatever the optimiser, and its moments stay 0 */
    bool adapts;                   /* one parameter, whose learning rate depends on its norms */
    float lr_factor, decay_factor; /* multiply the optimiser's learning rate and weight decay */
    float momentum_factor;         /* the same of SGD's and LARS's momentum */
    /* Of the step under way, by gg_updater_measured; 1 where nothing is measured: */
    float clip;   /* multiplies gradients */
    double ratio; /* multiplies the learning rate */
} gg_group;

/* The groups of a layout for one optimiser, in the order of the arenas; neighbours that are alike are one. */
typedef struct gg_updater {
    const gg_optimizer *optimizer;
    gg_group *group;
    int groups;
    double *squares; /* of each group's gradients, and then of each one's weights; NULL: updates need no norms */
    /* SGD, ADAM: gradients come from gg_updater_accumulate: updates have no moments, and no decay but a decoupled one.
     */
    bool accumulated;
} gg_updater;

/* The optimiser must outlive it; its rate may change between steps. */
gg_status gg_updater_create(const gg_arena_layout *layout, const gg_optimizer *optimizer, gg_updater *out);
void gg_updater_destroy(gg_updater *updater);

/* The group of an element of the arenas. */
const gg_group *gg_updater_group(const gg_updater *updater, size_t at);

/* The update of a run of elements. */
typedef struct gg_update {
    int64_t step;          /* from 0 */
    size_t offset, count;  /* elements of the arenas, whole lanes */
    size_t owned_offset;   /* where the run begins in the arenas of moments: `offset`, unless a rank owns only a part */
    const float *gradient; /* of the first element */
    gg_lines filled;       /* of the gradient */
    /* Of the weights and then of each moment, from the run's first element on, in elements of the type `wire`: what a
     * partner sent, which is mixed in as gg_update_args says, and what partners will read. NULL: none. */
    gg_dtype wire;
    const void *received[1 + GG_MOST_MOMENTS];
    void *copy[1 + GG_MOST_MOMENTS];
} gg_update;

/* An element's result does not depend on how the arenas are cut into runs. */
void gg_updater_apply(const gg_updater *updater, gg_device *device, const gg_state *state, const gg_update *update);

/* The gradient of a run of elements that has not been summed over ranks yet. */
typedef struct gg_accumulation {
    int64_t step;         /* from 0 */
    int ranks;            /* over which it will be summed */
    size_t offset, count; /* elements of the arenas, whole lanes */
    float scale;          /* ranks * this rank's share of the samples */
    float *gradient;      /* of the first element */
    float *room;       /* Adam: memory of the device for so many elements, whole lanes, that are worked on at once; */
    size_t room_count; /* its content is lost */
    bool elsewhere;    /* the result may lie where it has been computed, and `gradient` be undefined */
} gg_accumulation;

/* The first half of an update whose second half, gg_updater_apply, comes when the gradient has been summed over ranks.
 * With d = scale*gradient + weight_decay*weight, the decay only where it is not decoupled:
 *   SGD   gradient = momentum = mu*momentum + d
 *   ADAM  gradient = the direction of its step by this rank's moments of d (adam.c)
 * The mean over ranks of what SGD gives is what one momentum of their weighted mean would be. Statistics are only
 * scaled. Returns where the run's result lies: work->gradient, or what is allowed with `elsewhere`. */
const float *gg_updater_accumulate(const gg_updater *updater, gg_device *device, const gg_state *state,
                                   const gg_accumulation *work);

/* Half of what the difference between a partner's gradient and the own one, in the step of an update that did without
 * it, would have changed: update->gradient is the own one, and update->received[0] what came in exchange for it, of the
 * type `wire`. */
void gg_updater_late(const gg_updater *updater, gg_device *device, const gg_state *state, const gg_update *update);

/* Clipping and LARS need norms of all gradients before the first update of a step. Where this is true, a strategy
 * first measures, piece by piece or at once, and calls gg_updater_measured before it applies. */
static inline bool gg_updater_measures(const gg_updater *updater) { return updater->squares != NULL; }
/* Forgets the last step's sums. */
void gg_updater_measure_begin(gg_updater *updater);
/* Adds a piece of the arenas, from element `offset` on, which `gradient` and `weight` point to. */
void gg_updater_measure(gg_updater *updater, gg_device *device, size_t offset, size_t count, const float *gradient,
                        const float *weight);
/* All pieces are measured: `squares`, 2 * groups numbers, hold the sums, to which other ranks' pieces have been added
 * where each measured its own. Where a norm is not finite, factors are what PyTorch's clip_grad_norm_ makes of it: of
 * NaN, NaN; of infinity, 0. Every gradient is then 0 or NaN. */
void gg_updater_measured(gg_updater *updater);

#endif
