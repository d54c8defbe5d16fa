#include <float.h>
#include <math.h>

#include "exchange/optim/updater.h"

int gg_optimizer_moments(const gg_optimizer *optimizer, const char *names[GG_MOST_MOMENTS]) {
    names[0] = "momentum";
    names[1] = "second_moment";
    if (optimizer->kind == GG_OPTIMIZER_ADAM) return 2;
    return optimizer->momentum > 0 ? 1 : 0;
}

/* Every test is written as what must hold: NaN fails too. */
static gg_status check_sgd(const gg_optimizer *optimizer) {
    if (!(optimizer->momentum >= 0 && optimizer->momentum < 1))
        return gg_fail(GG_ERROR_ARGUMENT, "momentum=%g: must be at least 0 and below 1", (double)optimizer->momentum);
    if (optimizer->nesterov && !(optimizer->momentum > 0))
        return gg_fail(GG_ERROR_ARGUMENT, "nesterov=True with momentum=%g: momentum must be above 0",
                       (double)optimizer->momentum);
    return GG_OK;
}

static gg_status check_lars(const gg_optimizer *optimizer) {
    GG_TRY(check_sgd(optimizer));
    if (optimizer->nesterov) return gg_fail(GG_ERROR_ARGUMENT, "nesterov=True: not with LARS");
    if (!(optimizer->trust > 0 && optimizer->trust <= FLT_MAX))
        return gg_fail(GG_ERROR_ARGUMENT, "trust=%g: must be finite and above 0", optimizer->trust);
    return GG_OK;
}

static gg_status check_adam(const gg_optimizer *optimizer) {
    for (int i = 0; i < 2; ++i) {
        double beta = i == 0 ? optimizer->beta1 : optimizer->beta2;
        if (!(beta >= 0 && (float)beta < 1)) /* the kernel computes in float32 */
            return gg_fail(GG_ERROR_ARGUMENT, "beta%d=%g: must be at least 0 and below 1", i + 1, beta);
    }
    if (optimizer->moments_since < 0)
        return gg_fail(GG_ERROR_ARGUMENT, "moments_since=%lld: must be at least 0",
                       (long long)optimizer->moments_since);
    if (!(optimizer->eps >= FLT_MIN && optimizer->eps <= FLT_MAX))
        return gg_fail(GG_ERROR_ARGUMENT, "eps=%g: must be finite and at least %g", (double)optimizer->eps,
                       (double)FLT_MIN);
    return GG_OK;
}

gg_status gg_optimizer_check(const gg_optimizer *optimizer) {
    GG_TRY(gg_rate_check(&optimizer->rate));
    if (!(optimizer->weight_decay >= 0 && optimizer->weight_decay <= FLT_MAX))
        return gg_fail(GG_ERROR_ARGUMENT, "weight_decay=%g: must be finite and at least 0",
                       (double)optimizer->weight_decay);
    if (!(optimizer->clip_norm >= 0 && optimizer->clip_norm <= FLT_MAX))
        return gg_fail(GG_ERROR_ARGUMENT, "clip_norm=%g: must be finite and above 0", optimizer->clip_norm);
    switch (optimizer->kind) {
    case GG_OPTIMIZER_LARS: GG_TRY(check_lars(optimizer)); break;
    case GG_OPTIMIZER_SGD: GG_TRY(check_sgd(optimizer)); break;
    case GG_OPTIMIZER_ADAM: GG_TRY(check_adam(optimizer)); break;
    default: return gg_fail(GG_ERROR_ARGUMENT, "optimizer: number %d is none of the known", (int)optimizer->kind);
    }
    return GG_OK;
}

static void fill_sgd(const gg_optimizer *optimizer, const gg_group *group, double lr, float weight_decay,
                     gg_update_args *args) {
    args->mu = optimizer->momentum * group->momentum_factor;
    args->rule = args->mu <= 0 ? GG_UPDATE_PLAIN : optimizer->nesterov ? GG_UPDATE_NESTEROV : GG_UPDATE_MOMENTUM;
    args->lr = (float)lr;
    args->weight_decay = weight_decay;
}

