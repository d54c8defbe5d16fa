/* Exchanges whose callers make the steps go on without the ranks that have died, and with newcomers. */
#include <string.h>

#include "base/memory.h"
#include "comm/agreement.h"
#include "exchange/peers_private.h"
#include "exchange/rebuild.h"

typedef struct change {
    gg_agreement agreement;
    gg_peers *peers;
    gg_exchange_costs costs;
    gg_held_state **held; /* one a local rank of the former view, then of the next one */
} change;

/* Before any rank runs, because ranks that fail in a run stay failed. */
static gg_status check_living(void *context) {
    const change *c = context;
    for (int i = 0; i < c->peers->local; ++i)
        if (!gg_agreement_is_dead(&c->agreement, c->agreement.first + i) && gg_exchange_failed(c->peers->exchange[i]))
            return gg_fail(GG_ERROR_STATE, "change of the view: rank %d has failed in the middle of a step",
                           c->agreement.first + i);
    return GG_OK;
}

static gg_status settle(void *context, int local) {
    const change *c = context;
    return gg_peers_settle(c->peers, local);
}

static int64_t received(void *context, int local, int rank) {
    const change *c = context;
    return gg_peers_received(c->peers, local, rank);
}

int64_t gg_peers_received(gg_peers *p, int local, int rank) {
    const int row = gg_team_most_local(p->team) > 1 ? gg_team_identity(p->team, local) : 0;
    int64_t *kept = p->received + row * gg_team_identities(p->team) + gg_team_view(p->team)->member[rank];
    const int64_t now = gg_exchange_received(p->exchange[local], rank);
    if (now > *kept) *kept = now;
    return *kept;
}

/* Before the transports have other ranks: arrays have one entry a rank of now. */
static gg_status hold(void *context, int local) {
    const change *c = context;
    return gg_exchange_hold(c->peers->exchange[local], &c->held[local]);
}

static gg_status regroup(void *context, int local) {
    const change *c = context;
    const int64_t epoch = gg_view_epoch(gg_team_taken(c->peers->team));
    return gg_exchange_regroup(c->peers->exchange[local], c->held[local], &c->costs, epoch);
}

/* Tells how far a rank of its own process is. */
static gg_status tell_step(const gg_peers *p, int64_t step) {
    bool stops;
    if (p->local == 1) gg_exchange_leave(p->exchange[0]);
    gg_team_view_stands(p->team, step);
    return p->local == 1 ? gg_team_view_stops(p->team, 0, step, &stops) : GG_OK;
}

/* Puts the exchanges of the local dead behind the others, which keep their order. */
static void bury_dead(const change *c, int *living) {
    gg_peers *p = c->peers;
    int place = 0, ranks = 0;
    for (int i = 0; i < p->local; ++i)
        if (!gg_agreement_is_dead(&c->agreement, c->agreement.first + i)) living[place++] = i;
    for (int i = 0, next = 0; i < p->local; ++i) {
        if (next < place && living[next] == i) {
            gg_exchange *one = p->exchange[i];
            memmove(&p->exchange[next + 1], &p->exchange[next], (size_t)(i - next) * sizeof(gg_exchange *));
            p->exchange[next++] = one;
        }
    }
    for (int i = 0; i < place; ++i) { /* living[i] >= i */
        gg_held_state *one = c->held[living[i]];
        c->held[living[i]] = NULL;
        c->held[i] = one;
    }
    for (int rank = 0; p->step_seconds != NULL && rank < gg_team_size(p->team); ++rank)
        if (!gg_agreement_is_dead(&c->agreement, rank)) p->step_seconds[ranks++] = p->step_seconds[rank];
    p->buried += p->local - place;
    p->local = place;
}

/* Costs for tuning exchanges that begin anew. step_seconds: of each rank; NULL means none. *out refers to *forward,
 * which the caller frees, and to *link. */
static gg_status tuning_costs(gg_peers *p, const double *step_seconds, double **forward, gg_link *link,
                              gg_exchange_costs *out) {
    const gg_exchange *x = p->exchange[0];
    const gg_arena_layout *layout = gg_exchange_layout(x);
    GG_TRY(gg_peers_model_forward(layout, step_seconds, gg_team_size(p->team), forward, &out->least));
    out->forward = *forward;
    return gg_peers_known_link(p, &gg_exchange_asked(x)->strategy, layout->count, link, &out->link);
}

