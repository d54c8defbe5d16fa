/* Private to the room: the strategies, one file each. A `create` is collective and allocates the state's arenas. */
#ifndef GG_STRATEGY_TABLES_H
#define GG_STRATEGY_TABLES_H

#include "strategy/strategy.h"

gg_status gg_gossip_weights_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);
gg_status gg_gossip_gradients_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);
gg_status gg_allreduce_strategy_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);
gg_status gg_layerwise_allreduce_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);
gg_status gg_periodic_allreduce_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);
gg_status gg_no_exchange_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);

/* The update of a run of elements with `gradient`, in place: what strategies without a mix do. */
void gg_strategy_update(gg_strategy *strategy, size_t offset, size_t count, const float *gradient);

/* Counts the time from `begin` to now as waited, and shows it in the trace. */
void gg_strategy_waited(gg_strategy *strategy, double begin);

#endif
