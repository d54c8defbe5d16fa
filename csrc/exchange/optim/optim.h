/* Optimisers on flat arenas, and learning-rate schedules. Nothing here knows layers' insides or ranks. */
#ifndef GG_EXCHANGE_OPTIM_OPTIM_H
#define GG_EXCHANGE_OPTIM_OPTIM_H

#include "exchange/optim/state.h"
#include "ops/arena_layout.h"
#include "ops/backend.h"

typedef enum gg_schedule_kind {
    GG_SCHEDULE_CONSTANT = 0,
    GG_SCHEDULE_STEP,       /* lr * gamma^(t / every) */
    GG_SCHEDULE_COSINE,     /* from lr to final over `total` steps */
    GG_SCHEDULE_POLYNOMIAL, /* final + (lr - final) * (1 - t/total)^power */
    GG_SCHEDULE_TABLE,      /* table[t - first], of the nearest end outside of it; no warm-up */
    GG_SCHEDULE_COUNT
} gg_schedule_kind;

/* A learning rate as a function of the step t = 0, 1, ...; the first `warmup` steps rise linearly from
 * lr * warmup_start to lr, and the schedule proper starts after them. */
typedef struct gg_rate {
    gg_schedule_kind kind;
    double lr, final, gamma, power, warmup_start;
    int64_t every, total, warmup;
    const double *table; /* GG_SCHEDULE_TABLE: `count` rates, lr included; outlives the gg_rate */
    int64_t first, count;
    int64_t since; /* before this step it is `before`; of gg_rate_change */
    double before;
} gg_rate;

gg_status gg_rate_check(const gg_rate *rate); /* GG_ERROR_ARGUMENT naming the field */
double gg_rate_at(const gg_rate *rate, int64_t step);
/* From `step` on it is another one. Updates of the step before may still be to come: they have the rate they had. */
void gg_rate_change(gg_rate *rate, const gg_rate *to, int64_t step);

typedef enum gg_optimizer_kind {
    GG_OPTIMIZER_SGD = 0,
    GG_OPTIMIZER_ADAM,
    GG_OPTIMIZER_LARS, /* You, Gitman, Ginsburg 2017: SGD with momentum and a learning rate for each parameter */
    GG_OPTIMIZER_COUNT
} gg_optimizer_kind;

typedef struct gg_optimizer {
    gg_optimizer_kind kind;
    gg_rate rate;
    float weight_decay;
    unsigned no_decay;      /* bit 1 << role: parameters of this role do not decay */
    double clip_norm;       /* gradients of a larger norm, over the whole model, are scaled down to it; 0: off */
    float momentum;         /* SGD, LARS */
    bool nesterov;          /* SGD */
    double beta1, beta2;    /* ADAM */
    float eps;              /* ADAM */
    bool decoupled;         /* ADAM: decay of the weights themselves (AdamW), not of their gradient */
    double trust;           /* LARS: the length of an update in terms of the parameter's */
    unsigned no_adaptation; /* LARS: bit 1 << role: parameters of this role have the plain learning rate */
    int64_t moments_since;  /* ADAM: the step in which the moments were zero; its bias correction counts from there */
} gg_optimizer;

gg_status gg_optimizer_check(const gg_optimizer *optimizer); /* GG_ERROR_ARGUMENT naming the keyword */
/* How many moments it has, and their arenas' names: "momentum" is SGD's or Adam's first moment, "second_moment" Adam's
 * second. */
int gg_optimizer_moments(const gg_optimizer *optimizer, const char *names[GG_MOST_MOMENTS]);

/* What the updates of a group of parameters (exchange/optim/updater.h) are in step `step`, from 0: fills rule, learning
 * rate, decay and all else that is not an address. */
struct gg_group;
void gg_optimizer_rule(const gg_optimizer *optimizer, const struct gg_group *group, int64_t step, gg_update_args *args);

/* The same where it works before gradients are summed over `ranks` ranks, each of which has moments of its own, in two
 * halves. `direction`, ADAM only: what the weight loses at the learning rate 1, of decayed gradients. The squares of a
 * rank's own gradient count 1/ranks each, since the mean of that many independent gradients varies so much less.
 * `sum`: the weight less the learning rate times the mean over ranks, and a decoupled decay. */
void gg_optimizer_direction(const gg_optimizer *optimizer, int ranks, int64_t step, gg_update_args *args);
void gg_optimizer_sum(const gg_optimizer *optimizer, const struct gg_group *group, int64_t step, gg_update_args *args);

/* What a change d of the gradient of step `step` would have changed: *momentum += first * d, *weight += second * d.
 * Adam's division by the second moment is not linear in d: its weights are left alone, and follow from the next step
 * on. */
void gg_optimizer_late(const gg_optimizer *optimizer, const struct gg_group *group, int64_t step, float *first,
                       float *second);

#endif
