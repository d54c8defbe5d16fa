#include "exchange/parts/partition.h"

#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"

/* A step of a walk along the buckets. */
typedef struct cutter {
    size_t most; /* elements of a chunk */
    int count;   /* chunks so far */
    /* NULL means that they are only counted. */
    gg_chunk *chunk;
    int *layer, *owner; /* -1 means of no partitioned layer */
} cutter;

/* Cuts a run that one rank owns evenly, and other runs into chunks as large as allowed. */
static void add_run(cutter *c, size_t offset, size_t count, int layer, int owner) {
    int pieces = (int)((count + c->most - 1) / c->most);
    for (int i = 0; i < pieces; ++i, ++c->count) {
        size_t begin = (size_t)i * c->most, end = begin + c->most < count ? begin + c->most : count;
        if (owner >= 0) gg_parallel_split(count, GG_LANES, i, pieces, &begin, &end);
        if (c->chunk == NULL) continue;
        c->chunk[c->count] = (gg_chunk){offset + begin, end - begin};
        c->layer[c->count] = layer;
        c->owner[c->count] = owner;
    }
}

static void add_bucket(cutter *c, const gg_arena_layout *layout, const gg_bucket *bucket, const gg_slice *separate,
                       int ranks) {
    const gg_slice *first = gg_arena_layout_slice(layout, bucket->first_layer),
                   *last = gg_arena_layout_slice(layout, bucket->last_layer);
    size_t at = first->offset;
    for (int layer = bucket->first_layer; layer <= bucket->last_layer; ++layer) {
        if (separate[layer].count == 0) continue;
        add_run(c, at, separate[layer].offset - at, -1, -1);
        for (int r = 0; r < ranks; ++r) {
            const gg_allreduce_slice slice = gg_allreduce_even_slice(separate[layer].count, r, ranks);
            add_run(c, separate[layer].offset + slice.begin, slice.count, layer, r);
        }
        at = separate[layer].offset + separate[layer].count;
    }
    add_run(c, at, last->offset + last->count - at, -1, -1);
}

/* Cuts the buckets into chunks. */
static gg_status partition_cut(const gg_arena_layout *layout, size_t chunk_bytes, const gg_slice *separate, int ranks,
                               gg_buckets *buckets, int **layer, int **owner) {
    cutter c = {.most = gg_chunk_elements(chunk_bytes)};
    for (int i = 0; i < buckets->count; ++i) add_bucket(&c, layout, &buckets->bucket[i], separate, ranks);
    gg_free(buckets->chunk);
    buckets->chunk = NULL;
    buckets->chunk_count = c.count;
    GG_TRY(gg_calloc((size_t)c.count, sizeof *buckets->chunk, "chunks", &buckets->chunk));
    GG_TRY(gg_calloc((size_t)c.count, sizeof **layer, "layers of chunks", layer));
    GG_TRY(gg_calloc((size_t)c.count, sizeof **owner, "owners of chunks", owner));
    c = (cutter){.most = c.most, .chunk = buckets->chunk, .layer = *layer, .owner = *owner};
    for (int i = 0; i < buckets->count; ++i) {
        buckets->bucket[i].first_chunk = c.count;
        add_bucket(&c, layout, &buckets->bucket[i], separate, ranks);
        buckets->bucket[i].end_chunk = c.count;
    }
    return GG_OK;
}

gg_status gg_partition_create(const gg_arena_layout *layout, size_t chunk_bytes, const gg_slice *separate, int rank,
                              int ranks, gg_buckets *buckets, gg_partition *out) {
    gg_status status = GG_OK;
    gg_partition made = {.ranks = ranks};
    GG_TRY_CLEANUP(partition_cut(layout, chunk_bytes, separate, ranks, buckets, &made.layer, &made.owner));
    made.chunks = buckets->chunk_count;
    GG_TRY_CLEANUP(gg_calloc((size_t)ranks * (size_t)made.chunks, sizeof *made.part, "parts of the ranks", &made.part));
    for (int r = 0; r < ranks; ++r) {
        size_t owned = 0;
        for (int i = 0; i < made.chunks; ++i) {
            const gg_chunk *chunk = &buckets->chunk[i];
            gg_allreduce_slice slice = {0, made.owner[i] == r ? chunk->count : 0};
            if (made.owner[i] < 0) slice = gg_allreduce_even_slice(chunk->count, r, ranks);
            made.part[(size_t)r * (size_t)made.chunks + (size_t)i] =
                (gg_part){chunk->offset + slice.begin, slice.count, owned};
            owned += slice.count;
        }
        if (owned > made.most) made.most = owned;
        if (r == rank) made.own = owned;
    }
cleanup:
    *out = made;
    return status;
}

void gg_partition_destroy(gg_partition *partition) {
    gg_free(partition->part);
    gg_free(partition->layer);
    gg_free(partition->owner);
    memset(partition, 0, sizeof *partition);
}
