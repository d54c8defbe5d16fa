/* Strategies: how replicas are synchronised. A strategy sees these calls and flat slices of arenas, nothing else.
 *
 *   begin(step)   before the forward pass
 *   need(layer)   before the layer's forward: its weights are current when this returns
 *   ready(layer)  in the backward pass: its gradient is final and its weights are used no more in this step
 *   poll()        between nodes: lets messages move and mixes arrived ones
 *   end()         after the backward pass
 *   settle()      completes and mixes all that is in flight; the state's arenas are current afterwards. Collective.
 *                 Called by evaluation, checkpoints and the end.
 *
 * A strategy with gg_strategy_fc_hooks computes the weight gradients of some linear layers itself. It also receives the
 * input of each before need, and the error of its output before ready.
 *
 * The strategy owns the state's arenas and the messages, and calls the optimiser when it updates. It belongs to one
 * rank and is used by that rank's thread alone. */
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
    X(LAYERWISE_ALLREDUCE, layerwise_allreduce)                                                                        \
    X(PERIODIC_ALLREDUCE, periodic_allreduce)                                                                          \
    X(PULL_GOSSIP, pull_gossip)                                                                                        \
    X(PUSH_GOSSIP, push_gossip)                                                                                        \
    X(OVERLAPPED_AVERAGING, overlapped_averaging)                                                                      \
    X(ELASTIC_AVERAGING, elastic_averaging)                                                                            \
    X(PARAMETER_SERVER, parameter_server)                                                                              \
    X(DILOCO, diloco)                                                                                                  \
    X(NOLOCO, noloco)                                                                                                  \
    X(NO_EXCHANGE, no_exchange)                                                                                        \
    X(QUASI_GLOBAL, quasi_global)

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

/* OverlappedAveraging: linear layers whose inputs and errors the ranks exchange instead of the weight's gradient. */
typedef enum gg_partition_fc {
    GG_PARTITION_CHEAPER = 0, /* in each step the layers that send fewer bytes this way */
    GG_PARTITION_ALL,
    GG_PARTITION_NONE,
    GG_PARTITION_COUNT
} gg_partition_fc;

/* Options of one strategy, or shared by several. */
typedef struct gg_gossip_options { /* GossipGraD, QuasiGlobal */
    gg_schedule_options schedule;
    bool hierarchical;  /* all-reduce of gradients inside a node, gossip between nodes */
    int ranks_per_node; /* with hierarchical; 0 means the ranks that share memory */
    int staleness;      /* 0 or 1 */
    gg_exchanged exchange;
    int slices;       /* step t exchanges slice t mod `slices` of every bucket; 0 means 1 */
    bool push_sum;    /* weights carry a mass, so that averaging preserves their mean */
    double mix_gamma; /* with compression: the partners' share in a mix; 0 means a half */
    double mu;        /* QuasiGlobal: share of the former momentum */
} gg_gossip_options;

typedef struct gg_random_options { /* pull and push gossip */
    int64_t interval;              /* steps from one exchange to the next */
    double probability;            /* that a due exchange takes place */
    bool push_sum;
} gg_random_options;

typedef struct gg_periodic_options {
    int64_t period; /* steps from one averaging to the next; 0 means ceil(log2(ranks)), at least 1 */
} gg_periodic_options;

typedef struct gg_overlapped_options {
    bool overlap; /* exchange while computing */
    gg_partition_fc partition_fc;
} gg_overlapped_options;

typedef struct gg_centre_options { /* elastic averaging, parameter server */
    int64_t period;
    bool synchronous; /* all ranks at once */
    double alpha;     /* the force; 0 means the strategy's choice */
    int servers;      /* ranks that hold the centre */
    bool dedicated;   /* they only serve */
} gg_centre_options;

typedef struct gg_outer_options { /* DiLoCo, NoLoCo */
    int64_t period;
    double outer_lr, outer_momentum;
    bool outer_nesterov;
    int fragments; /* of the model, which are exchanged in turn */
    int64_t delay; /* steps that hide an exchange; -1 means 0 with one fragment, else period / fragments */
    int group;     /* NoLoCo: ranks that average */
} gg_outer_options;

