/* Exchanges whose callers make the steps go on without the ranks that have died. */
#include <string.h>

#include "base/memory.h"
#include "exchange/peers_private.h"
#include "exchange/rebuild.h"

typedef struct change {
    gg_peers *peers;
    int first; /* rank of the first local one in the former view */
    const int *dead;
    int deaths;
    int64_t *received; /* deaths of each local rank */
    gg_exchange_costs costs;
} change;

static bool is_dead(const change *c, int rank) {
    for (int i = 0; i < c->deaths; ++i)
        if (c->dead[i] == rank) return true;
    return false;
}

static gg_status settle_living(void *context, int local) {
    const change *c = context;
    GG_TRY(gg_peers_settle(c->peers, local));
    for (int i = 0; i < c->deaths; ++i)
        c->received[local * c->deaths + i] = gg_exchange_received(c->peers->exchange[local], c->dead[i]);
    return GG_OK;
}

static gg_status regroup(void *context, int local) {
    const change *c = context;
    gg_exchange *x = c->peers->exchange[local];
    gg_held_state *held = NULL;
    gg_status status = gg_exchange_hold(x, &held);
    if (status == GG_OK)
        status = gg_exchange_regroup(x, held, &c->costs, gg_view_epoch(gg_team_view(c->peers->team)->number));
    gg_held_state_free(held);
    return status;
}

/* Settles and reports. *again: more ranks have died since. */
static gg_status tell_received(change *c, bool *changes, bool *again) {
    gg_peers *p = c->peers;
    const int64_t step = gg_peers_steps(p);
    bool stops;
    *again = false;
    gg_team_view_begin(p->team, step);
    if (p->local == 1) GG_TRY(gg_team_view_stops(p->team, 0, step, &stops)); /* tells how far the rank is */
    GG_TRY(gg_team_view_changes(p->team, step, changes, &c->deaths, &c->dead));
    if (!*changes) return GG_OK;
    for (int i = 0; i < p->local; ++i)
        if (!is_dead(c, c->first + i) && gg_exchange_failed(p->exchange[i]))
            return gg_fail(GG_ERROR_STATE, "change of the view: rank %d has failed in the middle of a step",
                           c->first + i);
    GG_TRY(gg_team_run(p->team, settle_living, c));
    for (int i = 0; i < p->local; ++i)
        if (!is_dead(c, c->first + i))
            GG_TRY(gg_team_report(p->team, i, c->deaths, c->received + (size_t)(i * c->deaths)));
    return gg_team_await_view(p->team, c->deaths, again);
}

/* Puts the exchanges of the local dead behind the others, which keep their order. */
static void bury_dead(const change *c, int *living) {
    gg_peers *p = c->peers;
    int place = 0, ranks = 0;
    for (int i = 0; i < p->local; ++i)
        if (!is_dead(c, c->first + i)) living[place++] = i;
    for (int i = 0, next = 0; i < p->local; ++i) {
        if (next < place && living[next] == i) {
            gg_exchange *one = p->exchange[i];
            memmove(&p->exchange[next + 1], &p->exchange[next], (size_t)(i - next) * sizeof(gg_exchange *));
            p->exchange[next++] = one;
        }
    }
    for (int rank = 0; p->step_seconds != NULL && rank < gg_team_size(p->team); ++rank)
        if (!is_dead(c, rank)) p->step_seconds[ranks++] = p->step_seconds[rank];
    p->buried += p->local - place;
    p->local = place;
}

gg_status gg_peers_change_view(gg_peers *p, bool *changed, int *living) {
    gg_status status = GG_OK;
    change c = {.peers = p, .first = gg_team_rank(p->team)};
    double *forward = NULL;
    gg_link link;
    *changed = false;
    if (gg_team_view(p->team) == NULL) goto cleanup;
    const size_t rows = (size_t)p->local * (size_t)gg_team_size(p->team);
    GG_TRY_CLEANUP(gg_calloc(rows, sizeof *c.received, "received steps", &c.received));
    for (bool again = true; again;) {
        bool changes;
        GG_TRY_CLEANUP(tell_received(&c, &changes, &again));
        if (!changes) goto cleanup;
    }
    bury_dead(&c, living);
    GG_TRY_CLEANUP(gg_team_change_view(p->team));
    gg_exchange *first = p->exchange[0];
    const gg_arena_layout *layout = gg_exchange_layout(first);
    GG_TRY_CLEANUP(gg_peers_model_forward(layout, p->step_seconds, gg_team_size(p->team), &forward, &c.costs.least));
    c.costs.forward = forward;
    GG_TRY_CLEANUP(gg_peers_link(p, &gg_exchange_asked(first)->strategy, layout->count, &link, &c.costs.link));
    GG_TRY_CLEANUP(gg_team_run(p->team, regroup, &c));
    gg_team_view_begin(p->team, gg_peers_steps(p));
    *changed = true;
cleanup:
    gg_free(c.received);
    gg_free(forward);
    return status;
}
