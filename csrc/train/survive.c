/* Training goes on without the ranks that have died, and with newcomers. */
#include <string.h>

#include "base/memory.h"
#include "exchange/rebuild.h"
#include "train/ledger.h"
#include "train/replica_private.h"
#include "train/survive_private.h"

/* ---- a replica ---- */

gg_status gg_replica_check_regroup(const gg_replica *r) {
    GG_TRY(gg_strategy_check_survival(&gg_exchange_asked(r->exchange)->strategy, false));
    return gg_batches_check_regroup(&r->data);
}

void gg_replica_read_before(const gg_replica *r, int64_t step, int64_t *read) {
    const int64_t of_epoch = r->data.next - (*r->data.step - step), begun = gg_loader_begun(r->data.loader);
    gg_loader_read_by(r->data.loader, of_epoch > begun ? of_epoch : begun, read);
}

gg_status gg_replica_regroup(gg_replica *r, const gg_regrouping *how) {
    gg_status status = GG_OK;
    GG_TRY_CLEANUP(gg_replica_renew_exchange(r, &how->costs, how->view));
    GG_TRY_CLEANUP(gg_batches_regroup(&r->data, gg_exchange_workers(r->exchange), how->dealt));
    GG_TRY_CLEANUP(gg_replica_plan_next(r));
    if (how->inherited != NULL) gg_progress_counts_add(&r->held_counts, how->inherited);
    gg_replica_set_counts(r, &r->held_counts);
    gg_replica_record(r, "change of the view", r->view_begin, -1);
cleanup:
    if (status != GG_OK) gg_exchange_dismantle(r->exchange);
    return gg_exchange_fail(r->exchange, status);
}

/* ---- all local ranks ---- */

static int first_living(const gg_trainer_change *c) {
    int local = 0;
    while (gg_agreement_is_dead(&c->agreement, c->agreement.first + local)) ++local;
    return local;
}

/* A death has ended a step of all ranks. The next view then has no new ranks. */
static bool mends(const gg_trainer_change *c) { return c->breaks && c->agreement.deaths > 0; }

static double latest_clock(gg_trainer *t) {
    double latest = 0;
    for (int i = 0; i < t->local; ++i) {
        const double now = gg_transport_now(gg_team_transport(t->team, i));
        if (now > latest) latest = now;
    }
    return latest;
}

static gg_status begin(void *context) {
    gg_trainer_change *c = context;
    c->out->begin = latest_clock(c->trainer);
    c->whole = gg_team_is_whole(c->trainer->team);
    return GG_OK;
}

static gg_status settle(void *context, int local) {
    const gg_trainer_change *c = context;
    gg_replica *replica = c->trainer->replica[local];
    replica->view_begin = gg_transport_now(replica->transport);
    return mends(c) ? gg_replica_break(replica) : gg_replica_end_epoch(replica);
}

static int64_t received(void *context, int local, int rank) {
    const gg_trainer_change *c = context;
    gg_exchange *x = gg_replica_exchange(c->trainer->replica[local]);
    return c->breaks ? gg_exchange_state(x)->step - 1 : gg_peers_received(c->trainer->peers, local, rank);
}

static gg_status hold(void *context, int local) {
    const gg_trainer_change *c = context;
    return gg_replica_hold(c->trainer->replica[local]);
}

static gg_status regroup(void *context, int local) {
    const gg_trainer_change *c = context;
    const gg_regrouping how = {.view = gg_team_taken(c->trainer->team),
                               .costs = c->costs,
                               .dealt = &c->dealt,
                               .inherited = local == c->heir ? &c->trainer->inherited : NULL};
    if (local >= c->stay) return gg_trainer_take(c, local);
    GG_TRY(gg_replica_regroup(c->trainer->replica[local], &how));
    return gg_trainer_give(c, local);
}

/* A member of the former view by its place there. */
static int place_of(const gg_trainer_change *c, int identity) {
    int rank = 0;
    while (c->former[rank] != identity) ++rank;
    return rank;
}

