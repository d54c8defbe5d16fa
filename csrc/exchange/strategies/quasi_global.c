/* QuasiGlobal: gossip of weights (gossip_weights.c) in which SGD's momentum follows the mixed weights. With x the
 * weights of a step before its update, x' those after its mix, lr its learning rate, and m the momentum before it:
 *
 *   m' = mu*m + (1 - mu)*(x - x')/lr
 *
 * 1. Before the update this file keeps mu*m + (1 - mu)*x/lr, the part of m' that is known.
 * 2. The update overwrites m by beta*m + gradient, and moves the weights by it.
 * 3. When the layer is needed again its mix is complete: m' = kept - (1 - mu)*x'/lr. Settling does this too, so that
 *    the state at rest is that of SGD alone.
 *
 * A learning rate of 0 moves nothing: m' = m. Statistics have no momentum. */
#include "base/memory.h"
#include "exchange/parts/gossip_forms.h"
#include "exchange/types.h"

typedef struct quasi_global {
    gg_strategy head;
    gg_strategy *gossip; /* exchanges the weights; owns the state */
    float mu;
    float *kept;    /* elements of an arena */
    int64_t *begun; /* one a layer: the step whose displacement m lacks; -1 means none */
} quasi_global;

/* After a call of the gossip strategy: its waits count as this strategy's. */
static gg_status by_gossip(quasi_global *q, gg_status status) {
    q->head.exposed_seconds += q->gossip->exposed_seconds;
    q->gossip->exposed_seconds = 0;
    return status;
}

/* Keeps the known part of m' before the update of step `step`, or with `mixed` makes m' after its mix. */
static void displace(quasi_global *q, int layer, int64_t step, bool mixed) {
    const gg_strategy_env *env = &q->head.env;
    const gg_slice *slice = gg_arena_layout_slice(env->layout, layer);
    const size_t end = slice->offset + slice->count;
    const gg_group *group = gg_updater_group(env->updater, slice->offset);
    for (size_t at = slice->offset, next; at < end; at = next, ++group) {
        gg_update_args rule = {0};
        next = group->end < end ? group->end : end;
        if (group->statistic) continue;
        gg_optimizer_rule(env->updater->optimizer, group, step, &rule);
        const float scale = rule.lr > 0 ? (1 - q->mu) / rule.lr : 0, share = rule.lr > 0 ? q->mu : 1;
        const float *weight = gg_state_weights(env->state) + at;
        float *m = gg_state_moment(env->state, 0) + at, *kept = q->kept + at;
        env->device->table->weighted_sum(env->device, next - at, 2, (const float *const[]){mixed ? kept : m, weight},
                                         (float[]){mixed ? 1 : share, mixed ? -scale : scale}, mixed ? m : kept);
    }
}

/* Makes m' of a layer whose weights are current. */
static void complete(quasi_global *q, int layer) {
    if (q->begun[layer] >= 0) displace(q, layer, q->begun[layer], true);
    q->begun[layer] = -1;
}

static void complete_all(quasi_global *q) {
    for (int layer = 0; layer < q->head.env.layout->layers; ++layer) complete(q, layer);
}

static gg_status quasi_begin(gg_strategy *strategy) {
    quasi_global *q = (quasi_global *)strategy;
    q->gossip->step = strategy->step;
    q->gossip->share = strategy->share;
    q->gossip->batch = strategy->batch;
    return by_gossip(q, q->gossip->table->begin(q->gossip));
}

static gg_status quasi_need(gg_strategy *strategy, int layer) {
    quasi_global *q = (quasi_global *)strategy;
    return by_gossip(q, q->gossip->table->need(q->gossip, layer));
}

static gg_status quasi_ready(gg_strategy *strategy, int layer) {
    quasi_global *q = (quasi_global *)strategy;
    GG_TRY(quasi_need(strategy, layer)); /* a rank without samples has not asked */
    complete(q, layer);
    displace(q, layer, strategy->step, false);
    q->begun[layer] = strategy->step;
    return by_gossip(q, q->gossip->table->ready(q->gossip, layer));
}

