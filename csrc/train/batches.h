/* Private to the room: a replica's samples on their way from the set to the plan's input.
 *
 * Knows which rank has which samples, moves samples among the ranks, and makes the batches of an epoch. One rank, one
 * thread. */
#ifndef GG_TRAIN_BATCHES_H
#define GG_TRAIN_BATCHES_H

#include "base/trace.h"
#include "comm/sample_ring.h"
#include "data/loader.h"
#include "train/uploads.h"

/* A part of the epoch on the ranks of a former view. */
typedef struct gg_former_part {
    gg_loader *loader; /* rests */
    int *member;       /* identities of its ranks */
    int division;      /* its number among the epoch's */
} gg_former_part;

/* How an epoch goes on in another view. */
typedef struct gg_redealt {
    const int64_t *read;   /* samples of each former training rank that count; others are read again */
    const int *former;     /* identities of the former ranks */
    int recalls;           /* of gg_batches_recall */
    const int64_t *recall; /* GG_RECALL each */
    bool joined;           /* some ranks are new, and know nothing of former parts: from here on nobody does */
} gg_redealt;

/* Zero-initialised means that there is no data. */
typedef struct gg_batches {
    /* Set by the owner before the first call. Devices, transport and all pointed-at objects outlive the batches. */
    gg_transport *transport;
    gg_device *device; /* of the host's memory */
    gg_uploads *uploads;
    int workers; /* the first ranks, which train */
    uint64_t seed;
    bool shuffle_samples;
    gg_trace *trace;     /* NULL means off */
    const int64_t *step; /* of training */

    gg_loader *loader; /* NULL means no data yet */
    gg_data_options options;
    gg_dataset set;
    gg_sharding sharding;  /* of the set, over the workers */
    int64_t *shard_counts; /* of the sharding, if each rank has a set of its own */
    gg_shard_copy *shard;  /* used with the ring, if samples are shuffled among several ranks */
    gg_sample_ring *ring;
    gg_division *division; /* of the epoch, before these ranks */
    int divisions;
    gg_former_part *part; /* of the epoch, while no rank has joined; the last one last */
    int parts;
    int64_t epoch, next; /* the position: batch `next` of this epoch is next; counted on by the owner */
    int64_t exchanges;   /* of moving samples, begun so far */
    gg_batch batch;      /* the current batch: targets, weights and beginnings; NULL if the set has none */
} gg_batches;

/* Replaces the data. Retains the set. After a failure there is no data. Collective. */
gg_status gg_batches_begin(gg_batches *batches, const gg_dataset *set, const gg_data_options *data);
void gg_batches_clear(gg_batches *batches); /* collective; cancels exchanges in flight */
/* Sets the position: batch `next` of an epoch, 0 to its steps, is next. Orders the samples for this epoch, and moves
 * shuffled samples to their ranks at that time. Collective. */
gg_status gg_batches_seek(gg_batches *batches, int64_t epoch, int64_t next);
/* gg_batches_seek in an epoch whose steps before `begun` had batches of other sizes, or other ranks (gg_loader_resume).
 * Copies the divisions. Checked. Collective. */
gg_status gg_batches_resume(gg_batches *batches, const gg_position *at);
/* True if some batches of the epoch have been read, and others follow. False without data. */
bool gg_batches_in_an_epoch(const gg_batches *batches);
/* GG_ERROR_ARGUMENT if `workers` ranks cannot train on the set in such batches from here on. Requires data. Equal on
 * all ranks. */
gg_status gg_batches_check(const gg_batches *batches, int workers, int64_t batch);
/* Continues in batches of `batch` samples; in the middle of an epoch with its unread samples. Settled; gg_batches_check
 * allows it. After a failure there is no data. Collective. */
gg_status gg_batches_rebatch(gg_batches *batches, int64_t batch);
/* Continues the epoch on the `workers` ranks that the transport has now, with the samples that no rank has read.
 * Batches become smaller if more ranks have less than one each. Nothing is in flight; gg_batches_check_regroup allows
 * it. */
gg_status gg_batches_regroup(gg_batches *batches, int workers, const gg_redealt *how);
/* Samples that a rank has read in a former part by steps from `step` of the epoch on; if there are some, recall (of
 * GG_RECALL numbers) deals them again. */
int64_t gg_batches_recall(const gg_batches *batches, int part, int identity, int64_t step, int64_t *recall);
/* Continues at the position of `workers` ranks, this newcomer among them, in batches of `batch`. It has begun the set.
 */
gg_status gg_batches_join(gg_batches *batches, int workers, int64_t batch, const gg_position *at);
/* GG_ERROR_ARGUMENT for data that stay with their ranks. Equal on all ranks. */
gg_status gg_batches_check_regroup(const gg_batches *batches);
/* Reads batch t of the epoch for the plan (gg_uploads_read), and starts the exchange of samples under the step. */
gg_status gg_batches_read(gg_batches *batches, gg_plan *plan, int64_t t, gg_plan_batch *out);
gg_status gg_batches_poll(gg_batches *batches);   /* lets samples move */
gg_status gg_batches_settle(gg_batches *batches); /* completes the exchange of samples; collective */
bool gg_batches_is_idle(const gg_batches *batches);

/* The number of the sample in a slot of this rank's shard, as the samples are now. */
int64_t gg_batches_sample_id(const gg_batches *batches, int64_t slot);
/* Counts the samples of all ranks. Settled. Collective. */
gg_status gg_batches_audit(gg_batches *batches, gg_sample_audit *out);

/* Waits until the loader can read the step at once; messages move meanwhile. */
gg_status gg_batches_wait(gg_transport *transport, gg_loader *loader, int64_t step);

#endif
