/* One rank's training: its plans, state, strategy and batches, and the step that joins them.
 *
 * A replica belongs to one rank and is called on that rank's thread. Functions marked collective must be called by all
 * ranks of the group in one order. Settling, and all functions that show weights, first complete all that is in flight.
 */
#ifndef GG_TRAIN_REPLICA_H
#define GG_TRAIN_REPLICA_H

#include "comm/sample_ring.h"
#include "data/loader.h"
#include "exchange/exchange.h"
#include "nn/measure.h"
#include "nn/plan.h"

/* A rank that is sometimes late: before a step, with this probability, it idles for `delay` seconds of its clock. Drawn
 * from (seed, rank, step). */
typedef struct gg_straggler {
    double probability, delay;
    uint64_t seed;
} gg_straggler;

typedef struct gg_replica_options {
    const gg_graph *graph; /* outlives the replica */
    /* Outlives the replica, which makes its steps. The exchange has the graph's layout; the network
     * computes with its devices, seed and element type. */
    gg_exchange *exchange;
    gg_head_options head[GG_MAX_FIELDS]; /* of the graph's heads; class weights outlive the replica */
    bool graphs;                         /* as in gg_plan_options */
    gg_conv_algorithm conv_algorithm;
    const struct gg_cost_model *costs; /* as in gg_plan_options */
    gg_straggler straggler;
    const double *step_seconds; /* seconds that virtual clocks charge for a step of each rank of the group; NULL charges
                                   for its flops. Read at creation */
    void *ledger;               /* gg_team_ledger of this rank; NULL means that nobody outlives it */
} gg_replica_options;

/* Counts of a rank since gg_replica_epoch. */
typedef struct gg_progress_counts {
    int64_t steps, samples;
    int64_t correct, counted;                              /* of the main head: as in gg_loss_sums */
    double loss_sum;                                       /* of the samples' trained losses, all heads together */
    double seconds;                                        /* real time in training steps */
    double compute_seconds, exposed_seconds, data_seconds; /* on the transport's clock */
    double clock_seconds;              /* all of the transport's clock: virtual time in a virtual cluster */
    int64_t bytes_sent, messages_sent; /* without samples */
    int64_t sample_bytes_sent, sample_messages_sent; /* by the shuffle of samples */
    int64_t skipped;                                 /* exchanges skipped instead of waiting */
    int64_t optimizer_bytes,
        optimizer_bytes_saved;         /* of the moments that this rank owns; of those that it leaves to others */
    gg_compression_counts compression; /* of the strategy */
    int64_t compresses;                /* 1 if it compresses; over several ranks the number that do */
    double residue;                    /* of an ended epoch: |residue| / |weights|; over several ranks the sum */
} gg_progress_counts;

typedef struct gg_evaluation {
    gg_loss_sums head[GG_MAX_FIELDS]; /* all 0 for a head that only training uses */
    int64_t samples;
} gg_evaluation;

/* Batches in a caller's arrays: n rows, plain, for each input of the network and each target of its heads, float32 or
 * int32 as the graph says. */
typedef struct gg_given {
    int64_t n;
    const void *input[GG_MAX_FIELDS], *target[GG_MAX_FIELDS];
} gg_given;

typedef struct gg_replica gg_replica;

/* Sets the initial weights. Not collective. */
gg_status gg_replica_create(const gg_replica_options *options, gg_replica **out);
/* NULL is a no-op. Settle first. */
void gg_replica_destroy(gg_replica *replica);
gg_exchange *gg_replica_exchange(const gg_replica *replica);

/* Sets the training data. Retains the set. Errors are equal on all ranks, except those of the set itself. Collective.
 */
gg_status gg_replica_begin(gg_replica *replica, const gg_dataset *set, const gg_data_options *data);
/* Builds the plans of every batch size in an epoch of these data; the second for batches of n samples. Not collective.
 */
gg_status gg_replica_plan_epoch(gg_replica *replica);
gg_status gg_replica_plan_batch_of(gg_replica *replica, int64_t n);
/* Builds the plan of the next step alone; the step that has another batch size builds the other one. Others may wait
 * meanwhile, and a plan takes tens of milliseconds. */
gg_status gg_replica_plan_next(gg_replica *replica);
/* Removes the training data. */
void gg_replica_forget_data(gg_replica *replica);
int64_t gg_replica_epoch_steps(const gg_replica *replica);
/* Continues at a position; step 0 begins the epoch. Zeroes the counts and the state that layers carry. Shuffled samples
 * lie where epochs 0 to epoch - 1 and `next` steps leave them on this set with this batch. Checked. Collective. */
gg_status gg_replica_epoch(gg_replica *replica, const gg_position *position);
/* GG_ERROR_ARGUMENT for a position outside of the data. Not collective: equal on all ranks. */
gg_status gg_replica_check_position(const gg_replica *replica, const gg_position *position);
int64_t gg_replica_next(const gg_replica *replica); /* the epoch's next step */
/* done and the divisions: owned by the replica, valid until its data or batches change; done: one a training rank, NULL
 * before there is data. */
