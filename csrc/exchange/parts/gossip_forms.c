#include "exchange/parts/gossip_forms.h"

#include "exchange/parts/common.h"

gg_status gg_gossip_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    if (gg_residue_wanted(options, env) != 0) return gg_gossip_edges_create(options, env, out);
    if (options->gossip.push_sum) return gg_gossip_push_sum_create(options, env, out);
    return options->gossip.exchange == GG_EXCHANGE_GRADIENTS ? gg_gossip_gradients_create(options, env, out)
                                                             : gg_gossip_weights_create(options, env, out);
}
