/* PeriodicAllReduce: local SGD. Every rank trains alone; after each step t with (t + 1) % period == 0 the weights, and
 * the moments of the optimiser, become the mean over the ranks, each counting 1/p. Nothing is in flight between
 * steps. */
#include "base/memory.h"
#include "strategy/reduction.h"
#include "strategy/types.h"

typedef struct periodic_allreduce {
    gg_strategy head;
    gg_reduction *averaging;
    float *equal_share; /* 1/p for each rank */
    int64_t period;
} periodic_allreduce;

static gg_status periodic_end(gg_strategy *strategy) {
    gg_status status = GG_OK;
    periodic_allreduce *s = (periodic_allreduce *)strategy;
    const gg_state *state = strategy->env.state;
    double begin = gg_transport_now(strategy->env.transport);
    int64_t sent = strategy->env.transport->bytes_sent;
    if (strategy->env.transport->size == 1 || (strategy->step + 1) % s->period != 0) goto cleanup;
    for (int i = 0; i < state->arenas; ++i)
        if (state->arena[i].kind == GG_ARENA_WEIGHT || state->arena[i].kind == GG_ARENA_MOMENT)
            GG_TRY(gg_reduction_run_all(s->averaging, state->arena[i].data, s->equal_share));
    gg_strategy_exchanged(strategy, (gg_trace_span){.begin = begin,
                                                    .arrived = gg_transport_now(strategy->env.transport),
                                                    .name = "weights",
                                                    .step = strategy->step,
                                                    .last = gg_graph_layers(strategy->env.graph) - 1,
                                                    .peer = -1,
                                                    .bytes = strategy->env.transport->bytes_sent - sent});
cleanup:
    return gg_strategy_at_all(strategy, gg_error_prefix(status, "mean of the replicas: "));
}

static void periodic_destroy(gg_strategy *strategy) {
    periodic_allreduce *s = (periodic_allreduce *)strategy;
    gg_reduction_destroy(s->averaging);
    gg_state_destroy(&strategy->env);
    gg_free(s->equal_share);
    gg_free(s);
}

static const gg_strategy_table table = {gg_strategy_nothing,  gg_strategy_no_layer, gg_strategy_update_layer,
                                        gg_strategy_progress, periodic_end,         gg_strategy_nothing,
                                        periodic_destroy};

static gg_status periodic_check(const gg_strategy_options *options, int ranks) {
    (void)ranks;
    if (options->period >= 0) return GG_OK;
    return gg_fail(GG_ERROR_ARGUMENT, "period: %lld; must be at least 1, or 'log2'", (long long)options->period);
}

static gg_status periodic_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    gg_status status = GG_OK;
    periodic_allreduce *made = NULL;
    int p = env->transport->size;
    GG_TRY(gg_calloc(1, sizeof *made, "strategy", &made));
    made->head.table = &table;
    made->head.env = *env;
    made->period = options->period;
    if (made->period == 0) {
        for (int64_t reached = 1; reached < p; reached *= 2) made->period++;
        if (made->period == 0) made->period = 1;
    }
    GG_TRY(gg_calloc((size_t)p, sizeof(float), "shares", &made->equal_share));
    for (int i = 0; i < p; ++i) made->equal_share[i] = 1.0f / (float)p;
    GG_TRY(gg_state_create(env, GG_SHARED_WEIGHT | GG_SHARED_MOMENTS));
    GG_TRY(gg_reduction_create(
        &made->head, options,
        &(gg_reduction_run){
            .group = env->transport, .count = env->state->count, .tag = GG_TAG_ALLREDUCE, .displaces = true},
        &made->averaging));
cleanup:
    if (status != GG_OK && made != NULL) periodic_destroy(&made->head), made = NULL;
    *out = made ? &made->head : NULL;
    return status;
}

const gg_strategy_type gg_strategy_periodic_allreduce = {
    .name = "periodic-allreduce", .check = periodic_check, .create = periodic_create};
