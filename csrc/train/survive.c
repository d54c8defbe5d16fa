/* Training goes on without the ranks that have died. */
#include <string.h>

#include "base/memory.h"
#include "exchange/rebuild.h"
#include "train/costs.h"
#include "train/replica_private.h"
#include "train/trainer_private.h"

/* ---- a replica ---- */

gg_status gg_replica_check_regroup(const gg_replica *r) {
    GG_TRY(gg_strategy_check_survival(&gg_exchange_asked(r->exchange)->strategy));
    return gg_batches_check_regroup(&r->data);
}

void gg_replica_read_before(const gg_replica *r, int64_t step, int64_t *read) {
    const int64_t of_epoch = r->data.next - (*r->data.step - step), begun = gg_loader_begun(r->data.loader);
    gg_loader_read_by(r->data.loader, of_epoch > begun ? of_epoch : begun, read);
}

gg_status gg_replica_regroup(gg_replica *r, const gg_exchange_costs *costs, const int64_t *read) {
    gg_status status = GG_OK;
    gg_progress_counts counts;
    gg_replica_counts(r, &counts); /* without the messages of the rebuilding */
    GG_TRY_CLEANUP(gg_exchange_rebuild(r->exchange, &(gg_rebuild){.costs = *costs, .regrouped = true}));
    gg_replica_set_hooks(r);
    GG_TRY_CLEANUP(gg_batches_regroup(&r->data, gg_exchange_workers(r->exchange), read));
    if (r->data.loader != NULL) GG_TRY_CLEANUP(gg_replica_plan_epoch(r));
    gg_replica_set_counts(r, &counts);
cleanup:
    if (status != GG_OK) gg_exchange_dismantle(r->exchange);
    return gg_exchange_fail(r->exchange, status);
}

/* ---- all local ranks ---- */

typedef struct change {
    gg_trainer *trainer;
    int first; /* rank of the first local one; numbers of the former view, as are the next */
    const int *dead;
    int deaths;
    int64_t *received;       /* deaths of each local rank */
    int64_t *read, *scratch; /* one a rank of the former view */
    gg_exchange_costs costs;
    gg_view_change *out;
} change;

static bool is_dead(const change *c, int local) {
    for (int i = 0; i < c->deaths; ++i)
        if (c->dead[i] == c->first + local) return true;
    return false;
}

static gg_status settle_living(void *context, int local) {
    const change *c = context;
    gg_replica *replica = c->trainer->replica[local];
    GG_TRY(gg_replica_end_epoch(replica));
    for (int i = 0; i < c->deaths; ++i)
        c->received[local * c->deaths + i] = gg_exchange_received(gg_replica_exchange(replica), c->dead[i]);
    return GG_OK;
}

static gg_status regroup(void *context, int local) {
    const change *c = context;
    return gg_replica_regroup(c->trainer->replica[local], &c->costs, c->read);
}

/* Samples that count, of each rank of the former view: all of the living, of the dead those up to the step that the
 * view tells. A replica that lives knows every rank's batches. */
static void count_samples(change *c, const gg_replica *replica) {
    const gg_view *view = gg_team_view(c->trainer->team);
    if (gg_replica_epoch_steps(replica) == 0) return;
    gg_replica_read_by(replica, c->read);
    for (int i = 0; i < c->deaths; ++i) {
        const int dead = c->dead[i];
        gg_replica_read_before(replica, gg_team_made(c->trainer->team, view->died[i]), c->scratch);
        const int64_t made = c->scratch[dead];
        gg_replica_read_before(replica, view->last[i] + 1, c->scratch);
        c->read[dead] = c->scratch[dead];
        if (made > c->read[dead]) c->out->again += made - c->read[dead];
    }
}

/* Removes the replicas and exchanges of the local dead, whose counts a living replica takes. The others keep their
 * order, which is the next view's. */
