/* PeriodicAllReduce: local SGD. Every rank trains alone. After each step t with (t + 1) % period == 0 the weights, and
 * the optimiser's moments, become the mean over the ranks, each counting 1/p. Nothing is in flight between steps.
 *
 * With compression a rank sends the moves of its weights since the last mean, the base, with error feedback. All ranks
 * continue from the base plus the mean of the sent moves. Moments stay private. The base is an arena, so that a run may
 * be resumed between two means. If a rank does not know it, because weights have been loaded, the next mean is one of
 * whole weights. So are the means of the first steps.
 *
 * Where ranks may die, sums are made in landings, which become weights and moments when all are complete. If a death
 * breaks a mean, this rank keeps its own weights and trains on; another may have made the mean. At the end of the first
 * step without the dead, all ranks make a mean of whole weights. */
#include "base/memory.h"
#include "comm/collective.h"
#include "exchange/codec/packed.h"
#include "exchange/parts/flight.h"
#include "exchange/parts/kept.h"
#include "exchange/parts/receipts.h"
#include "exchange/parts/reduction.h"
#include "exchange/types.h"

/* State of the base. AT_BEGIN: equals the weights when training begins. UNKNOWN: found by the next mean of whole
 * weights. KNOWN: present. */
typedef enum base_state { BASE_AT_BEGIN = 0, BASE_UNKNOWN, BASE_KNOWN } base_state;

typedef struct periodic_allreduce {
    gg_strategy head;
    gg_reduction *averaging;
    float *equal_share; /* 1/p for each rank */
    int64_t period;
    /* With compression only: */
    gg_reduction *moving; /* NULL means none */
    float *moved;         /* the weights minus the base, then the mean of the sent moves */
    float *base;          /* an arena of the state */
    base_state base_state;
    bool agreed; /* nothing has been loaded since the ranks last agreed that all know the base */
    int64_t warmup;
    gg_segments segments;
    gg_compression_counts counts;
    /* Where ranks may die only: */
    float *landing[GG_MAX_ARENAS]; /* one an arena that is averaged */
    gg_kept kept;                  /* the residue before a mean */
    gg_receipts receipts;
    bool retries; /* the next step's end makes a mean of whole weights */
} periodic_allreduce;

static bool is_averaged(const gg_state *state, int arena) {
    return state->arena[arena].kind == GG_ARENA_WEIGHT || state->arena[arena].kind == GG_ARENA_MOMENT;
}

static void copy_arena(periodic_allreduce *s, float *to, const float *from) {
    gg_device_copy(s->head.env.device, GG_QUEUE_COMPUTE, to, from, s->head.env.state->count * sizeof *to);
}

static gg_status average_arenas(periodic_allreduce *s) {
    const gg_state *state = s->head.env.state;
    const bool mortal = s->head.env.mortal;
    for (int i = 0; i < state->arenas; ++i) {
        if (!is_averaged(state, i)) continue;
        if (mortal) copy_arena(s, s->landing[i], state->arena[i].data);
        GG_TRY(gg_reduction_run_all(s->averaging, mortal ? s->landing[i] : state->arena[i].data, s->equal_share));
    }
    for (int i = 0; mortal && i < state->arenas; ++i)
        if (is_averaged(state, i)) copy_arena(s, state->arena[i].data, s->landing[i]);
    return GG_OK;
}

static gg_status average_all(periodic_allreduce *s) {
    const gg_state *state = s->head.env.state;
    GG_TRY(average_arenas(s));
    if (s->moving == NULL) return GG_OK;
    gg_compression_count_dense(s->segments.segment, s->segments.count, &s->counts);
    copy_arena(s, s->base, gg_state_weights(state));
    s->base_state = BASE_KNOWN;
    return GG_OK;
}

/* Weights are loaded at rest only, and all ranks come to rest together. */
static gg_status all_know_base(periodic_allreduce *s, bool *known) {
    double unknown = s->base_state != BASE_KNOWN;
    if (!s->agreed) GG_TRY(gg_allreduce_doubles(s->head.env.transport, &unknown, 1));
    s->agreed = true;
    *known = unknown == 0;
    return GG_OK;
}

