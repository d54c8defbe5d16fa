/* Private to the room: layers joined to buckets, buckets cut into chunks. */
#ifndef GG_EXCHANGE_PARTS_BUCKETS_H
#define GG_EXCHANGE_PARTS_BUCKETS_H

#include "exchange/strategy.h"

/* A piece of an arena that travels as one message. */
typedef struct gg_chunk {
    size_t offset, count; /* float32 elements */
} gg_chunk;

/* Layers [first_layer, last_layer] that are exchanged together, as chunks [first_chunk, end_chunk). */
typedef struct gg_bucket {
    int first_layer, last_layer;
    int first_chunk, end_chunk;
} gg_bucket;

typedef struct gg_buckets {
    int count, chunk_count;
    gg_bucket *bucket; /* in forward order */
    gg_chunk *chunk;
    int *bucket_of_layer;
    int *waits_for; /* one a bucket: number of its layers that are not ready in this step */
} gg_buckets;

/* Elements of a chunk of at most chunk_bytes: whole lanes, at least one. */
size_t gg_chunk_elements(size_t chunk_bytes);
/* Joins layers from the last to the first, because gradients become final in that order. A bucket ends when it holds at
 * least bucket_bytes. The layers left at the front are a bucket of their own. */
gg_status gg_buckets_create(const gg_arena_layout *layout, size_t bucket_bytes, size_t chunk_bytes, gg_buckets *out);
/* Cuts every bucket into `slices` runs of whole lanes of about equal size, and these into chunks. Slice s of bucket b
 * is bucket b * slices + s of `out`, and has the bucket's layers. A slice is empty if there are more slices than lanes.
 * `out` has no bucket_of_layer and counts no layers. */
gg_status gg_buckets_slice(const gg_buckets *buckets, size_t chunk_bytes, int slices, gg_buckets *out);
/* Returns the bucket's chunk with element `at`, or -1 if none has it. *next receives the end of the run with this
 * answer; SIZE_MAX means that it has no end. */
int gg_buckets_chunk_at(const gg_buckets *buckets, int bucket, size_t at, size_t *next);
/* Checks that `most` tags, one a chunk, are enough. */
gg_status gg_buckets_check_tags(const gg_buckets *buckets, int most);
/* Returns the bucket of a chunk. */
int gg_buckets_of_chunk(const gg_buckets *buckets, int chunk);
/* Begins a step: no layer is ready. */
void gg_buckets_begin(gg_buckets *buckets);
/* Counts that a layer is ready. True if its bucket is now complete. */
bool gg_buckets_layer_ready(gg_buckets *buckets, int layer);
/* True if no layer of the bucket is ready yet in this step. */
bool gg_buckets_untouched(const gg_buckets *buckets, int bucket);
void gg_buckets_destroy(gg_buckets *buckets);

#endif