/* Samples of former parts of the epoch go back, too, if a rank has died whose last message there has met a dead one. */
static void recall_samples(gg_trainer_change *c, const gg_replica *replica, int i) {
    const gg_batches *data = &replica->data;
    const gg_view *view = gg_team_view(c->trainer->team);
    const int64_t step = data->next - (*data->step - (view->last[i] + 1)); /* of the epoch */
    for (int part = 0; part < data->parts && step < gg_loader_begun(data->loader); ++part) {
        int64_t *recall = c->recall + c->dealt.recalls * GG_RECALL;
        const int64_t count = gg_batches_recall(data, part, view->died[i], step, recall);
        c->recalled[c->agreement.dead[i]] += count;
        c->out->again += count;
        c->dealt.recalls += count > 0;
    }
}

/* Samples that count, of each rank of the former view: all of the living, of the dead those up to the step that the
 * view tells. A replica that lives knows every rank's batches. */
static void count_samples(gg_trainer_change *c, const gg_replica *replica) {
    const gg_view *view = gg_team_view(c->trainer->team);
    if (gg_replica_epoch_steps(replica) == 0) return;
    gg_replica_read_by(replica, c->read);
    for (int i = 0; i < c->agreement.deaths; ++i) {
        const int dead = c->agreement.dead[i];
        gg_replica_read_before(replica, gg_team_made(c->trainer->team, view->died[i]), c->scratch);
        const int64_t made = c->scratch[dead];
        gg_replica_read_before(replica, view->last[i] + 1, c->scratch);
        c->read[dead] = c->scratch[dead];
        if (made > c->read[dead]) c->out->again += made - c->read[dead];
        recall_samples(c, replica, i);
    }
}

/* Samples of the epoch that a member of the former view has read by step `made`, without those by step `from`. Former
 * parts of the epoch are read to their ends. */
static int64_t read_since(gg_trainer_change *c, const gg_replica *replica, int64_t from, int64_t made, int identity) {
    const gg_batches *data = &replica->data;
    const int64_t begin = *data->step - data->next; /* steps made before the epoch */
    int64_t recall[GG_RECALL], read = 0;
    const int rank = place_of(c, identity);
    for (int part = 0; part < data->parts; ++part)
        read += gg_batches_recall(data, part, identity, from - begin, recall);
    gg_replica_read_before(replica, made, c->scratch);
    read += c->scratch[rank];
    gg_replica_read_before(replica, from, c->scratch);
    return from > begin ? read - c->scratch[rank] : read;
}

/* Counts of dead rank i's epoch up to its last step that counts. Its losses are in proportion where its ledger lacks
 * this step: it has died before it counted its last one, or its host has died since the last copy, or nobody has
 * received anything of it for long. Without any entry of the epoch they are in proportion to this rank's own. A broken
 * step does not count if the ranks that had made it have died in the mend. */
static gg_progress_counts counts_of_dead(gg_trainer_change *c, const gg_replica *replica, int i) {
    const int identity = c->out->died[i];
    const void *ledger = gg_team_ledger(c->trainer->team, identity);
    const gg_ledger_entry *last = gg_ledger_last(ledger), none = {.made = *replica->data.step - replica->data.next};
    const bool known = last != NULL && last->epoch == replica->data.epoch;
    int64_t made = c->out->last[i] + 1;
    if (mends(c) && made > c->out->step) made = c->out->step;
    if (gg_replica_epoch_steps(replica) == 0) return (gg_progress_counts){0};
    if (!known) last = &none;
    gg_progress_counts counts = last->counts;
    counts.samples += read_since(c, replica, last->made, made, identity);
    counts.samples -= c->recalled[place_of(c, identity)];
    const gg_ledger_entry *exact = known ? gg_ledger_after(ledger, made) : NULL;
    const gg_progress_counts *like = exact != NULL ? &exact->counts : &last->counts;
    if (like->samples == 0) like = &replica->counts;
    const double share = like->samples > 0 ? (double)counts.samples / (double)like->samples : 0;
    counts.loss_sum = share * like->loss_sum;
    counts.correct = (int64_t)(share * (double)like->correct + 0.5);
    counts.counted = (int64_t)(share * (double)like->counted + 0.5);
    return counts;
}