static void remove_dead(const change *c, gg_replica *heir) {
    gg_trainer *t = c->trainer;
    for (int i = t->local - 1; i >= 0; --i) {
        if (!is_dead(c, i)) continue;
        const size_t behind = (size_t)(--t->local - i);
        gg_replica_take_counts(heir, t->replica[i]);
        gg_replica_destroy(t->replica[i]);
        gg_peers_remove(t->peers, i);
        memmove(&t->replica[i], &t->replica[i + 1], behind * sizeof *t->replica);
        if (t->step_seconds != NULL)
            memmove(&t->step_seconds[i], &t->step_seconds[i + 1], behind * sizeof *t->step_seconds);
    }
}

static double latest_clock(gg_trainer *t) {
    double latest = 0;
    for (int i = 0; i < t->local; ++i) {
        const double now = gg_transport_now(gg_team_transport(t->team, i));
        if (now > latest) latest = now;
    }
    return latest;
}

/* The greatest number of steps of a local rank: in a virtual cluster all that live stand at the goal. */
static int64_t steps_made(const gg_trainer *t) {
    int64_t most = 0;
    for (int i = 0; i < t->local; ++i) {
        const int64_t step = gg_exchange_state(gg_peers_exchange(t->peers, i))->step;
        if (step > most) most = step;
    }
    return most;
}

/* Settles and reports. *again: more ranks have died since. */
static gg_status tell_received(change *c, bool *changes, bool *again) {
    gg_trainer *t = c->trainer;
    *again = false;
    GG_TRY(gg_team_view_changes(t->team, steps_made(t), changes, &c->deaths, &c->dead));
    if (!*changes) return GG_OK;
    c->out->begin = latest_clock(t);
    GG_TRY(gg_team_run(t->team, settle_living, c));
    for (int i = 0; i < t->local; ++i)
        if (!is_dead(c, i)) GG_TRY(gg_team_report(t->team, i, c->deaths, c->received + (size_t)(i * c->deaths)));
    return gg_team_await_view(t->team, c->deaths, again);
}

static gg_replica *first_living(const change *c) {
    int local = 0;
    while (is_dead(c, local)) ++local;
    return c->trainer->replica[local];
}

gg_status gg_trainer_change_view(gg_trainer *t, gg_view_change *out) {
    gg_status status = GG_OK;
    change c = {.trainer = t, .out = out, .first = gg_team_rank(t->team)};
    double *forward = NULL;
    gg_link link;
    *out = (gg_view_change){.changed = false};
    const size_t former = (size_t)gg_team_size(t->team);
    GG_TRY_CLEANUP(gg_calloc(former * former, sizeof *c.received, "received steps", &c.received));
    GG_TRY_CLEANUP(gg_calloc(former, sizeof *c.read, "samples read", &c.read));
    GG_TRY_CLEANUP(gg_calloc(former, sizeof *c.scratch, "samples read", &c.scratch));
    for (bool again = true; again;) {
        bool changes;
        GG_TRY_CLEANUP(tell_received(&c, &changes, &again));
        if (!changes) goto cleanup;
    }
    out->end = latest_clock(t);
    gg_replica *first = first_living(&c);
    count_samples(&c, first);
    remove_dead(&c, first);
    GG_TRY_CLEANUP(gg_team_change_view(t->team));
    GG_TRY_CLEANUP(gg_tuning_costs(t->options.graph, t->step_seconds, gg_team_size(t->team), &forward, &c.costs));
    GG_TRY_CLEANUP(gg_peers_link(t->peers, &gg_exchange_asked(gg_replica_exchange(first))->strategy,
                                 gg_graph_arena_count(t->options.graph), &link, &c.costs.link));
    GG_TRY_CLEANUP(gg_team_run(t->team, regroup, &c));
    out->changed = true;
    out->view = gg_team_view(t->team);
    out->next = gg_replica_next(first);
    out->end = latest_clock(t);
cleanup:
    gg_free(c.received);
    gg_free(c.read);
    gg_free(c.scratch);
    gg_free(forward);
    return status;
}

gg_status gg_trainer_check_survival(const gg_trainer *t) {
    return gg_team_view(t->team) != NULL ? gg_replica_check_regroup(t->replica[0]) : GG_OK;
}
