/* Private to the room: the row of each strategy, for the factory, the tuning and the options of Python. Each strategy's
 * file defines one constant gg_strategy_type. */
#ifndef GG_EXCHANGE_TYPES_H
#define GG_EXCHANGE_TYPES_H

#include "base/options.h"
#include "exchange/parts/common.h"

/* Cost of a bucket's exchange in the model of tuning.h. */
typedef struct gg_exchange_cost {
    double copies;   /* bytes on the wire per byte of the arena */
    double messages; /* of a rank per chunk */
    double hops;     /* in sequence */
    bool at_end;     /* the backward pass ends after all buckets have arrived; else each layer waits for its own */
    bool hidden;     /* no layer waits */
} gg_exchange_cost;

typedef struct gg_strategy_type {
    const char *name;         /* on the command line, in reports and checkpoints */
    const gg_option *options; /* of a gg_strategy_options; gg_strategy_common has the options of all strategies */
    /* Checks the options for `ranks` ranks: errors name the keyword and the allowed values. NULL means nothing to
     * check. */
    gg_status (*check)(const gg_strategy_options *options, int ranks);
    /* Allocates the state's arenas. Collective. The options are checked. *out is NULL after a failure. */
    gg_status (*create)(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);
    /* Cost with an optimiser of `moments` moments. NULL means no buckets and chunks that may be tuned. */
    gg_exchange_cost (*cost)(const gg_strategy_options *options, int ranks, int moments);
    /* Number of ranks that train, the first ones. Accepts any options. NULL means all. */
    int (*workers)(const gg_strategy_options *options, int ranks);
    /* Set of arena kinds (1u << kind) that stay equal on all ranks after each step if they were equal at the start.
     * True for weights and moments if ranks apply equal gradients, or if each updates its slices and the others copy
     * them. */
    unsigned keeps_equal;
    /* Ranks of each node with equal replicas, as gg_nodes_create takes it; 1 means no nodes. NULL means that the
     * strategy knows no nodes. */
    int (*node_ranks)(const gg_strategy_options *options);
    /* True if `cost` models all exchanges with these options. NULL means yes. */
    bool (*modelled)(const gg_strategy_options *options);
    /* True if the strategy's memory besides arenas stays valid from options `a` to options `b`: push-sum's scalars, or
     * with `residues` the residues, bases and copies. NULL means yes. */
    bool (*goes_on)(const gg_strategy_options *a, const gg_strategy_options *b, bool residues);
    /* Returns the option, with its value, that keeps the strategy from going on without a rank that has died; NULL if
     * none does. Not set means that it needs all ranks. */
    const char *(*needs_all)(const gg_strategy_options *options);
    bool in_loops;       /* also goes on where callers make the steps themselves (gg_peers_change_view) */
    bool local_momentum; /* sums gradients; with compression each rank may keep its own momentum of them */
    bool partnered;      /* has options.gossip.schedule, with Python's "topology" and GG_OPTIONS_PARTNERS */
} gg_strategy_type;

#define GG_STRATEGY_ROW(kind, row) extern const gg_strategy_type gg_strategy_##row;
GG_STRATEGIES(GG_STRATEGY_ROW)
#undef GG_STRATEGY_ROW

#define GG_EQUAL_REPLICAS (1u << GG_ARENA_WEIGHT | 1u << GG_ARENA_MOMENT)

const gg_strategy_type *gg_strategy_type_of(gg_strategy_kind kind);

/* Options of several strategies. */
#define GG_STRATEGY_OPTION(type_, name_, field, help_, ...)                                                            \
    { .name = (name_), .help = (help_), .type = (type_), .offset = offsetof(gg_strategy_options, field), __VA_ARGS__ }
#define GG_STRATEGY_FLAG(name, field, help, on) GG_STRATEGY_OPTION(GG_OPTION_FLAG, name, field, help, .fallback = {on})
#define GG_STRATEGY_NAMES(name, field, help, list)                                                                     \
    GG_STRATEGY_OPTION(GG_OPTION_NAME, name, field, help, .names = (list), .choices = sizeof(list) / sizeof *(list))
#define GG_OPTION_WIRE GG_STRATEGY_NAMES("wire_dtype", wire, "type of what is sent", gg_wire_names)
#define GG_OPTION_COLLECTIVES                                                                                          \
    GG_STRATEGY_NAMES("collectives", collectives, "who adds over all ranks: this package, or the MPI library",         \
                      gg_collectives_names)
#define GG_OPTION_BUCKET(otherwise)                                                                                    \
    GG_STRATEGY_OPTION(GG_OPTION_SIZE, "bucket_bytes", bucket_bytes,                                                   \
                       "layers are joined to buckets of at least this size", .bounds = GG_AT_LEAST(1),                 \
                       .unset = (otherwise))
#define GG_OPTION_CHUNK(otherwise)                                                                                     \
    GG_STRATEGY_OPTION(GG_OPTION_SIZE, "chunk_bytes", chunk_bytes, "the longest message", .bounds = GG_AT_LEAST(1),    \
                       .unset = (otherwise))
#define GG_OPTIONS_PARTNERS                                                                                            \
    GG_STRATEGY_FLAG("rotate", gossip.schedule.rotate, "ranks change places after each cycle of partners", true),      \
        GG_STRATEGY_OPTION(GG_OPTION_INT, "permutations", gossip.schedule.permutations,                                \
                           "with --rotate: so many permutations of the ranks take turns",                              \
                           .bounds = GG_FROM_TO(1, INT_MAX), .unset = "a new one after each cycle")
#define GG_OPTION_PUSH_SUM(field)                                                                                      \
    GG_STRATEGY_FLAG("push_sum", field, "preserve the mean of the replicas, whoever sends to whom", false)
#define GG_OPTION_SERVERS                                                                                              \
    GG_STRATEGY_OPTION(GG_OPTION_INT, "servers", centre.servers, "the last N ranks hold the centre", .fallback = {1},  \
                       .bounds = GG_FROM_TO(1, 4096)),                                                                 \
        GG_STRATEGY_FLAG("dedicated", centre.dedicated, "these ranks do not train", false)
#define GG_OPTION_PERIOD(field, steps, help)                                                                           \
    GG_STRATEGY_OPTION(GG_OPTION_INT64, "period", field, help, .fallback = {steps}, .bounds = GG_AT_LEAST(1))
#define GG_TUNED "tuned at the start"

extern const gg_option gg_strategy_common[];
/* Size of a value on the wire as a fraction of float32's. */
static inline double gg_wire_part(const gg_strategy_options *options) {
    return (double)gg_codec_of(options->wire)->size / sizeof(float);
}

#endif