/* The first rank of the next view counts the sum over the dead, which is equal on all that live but for losses that
 * ledgers lack. If the first rank of the former view died before it counted its own inheritance, or its copied ledger
 * is older than that, this is part of the sum. */
static void inherit(gg_trainer_change *c, const gg_replica *replica) {
    gg_team *team = c->trainer->team;
    gg_progress_counts sum = {0};
    for (int i = 0; i < c->out->dead; ++i) {
        const gg_progress_counts more = counts_of_dead(c, replica, i);
        const gg_ledger_entry *last = gg_ledger_last(gg_team_ledger(team, c->out->died[i]));
        const bool was_first = c->out->died[i] == c->former[0];
        const bool counted = last != NULL && last->view == c->view;
        gg_progress_counts_add(&sum, &more);
        if (was_first && !counted) gg_progress_counts_add(&sum, &c->trainer->inherited);
    }
    c->trainer->inherited = sum;
    c->heir = gg_team_identity(team, 0) == gg_team_view(team)->member[0] ? 0 : -1;
}

/* Removes the replicas and exchanges of the local dead. The others keep their order, which is the next view's. */
static void remove_dead(const gg_trainer_change *c) {
    gg_trainer *t = c->trainer;
    for (int i = t->local - 1; i >= 0; --i) {
        if (!gg_agreement_is_dead(&c->agreement, c->agreement.first + i)) continue;
        const size_t behind = (size_t)(--t->local - i);
        gg_replica_destroy(t->replica[i]);
        gg_peers_remove(t->peers, i);
        memmove(&t->replica[i], &t->replica[i + 1], behind * sizeof *t->replica);
    }
}

/* Adds the view's dead to the change's lists. */
static gg_status list_dead(const gg_trainer_change *c) {
    gg_status status = GG_OK;
    gg_trainer *t = c->trainer;
    const gg_view *view = gg_team_view(t->team);
    const size_t before = (size_t)c->out->dead, all = before + (size_t)view->dead;
    int *died = NULL;
    int64_t *last = NULL;
    GG_TRY_CLEANUP(gg_calloc(all, sizeof *died, "dead ranks", &died));
    GG_TRY_CLEANUP(gg_calloc(all, sizeof *last, "last steps of the dead", &last));
    if (before > 0) memcpy(died, t->died, before * sizeof *died);
    if (before > 0) memcpy(last, t->last, before * sizeof *last);
    for (int i = 0; i < view->dead; ++i) {
        died[c->out->dead] = view->died[i];
        last[c->out->dead++] = view->last[i];
    }
    gg_free(t->died);
    gg_free(t->last);
    c->out->died = t->died = died;
    c->out->last = t->last = last;
    last = NULL;
    died = NULL;
cleanup:
    gg_free(died);
    gg_free(last);
    return status;
}

/* Agrees on the next view, and takes it. *whole: all its members stand at one step; false if another death has kept
 * them from that. */
static gg_status next_view(gg_trainer_change *c, bool *changes, bool *whole) {
    gg_trainer *t = c->trainer;
    *whole = true;
    GG_TRY(gg_agree_on_view(&c->agreement, gg_peers_steps(t->peers), changes));
    if (!*changes) return GG_OK;
    c->out->end = latest_clock(t);
    c->first = t->replica[first_living(c)];
    if (!mends(c)) count_samples(c, c->first);
    if (!mends(c)) GG_TRY(gg_team_run(t->team, hold, c));
    remove_dead(c);
    c->stay = t->local;
    if (!mends(c)) GG_TRY(gg_trainer_add_newcomers(t));
    GG_TRY(gg_team_change_view(t->team));
    GG_TRY(list_dead(c));
    return mends(c) && c->whole ? gg_trainer_mend(t, whole) : GG_OK;
}

static bool has_joined(const gg_trainer_change *c) {
    const gg_view *view = gg_team_view(c->trainer->team);
    bool joined = false;
    for (int i = 0; i < view->members; ++i) {
        int rank = 0;
        while (rank < c->formers && c->former[rank] != view->member[i]) ++rank;
        joined = joined || rank == c->formers;
    }
    return joined;
}

