/* Private to the room: batches that threads read from a source ahead of the network.
 *
 * A ring of slots, each with room for a batch of the source's fields. Threads fill slots in the order of steps. The
 * rank's thread waits for the slot of its step, uses it and returns it; it makes all calls. After creation nothing is
 * allocated. A slot's contents depend on the source alone, never on time. */
#ifndef GG_DATA_PREFETCH_H
#define GG_DATA_PREFETCH_H

#include "data/dataset.h"

typedef struct gg_prefetch gg_prefetch;

/* Sets *rows to the rows of a step's batch and returns their number, at most `most`. Called by the reading threads
 * between start and stop; pure meanwhile. */
typedef int64_t gg_prefetch_rows(void *context, int64_t step, const uint32_t **rows);

/* Retains the set, whose source reads at least one field. The context outlives the prefetch. */
gg_status gg_prefetch_create(const gg_dataset *set, int64_t most, gg_prefetch_rows *rows, void *context,
                             gg_prefetch **out);
void gg_prefetch_destroy(gg_prefetch *prefetch); /* joins the threads; NULL is a no-op */
/* Reads steps first to steps - 1 from now on and drops earlier reads. */
void gg_prefetch_start(gg_prefetch *prefetch, int64_t first, int64_t steps, int64_t epoch);
void gg_prefetch_stop(gg_prefetch *prefetch); /* no thread reads afterwards */
/* Waits at most `seconds`; true if the step has been read or its read has failed. */
bool gg_prefetch_ready(gg_prefetch *prefetch, int64_t step, double seconds);
/* Waits for the step. (*fields)[f] holds the samples of field f in order, NULL for a field in memory; valid until
 * gg_prefetch_done. A failed read is an error of the step that wants it. */
gg_status gg_prefetch_get(gg_prefetch *prefetch, int64_t step, void *const **fields);
void gg_prefetch_done(gg_prefetch *prefetch, int64_t step);

#endif