gg_position gg_replica_position(const gg_replica *replica);
/* Samples of each training rank that the steps before the next one have read on these ranks (gg_division). */
void gg_replica_read_by(const gg_replica *replica, int64_t *read);
int gg_replica_workers(const gg_replica *replica); /* the first ranks, which train */
/* Samples of a batch; a change of the view may lower it (gg_batches_regroup). 0 before there is data. */
int64_t gg_replica_batch_size(const gg_replica *replica);
/* Makes up to `steps` more steps of the epoch, an equal number on every rank. Allocates nothing, but for batches of a
 * size that a change of the view has brought. A device that works later may still compute the last steps on return: a
 * later call then returns their failure, which names the step. The epoch's last step and settling wait for the device.
 */
gg_status gg_replica_run(gg_replica *replica, int64_t steps);
/* True if a death has broken gg_replica_run's last step (gg_exchange_breaks), which then failed with GG_ERROR_PEER. */
bool gg_replica_broken(const gg_replica *replica);
/* Counts only steps, samples and losses that the device has finished. */
void gg_replica_counts(const gg_replica *replica, gg_progress_counts *out);
/* Continues counting from gg_replica_counts' numbers. */
void gg_replica_set_counts(gg_replica *replica, const gg_progress_counts *counts);
/* Settles, as part of the epoch's time. Collective. */
gg_status gg_replica_end_epoch(gg_replica *replica);

/* One step on a caller's batch. *loss: the trained mean over the batch; loss NULL means not wanted and not waited for,
 * as in gg_replica_run. batches: samples of every rank in this step; NULL means given->n on all. A rank that only
 * serves does not read its samples, and its loss is NaN. Layers carry state on from the batch before. */
gg_status gg_replica_step(gg_replica *replica, const gg_given *given, const int64_t *batches, double *loss);
/* Makes `steps` steps on a caller's batch, of equal size on all ranks, and completes them. seconds: for each step, from
 * the completion of the step before (at first from the call) to its own. Steps seen to be complete at once get equal
 * parts. NULL means not wanted. */
gg_status gg_replica_bench(gg_replica *replica, const gg_given *given, int steps, double *seconds);
/* Waits until the device has completed all its work. */
gg_status gg_replica_complete(gg_replica *replica);

/* State that a node's layer carries from batch to batch: rows of gg_graph_node_carried numbers; 0 rows means none yet,
 * or that the layer carries none. Reading reads all rows. Writing sets the first `rows`, and makes room for more. At
 * rest. */
int64_t gg_replica_carried_rows(const gg_replica *replica, int node);
gg_status gg_replica_read_carried(const gg_replica *replica, int node, float *out);
gg_status gg_replica_write_carried(gg_replica *replica, int node, int64_t rows, const float *values);
/* Makes room for `rows` rows of state; new ones are zero. */
gg_status gg_replica_reserve_carried(gg_replica *replica, int64_t rows);
void gg_replica_reset_carried(gg_replica *replica); /* to zero, as at the begin of sequences */

gg_status gg_replica_settle(gg_replica *replica); /* collective */
/* True if a step or settling failed half-way: the replica can only be destroyed. */
bool gg_replica_failed(const gg_replica *replica);

/* Changes of a replica in the middle of its training. NULL means unchanged. */
typedef struct gg_reshape {
    const gg_strategy_options *strategy;
    /* Another network, alike (gg_graph_is_alike), which outlives the replica. */
    const gg_graph *graph;
    /* With a graph, not NULL: maps the elements of an arena of this kind. `before` may be overwritten, `after` is zero.
     * Called on each rank for each of its arenas, by several threads. Equal arenas must become equal ones. */
    gg_status (*map)(const void *context, gg_arena_kind kind, float *before, float *after);
    /* With a graph: maps a row of the state that this node's layer carries. NULL means that it begins at zero. */
    void (*carried)(const void *context, int node, const float *before, float *after);
    const void *context;
    /* Samples a rank and step; 0 means unchanged. In the middle of an epoch training continues with its unread samples.
     */
    int64_t batch;
    const double *step_seconds; /* as in gg_replica_options, of the new network */
    const gg_link *link;        /* of the strategy's options, as in gg_exchange_costs */
} gg_reshape;

/* GG_ERROR_ARGUMENT for changes that gg_replica_reshape would refuse:
 *
 * - a network that is not alike, or forbidden options of a strategy
 * - in the middle of an epoch, other training ranks or a change of shuffle_samples: each rank would then have other
 *   samples than its unread ones
 * - a batch larger than the shards, or, in the middle of an epoch, another batch of streams
 * - with compression, another strategy, other partners or other compressed parameters
 *
 * GG_ERROR_STATE for a batch without data. Changes nothing. Not collective: equal on all ranks. */
gg_status gg_replica_check_reshape(const gg_replica *replica, const gg_reshape *how);
/* Settles, and continues with the next batch of the epoch as `how` says. Makes strategy, buckets, arenas and, for
 * another network, plans anew; keeps them if only the batch changes. Each rank keeps its weights, moments and residues
 * (gg_exchange_rebuild). The epoch's counts, the trace and the state that layers carry continue. Checked. After a
 * failure the replica can only be destroyed. Collective. */
