/* How replicas are synchronised. A strategy sees these calls and flat slices of arenas, and nothing else.
 *
 *   begin(step)   before the forward pass
 *   need(layer)   before the layer's forward: its weights are current when this returns
 *   ready(layer)  in the backward pass: its gradient is final and its weights are used no more in this step
 *   poll()        between nodes: let messages move and mix what has arrived
 *   end()         after the backward pass
 *   settle()      collective: completes and mixes all that is in flight; afterwards the state's arenas are current.
 *                 Evaluation, checkpoints and the end call it.
 * A strategy that computes the gradients of some linear layers' weights itself (gg_strategy_fc_hooks) is given,
 * besides, the input of each before need, and the error of its output before ready. The strategy owns the state's
 * arenas and what is exchanged, and calls the optimiser where it updates. One rank, one
 * thread.
 */
#ifndef GG_EXCHANGE_STRATEGY_H
#define GG_EXCHANGE_STRATEGY_H

#include "base/trace.h"
#include "comm/allreduce.h"
#include "comm/schedule.h"
#include "comm/transport.h"
#include "exchange/codec/compression.h"
#include "exchange/optim/updater.h"

/* All strategies: kind GG_STRATEGY_..., row gg_strategy_... in its own file. */
#define GG_STRATEGIES(X)                                                                                               \
    X(GOSSIPGRAD, gossipgrad)                                                                                          \
    X(ALLREDUCE, allreduce)                                                                                            \
    X(NO_EXCHANGE, no_exchange)                                                                                        \
    X(LAYERWISE_ALLREDUCE, layerwise_allreduce)                                                                        \
    X(PERIODIC_ALLREDUCE, periodic_allreduce)                                                                          \
    X(PULL_GOSSIP, pull_gossip)                                                                                        \
    X(PUSH_GOSSIP, push_gossip)                                                                                        \
    X(OVERLAPPED_AVERAGING, overlapped_averaging)                                                                      \
    X(ELASTIC_AVERAGING, elastic_averaging)                                                                            \
    X(PARAMETER_SERVER, parameter_server)                                                                              \
    X(DILOCO, diloco)                                                                                                  \
    X(NOLOCO, noloco)

typedef enum gg_strategy_kind {
#define GG_STRATEGY_KIND(kind, row) GG_STRATEGY_##kind,
    GG_STRATEGIES(GG_STRATEGY_KIND)
#undef GG_STRATEGY_KIND
        GG_STRATEGY_COUNT
} gg_strategy_kind;

typedef enum gg_exchanged {
    GG_EXCHANGE_WEIGHTS_MOMENTUM = 0,
    GG_EXCHANGE_WEIGHTS,
    GG_EXCHANGE_GRADIENTS,
    GG_EXCHANGE_COUNT
} gg_exchanged;
typedef enum gg_mix { GG_MIX_DISPLACEMENT = 0, GG_MIX_HALVES, GG_MIX_COUNT } gg_mix;

/* OverlappedAveraging: of which linear layers the ranks exchange inputs and errors instead of the weight's gradient. */
typedef enum gg_partition_fc {
    GG_PARTITION_CHEAPER = 0, /* in each step of those where that sends fewer bytes */
    GG_PARTITION_ALL,
    GG_PARTITION_NONE,
    GG_PARTITION_COUNT
} gg_partition_fc;

/* Options of one strategy, or of several that have them alike. */
typedef struct gg_gossip_options { /* GossipGraD */
    gg_schedule_options schedule;
    bool hierarchical;  /* all-reduce of gradients inside a node, gossip between nodes */
    int ranks_per_node; /* with hierarchical; 0: the ranks that share memory */
    int staleness;      /* 0 or 1 */
    gg_exchanged exchange;
    gg_mix mix;
    int slices;       /* in step t slice t mod `slices` of every bucket is exchanged; 0 means 1 */
    bool push_sum;    /* weights carry a mass, so that averaging preserves their mean */
    double mix_gamma; /* with compression: the share of the partners in a mix; 0: a half */
} gg_gossip_options;

typedef struct gg_random_options { /* pull and push gossip */
    int64_t interval;              /* steps from one exchange to the next */
    double probability;            /* with which an exchange that is due takes place */
    bool push_sum;
} gg_random_options;

typedef struct gg_periodic_options {
    int64_t period; /* steps from one averaging to the next; 0: ceil(log2 of the ranks), at least 1 */
} gg_periodic_options;

