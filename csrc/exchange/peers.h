/* The exchanges of the team's ranks in this process: the only owner of arenas, strategies, optimisers and traces.
 * Serves a trainer, and callers that compute gradients themselves (steps.h).
 *
 * gg_team_run runs a function on each rank, on the rank's own thread if there are several. A rank that is alone in its
 * process may also be called from outside. */
#ifndef GG_EXCHANGE_PEERS_H
#define GG_EXCHANGE_PEERS_H

#include "comm/team.h"
#include "exchange/exchange.h"

typedef struct gg_peers gg_peers;

/* Creates one exchange a local rank. The options' transport and link are ignored: each exchange gets its own rank's
 * transport, and the link is measured if the strategy's sizes are to be tuned. step_seconds: seconds that virtual
 * clocks charge for a step of each rank of the team; NULL means none. If costs.forward is NULL, it is derived from
 * step_seconds or a model, by the elements of each layer. Retains the team. Refuses forbidden options before any rank
 * runs. Collective. */
gg_status gg_peers_create(const gg_exchange_options *options, const double *step_seconds, gg_team *team,
                          gg_peers **out);
/* Settles first, unless a step is half done or a call has failed. Collective. NULL is a no-op. */
void gg_peers_destroy(gg_peers *peers);

/* Makes the exchange of a newcomer behind those of the other local ranks. It has their options, and is alone in the
 * group of its transport. Not collective. */
gg_status gg_peers_add(gg_peers *peers, gg_transport *transport);
/* Destroys the exchange of a local rank, which has died. The others keep their order. */
void gg_peers_remove(gg_peers *peers, int local);
gg_exchange *gg_peers_exchange(const gg_peers *peers, int local);
/* The greatest number of steps of a local rank: in a virtual cluster all that live stand at one step. */
int64_t gg_peers_steps(const gg_peers *peers);

/* ---- ranks that may die (gg_team_view), and callers that make the steps themselves ---- */

/* All local ranks stand between two steps. If the view changes at this step, because a rank has died or a newcomer is
 * ready, the members of the next view go on: settles, takes the next view and makes every exchange anew
 * (gg_exchange_regroup). *changed: it has. living: room for every local rank; receives the former local numbers of
 * those that live, in their new order. The exchanges of the dead stay until the end, since callers may still look at
 * their arenas. Waits only while a view changes. GG_ERROR_PEER if too few ranks live. Collective over the living. If
 * the next view has newcomers (gg_team_is_whole), gg_peers_give must follow. */
gg_status gg_peers_change_view(gg_peers *peers, bool *changed, int *living);
/* Gives this process's state and a text to the newcomers whose donor it is (gg_team_donor), and waits until all
 * newcomers have theirs. *whole: false if a rank has died before: the view changes again, at this step. */
gg_status gg_peers_give(gg_peers *peers, const char *text, size_t bytes, bool *whole);
/* A newcomer of its own process, which gg_team_await_member has made a member: takes the view, and hears its donor's
 * text, valid until the next call. Then gg_peers_join takes the state; *whole: as of gg_peers_give. GG_ERROR_PEER from
 * both, and *whole false: await the next view. */
gg_status gg_peers_hear(gg_peers *peers, const char **text, size_t *bytes);
gg_status gg_peers_join(gg_peers *peers, bool *whole);

/* gg_exchange_received of a rank of this view, or of its messages in earlier ones. Asked of all ranks when a view ends,
 * because exchanges begin anew. */
int64_t gg_peers_received(gg_peers *peers, int local, int rank);
/* The steps are counted from another number on: nothing has been received. */
void gg_peers_forget_received(gg_peers *peers);

/* ---- */

/* Sets the function that settles a rank, for an owner with more in flight; NULL means gg_exchange_settle. */
void gg_peers_set_settle(gg_peers *peers, gg_status (*settle)(void *context, int local), void *context);
/* Completes all that is in flight on a local rank. Called on that rank's thread. Collective. */
gg_status gg_peers_settle(gg_peers *peers, int local);

/* Measures the cost of messages for sizes that `strategy` leaves open, in arenas of `count` elements. *out is `memory`,
 * or NULL if no sizes are to be tuned. Collective, with nothing in flight. */
gg_status gg_peers_link(gg_peers *peers, const gg_strategy_options *strategy, size_t count, gg_link *memory,
                        const gg_link **out);

/* gg_peers_link after a change of the view. Ranks of several processes measure nothing, because a newcomer among them
 * waits for its donor: the cost is that of gg_team_known_link, NULL if there is none. */
gg_status gg_peers_known_link(gg_peers *peers, const gg_strategy_options *strategy, size_t count, gg_link *memory,
                              const gg_link **out);

/* gg_exchange_set_rate and gg_exchange_set_moments_since of all local ranks. */
void gg_peers_set_rate(gg_peers *peers, const gg_rate *rate);
void gg_peers_set_moments_since(gg_peers *peers, int64_t step);

#endif
