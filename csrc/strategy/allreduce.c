/* AllReduce: synchronous SGD. One blocking reduction of all gradients after the backward pass, weighted by the samples
 * that each rank contributed, so that p ranks of batch b do what one rank of batch p*b does, ragged last batches
 * included. */
#include "base/memory.h"
#include "strategy/flight.h"
#include "strategy/reduction.h"
#include "strategy/types.h"

typedef struct allreduce {
    gg_strategy head;
    gg_reduction *reduction;
    gg_compression_counts counts;
} allreduce;

static gg_status allreduce_end(gg_strategy *strategy) {
    gg_status status = GG_OK;
    const gg_strategy_env *env = &strategy->env;
    float *gradients = gg_state_gradients(env->state);
    gg_reduction *reduction = env->transport->size > 1 ? ((allreduce *)strategy)->reduction : NULL;
    gg_flight flight = {0};
    if (reduction != NULL) {
        gg_flight_begin(&flight, strategy, -1);
        GG_TRY(gg_reduction_start(reduction, gradients, strategy->share));
        GG_TRY(gg_reduction_wait(reduction));
        gg_flight_complete(&flight, strategy);
        gg_flight_end_all(&flight, strategy, "gradients");
    }
    gg_strategy_measure(strategy, gradients);
    if (reduction == NULL) gg_strategy_update(strategy, 0, env->state->count, gradients);
    else GG_TRY(gg_reduction_deliver(reduction, gg_strategy_update_piece, strategy));
    if (reduction != NULL) GG_TRY(gg_reduction_finish(reduction));
cleanup:
    return gg_strategy_at_all(strategy, status);
}

static gg_status allreduce_offer_input(gg_strategy *strategy, int layer, const gg_vectors *input, bool *taken) {
    gg_reduction *reduction = ((allreduce *)strategy)->reduction;
    return gg_strategy_at(strategy, layer, layer, gg_reduction_input(reduction, layer, input, taken));
}

static gg_status allreduce_offer_error(gg_strategy *strategy, int layer, const gg_vectors *error) {
    gg_reduction *reduction = ((allreduce *)strategy)->reduction;
    return gg_strategy_at(strategy, layer, layer, gg_reduction_error(reduction, layer, error));
}

static const gg_strategy_fc_hooks fc_hooks = {allreduce_offer_input, allreduce_offer_error};

static void complete_residue(gg_strategy *strategy) { gg_reduction_complete(((allreduce *)strategy)->reduction); }

static gg_status allreduce_settle(gg_strategy *strategy) {
    complete_residue(strategy);
    return GG_OK;
}

static void allreduce_destroy(gg_strategy *strategy) {
    allreduce *s = (allreduce *)strategy;
    gg_reduction_destroy(s->reduction);
    gg_state_destroy(&strategy->env);
    gg_free(strategy);
}

static const gg_strategy_table table = {gg_strategy_nothing,  gg_strategy_no_layer, gg_strategy_no_layer,
                                        gg_strategy_progress, allreduce_end,        allreduce_settle,
                                        allreduce_destroy};

static gg_status allreduce_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    gg_status status = GG_OK;
    allreduce *made = NULL;
    GG_TRY(gg_calloc(1, sizeof *made, "strategy", &made));
    made->head.table = &table;
    made->head.env = *env;
    made->head.averages_gradients = true;
    made->head.complete_residue = complete_residue;
    bool accumulates;
    GG_TRY(gg_strategy_accumulate(options, env, &accumulates));
    GG_TRY(gg_state_create(env, GG_SHARED_GRADIENT | gg_residue_wanted(options, env)));
    if (gg_state_residue(env->state) != NULL) made->head.compression_counts = &made->counts;
    GG_TRY(gg_reduction_create(&made->head, options,
                               &(gg_reduction_run){.group = env->transport,
                                                   .count = env->state->count,
                                                   .tag = GG_TAG_ALLREDUCE,
                                                   .residue = gg_state_residue(env->state),
                                                   .in_pieces = !gg_updater_measures(env->updater),
                                                   .marks = true,
                                                   .accumulates = accumulates,
                                                   .counts = &made->counts},
                               &made->reduction));
    if (made->reduction->takes) made->head.fc_hooks = &fc_hooks;
cleanup:
    if (status != GG_OK && made != NULL) allreduce_destroy(&made->head), made = NULL;
    *out = made ? &made->head : NULL;
    return status;
}

const gg_strategy_type gg_strategy_allreduce = {
    .name = "allreduce", .create = allreduce_create, .local_momentum = true, .keeps_equal = GG_EQUAL_REPLICAS};
