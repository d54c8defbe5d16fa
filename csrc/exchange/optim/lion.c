/* Lion (Chen et al. 2023, arXiv 2302.06675): the weight moves by the sign of a mix of momentum and gradient. */
#include "exchange/optim/updater.h"

static const gg_option options[] = {
    {.name = "betas",
     .help = "the momentum's shares of the direction, and of the next momentum",
     .type = GG_OPTION_DOUBLE,
     .offset = offsetof(gg_optimizer, lion.betas),
     .count = 2,
     .fallback = {0.9, 0.99},
     .bounds = GG_BELOW(0, 1)},
    {.name = NULL},
};

static bool decoupled(const gg_optimizer *optimizer) {
    (void)optimizer;
    return true;
}

static void fill(const gg_optimizer *optimizer, const gg_group *group, double lr, float weight_decay, int64_t step,
                 gg_update_args *args) {
    const double *betas = optimizer->lion.betas;
    (void)group, (void)step;
    args->rule = GG_UPDATE_LION;
    args->lr = (float)lr;
    args->mu = (float)betas[0];
    args->d_share = (float)(1 - betas[0]);
    args->beta2 = (float)betas[1];
    args->square_share = (float)(1 - betas[1]);
    args->weight_decay = 0.0f;
    args->weight_factor = (float)(1 - lr * (double)weight_decay);
}

const gg_optimizer_type gg_optimizer_lion = {
    .name = "lion",
    .moment = {"momentum"},
    .lr = 1e-4,
    .options = options,
    .decoupled = decoupled,
    .fill = fill,
};