typedef struct gg_overlapped_options {
    bool overlap; /* exchange while computing */
    gg_partition_fc partition_fc;
} gg_overlapped_options;

typedef struct gg_centre_options { /* elastic averaging, parameter server */
    int64_t period;
    bool synchronous; /* all ranks at once */
    double alpha;     /* the force; 0: the strategy's choice */
    int servers;      /* ranks that the centre lies on */
    bool dedicated;   /* they only serve */
} gg_centre_options;

typedef struct gg_outer_options { /* DiLoCo, NoLoCo */
    int64_t period;
    double outer_lr, outer_momentum;
    bool outer_nesterov;
    int fragments; /* of the model, which take turns */
    int64_t delay; /* steps that hide an exchange; -1: 0 with one fragment, else period / fragments */
    int group;     /* NoLoCo: ranks that average */
} gg_outer_options;

typedef struct gg_strategy_options {
    gg_strategy_kind kind;
    size_t bucket_bytes;        /* layers are joined to buckets of at least this size; 0: gg_strategy_tune */
    size_t chunk_bytes;         /* a bucket travels in pieces of at most this size; likewise, before creation */
    gg_dtype wire;              /* of model data in messages: GG_FLOAT32, or GG_BFLOAT16 for half the bytes */
    gg_collectives collectives; /* of sums over all ranks, and with hierarchical over those of a node */
    bool shuffle_samples;       /* the ranks' samples move around a ring; the replica does it, for every strategy */
    gg_compression compression;
    union {
        gg_gossip_options gossip;
        gg_random_options random;
        gg_periodic_options periodic;
        gg_overlapped_options overlapped;
        gg_centre_options centre;
        gg_outer_options outer;
    };
} gg_strategy_options;

/* What a strategy works with; all of it outlives the strategy. */
typedef struct gg_strategy_env {
    gg_transport *transport;
    gg_device *device;
    gg_updater *updater; /* applies the optimiser */
    gg_state *state;     /* count set by the caller; the arenas are allocated by the strategy */
    const gg_arena_layout *layout;
    uint64_t seed;
    gg_trace *trace; /* NULL: off */
    /* The caller calls poll while it computes, and need of each layer in every step in which it has samples: waits may
     * reach from the end of one step into the next. */
    bool across_steps;
} gg_strategy_env;

typedef struct gg_strategy gg_strategy;

typedef struct gg_strategy_table {
    gg_status (*begin)(gg_strategy *strategy);
    gg_status (*need)(gg_strategy *strategy, int layer);
    gg_status (*ready)(gg_strategy *strategy, int layer);
    gg_status (*poll)(gg_strategy *strategy);
    gg_status (*end)(gg_strategy *strategy);
    gg_status (*settle)(gg_strategy *strategy);
    void (*destroy)(gg_strategy *strategy);
} gg_strategy_table;

/* Of a strategy that has a model of its own besides the replicas. Called when nothing is in flight. */
typedef struct gg_strategy_model {
    /* What is evaluated and saved instead of the mean of the replicas. Collective: the same on every rank. NULL: the
     * mean is. */
    gg_status (*read)(gg_strategy *strategy, float *out);
    /* Sets it where all ranks begin with, or are given, the same weights. */
    void (*write)(gg_strategy *strategy, const float *weights);
} gg_strategy_model;

/* Of a strategy that computes the gradients of some linear layers' weights itself, all of it or a part. The vectors are
 * read before the call returns. */
typedef struct gg_strategy_fc_hooks {
    /* *partitioned: the strategy computes this layer's gradient in this step; `error` is then called as well. */
    gg_status (*input)(gg_strategy *strategy, int layer, const gg_vectors *input, bool *partitioned);
    gg_status (*error)(gg_strategy *strategy, int layer, const gg_vectors *error);
} gg_strategy_fc_hooks;

