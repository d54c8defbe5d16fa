/* Private to the room: parts shared by the strategies: the state's arenas, updates, waits, the trace, and errors with
 * their layers. Knows no strategy. */
#ifndef GG_EXCHANGE_PARTS_COMMON_H
#define GG_EXCHANGE_PARTS_COMMON_H

#include "exchange/strategy.h"

/* Names of wire types, by gg_dtype, and of gg_collectives. */
extern const char *const gg_wire_names[2], *const gg_collectives_names[GG_COLLECTIVES_COUNT];

/* GG_ERROR_ARGUMENT if bucket_bytes or chunk_bytes is 0. A gg_strategy_type.check; `ranks` does not matter. */
gg_status gg_strategy_check_sizes(const gg_strategy_options *options, int ranks);

/* GG_SHARED_*: this kind of arena is in message memory, where partners read it; others are private. BORROWED_GRADIENT:
 * the strategy allocates the gradient arena itself. WITH_RESIDUE adds a private arena for unsent values, WITH_BASE one
 * for the last values common to all ranks, WITH_OUTER those of outer steps. */
enum {
    GG_SHARED_WEIGHT = 1 << GG_ARENA_WEIGHT,
    GG_SHARED_GRADIENT = 1 << GG_ARENA_GRADIENT,
    GG_SHARED_MOMENTS = 1 << GG_ARENA_MOMENT,
    GG_BORROWED_GRADIENT = 1 << GG_ARENA_KINDS,
    GG_WITH_RESIDUE = 2 << GG_ARENA_KINDS,
    GG_WITH_BASE = 4 << GG_ARENA_KINDS,
    GG_WITH_OUTER = 8 << GG_ARENA_KINDS
};

/* GG_WITH_RESIDUE if these options compress parameters of this network that are sent, else 0. One rank sends nothing.
 */
unsigned gg_residue_wanted(const gg_strategy_options *options, const gg_strategy_env *env);

/* *accumulates: compressed gradients go through each rank's own momentum (local_momentum), and the updater applies none
 * from here on. GG_ERROR_ARGUMENT if the optimiser has no momentum that can be divided like this. */
gg_status gg_strategy_accumulate(const gg_strategy_options *options, const gg_strategy_env *env, bool *accumulates);

/* Lists and allocates the state's arenas, zeroed: weights, gradients, the optimiser's moments, the residue. Collective
 * if some are shared. After a failure gg_state_destroy frees the allocated ones; it is collective in the same cases. */
gg_status gg_state_create(const gg_strategy_env *env, unsigned shared);
void gg_state_destroy(const gg_strategy_env *env);
/* Frees memory that no list of arenas has taken (gg_exchange_keep_arenas). */
void gg_state_free_kept(const gg_strategy_env *env);

/* True if an arena, given by its place in the state's list, is all zero. Waits for the device. */
bool gg_strategy_all_zero(gg_strategy *strategy, int arena);

/* No-op entries of a strategy's table, without and with a layer. */
gg_status gg_strategy_nothing(gg_strategy *strategy);
gg_status gg_strategy_no_layer(gg_strategy *strategy, int layer);
/* poll that only lets messages progress. */
gg_status gg_strategy_progress(gg_strategy *strategy);

/* Updates a run of elements with `gradient`, in place, for strategies without a mix. */
void gg_strategy_update(gg_strategy *strategy, size_t offset, size_t count, const float *gradient);
/* Measures this whole arena of gradients, if updates need norms. */
void gg_strategy_measure(gg_strategy *strategy, const float *gradients);
/* ready that updates the layer with its own gradient. */
gg_status gg_strategy_update_layer(gg_strategy *strategy, int layer);

/* *done tells if a request is done. With `wait`, waits for it and adds the time to the strategy's exposed seconds. The
 * request belongs to `transport`: the strategy's, or a view on it. GG_ERROR_PEER after a death in this group
 * (gg_reach_collective). */
gg_status gg_strategy_reach(gg_strategy *strategy, gg_transport *transport, gg_request *request, bool wait, bool *done);
/* gg_strategy_reach with `wait`, on the strategy's transport. */
gg_status gg_strategy_wait(gg_strategy *strategy, gg_request *request);
/* Waits like gg_strategy_wait for a message of one peer about these layers, which reports of long waits name. The
 * request may be LOST afterwards. */
gg_status gg_strategy_wait_layers(gg_strategy *strategy, int first_layer, int last_layer, gg_request *request);
/* Counts the time from `begin` to now as waiting, and records it in the trace. Counts all waits, so the exposed seconds
 * equal the trace's waits. */
void gg_strategy_waited(gg_strategy *strategy, double begin);
/* Counts the waits of a reduction like gg_strategy_waited. */
void gg_strategy_watch(gg_strategy *strategy, gg_allreduce *reduction);

/* Adds "step 12, layers 'a' to 'b': " to the message of a failure, and returns it. */
gg_status gg_strategy_at(const gg_strategy *strategy, int first_layer, int last_layer, gg_status status);
/* gg_strategy_at for messages of all layers together. */
gg_status gg_strategy_at_all(const gg_strategy *strategy, gg_status status);

/* `needs_all` of strategies that can always go on without a dead rank (exchange/types.h): NULL. */
const char *gg_strategy_needs_none(const gg_strategy_options *options);

#endif