/* All members of the view stand at one step: each makes its exchange anew, newcomers take their state. */
static gg_status go_on(gg_trainer_change *c) {
    gg_status status = GG_OK;
    gg_trainer *t = c->trainer;
    double *forward = NULL;
    gg_link link;
    c->dealt.joined = has_joined(c);
    gg_trainer_place_seconds(t);
    GG_TRY_CLEANUP(gg_trainer_costs(t, &forward, &link, &c->costs));
    GG_TRY_CLEANUP(gg_team_run(t->team, regroup, c));
    for (int i = c->stay; i < t->local; ++i) GG_TRY_CLEANUP(gg_team_copied(t->team, i));
    GG_TRY_CLEANUP(gg_team_await_whole(t->team, &c->out->whole));
cleanup:
    gg_free(forward);
    return status;
}

static void change_free(gg_trainer_change *c) {
    gg_free(c->read);
    gg_free(c->scratch);
    gg_free(c->former);
    gg_free(c->recall);
    gg_free(c->recalled);
}

static gg_status change_begin(gg_trainer_change *c) {
    gg_team *team = c->trainer->team;
    const size_t ranks = (size_t)gg_team_size(team);
    c->formers = (int)ranks;
    c->view = gg_team_taken(team);
    c->agreement = (gg_agreement){.team = team, .begin = begin, .settle = settle, .received = received, .context = c};
    GG_TRY(gg_calloc(ranks, sizeof *c->read, "samples read", &c->read));
    GG_TRY(gg_calloc(ranks, sizeof *c->scratch, "samples read", &c->scratch));
    GG_TRY(gg_calloc(ranks, sizeof *c->former, "members", &c->former));
    if (gg_team_view(team) != NULL) memcpy(c->former, gg_team_view(team)->member, ranks * sizeof *c->former);
    const size_t recalls = ranks * (size_t)c->trainer->replica[0]->data.parts;
    GG_TRY(gg_calloc(recalls * GG_RECALL, sizeof *c->recall, "samples that go back", &c->recall));
    GG_TRY(gg_calloc(ranks, sizeof *c->recalled, "samples that go back", &c->recalled));
    c->dealt = (gg_redealt){.read = c->read, .former = c->former, .recall = c->recall};
    return GG_OK;
}

gg_status gg_trainer_change_view(gg_trainer *t, gg_view_change *out) {
    gg_status status = GG_OK;
    gg_trainer_change c = {.trainer = t, .out = out, .breaks = gg_trainer_breaks(t)};
    *out = (gg_view_change){.changed = false};
    gg_team_view_breaks(t->team, c.breaks);
    if (gg_trainer_broken(t)) GG_TRY_CLEANUP(gg_team_await_change(t->team, gg_peers_steps(t->peers)));
    GG_TRY_CLEANUP(change_begin(&c));
    for (bool whole = false, changes; !whole;) {
        GG_TRY_CLEANUP(next_view(&c, &changes, &whole));
        if (!changes) goto cleanup;
        if (!whole) GG_TRY_CLEANUP(gg_team_await_change(t->team, gg_peers_steps(t->peers)));
    }
    out->step = gg_exchange_state(gg_replica_exchange(c.first))->step;
    if (mends(&c)) gg_replica_read_before(c.first, out->step, c.read); /* a step counts for all ranks, or for none */
    inherit(&c, c.first);
    if (mends(&c)) GG_TRY_CLEANUP(gg_team_run(t->team, hold, &c));
    GG_TRY_CLEANUP(go_on(&c));
    out->changed = true;
    out->view = gg_team_view(t->team);
    out->next = gg_replica_next(c.first);
    out->end = latest_clock(t);
cleanup:
    change_free(&c);
    return status;
}

gg_status gg_trainer_check_survival(const gg_trainer *t) {
    return gg_team_view(t->team) != NULL ? gg_replica_check_regroup(t->replica[0]) : GG_OK;
}
