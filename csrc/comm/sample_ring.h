/* The asynchronous shuffle of samples: the ranks' shards move around a ring, a batch a step.
 *
 * In each exchange every rank sends `rows` slots, [s, s + rows) modulo the ring's slots, to the rank before it, puts
 * what the rank after it sends in their place, and moves s on by `rows`. The ring's slots are those that every shard
 * has (the smallest shard), so a sample never changes its slot number, the ranks hold different samples in each slot,
 * and sizes of shards never change. Some shards have one slot more, whose sample never moves. Where each sample is
 * depends on the sizes and the number of exchanges alone: a resumed run can compute it.
 *
 * The slots are copied to message memory, so the shard itself is private and only written when a message is here.
 * Between begin and finish the shard is marked as in flight: the loader refuses to read it. One rank, one thread. */
#ifndef GG_COMM_SAMPLE_RING_H
#define GG_COMM_SAMPLE_RING_H

#include "base/trace.h"
#include "comm/transport.h"
#include "data/shard.h"

#define GG_TAG_SAMPLES (GG_TAG_USER - 1)

typedef struct gg_sample_ring gg_sample_ring;

/* Collective; at least two ranks, and not with GG_SHARD_OWN. rows: 1 to the smallest shard. The shard is this rank's,
 * outlives the ring, and is not filled before the first seek. */
gg_status gg_sample_ring_create(gg_transport *transport, gg_shard_copy *shard, const gg_sharding *sharding,
                                int64_t rows, gg_sample_ring **out);
/* From now on its exchanges ("samples": sent, arrived, in their places) and waits ("wait") are in the lane of data,
 * with the step that `step` points at. Both outlive the ring; trace NULL: none. */
void gg_sample_ring_show(gg_sample_ring *ring, gg_trace *trace, const int64_t *step);
/* Collective; cancels what is in flight. NULL is fine. */
void gg_sample_ring_destroy(gg_sample_ring *ring);

/* Brings the shards to the state after so many exchanges, by copying from the source unless they are already in it.
 * Completes what is in flight first. Collective. */
gg_status gg_sample_ring_seek(gg_sample_ring *ring, const gg_dataset *source, int64_t exchanges);

gg_status gg_sample_ring_begin(gg_sample_ring *ring);  /* sends; the exchange before must be finished */
gg_status gg_sample_ring_poll(gg_sample_ring *ring);   /* copies what has arrived into the shard */
gg_status gg_sample_ring_finish(gg_sample_ring *ring); /* waits for it: the shard may be read */
gg_status gg_sample_ring_settle(gg_sample_ring *ring); /* and until the receiver has read what was sent. Collective */
/* Nothing of this rank is in flight. */
bool gg_sample_ring_is_idle(const gg_sample_ring *ring);

/* By this rank, since creation. */
void gg_sample_ring_sent(const gg_sample_ring *ring, int64_t *bytes, int64_t *messages);

/* What all ranks hold, counted sample by sample. */
typedef struct gg_sample_audit {
    int64_t samples;                     /* held, over all ranks */
    int64_t missing, duplicate, altered; /* ids that nobody has; ids too many; samples that are not the source's */
    int64_t first_missing, first_duplicate, first_altered; /* ids; -1: none */
} gg_sample_audit;

/* Collective, with nothing in flight. The first ranks, as many as the sharding has, share the source. ids: of the
 * samples in this rank's slots. shard: the rank's own copy of them, which is compared with the source; NULL: they are
 * the source's. The same result on all ranks. */
gg_status gg_sample_audit_run(gg_transport *transport, const gg_sharding *sharding, const int32_t *ids,
                              const gg_shard_copy *shard, const gg_dataset *source, gg_sample_audit *out);

#endif
