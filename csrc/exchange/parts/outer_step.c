#include "exchange/parts/outer_step.h"

#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "comm/collective.h"

/* ---- the outer step ---- */

static void outer_update(gg_outer *s, size_t at, size_t n, bool statistic) {
    gg_device *device = s->head.env.device;
    float *phi = s->phi + at, *m = s->m + at;
    const float *moved = s->moved + at;
    if (statistic) {
        device->table->weighted_sum(device, n, 2, (const float *const[]){phi, moved}, (float[]){1, s->statistic_lr},
                                    phi);
        return;
    }
    device->table->weighted_sum(device, n, 2, (const float *const[]){m, moved}, (float[]){s->momentum, s->lr}, m);
    if (s->nesterov)
        device->table->weighted_sum(device, n, 3, (const float *const[]){phi, m, moved},
                                    (float[]){1, s->momentum, s->lr}, phi);
    else device->table->weighted_sum(device, n, 2, (const float *const[]){phi, m}, (float[]){1, 1}, phi);
}

/* Applies s->moved = mean - phi. If w has not changed since it was sent, it becomes phi exactly. */
static void outer_apply(gg_outer *s, const gg_fragment *fragment) {
    const gg_strategy_env *env = &s->head.env;
    gg_device *device = env->device;
    const size_t end = fragment->offset + fragment->count;
    float *w = gg_state_weights(env->state) + fragment->offset;
    const float *phi = s->phi + fragment->offset;
    for (size_t at = fragment->offset; at < end;) {
        const gg_group *group = gg_updater_group(env->updater, at);
        const size_t stop = group->end < end ? group->end : end;
        outer_update(s, at, stop - at, group->statistic);
        at = stop;
    }
    if (s->sent == NULL) gg_device_copy(device, GG_QUEUE_COMPUTE, w, phi, fragment->count * sizeof *w);
    else
        device->table->weighted_sum(device, fragment->count, 3,
                                    (const float *const[]){w, s->sent + fragment->offset, phi}, (float[]){1, -1, 1}, w);
}

/* ---- turns ---- */

static gg_status outer_at(const gg_outer *s, int f, gg_status status) {
    return gg_strategy_at(&s->head, s->fragment[f].first_layer, s->fragment[f].last_layer,
                          gg_error_prefix(status, "outer step: "));
}

/* GG_OK for a death, which breaks a fragment's exchange. */
static gg_status outer_broken(gg_outer *s, int f, gg_status status) {
    if (status != GG_ERROR_PEER || !s->head.env.mortal) return status;
    s->rule->cancel(s, f);
    s->fragment[f].broken = true;
    return GG_OK;
}

static gg_status outer_finish(gg_outer *s, int f) { return outer_broken(s, f, s->rule->finish(s, f)); }

static gg_status outer_start(gg_outer *s, int f) {
    gg_status status = GG_OK;
    gg_fragment *fragment = &s->fragment[f];
    GG_TRY_CLEANUP(outer_finish(s, f)); /* partners that have died need not read */
    fragment->broken = false;
    if (s->sent != NULL)
        gg_device_copy(s->head.env.device, GG_QUEUE_COMPUTE, s->sent + fragment->offset,
                       gg_state_weights(s->head.env.state) + fragment->offset, fragment->count * sizeof(float));
    gg_flight_begin(&fragment->flight, &s->head, -1);
    GG_TRY_CLEANUP(outer_broken(s, f, s->rule->start(s, f)));
    fragment->begun = s->head.step;
    fragment->flies = true;
    s->in_flight[s->flying++] = f;
cleanup:
    return outer_at(s, f, status);
}

/* Completes the exchange of the fragment longest in flight. */
static gg_status outer_complete(gg_outer *s) {
    gg_status status = GG_OK;
    const int f = s->in_flight[0];
    gg_fragment *fragment = &s->fragment[f];
    size_t bytes = 0;
    double when = 0;
    if (!fragment->broken) GG_TRY_CLEANUP(outer_broken(s, f, s->rule->receive(s, f, &bytes, &when)));
    s->flying--;
    memmove(s->in_flight, s->in_flight + 1, (size_t)s->flying * sizeof *s->in_flight);
    fragment->flies = false;
    if (fragment->broken) {
        s->head.env.state->missed = true;
        goto cleanup;
    }
    if (s->head.env.mortal) s->rule->count(s, f);
    gg_flight_arrived(&fragment->flight, when, bytes);
    outer_apply(s, fragment);
    if (bytes > 0)
        gg_flight_end(&fragment->flight, &s->head, "outer step", fragment->first_layer, fragment->last_layer);
cleanup:
    return outer_at(s, f, status);
}

