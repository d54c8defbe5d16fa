/* Training goes on without the ranks that have died, with a strategy whose steps a death breaks (gg_exchange_breaks):
 * it sums gradients over all ranks.
 *
 * 1. Each survivor has made the broken step, or has changed no weight in it. Those that made it are at most one step
 *    ahead, because nobody completes a step that another has not begun.
 * 2. The members of the next view compare their steps. If some have made the broken step, the others take their weights
 *    and moments. Else all make it again, with other samples.
 * 3. So a step counts for all ranks, the dead too, or for none.
 *
 * A taken state is loaded when it is whole. If a rank dies meanwhile the ranks compare again in the next view: those
 * that have taken it lend it. If all who made the step have died, nobody has it, and it does not count. */
#include "base/memory.h"
#include "comm/collective.h"
#include "train/replica_private.h"
#include "train/survive_private.h"

/* ---- a replica ---- */

gg_status gg_replica_break(gg_replica *r) {
    gg_exchange_break(r->exchange);
    return gg_exchange_fail(r->exchange, gg_replica_count_steps(r, 0));
}

/* Counts the broken step, whose losses this rank has computed. */
static void step_made(gg_replica *r) {
    gg_exchange_state(r->exchange)->step++;
    r->data.next++;
    r->broken = false;
    gg_outstanding_next(&r->outstanding)->counted = true;
    gg_outstanding_add(&r->outstanding);
}

/* Every rank receives the arenas that are equal on all ranks; loads them if it `takes`. Collective. */
static gg_status pass_state(gg_replica *r, int donor, bool takes) {
    gg_status status = GG_OK;
    gg_exchange *x = r->exchange;
    const gg_state *state = gg_exchange_state(x);
    const size_t bytes = state->count * sizeof(float);
    float *whole[GG_MAX_ARENAS] = {0};
    for (int i = 0; i < state->arenas; ++i) {
        if (!gg_exchange_keeps_equal(x, i)) continue;
        GG_TRY_CLEANUP(gg_alloc(bytes, "state of another rank", &whole[i]));
        if (r->transport->rank == donor)
            GG_TRY_CLEANUP(gg_device_read(r->device, whole[i], state->arena[i].data, bytes));
        GG_TRY_CLEANUP(gg_broadcast(r->transport, whole[i], bytes, donor));
        if (!takes) gg_free(whole[i]), whole[i] = NULL;
    }
    if (!takes) goto cleanup;
    for (int i = 0; i < state->arenas; ++i)
        if (whole[i] != NULL) gg_exchange_load(x, i, whole[i]);
    step_made(r);
cleanup:
    for (int i = 0; i < state->arenas; ++i) gg_free(whole[i]);
    return status;
}

/* Collective over the members of the view. */
static gg_status compare(gg_replica *r) {
    gg_status status = GG_OK;
    gg_transport *transport = r->transport;
    const int64_t own = *r->data.step;
    int64_t *all = NULL;
    int donor = 0;
    bool differ = false;
    gg_exchange_follow_transport(r->exchange);
    gg_transport_set_epoch(transport, transport->epoch + 1);
    GG_TRY_CLEANUP(gg_alloc((size_t)transport->size * sizeof *all, "steps of all ranks", &all));
    GG_TRY_CLEANUP(gg_allgather(transport, &own, sizeof own, all));
    for (int rank = 0; rank < transport->size; ++rank) {
        differ = differ || all[rank] != own;
        if (all[rank] > all[donor]) donor = rank;
    }
    if (differ) GG_TRY_CLEANUP(pass_state(r, donor, own < all[donor]));
cleanup:
    gg_free(all);
    return gg_exchange_fail(r->exchange, gg_replica_at(r, "broken step", status));
}

static void mended(gg_replica *r) {
    gg_exchange_mended(r->exchange, !r->broken);
    r->broken = false;
}

/* ---- all local ranks ---- */

typedef struct mending {
    gg_trainer *trainer;
    bool *lost; /* one a local rank: another death has kept it from the end */
} mending;

static gg_status mend_rank(void *context, int local) {
    const mending *m = context;
    const gg_status status = compare(m->trainer->replica[local]);
    m->lost[local] = status == GG_ERROR_PEER;
    return m->lost[local] ? GG_OK : status;
}

bool gg_trainer_breaks(const gg_trainer *t) { return gg_exchange_breaks(gg_replica_exchange(t->replica[0])); }

bool gg_trainer_broken(const gg_trainer *t) {
    for (int i = 0; i < t->local; ++i)
        if (t->replica[i]->broken) return true;
    return false;
}

gg_status gg_trainer_mend(gg_trainer *t, bool *whole) {
    gg_status status = GG_OK;
    mending m = {.trainer = t};
    bool done = true;
    GG_TRY_CLEANUP(gg_calloc((size_t)t->local, sizeof *m.lost, "ranks that mend", &m.lost));
    GG_TRY_CLEANUP(gg_team_run(t->team, mend_rank, &m));
    for (int i = 0; i < t->local; ++i) done = done && !m.lost[i];
    GG_TRY_CLEANUP(gg_team_decide(t->team, done, whole));
    for (int i = 0; *whole && i < t->local; ++i) mended(t->replica[i]);
cleanup:
    gg_free(m.lost);
    return status;
}
