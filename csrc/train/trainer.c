#include "train/trainer.h"

#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "comm/collective.h"
#include "train/costs.h"
#include "train/limits.h"
#include "train/trainer_private.h"

#define WATCH_SECONDS 0.1

/* Each call below runs a function on each local rank. All local ranks share one struct of arguments. */

gg_replica *gg_trainer_replica(const gg_trainer *trainer, int local) { return trainer->replica[local]; }

/* ---- creation and destruction ---- */

static gg_status trainer_create(void *context, int local) {
    gg_trainer *t = context;
    gg_replica_options options = t->options;
    options.exchange = gg_peers_exchange(t->peers, local);
    options.ledger = gg_team_ledger(t->team, gg_team_identity(t->team, local));
    return gg_exchange_fail(options.exchange, gg_replica_create(&options, &t->replica[local]));
}

static gg_status trainer_settle(void *context, int local) {
    const gg_trainer *t = context;
    return gg_replica_settle(t->replica[local]);
}

gg_status gg_trainer_create(const gg_replica_options *options, const gg_exchange_options *exchange, gg_team *team,
                            gg_peers **peers, gg_trainer **out) {
    gg_status status = GG_OK;
    gg_trainer *t = NULL;
    gg_exchange_options wanted = *exchange;
    double *forward = NULL;
    gg_replica_options own = *options;
    *out = NULL;
    *peers = NULL;
    wanted.layout = gg_graph_layout(options->graph);
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *t, "trainer", &t));
    t->team = team;
    if (options->step_seconds != NULL) {
        const size_t ranks = (size_t)gg_team_identities(team);
        GG_TRY_CLEANUP(gg_calloc(ranks, sizeof *t->seconds, "seconds of a step", &t->seconds));
        GG_TRY_CLEANUP(gg_calloc(ranks, sizeof *t->seconds, "seconds of a step", &t->step_seconds));
        memcpy(t->seconds, options->step_seconds, ranks * sizeof *t->seconds);
        gg_trainer_place_seconds(t);
        own.step_seconds = t->step_seconds;
    }
    GG_TRY_CLEANUP(gg_tuning_costs(options->graph, own.step_seconds, gg_team_size(team), &forward, &wanted.costs));
    GG_TRY_CLEANUP(gg_peers_create(&wanted, own.step_seconds, team, peers));
    t->peers = *peers;
    t->options = own;
    t->local = gg_team_local(team);
    GG_TRY_CLEANUP(gg_calloc((size_t)gg_team_most_local(team), sizeof(gg_replica *), "replicas", &t->replica));
    GG_TRY_CLEANUP(gg_team_run(team, trainer_create, t));
    t->options.step_seconds = NULL;
    gg_peers_set_settle(t->peers, trainer_settle, t);
    *out = t;
cleanup:
    gg_free(forward);
    if (status != GG_OK) {
        gg_trainer_destroy(t);
        gg_peers_destroy(*peers);
        *peers = NULL;
    }
    return status;
}

gg_status gg_trainer_costs(const gg_trainer *t, double **forward, gg_link *link, gg_exchange_costs *out) {
    const gg_strategy_options *strategy = &gg_exchange_asked(gg_replica_exchange(t->replica[0]))->strategy;
    GG_TRY(gg_tuning_costs(t->options.graph, t->step_seconds, gg_team_size(t->team), forward, out));
    return gg_peers_known_link(t->peers, strategy, gg_graph_arena_count(t->options.graph), link, &out->link);
}

/* Settles first, because partners may still read sent messages or send new ones. */
static void settle_before_end(gg_trainer *t) {
    for (int i = 0; i < t->local; ++i)
        if (t->replica[i] == NULL || gg_replica_failed(t->replica[i])) return;
    (void)gg_team_run(t->team, trainer_settle, t);
}

void gg_trainer_destroy(gg_trainer *t) {
    if (t == NULL) return;
    if (t->replica != NULL) settle_before_end(t);
    if (t->peers != NULL) gg_peers_set_settle(t->peers, NULL, NULL);
    if (t->replica != NULL)
        for (int i = 0; i < t->local; ++i) gg_replica_destroy(t->replica[i]);
    gg_free(t->replica);
    gg_free(t->conv_choices);
    gg_free(t->table_choices);
    gg_handover_free(&t->given);
    gg_handover_free(&t->heard);
    gg_free(t->seconds);
    gg_free(t->step_seconds);
    gg_free(t->died);
    gg_free(t->last);
    gg_free(t);
}

/* ---- algorithms ---- */

