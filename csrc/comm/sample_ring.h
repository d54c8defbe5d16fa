/* The asynchronous shuffle of samples: the ranks' shards move around a ring, a batch a step.
 *
 * In each exchange every rank sends `rows` slots, [s, s + rows) modulo the ring's slots, to the previous rank, replaces
 * them by the next rank's, and adds `rows` to s. The ring's slots are those of the smallest shard. So a sample never
 * changes its slot number, ranks hold different samples in each slot, and shards keep their sizes. Some shards have one
 * slot more, whose sample never moves. Sizes and the number of exchanges determine where each sample is: a resumed run
 * computes it.
 *
 * Slots are copied to message memory, so the shard is private and written only when a message has arrived.
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
/* Records exchanges ("samples": sent, arrived, in place) and waits ("wait") in the trace's data lane, at the step that
 * `step` points to. Both outlive the ring; trace NULL records nothing. */
void gg_sample_ring_show(gg_sample_ring *ring, gg_trace *trace, const int64_t *step);
/* Collective; cancels everything in flight. NULL is a no-op. */
void gg_sample_ring_destroy(gg_sample_ring *ring);

/* Completes everything in flight, then brings the shards to the state after `exchanges` exchanges, by copying from the
 * source unless they are there. Collective. */
gg_status gg_sample_ring_seek(gg_sample_ring *ring, const gg_dataset *source, int64_t exchanges);

gg_status gg_sample_ring_begin(gg_sample_ring *ring);  /* sends; the previous exchange must be finished */
gg_status gg_sample_ring_poll(gg_sample_ring *ring);   /* copies arrived slots into the shard */
gg_status gg_sample_ring_finish(gg_sample_ring *ring); /* waits for the exchange: the shard may be read */
gg_status gg_sample_ring_settle(gg_sample_ring *ring); /* waits also until the receiver has read it. Collective */
/* Nothing of this rank is in flight. */
bool gg_sample_ring_is_idle(const gg_sample_ring *ring);

/* Bytes and messages of this rank since creation. */
void gg_sample_ring_sent(const gg_sample_ring *ring, int64_t *bytes, int64_t *messages);

/* The samples of all ranks, counted one by one. */
typedef struct gg_sample_audit {
    int64_t samples;                     /* held, over all ranks */
    int64_t missing, duplicate, altered; /* ids without a holder; surplus ids; samples that differ from the source's */
    int64_t first_missing, first_duplicate, first_altered; /* ids; -1 means none */
} gg_sample_audit;

/* Collective, with nothing in flight. The sharding's first ranks share the source. ids: the samples in this rank's
 * slots. shard: the rank's copy of them, to compare with the source; NULL means the source's own rows. All ranks get
 * one result. */
gg_status gg_sample_audit_run(gg_transport *transport, const gg_sharding *sharding, const int32_t *ids,
                              const gg_shard_copy *shard, const gg_dataset *source, gg_sample_audit *out);

#endif
