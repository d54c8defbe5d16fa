/* Private to the room: batches that threads read from a source ahead of the network.
 *
 * A ring of slots, each with room for a batch of the fields that the source reads. Threads fill slots in the order of
 * the steps; the rank's own thread waits for the slot of its step, uses it and gives it back. All calls are that
 * thread's. After creation nothing is allocated. What is in a slot depends on the source alone, never on when it was
 * read. */
#ifndef GG_DATA_PREFETCH_H
#define GG_DATA_PREFETCH_H

#include "data/dataset.h"

typedef struct gg_prefetch gg_prefetch;

/* The rows of a step's batch, and how many there are: at most `most`. Called by the reading threads between start and
 * stop; pure meanwhile. */
typedef int64_t gg_prefetch_rows(void *context, int64_t step, const uint32_t **rows);

/* Retains the set, whose source reads at least one field. The context outlives the prefetch. */
gg_status gg_prefetch_create(const gg_dataset *set, int64_t most, gg_prefetch_rows *rows, void *context,
                             gg_prefetch **out);
void gg_prefetch_destroy(gg_prefetch *prefetch); /* waits for the threads; NULL is fine */
/* Reads steps first to steps - 1 from now on; what was read before is dropped. */
void gg_prefetch_start(gg_prefetch *prefetch, int64_t first, int64_t steps, int64_t epoch);
void gg_prefetch_stop(gg_prefetch *prefetch); /* no thread reads afterwards */
/* Waits at most so many seconds; whether the step has been read, or reading it has failed. */
bool gg_prefetch_ready(gg_prefetch *prefetch, int64_t step, double seconds);
/* Waits for the step. (*fields)[f]: the samples of field f one after the other, NULL where it is in memory; valid until
 * gg_prefetch_done. The failure of a read is that of the step that wants it. */
gg_status gg_prefetch_get(gg_prefetch *prefetch, int64_t step, void *const **fields);
void gg_prefetch_done(gg_prefetch *prefetch, int64_t step);

#endif