gg_status gg_trainer_set_algorithms(gg_trainer *t, const gg_conv_choice *choices, int count,
                                    const gg_table_choice *tables, int table_count) {
    gg_status status = GG_OK;
    gg_conv_choice *own = NULL, *former = NULL;
    gg_table_choice *own_tables = NULL, *former_tables = NULL;
    GG_TRY_CLEANUP(gg_calloc((size_t)count + 1, sizeof *own, "algorithms of convolutions", &own));
    GG_TRY_CLEANUP(gg_calloc((size_t)table_count + 1, sizeof *own_tables, "order of tables", &own_tables));
    if (count > 0) memcpy(own, choices, (size_t)count * sizeof *own);
    if (table_count > 0) memcpy(own_tables, tables, (size_t)table_count * sizeof *own_tables);
    for (int i = 0; i < t->local; ++i) gg_replica_set_algorithms(t->replica[i], own, count, own_tables, table_count);
    former = t->conv_choices;
    former_tables = t->table_choices;
    t->conv_choices = own;
    t->table_choices = own_tables;
    own = NULL;
    own_tables = NULL;
cleanup:
    gg_free(own);
    gg_free(own_tables);
    gg_free(former);
    gg_free(former_tables);
    return status;
}

/* ---- the epoch ---- */

typedef struct begin_call {
    gg_trainer *trainer;
    const gg_dataset *const *sets; /* one a local rank */
    const gg_data_options *data;
} begin_call;

static gg_status trainer_begin(void *context, int local) {
    begin_call *c = context;
    return gg_replica_begin(c->trainer->replica[local], c->sets[local], c->data);
}

/* Counts each set once: ranks of a virtual cluster that share one are adjacent. */
static gg_status check_sets(const gg_trainer *t, const gg_dataset *const *sets) {
    for (int i = 0; i < t->local; ++i)
        if (i == 0 || sets[i] != sets[i - 1]) GG_TRY(gg_trainer_check_set(t, sets[i]));
    return GG_OK;
}

gg_status gg_trainer_begin(gg_trainer *t, const gg_dataset *const *sets, const gg_data_options *data) {
    gg_status status = GG_OK;
    GG_TRY(check_sets(t, sets));
    GG_TRY(gg_team_run(t->team, trainer_begin, &(begin_call){.trainer = t, .sets = sets, .data = data}));
    /* After the run, because ranks that fail in a run stay failed: a refused batch size must not end them. */
    const gg_float_mode former = gg_parallel_enter();
    for (int i = 0; status == GG_OK && i < t->local; ++i) status = gg_replica_plan_epoch(t->replica[i]);
    gg_parallel_leave(former);
    for (int i = 0; status != GG_OK && i < t->local; ++i) gg_replica_forget_data(t->replica[i]); /* all, or none */
    return status;
}

typedef struct epoch_call {
    gg_trainer *trainer;
    const gg_position *position;
} epoch_call;

static gg_status trainer_epoch(void *context, int local) {
    epoch_call *c = context;
    return gg_replica_epoch(c->trainer->replica[local], c->position);
}

gg_status gg_trainer_epoch(gg_trainer *t, const gg_position *at) {
    /* Before any rank runs, because ranks that fail in a run stay failed. */
    for (int i = 0; i < t->local; ++i) GG_TRY(gg_replica_check_position(t->replica[i], at));
    t->inherited = (gg_progress_counts){0};
    return gg_team_run(t->team, trainer_epoch, &(epoch_call){.trainer = t, .position = at});
}

static int64_t steps_done(gg_trainer *t, int local) { return gg_replica_next(t->replica[local]); }

typedef struct run_call {
    gg_trainer *trainer;
    int64_t steps; /* since the epoch's beginning, at which the run ends; watch_run may lower it */
    bool (*watch)(void *context);
    void *context;
} run_call;

static gg_status trainer_run(void *context, int local) {
    run_call *c = context;
    gg_trainer *t = c->trainer;
    const int64_t *step = &gg_exchange_state(gg_peers_exchange(t->peers, local))->step;
    while (steps_done(t, local) < c->steps) {
        bool stops;
        GG_TRY(gg_team_view_stops(t->team, local, *step, &stops));
        if (stops) break;
        const gg_status status = gg_replica_run(t->replica[local], 1);
        if (status == GG_ERROR_PEER && gg_replica_broken(t->replica[local])) break; /* gg_trainer_change_view mends */
        GG_TRY(status);
    }
    return GG_OK;
}

