/* Private to the room: who keeps which part of the arenas, where ranks share the updates among them.
 *
 * Every chunk is cut into as many slices as there are ranks, whole lanes each, some of them empty; rank i keeps slice i
 * of every chunk. Runs that are set apart are cut into slices first, and each slice into chunks of its own. The
 * optimiser's arenas hold the kept slices alone, one behind the other in the order of chunks; the arenas of weights and
 * gradients hold them at their place among the others. */
#ifndef GG_STRATEGY_PARTITION_H
#define GG_STRATEGY_PARTITION_H

#include "strategy/buckets.h"

typedef struct gg_part {
    size_t offset, count; /* elements: where the slice lies in an arena, and how many; 0: none */
    size_t owned_offset;  /* where it lies in what its rank keeps */
} gg_part;

typedef struct gg_partition {
    int chunks, ranks;
    gg_part *part;    /* [rank][chunk] */
    int *layer;       /* of a chunk: whose run set apart it is of; -1: of none */
    int *owner;       /* of a chunk: who keeps all of it, where it is of a run set apart; -1: several may */
    size_t own, most; /* elements that this rank keeps, and that any rank keeps at most */
} gg_partition;

/* separate: of each layer a run of whole lanes that is set apart; count 0: none. Cuts the chunks of the buckets anew.
 */
gg_status gg_partition_create(const gg_graph *graph, size_t chunk_bytes, const gg_slice *separate, int rank, int ranks,
                              gg_buckets *buckets, gg_partition *out);
void gg_partition_destroy(gg_partition *partition);

static inline const gg_part *gg_partition_part(const gg_partition *partition, int rank, int chunk) {
    return &partition->part[(size_t)rank * (size_t)partition->chunks + (size_t)chunk];
}

#endif
