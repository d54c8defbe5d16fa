#include "exchange/parts/stream.h"

#include <string.h>

#include "base/memory.h"
#include "exchange/parts/common.h"
#include "exchange/parts/receipts.h"

gg_status gg_stream_create(gg_strategy *owner, const gg_buckets *buckets, int index, int arenas, const gg_codec *codec,
                           gg_stream *out) {
    gg_status status = GG_OK;
    size_t bytes = owner->env.state->count * codec->size, chunks = (size_t)buckets->chunk_count;
    gg_stream made = {.owner = owner,
                      .buckets = buckets,
                      .codec = codec,
                      .tag = GG_TAG_USER + index * buckets->chunk_count,
                      .name = "bucket"};

    GG_TRY_CLEANUP(gg_buckets_check_tags(buckets, (GG_TAG_LIMIT - GG_TAG_USER) / (index + 1)));
    for (int i = 0; i < arenas; ++i) {
        GG_TRY_CLEANUP(gg_message_alloc_device(owner->env.transport, bytes, "exchanged arena", &made.arena[i]));
        GG_TRY_CLEANUP(gg_calloc(chunks, sizeof(gg_request), "send requests", &made.sent[i]));
    }
    GG_TRY_CLEANUP(gg_device_alloc_message(owner->env.device, bytes, "landing arena", &made.landing));
    GG_TRY_CLEANUP(gg_calloc(chunks, sizeof(gg_request), "receive requests", &made.received));
    GG_TRY_CLEANUP(gg_calloc(chunks, sizeof *made.origin, "origins of chunks", &made.origin));
    GG_TRY_CLEANUP(gg_calloc((size_t)buckets->count, sizeof *made.flights, "flights", &made.flights));
cleanup:
    if (status != GG_OK) gg_stream_destroy(&made);
    *out = made;
    return status;
}

void gg_stream_destroy(gg_stream *stream) {
    if (stream->owner == NULL) return;
    gg_transport *transport = stream->owner->env.transport;
    for (int i = 0; i < 2; ++i) gg_cancel_all(transport, stream->sent[i], stream->buckets->chunk_count);
    gg_cancel_all(transport, stream->received, stream->buckets->chunk_count);
    gg_message_free(transport, stream->arena[1]);
    gg_message_free(transport, stream->arena[0]);
    gg_device_free_host(stream->owner->env.device, stream->landing);
    gg_free(stream->sent[0]);
    gg_free(stream->sent[1]);
    gg_free(stream->received);
    gg_free(stream->origin);
    gg_free(stream->flights);
    memset(stream, 0, sizeof *stream);
}

static gg_status stream_at_bucket(const gg_stream *stream, int bucket, gg_status status) {
    const gg_bucket *b = &stream->buckets->bucket[bucket];
    return gg_strategy_at(stream->owner, b->first_layer, b->last_layer, status);
}

static void show_begin(gg_stream *stream, int bucket, int peer) {
    const gg_strategy *owner = stream->owner;
    const gg_bucket *b = &stream->buckets->bucket[bucket];
    gg_flights *flights = &stream->flights[bucket];
    const int chunks = b->end_chunk - b->first_chunk;
    if (flights->posted % chunks == 0) gg_flight_begin(&flights->turn[flights->posted / chunks], owner, peer);
    flights->posted = (flights->posted + 1) % (2 * chunks);
}

static gg_status receive_chunk(gg_stream *stream, int bucket, int i, int receive_from) {
    const gg_chunk *chunk = &stream->buckets->chunk[i];
    gg_transport *transport = stream->owner->env.transport;
    size_t size = stream->codec->size;
    show_begin(stream, bucket, receive_from);
    stream->origin[i] = (gg_origin){stream->owner->step, receive_from};
    return gg_receive_exact(transport, (char *)stream->landing + chunk->offset * size, chunk->count * size,
                            receive_from, stream->tag + i, &stream->received[i]);
}

static gg_status send_chunk(gg_stream *stream, int i, int which, int send_to) {
    const gg_chunk *chunk = &stream->buckets->chunk[i];
    return gg_send(stream->owner->env.transport, gg_stream_snapshot(stream, which, chunk->offset),
                   chunk->count * stream->codec->size, send_to, stream->tag + i, &stream->sent[which][i]);
}

gg_status gg_stream_receive(gg_stream *stream, int bucket, int receive_from) {
    gg_status status = GG_OK;
    const gg_bucket *b = &stream->buckets->bucket[bucket];
    for (int i = b->first_chunk; i < b->end_chunk; ++i) GG_TRY_CLEANUP(receive_chunk(stream, bucket, i, receive_from));
cleanup:
    return stream_at_bucket(stream, bucket, status);
}

