/* AllReduce: synchronous SGD. One blocking reduction of all gradients follows the backward pass, weighted by the
 * samples of each rank. So p ranks of batch b do the same as one rank of batch p*b, ragged last batches included.
 *
 * A large number of compressed gradients travels in several messages. One message is chosen and packed while those
 * before it travel. Weights are updated from arrived messages while the others travel, unless the update needs norms,
 * which are those of all gradients, or ranks may die: a death then finds all weights updated, or none. */
#include "base/memory.h"
#include "exchange/parts/flight.h"
#include "exchange/parts/reductions.h"
#include "exchange/types.h"

/* Min bytes of gradients, before compression, in a message; max messages. */
#define MESSAGE_BYTES ((size_t)4 << 20)
#define MAX_MESSAGES 64

typedef struct allreduce {
    gg_strategy head;
    gg_buckets buckets; /* each of one chunk */
    gg_reductions reductions;
    gg_compression_counts counts;
} allreduce;

static gg_status start_all(allreduce *s) {
    gg_status status = GG_OK;
    for (int i = 0; i < s->buckets.chunk_count; ++i) {
        status = gg_reductions_start(&s->reductions, i, s->head.share);
        if (status == GG_OK) status = gg_progress(s->head.env.transport);
        GG_TRY(gg_reductions_at(&s->reductions, i, status));
    }
    return status;
}

static gg_status update(allreduce *s, int i) {
    return gg_reductions_at(&s->reductions, i, gg_reductions_update(&s->reductions, i));
}

/* With norms, or where ranks may die, no weight is updated before the last sum is complete. */
static bool updates_wait(const gg_strategy_env *env) { return gg_updater_measures(env->updater) || env->mortal; }

static gg_status reduce_and_update(allreduce *s) {
    gg_strategy *strategy = &s->head;
    const bool wait = updates_wait(&strategy->env);
    const int count = s->buckets.chunk_count;
    gg_flight flight = {0};
    gg_flight_begin(&flight, strategy, -1);
    GG_TRY(start_all(s));
    for (int i = 0; i < count; ++i) {
        GG_TRY(gg_reductions_at(&s->reductions, i, gg_reduction_wait(s->reductions.of_chunk[i])));
        if (i + 1 == count) gg_flight_complete(&flight, strategy);
        if (!wait) GG_TRY(update(s, i));
    }
    gg_strategy_measure(strategy, gg_state_gradients(strategy->env.state));
    for (int i = 0; wait && i < count; ++i) GG_TRY(update(s, i));
    for (int i = 0; i < count; ++i) GG_TRY(gg_reductions_finish(&s->reductions, i)); /* the peers have read */
    gg_flight_end_all(&flight, strategy, "gradients");
    return GG_OK;
}

static gg_status allreduce_end(gg_strategy *strategy) {
    const gg_strategy_env *env = &strategy->env;
    float *gradients = gg_state_gradients(env->state);
    if (env->transport->size > 1) return reduce_and_update((allreduce *)strategy);
    gg_strategy_measure(strategy, gradients);
    gg_strategy_update(strategy, 0, env->state->count, gradients);
    return GG_OK;
}

static gg_status allreduce_offer_input(gg_strategy *strategy, int layer, const gg_vectors *input, bool *taken) {
    return gg_reductions_input(&((const allreduce *)strategy)->reductions, layer, input, taken);
}

static gg_status allreduce_offer_error(gg_strategy *strategy, int layer, const gg_vectors *error) {
    return gg_reductions_error(&((const allreduce *)strategy)->reductions, layer, error);
}

static const gg_strategy_fc_hooks fc_hooks = {allreduce_offer_input, allreduce_offer_error};

static void complete_residue(gg_strategy *strategy) {
    gg_reductions_complete(&((const allreduce *)strategy)->reductions);
}

static void cancel(gg_strategy *strategy) { gg_reductions_cancel(&((const allreduce *)strategy)->reductions); }

static gg_status allreduce_settle(gg_strategy *strategy) {
    complete_residue(strategy);
    return GG_OK;
}

static void allreduce_destroy(gg_strategy *strategy) {
    allreduce *s = (allreduce *)strategy;
    gg_reductions_destroy(&s->reductions);
    gg_buckets_destroy(&s->buckets);
    gg_state_destroy(&strategy->env);
    gg_free(strategy);
}

static const gg_strategy_table table = {gg_strategy_nothing,  gg_strategy_no_layer, gg_strategy_no_layer,
                                        gg_strategy_progress, allreduce_end,        allreduce_settle,
                                        allreduce_destroy};

static gg_status allreduce_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    gg_status status = GG_OK;
    allreduce *made = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "strategy", &made));
    made->head.table = &table;
    made->head.env = *env;
    made->head.averages_gradients = true;
    made->head.complete_residue = complete_residue;
    made->head.cancel = cancel;
    bool accumulates;
    GG_TRY_CLEANUP(gg_strategy_accumulate(options, env, &accumulates));
    GG_TRY_CLEANUP(gg_state_create(env, GG_SHARED_GRADIENT | gg_residue_wanted(options, env)));
    float *residue = gg_state_residue(env->state);
    const size_t all = env->state->count * sizeof(float);
    const size_t least = all / MAX_MESSAGES > MESSAGE_BYTES ? all / MAX_MESSAGES : MESSAGE_BYTES;
    if (residue != NULL) made->head.compression_counts = &made->counts;
    GG_TRY_CLEANUP(gg_buckets_create(env->layout, residue != NULL ? least : all, all, &made->buckets));
    const gg_reduction_run run = {.group = env->transport,
                                  .tag = GG_TAG_USER,
                                  .residue = residue,
                                  .in_pieces = !updates_wait(env),
                                  .marks = true,
                                  .accumulates = accumulates,
                                  .counts = &made->counts};
    GG_TRY_CLEANUP(gg_reductions_create(&made->head, options, &made->buckets, &run, &made->reductions));
    if (made->reductions.takes) made->head.fc_hooks = &fc_hooks;
cleanup:
    if (status != GG_OK && made != NULL) allreduce_destroy(&made->head), made = NULL;
    *out = made ? &made->head : NULL;
    return status;
}

static const gg_option options[] = {GG_OPTION_WIRE, GG_OPTION_COLLECTIVES, {.name = NULL}};

const gg_strategy_type gg_strategy_allreduce = {.name = "allreduce",
                                                .options = options,
                                                .create = allreduce_create,
                                                .needs_all = gg_strategy_needs_none,
                                                .local_momentum = true,
                                                .keeps_equal = GG_EQUAL_REPLICAS};
