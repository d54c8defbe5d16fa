/* AllReduce: synchronous SGD. One blocking reduction of all gradients after the backward pass, weighted by the samples that each
 * rank contributed, so that p ranks of batch b do what one rank of batch p*b does, ragged last batches included. */
#include "base/memory.h"
#include "comm/collective.h"
#include "strategy/tables.h"

typedef struct allreduce {
    gg_strategy head;
    gg_allreduce *reduction;
} allreduce;

static gg_status nothing(gg_strategy *strategy) {
    (void)strategy;
    return GG_OK;
}

static gg_status no_layer(gg_strategy *strategy, int layer) {
    (void)strategy, (void)layer;
    return GG_OK;
}

static gg_status poll(gg_strategy *strategy) { return gg_progress(strategy->env.transport); }

static gg_status end(gg_strategy *strategy) {
    gg_status status = GG_OK;
    const gg_strategy_env *env = &strategy->env;
    if (env->transport->size > 1) {
        double begin = gg_transport_now(env->transport);
        GG_TRY(gg_allreduce_run(((allreduce *)strategy)->reduction, env->state->gradient, strategy->share));
        strategy->exposed_seconds += gg_transport_now(env->transport) - begin;
    }
    gg_strategy_update(strategy, 0, env->state->count, env->state->gradient);
cleanup:
    return status;
}

static void destroy(gg_strategy *strategy) {
    gg_state *state = strategy->env.state;
    gg_allreduce_destroy(((allreduce *)strategy)->reduction);
    gg_message_free(strategy->env.transport, state->gradient);
    gg_free(state->weight);
    gg_free(state->momentum);
    state->weight = state->gradient = state->momentum = NULL;
    gg_free(strategy);
}

static const gg_strategy_table table = {"allreduce", nothing, no_layer, no_layer, poll, end, nothing, destroy};

gg_status gg_allreduce_strategy_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    gg_status status = GG_OK;
    allreduce *made = NULL;
    gg_state *state = env->state;
    (void)options;
    GG_TRY(gg_calloc(1, sizeof *made, "strategy", (void **)&made));
    made->head.table = &table;
    made->head.env = *env;
    GG_TRY(gg_message_alloc(env->transport, state->count * sizeof(float), "gradients", (void **)&state->gradient));
    GG_TRY(gg_calloc(state->count, sizeof(float), "weights", (void **)&state->weight));
    if (env->optimizer->momentum > 0) GG_TRY(gg_calloc(state->count, sizeof(float), "momentum", (void **)&state->momentum));
    GG_TRY(gg_allreduce_create(env->transport, env->device, state->count, GG_TAG_ALLREDUCE, &made->reduction));
cleanup:
    if (status != GG_OK && made != NULL) destroy(&made->head), made = NULL;
    *out = made ? &made->head : NULL;
    return status;
}
