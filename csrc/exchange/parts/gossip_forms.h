/* Private to the room: the forms of GossipGraD, one a file. Each `create` is collective and allocates the state's
 * arenas. Its ranks are those of the transport; with `hierarchical` these are the nodes. */
#ifndef GG_EXCHANGE_PARTS_GOSSIP_FORMS_H
#define GG_EXCHANGE_PARTS_GOSSIP_FORMS_H

#include "exchange/strategy.h"

gg_status gg_gossip_weights_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);
gg_status gg_gossip_gradients_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);
gg_status gg_gossip_push_sum_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);
/* With compression; max GG_MAX_EDGES partners a rank. */
gg_status gg_gossip_edges_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);
/* Creates the form selected by `options`. */
gg_status gg_gossip_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);
/* Reduces gradients inside a node, and gossips the sums between nodes (layerwise_allreduce.c). */
gg_status gg_hierarchical_gossip_create(const gg_strategy_options *options, const gg_strategy_env *env,
                                        gg_strategy **out);

#endif