gg_status gg_peers_change_view(gg_peers *p, bool *changed, int *living) {
    gg_status status = GG_OK;
    bool changes;
    change c = {.peers = p,
                .agreement = {.team = p->team, .begin = check_living, .settle = settle, .received = received}};
    c.agreement.context = &c;
    double *forward = NULL;
    gg_link link;
    const int formers = p->local;
    *changed = false;
    if (gg_team_view(p->team) == NULL) goto cleanup;
    const int64_t step = gg_peers_steps(p);
    GG_TRY_CLEANUP(tell_step(p, step));
    GG_TRY_CLEANUP(gg_agree_on_view(&c.agreement, step, &changes));
    if (!changes) goto cleanup;
    GG_TRY_CLEANUP(gg_calloc((size_t)formers, sizeof(gg_held_state *), "states of ranks", &c.held));
    GG_TRY_CLEANUP(gg_team_run(p->team, hold, &c));
    bury_dead(&c, living);
    GG_TRY_CLEANUP(gg_team_change_view(p->team));
    GG_TRY_CLEANUP(tuning_costs(p, p->step_seconds, &forward, &link, &c.costs));
    GG_TRY_CLEANUP(gg_team_run(p->team, regroup, &c));
    gg_team_view_stands(p->team, gg_peers_steps(p));
    *changed = true;
cleanup:
    for (int i = 0; c.held != NULL && i < formers; ++i) gg_held_state_free(c.held[i]);
    gg_free(c.held);
    gg_free(forward);
    return status;
}

/* ---- newcomers ---- */

gg_status gg_peers_give(gg_peers *p, const char *text, size_t bytes, bool *whole) {
    gg_handover given = {.text = (char *)text, .bytes = bytes};
    given.linked = gg_team_known_link(p->team, &given.link);
    for (int to = -1; (to = gg_team_next_taker(p->team, 0, to)) >= 0;) {
        GG_TRY(gg_team_greet(p->team, to));
        GG_TRY(gg_exchange_give(p->exchange[0], to, &given));
    }
    return gg_team_await_whole(p->team, whole);
}

static int own_donor(const gg_peers *p) { return gg_team_donor(p->team, gg_team_rank(p->team)); }

gg_status gg_peers_hear(gg_peers *p, const char **text, size_t *bytes) {
    if (p->held == NULL) GG_TRY(gg_exchange_hold(p->exchange[0], &p->held));
    GG_TRY(gg_team_change_view(p->team));
    GG_TRY(gg_team_await_greeting(p->team));
    gg_handover_free(&p->heard);
    GG_TRY(gg_exchange_hear(p->exchange[0], own_donor(p), gg_team_taken(p->team), 0, &p->heard));
    *text = p->heard.text;
    *bytes = p->heard.bytes;
    return GG_OK;
}

typedef struct joining {
    gg_peers *peers;
    gg_exchange_costs costs;
} joining;

static gg_status take_state(void *context, int local) {
    const joining *j = context;
    gg_peers *p = j->peers;
    const int from = own_donor(p);
    const int64_t epoch = gg_view_epoch(gg_team_taken(p->team));
    gg_status status = gg_exchange_regroup(p->exchange[local], p->held, &j->costs, epoch);
    gg_held_state_free(p->held);
    p->held = NULL;
    if (status == GG_OK) status = gg_exchange_take(p->exchange[local], from, &p->heard);
    return gg_exchange_fail(p->exchange[local], status);
}

gg_status gg_peers_join(gg_peers *p, bool *whole) {
    gg_status status = GG_OK;
    joining j = {.peers = p};
    double *forward = NULL;
    gg_link link;
    *whole = false;
    if (p->heard.linked) gg_team_set_link(p->team, &p->heard.link);
    GG_TRY_CLEANUP(tuning_costs(p, NULL, &forward, &link, &j.costs));
    GG_TRY_CLEANUP(gg_team_run(p->team, take_state, &j));
    gg_team_view_stands(p->team, gg_peers_steps(p));
    GG_TRY_CLEANUP(gg_team_copied(p->team, 0));
    GG_TRY_CLEANUP(gg_team_await_whole(p->team, whole));
cleanup:
    gg_free(forward);
    return status;
}