static void watch_run(void *context) {
    run_call *c = context;
    int64_t most = 0;
    if (c->watch(c->context)) return;
    for (int i = 0; i < c->trainer->local; ++i)
        if (steps_done(c->trainer, i) > most) most = steps_done(c->trainer, i);
    if (most + 1 < c->steps) c->steps = most + 1;
}

gg_status gg_trainer_run(gg_trainer *t, int64_t steps, bool (*watch)(void *context), void *context) {
    int64_t done = steps_done(t, 0), left = gg_replica_epoch_steps(t->replica[0]) - done;
    run_call c = {.trainer = t, .steps = done + (steps < left ? steps : left), .watch = watch, .context = context};
    if (gg_replica_epoch_steps(t->replica[0]) == 0)
        return gg_fail(GG_ERROR_STATE, "run: there is no data to train on yet");
    gg_team_view_breaks(t->team, gg_exchange_breaks(gg_peers_exchange(t->peers, 0)));
    const int64_t *step = &gg_exchange_state(gg_peers_exchange(t->peers, 0))->step;
    gg_team_view_begin(t->team, *step);
    const gg_status status =
        gg_team_run_watched(t->team, trainer_run, &c, &(gg_watch){watch ? watch_run : NULL, &c, WATCH_SECONDS});
    /* If this rank dies before the next run, the others know of its last step. */
    if (status == GG_OK && gg_team_most_local(t->team) == 1) gg_team_view_begin(t->team, *step);
    gg_team_view_end(t->team);
    return status;
}

/* Sums and maxima over the ranks; each rank gives its counts to all. */
static gg_status gather_counts(gg_transport *transport, const gg_progress_counts *own, gg_epoch_summary *out) {
    gg_status status = GG_OK;
    gg_progress_counts *all = NULL;
    GG_TRY_CLEANUP(gg_alloc((size_t)transport->size * sizeof *all, "counts of all ranks", &all));
    GG_TRY_CLEANUP(gg_allgather(transport, own, sizeof *own, all));
    for (int r = 0; r < transport->size; ++r) {
        const gg_progress_counts *c = &all[r];
        out->sum.steps = c->steps;
        out->sum.samples += c->samples;
        out->sum.correct += c->correct;
        out->sum.counted += c->counted;
        out->sum.loss_sum += c->loss_sum;
        out->sum.bytes_sent += c->bytes_sent;
        out->sum.messages_sent += c->messages_sent;
        out->sum.skipped += c->skipped;
        out->sum.optimizer_bytes += c->optimizer_bytes;
        out->sum.optimizer_bytes_saved += c->optimizer_bytes_saved;
        out->sum.sample_bytes_sent += c->sample_bytes_sent;
        out->sum.sample_messages_sent += c->sample_messages_sent;
        out->sum.compresses += c->compresses;
        out->sum.residue += c->residue;
        gg_compression_counts_add(&out->sum.compression, &c->compression);
#define SECONDS(field)                                                                                                 \
    out->sum.field += c->field;                                                                                        \
    if (r == 0 || c->field > out->most.field) out->most.field = c->field
        SECONDS(seconds);
        SECONDS(compute_seconds);
        SECONDS(exposed_seconds);
        SECONDS(data_seconds);
        SECONDS(clock_seconds);
#undef SECONDS
    }
cleanup:
    gg_free(all);
    return status;
}

typedef struct end_epoch_call {
    gg_trainer *trainer;
    gg_epoch_summary *summary;
} end_epoch_call;

static gg_status trainer_end_epoch(void *context, int local) {
    end_epoch_call *c = context;
    gg_replica *replica = c->trainer->replica[local];
    gg_exchange *x = gg_replica_exchange(replica);
    gg_progress_counts own;
    gg_epoch_summary summary = {0};
    GG_TRY(gg_replica_end_epoch(replica));
    gg_replica_counts(replica, &own);
    gg_exchange_complete_residue(x);
    own.residue = gg_exchange_residue(x);
    GG_TRY(gg_replica_at(replica, "counts of the epoch", gather_counts(gg_exchange_transport(x), &own, &summary)));
    GG_TRY(gg_exchange_distance(x, &summary.consensus_distance));
    if (local == 0) *c->summary = summary;
    return GG_OK;
}

gg_status gg_trainer_end_epoch(gg_trainer *t, gg_epoch_summary *out) {
    return gg_team_run(t->team, trainer_end_epoch, &(end_epoch_call){.trainer = t, .summary = out});
}

/* ---- single steps ---- */

typedef struct step_call {
    gg_trainer *trainer;
    const gg_given *given; /* one a local rank, like the losses */
    double *losses;
} step_call;

