#include "exchange/parts/buckets.h"

#include <stdint.h>
#include <string.h>

#include "base/memory.h"

static int chunks_of(size_t count, size_t chunk) { return (int)((count + chunk - 1) / chunk); }

size_t gg_chunk_elements(size_t chunk_bytes) {
    size_t chunk = chunk_bytes / sizeof(float) / GG_LANES * GG_LANES;
    return chunk > 0 ? chunk : GG_LANES;
}

/* The first layer of the run that ends at `last`: adds layers towards the front until they have enough bytes. */
static int first_layer_of(const gg_arena_layout *layout, int last, size_t bucket_bytes) {
    size_t bytes = 0;
    int first = last;
    for (;; --first) {
        bytes += gg_arena_layout_slice(layout, first)->count * sizeof(float);
        if (bytes >= bucket_bytes || first == 0) return first;
    }
}

gg_status gg_buckets_create(const gg_arena_layout *layout, size_t bucket_bytes, size_t chunk_bytes, gg_buckets *out) {
    gg_status status = GG_OK;
    int layers = layout->layers;
    size_t chunk = gg_chunk_elements(chunk_bytes);
    gg_buckets made = {0};

    for (int last = layers - 1; last >= 0;) {
        int first = first_layer_of(layout, last, bucket_bytes);
        const gg_slice *a = gg_arena_layout_slice(layout, first), *b = gg_arena_layout_slice(layout, last);
        made.count++;
        made.chunk_count += chunks_of(b->offset + b->count - a->offset, chunk);
        last = first - 1;
    }
    GG_TRY_CLEANUP(gg_calloc((size_t)made.count, sizeof *made.bucket, "buckets", &made.bucket));
    GG_TRY_CLEANUP(gg_calloc((size_t)made.chunk_count, sizeof *made.chunk, "chunks", &made.chunk));
    GG_TRY_CLEANUP(
        gg_calloc((size_t)layers, sizeof *made.bucket_of_layer, "bucket of each layer", &made.bucket_of_layer));
    GG_TRY_CLEANUP(gg_calloc((size_t)made.count, sizeof *made.waits_for, "counts of layers", &made.waits_for));

    int bucket = made.count, chunk_end = made.chunk_count;
    for (int last = layers - 1; last >= 0;) {
        int first = first_layer_of(layout, last, bucket_bytes);
        const gg_slice *a = gg_arena_layout_slice(layout, first), *b = gg_arena_layout_slice(layout, last);
        size_t end = b->offset + b->count;
        int n = chunks_of(end - a->offset, chunk);
        --bucket;
        made.bucket[bucket] = (gg_bucket){first, last, chunk_end - n, chunk_end};
        for (int i = 0; i < n; ++i) {
            size_t offset = a->offset + (size_t)i * chunk;
            made.chunk[chunk_end - n + i] = (gg_chunk){offset, end - offset < chunk ? end - offset : chunk};
        }
        for (int layer = first; layer <= last; ++layer) made.bucket_of_layer[layer] = bucket;
        chunk_end -= n;
        last = first - 1;
    }
cleanup:
    if (status != GG_OK) gg_buckets_destroy(&made);
    *out = made;
    return status;
}

/* The elements [*begin, *end) of slice s of a bucket. */
static void slice_of(const gg_buckets *buckets, int bucket, int s, int slices, size_t *begin, size_t *end) {
    const gg_bucket *b = &buckets->bucket[bucket];
    *begin = *end = 0;
    if (b->first_chunk == b->end_chunk) return;
    const gg_chunk *first = &buckets->chunk[b->first_chunk], *last = &buckets->chunk[b->end_chunk - 1];
    const size_t lanes = (last->offset + last->count - first->offset) / GG_LANES;
    *begin = first->offset + lanes * (size_t)s / (size_t)slices * GG_LANES;
    *end = first->offset + lanes * ((size_t)s + 1) / (size_t)slices * GG_LANES;
}

gg_status gg_buckets_slice(const gg_buckets *buckets, size_t chunk_bytes, int slices, gg_buckets *out) {
    gg_status status = GG_OK;
    const size_t chunk = gg_chunk_elements(chunk_bytes);
    gg_buckets made = {.count = buckets->count * slices};
    size_t begin, end;
    for (int i = 0; i < made.count; ++i) {
        slice_of(buckets, i / slices, i % slices, slices, &begin, &end);
        made.chunk_count += chunks_of(end - begin, chunk);
    }
    GG_TRY_CLEANUP(gg_calloc((size_t)made.count, sizeof *made.bucket, "slices of buckets", &made.bucket));
    GG_TRY_CLEANUP(gg_calloc((size_t)made.chunk_count, sizeof *made.chunk, "chunks", &made.chunk));
    for (int i = 0, first = 0; i < made.count; ++i) {
        const gg_bucket *whole = &buckets->bucket[i / slices];
        slice_of(buckets, i / slices, i % slices, slices, &begin, &end);
        const int n = chunks_of(end - begin, chunk);
        made.bucket[i] = (gg_bucket){whole->first_layer, whole->last_layer, first, first + n};
        for (; begin < end; begin += chunk)
            made.chunk[first++] = (gg_chunk){begin, end - begin < chunk ? end - begin : chunk};
    }
cleanup:
    if (status != GG_OK) gg_buckets_destroy(&made);
    *out = made;
    return status;
}

int gg_buckets_chunk_at(const gg_buckets *buckets, int bucket, size_t at, size_t *next) {
    const gg_bucket *b = &buckets->bucket[bucket];
    *next = SIZE_MAX;
    if (b->first_chunk == b->end_chunk) return -1;
    const gg_chunk *first = &buckets->chunk[b->first_chunk];
    if (at < first->offset) {
        *next = first->offset;
        return -1;
    }
    /* All chunks of a bucket but the last are as long as the first. */
    const size_t i = (at - first->offset) / first->count;
    if (i >= (size_t)(b->end_chunk - b->first_chunk)) return -1;
    const gg_chunk *chunk = first + i;
    if (at >= chunk->offset + chunk->count) return -1;
    *next = chunk->offset + chunk->count;
    return b->first_chunk + (int)i;
}

gg_status gg_buckets_check_tags(const gg_buckets *buckets, int most) {
    if (buckets->chunk_count <= most) return GG_OK;
    return gg_fail(GG_ERROR_ARGUMENT,
                   "chunk_bytes: %d chunks are more than the %d for which there are tags; choose larger chunks",
                   buckets->chunk_count, most);
}

int gg_buckets_of_chunk(const gg_buckets *buckets, int chunk) {
    int low = 0, high = buckets->count - 1;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (chunk < buckets->bucket[middle].end_chunk) high = middle;
        else low = middle + 1;
    }
    return low;
}

static int layers_of(const gg_bucket *bucket) { return bucket->last_layer - bucket->first_layer + 1; }

void gg_buckets_begin(gg_buckets *buckets) {
    for (int i = 0; i < buckets->count; ++i) buckets->waits_for[i] = layers_of(&buckets->bucket[i]);
}

bool gg_buckets_layer_ready(gg_buckets *buckets, int layer) {
    return --buckets->waits_for[buckets->bucket_of_layer[layer]] == 0;
}

bool gg_buckets_untouched(const gg_buckets *buckets, int bucket) {
    return buckets->waits_for[bucket] == layers_of(&buckets->bucket[bucket]);
}

void gg_buckets_destroy(gg_buckets *buckets) {
    gg_free(buckets->bucket);
    gg_free(buckets->chunk);
    gg_free(buckets->bucket_of_layer);
    gg_free(buckets->waits_for);
    memset(buckets, 0, sizeof *buckets);
}
