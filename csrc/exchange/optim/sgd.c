/* Stochastic gradient descent with momentum, in PyTorch's form. */
#include "exchange/optim/updater.h"

static const gg_option options[] = {{.name = "momentum",
                                     .help = "share of the last update that is added to the next",
                                     .type = GG_OPTION_FLOAT,
                                     .offset = offsetof(gg_optimizer, sgd.momentum),
                                     .bounds = GG_BELOW(0, 1)},
                                    {.name = "nesterov",
                                     .help = "Nesterov's momentum",
                                     .type = GG_OPTION_FLAG,
                                     .offset = offsetof(gg_optimizer, sgd.nesterov)},
                                    {.name = NULL}};

static gg_status check(const gg_optimizer *optimizer) {
    if (optimizer->sgd.nesterov && !(optimizer->sgd.momentum > 0))
        return gg_fail(GG_ERROR_ARGUMENT, "nesterov=True with momentum=%g: momentum must be above 0",
                       (double)optimizer->sgd.momentum);
    return GG_OK;
}

static bool stateless(const gg_optimizer *optimizer) { return !(optimizer->sgd.momentum > 0); }

static void fill(const gg_optimizer *optimizer, const gg_group *group, double lr, float weight_decay, int64_t step,
                 gg_update_args *args) {
    (void)step;
    args->mu = optimizer->sgd.momentum * group->momentum_factor;
    args->rule = args->mu <= 0 ? GG_UPDATE_PLAIN : optimizer->sgd.nesterov ? GG_UPDATE_NESTEROV : GG_UPDATE_MOMENTUM;
    args->lr = (float)lr;
    args->weight_decay = weight_decay;
}

/* The whole run is of one group. A result in the momentum is not copied if the caller may read it there. */
static const float *accumulate(const gg_optimizer *optimizer, const gg_group *group, gg_device *device,
                               const gg_state *state, const gg_accumulation *work, size_t at, size_t count) {
    float *own = work->gradient + (at - work->offset), *momentum = gg_state_moment(state, 0) + at;
    const float *const source[3] = {momentum, own, gg_state_weights(state) + at};
    const float factor[3] = {optimizer->sgd.momentum * group->momentum_factor, work->scale,
                             optimizer->weight_decay * group->decay_factor};
    device->table->weighted_sum(device, count, factor[2] != 0 ? 3 : 2, source, factor, momentum);
    if (work->elsewhere && count == work->count) return momentum;
    gg_device_copy(device, GG_QUEUE_COMPUTE, own, momentum, count * sizeof *own);
    return work->gradient;
}

static bool accumulates(const gg_optimizer *optimizer) {
    return optimizer->sgd.momentum > 0 && !optimizer->sgd.nesterov;
}

const gg_optimizer_type gg_optimizer_sgd = {
    .name = "sgd",
    .moment = {"momentum"},
    .options = options,
    .check = check,
    .stateless = stateless,
    .fill = fill,
    .accumulate = accumulate,
    .accumulates = accumulates,
};
