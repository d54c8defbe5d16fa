/* LARS (You, Gitman, Ginsburg 2017): SGD with momentum and a learning rate for each parameter. */
#include "exchange/optim/updater.h"

static const gg_option options[] = {{.name = "momentum",
                                     .help = "share of the last update that is added to the next",
                                     .type = GG_OPTION_FLOAT,
                                     .offset = offsetof(gg_optimizer, lars.momentum),
                                     .fallback = {0.9},
                                     .bounds = GG_BELOW(0, 1)},
                                    {.name = "trust",
                                     .help = "the length of an update in terms of the parameter's",
                                     .type = GG_OPTION_DOUBLE,
                                     .offset = offsetof(gg_optimizer, lars.trust),
                                     .fallback = {0.001},
                                     .bounds = GG_FINITE_ABOVE(0)},
                                    {.name = "no_adaptation",
                                     .help = "what has the plain learning rate: bias, norm, bias,norm, or none",
                                     .type = GG_OPTION_SET,
                                     .offset = offsetof(gg_optimizer, lars.no_adaptation),
                                     .fallback = {1u << GG_ROLE_BIAS | 1u << GG_ROLE_SCALE | 1u << GG_ROLE_SHIFT},
                                     .names = gg_role_names,
                                     .choices = GG_ROLE_COUNT},
                                    {.name = NULL}};

static bool stateless(const gg_optimizer *optimizer) { return !(optimizer->lars.momentum > 0); }

static bool adapts(const gg_optimizer *optimizer, gg_role role) {
    return !(optimizer->lars.no_adaptation & 1u << role);
}

/* The paper's ratio if both norms are above 0. Parameters that are still 0 have the plain learning rate. */
static double ratio(const gg_optimizer *optimizer, double decay, double gradient_norm, double weight_norm) {
    if (!(gradient_norm > 0 && weight_norm > 0)) return 1;
    return optimizer->lars.trust * weight_norm / (gradient_norm + decay * weight_norm);
}

/* The learning rate multiplies the addend of the momentum, as in the paper. */
static void fill(const gg_optimizer *optimizer, const gg_group *group, double lr, float weight_decay, int64_t step,
                 gg_update_args *args) {
    (void)step;
    args->mu = optimizer->lars.momentum * group->momentum_factor;
    args->rule = args->mu > 0 ? GG_UPDATE_MOMENTUM : GG_UPDATE_PLAIN;
    args->lr = 1.0f;
    args->grad_scale = (float)(lr * (double)args->grad_scale);
    args->weight_decay = (float)(lr * (double)weight_decay);
}

const gg_optimizer_type gg_optimizer_lars = {
    .name = "lars",
    .moment = {"momentum"},
    .options = options,
    .measures = true,
    .stateless = stateless,
    .adapts = adapts,
    .ratio = ratio,
    .fill = fill,
};
