/* A newcomer takes the state of its donor (exchange/handover.h), and the position in the epoch.
 *
 * Its carried state begins at zero, and so do its counts. */
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "train/replica_private.h"
#include "train/trainer_private.h"

/* The replica's numbers of a handover; the divisions follow, each its ranks and what they have read. */
enum {
    STEPS = 0, /* of the epoch, as counted */
    BATCH,
    EPOCH,
    NEXT,
    DIVISIONS,
    INHERITED,
    FIXED = INHERITED + (sizeof(gg_progress_counts) + 7) / 8
};

/* ---- the donor ---- */

/* The caller frees *out. */
static gg_status number(const gg_replica *r, const gg_progress_counts *inherited, int64_t **out, int64_t *numbers) {
    const gg_position at = gg_replica_position(r);
    int64_t count = FIXED;
    for (int k = 0; k < at.divisions; ++k) count += 1 + at.division[k].ranks;
    GG_TRY(gg_calloc((size_t)count, sizeof **out, "a position", out));
    int64_t *given = *out, *next = given + FIXED;
    *numbers = count;
    given[STEPS] = r->counts.steps;
    given[BATCH] = r->data.options.batch;
    given[EPOCH] = at.epoch;
    given[NEXT] = at.next;
    given[DIVISIONS] = at.divisions;
    memcpy(&given[INHERITED], inherited, sizeof *inherited);
    for (int k = 0; k < at.divisions; ++k) {
        *next++ = at.division[k].ranks;
        memcpy(next, at.division[k].read, (size_t)at.division[k].ranks * sizeof *next);
        next += at.division[k].ranks;
    }
    return GG_OK;
}

/* The donor sends its state, after gg_replica_regroup. given: text and link. inherited: its trainer's. If the newcomer
 * dies, this succeeds. */
static gg_status give(gg_replica *r, int to, const gg_handover *given, const gg_progress_counts *inherited) {
    gg_status status = GG_OK;
    gg_handover all = *given;
    gg_progress_counts counts;
    all.number = NULL;
    all.fixed = FIXED;
    gg_replica_counts(r, &counts); /* without the copy */
    GG_TRY_CLEANUP(number(r, inherited, &all.number, &all.numbers));
    GG_TRY_CLEANUP(gg_exchange_give(r->exchange, to, &all));
cleanup:
    gg_free(all.number);
    gg_replica_set_counts(r, &counts);
    return status;
}

/* ---- the newcomer ---- */

static gg_progress_counts inherited_of(const gg_handover *heard) {
    gg_progress_counts counts;
    memcpy(&counts, &heard->number[INHERITED], sizeof counts);
    return counts;
}

/* Its donor's position, with the divisions. */
static gg_status take_position(gg_replica *r, const int64_t *number) {
    gg_status status = GG_OK;
    const int workers = gg_exchange_workers(r->exchange), divisions = (int)number[DIVISIONS];
    const int64_t *next = number + FIXED;
    gg_division *division = NULL;
    int64_t *none = NULL;
    GG_TRY_CLEANUP(gg_calloc((size_t)divisions, sizeof *division, "divisions of an epoch", &division));
    GG_TRY_CLEANUP(gg_calloc((size_t)workers, sizeof *none, "samples read", &none));
    for (int k = 0; k < divisions; ++k) {
        division[k] = (gg_division){.ranks = (int)next[0], .read = next + 1};
        next += 1 + next[0];
    }
    GG_TRY_CLEANUP(gg_batches_join(&r->data, workers, number[BATCH],
                                   &(gg_position){.epoch = number[EPOCH],
                                                  .next = number[NEXT],
                                                  .begun = number[NEXT],
                                                  .done = none,
                                                  .divisions = divisions,
                                                  .division = division}));
cleanup:
    gg_free(division);
    gg_free(none);
    return status;
}

/* After gg_exchange_hear, in the view of this number. GG_ERROR_PEER if a rank has died before the copy is whole: the
 * newcomer waits for the next view. Its replica has begun its data, and nothing else. GG_ERROR_ARGUMENT for a donor
 * with other arenas. */
static gg_status take(gg_replica *r, int from, int64_t view, const gg_exchange_costs *costs, const gg_handover *heard) {
    gg_status status = GG_OK;
    gg_progress_counts counts = {.steps = heard->number[STEPS]};
    GG_TRY_CLEANUP(gg_replica_renew_exchange(r, costs, view));
    GG_TRY_CLEANUP(gg_exchange_take(r->exchange, from, heard));
    GG_TRY_CLEANUP(take_position(r, heard->number));
    gg_replica_reset_carried(r);
    GG_TRY_CLEANUP(gg_replica_plan_next(r));
    gg_replica_set_counts(r, &counts);
cleanup:
    return gg_exchange_fail(r->exchange, status);
}

/* ---- all local ranks ---- */

