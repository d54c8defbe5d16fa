/* One rank's training: its plans, state, strategy and batches, and the step that joins them.
 *
 * Everything here belongs to one rank and is called on that rank's thread. Functions marked collective must be called
 * by all ranks of the group in the same order. Settling, and everything that shows weights, first completes what is in
 * flight. */
#ifndef GG_TRAIN_REPLICA_H
#define GG_TRAIN_REPLICA_H

#include "comm/sample_ring.h"
#include "data/loader.h"
#include "exchange/exchange.h"
#include "nn/measure.h"
#include "nn/plan.h"

/* A rank that is sometimes late: before a step, with this probability, it does nothing for `delay` seconds of its
 * clock. Drawn from (seed, rank, step). */
typedef struct gg_straggler {
    double probability, delay;
    uint64_t seed;
} gg_straggler;

typedef struct gg_replica_options {
    const gg_graph *graph; /* outlives the replica */
    /* Outlives the replica, which makes its steps. Its layout is the graph's, across_steps is set, and its devices,
     * seed and element type are those that the network computes with. */
    gg_exchange *exchange;
    gg_head_options head[GG_MAX_FIELDS]; /* of the graph's heads; class weights outlive the replica */
    bool graphs;                         /* as in gg_plan_options */
    gg_conv_algorithm conv_algorithm;
    const struct gg_cost_model *costs; /* as in gg_plan_options */
    gg_straggler straggler;
    const double *step_seconds; /* what virtual clocks charge for a step of each rank of the group; NULL: for its flops.
                                   Read at creation. */
} gg_replica_options;

/* What a rank has done since gg_replica_epoch. */
typedef struct gg_progress_counts {
    int64_t steps, samples;
    int64_t correct, counted; /* of the main head: as in gg_loss_sums */
    double loss_sum;          /* of the samples' losses: of what is trained, all heads together */
    double seconds;           /* real time in training steps */
    double compute_seconds, exposed_seconds, data_seconds; /* on the transport's clock */
    double clock_seconds;              /* the transport's clock, all of it: virtual time in a virtual cluster */
    int64_t bytes_sent, messages_sent; /* of samples not counted */
    int64_t sample_bytes_sent, sample_messages_sent; /* by the shuffle of samples */
    int64_t skipped;                                 /* exchanges skipped, so as not to wait */
    int64_t optimizer_bytes,
        optimizer_bytes_saved;         /* of the moments that this rank owns, and of those that it leaves to others */
    gg_compression_counts compression; /* what the strategy has compressed */
    int64_t compresses;                /* 1 if it compresses; over several ranks, how many do */
    double residue; /* of an epoch that has ended: |residue| / |weights|; over several ranks, the sum */
} gg_progress_counts;

typedef struct gg_evaluation {
    gg_loss_sums head[GG_MAX_FIELDS]; /* all 0 where a head is for training only */
    int64_t samples;
} gg_evaluation;

/* Batches in a caller's arrays: n rows, plain, for each input of the network, float32 or int32 as the graph says, and
 * for each target that its heads have. */
typedef struct gg_given {
    int64_t n;
    const void *input[GG_MAX_FIELDS], *target[GG_MAX_FIELDS];
} gg_given;

typedef struct gg_replica gg_replica;

/* Sets the initial weights. Not collective. */
gg_status gg_replica_create(const gg_replica_options *options, gg_replica **out);
/* NULL is fine. Settle first. */
void gg_replica_destroy(gg_replica *replica);
gg_exchange *gg_replica_exchange(const gg_replica *replica);

/* Gives the data to train on. Retains the set. Errors are the same on all ranks, but for those of the set itself.
 * Collective. */
gg_status gg_replica_begin(gg_replica *replica, const gg_dataset *set, const gg_data_options *data);
/* Builds the plans of every batch size that an epoch of these data has, and of batches of n samples. Not collective. */
gg_status gg_replica_plan_epoch(gg_replica *replica);
gg_status gg_replica_plan_batch_of(gg_replica *replica, int64_t n);
/* There is no data to train on. */
void gg_replica_forget_data(gg_replica *replica);
int64_t gg_replica_epoch_steps(const gg_replica *replica);
/* Where training is in an epoch. */
typedef struct gg_position {
    int64_t epoch;
    int64_t next;        /* the step that comes next, 0 to the epoch's steps */
    int64_t begun;       /* the first step with batches of the present size */
    const int64_t *done; /* samples of each rank that trains which steps before `begun` have read; NULL: begun is 0 */
} gg_position;

