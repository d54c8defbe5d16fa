/* Private to the room: exchange of one arena with partners, chunk by chunk, through a codec.
 *
 * A stream has two snapshot arenas, used in turn, so that an arena is never written while it is being sent. One is
 * filled and sent while partners may still read the other. gg_stream_wait_sent waits for the partners before an arena
 * is filled again.
 *
 * A chunk from a rank that has died may be LOST instead of arriving: waits and tests report it like an arrived one,
 * gg_stream_arrived tells them apart, and it is released too. A send to a dead rank is complete. */
#ifndef GG_EXCHANGE_PARTS_STREAM_H
#define GG_EXCHANGE_PARTS_STREAM_H

#include "exchange/parts/buckets.h"
#include "exchange/parts/flight.h"
#include "ops/codec.h"

/* The trace's records of a bucket: chunks of one exchange may be sent before those of the previous one are released. */
typedef struct gg_flights {
    gg_flight turn[2];
    int posted, released; /* chunks, modulo those of two exchanges */
} gg_flights;

/* The message that a chunk's receive is for. */
typedef struct gg_origin {
    int64_t step;
    int rank;
} gg_origin;

typedef struct gg_stream {
    gg_strategy *owner;
    const gg_buckets *buckets;
    const gg_codec *codec; /* of the arenas, the landing and gg_stream_received */
    int tag;               /* of chunk 0; chunk i has tag + i */
    void *arena[2];        /* message memory; NULL means receive only */
    void *landing;         /* for chunks that cannot be read in place */
    gg_request *sent[2];   /* one a chunk, for each arena; NULL means receive only */
    gg_request *received;  /* one a chunk */
    gg_origin *origin;     /* one a chunk */
    gg_flights *flights;   /* one a bucket */
    const char *name;      /* of the contents, for the trace; set by the owner */
} gg_stream;

/* arenas: 0 receives only; 1 if every element is written at most once while it may be sent; 2 in turn. index, from 0
 * on, selects the tags: streams share tags only if they share the index. Collective. */
gg_status gg_stream_create(gg_strategy *owner, const gg_buckets *buckets, int index, int arenas, const gg_codec *codec,
                           gg_stream *out);
/* Collective. Cancels messages in flight; after settling there are none. */
void gg_stream_destroy(gg_stream *stream);

/* Starts receiving a bucket from a partner, sending it from arena `which` to a partner, or both. */
gg_status gg_stream_receive(gg_stream *stream, int bucket, int receive_from);
gg_status gg_stream_send(gg_stream *stream, int bucket, int which, int send_to);
gg_status gg_stream_post(gg_stream *stream, int bucket, int which, int send_to, int receive_from);
/* gg_stream_post for one chunk of a bucket. All chunks of a bucket are posted before its next exchange, in any order.
 */
gg_status gg_stream_post_chunk(gg_stream *stream, int bucket, int chunk, int which, int send_to, int receive_from);
/* Waits until the bucket's sends from arena `which` are complete. */
gg_status gg_stream_wait_sent(gg_stream *stream, int bucket, int which);
/* Waits until all sends are complete: partners have read everything. */
gg_status gg_stream_wait_all_sent(gg_stream *stream);
/* Waits for a chunk of the bucket, if it is in flight. gg_stream_received then returns it until gg_stream_release. */
gg_status gg_stream_wait_chunk(gg_stream *stream, int bucket, int chunk);
/* Waits for the whole bucket. gg_stream_received then returns it until gg_stream_release. */
gg_status gg_stream_wait_received(gg_stream *stream, int bucket);
/* *done tells if the chunk has arrived or is lost. */
gg_status gg_stream_test(gg_stream *stream, int chunk, bool *done);
/* True if the chunk has arrived and has not been released. */
static inline bool gg_stream_arrived(const gg_stream *stream, int chunk) {
    return stream->received[chunk].state == GG_REQUEST_ARRIVED;
}
/* The received chunk from element `offset` of the arena on, which lies in the chunk. */
const void *gg_stream_received(const gg_stream *stream, int chunk, size_t offset);
/* Address of element `offset` of arena `which`. */
void *gg_stream_snapshot(const gg_stream *stream, int which, size_t offset);
/* Releases the chunk. After a bucket's last one the trace records its exchange. */
gg_status gg_stream_release(gg_stream *stream, int chunk);

#endif
