/* Private to the room: what the factory, the tuning and the options of Python know of each strategy: one constant
 * gg_strategy_type a strategy, in the strategy's file. */
#ifndef GG_EXCHANGE_TYPES_H
#define GG_EXCHANGE_TYPES_H

#include "base/options.h"
#include "exchange/parts/common.h"

/* What the exchange of a bucket costs, as tuning.h models it. */
typedef struct gg_exchange_cost {
    double copies;   /* bytes on the wire for a byte of the arena */
    double messages; /* of a rank for a chunk */
    double hops;     /* one after the other */
    bool at_end;     /* the backward pass ends when all buckets are there; else a layer waits for its own */
    bool hidden;     /* no layer waits */
} gg_exchange_cost;

typedef struct gg_strategy_type {
    const char *name;         /* on the command line, in reports and checkpoints */
    const gg_option *options; /* of a gg_strategy_options; gg_strategy_common are those of all */
    /* Checks the options for so many ranks: errors name the keyword and what is allowed. NULL: nothing to check. */
    gg_status (*check)(const gg_strategy_options *options, int ranks);
    /* Collective; allocates the state's arenas. The options are checked. *out is NULL after a failure. */
    gg_status (*create)(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);
    /* Of an optimiser with so many moments. NULL: no buckets and chunks that may be tuned. */
    gg_exchange_cost (*cost)(const gg_strategy_options *options, int ranks, int moments);
    /* How many of `ranks` train, the first ones. Any options. NULL: all. */
    int (*workers)(const gg_strategy_options *options, int ranks);
    /* A set of arenas' kinds, 1u << kind, that are the same on all ranks after each step if they were before the first.
     * Weights and moments: the ranks update with the same gradients, or each its own slices, which the others copy. */
    unsigned keeps_equal;
    /* Ranks of each node, as gg_nodes_create takes it, whose ranks have equal replicas; 1: there are no nodes. NULL:
     * the strategy knows none. */
    int (*node_ranks)(const gg_strategy_options *options);
    /* Whether `cost` is that of all exchanges with these options. NULL: yes. */
    bool (*modelled)(const gg_strategy_options *options);
    /* Whether what strategies of this kind keep besides arenas goes on from options `a` to options `b`: scalars of
     * push-sum, or with `residues` residues, bases and copies. NULL: yes. */
    bool (*goes_on)(const gg_strategy_options *a, const gg_strategy_options *b, bool residues);
    bool local_momentum; /* it sums gradients, which may have each rank's own momentum where they are compressed */
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
/* The bytes of a value on the wire, as a part of float32's. */
static inline double gg_wire_part(const gg_strategy_options *options) {
    return (double)gg_codec_of(options->wire)->size / sizeof(float);
}

#endif
