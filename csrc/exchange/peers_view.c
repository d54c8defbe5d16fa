/* Exchanges whose callers make the steps go on without the ranks that have died. */
#include <string.h>

#include "base/memory.h"
#include "comm/agreement.h"
#include "exchange/peers_private.h"
#include "exchange/rebuild.h"

typedef struct change {
    gg_agreement agreement;
    gg_peers *peers;
    gg_exchange_costs costs;
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

/* Begins a run that ends at once, and tells how far a rank of its own process is. */
static gg_status tell_step(const gg_peers *p, int64_t step) {
    bool stops;
    gg_team_view_begin(p->team, step);
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
    for (int rank = 0; p->step_seconds != NULL && rank < gg_team_size(p->team); ++rank)
        if (!gg_agreement_is_dead(&c->agreement, rank)) p->step_seconds[ranks++] = p->step_seconds[rank];
    p->buried += p->local - place;
    p->local = place;
}

gg_status gg_peers_change_view(gg_peers *p, bool *changed, int *living) {
    gg_status status = GG_OK;
    bool changes;
    change c = {.peers = p,
                .agreement = {.team = p->team, .begin = check_living, .settle = settle, .received = received}};
    c.agreement.context = &c;
    double *forward = NULL;
    gg_link link;
    *changed = false;
    if (gg_team_view(p->team) == NULL) goto cleanup;
    const int64_t step = gg_peers_steps(p);
    GG_TRY_CLEANUP(tell_step(p, step));
    GG_TRY_CLEANUP(gg_agree_on_view(&c.agreement, step, &changes));
    if (!changes) goto cleanup;
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
    gg_free(forward);
    return status;
}
