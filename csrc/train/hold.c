/* A replica between two groups of ranks: its exchange is taken apart, and made anew. */
#include "base/memory.h"
#include "comm/view.h"
#include "train/replica_private.h"

gg_status gg_replica_hold(gg_replica *r) {
    gg_replica_counts(r, &r->held_counts); /* without the messages of the change */
    return gg_exchange_hold(r->exchange, &r->held);
}

gg_status gg_replica_renew_exchange(gg_replica *r, const gg_exchange_costs *costs, int64_t view) {
    int64_t *batches;
    GG_TRY(gg_exchange_regroup(r->exchange, r->held, costs, gg_view_epoch(view)));
    r->view = view;
    gg_held_state_free(r->held);
    r->held = NULL;
    gg_replica_set_hooks(r);
    GG_TRY(gg_calloc((size_t)r->transport->size, sizeof *batches, "batches", &batches));
    gg_free(r->batches);
    r->batches = batches;
    return GG_OK;
}
