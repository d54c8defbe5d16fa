/* Private to the room: the samples that a replica trains on, from the set to the plan's input.
 *
 * Which rank has which samples, where they are while they move among the ranks, and the batches of an epoch. One rank,
 * one thread. */
#ifndef GG_TRAIN_BATCHES_H
#define GG_TRAIN_BATCHES_H

#include "base/trace.h"
#include "comm/sample_ring.h"
#include "data/data.h"
#include "nn/plan.h"

/* Zero-initialised: there is no data. */
typedef struct gg_batches {
    /* Set by the owner before the first call. The devices, the transport and what the pointers point at outlive it. */
    gg_transport *transport;
    gg_device *device;
    int workers; /* the first ranks, which train */
    uint64_t seed;
    bool shuffle_samples;
    gg_trace *trace;     /* NULL: off */
    const int64_t *step; /* of training */

    gg_loader *loader; /* NULL: no data yet */
    gg_dataset set;
    gg_sharding sharding;  /* of the set, over the workers */
    int64_t *shard_counts; /* of the sharding, if each rank has a set of its own */
    gg_shard_copy *shard;  /* used with the ring, if samples are shuffled among several ranks */
    gg_sample_ring *ring;
    void *targets;         /* of one batch */
    float *sample_weights; /* of one batch; NULL: the set has none */
} gg_batches;

/* Replaces the data. Retains the set. On a failure there is none. Collective. */
gg_status gg_batches_begin(gg_batches *batches, const gg_dataset *set, const gg_data_options *data);
void gg_batches_clear(gg_batches *batches); /* collective; cancels what is in flight */
/* Orders the samples for an epoch. Those that move among the ranks are brought to where they are when it begins.
 * Collective. */
gg_status gg_batches_epoch(gg_batches *batches, int64_t epoch);
/* Puts batch t of the epoch into the plan's input, targets and weights into their memory here, and starts the exchange
 * of samples that runs during the step. */
gg_status gg_batches_read(gg_batches *batches, gg_plan *plan, int64_t t);
gg_status gg_batches_poll(gg_batches *batches);   /* lets samples move */
gg_status gg_batches_settle(gg_batches *batches); /* completes the exchange of samples; collective */
bool gg_batches_is_idle(const gg_batches *batches);

/* Puts n rows of `values` elements into a plan's input; index NULL: consecutive ones. */
void gg_batches_read_rows(gg_device *device, gg_plan *plan, gg_dtype dtype, const void *rows, int64_t values,
                          const uint32_t *index, int64_t n, float scale, float shift);

#endif
