/* Private to the room: the owner of each part of the arenas, if the ranks divide the updates among them.
 *
 * Every chunk is cut into one slice a rank, in whole lanes; some slices may be empty. Rank i owns slice i of every
 * chunk. Partitioned layers are cut into slices first, and each slice into its own chunks. The optimiser's arenas hold
 * only the owned slices, one after the other in the order of chunks. The arenas of weights and gradients hold all
 * slices at their usual place. */
#ifndef GG_EXCHANGE_PARTS_PARTITION_H
#define GG_EXCHANGE_PARTS_PARTITION_H

#include "exchange/parts/buckets.h"

typedef struct gg_part {
    size_t offset, count; /* elements: the slice's place in an arena, and its size; 0 means none */
    size_t owned_offset;  /* the slice's place in its owner's arenas of the optimiser */
} gg_part;

typedef struct gg_partition {
    int chunks, ranks;
    gg_part *part;    /* [rank][chunk] */
    int *layer;       /* one a chunk: the partitioned layer that contains it; -1 means none */
    int *owner;       /* one a chunk of a partitioned layer: the rank that owns all of it; else -1 */
    size_t own, most; /* elements that this rank owns, and the max over the ranks */
} gg_partition;

/* separate: for each layer the run of whole lanes that is partitioned; count 0 means none. Replaces the chunks of the
 * buckets. */
gg_status gg_partition_create(const gg_arena_layout *layout, size_t chunk_bytes, const gg_slice *separate, int rank,
                              int ranks, gg_buckets *buckets, gg_partition *out);
void gg_partition_destroy(gg_partition *partition);

static inline const gg_part *gg_partition_part(const gg_partition *partition, int rank, int chunk) {
    return &partition->part[(size_t)rank * (size_t)partition->chunks + (size_t)chunk];
}

#endif