/* Moments start as zeros, so they are too small by 1 - beta^updates. */
static void fill_adam(const gg_optimizer *optimizer, double lr, float weight_decay, int64_t step,
                      gg_update_args *args) {
    const double updates = (double)(step - optimizer->moments_since) + 1;
    args->rule = GG_UPDATE_ADAM;
    args->lr = (float)(lr / (1 - pow(optimizer->beta1, updates)));
    args->mu = (float)optimizer->beta1;
    args->d_share = (float)(1 - optimizer->beta1);
    args->beta2 = (float)optimizer->beta2;
    args->square_share = (float)(1 - optimizer->beta2);
    args->root_scale = (float)(1 / sqrt(1 - pow(optimizer->beta2, updates)));
    args->eps = optimizer->eps;
    args->weight_decay = optimizer->decoupled ? 0.0f : weight_decay;
    args->weight_factor = optimizer->decoupled ? (float)(1 - lr * (double)weight_decay) : 1.0f;
}

/* The learning rate is a factor of what is added to the momentum, as in the paper. */
static void fill_lars(const gg_optimizer *optimizer, const gg_group *group, double lr, float weight_decay,
                      gg_update_args *args) {
    args->mu = optimizer->momentum * group->momentum_factor;
    args->rule = args->mu > 0 ? GG_UPDATE_MOMENTUM : GG_UPDATE_PLAIN;
    args->lr = 1.0f;
    args->grad_scale = (float)(lr * (double)args->grad_scale);
    args->weight_decay = (float)(lr * (double)weight_decay);
}

static double group_rate(const gg_optimizer *optimizer, const gg_group *group, int64_t step) {
    return gg_rate_at(&optimizer->rate, step) * (double)group->lr_factor * group->ratio;
}

void gg_optimizer_rule(const gg_optimizer *optimizer, const gg_group *group, int64_t step, gg_update_args *args) {
    args->grad_scale = 1.0f;
    if (group->statistic) {
        args->rule = GG_UPDATE_PLAIN;
        args->lr = 1.0f;
        args->weight_decay = 0.0f;
        return;
    }
    args->grad_scale = group->clip;
    const double lr = group_rate(optimizer, group, step);
    const float weight_decay = optimizer->weight_decay * group->decay_factor;
    if (optimizer->kind == GG_OPTIMIZER_ADAM) fill_adam(optimizer, lr, weight_decay, step, args);
    else if (optimizer->kind == GG_OPTIMIZER_LARS) fill_lars(optimizer, group, lr, weight_decay, args);
    else fill_sgd(optimizer, group, lr, weight_decay, args);
}

void gg_optimizer_direction(const gg_optimizer *optimizer, int ranks, int64_t step, gg_update_args *args) {
    args->grad_scale = 1.0f;
    fill_adam(optimizer, 1.0, 0.0f, step, args);
    args->root_scale = (float)((double)args->root_scale / sqrt(ranks));
}

void gg_optimizer_sum(const gg_optimizer *optimizer, const gg_group *group, int64_t step, gg_update_args *args) {
    gg_optimizer_rule(optimizer, group, step, args);
    args->rule = GG_UPDATE_PLAIN;
    if (group->statistic) return;
    args->lr = (float)group_rate(optimizer, group, step);
    args->weight_decay = optimizer->kind == GG_OPTIMIZER_ADAM && optimizer->decoupled
                             ? optimizer->weight_decay * group->decay_factor
                             : 0.0f;
}

void gg_optimizer_late(const gg_optimizer *optimizer, const gg_group *group, int64_t step, float *first,
                       float *second) {
    const double rate = group_rate(optimizer, group, step);
    *first = group->clip;
    if (group->statistic) {
        *first = 0.0f;
        *second = -1.0f;
    } else if (optimizer->kind == GG_OPTIMIZER_ADAM) {
        *first = (float)(1 - optimizer->beta1) * group->clip;
        *second = 0.0f;
    } else if (optimizer->kind == GG_OPTIMIZER_LARS) {
        *first = (float)(rate * (double)group->clip);
        *second = -*first;
    } else {
        *second = -(float)rate * group->clip *
                  (optimizer->nesterov ? 1.0f + optimizer->momentum * group->momentum_factor : 1.0f);
    }
}
