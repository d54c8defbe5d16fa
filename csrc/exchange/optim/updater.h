/* Applies an optimiser to any run of elements of the arenas, cut at the borders of the parameters' groups. */
#ifndef GG_EXCHANGE_OPTIM_UPDATER_H
#define GG_EXCHANGE_OPTIM_UPDATER_H

#include "exchange/optim/optim.h"

/* Replicas that gossip averages. Each is updated by a gradient of its own, and their mean moves like a replica of an
 * all-reduce, which is updated by the mean gradient. */
typedef struct gg_mixing {
    int ranks;  /* replicas; 1 if gradients are averaged before updates */
    int period; /* steps between averages of an element's momentum with a partner's; 0 means that momenta are private */
} gg_mixing;

/* Update of the elements [begin, end) of every arena, whole parameters with their padding. */
typedef struct gg_group {
    size_t begin, end;
    bool statistic;                /* not trained: w -= gradient for any optimiser, and its moments stay 0 */
    bool adapts;                   /* one parameter, whose learning rate depends on its norms */
    float lr_factor, decay_factor; /* factors of the optimiser's learning rate and weight decay */
    float momentum_factor;         /* factor of SGD's and LARS's momentum */
    gg_mixing mixing;
    /* Set by gg_updater_measured for the current step; 1 if nothing is measured: */
    float clip;   /* factor of gradients */
    double ratio; /* factor of the learning rate */
} gg_group;

/* The groups of a layout for one optimiser, in the order of the arenas; equal neighbours are merged. */
typedef struct gg_updater {
    const gg_optimizer *optimizer;
    gg_group *group;
    int groups;
    double *squares; /* sums of squares: one a group of gradients, then one a group of weights; NULL means that updates
                        need no norms */
    /* SGD, ADAM: gradients come from gg_updater_accumulate. Updates then have no moments, and only decoupled decay. */
    bool accumulated;
} gg_updater;

/* The optimiser outlives the updater; its rate may change between steps. */
gg_status gg_updater_create(const gg_arena_layout *layout, const gg_optimizer *optimizer, gg_updater *out);
void gg_updater_destroy(gg_updater *updater);
/* Tells the updater of a strategy's mixing. Without this call there is none. */
void gg_updater_mixes(gg_updater *updater, gg_mixing mixing);

/* The group of an element of the arenas. */
const gg_group *gg_updater_group(const gg_updater *updater, size_t at);

/* The update of a run of elements. */
typedef struct gg_update {
    int64_t step;          /* from 0 */
    size_t offset, count;  /* elements of the arenas, whole lanes */
    size_t owned_offset;   /* the run's begin in the arenas of moments: `offset`, unless a rank owns only a part */
    const float *gradient; /* of the first element */
    gg_lines filled;       /* of the gradient */
    /* For the weights and each moment, from the run's first element on, in elements of type `wire`. received: a
     * partner's values, mixed in as gg_update_args says; copy: values for partners to read. NULL means none. */
    gg_dtype wire;
    const void *received[1 + GG_MAX_MOMENTS];
    void *copy[1 + GG_MAX_MOMENTS];
} gg_update;

/* Applies an update. An element's result does not depend on the cuts into runs. */
void gg_updater_apply(const gg_updater *updater, gg_device *device, const gg_state *state, const gg_update *update);

/* Gradient of a run of elements before the sum over ranks. */
typedef struct gg_accumulation {
    int64_t step;         /* from 0 */
    int ranks;            /* of the later sum */
    size_t offset, count; /* elements of the arenas, whole lanes */
    float scale;          /* ranks * this rank's share of the samples */
    float *gradient;      /* of the first element */
    float *room;          /* Adam: device memory for `room_count` elements, whole lanes, worked on at once; */
    size_t room_count;    /* its content is lost */
    bool elsewhere;       /* the result may lie elsewhere, and `gradient` become undefined */
} gg_accumulation;

/* First half of an update, before the sum over ranks; gg_updater_apply is the second half. With d = scale*gradient +
 * weight_decay*weight, the decay only if it is not decoupled:
 *   SGD   gradient = momentum = mu*momentum + d
 *   ADAM  gradient = the direction of its step by this rank's moments of d (adam.c)
 * The mean over ranks of SGD's results equals one momentum of their weighted mean. Statistics are only scaled. Returns
 * the place of the run's result: work->gradient, or another place with `elsewhere`. */
const float *gg_updater_accumulate(const gg_updater *updater, gg_device *device, const gg_state *state,
                                   const gg_accumulation *work);

/* Clipping and LARS need norms of all gradients before the first update of a step. If true, a strategy first measures,
 * piece by piece or at once, and calls gg_updater_measured before it applies. */
static inline bool gg_updater_measures(const gg_updater *updater) { return updater->squares != NULL; }
/* Clears the sums of the last step. */
void gg_updater_measure_begin(gg_updater *updater);
/* Adds a piece of the arenas from element `offset` on; gradient and weight point to it. */
void gg_updater_measure(gg_updater *updater, gg_device *device, size_t offset, size_t count, const float *gradient,
                        const float *weight);
/* Computes `clip` and `ratio` after all pieces are measured. `squares`, 2 * groups numbers, hold the sums; if ranks
 * measured different pieces, other ranks' sums have been added. With a norm that is not finite, factors are those of
 * PyTorch's clip_grad_norm_: NaN for NaN, 0 for infinity. Every gradient is then 0 or NaN. */
void gg_updater_measured(gg_updater *updater);

#endif