/* Averages moves. All ranks have one base and get one mean, so their weights are equal afterwards. */
static gg_status average_moves(periodic_allreduce *s) {
    static const float difference[2] = {1, -1}, sum[2] = {1, 1};
    const gg_strategy_env *env = &s->head.env;
    const size_t count = env->state->count;
    float *weights = gg_state_weights(env->state);
    env->device->table->weighted_sum(env->device, count, 2, (const float *const[]){weights, s->base}, difference,
                                     s->moved);
    GG_TRY(gg_reduction_run_all(s->moving, s->moved, s->equal_share));
    env->device->table->weighted_sum(env->device, count, 2, (const float *const[]){s->base, s->moved}, sum, weights);
    copy_arena(s, s->base, weights);
    return GG_OK;
}

/* This rank keeps its weights. All of the group know that its next mean cannot be complete either. */
static void give_up_mean(periodic_allreduce *s) {
    gg_reduction_cancel(s->averaging);
    if (s->moving != NULL) gg_reduction_cancel(s->moving);
    gg_kept_restore(&s->head, &s->kept);
}

static void count_mean(periodic_allreduce *s) {
    for (int rank = 0; s->head.env.mortal && rank < s->head.env.transport->size; ++rank)
        gg_receipts_whole(&s->receipts, rank, s->head.step);
}

static gg_status periodic_end(gg_strategy *strategy) {
    gg_status status = GG_OK;
    periodic_allreduce *s = (periodic_allreduce *)strategy;
    gg_flight flight = {0};
    bool packed = false;
    if (strategy->env.transport->size == 1) goto cleanup;
    if ((strategy->step + 1) % s->period != 0 && !s->retries) goto cleanup;
    gg_flight_begin(&flight, strategy, -1);
    gg_kept_take(strategy, &s->kept);
    if (s->moving != NULL) GG_TRY_CLEANUP(all_know_base(s, &packed));
    GG_TRY_CLEANUP(packed && strategy->step >= s->warmup ? average_moves(s) : average_all(s));
    count_mean(s);
    gg_flight_complete(&flight, strategy);
    gg_flight_end_all(&flight, strategy, "weights");
cleanup:
    s->retries = false;
    if (status == GG_ERROR_PEER && strategy->env.mortal) {
        give_up_mean(s);
        return GG_OK;
    }
    return gg_strategy_at_all(strategy, gg_error_prefix(status, "mean of the replicas: "));
}

static gg_status periodic_begin(gg_strategy *strategy) {
    periodic_allreduce *s = (periodic_allreduce *)strategy;
    const gg_state *state = strategy->env.state;
    if (s->moving == NULL || s->base_state != BASE_AT_BEGIN) return GG_OK;
    copy_arena(s, s->base, gg_state_weights(state));
    s->base_state = BASE_KNOWN;
    return GG_OK;
}

static gg_status periodic_settle(gg_strategy *strategy) {
    ((periodic_allreduce *)strategy)->agreed = false;
    return GG_OK;
}

static void periodic_regrouped(gg_strategy *strategy) {
    periodic_allreduce *s = (periodic_allreduce *)strategy;
    s->retries = true;
    s->base_state = BASE_UNKNOWN;
    s->agreed = false;
}

/* A checkpoint loads the weights first. A checkpoint without a base gives zeros for it. */
static void periodic_loaded(gg_strategy *strategy, int arena) {
    periodic_allreduce *s = (periodic_allreduce *)strategy;
    const gg_state *state = strategy->env.state;
    if (arena == GG_WEIGHTS) s->base_state = BASE_UNKNOWN;
    if (state->arena[arena].data == s->base && !gg_strategy_all_zero(strategy, arena)) s->base_state = BASE_KNOWN;
}

static void periodic_destroy(gg_strategy *strategy) {
    periodic_allreduce *s = (periodic_allreduce *)strategy;
    gg_reduction_destroy(s->moving);
    gg_reduction_destroy(s->averaging);
    gg_segments_destroy(&s->segments);
    gg_kept_destroy(&strategy->env, &s->kept);
    gg_receipts_destroy(&s->receipts);
    for (int i = GG_MAX_ARENAS - 1; i >= 0; --i) gg_message_free(strategy->env.transport, s->landing[i]);
    gg_state_destroy(&strategy->env);
    gg_device_free(strategy->env.device, s->moved);
    gg_free(s->equal_share);
    gg_free(s);
}

