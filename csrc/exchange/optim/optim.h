/* Optimisers on flat arenas, and learning-rate schedules. Nothing here knows layers' insides or ranks. */
#ifndef GG_EXCHANGE_OPTIM_OPTIM_H
#define GG_EXCHANGE_OPTIM_OPTIM_H

#include "base/options.h"
#include "exchange/optim/state.h"
#include "ops/arena_layout.h"
#include "ops/backend.h"

typedef enum gg_schedule_kind {
    GG_SCHEDULE_CONSTANT = 0,
    GG_SCHEDULE_STEP,       /* lr * gamma^(t / every) */
    GG_SCHEDULE_COSINE,     /* from lr to final over `total` steps */
    GG_SCHEDULE_POLYNOMIAL, /* final + (lr - final) * (1 - t/total)^power */
    GG_SCHEDULE_TABLE,      /* table[t - first], outside of it the nearest end; no warm-up */
    GG_SCHEDULE_COUNT
} gg_schedule_kind;

/* A learning rate as a function of the step t = 0, 1, ...; the first `warmup` steps rise linearly from lr *
 * warmup_start to lr, and then the schedule proper starts. */
typedef struct gg_rate {
    gg_schedule_kind kind;
    double lr, final, gamma, power, warmup_start;
    int64_t every, total, warmup;
    const double *table; /* GG_SCHEDULE_TABLE: `count` rates, lr included; outlives the gg_rate */
    int64_t first, count;
    int64_t since; /* before this step the rate is `before`; set by gg_rate_change */
    double before;
} gg_rate;

gg_status gg_rate_check(const gg_rate *rate); /* GG_ERROR_ARGUMENT naming the field */
double gg_rate_at(const gg_rate *rate, int64_t step);
/* Changes the rate from `step` on. Late updates of the step before keep their rate. */
void gg_rate_change(gg_rate *rate, const gg_rate *to, int64_t step);

struct gg_group;        /* exchange/optim/updater.h */
struct gg_accumulation; /* exchange/optim/updater.h */

/* Options of each optimiser. */
typedef struct gg_sgd {
    float momentum;
    bool nesterov;
} gg_sgd;

typedef struct gg_adam {
    double beta1, beta2;
    float eps;
    bool decoupled; /* decay of the weights themselves (AdamW), not of their gradient */
} gg_adam;

typedef struct gg_lars {
    float momentum;
    double trust;           /* length of an update in terms of the parameter's */
    unsigned no_adaptation; /* bit 1 << role: parameters of this role have the plain learning rate */
} gg_lars;

typedef struct gg_lion {
    double betas[2]; /* the momentum's shares of the direction, and of the new momentum */
} gg_lion;

/* All optimisers. Each has a file NAME.c with its row, gg_optimizer_NAME, and a struct gg_NAME above. */
#define GG_OPTIMIZERS(X) X(sgd) X(adam) X(lars) X(lion)

#define GG_OPTIMIZER_ONE(name) +1
enum { GG_OPTIMIZERS_COUNT = 0 GG_OPTIMIZERS(GG_OPTIMIZER_ONE) };

typedef struct gg_optimizer {
    const struct gg_optimizer_type *type;
    gg_rate rate;
    float weight_decay;
    unsigned no_decay; /* bit 1 << role: parameters of this role do not decay */
    double clip_norm;  /* max norm of gradients over the whole model: larger ones are scaled down to it; 0 means off */
    int64_t moments_since; /* step in which the moments were zero; bias corrections count from there */
    union {
#define GG_OPTIMIZER_MEMBER(name) gg_##name name;
        GG_OPTIMIZERS(GG_OPTIMIZER_MEMBER)
#undef GG_OPTIMIZER_MEMBER
    };
} gg_optimizer;

/* A row: an optimiser's interface to the rest of the core. group: a group of trained parameters; lr: its learning rate
 * with all factors; weight_decay: its decay. */
typedef struct gg_optimizer_type {
    const char *name;                   /* on the command line, in reports and checkpoints */
    const char *moment[GG_MAX_MOMENTS]; /* names of the moments' arenas; NULL means fewer */
    double lr;                          /* default learning rate; 0 means that it must be given */
    const gg_option *options;           /* its own, of a gg_optimizer; gg_optimizer_common has those of all */
    bool measures;                      /* updates need norms of all gradients */
    /* Checks combinations of options. NULL means none. */
    gg_status (*check)(const gg_optimizer *optimizer);
    /* True if the options leave the moments out. NULL means never. */
    bool (*stateless)(const gg_optimizer *optimizer);
    /* True if the weights themselves decay, not their gradient. NULL means never. */
    bool (*decoupled)(const gg_optimizer *optimizer);
    /* True if a parameter of this role has its own factor of the learning rate, `ratio`. NULL means none. */
    bool (*adapts)(const gg_optimizer *optimizer, gg_role role);
    double (*ratio)(const gg_optimizer *optimizer, double decay, double gradient_norm, double weight_norm);
    /* Fills rule, learning rate, decay and all other fields except addresses and grad_scale, which is set. */
    void (*fill)(const gg_optimizer *optimizer, const struct gg_group *group, double lr, float weight_decay,
                 int64_t step, gg_update_args *args);
    /* First half of an update, before gradients are summed (gg_updater_accumulate), of elements [at, at + count), all
     * of one group. Returns the place of the result. NULL means none. */
    const float *(*accumulate)(const gg_optimizer *optimizer, const struct gg_group *group, gg_device *device,
                               const gg_state *state, const struct gg_accumulation *work, size_t at, size_t count);
    /* True if `accumulate` works with these options. NULL means all. */
    bool (*accumulates)(const gg_optimizer *optimizer);
} gg_optimizer_type;

#define GG_OPTIMIZER_ROW(name) extern const gg_optimizer_type gg_optimizer_##name;
GG_OPTIMIZERS(GG_OPTIMIZER_ROW)
#undef GG_OPTIMIZER_ROW

extern const gg_optimizer_type *const gg_optimizer_types[]; /* NULL ends them */
/* Options of all optimisers, of a gg_optimizer; `lr` has the row's default, if any. */
extern const gg_option gg_optimizer_common[];
/* Returns an optimiser with default options. */
gg_optimizer gg_optimizer_of(const gg_optimizer_type *type);

gg_status gg_optimizer_check(const gg_optimizer *optimizer); /* GG_ERROR_ARGUMENT naming the keyword */
/* Number and names of the moments' arenas. */
int gg_optimizer_moments(const gg_optimizer *optimizer, const char *names[GG_MAX_MOMENTS]);
/* True if the decay is part of the gradient. */
bool gg_optimizer_decays_gradients(const gg_optimizer *optimizer);

/* Arguments of a group's updates in step `step`, from 0: all but the addresses. */
void gg_optimizer_rule(const gg_optimizer *optimizer, const struct gg_group *group, int64_t step, gg_update_args *args);
/* Second half of an update whose first half, `accumulate`, ran before the sum over ranks: the weight minus the learning
 * rate times the mean over ranks, and a decoupled decay. */
void gg_optimizer_sum(const gg_optimizer *optimizer, const struct gg_group *group, int64_t step, gg_update_args *args);
#endif
