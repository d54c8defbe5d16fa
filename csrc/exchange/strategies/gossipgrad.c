/* GossipGraD: its options, and the cost of its exchanges. Its forms have their own files (gossip_forms.h). */
#include <string.h>

#include "exchange/parts/gossip_forms.h"
#include "exchange/types.h"

/* Refuses options that do not go with the copies of the weights, one an edge of the schedule, that compression needs.
 */
static gg_status check_compressed(const gg_strategy_options *options) {
    if (!options->compression.active) return GG_OK;
    if (options->gossip.hierarchical || options->gossip.push_sum)
        return gg_fail(GG_ERROR_ARGUMENT, "%s: True with compression; allowed is False",
                       options->gossip.hierarchical ? "hierarchical" : "push_sum");
    if (options->gossip.exchange != GG_EXCHANGE_WEIGHTS)
        return gg_fail(GG_ERROR_ARGUMENT, "exchange: only weights have copies for compression; allowed is 'weights'");
    if (options->gossip.staleness != 0)
        return gg_fail(GG_ERROR_ARGUMENT, "staleness: %d with compression; allowed is 0", options->gossip.staleness);
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
    if (options->gossip.push_sum && options->gossip.exchange == GG_EXCHANGE_GRADIENTS)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "push_sum: True with exchange 'gradients'; allowed are 'weights+momentum' and 'weights'");
    if (options->gossip.staleness != 0 && options->gossip.exchange == GG_EXCHANGE_GRADIENTS)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "staleness: %d with exchange 'gradients'; allowed is 0, or exchange 'weights+momentum' or "
                       "'weights'",
                       options->gossip.staleness);
    if (options->gossip.slices > 1 && options->compression.active)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "slices: %d with compression, which needs a copy of whole weights; allowed is 1",
                       options->gossip.slices);
    if (options->gossip.slices > 1 && options->gossip.exchange == GG_EXCHANGE_GRADIENTS)
        return gg_fail(
            GG_ERROR_ARGUMENT,
            "slices: %d with exchange 'gradients', which pulls no replicas together; allowed are 'weights+momentum' "
            "and 'weights'",
            options->gossip.slices);
    GG_TRY(check_compressed(options));
    return gg_strategy_check_sizes(options, ranks);
}

static gg_status gossipgrad_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    return options->gossip.hierarchical ? gg_hierarchical_gossip_create(options, env, out)
                                        : gg_gossip_create(options, env, out);
}

static gg_exchange_cost gossipgrad_cost(const gg_strategy_options *options, int ranks, int moments) {
    if (options->compression.active) /* small messages, whole buckets */
        return (gg_exchange_cost){.copies = 0.05, .messages = 1, .hops = 1};
    const double arenas = options->gossip.exchange == GG_EXCHANGE_WEIGHTS_MOMENTUM ? 1.0 + moments : 1.0;
    (void)ranks;
    return (gg_exchange_cost){.copies = arenas * gg_wire_part(options) /
                                        (options->gossip.slices > 1 ? options->gossip.slices : 1),
                              .messages = arenas,
                              .hops = 1,
                              .hidden = options->gossip.staleness == 1};
}

static bool same_partners(const gg_schedule_options *a, const gg_schedule_options *b) {
    if (a->topology != b->topology || a->rotate != b->rotate || a->permutations != b->permutations) return false;
    if (a->topology != GG_TOPOLOGY_TABLE) return true;
    return a->rows == b->rows && a->columns == b->columns &&
           memcmp(a->table, b->table, (size_t)(a->rows * a->columns) * sizeof *a->table) == 0;
}

static bool gossipgrad_goes_on(const gg_strategy_options *a, const gg_strategy_options *b, bool residues) {
    const gg_gossip_options *x = &a->gossip, *y = &b->gossip;
    if (!residues && (x->push_sum != y->push_sum || x->slices != y->slices)) return false;
    return x->hierarchical == y->hierarchical && x->ranks_per_node == y->ranks_per_node &&
           same_partners(&x->schedule, &y->schedule);
}

static const char *gossipgrad_needs_all(const gg_strategy_options *options) {
    if (options->gossip.hierarchical) return "hierarchical=True";
    if (options->gossip.schedule.topology == GG_TOPOLOGY_TABLE) return "a topology given as a table";
    return NULL;
}

static int gossipgrad_node_ranks(const gg_strategy_options *options) {
    return options->gossip.hierarchical ? options->gossip.ranks_per_node : 1;
}

/* Links inside a node and between nodes differ, and slices are cut out of buckets. */
static bool gossipgrad_modelled(const gg_strategy_options *options) {
    return !options->gossip.hierarchical && options->gossip.slices <= 1;
}

static const char *const exchange_names[GG_EXCHANGE_COUNT] = {"weights+momentum", "weights", "gradients"};

static const gg_option options[] = {
    GG_OPTIONS_PARTNERS,
    GG_STRATEGY_OPTION(GG_OPTION_INT, "staleness", gossip.staleness,
                       "steps from sending to mixing; 1 hides the exchange behind a whole step",
                       .bounds = GG_FROM_TO(0, 1)),
    GG_STRATEGY_NAMES("exchange", gossip.exchange, "what partners send", exchange_names),
    GG_STRATEGY_OPTION(GG_OPTION_INT, "slices", gossip.slices,
                       "exchange one of this many slices of every bucket a step", .bounds = GG_FROM_TO(1, INT_MAX),
                       .unset = "1, with --exchange slices 8"),
    GG_STRATEGY_FLAG("hierarchical", gossip.hierarchical, "all-reduce inside a node, gossip between nodes", false),
    GG_STRATEGY_OPTION(GG_OPTION_INT, "ranks_per_node", gossip.ranks_per_node,
                       "with --hierarchical: the size of a node", .bounds = GG_FROM_TO(1, INT_MAX),
                       .unset = "the ranks that share memory"),
    GG_OPTION_COLLECTIVES,
    GG_OPTION_PUSH_SUM(gossip.push_sum),
    GG_OPTION_WIRE,
    GG_OPTION_BUCKET(GG_TUNED),
    GG_OPTION_CHUNK(GG_TUNED),
    GG_STRATEGY_OPTION(GG_OPTION_DOUBLE, "mix_gamma", gossip.mix_gamma,
                       "with --compression: the share of the partners in a mix", .bounds = GG_ABOVE_TO(0, 0.5),
                       .unset = "0.5"),
    {.name = NULL}};

const gg_strategy_type gg_strategy_gossipgrad = {.name = "gossipgrad",
                                                 .options = options,
                                                 .check = gossipgrad_check,
                                                 .create = gossipgrad_create,
                                                 .cost = gossipgrad_cost,
                                                 .node_ranks = gossipgrad_node_ranks,
                                                 .modelled = gossipgrad_modelled,
                                                 .goes_on = gossipgrad_goes_on,
                                                 .needs_all = gossipgrad_needs_all,
                                                 .in_loops = true,
                                                 .partnered = true};
