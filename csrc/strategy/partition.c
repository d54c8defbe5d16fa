#include "strategy/partition.h"

#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "comm/collective.h"

gg_status gg_partition_create(const gg_buckets *buckets, int rank, int ranks, gg_partition *out) {
    gg_status status = GG_OK;
    gg_partition made = {.chunks = buckets->chunk_count, .ranks = ranks};
    GG_TRY(gg_calloc((size_t)ranks * (size_t)made.chunks, sizeof *made.part, "parts of the ranks", (void **)&made.part));
    for (int r = 0; r < ranks; ++r) {
        size_t kept = 0;
        for (int i = 0; i < made.chunks; ++i) {
            const gg_chunk *chunk = &buckets->chunk[i];
            size_t begin = 0, end = 0;
            gg_parallel_split(chunk->count, GG_LANES, r, ranks, &begin, &end);
            made.part[(size_t)r * (size_t)made.chunks + (size_t)i] = (gg_part){chunk->offset + begin, end - begin, kept};
            kept += end - begin;
        }
        if (kept > made.most) made.most = kept;
        if (r == rank) made.own = kept;
    }
cleanup:
    *out = made;
    return status;
}

void gg_partition_destroy(gg_partition *partition) {
    gg_free(partition->part);
    memset(partition, 0, sizeof *partition);
}

/* Copies a rank's slices from where they lie among the others to where they lie one behind the other. */
static void take(const gg_partition *partition, int rank, const float *arena, float *kept) {
    for (int i = 0; i < partition->chunks; ++i) {
        const gg_part *part = gg_partition_part(partition, rank, i);
        memcpy(kept + part->kept, arena + part->offset, part->count * sizeof(float));
    }
}

/* The other way. */
static void put(const gg_partition *partition, int rank, const float *kept, float *arena) {
    for (int i = 0; i < partition->chunks; ++i) {
        const gg_part *part = gg_partition_part(partition, rank, i);
        memcpy(arena + part->offset, kept + part->kept, part->count * sizeof(float));
    }
}

static size_t kept_by(const gg_partition *partition, int rank) {
    if (partition->chunks == 0) return 0;
    const gg_part *last = gg_partition_part(partition, rank, partition->chunks - 1);
    return last->kept + last->count;
}

gg_status gg_strategy_gather(gg_strategy *strategy, gg_arena which, float *whole) {
    gg_status status = GG_OK;
    const gg_partition *partition = strategy->partition;
    const gg_state *state = strategy->env.state;
    const float *own = gg_state_arena(state, which);
    gg_transport *transport = strategy->env.transport;
    float *slices = NULL;
    if (own == NULL) return GG_OK;
    if (partition == NULL || which == GG_ARENA_WEIGHT) {
        if (whole != NULL) memcpy(whole, own, state->count * sizeof(float));
        return GG_OK;
    }
    GG_TRY(gg_alloc(partition->most * sizeof(float), "slices of one rank", (void **)&slices));
    for (int rank = 0; rank < partition->ranks; ++rank) {
        size_t bytes = kept_by(partition, rank) * sizeof(float);
        if (rank == transport->rank && which == GG_ARENA_GRADIENT) take(partition, rank, own, slices);
        else if (rank == transport->rank) memcpy(slices, own, bytes);
        GG_TRY(gg_broadcast(transport, slices, bytes, rank));
        if (whole != NULL) put(partition, rank, slices, whole);
    }
cleanup:
    gg_free(slices);
    return status;
}

void gg_strategy_keep(gg_strategy *strategy, gg_arena which, const float *whole) {
    const gg_state *state = strategy->env.state;
    float *own = gg_state_arena(state, which);
    if (own == NULL) return;
    if (strategy->partition == NULL || which == GG_ARENA_WEIGHT) memcpy(own, whole, state->count * sizeof(float));
    else take(strategy->partition, strategy->env.transport->rank, whole, own);
}
