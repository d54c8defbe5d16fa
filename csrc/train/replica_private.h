/* Private to the room: a replica's fields, and what its files call of one another. */
#ifndef GG_TRAIN_REPLICA_PRIVATE_H
#define GG_TRAIN_REPLICA_PRIVATE_H

#include "exchange/exchange.h"
#include "train/batches.h"
#include "train/outstanding.h"
#include "train/plans.h"
#include "train/replica.h"

/* Numbers of the report that the exchange and the ring count, since each was created. */
typedef struct gg_other_counts {
    gg_exchange_counts exchange;
    int64_t sample_bytes, sample_messages;
} gg_other_counts;

struct gg_replica {
    gg_replica_options options;
    gg_exchange *exchange;
    const gg_devices *devices; /* of the exchange, */
    gg_device *device;         /* that of its arenas, */
    gg_transport *transport;   /* its transport */
    gg_trace *trace;           /* and its trace, NULL: off */
    gg_plans plans;            /* the plan of the last step is pinned */
    gg_plan_hooks hooks;
    double *layer_seconds; /* modelled forward time of one sample, or of any batch; backward is twice that */
    bool any_batch;
    int node; /* for the trace: the node that runs, or -1, and since when */
    double node_begin;

    gg_uploads uploads;
    gg_batches data;
    gg_outstanding outstanding; /* steps that `counts` lacks yet */
    int64_t batch;              /* samples of the step under way */
    double charged;             /* of the backward pass of the layer under way, to the virtual clock */
    int64_t *batches;           /* samples of each rank in this step */
    gg_progress_counts counts;  /* for the report; what others count is added when it is asked for */
    gg_other_counts before;     /* what they had counted when it was last added or the epoch began */

    int64_t carried_numbers; /* of state that a sample carries, in all layers */
    float *carried;          /* as in gg_plan_batch; NULL: none */
    int64_t carried_rows;
};

static inline bool gg_replica_trains(const gg_replica *r) { return gg_exchange_trains(r->exchange); }

/* replica.c. Sets what depends on the strategy and the network of the exchange; step_seconds: as in the options. */
gg_status gg_replica_follow_exchange(gg_replica *r, const double *step_seconds);

/* spans.c. Records what took from `begin` until now, if there is a trace; index: the node, or -1. */
void gg_replica_record(gg_replica *r, const char *name, double begin, int index);
/* The same, counted as time spent on data. */
void gg_replica_spent_on_data(gg_replica *r, const char *name, double begin);

/* What the device did for a step that it has completed, and when, where its times were asked for. */
void gg_replica_record_gpu(gg_replica *r, const gg_outstanding_step *step);

/* step.c. Sets the calls that a plan makes of the strategy and the trace; the strategy is there. */
void gg_replica_set_hooks(gg_replica *r);
/* Numbers of state that a sample carries in the nodes before this one: each node's rows lie behind one another, as
 * gg_plan_batch wants them. */
int64_t gg_replica_carried_before(const gg_replica *r, int node);

/* counts.c. What others count, as it is now. */
gg_other_counts gg_replica_other_counts(const gg_replica *r);
/* gg_outstanding_read, and the mean loss of what is trained on the step's samples times `samples`. */
gg_status gg_replica_read_step(gg_replica *r, int most, const gg_outstanding_step **out);
double gg_replica_step_loss(const gg_replica *r, const gg_outstanding_step *step, int64_t samples);
/* Counts the steps that the device has completed, and waits until at most so many are outstanding. */
gg_status gg_replica_count_steps(gg_replica *r, int most);

#endif
