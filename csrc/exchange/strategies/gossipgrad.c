/* GossipGraD: its options, and what its exchanges cost. The forms in which it exchanges are in files of their own
 * (gossip_forms.h). */
#include "exchange/parts/gossip_forms.h"
#include "exchange/types.h"

/* With compression every edge of the schedule has copies of the weights: what does not go with them. */
static gg_status check_compressed(const gg_strategy_options *options) {
    if (!(options->mix_gamma >= 0 && options->mix_gamma <= 0.5))
        return gg_fail(GG_ERROR_ARGUMENT, "mix_gamma: %g; allowed are 0 to 0.5, and 0 means 0.5", options->mix_gamma);
    if (!options->compression.active) return GG_OK;
    if (options->hierarchical || options->push_sum)
        return gg_fail(GG_ERROR_ARGUMENT, "%s: True with compression; allowed is False",
                       options->hierarchical ? "hierarchical" : "push_sum");
    if (options->exchange != GG_EXCHANGE_WEIGHTS)
        return gg_fail(GG_ERROR_ARGUMENT, "exchange: only weights have copies for compression; allowed is 'weights'");
    if (options->mix != GG_MIX_DISPLACEMENT)
        return gg_fail(GG_ERROR_ARGUMENT, "mix: 'halves' with compression; allowed is 'displacement'");
    if (options->staleness != 0)
        return gg_fail(GG_ERROR_ARGUMENT, "staleness: %d with compression; allowed is 0", options->staleness);
    if (options->wire != GG_FLOAT32)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "wire_dtype: 'bfloat16' with compression, which says how values travel; allowed is "
                       "'float32'");
    if (options->compression.selection != GG_SELECTION_LOCAL)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "selection: 'cyclic' with GossipGraD, where nothing is summed; allowed is 'local'");
    return GG_OK;
}

static gg_status gossipgrad_check(const gg_strategy_options *options, int ranks) {
    (void)ranks;
    if (options->staleness != 0 && options->staleness != 1)
        return gg_fail(GG_ERROR_ARGUMENT, "staleness: %d; allowed are 0 and 1", options->staleness);
    if (options->push_sum && options->exchange == GG_EXCHANGE_GRADIENTS)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "push_sum: True with exchange 'gradients'; allowed are 'weights+momentum' and 'weights'");
    if (options->push_sum && options->mix == GG_MIX_HALVES)
        return gg_fail(GG_ERROR_ARGUMENT, "push_sum: True with mix 'halves'; allowed is 'displacement'");
    if (options->slices > 1 && options->compression.active)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "slices: %d with compression, which needs a copy of whole weights; allowed is 1",
                       options->slices);
    if (options->slices < 0) return gg_fail(GG_ERROR_ARGUMENT, "slices: %d; must be at least 1", options->slices);
    if (options->slices > 1 && options->exchange == GG_EXCHANGE_GRADIENTS)
        return gg_fail(
            GG_ERROR_ARGUMENT,
            "slices: %d with exchange 'gradients', which pulls no replicas together; allowed are 'weights+momentum' "
            "and 'weights'",
            options->slices);
    GG_TRY(check_compressed(options));
    return gg_strategy_check_sizes(options);
}

static gg_status gossipgrad_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    return options->hierarchical ? gg_hierarchical_gossip_create(options, env, out)
                                 : gg_gossip_create(options, env, out);
}

static gg_exchange_cost gossipgrad_cost(const gg_strategy_options *options, int ranks, int moments) {
    if (options->compression.active) /* small messages, whole buckets */
        return (gg_exchange_cost){.copies = 0.05, .messages = 1, .hops = 1};
    const double arenas = options->exchange == GG_EXCHANGE_WEIGHTS_MOMENTUM ? 1.0 + moments : 1.0;
    (void)ranks;
    return (gg_exchange_cost){.copies = arenas * gg_wire_part(options) / (options->slices > 1 ? options->slices : 1),
                              .messages = arenas,
                              .hops = 1,
                              .hidden = options->staleness == 1};
}

const gg_strategy_type gg_strategy_gossipgrad = {.name = "gossipgrad",
                                                 .check = gossipgrad_check,
                                                 .create = gossipgrad_create,
                                                 .cost = gossipgrad_cost,
                                                 .keeps_nodes_equal = GG_EQUAL_REPLICAS};