/* Goes on there; step 0 begins the epoch. The counts begin anew, and state that layers carry is zero. Samples that are
 * shuffled among the ranks are where they are after epochs 0 to epoch - 1 and `next` steps on this set with this batch.
 * Checked. Collective. */
gg_status gg_replica_epoch(gg_replica *replica, const gg_position *position);
/* GG_ERROR_ARGUMENT for a position that is not of the data. Not collective: the same on all ranks. */
gg_status gg_replica_check_position(const gg_replica *replica, const gg_position *position);
int64_t gg_replica_next(const gg_replica *replica); /* the step of the epoch that comes next */
/* done: the replica's, of as many ranks as train, until its data or batches change; NULL before there is data. */
gg_position gg_replica_position(const gg_replica *replica);
int gg_replica_workers(const gg_replica *replica); /* the first ranks, which train */
/* Up to `steps` more steps of the epoch. Every rank must ask for the same number. Allocates nothing. A device that does
 * its work later may not have completed the last ones when it returns: a failure of theirs is that of a later call, and
 * names the step. The epoch's last step, and settling, wait for it. */
gg_status gg_replica_run(gg_replica *replica, int64_t steps);
/* Of steps, samples and losses those that the device has completed. */
void gg_replica_counts(const gg_replica *replica, gg_progress_counts *out);
/* Counting goes on from these, as gg_replica_counts gave them. */
void gg_replica_set_counts(gg_replica *replica, const gg_progress_counts *counts);
/* Settles, as part of the epoch's time. Collective. */
gg_status gg_replica_end_epoch(gg_replica *replica);

/* One step on a caller's batch; loss: what is trained, the mean over the batch. `batches`: samples of every rank in
 * this step; NULL: all given->n. A rank that only serves does not read its samples, and its loss is NaN. State that
 * layers carry goes on from the batch before. loss NULL: not wanted, and not waited for, as in gg_replica_run. */
gg_status gg_replica_step(gg_replica *replica, const gg_given *given, const int64_t *batches, double *loss);
/* So many steps on a caller's batch, the same size on all ranks. seconds: of each, from the completion of the step
 * before it, or the call, to its own; steps that are seen to be complete at once have equal parts. NULL: not wanted.
 * The device has done everything then. */
gg_status gg_replica_bench(gg_replica *replica, const gg_given *given, int steps, double *seconds);
/* Waits until the device has done all that it has been given. */
gg_status gg_replica_complete(gg_replica *replica);

/* The state that a node's layer carries from batch to batch: so many rows of gg_graph_node_carried numbers; 0: none
 * yet, or the layer carries none. All of them are read; the first `rows` are written, and room for more is made. At
 * rest. */
int64_t gg_replica_carried_rows(const gg_replica *replica, int node);
gg_status gg_replica_read_carried(const gg_replica *replica, int node, float *out);
gg_status gg_replica_write_carried(gg_replica *replica, int node, int64_t rows, const float *values);
/* Room for that many rows of state, zero where there was none. */
gg_status gg_replica_reserve_carried(gg_replica *replica, int64_t rows);
void gg_replica_reset_carried(gg_replica *replica); /* to zero, as where sequences begin */

gg_status gg_replica_settle(gg_replica *replica); /* collective */
/* A step or settling failed half-way: this replica can only be destroyed. */
bool gg_replica_failed(const gg_replica *replica);

/* What is to become of a replica in the middle of its training. What is NULL stays as it is. */
typedef struct gg_reshape {
    const gg_strategy_options *strategy;
    /* Another network, alike (gg_graph_is_alike); it outlives the replica. */
    const gg_graph *graph;
    /* With it, not NULL: what becomes of the elements of an arena of this kind. `before` may be overwritten, `after` is
     * zero. Called on each rank for each of its arenas, by several threads; equal arenas must become equal ones. */
    gg_status (*map)(const void *context, gg_arena_kind kind, float *before, float *after);
    /* With it: what becomes of a row of the state that this node's layer carries; NULL: it begins at zero. */
    void (*carried)(const void *context, int node, const float *before, float *after);
    const void *context;
    /* Samples a rank and step, 0: as before. In the middle of an epoch it goes on with the samples that have not been
     * read in it. */
    int64_t batch;
    const double *step_seconds; /* as in gg_replica_options; those of the new network */
    const gg_link *link;        /* as in gg_replica_options, of the strategy's options */
} gg_reshape;

