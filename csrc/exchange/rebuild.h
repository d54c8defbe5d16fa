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
    /* The transport has other ranks than before (comm/team.h). Each rank keeps its own weights, moments and residues,
     * and the memory of weights and gradients (gg_exchange_keep_arenas). No message says what the others have: copies
     * that partners share begin anew, push-sum's scalars at 1. */
    bool regrouped;
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

#endif
