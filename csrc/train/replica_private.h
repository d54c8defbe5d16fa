/* Private to the room: a replica's fields, and functions that its files call in one another. */
#ifndef GG_TRAIN_REPLICA_PRIVATE_H
#define GG_TRAIN_REPLICA_PRIVATE_H

#include "exchange/exchange.h"
#include "exchange/rebuild.h"
#include "train/batches.h"
#include "train/outstanding.h"
#include "train/plans.h"
#include "train/replica.h"

/* The report's numbers counted by the exchange and the ring, since their creation. */
typedef struct gg_other_counts {
    gg_exchange_counts exchange;
    int64_t sample_bytes, sample_messages;
} gg_other_counts;

struct gg_replica {
    gg_replica_options options;
    gg_exchange *exchange;
    const gg_devices *devices; /* the exchange's */
    gg_device *device;         /* of the exchange's arenas */
    gg_transport *transport;   /* the exchange's */
    gg_trace *trace;           /* the exchange's; NULL means off */
    gg_plans plans;            /* the plan of the last step is pinned */
    gg_plan_hooks hooks;
    double *layer_seconds; /* modelled forward time of one sample, or of any batch (any_batch); backward takes twice as
                              long */
    bool any_batch;
    int node; /* for the trace: the running node, or -1, and its begin */
    double node_begin;

    gg_uploads uploads;
    gg_batches data;
    gg_outstanding outstanding; /* steps that `counts` does not yet include */
    int64_t batch;              /* samples of the current step */
    bool broken;                /* a death has broken the step that comes next */
    double charged;             /* seconds of the current layer's backward pass, charged to the virtual clock */
    int64_t *batches;           /* samples of each rank in this step */
    gg_progress_counts counts;  /* for the report; gg_other_counts are added on request */
    gg_other_counts before;     /* at their last addition, or at the epoch's begin */
    int64_t view;               /* number of the view for which the rank has regrouped */
    double view_begin;          /* of the current change of the view, on the transport's clock */

    gg_held_state *held; /* between gg_replica_hold and gg_replica_regroup, with the counts; else NULL */
    gg_progress_counts held_counts;

    int64_t carried_numbers; /* of the state that a sample carries, in all layers */
    float *carried;          /* as in gg_plan_batch; NULL means none */
    int64_t carried_rows;
};

static inline bool gg_replica_trains(const gg_replica *r) { return gg_exchange_trains(r->exchange); }

/* replica.c. Sets the fields that depend on the exchange's strategy and network; step_seconds: as in the options. */
gg_status gg_replica_follow_exchange(gg_replica *r, const double *step_seconds);

/* hold.c. The held exchange on the ranks of this view; the rest of gg_replica_regroup is the data. */
gg_status gg_replica_renew_exchange(gg_replica *r, const gg_exchange_costs *costs, int64_t view);

/* spans.c. Records a span from `begin` until now, if there is a trace; index: the node, or -1. */
void gg_replica_record(gg_replica *r, const char *name, double begin, int index);
/* gg_replica_record, counted as time spent on data. */
void gg_replica_spent_on_data(gg_replica *r, const char *name, double begin);

/* Records the device's spans of a completed step, if its times were requested. */
void gg_replica_record_gpu(gg_replica *r, const gg_outstanding_step *step);

/* step.c. Sets the plan's hooks into the strategy and the trace; the strategy exists. */
void gg_replica_set_hooks(gg_replica *r);
/* Numbers of state that a sample carries in the nodes before this one. Each node's rows follow one another, as
 * gg_plan_batch requires. */
int64_t gg_replica_carried_before(const gg_replica *r, int node);

/* counts.c. The current counts of the exchange and the ring. */
gg_other_counts gg_replica_other_counts(const gg_replica *r);
/* gg_outstanding_read that records the device's spans and fails the exchange on errors. gg_replica_step_loss: the
 * trained mean loss on the step's samples times `samples`. */
gg_status gg_replica_read_step(gg_replica *r, int most, const gg_outstanding_step **out);
double gg_replica_step_loss(const gg_replica *r, const gg_outstanding_step *step, int64_t samples);
/* Adds the counts of the dead to those of a rank, but for steps and seconds, which ranks share. */
void gg_progress_counts_add(gg_progress_counts *counts, const gg_progress_counts *more);
/* Writes the counts into the rank's ledger; they include `made` steps of training. */
void gg_replica_tell_counts(const gg_replica *r, int64_t made);
/* Counts the steps that the device has completed. Waits until at most `most` are outstanding. */
gg_status gg_replica_count_steps(gg_replica *r, int most);

#endif