static gg_status trainer_step(void *context, int local) {
    gg_status status = GG_OK;
    step_call *c = context;
    gg_replica *replica = c->trainer->replica[local];
    gg_transport *transport = gg_exchange_transport(gg_replica_exchange(replica));
    int64_t *batches = NULL;
    GG_TRY_CLEANUP(gg_alloc((size_t)transport->size * sizeof *batches, "batch of each rank", &batches));
    GG_TRY_CLEANUP(gg_replica_at(replica, "batch of each rank",
                                 gg_allgather(transport, &c->given[local].n, sizeof *batches, batches)));
    GG_TRY_CLEANUP(gg_replica_step(replica, &c->given[local], batches, &c->losses[local]));
cleanup:
    gg_free(batches);
    return status;
}

gg_status gg_trainer_step(gg_trainer *t, const gg_given *given, double *losses) {
    gg_status status = GG_OK;
    const gg_float_mode former = gg_parallel_enter();
    for (int i = 0; status == GG_OK && i < t->local; ++i)
        status = gg_replica_plan_batch_of(t->replica[i], given[i].n); /* before any rank runs, as in gg_trainer_begin */
    gg_parallel_leave(former);
    if (status != GG_OK) return status;
    return gg_team_run(t->team, trainer_step, &(step_call){.trainer = t, .given = given, .losses = losses});
}

typedef struct bench_call {
    gg_trainer *trainer;
    const gg_given *given; /* equal on all ranks */
    int steps;
    double *seconds; /* one a step, of the first local rank */
} bench_call;

static gg_status trainer_bench(void *context, int local) {
    bench_call *c = context;
    return gg_replica_bench(c->trainer->replica[local], c->given, c->steps, local == 0 ? c->seconds : NULL);
}

gg_status gg_trainer_bench(gg_trainer *t, const gg_given *given, int steps, double *seconds) {
    return gg_team_run(t->team, trainer_bench,
                       &(bench_call){.trainer = t, .given = given, .steps = steps, .seconds = seconds});
}

/* ---- at rest ---- */

typedef struct reshape_call {
    gg_trainer *trainer;
    const gg_reshape *how;
} reshape_call;

static gg_status trainer_reshape(void *context, int local) {
    const reshape_call *c = context;
    return gg_replica_reshape(c->trainer->replica[local], c->how);
}

static double macs_of(const gg_graph *graph) {
    double macs = 0;
    for (int i = 0; i < gg_graph_nodes(graph); ++i) macs += (double)gg_graph_node_macs(graph, i);
    return macs;
}

/* Seconds of a step of each rank with another network, in t->step_seconds. */
static void scale_step_seconds(gg_trainer *t, const gg_graph *graph) {
    const double before = macs_of(t->options.graph), after = macs_of(graph);
    for (int i = 0; t->seconds != NULL && before > 0 && i < gg_team_identities(t->team); ++i)
        t->seconds[i] *= after / before;
    gg_trainer_place_seconds(t);
}

gg_status gg_trainer_reshape(gg_trainer *t, const gg_reshape *asked) {
    gg_reshape how = *asked;
    gg_link link;
    const gg_graph *graph = how.graph != NULL ? how.graph : t->options.graph;
    const gg_strategy_options *strategy = &gg_exchange_asked(gg_peers_exchange(t->peers, 0))->strategy;
    if (how.strategy != NULL) strategy = how.strategy;
    how.step_seconds = t->step_seconds;
    how.link = NULL;
    /* Before any rank runs, because ranks that fail in a run stay failed. */
    for (int i = 0; i < t->local; ++i) GG_TRY(gg_replica_check_reshape(t->replica[i], &how));
    if ((how.graph != NULL || how.strategy != NULL) && gg_strategy_tunes(strategy, gg_team_size(t->team))) {
        GG_TRY(gg_team_run(t->team, trainer_settle, t));
        GG_TRY(gg_peers_link(t->peers, strategy, gg_graph_arena_count(graph), &link, &how.link));
    }
    if (how.graph != NULL) scale_step_seconds(t, how.graph);
    GG_TRY(gg_team_run(t->team, trainer_reshape, &(reshape_call){.trainer = t, .how = &how}));
    t->options.graph = graph;
    return GG_OK;
}

typedef struct audit_call {
    gg_trainer *trainer;
    gg_sample_audit *audit;
} audit_call;

static gg_status trainer_audit(void *context, int local) {
    audit_call *c = context;
    gg_sample_audit found;
    GG_TRY(gg_replica_audit(c->trainer->replica[local], &found));
    if (local == 0) *c->audit = found;
    return GG_OK;
}

