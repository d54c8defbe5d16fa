/* NoExchange: every rank trains alone. The floor that the others are measured against. */
#include "base/memory.h"
#include "strategy/tables.h"

static gg_status nothing(gg_strategy *strategy) {
    (void)strategy;
    return GG_OK;
}

static gg_status need(gg_strategy *strategy, int layer) {
    (void)strategy, (void)layer;
    return GG_OK;
}

static gg_status ready(gg_strategy *strategy, int layer) {
    const gg_slice *slice = gg_graph_layer(strategy->env.graph, layer);
    gg_strategy_update(strategy, slice->offset, slice->count, strategy->env.state->gradient + slice->offset);
    return GG_OK;
}

static gg_status poll(gg_strategy *strategy) { return gg_progress(strategy->env.transport); }

static void destroy(gg_strategy *strategy) {
    gg_state *state = strategy->env.state;
    gg_free(state->weight);
    gg_free(state->gradient);
    gg_free(state->momentum);
    state->weight = state->gradient = state->momentum = NULL;
    gg_free(strategy);
}

static const gg_strategy_table table = {"no-exchange", nothing, need, ready, poll, nothing, nothing, destroy};

gg_status gg_no_exchange_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    gg_status status = GG_OK;
    gg_strategy *made = NULL;
    gg_state *state = env->state;
    (void)options;
    GG_TRY(gg_calloc(1, sizeof *made, "strategy", (void **)&made));
    made->table = &table;
    made->env = *env;
    GG_TRY(gg_calloc(state->count, sizeof(float), "weights", (void **)&state->weight));
    GG_TRY(gg_calloc(state->count, sizeof(float), "gradients", (void **)&state->gradient));
    if (env->optimizer->momentum > 0) GG_TRY(gg_calloc(state->count, sizeof(float), "momentum", (void **)&state->momentum));
cleanup:
    if (status != GG_OK && made != NULL) destroy(made), made = NULL;
    *out = made;
    return status;
}
