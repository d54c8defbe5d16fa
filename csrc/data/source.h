/* Sources of samples that are not in memory: decoders, files, a program's own code.
 *
 * Reading may be slow: prefetch threads call it (data/prefetch.h), never the compute thread. The result depends on rows
 * and epoch alone, so on no rank, thread or order. */
#ifndef GG_DATA_SOURCE_H
#define GG_DATA_SOURCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Inputs and targets of a set together, at most: GG_MAX_FIELDS of each. */
#define GG_SET_FIELDS 16
/* The epoch of evaluation, in which a source draws nothing at random. */
#define GG_EPOCH_EVALUATION (-1)

typedef struct gg_source gg_source;

typedef struct gg_source_table {
    /* Writes n samples of every field f whose out[f] is not NULL, one after the other, as the set describes the field.
     * Called by any thread, and by several at once: the readers of a rank, and those of all ranks of a virtual cluster.
     * A failure's message names the file or the sample; GG_ERROR_SOURCE is the source's own failure. */
    gg_status (*read)(gg_source *source, const uint32_t *rows, int64_t n, int64_t epoch, void *const *out);
    void (*destroy)(gg_source *source); /* called by the thread that releases it last */
} gg_source_table;

/* The head of every source; a source's own fields follow it. */
struct gg_source {
    const gg_source_table *table;
    atomic_int references;
    bool ordered; /* reads forward only: in each epoch one thread of each rank asks for ascending rows */
    int readers;  /* threads of a rank that read at the same time; at least 1, and 1 if ordered */
    int ahead;    /* batches that a rank reads ahead of the network; at least 1 */
};

/* Starts a new source with one reference. */
void gg_source_init(gg_source *source, const gg_source_table *table);
void gg_source_retain(gg_source *source);
void gg_source_release(gg_source *source); /* NULL is a no-op */

#endif