gg_status gg_stream_send(gg_stream *stream, int bucket, int which, int send_to) {
    gg_status status = GG_OK;
    const gg_bucket *b = &stream->buckets->bucket[bucket];
    for (int i = b->first_chunk; i < b->end_chunk; ++i) GG_TRY_CLEANUP(send_chunk(stream, i, which, send_to));
cleanup:
    return stream_at_bucket(stream, bucket, status);
}

gg_status gg_stream_post(gg_stream *stream, int bucket, int which, int send_to, int receive_from) {
    /* A message whose receive is posted needs no extra copy. */
    GG_TRY(gg_stream_receive(stream, bucket, receive_from));
    return gg_stream_send(stream, bucket, which, send_to);
}

gg_status gg_stream_post_chunk(gg_stream *stream, int bucket, int chunk, int which, int send_to, int receive_from) {
    gg_status status = GG_OK;
    GG_TRY_CLEANUP(receive_chunk(stream, bucket, chunk, receive_from));
    GG_TRY_CLEANUP(send_chunk(stream, chunk, which, send_to));
cleanup:
    return stream_at_bucket(stream, bucket, status);
}

static gg_status stream_wait(gg_stream *stream, int bucket, gg_request *request) {
    const gg_bucket *b = &stream->buckets->bucket[bucket];
    return gg_strategy_wait_layers(stream->owner, b->first_layer, b->last_layer, request);
}

static gg_status wait_all(gg_stream *stream, int bucket, gg_request *requests) {
    gg_status status = GG_OK;
    const gg_bucket *b = &stream->buckets->bucket[bucket];
    for (int i = b->first_chunk; i < b->end_chunk; ++i) GG_TRY_CLEANUP(stream_wait(stream, bucket, &requests[i]));
cleanup:
    return stream_at_bucket(stream, bucket, status);
}

gg_status gg_stream_wait_sent(gg_stream *stream, int bucket, int which) {
    const gg_bucket *b = &stream->buckets->bucket[bucket];
    GG_TRY(wait_all(stream, bucket, stream->sent[which]));
    for (int i = b->first_chunk; i < b->end_chunk; ++i)
        GG_TRY(gg_release(stream->owner->env.transport, &stream->sent[which][i])); /* to a dead rank */
    return GG_OK;
}

gg_status gg_stream_wait_all_sent(gg_stream *stream) {
    for (int bucket = 0; bucket < stream->buckets->count; ++bucket)
        for (int which = 0; which < 2 && stream->sent[which] != NULL; ++which)
            GG_TRY(gg_stream_wait_sent(stream, bucket, which));
    return GG_OK;
}

gg_status gg_stream_wait_chunk(gg_stream *stream, int bucket, int chunk) {
    return stream_at_bucket(stream, bucket, stream_wait(stream, bucket, &stream->received[chunk]));
}

gg_status gg_stream_wait_received(gg_stream *stream, int bucket) { return wait_all(stream, bucket, stream->received); }

gg_status gg_stream_test(gg_stream *stream, int chunk, bool *done) {
    gg_status status = gg_test(stream->owner->env.transport, &stream->received[chunk], done);
    return status == GG_OK ? status : stream_at_bucket(stream, gg_buckets_of_chunk(stream->buckets, chunk), status);
}

const void *gg_stream_received(const gg_stream *stream, int chunk, size_t offset) {
    return (const char *)stream->received[chunk].data +
           (offset - stream->buckets->chunk[chunk].offset) * stream->codec->size;
}

void *gg_stream_snapshot(const gg_stream *stream, int which, size_t offset) {
    return gg_codec_at(stream->codec, stream->arena[which], offset);
}

/* Called before a chunk is released. The last chunk ends its exchange. */
static void show_end(gg_stream *stream, int bucket, int chunk) {
    const gg_request *request = &stream->received[chunk];
    const bool arrived = gg_stream_arrived(stream, chunk);
    const gg_bucket *b = &stream->buckets->bucket[bucket];
    gg_flights *flights = &stream->flights[bucket];
    const int chunks = b->end_chunk - b->first_chunk;
    gg_flight *flight = &flights->turn[flights->released / chunks];
    gg_flight_arrived(flight, arrived ? request->when : 0, arrived ? request->bytes : 0);
    flights->released = (flights->released + 1) % (2 * chunks);
    if (flights->released % chunks == 0)
        gg_flight_end(flight, stream->owner, stream->name, b->first_layer, b->last_layer);
}

gg_status gg_stream_release(gg_stream *stream, int chunk) {
    const gg_strategy_env *env = &stream->owner->env;
    int bucket = gg_buckets_of_chunk(stream->buckets, chunk);
    const gg_origin *origin = &stream->origin[chunk];
    show_end(stream, bucket, chunk);
    if (gg_stream_arrived(stream, chunk)) gg_receipts_part(stream->owner->receipts, origin->rank, origin->step);
    return stream_at_bucket(stream, bucket, gg_release(env->transport, &stream->received[chunk]));
}