static bool outer_has_turn(const gg_outer *s, int f) {
    const int64_t turns = f + 1, whole = s->period / s->fragments, rest = s->period % s->fragments;
    const int64_t turn = turns * whole + turns * rest / s->fragments; /* turns * period / fragments, without overflow */
    return s->fragment[f].count > 0 && (s->head.step + 1) % s->period == turn % s->period;
}

/* ---- after a death ---- */

/* Takes `from`'s values of an arena. Collective. */
static gg_status outer_take(gg_outer *s, float *arena, int from) {
    gg_status status = GG_OK;
    const gg_strategy_env *env = &s->head.env;
    const size_t bytes = env->state->count * sizeof *arena;
    float *values = NULL;
    GG_TRY_CLEANUP(gg_alloc(bytes, "an arena of outer steps", &values));
    if (env->transport->rank == from) GG_TRY_CLEANUP(gg_device_read(env->device, values, arena, bytes));
    GG_TRY_CLEANUP(gg_broadcast(env->transport, values, bytes, from));
    if (env->transport->rank != from) GG_TRY_CLEANUP(gg_device_write(env->device, arena, values, bytes));
cleanup:
    gg_free(values);
    return status;
}

/* *again: no rank has made all outer steps. Equal on all ranks. */
static gg_status outer_join(gg_outer *s, bool *again) {
    gg_status status = GG_OK;
    const gg_strategy_env *env = &s->head.env;
    const int p = env->transport->size;
    const char own = env->state->missed;
    char *all = NULL;
    int first = 0;
    *again = false;
    GG_TRY_CLEANUP(gg_alloc((size_t)p, "ranks that have missed outer steps", &all));
    GG_TRY_CLEANUP(gg_allgather(env->transport, &own, 1, all));
    while (first < p && all[first]) ++first;
    *again = first == p;
    if (*again) first = 0;
    if (p > 1) GG_TRY_CLEANUP(outer_take(s, s->phi, first));
    if (p > 1) GG_TRY_CLEANUP(outer_take(s, s->m, first));
    env->state->missed = s->joins = false;
cleanup:
    gg_free(all);
    /* After another death it is tried again in the next view. */
    return status == GG_ERROR_PEER && env->mortal ? GG_OK : status;
}

static void outer_regrouped(gg_strategy *strategy) { ((gg_outer *)strategy)->joins = true; }

static gg_status outer_complete_due(gg_outer *s) {
    while (s->flying > 0 && s->fragment[s->in_flight[0]].begun + s->delay <= s->head.step) GG_TRY(outer_complete(s));
    return GG_OK;
}

static gg_status outer_end(gg_strategy *strategy) {
    gg_outer *s = (gg_outer *)strategy;
    bool again = false;
    GG_TRY(outer_complete_due(s));
    if (s->joins && s->rule->one_phi) GG_TRY(outer_join(s, &again));
    for (int f = 0; f < s->fragments; ++f)
        if (!s->fragment[f].flies && (outer_has_turn(s, f) || (again && s->fragment[f].count > 0)))
            GG_TRY(outer_start(s, f));
    GG_TRY(outer_complete_due(s)); /* those that no step hides */
    return GG_OK;
}

static gg_status outer_poll(gg_strategy *strategy) {
    gg_outer *s = (gg_outer *)strategy;
    GG_TRY(gg_progress(strategy->env.transport));
    for (int i = 0; i < s->flying; ++i) {
        const int f = s->in_flight[i];
        if (!s->fragment[f].broken) GG_TRY(outer_at(s, f, outer_broken(s, f, s->rule->poll(s, f))));
    }
    return GG_OK;
}

