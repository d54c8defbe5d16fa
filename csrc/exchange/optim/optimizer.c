/* The table of optimisers, and their shared code. */
#include "exchange/optim/updater.h"

#define ENTRY(name) &gg_optimizer_##name,
const gg_optimizer_type *const gg_optimizer_types[] = {GG_OPTIMIZERS(ENTRY) NULL};
#undef ENTRY

const gg_option gg_optimizer_common[] = {{.name = "lr",
                                          .help = "learning rate; used as given, not multiplied by the ranks",
                                          .type = GG_OPTION_DOUBLE,
                                          .offset = offsetof(gg_optimizer, rate.lr),
                                          .bounds = GG_FINITE(0),
                                          .required = true},
                                         {.name = "weight_decay",
                                          .help = "times the weights, added to the gradients",
                                          .type = GG_OPTION_FLOAT,
                                          .offset = offsetof(gg_optimizer, weight_decay),
                                          .bounds = GG_FINITE(0)},
                                         {.name = "no_decay",
                                          .help = "what does not decay: bias, norm (of normalisations), or bias,norm",
                                          .type = GG_OPTION_SET,
                                          .offset = offsetof(gg_optimizer, no_decay),
                                          .names = gg_role_names,
                                          .choices = GG_ROLE_COUNT},
                                         {.name = "clip_norm",
                                          .help = "largest norm of the gradients, else they are shortened",
                                          .type = GG_OPTION_DOUBLE,
                                          .offset = offsetof(gg_optimizer, clip_norm),
                                          .bounds = GG_FINITE_ABOVE(0),
                                          .unset = "off"},
                                         {.name = "moments_since",
                                          .help = "step in which the moments were zero",
                                          .type = GG_OPTION_INT64,
                                          .offset = offsetof(gg_optimizer, moments_since),
                                          .bounds = GG_AT_LEAST(0)},
                                         {.name = NULL}};

gg_optimizer gg_optimizer_of(const gg_optimizer_type *type) {
    gg_optimizer made = {.type = type};
    gg_options_reset(gg_optimizer_common, &made);
    gg_options_reset(type->options, &made);
    made.rate.lr = type->lr;
    return made;
}

gg_status gg_optimizer_check(const gg_optimizer *optimizer) {
    GG_TRY(gg_rate_check(&optimizer->rate));
    GG_TRY(gg_options_check(gg_optimizer_common, optimizer));
    GG_TRY(gg_options_check(optimizer->type->options, optimizer));
    return optimizer->type->check != NULL ? optimizer->type->check(optimizer) : GG_OK;
}

int gg_optimizer_moments(const gg_optimizer *optimizer, const char *names[GG_MAX_MOMENTS]) {
    const gg_optimizer_type *type = optimizer->type;
    int count = 0;
    if (type->stateless != NULL && type->stateless(optimizer)) return 0;
    while (count < GG_MAX_MOMENTS && type->moment[count] != NULL) {
        names[count] = type->moment[count];
        ++count;
    }
    return count;
}

static bool is_decoupled(const gg_optimizer *optimizer) {
    return optimizer->type->decoupled != NULL && optimizer->type->decoupled(optimizer);
}

bool gg_optimizer_decays_gradients(const gg_optimizer *optimizer) {
    return optimizer->weight_decay > 0 && !is_decoupled(optimizer);
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
    optimizer->type->fill(optimizer, group, group_rate(optimizer, group, step),
                          optimizer->weight_decay * group->decay_factor, step, args);
}

void gg_optimizer_sum(const gg_optimizer *optimizer, const gg_group *group, int64_t step, gg_update_args *args) {
    gg_optimizer_rule(optimizer, group, step, args);
    args->rule = GG_UPDATE_PLAIN;
    if (group->statistic) return;
    args->lr = (float)group_rate(optimizer, group, step);
    args->weight_decay = is_decoupled(optimizer) ? optimizer->weight_decay * group->decay_factor : 0.0f;
}