typedef struct gg_strategy_options {
    gg_strategy_kind kind;
    size_t bucket_bytes; /* layers are joined to buckets of at least this size; 0 means gg_strategy_tune chooses */
    size_t chunk_bytes;  /* max bytes of a message; 0 as for bucket_bytes. Both are set before creation */
    gg_dtype wire;       /* type of model data in messages: GG_FLOAT32, or GG_BFLOAT16 for half the bytes */
    gg_collectives collectives; /* for sums over all ranks, and with hierarchical over those of a node */
    bool shuffle_samples;       /* the ranks' samples move around a ring; done by the replica for every strategy */
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

/* Surroundings of a strategy; all of them outlive it. */
typedef struct gg_strategy_env {
    gg_transport *transport;
    gg_device *device;
    gg_updater *updater; /* applies the optimiser */
    gg_state *state;     /* count set by the caller; the arenas are allocated by the strategy */
    const gg_arena_layout *layout;
    uint64_t seed;
    gg_trace *trace; /* NULL means off */
    bool mortal;     /* ranks may die while the others go on (gg_strategy.cancel) */
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

/* For a strategy with its own model besides the replicas. Called when nothing is in flight. */
typedef struct gg_strategy_model {
    /* Reads the model that is evaluated and saved instead of the replicas' mean. Collective: equal on every rank. NULL
     * means that the mean is. */
    gg_status (*read)(gg_strategy *strategy, float *out);
    /* Sets the model when all ranks begin with equal weights or are given them. */
    void (*write)(gg_strategy *strategy, const float *weights);
} gg_strategy_model;

/* For a strategy that computes weight gradients of some linear layers itself, wholly or in part. The vectors are read
 * before the call returns. */
typedef struct gg_strategy_fc_hooks {
    /* *partitioned: the strategy computes this layer's gradient in this step; `error` is then called too. */
    gg_status (*input)(gg_strategy *strategy, int layer, const gg_vectors *input, bool *partitioned);
    gg_status (*error)(gg_strategy *strategy, int layer, const gg_vectors *error);
} gg_strategy_fc_hooks;

struct gg_strategy {
    const gg_strategy_table *table;
    const gg_strategy_model *model;       /* NULL means none */
    const gg_strategy_fc_hooks *fc_hooks; /* NULL means that it computes none */
    gg_strategy_env env;
    int64_t step;               /* the current training step; set by begin's caller */
    const float *share;         /* batch of each rank / samples of all ranks in this step; set by begin's caller */
    const int64_t *batch;       /* samples of each rank in this step; set by begin's caller */
    double exposed_seconds;     /* of waits in any call but poll, since creation */
    int64_t skipped;            /* exchanges skipped since creation because a rank lagged behind */
    const bool *fc_partitioned; /* one a layer: true after a step in which it was partitioned; NULL means none */
    /* True if updates use gradients that the strategy has averaged over ranks. The strategy then measures them itself
     * if updates need norms (gg_updater_measures). If false, each rank's own gradients count, and `ready` is called
     * after all of them are final and measured. */
    bool averages_gradients;
    /* True if weights are current when `end` returns, and no message writes them later. The caller may then write
     * weights between two steps. If false, weights are current only after need of their layer, or after settle. */
    bool current_at_end;
    /* Whole buckets, for which `need` waits and which `ready` begins. NULL means that layers do not matter. */
    const struct gg_buckets *buckets;
    /* True if only `ready` reads a layer's gradient, by gg_updater_apply, from its first element to its last. The
     * gradient may then lie elsewhere (gg_lent), or be computed as it is read (gg_gradient_source). */
    bool only_applies_gradients;
    /* Multiplies a copy of this rank's weights, `count` elements in host memory, by their weight in the mean of the
     * replicas, 1 on average over the ranks. Called when nothing is in flight. NULL means equal weights. */
    void (*weigh)(gg_strategy *strategy, float *weights);
    /* Called after an arena, given by its place in the state's list, was loaded. NULL means nothing to do. */
    void (*loaded)(gg_strategy *strategy, int arena);
    int64_t loads; /* of arenas, since creation */
    /* Slices of the summed gradient and of the optimiser's arenas that each rank owns. NULL means that every rank has
     * all. */
    const struct gg_partition *partition;
    /* Reduces the residue to the unsent values; called with nothing in flight. NULL means that the residue never holds
     * others. */
    void (*complete_residue)(gg_strategy *strategy);
    /* True if the gradient arena is undefined because the last step's sum was consumed in pieces (gg_reduction_run).
     * Equal on all devices, also on one that sums in the arena. */
    bool sum_in_pieces;
    const gg_compression_counts *compression_counts; /* of this rank; NULL means that it compresses nothing */
    /* The transport has lost ranks since the strategy before this one ended; this rank has loaded its arenas. NULL
     * means nothing to do. */
    void (*regrouped)(gg_strategy *strategy);
    /* Cancels all that is in flight. NULL means that no death breaks a step. If set, and env.mortal, a step whose
     * messages a death has broken fails with GG_ERROR_PEER before it has changed weights or moments: such a strategy
     * updates when all its sums are complete. Residues, and with local momentum the moments, may have changed. */
    void (*cancel)(gg_strategy *strategy);
    struct gg_receipts *receipts; /* of messages from single ranks; NULL means that it skips no dead rank */
};

/* Returns options of this kind with their defaults. */
gg_strategy_options gg_strategy_options_of(gg_strategy_kind kind);
/* True if push-sum's scalars stay valid from options `a` to options `b`; the second: if residues, bases and copies do,
 * compression's options aside. */
bool gg_strategy_mixes_alike(const gg_strategy_options *a, const gg_strategy_options *b);
bool gg_strategy_sends_alike(const gg_strategy_options *a, const gg_strategy_options *b);
/* gg_strategy_create's checks that need only the options and the number of ranks. */
gg_status gg_strategy_check(const gg_strategy_options *options, int ranks);
/* Checks the options: errors name the keyword and the allowed values. Creation is collective. */
gg_status gg_strategy_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out);
void gg_strategy_destroy(gg_strategy *strategy);
/* GG_ERROR_ARGUMENT for a strategy that cannot go on without a rank that has died; names the option in the way.
 * in_loops: where callers make the steps themselves. */
gg_status gg_strategy_check_survival(const gg_strategy_options *options, bool in_loops);
/* The name on the command line, in reports and checkpoints. */
const char *gg_strategy_name(gg_strategy_kind kind);
/* Number of the `size` ranks that train: the first ones; the others are dedicated servers. Accepts any options. */
int gg_strategy_workers(const gg_strategy_options *options, int size);
/* Returns k, as gg_nodes_create takes it: after each step every k ranks hold identical copies of this kind of arena, if
 * they began with identical ones. 1 means none, `size` means all. */
int gg_strategy_keeps_equal(const gg_strategy_options *options, int size, gg_arena_kind arena);

/* For updates that need norms of a rank's own gradients, all final: measures them, then calls ready for every layer,
 * from the last to the first. */
gg_status gg_strategy_ready_all(gg_strategy *strategy);

/* Gathers the arena at a place of the state's list from the ranks that own its slices into `whole`, `count` elements.
 * The residue is each rank's own. Called when nothing is in flight. Collective: all ranks name one arena; `whole` may
 * be NULL on ranks that only send. */
gg_status gg_strategy_gather(gg_strategy *strategy, int arena, float *whole);
/* Sets the weights, a moment or the residue from `count` elements; a rank copies the slices that it owns. Called when
 * nothing is in flight. */
void gg_strategy_load(gg_strategy *strategy, int arena, const float *whole);

#endif
