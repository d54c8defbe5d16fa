/* Private to the room: the forms of GossipGraD, a file each. Each `create` is collective and allocates the state's
 * arenas; its ranks are those of the transport, which with `hierarchical` are the nodes. */
#ifndef GG_EXCHANGE_PARTS_GOSSIP_FORMS_H
#define GG_EXCHANGE_PARTS_GOSSIP_FORMS_H

#include "exchange/strategy.h"

gg_status gg_gossip_weights_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);
gg_status gg_gossip_gradients_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);
gg_status gg_gossip_push_sum_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);
/* With compression; at most GG_MOST_EDGES partners a rank. */
gg_status gg_gossip_edges_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);
/* The one of these that the options ask for. */
gg_status gg_gossip_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);
/* Reduces gradients inside a node, and makes gossip of these between the nodes (layerwise_allreduce.c). */
gg_status gg_hierarchical_gossip_create(const gg_strategy_options *options, const gg_strategy_env *env,
                                        gg_strategy **out);

#endif
