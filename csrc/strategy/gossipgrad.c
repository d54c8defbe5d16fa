/* GossipGraD: its options, and what its exchanges cost. The forms in which it exchanges are in files of their own
 * (gossip_forms.h). */
#include "strategy/gossip_forms.h"
#include "strategy/types.h"

static gg_status gossipgrad_check(const gg_strategy_options *options, int ranks) {
    gg_status status = GG_OK;
    (void)ranks;
    if (options->staleness != 0 && options->staleness != 1)
        GG_FAIL(GG_ERROR_ARGUMENT, "staleness: %d; allowed are 0 and 1", options->staleness);
    if (options->push_sum && options->exchange == GG_EXCHANGE_GRADIENTS)
        GG_FAIL(GG_ERROR_ARGUMENT,
                "push_sum: True with exchange 'gradients'; allowed are 'weights+momentum' and 'weights'");
    if (options->push_sum && options->mix == GG_MIX_HALVES)
        GG_FAIL(GG_ERROR_ARGUMENT, "push_sum: True with mix 'halves'; allowed is 'displacement'");
    if (options->slices > 1 && options->compression.active)
        GG_FAIL(GG_ERROR_ARGUMENT, "slices: %d with compression, which needs a copy of whole weights; allowed is 1",
                options->slices);
    if (options->slices < 0) GG_FAIL(GG_ERROR_ARGUMENT, "slices: %d; must be at least 1", options->slices);
    if (options->slices > 1 && options->exchange == GG_EXCHANGE_GRADIENTS)
        GG_FAIL(
            GG_ERROR_ARGUMENT,
            "slices: %d with exchange 'gradients', which pulls no replicas together; allowed are 'weights+momentum' "
            "and 'weights'",
            options->slices);
    status = gg_strategy_check_sizes(options);
cleanup:
    return status;
}

static gg_status gossipgrad_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    return options->hierarchical ? gg_hierarchical_gossip_create(options, env, out)
                                 : gg_gossip_create(options, env, out);
}

static gg_exchange_cost gossipgrad_cost(const gg_strategy_options *options, int ranks, int moments) {
    const double arenas = options->exchange == GG_EXCHANGE_WEIGHTS_MOMENTUM ? 1.0 + moments : 1.0;
    (void)ranks;
    return (gg_exchange_cost){.copies = arenas * gg_wire_part(options) / (options->slices > 1 ? options->slices : 1),
                              .messages = arenas,
                              .hops = 1,
                              .hidden = options->staleness == 1};
}

const gg_strategy_type gg_strategy_gossipgrad = {
    .name = "gossipgrad", .check = gossipgrad_check, .create = gossipgrad_create, .cost = gossipgrad_cost};
