/* Changes the strategy or the arenas of an exchange in the middle of its training. */
#ifndef GG_EXCHANGE_REBUILD_H
#define GG_EXCHANGE_REBUILD_H

#include "exchange/exchange.h"

/* Changes to an exchange. NULL means unchanged. */
typedef struct gg_rebuild {
    const gg_strategy_options *strategy;
    const gg_arena_layout *layout; /* copied */
    /* With a layout, not NULL: maps the elements of an arena of this kind. `before` may be overwritten, `after` is
     * zero. Called on each rank for each of its arenas, by several threads. Equal arenas must become equal ones. */
    gg_status (*map)(const void *context, gg_arena_kind kind, float *before, float *after);
    const void *context;
    gg_exchange_costs costs;
} gg_rebuild;

/* GG_ERROR_ARGUMENT for options that gg_exchange_rebuild would refuse: those that gg_strategy_check_open refuses. While
 * compressed values are unsent, also another strategy, other partners or other compressed parameters. Not collective.
 */
gg_status gg_exchange_check_rebuild(gg_exchange *x, const gg_strategy_options *strategy);
/* Makes arenas, strategy and buckets anew. Devices, trace and the optimiser's options stay. Each rank keeps its
 * weights, moments and residues; moments divided among the ranks are divided as the new strategy does it. If ranks
 * differ and the new strategy forbids that, all get the consensus weights and the mean of the moments
 * (gg_exchange_resume). New arenas are zero, new outer weights the consensus. Settled; checked. After a failure the
 * exchange is not whole. Collective. */
gg_status gg_exchange_rebuild(gg_exchange *x, const gg_rebuild *how);

/* ---- other ranks: before the transport has them, and after ---- */

typedef struct gg_held_state gg_held_state;

/* Reads the rank's own state, and takes the exchange apart. Settled. Sends nothing. */
gg_status gg_exchange_hold(gg_exchange *x, gg_held_state **out);
void gg_held_state_free(gg_held_state *held); /* NULL is a no-op */
/* Makes arenas, strategy and buckets for the ranks that the transport has now (comm/team.h), with the rank's own
 * weights, moments and residues. No message says what the others have: copies that partners share begin anew,
 * push-sum's scalars at 1. epoch: of the messages from here on, greater than before and equal on all ranks. After a
 * failure the exchange is not whole. */
gg_status gg_exchange_regroup(gg_exchange *x, const gg_held_state *held, const gg_exchange_costs *costs, int64_t epoch);

#endif
