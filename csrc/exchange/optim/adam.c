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

/* Moments start as zeros, so they are too small by 1 - beta^updates. */
static void fill(const gg_optimizer *optimizer, const gg_group *group, double lr, float weight_decay, int64_t step,
                 gg_update_args *args) {
    const gg_adam *adam = &optimizer->adam;
    const double updates = (double)(step - optimizer->moments_since) + 1;
    (void)group;
    args->rule = GG_UPDATE_ADAM;
    args->lr = (float)(lr / (1 - pow(adam->beta1, updates)));
    args->mu = (float)adam->beta1;
    args->d_share = (float)(1 - adam->beta1);
    args->beta2 = (float)adam->beta2;
    args->square_share = (float)(1 - adam->beta2);
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