/* GG_ERROR_ARGUMENT for what gg_replica_reshape would refuse: a network that is not alike; the options of a strategy;
 * in the middle of an epoch other ranks that train, or a change of shuffle_samples, because each rank would then have
 * other samples than those that are left to it; a batch that is larger than the shards, or, in the middle of an epoch,
 * another one of streams; where something is compressed, another strategy, other partners or other compressed
 * parameters. GG_ERROR_STATE for a batch where there is no data. Changes nothing. Not collective: the same on all
 * ranks. */
gg_status gg_replica_check_reshape(const gg_replica *replica, const gg_reshape *how);
/* Settles, and goes on with the next batch of the same epoch as `how` wants it: strategy, buckets, arenas and, for
 * another network, plans are made anew; where it wants another batch alone, they stay. Each rank has its own weights,
 * moments and residues as before (gg_exchange_rebuild). The counts of the epoch, the trace and
 * the state that layers carry go on. Checked. After a failure the replica can only be destroyed. Collective. */
gg_status gg_replica_reshape(gg_replica *replica, const gg_reshape *how);
/* The strategy's own model, where it has one, or else the mean of the replicas' weights; valid until the next call.
 * Settles. Collective. */
gg_status gg_replica_consensus(gg_replica *replica, const float **weights);

/* Loss and hits of `weights` on samples [begin, end) of a set, in batches of at most `batch`, at least 1. Not
 * collective. */
gg_status gg_replica_evaluate(gg_replica *replica, const float *weights, const gg_dataset *set, int64_t begin,
                              int64_t end, int64_t batch, gg_evaluation *out);
/* The same by a network that is alike (gg_graph_is_alike), with plans of its own, which are gone afterwards. */
gg_status gg_replica_evaluate_graph(gg_replica *replica, const gg_graph *graph, const float *weights,
                                    const gg_dataset *set, int64_t begin, int64_t end, int64_t batch,
                                    gg_evaluation *out);
/* The sum of the heads' mean losses, each times its weight, without those for training only; NaN where a head has seen
 * no sample that counts. */
double gg_replica_evaluated_loss(const gg_replica *replica, const gg_evaluation *evaluation);
/* Outputs of `weights` for all samples of a set, whose targets are not used, plain; one a head of the graph, NULL: not
 * wanted. Not collective. */
gg_status gg_replica_predict(gg_replica *replica, const float *weights, const gg_dataset *set, int64_t batch,
                             float *const *output);

/* Counts the samples of all ranks; GG_ERROR_STATE before there is data. Settles. Collective. */
gg_status gg_replica_audit(gg_replica *replica, gg_sample_audit *out);
/* How many samples this rank trains on, -1 before there is data; and the number (gg_sharding_id) of the one in a slot
 * of its shard. Settled. */
int64_t gg_replica_slots(const gg_replica *replica);
int64_t gg_replica_sample_id(const gg_replica *replica, int64_t slot);

/* Adds "step 12, WHAT: " to the message of a failure, and returns it. */
gg_status gg_replica_at(const gg_replica *replica, const char *what, gg_status status);
/* Of a plan for training or evaluation with this batch, as gg_measured_convolutions and gg_measure_algorithms. order:
 * in place of the orders that are set; NULL: those. */
gg_status gg_replica_measured_convolutions(gg_replica *replica, int64_t batch, bool training,
                                           const gg_table_choice *order, gg_conv_key **out, int *count);
gg_status gg_replica_measure_algorithms(gg_replica *replica, int64_t batch, bool training, const gg_table_choice *order,
                                        const gg_conv_key *wanted, int wants, double seconds, gg_conv_timing **out,
                                        int *count);
/* As gg_measure_step of a training step of this batch, with the rank's weights. Nothing may be in flight. */
gg_status gg_replica_measure_step(gg_replica *replica, int64_t batch, double *seconds);
/* As gg_measure_tables, with the rank's weights. Nothing may be in flight. */
gg_status gg_replica_measure_tables(gg_replica *replica, int64_t batch, const gg_conv_choices algorithms[2],
                                    double seconds, gg_tables_timing *out);
/* The algorithms of these convolutions and the orders of tables for these batch sizes, in place of those given before;
 * the next steps make their plans anew. Both arrays belong to the caller and are used until others are given, or until
 * the replica is destroyed. */
void gg_replica_set_algorithms(gg_replica *replica, const gg_conv_choice *choices, int count,
                               const gg_table_choice *tables, int table_count);
/* The plan of the last training step, valid until the next one; NULL before the first. */
gg_plan *gg_replica_plan(const gg_replica *replica);
size_t gg_replica_bytes(const gg_replica *replica); /* of plans and arenas */

#endif
