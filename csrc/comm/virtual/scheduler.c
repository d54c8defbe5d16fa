/* The choice of the rank that runs next. */
#include <math.h>

#include "comm/virtual/virtual_private.h"

/* Consecutive tests without result at one clock before a rank counts as polling. It then sleeps until one of its
 * requests changes: in virtual time polling alone would never end. The limit is far above the number of tests of a
 * strategy in one step. */
#define POLL_LIMIT 100000
#define POLL_AGAIN 1000
#define POLL_HOPELESS 50000000 /* when no other rank can run: about a second, then it fails */

/* Only ranks that poll can run: one of them may send next. */
static bool release_polling(gg_virtual *cluster) {
    for (int r = 0; r < cluster->options.size; ++r) {
        gg_virtual_rank *rank = &cluster->ranks[r];
        if (rank->polling && rank->due.place < 0) gg_virtual_make_due(cluster, rank, rank->clock, false);
    }
    return cluster->able > 0;
}

/* Takes the rank that is due first from the heap; NULL means that all have finished. A dead rank there is the moment at
 * which the others learn of its death. */
static gg_virtual_rank *next_rank(gg_virtual *cluster) {
    while (cluster->unfinished > 0) {
        gg_virtual_deliver(cluster, INFINITY);
        if (cluster->able == 0 && cluster->wire.size == 0 && !release_polling(cluster))
            gg_virtual_declare_deadlock(cluster);
        gg_virtual_rank *next = &cluster->ranks[cluster->due.entries[0]->rank];
        gg_virtual_make_undue(cluster, next);
        if (!next->dead) return next;
        gg_virtual_tell(cluster, next);
    }
    return NULL;
}

void gg_virtual_hand_on(gg_virtual *cluster, gg_virtual_rank *self) {
    if (atomic_load_explicit(&cluster->watch_due, memory_order_relaxed)) {
        atomic_store_explicit(&cluster->watch_due, false, memory_order_relaxed);
        gg_baton_give(&cluster->caller);
        if (self) gg_baton_await(&self->baton);
        return;
    }
    gg_virtual_rank *next = next_rank(cluster);
    if (next == NULL) {
        gg_baton_give(&cluster->caller);
        return;
    }
    if (next->clock < next->due.key) next->clock = next->due.key;
    if (next == self) return;
    gg_baton_give(&next->baton);
    if (self) gg_baton_await(&self->baton);
}

gg_status gg_virtual_still_good(gg_virtual_rank *rank) {
    const gg_virtual *cluster = rank->cluster;
    if (cluster->deadlock) return gg_fail(GG_ERROR_COMM, "%s", cluster->deadlock_text);
    if (cluster->failed)
        return gg_fail(GG_ERROR_CANCELLED, "stopped, because rank %d of the virtual cluster failed",
                       cluster->failed_rank);
    if (!cluster->running)
        return gg_fail(GG_ERROR_STATE,
                       "rank %d of the virtual cluster does not run: messages move inside of a run only",
                       rank->transport.rank);
    if (rank->dying && !rank->dead) GG_TRY(gg_virtual_die(rank));
    if (rank->dead) return gg_fail(GG_ERROR_CANCELLED, "rank %d of the virtual cluster has died", rank->transport.rank);
    return GG_OK;
}

gg_status gg_virtual_let_others_catch_up(gg_virtual_rank *rank) {
    gg_virtual *cluster = rank->cluster;
    GG_TRY(gg_virtual_still_good(rank));
    gg_virtual_deliver(cluster, rank->clock);
    rank->due.key = rank->clock;
    bool behind = cluster->due.size > 0 && gg_heap_earlier(cluster->due.entries[0], &rank->due);
    if (!behind && !atomic_load_explicit(&cluster->watch_due, memory_order_relaxed)) return GG_OK;
    gg_virtual_make_due(cluster, rank, rank->clock, false);
    gg_virtual_hand_on(cluster, rank);
    return gg_virtual_still_good(rank);
}

gg_status gg_virtual_found_nothing(gg_virtual_rank *rank, gg_request *request) {
    gg_virtual *cluster = rank->cluster;
    if (gg_link_of(request)->known && gg_link_of(request)->time < rank->next_known)
        rank->next_known = gg_link_of(request)->time;
    if (++rank->empty_tests < POLL_LIMIT) return GG_OK;
    bool knows = rank->next_known < INFINITY;
    if (cluster->able == 0 && cluster->wire.size == 0 && !knows) {
        if (rank->empty_tests < POLL_HOPELESS) return GG_OK;
        return gg_fail(GG_ERROR_COMM, "rank %d polls for ever (peer %d, tag %d): all other ranks have returned or wait",
                       rank->transport.rank, request->peer, request->tag);
    }
    if (cluster->able > 0) rank->empty_tests = POLL_LIMIT - POLL_AGAIN;
    rank->polling = true;
    if (knows) gg_virtual_make_due(cluster, rank, rank->next_known, false);
    gg_virtual_hand_on(cluster, rank);
    rank->polling = false;
    rank->next_known = INFINITY;
    return gg_virtual_still_good(rank);
}

gg_status gg_virtual_wait_for_any(gg_virtual_rank *rank) {
    gg_virtual *cluster = rank->cluster;
    GG_TRY(gg_virtual_still_good(rank));
    if (!rank->has_event) {
        rank->waits_for_any = true;
        if (rank->next_known < INFINITY) gg_virtual_make_due(cluster, rank, rank->next_known, false);
        gg_virtual_hand_on(cluster, rank);
        rank->waits_for_any = false;
    }
    rank->has_event = false;
    rank->empty_tests = 0;
    rank->next_known = INFINITY;
    return gg_virtual_still_good(rank);
}
