/* Private to the room: what the strategies share: the state's arenas, updates, waits, the trace, and errors with their
 * layers. It knows no strategy. */
#ifndef GG_EXCHANGE_PARTS_COMMON_H
#define GG_EXCHANGE_PARTS_COMMON_H

#include "exchange/strategy.h"

/* Names of the types that travel, by gg_dtype, and of gg_collectives. */
extern const char *const gg_wire_names[2], *const gg_collectives_names[GG_COLLECTIVES_COUNT];

/* GG_ERROR_ARGUMENT: bucket_bytes or chunk_bytes is 0. */
gg_status gg_strategy_check_sizes(const gg_strategy_options *options);

/* Kinds of arenas in message memory, where partners read them; the others are private. BORROWED_GRADIENT: the strategy
 * allocates the gradients' arena itself. WITH_RESIDUE: there is one of the residue as well, WITH_BASE: and one of what
 * all ranks had last, WITH_OUTER: those of outer steps; all are private. */
enum {
    GG_SHARED_WEIGHT = 1 << GG_ARENA_WEIGHT,
    GG_SHARED_GRADIENT = 1 << GG_ARENA_GRADIENT,
    GG_SHARED_MOMENTS = 1 << GG_ARENA_MOMENT,
    GG_BORROWED_GRADIENT = 1 << GG_ARENA_KINDS,
    GG_WITH_RESIDUE = 2 << GG_ARENA_KINDS,
    GG_WITH_BASE = 4 << GG_ARENA_KINDS,
    GG_WITH_OUTER = 8 << GG_ARENA_KINDS
};

/* GG_WITH_RESIDUE where these options compress parameters of this network that are sent; else 0. With one rank nothing
 * is sent. */
unsigned gg_residue_wanted(const gg_strategy_options *options, const gg_strategy_env *env);

/* Where gradients that are compressed have each rank's own momentum (local_momentum): true, and the updater applies
 * none from here on. GG_ERROR_ARGUMENT where the optimiser has no momentum that could be divided so. */
gg_status gg_strategy_accumulate(const gg_strategy_options *options, const gg_strategy_env *env, bool *accumulates);

/* Lists the state's arenas, weights, gradients, the moments of the optimiser and the residue, and allocates them,
 * zeroed. Collective where something is shared. After a failure gg_state_destroy frees what was allocated; it is
 * collective in the same cases. */
gg_status gg_state_create(const gg_strategy_env *env, unsigned shared);
void gg_state_destroy(const gg_strategy_env *env);

/* Whether an arena, given by its place in the state's list, is all zero: waits for the device. */
bool gg_strategy_all_zero(gg_strategy *strategy, int arena);

/* Entries of a strategy's table that do nothing: without and with a layer. */
gg_status gg_strategy_nothing(gg_strategy *strategy);
gg_status gg_strategy_no_layer(gg_strategy *strategy, int layer);
/* poll: only lets messages progress. */
gg_status gg_strategy_progress(gg_strategy *strategy);

/* The update of a run of elements with `gradient`, in place: what strategies without a mix do. */
void gg_strategy_update(gg_strategy *strategy, size_t offset, size_t count, const float *gradient);
/* Measures the whole arena of these gradients, where updates need norms. */
void gg_strategy_measure(gg_strategy *strategy, const float *gradients);
/* ready: updates the layer with its own gradient. */
gg_status gg_strategy_update_layer(gg_strategy *strategy, int layer);

/* Whether a request is done; with `wait` it waits until it is, adding the time to the strategy's exposed seconds. The
 * request is one of `transport`: the strategy's, or a view on it. */
gg_status gg_strategy_reach(gg_strategy *strategy, gg_transport *transport, gg_request *request, bool wait, bool *done);
/* The same with `wait`, of the strategy's transport. */
gg_status gg_strategy_wait(gg_strategy *strategy, gg_request *request);
/* The same, of what these layers exchange: a wait that lasts is reported with them. */
gg_status gg_strategy_wait_layers(gg_strategy *strategy, int first_layer, int last_layer, gg_request *request);
/* Counts the time from `begin` to now as waiting, and records it in the trace. All waits are counted here, so the
 * exposed seconds are the waits in the trace. */
void gg_strategy_waited(gg_strategy *strategy, double begin);
/* Counts the waits of a reduction in the same way. */
void gg_strategy_watch(gg_strategy *strategy, gg_allreduce *reduction);

/* Adds "step 12, layers 'a' to 'b': " to the message of a failure, and returns it. */
gg_status gg_strategy_at(const gg_strategy *strategy, int first_layer, int last_layer, gg_status status);
/* The same of gradients of an earlier step. */
gg_status gg_strategy_at_step(const gg_strategy *strategy, int64_t step, int first_layer, int last_layer,
                              gg_status status);
/* As gg_strategy_at, where all layers travel together. */
gg_status gg_strategy_at_all(const gg_strategy *strategy, gg_status status);

#endif