gg_status gg_replica_reshape(gg_replica *replica, const gg_reshape *how);
/* Takes the exchange apart: before the transport has other ranks, or when broken steps are mended. Settled. Only
 * gg_replica_regroup or the end follow. */
gg_status gg_replica_hold(gg_replica *replica);
/* A new view of the ranks. */
typedef struct gg_regrouping {
    int64_t view;                   /* its number */
    gg_exchange_costs costs;        /* as of gg_exchange_rebuild */
    const struct gg_redealt *dealt; /* as of gg_batches_regroup */
    /* Counts of the dead, added to this rank's: not steps and seconds, which ranks share. NULL means none. */
    const gg_progress_counts *inherited;
} gg_regrouping;

/* Continues on the ranks that the transport has now (gg_team_change_view), with the rank's own state and the samples
 * that no rank has read. Held. After a failure the replica can only be destroyed. Collective over the new ranks. */
gg_status gg_replica_regroup(gg_replica *replica, const gg_regrouping *how);
/* GG_ERROR_ARGUMENT for a strategy or data that need all ranks. Not collective: equal on all ranks. */
gg_status gg_replica_check_regroup(const gg_replica *replica);
/* gg_loader_read_by in a step of training, at most the current one: samples of each training rank's order. */
void gg_replica_read_before(const gg_replica *replica, int64_t step, int64_t *read);
/* Returns the strategy's own model, or without one the mean of the replicas' weights; valid until the next call.
 * Settles. Collective. */
gg_status gg_replica_consensus(gg_replica *replica, const float **weights);

/* Loss and hits of `weights` on samples [begin, end) of a set, in batches of at most `batch`, at least 1. Not
 * collective. */
gg_status gg_replica_evaluate(gg_replica *replica, const float *weights, const gg_dataset *set, int64_t begin,
                              int64_t end, int64_t batch, gg_evaluation *out);
/* gg_replica_evaluate with another network that is alike (gg_graph_is_alike); its plans are freed before the return. */
gg_status gg_replica_evaluate_graph(gg_replica *replica, const gg_graph *graph, const float *weights,
                                    const gg_dataset *set, int64_t begin, int64_t end, int64_t batch,
                                    gg_evaluation *out);
/* Sum of the heads' mean losses times their weights, without training-only heads; NaN if a head has seen no counted
 * sample. */
double gg_replica_evaluated_loss(const gg_replica *replica, const gg_evaluation *evaluation);
/* Outputs of `weights` for all samples of a set, plain; targets are ignored. output: one a head of the graph; NULL
 * means not wanted. Not collective. */
gg_status gg_replica_predict(gg_replica *replica, const float *weights, const gg_dataset *set, int64_t batch,
                             float *const *output);

/* Counts the samples of all ranks; GG_ERROR_STATE before there is data. Settles. Collective. */
gg_status gg_replica_audit(gg_replica *replica, gg_sample_audit *out);
/* Samples on which this rank trains, -1 before there is data; the number (gg_sharding_id) of the sample in a slot of
 * its shard. Settled. */
int64_t gg_replica_slots(const gg_replica *replica);
int64_t gg_replica_sample_id(const gg_replica *replica, int64_t slot);

/* Adds "step 12, WHAT: " to the message of a failure, and returns it. */
gg_status gg_replica_at(const gg_replica *replica, const char *what, gg_status status);
/* gg_measured_convolutions and gg_measure_algorithms for a plan for training or evaluation with this batch. order:
 * replaces the set orders; NULL means these. */
gg_status gg_replica_measured_convolutions(gg_replica *replica, int64_t batch, bool training,
                                           const gg_table_choice *order, gg_conv_key **out, int *count);
gg_status gg_replica_measure_algorithms(gg_replica *replica, int64_t batch, bool training, const gg_table_choice *order,
                                        const gg_conv_key *wanted, int wants, double seconds, gg_conv_timing **out,
                                        int *count);
/* gg_measure_step of a training step of this batch, with the rank's weights. Nothing is in flight. */
gg_status gg_replica_measure_step(gg_replica *replica, int64_t batch, double *seconds);
/* gg_measure_tables with the rank's weights. Nothing is in flight. */
gg_status gg_replica_measure_tables(gg_replica *replica, int64_t batch, const gg_conv_choices algorithms[2],
                                    double seconds, gg_tables_timing *out);
/* Replaces the algorithms of these convolutions and the orders of tables for these batch sizes; the next steps make
 * their plans anew. The caller keeps both arrays until it sets others, or until the replica is destroyed. */
void gg_replica_set_algorithms(gg_replica *replica, const gg_conv_choice *choices, int count,
                               const gg_table_choice *tables, int table_count);
/* The plan of the last training step, valid until the next one; NULL before the first. */
gg_plan *gg_replica_plan(const gg_replica *replica);
size_t gg_replica_bytes(const gg_replica *replica); /* of plans and arenas */

#endif
