/* ElasticAveraging: EASGD, or EAMSGD with a momentum optimiser. Every rank trains alone. After each step t with (t + 1)
 * % period == 0 an elastic force pulls its weights w and a centre c towards each other:
 *
 *   s = alpha*(w - c); c += s; w -= s
 *
 * with the weights w after the local step. Momentum is not exchanged.
 *
 * - Synchronous: all ranks exchange at once, with the centre before the exchange: c += sum of s over the ranks. Every
 *   rank has an equal centre, so one all-reduce of s is enough.
 * - Asynchronous: the centre lies on servers, and each worker exchanges at its own time.
 *
 * Every exchange preserves c plus the sum of w over the ranks, to the rounding of float32. This holds for inexact
 * codecs too: the rounded s moves both sides, and if a sum of these is rounded again, the weights of one rank absorb
 * the difference. With compression both sides move by the sent part of s; the rest remains in w - c, from which the
 * next s is made. */
#include "base/memory.h"
#include "exchange/parts/centre.h"
#include "exchange/parts/reduction.h"
#include "exchange/types.h"

/* ---- asynchronous ---- */

static void elastic_ask(gg_centre *s, size_t at, size_t n, float *message) {
    gg_device_copy(s->head.env.device, GG_QUEUE_COMPUTE, message, gg_state_weights(s->head.env.state) + at,
                   n * sizeof(float));
}

static void elastic_answer(gg_centre *s, size_t n, float *weight, const float *message, float *answer) {
    gg_device *device = s->head.env.device;
    gg_scaled_difference(device, n, s->alpha, message, weight, answer);
    gg_add_scaled(device, n, weight, 1.0f, answer, weight);
}

static void elastic_apply(gg_centre *s, size_t at, size_t n, const float *answer) {
    float *weight = gg_state_weights(s->head.env.state) + at;
    gg_add_scaled(s->head.env.device, n, weight, -1.0f, answer, weight);
}

/* The answer is -s, rounded. The centre changes by the rounded value, so c and w change by the same amount. */
static gg_status elastic_answer_difference(gg_centre *s, gg_centre_run *run, float *weight, float *known) {
    GG_TRY(gg_centre_read(s, run, run->message, run->message_bytes, 1.0f, known));
    GG_TRY(gg_centre_tell(s, run, s->alpha, weight, known));
    return gg_centre_read(s, run, run->answer, run->answer_bytes, -1.0f, weight);
}

static const gg_centre_rule rule = {.table = GG_CENTRE_TABLE,
                                    .ask = elastic_ask,
                                    .answer = elastic_answer,
                                    .apply = elastic_apply,
                                    .answer_difference = elastic_answer_difference};

/* ---- synchronous ---- */

typedef struct elastic {
    gg_strategy head;
    gg_reduction *reduction;
    float *pull;   /* -s; message memory */
    float *centre; /* equal bits on every rank */
    float *ones;   /* one a rank */
    int64_t period;
    float alpha;
    /* With compression only: */
    float *unsent; /* of the force; NULL means that all of it is sent */
    gg_compression_counts counts;
} elastic;

/* Clears the unsent part of a force, which moves neither side. It is still in w - c, from which the next force is made,
 * so it must not be added again. */
static void forget_unsent(elastic *s) {
    if (s->unsent != NULL)
        gg_device_zero(s->head.env.device, GG_QUEUE_COMPUTE, s->unsent, s->head.env.state->count * sizeof(float));
}

static gg_status elastic_end(gg_strategy *strategy) {
    gg_status status = GG_OK;
    elastic *s = (elastic *)strategy;
    const gg_strategy_env *env = &strategy->env;
    const gg_state *state = env->state;
    gg_flight flight = {0};
    if ((strategy->step + 1) % s->period != 0) goto cleanup;
    gg_scaled_difference(env->device, state->count, s->alpha, s->centre, gg_state_weights(state), s->pull);
    gg_flight_begin(&flight, strategy, -1);
    forget_unsent(s);
    GG_TRY_CLEANUP(gg_reduction_run_all(s->reduction, s->pull, s->ones));
    gg_flight_complete(&flight, strategy);
    gg_flight_end_all(&flight, strategy, "elastic force");
    gg_add_scaled(env->device, state->count, s->centre, -1.0f, s->pull, s->centre);
cleanup:
    return gg_strategy_at_all(strategy, status);
}

static gg_status elastic_read_model(gg_strategy *strategy, float *out) {
    return gg_device_read(strategy->env.device, out, ((elastic *)strategy)->centre,
                          strategy->env.state->count * sizeof(float));
}

static void elastic_write_model(gg_strategy *strategy, const float *weights) {
    (void)gg_device_write(strategy->env.device, ((elastic *)strategy)->centre, weights,
                          strategy->env.state->count * sizeof(float));
}

static const gg_strategy_model model = {elastic_read_model, elastic_write_model};

static void elastic_destroy(gg_strategy *strategy) {
    elastic *s = (elastic *)strategy;
    gg_reduction_destroy(s->reduction);
    gg_message_free(strategy->env.transport, s->pull);
    gg_state_destroy(&strategy->env);
    gg_device_free(strategy->env.device, s->centre);
    gg_free(s->ones);
    gg_device_free(strategy->env.device, s->unsent);
    gg_free(s);
}