gg_status gg_trainer_audit(gg_trainer *t, gg_sample_audit *out) {
    /* Checked before any rank runs, because ranks that fail in a run stay failed. */
    for (int i = 0; i < t->local; ++i)
        if (gg_replica_slots(t->replica[i]) < 0)
            return gg_fail(GG_ERROR_STATE, "audit_samples: there is no data to train on yet");
    return gg_team_run(t->team, trainer_audit, &(audit_call){.trainer = t, .audit = out});
}

typedef struct evaluate_call {
    gg_trainer *trainer;
    const gg_dataset *const *sets; /* one a local rank */
    int64_t batch;
    gg_evaluation_kind kind;
    gg_evaluation *results; /* with GG_EVALUATE_REPLICAS one a rank of the team, else one */
} evaluate_call;

static gg_status trainer_evaluate(void *context, int local) {
    gg_status status = GG_OK;
    evaluate_call *c = context;
    gg_replica *replica = c->trainer->replica[local];
    gg_transport *transport = gg_exchange_transport(gg_replica_exchange(replica));
    const float *weights = NULL;
    const gg_dataset *set = c->sets[local];
    int64_t first = 0, end = set->count;
    gg_evaluation own = {0}, *all = NULL;

    GG_TRY_CLEANUP(gg_replica_consensus(replica, &weights));
    if (c->kind == GG_EVALUATE_REPLICAS) weights = gg_state_weights(gg_exchange_state(gg_replica_exchange(replica)));
    if (c->kind == GG_EVALUATE_SPLIT) gg_shard(set->count, transport->rank, transport->size, &first, &end);
    GG_TRY_CLEANUP(gg_replica_evaluate(replica, weights, set, first, end, c->batch, &own));
    GG_TRY_CLEANUP(gg_alloc((size_t)transport->size * sizeof *all, "results of all ranks", &all));
    GG_TRY_CLEANUP(gg_replica_at(replica, "results of all ranks", gg_allgather(transport, &own, sizeof own, all)));
    if (local != 0) goto cleanup;
    if (c->kind == GG_EVALUATE_REPLICAS) {
        memcpy(c->results, all, (size_t)transport->size * sizeof *all);
    } else {
        *c->results = (gg_evaluation){0};
        for (int r = 0; r < transport->size; ++r) {
            for (int h = 0; h < GG_MAX_FIELDS; ++h) gg_loss_sums_add(&c->results->head[h], &all[r].head[h]);
            c->results->samples += all[r].samples;
        }
    }
cleanup:
    gg_free(all);
    return status;
}

gg_status gg_trainer_evaluate(gg_trainer *t, const gg_dataset *const *sets, int64_t batch, gg_evaluation_kind kind,
                              gg_evaluation *out) {
    GG_TRY(check_sets(t, sets));
    if (batch < 1) return gg_fail(GG_ERROR_ARGUMENT, "batch_size: %lld; must be at least 1", (long long)batch);
    return gg_team_run(t->team, trainer_evaluate,
                       &(evaluate_call){.trainer = t, .sets = sets, .batch = batch, .kind = kind, .results = out});
}

void gg_trainer_reset_carried(gg_trainer *t) {
    for (int i = 0; i < t->local; ++i) gg_replica_reset_carried(t->replica[i]);
}

typedef struct predict_call {
    gg_trainer *trainer;
    const gg_dataset *set;
    int64_t batch;
    float *const *output;
} predict_call;

static gg_status trainer_predict(void *context, int local) {
    predict_call *c = context;
    const float *weights = NULL;
    GG_TRY(gg_replica_consensus(c->trainer->replica[local], &weights));
    if (local == 0) GG_TRY(gg_replica_predict(c->trainer->replica[0], weights, c->set, c->batch, c->output));
    return GG_OK;
}

gg_status gg_trainer_predict(gg_trainer *t, const gg_dataset *set, int64_t batch, float *const *output) {
    GG_TRY(gg_check_limits(t->options.graph, NULL, set));
    if (batch < 1) return gg_fail(GG_ERROR_ARGUMENT, "batch_size: %lld; must be at least 1", (long long)batch);
    return gg_team_run(t->team, trainer_predict,
                       &(predict_call){.trainer = t, .set = set, .batch = batch, .output = output});
}

gg_status gg_trainer_check_set(const gg_trainer *t, const gg_dataset *set) {
    return gg_check_limits(t->options.graph, t->options.head, set);
}
