/* An exchange that goes on with another strategy or other arenas in the middle of its training. */
#ifndef GG_EXCHANGE_REBUILD_H
#define GG_EXCHANGE_REBUILD_H

#include "exchange/exchange.h"

/* What becomes of an exchange in the middle of its training. NULL: as before. */
typedef struct gg_rebuild {
    const gg_strategy_options *strategy;
    const gg_arena_layout *layout; /* copied */
    /* With a layout, not NULL: what becomes of the elements of an arena of this kind. `before` may be overwritten,
     * `after` is zero. Called on each rank for each of its arenas, by several threads; equal arenas must become equal
     * ones. */
    gg_status (*map)(const void *context, gg_arena_kind kind, float *before, float *after);
    const void *context;
    gg_exchange_costs costs;
} gg_rebuild;

/* GG_ERROR_ARGUMENT for options that gg_exchange_rebuild would refuse: those that gg_strategy_check_open does, and
 * where something is compressed and not sent yet, another strategy, other partners or other compressed parameters. Not
 * collective. */
gg_status gg_exchange_check_rebuild(gg_exchange *x, const gg_strategy_options *strategy);
/* Makes arenas, strategy and buckets anew; the devices, the trace and the options of the optimiser stay. Each rank has
 * its own weights, moments and residues as before; moments that were divided among the ranks are divided as the new
 * strategy does it. All ranks have the consensus weights and the mean of the moments where they differ and the new
 * strategy lets no rank's differ (gg_exchange_resume). Arenas that there were not before are zero. Settled; checked.
 * After a failure the exchange is not whole. Collective. */
gg_status gg_exchange_rebuild(gg_exchange *x, const gg_rebuild *how);

#endif