static gg_status outer_settle(gg_strategy *strategy) {
    gg_outer *s = (gg_outer *)strategy;
    while (s->flying > 0) GG_TRY(outer_complete(s));
    for (int f = 0; f < s->fragments; ++f) GG_TRY(outer_at(s, f, outer_finish(s, f)));
    return GG_OK;
}

/* The model of all ranks has been set. */
static void outer_write(gg_strategy *strategy, const float *weights) {
    (void)gg_device_write(strategy->env.device, ((gg_outer *)strategy)->phi, weights,
                          strategy->env.state->count * sizeof(float));
}

static const gg_strategy_model model = {.write = outer_write};

/* ---- creation ---- */

gg_status gg_outer_check(const gg_strategy_options *options, int ranks) {
    (void)ranks;
    if (options->outer.delay > options->outer.period)
        return gg_fail(GG_ERROR_ARGUMENT, "delay: %lld with period=%lld; must be at least 0 and at most the period",
                       (long long)options->outer.delay, (long long)options->outer.period);
    return GG_OK;
}

static void cut_fragments(gg_outer *s, const gg_arena_layout *layout) {
    for (int f = 0; f < s->fragments; ++f) {
        gg_fragment *fragment = &s->fragment[f];
        size_t end = 0;
        gg_parallel_split(s->head.env.state->count, GG_LANES, f, s->fragments, &fragment->offset, &end);
        fragment->count = end - fragment->offset;
        for (int layer = 0; layer < layout->layers && fragment->count > 0; ++layer) {
            const gg_slice *slice = gg_arena_layout_slice(layout, layer);
            if (slice->offset <= fragment->offset) fragment->first_layer = layer;
            if (slice->offset < end) fragment->last_layer = layer;
        }
    }
}

gg_status gg_outer_init(gg_outer *s, const gg_outer_rule *rule, const gg_strategy_options *options,
                        const gg_strategy_env *env) {
    const float unit =
        gg_codec_of(options->wire)->exact ? 0x1p-24f : 0x1p-8f; /* the greatest relative error of rounding */
    s->head.env = *env;
    s->head.table = &s->table;
    s->head.only_applies_gradients = true;
    s->head.model = &model;
    s->table = (gg_strategy_table){.begin = gg_strategy_nothing,
                                   .need = gg_strategy_no_layer,
                                   .ready = gg_strategy_update_layer,
                                   .poll = outer_poll,
                                   .end = outer_end,
                                   .settle = outer_settle,
                                   .destroy = rule->destroy};
    s->rule = rule;
    s->period = options->outer.period;
    s->fragments = options->outer.fragments;
    s->delay = options->outer.delay;
    if (s->delay < 0) s->delay = s->fragments == 1 ? 0 : s->period / s->fragments;
    s->lr = (float)options->outer.outer_lr;
    s->momentum = (float)options->outer.outer_momentum;
    s->nesterov = options->outer.outer_nesterov;
    s->statistic_lr = 1 - 4 * unit;
    GG_TRY(gg_state_create(env, GG_WITH_OUTER));
    s->phi = env->state->arena[gg_state_find(env->state, "outer")].data;
    s->m = env->state->arena[gg_state_find(env->state, "outer_momentum")].data;
    GG_TRY(gg_calloc((size_t)s->fragments, sizeof *s->fragment, "fragments", &s->fragment));
    GG_TRY(gg_calloc((size_t)s->fragments, sizeof *s->in_flight, "fragments in flight", &s->in_flight));
    if (s->delay > 0)
        GG_TRY(gg_device_alloc(env->device, env->state->count * sizeof *s->sent, "weights that were sent", &s->sent));
    cut_fragments(s, env->layout);
    if (!env->mortal) return GG_OK;
    GG_TRY(gg_receipts_create(env->transport->size, &s->receipts));
    s->receipts.lag = s->period - s->period / s->fragments; /* the other fragments were sent before */
    s->head.receipts = &s->receipts;
    s->head.regrouped = outer_regrouped;
    return GG_OK;
}

void gg_outer_deinit(gg_outer *s) {
    gg_state_destroy(&s->head.env);
    gg_free(s->fragment);
    gg_free(s->in_flight);
    gg_receipts_destroy(&s->receipts);
    gg_device_free(s->head.env.device, s->sent);
}