static gg_status quasi_poll(gg_strategy *strategy) {
    quasi_global *q = (quasi_global *)strategy;
    return by_gossip(q, q->gossip->table->poll(q->gossip));
}

/* One rank's weights are current here, and may be written before the next step. */
static gg_status quasi_end(gg_strategy *strategy) {
    quasi_global *q = (quasi_global *)strategy;
    if (strategy->env.transport->size == 1) complete_all(q);
    return by_gossip(q, q->gossip->table->end(q->gossip));
}

static gg_status quasi_settle(gg_strategy *strategy) {
    quasi_global *q = (quasi_global *)strategy;
    GG_TRY(by_gossip(q, q->gossip->table->settle(q->gossip)));
    complete_all(q);
    return GG_OK;
}

static void quasi_destroy(gg_strategy *strategy) {
    quasi_global *q = (quasi_global *)strategy;
    gg_device_free(strategy->env.device, q->kept);
    gg_free(q->begun);
    gg_strategy_destroy(q->gossip);
    gg_free(q);
}

static const gg_strategy_table table = {quasi_begin, quasi_need,   quasi_ready,  quasi_poll,
                                        quasi_end,   quasi_settle, quasi_destroy};

static gg_status quasi_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    gg_status status = GG_OK;
    const gg_optimizer *optimizer = env->updater->optimizer;
    const int layers = env->layout->layers;
    gg_strategy_options weights = *options;
    quasi_global *q = NULL;
    if (optimizer->type != &gg_optimizer_sgd)
        GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT,
                        "optimizer: %s with the strategy quasi-global, which makes SGD's momentum; allowed is sgd",
                        optimizer->type->name);
    if (!(optimizer->sgd.momentum > 0))
        GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT,
                        "momentum: %g of SGD with the strategy quasi-global, which makes it; must be above 0",
                        (double)optimizer->sgd.momentum);
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *q, "strategy", &q));
    q->head.table = &table;
    q->head.env = *env;
    q->head.only_applies_gradients = true;
    q->mu = (float)options->gossip.mu;
    weights.gossip.exchange = GG_EXCHANGE_WEIGHTS;
    GG_TRY_CLEANUP(gg_gossip_weights_create(&weights, env, &q->gossip));
    q->head.receipts = q->gossip->receipts;
    q->head.buckets = q->gossip->buckets;
    GG_TRY_CLEANUP(gg_device_alloc(env->device, env->state->count * sizeof *q->kept, "kept momentum", &q->kept));
    GG_TRY_CLEANUP(gg_calloc((size_t)layers + 1, sizeof *q->begun, "steps of layers", &q->begun));
    for (int layer = 0; layer < layers; ++layer) q->begun[layer] = -1;
cleanup:
    if (status != GG_OK && q != NULL) quasi_destroy(&q->head), q = NULL;
    *out = q != NULL ? &q->head : NULL;
    return status;
}

static gg_exchange_cost quasi_cost(const gg_strategy_options *options, int ranks, int moments) {
    (void)ranks, (void)moments;
    return (gg_exchange_cost){.copies = gg_wire_part(options), .messages = 1, .hops = 1};
}

static const gg_option options[] = {GG_OPTIONS_PARTNERS,
                                    GG_STRATEGY_OPTION(GG_OPTION_DOUBLE, "mu", gossip.mu,
                                                       "share of the former momentum in the momentum",
                                                       .fallback = {0.9}, .bounds = GG_BELOW(0, 1)),
                                    GG_OPTION_WIRE,
                                    GG_OPTION_BUCKET(GG_TUNED),
                                    GG_OPTION_CHUNK(GG_TUNED),
                                    {.name = NULL}};

const gg_strategy_type gg_strategy_quasi_global = {.name = "quasi-global",
                                                   .options = options,
                                                   .check = gg_strategy_check_sizes,
                                                   .create = quasi_create,
                                                   .cost = quasi_cost,
                                                   .needs_all = gg_strategy_needs_none,
                                                   .in_loops = true,
                                                   .partnered = true};
