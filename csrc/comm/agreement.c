#include "comm/agreement.h"

#include "base/memory.h"

bool gg_agreement_is_dead(const gg_agreement *a, int rank) {
    for (int i = 0; i < a->deaths; ++i)
        if (a->dead[i] == rank) return true;
    return false;
}

static gg_status settle(void *context, int local) {
    const gg_agreement *a = context;
    return a->settle(a->context, local);
}

/* received: room for all ranks. *again: more ranks have died since. */
static gg_status tell_received(const gg_agreement *a, int64_t *received, bool *again) {
    GG_TRY(a->begin(a->context));
    GG_TRY(gg_team_run(a->team, settle, (void *)a));
    for (int local = 0; local < gg_team_local(a->team); ++local) {
        if (gg_agreement_is_dead(a, a->first + local)) continue;
        for (int rank = 0; rank < gg_team_size(a->team); ++rank) received[rank] = a->received(a->context, local, rank);
        for (int i = 0; i < a->deaths; ++i) received[i] = received[a->dead[i]]; /* they ascend */
        GG_TRY(gg_team_report(a->team, local, a->deaths, received));
    }
    return gg_team_await_view(a->team, a->deaths, again);
}

gg_status gg_agree_on_view(gg_agreement *a, int64_t step, bool *changes) {
    gg_status status = GG_OK;
    int64_t *received = NULL;
    a->first = gg_team_rank(a->team);
    for (bool again = true; again;) {
        GG_TRY_CLEANUP(gg_team_view_changes(a->team, step, changes, &a->deaths, &a->dead));
        if (!*changes) break;
        if (received == NULL)
            GG_TRY_CLEANUP(gg_calloc((size_t)gg_team_size(a->team), sizeof *received, "received steps", &received));
        GG_TRY_CLEANUP(tell_received(a, received, &again));
    }
cleanup:
    gg_free(received);
    return status;
}