/* A replica like the first one, for a newcomer alone in its group. */
static gg_status add_newcomer(gg_trainer *t, gg_transport *transport) {
    const gg_replica *like = t->replica[0];
    gg_replica_options options = t->options;
    gg_replica **made = &t->replica[t->local];
    GG_TRY(gg_peers_add(t->peers, transport));
    options.exchange = gg_peers_exchange(t->peers, t->local);
    options.ledger = gg_team_ledger(t->team, transport->identity);
    options.step_seconds = t->seconds != NULL ? &t->seconds[transport->identity] : NULL;
    GG_TRY(gg_replica_create(&options, made));
    t->local++;
    const gg_plan_options *plans = &like->plans.options;
    gg_replica_set_algorithms(*made, plans->conv_choice, plans->conv_choices, plans->table_choice,
                              plans->table_choices);
    if (like->data.loader != NULL) GG_TRY(gg_replica_begin(*made, &like->data.set, &like->data.options));
    return gg_replica_hold(*made);
}

gg_status gg_trainer_add_newcomers(gg_trainer *t) {
    gg_status status = GG_OK;
    const gg_view *view = gg_team_view(t->team);
    const gg_float_mode former = gg_parallel_enter();
    for (int i = 0; status == GG_OK && i < view->members; ++i) {
        gg_transport *newcomer = view->donor[i] >= 0 ? gg_team_newcomer(t->team, view->member[i]) : NULL;
        if (newcomer != NULL) status = add_newcomer(t, newcomer);
    }
    gg_parallel_leave(former);
    return status;
}

gg_status gg_trainer_give(const gg_trainer_change *c, int local) {
    const gg_trainer *t = c->trainer;
    gg_handover given = t->given;
    given.linked = gg_team_known_link(t->team, &given.link);
    for (int to = -1; (to = gg_team_next_taker(t->team, local, to)) >= 0;) {
        GG_TRY(gg_team_greet(t->team, to));
        GG_TRY(give(t->replica[local], to, &given, &t->inherited));
    }
    return GG_OK;
}

static int donor_of(const gg_trainer *t, int local) {
    return gg_team_donor(t->team, gg_team_transport(t->team, local)->rank);
}

gg_status gg_trainer_take(const gg_trainer_change *c, int local) {
    gg_status status = GG_OK;
    gg_trainer *t = c->trainer;
    const int from = donor_of(t, local);
    const int64_t view = gg_team_taken(t->team);
    gg_handover heard = {0};
    GG_TRY_CLEANUP(gg_exchange_hear(t->replica[local]->exchange, from, view, FIXED, &heard));
    GG_TRY_CLEANUP(take(t->replica[local], from, view, &c->costs, &heard));
cleanup:
    gg_handover_free(&heard);
    return status;
}

/* ---- a newcomer of its own process ---- */

gg_status gg_trainer_set_text(gg_trainer *t, const char *text, size_t bytes) {
    char *copy;
    GG_TRY(gg_alloc(bytes + 1, "a donor's text", &copy));
    memcpy(copy, text, bytes);
    gg_free(t->given.text);
    t->given.text = copy;
    t->given.bytes = bytes;
    return GG_OK;
}

gg_status gg_trainer_hear(gg_trainer *t, const char **text, size_t *bytes) {
    gg_replica *r = t->replica[0];
    if (r->held == NULL) GG_TRY(gg_replica_hold(r));
    GG_TRY(gg_team_change_view(t->team));
    GG_TRY(gg_team_await_greeting(t->team));
    gg_trainer_place_seconds(t);
    gg_handover_free(&t->heard);
    GG_TRY(gg_exchange_hear(r->exchange, donor_of(t, 0), gg_team_taken(t->team), FIXED, &t->heard));
    *text = t->heard.text;
    *bytes = t->heard.bytes;
    return GG_OK;
}

gg_status gg_trainer_join(gg_trainer *t, bool *whole) {
    gg_status status = GG_OK;
    gg_exchange_costs costs = {.link = NULL};
    double *forward = NULL;
    gg_link link;
    *whole = false;
    if (t->heard.linked) gg_team_set_link(t->team, &t->heard.link);
    t->inherited = inherited_of(&t->heard);
    GG_TRY_CLEANUP(gg_trainer_costs(t, &forward, &link, &costs));
    GG_TRY_CLEANUP(take(t->replica[0], donor_of(t, 0), gg_team_taken(t->team), &costs, &t->heard));
    gg_team_view_breaks(t->team, gg_exchange_breaks(t->replica[0]->exchange));
    gg_team_view_stands(t->team, gg_exchange_state(t->replica[0]->exchange)->step);
    GG_TRY_CLEANUP(gg_team_copied(t->team, 0));
    GG_TRY_CLEANUP(gg_team_await_whole(t->team, whole));
cleanup:
    gg_free(forward);
    return status;
}