struct gg_strategy {
    const gg_strategy_table *table;
    const gg_strategy_model *model;       /* NULL: none */
    const gg_strategy_fc_hooks *fc_hooks; /* NULL: it computes none */
    gg_strategy_env env;
    int64_t step;           /* the current training step; set by begin's caller */
    const float *share;     /* batch of each rank / samples of all ranks in this step; set by begin's caller */
    const int64_t *batch;   /* samples of each rank in this step; set by begin's caller */
    double exposed_seconds; /* waited in any call but poll, since creation */
    int64_t skipped;        /* exchanges skipped since creation because a rank lagged behind */
    const bool
        *fc_partitioned; /* of each layer: whether it has been partitioned in a step since creation; NULL: none */
    /* Updates use gradients that the strategy has averaged over ranks: it measures them itself where updates need norms
     * (gg_updater_measures). Else each rank's own gradients count, and `ready` is called when all of them are final and
     * measured. */
    bool averages_gradients;
    /* Weights are current when `end` returns, unless need_rows has been called in the step, and nothing more arrives in
     * them: between two steps the caller may write them. Else only after need, of their layer, or settle. */
    bool current_at_end;
    /* In place of `need` by a caller that can make rows of this layer's weight current as it reads them: where
     * rows->make is not NULL then, it does, before anything else of the strategy is called. A weight that is asked for
     * so in one step may be left for that in the next. NULL: there is none. */
    gg_status (*need_rows)(gg_strategy *strategy, int layer, gg_weight_rows *rows);
    /* What `need` waits for and `ready` begins, in whole buckets; NULL: layers do not matter. */
    const struct gg_buckets *buckets;
    /* `ready` alone reads a layer's gradient, and only by gg_updater_apply, from its first element to its last: it may
     * lie elsewhere (gg_lent), or be computed there (gg_gradient_source). */
    bool only_applies_gradients;
    /* Multiplies a copy of this rank's weights, `count` elements in the host's memory, by what they count in the mean
     * of the replicas, 1 on average over the ranks. Called when nothing is in flight. NULL: all count alike. */
    void (*weigh)(gg_strategy *strategy, float *weights);
    /* After an arena, given by its place in the state's list, has been loaded; NULL: nothing to do. */
    void (*loaded)(gg_strategy *strategy, int arena);
    int64_t loads; /* of arenas, since creation */
    /* Which slices of the summed gradient and of the optimiser's arenas each rank owns; NULL: every rank has all. */
    const struct gg_partition *partition;
    /* NULL: a residue always is what is still to be sent. Else it is that after this call, with nothing in flight. */
    void (*complete_residue)(gg_strategy *strategy);
    /* Of the last step's sum of gradients some was applied in pieces (gg_reduction_run): what the gradients' arena
     * holds there is undefined. Said alike on all devices, also on one that sums in the arena. */
    bool sum_in_pieces;
    const gg_compression_counts *compression_counts; /* of this rank; NULL: it compresses nothing */
};

/* Options of this kind with their defaults. */
gg_strategy_options gg_strategy_options_of(gg_strategy_kind kind);
/* Whether push-sum's scalars go on from options `a` to options `b`; and residues, bases and copies, but for what
 * compression says. */
bool gg_strategy_mixes_alike(const gg_strategy_options *a, const gg_strategy_options *b);
bool gg_strategy_sends_alike(const gg_strategy_options *a, const gg_strategy_options *b);
/* What gg_strategy_create checks of the options alone, on a group of so many ranks. */
gg_status gg_strategy_check(const gg_strategy_options *options, int ranks);
/* Creation is collective. Checks the options: errors name the keyword and what is allowed. */
gg_status gg_strategy_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);
void gg_strategy_destroy(gg_strategy *strategy);
/* On the command line, in reports and checkpoints. */
const char *gg_strategy_name(gg_strategy_kind kind);
/* How many of `size` ranks train: the first ones; the others are dedicated servers. Any options. */
int gg_strategy_workers(const gg_strategy_options *options, int size);
/* In nodes of how many of `size` ranks, as gg_nodes_create takes it, arenas of this kind are the same after each step:
 * the ranks of a node must begin with the same ones. `size`: all ranks; 1: none. */
int gg_strategy_keeps_equal(const gg_strategy_options *options, int size, gg_arena_kind arena);

/* Where updates need norms of a rank's own gradients: measures them, all of them final, and calls ready for every
 * layer, from the last to the first. */
gg_status gg_strategy_ready_all(gg_strategy *strategy);

/* Copies the arena at a place of the state's list, gathered from the ranks that own its slices, to `whole`, `count`
 * elements; the residue is each rank's own. Called when nothing is in flight. Collective: all ranks name the same
 * arena; `whole` may be NULL on ranks that only send. */
gg_status gg_strategy_gather(gg_strategy *strategy, int arena, float *whole);
/* Sets the weights, a moment or the residue from `count` elements, of which a rank copies the slices that it owns.
 * Called when nothing is in flight. */
void gg_strategy_load(gg_strategy *strategy, int arena, const float *whole);

#endif