static const gg_strategy_table table = {periodic_begin,       gg_strategy_no_layer, gg_strategy_update_layer,
                                        gg_strategy_progress, periodic_end,         periodic_settle,
                                        periodic_destroy};

static gg_status create_moving(periodic_allreduce *s, const gg_strategy_options *options) {
    const gg_strategy_env *env = &s->head.env;
    const gg_state *state = env->state;
    gg_strategy_options always = *options; /* the first steps do not come here */
    always.compression.warmup = 0;
    s->warmup = options->compression.warmup;
    s->base = state->arena[gg_state_find(state, "base")].data;
    s->head.compression_counts = &s->counts;
    s->head.loaded = periodic_loaded;
    GG_TRY(gg_segments_create(env->layout, &options->compression, &s->segments));
    GG_TRY(gg_device_alloc(env->device, state->count * sizeof *s->moved, "moves of the weights", &s->moved));
    return gg_reduction_create(&s->head, &always,
                               &(gg_reduction_run){.group = env->transport,
                                                   .count = state->count,
                                                   .tag = GG_TAG_ALLREDUCE,
                                                   .period = s->period,
                                                   .residue = gg_state_residue(state),
                                                   .counts = &s->counts},
                               &s->moving);
}

/* All that lets the others go on after a death. */
static gg_status create_landings(periodic_allreduce *s) {
    const gg_strategy_env *env = &s->head.env;
    const gg_state *state = env->state;
    if (!env->mortal) return GG_OK;
    for (int i = 0; i < state->arenas; ++i)
        if (is_averaged(state, i))
            GG_TRY(gg_message_alloc_device(env->transport, state->count * sizeof(float), "a mean of the ranks",
                                           &s->landing[i]));
    GG_TRY(gg_kept_create(&s->head, false, &s->kept));
    GG_TRY(gg_receipts_create(env->transport->size, &s->receipts));
    s->head.receipts = &s->receipts;
    s->head.regrouped = periodic_regrouped;
    return GG_OK;
}

static gg_status periodic_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    gg_status status = GG_OK;
    periodic_allreduce *made = NULL;
    int p = env->transport->size;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "strategy", &made));
    made->head.table = &table;
    made->head.only_applies_gradients = true;
    made->head.env = *env;
    made->period = options->periodic.period;
    if (made->period == 0) {
        for (int64_t reached = 1; reached < p; reached *= 2) made->period++;
        if (made->period == 0) made->period = 1;
    }
    GG_TRY_CLEANUP(gg_calloc((size_t)p, sizeof(float), "shares", &made->equal_share));
    for (int i = 0; i < p; ++i) made->equal_share[i] = 1.0f / (float)p;
    const unsigned residue = gg_residue_wanted(options, env);
    GG_TRY_CLEANUP(
        gg_state_create(env, GG_SHARED_WEIGHT | GG_SHARED_MOMENTS | residue | (residue != 0 ? GG_WITH_BASE : 0)));
    GG_TRY_CLEANUP(gg_reduction_create(
        &made->head, options,
        &(gg_reduction_run){
            .group = env->transport, .count = env->state->count, .tag = GG_TAG_ALLREDUCE, .displaces = true},
        &made->averaging));
    if (residue != 0) GG_TRY_CLEANUP(create_moving(made, options));
    GG_TRY_CLEANUP(create_landings(made));
cleanup:
    if (status != GG_OK && made != NULL) periodic_destroy(&made->head), made = NULL;
    *out = made ? &made->head : NULL;
    return status;
}

static const gg_option options[] = {GG_STRATEGY_OPTION(GG_OPTION_INT64, "period", periodic.period,
                                                       "steps from one averaging to the next; log2: ceil(log2 ranks)",
                                                       .bounds = GG_AT_LEAST(1), .unset = "log2"),
                                    GG_OPTION_WIRE,
                                    GG_OPTION_COLLECTIVES,
                                    {.name = NULL}};

const gg_strategy_type gg_strategy_periodic_allreduce = {
    .name = "periodic-allreduce", .options = options, .create = periodic_create, .needs_all = gg_strategy_needs_none};
