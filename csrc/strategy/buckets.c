#include "strategy/buckets.h"

#include <string.h>

#include "base/memory.h"

static int chunks_of(size_t count, size_t chunk) { return (int)((count + chunk - 1) / chunk); }

size_t gg_chunk_elements(size_t chunk_bytes) {
    size_t chunk = chunk_bytes / sizeof(float) / GG_LANES * GG_LANES;
    return chunk > 0 ? chunk : GG_LANES;
}

/* The first layer of the run that ends at `last`: adds layers towards the front until they have enough bytes. */
static int first_layer_of(const gg_graph *graph, int last, size_t bucket_bytes) {
    size_t bytes = 0;
    int first = last;
    for (;; --first) {
        bytes += gg_graph_layer(graph, first)->count * sizeof(float);
        if (bytes >= bucket_bytes || first == 0) return first;
    }
}

gg_status gg_buckets_create(const gg_graph *graph, size_t bucket_bytes, size_t chunk_bytes, gg_buckets *out) {
    gg_status status = GG_OK;
    int layers = gg_graph_layers(graph);
    size_t chunk = gg_chunk_elements(chunk_bytes);
    gg_buckets made = {0};

    for (int last = layers - 1; last >= 0;) {
        int first = first_layer_of(graph, last, bucket_bytes);
        const gg_slice *a = gg_graph_layer(graph, first), *b = gg_graph_layer(graph, last);
        made.count++;
        made.chunk_count += chunks_of(b->offset + b->count - a->offset, chunk);
        last = first - 1;
    }
    GG_TRY(gg_calloc((size_t)made.count, sizeof *made.bucket, "buckets", &made.bucket));
    GG_TRY(gg_calloc((size_t)made.chunk_count, sizeof *made.chunk, "chunks", &made.chunk));
    GG_TRY(gg_calloc((size_t)layers, sizeof *made.bucket_of_layer, "bucket of each layer", &made.bucket_of_layer));
    GG_TRY(gg_calloc((size_t)made.count, sizeof *made.waits_for, "counts of layers", &made.waits_for));

    int bucket = made.count, chunk_end = made.chunk_count;
    for (int last = layers - 1; last >= 0;) {
        int first = first_layer_of(graph, last, bucket_bytes);
        const gg_slice *a = gg_graph_layer(graph, first), *b = gg_graph_layer(graph, last);
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
