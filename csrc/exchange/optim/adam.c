/* Adam (Kingma and Ba 2015) in PyTorch's form, and AdamW (Loshchilov and Hutter 2019). */
#include "exchange/optim/updater.h"

static const gg_option options[] = {{.name = "beta1",
                                     .help = "decay of the first moment",
                                     .type = GG_OPTION_DOUBLE,
                                     .offset = offsetof(gg_optimizer, adam.beta1),
                                     .fallback = {0.9},
                                     .bounds = GG_BELOW(0, 1)},
                                    {.name = "beta2",
                                     .help = "decay of the second moment",
                                     .type = GG_OPTION_DOUBLE,
                                     .offset = offsetof(gg_optimizer, adam.beta2),
                                     .fallback = {0.999},
                                     .bounds = GG_BELOW(0, 1)},
                                    {.name = "eps",
                                     .help = "added to the root of the second moment",
                                     .type = GG_OPTION_FLOAT,
                                     .offset = offsetof(gg_optimizer, adam.eps),
                                     .fallback = {1e-8},
                                     .bounds = GG_FINITE((double)FLT_MIN)},
                                    {.name = "decoupled",
                                     .help = "weight decay of the weights themselves: AdamW",
                                     .type = GG_OPTION_FLAG,
                                     .offset = offsetof(gg_optimizer, adam.decoupled)},
                                    {.name = NULL}};

static bool decoupled(const gg_optimizer *optimizer) { return optimizer->adam.decoupled; }

/* Variance of the bias-corrected momentum, if one gradient has variance 1: the sum over ages j of (share of the
 * gradient of age j)^2 times the variance that mixes have left of it. Mixes halve it once every `period` steps, down to
 * 1/ranks. */
static double momentum_noise(double beta, gg_mixing mixing, double updates) {
    const double square = beta * beta;
    const double halved = mixing.period > 0 ? fmin(updates, ceil(mixing.period * log2(mixing.ranks))) : updates;
    const double ratio = mixing.period > 0 ? square * exp2(-1.0 / mixing.period) : square;
    const double young = (1 - pow(ratio, halved)) / (1 - ratio);
    const double old = (pow(square, halved) - pow(square, updates)) / (1 - square) / mixing.ranks;
    const double share = (1 - beta) / (1 - pow(beta, updates));
    return share * share * (young + old);
}

/* Share a of the gradient's square in an estimate of the mean gradient's square; 1 - a is the momentum's. A rank's
 * gradient d has mean G and variance V, the mean over n ranks V/n, the momentum m about k*V. So a*d^2 + (1 - a)*m^2 has
 * the mean G^2 + V/n if a + (1 - a)*k = 1/n. At first gradients change faster than the momentum follows: a = 1. */
static double gradient_share(double beta, gg_mixing mixing, double updates) {
    const double noise = momentum_noise(beta, mixing, updates), wanted = 1.0 / mixing.ranks;
    if (updates <= 2 / (1 - beta)) return 1;
    return noise < wanted ? (wanted - noise) / (1 - noise) : 0;
}

/* Moments start as zeros, so they are too small by 1 - beta^updates. */
static void fill(const gg_optimizer *optimizer, const gg_group *group, double lr, float weight_decay, int64_t step,
                 gg_update_args *args) {
    const gg_adam *adam = &optimizer->adam;
    const double updates = (double)(step - optimizer->moments_since) + 1;
    args->rule = GG_UPDATE_ADAM;
    args->lr = (float)(lr / (1 - pow(adam->beta1, updates)));
    args->mu = (float)adam->beta1;
    args->d_share = (float)(1 - adam->beta1);
    args->beta2 = (float)adam->beta2;
    args->square_share = (float)(1 - adam->beta2);
    if (group->mixing.ranks > 1) {
        const double share = gradient_share(adam->beta1, group->mixing, updates);
        const double correction = 1 - pow(adam->beta1, updates); /* of the momentum */
        args->rule = GG_UPDATE_ADAM_MEAN;
        args->square_share = (float)((1 - adam->beta2) * share);
        args->mean_share = (float)((1 - adam->beta2) * (1 - share) / (correction * correction));
    }
    args->root_scale = (float)(1 / sqrt(1 - pow(adam->beta2, updates)));
    args->eps = adam->eps;
    args->weight_decay = adam->decoupled ? 0.0f : weight_decay;
    args->weight_factor = adam->decoupled ? (float)(1 - lr * (double)weight_decay) : 1.0f;
}

/* Replaces the gradient by the direction, the weight's decrease at learning rate 1: an update of zero weights with
 * decayed gradients. Squares of a rank's own gradient count 1/ranks each: the mean of `ranks` independent gradients has
 * that part of the variance. */
static const float *accumulate(const gg_optimizer *optimizer, const gg_group *group, gg_device *device,
                               const gg_state *state, const gg_accumulation *work, size_t at, size_t count) {
    const float decay = optimizer->adam.decoupled ? 0.0f : optimizer->weight_decay * group->decay_factor;
    const float factor[2] = {work->scale, decay};
    gg_update_args args = {.grad = work->room, .grad_scale = 1.0f};
    fill(optimizer, group, 1.0, 0.0f, work->step, &args);
    args.root_scale = (float)((double)args.root_scale / sqrt(work->ranks));
    args.lr = -args.lr;
    for (const size_t end = at + count; at < end; at += args.n) {
        float *own = work->gradient + (at - work->offset);
        const float *const source[2] = {own, gg_state_weights(state) + at};
        args.n = end - at < work->room_count ? end - at : work->room_count;
        device->table->weighted_sum(device, args.n, decay != 0 ? 2 : 1, source, factor, work->room);
        gg_device_zero(device, GG_QUEUE_COMPUTE, own, args.n * sizeof *own);
        args.weight = own;
        args.momentum = gg_state_moment(state, 0) + at;
        args.square = gg_state_moment(state, 1) + at;
        device->table->update(device, 1, &args);
    }
    return work->gradient;
}

const gg_optimizer_type gg_optimizer_adam = {
    .name = "adam",
    .moment = {"momentum", "second_moment"},
    .lr = 1e-3,
    .options = options,
    .decoupled = decoupled,
    .fill = fill,
    .accumulate = accumulate,
};
