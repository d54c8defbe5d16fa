/* The exchanges of the ranks of a team that live in this process: the one owner of arenas, strategies, optimisers and
 * traces, for a trainer and for callers who compute gradients themselves (steps.h).
 *
 * gg_team_run runs a function on each rank, on the rank's own thread where there are several. Where a rank is the only
 * one of its process, its calls may be made outside as well. */
#ifndef GG_EXCHANGE_PEERS_H
#define GG_EXCHANGE_PEERS_H

#include "comm/team.h"
#include "exchange/exchange.h"

typedef struct gg_peers gg_peers;

/* Transport and link of the options are ignored: each exchange has its own rank's transport, and the link is measured
 * where the strategy's sizes are to be tuned. step_seconds: what virtual clocks charge for a step of each rank of the
 * team; NULL: nothing. It, or a model, gives costs.forward by the elements of each layer, where that is NULL. Retains
 * the team. Options that are not allowed are refused before any rank runs. Collective. */
gg_status gg_peers_create(const gg_exchange_options *options, const double *step_seconds, gg_team *team,
                          gg_peers **out);
/* Collective: settles first, unless a step is half done or something failed. NULL is fine. */
void gg_peers_destroy(gg_peers *peers);

gg_exchange *gg_peers_exchange(const gg_peers *peers, int local);

/* What settles a rank in place of gg_exchange_settle, for an owner with more in flight; NULL: nothing. */
void gg_peers_set_settle(gg_peers *peers, gg_status (*settle)(void *context, int local), void *context);
/* Completes what is in flight on a local rank. Called on that rank's thread. Collective. */
gg_status gg_peers_settle(gg_peers *peers, int local);

/* What messages cost, for sizes that `strategy` leaves open in arenas of so many elements: *out is `memory`, or NULL
 * where none are to be tuned. Collective, with nothing in flight. */
gg_status gg_peers_link(gg_peers *peers, const gg_strategy_options *strategy, size_t count, gg_link *memory,
                        const gg_link **out);

/* Of all local ranks; as of gg_exchange. */
void gg_peers_set_rate(gg_peers *peers, const gg_rate *rate);
void gg_peers_set_moments_since(gg_peers *peers, int64_t step);

#endif