static const gg_strategy_table synchronous = {gg_strategy_nothing,  gg_strategy_no_layer, gg_strategy_update_layer,
                                              gg_strategy_progress, elastic_end,          gg_strategy_nothing,
                                              elastic_destroy};

static gg_status create_synchronous(float alpha, const gg_strategy_options *options, const gg_strategy_env *env,
                                    gg_strategy **out) {
    gg_status status = GG_OK;
    elastic *s = NULL;
    int p = env->transport->size;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *s, "strategy", &s));
    s->head.table = &synchronous;
    s->head.only_applies_gradients = true;
    s->head.model = &model;
    s->head.env = *env;
    s->period = options->centre.period;
    s->alpha = alpha;
    GG_TRY_CLEANUP(gg_state_create(env, 0));
    GG_TRY_CLEANUP(
        gg_message_alloc_device(env->transport, env->state->count * sizeof(float), "elastic force", &s->pull));
    GG_TRY_CLEANUP(gg_device_alloc(env->device, env->state->count * sizeof(float), "centre", &s->centre));
    GG_TRY_CLEANUP(gg_calloc((size_t)p, sizeof(float), "shares", &s->ones));
    for (int i = 0; i < p; ++i) s->ones[i] = 1.0f;
    if (gg_residue_wanted(options, env) != 0) {
        GG_TRY_CLEANUP(gg_device_alloc(env->device, env->state->count * sizeof(float), "unsent force", &s->unsent));
        s->head.compression_counts = &s->counts;
    }
    /* The reduction adds the rank's sent values to its weights, so both sides move equally. */
    GG_TRY_CLEANUP(gg_reduction_create(&s->head, options,
                                       &(gg_reduction_run){.group = env->transport,
                                                           .count = env->state->count,
                                                           .tag = GG_TAG_ALLREDUCE,
                                                           .period = s->period,
                                                           .applied = gg_state_weights(env->state),
                                                           .rest = gg_state_weights(env->state),
                                                           .residue = s->unsent,
                                                           .counts = &s->counts},
                                       &s->reduction));
    *out = &s->head;
cleanup:
    if (status != GG_OK && s != NULL) elastic_destroy(&s->head);
    return status;
}

/* ---- both ---- */

static float elastic_alpha(const gg_strategy_options *options, int ranks) {
    const int workers = gg_centre_workers(options, ranks);
    if (options->centre.alpha != 0 || workers == 0) return (float)options->centre.alpha;
    return (float)((options->centre.synchronous ? 0.8 : 0.9) / workers);
}

static gg_status check_synchronous(const gg_strategy_options *options, int ranks) {
    GG_TRY(gg_strategy_check_sizes(options, ranks));
    if (options->centre.servers != 1 || options->centre.dedicated)
        return gg_fail(GG_ERROR_ARGUMENT, "%s: the synchronous form has no server; only synchronous=False has",
                       options->centre.dedicated ? "dedicated" : "servers");
    return GG_OK;
}

static gg_status elastic_check(const gg_strategy_options *options, int ranks) {
    const int workers = gg_centre_workers(options, ranks);
    /* With n ranks at once an exchange multiplies the distance of the ranks' mean from the centre by 1 - (n + 1)*alpha.
     */
    const double limit = 2.0 / (options->centre.synchronous ? workers + 1 : 2), alpha = options->centre.alpha;
    if (alpha != 0 && !(alpha > 0 && alpha < limit))
        return gg_fail(GG_ERROR_ARGUMENT,
                       "alpha: %g; with %d ranks it must be above 0 and below %g, or the centre runs away", alpha,
                       workers, limit);
    return options->centre.synchronous ? check_synchronous(options, ranks) : gg_centre_check(options, ranks);
}

static gg_status elastic_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    const float alpha = elastic_alpha(options, env->transport->size);
    return options->centre.synchronous ? create_synchronous(alpha, options, env, out)
                                       : gg_centre_create(&rule, alpha, options, env, out);
}

static bool elastic_goes_on(const gg_strategy_options *a, const gg_strategy_options *b, bool residues) {
    return !residues || a->centre.synchronous == b->centre.synchronous;
}

static const gg_option options[] = {
    GG_OPTION_PERIOD(centre.period, 10, "steps from one exchange with the centre to the next"),
    GG_STRATEGY_OPTION(GG_OPTION_DOUBLE, "alpha", centre.alpha, "the share of the way to the centre",
                       .bounds = GG_BETWEEN(0, 1), .unset = "0.8 / ranks, or 0.9 / ranks if not synchronous"),
    GG_STRATEGY_FLAG("synchronous", centre.synchronous, "all ranks meet the centre at once", true),
    GG_OPTION_WIRE,
    GG_OPTION_COLLECTIVES,
    GG_OPTION_SERVERS,
    GG_OPTION_BUCKET("1 MiB"),
    GG_OPTION_CHUNK("2 MiB"),
    {.name = NULL}};

const gg_strategy_type gg_strategy_elastic_averaging = {.name = "elastic-averaging",
                                                        .options = options,
                                                        .goes_on = elastic_goes_on,
                                                        .check = elastic_check,
                                                        .create = elastic_create,
                                                        .workers = gg_centre_workers};
