/* Private to the room: one arena that partners exchange, chunk by chunk, as its codec says.
 *
 * A stream has two snapshot arenas, used in turn, so that an arena is never written while it is being sent: one is
 * filled and sent while partners may still read the other. Before an arena is filled again, gg_stream_wait_sent makes
 * sure that partners have read what was sent from it.
 */
#ifndef GG_EXCHANGE_PARTS_STREAM_H
#define GG_EXCHANGE_PARTS_STREAM_H

#include "exchange/parts/buckets.h"
#include "exchange/parts/flight.h"
#include "ops/codec.h"

/* What the trace records of a bucket: chunks of one exchange may be sent before those of the previous one are released.
 */
typedef struct gg_flights {
    gg_flight turn[2];
    int posted, released; /* chunks, modulo those of two exchanges */
} gg_flights;

typedef struct gg_stream {
    gg_strategy *owner;
    const gg_buckets *buckets;
    const gg_codec *codec; /* of what is sent: of the arenas, the landing and gg_stream_received */
    int tag;               /* of chunk 0; chunk i has tag + i */
    void *arena[2];        /* message memory; NULL: it only receives */
    void *landing;         /* where chunks arrive that cannot be read in place */
    gg_request *sent[2];   /* a request a chunk, for each arena; NULL: it only receives */
    gg_request *received;  /* a request a chunk */
    gg_flights *flights;   /* one a bucket */
    const char *name;      /* what travels, for the trace; set by the owner */
} gg_stream;

/* arenas: 0: it only receives; 1: every element is written at most once while it may be sent; 2: in turn. index, from 0
 * on: streams of one index have the same tags, and others have others. Collective. */
gg_status gg_stream_create(gg_strategy *owner, const gg_buckets *buckets, int index, int arenas, const gg_codec *codec,
                           gg_stream *out);
/* Collective. Cancels what is still in flight; after settling nothing is. */
void gg_stream_destroy(gg_stream *stream);

/* Starts receiving a bucket from a partner; sending it from arena `which` to a partner; both. */
gg_status gg_stream_receive(gg_stream *stream, int bucket, int receive_from);
gg_status gg_stream_send(gg_stream *stream, int bucket, int which, int send_to);
gg_status gg_stream_post(gg_stream *stream, int bucket, int which, int send_to, int receive_from);
/* Both, of one chunk of a bucket. All chunks of a bucket are posted before the next exchange of it, in any order. */
gg_status gg_stream_post_chunk(gg_stream *stream, int bucket, int chunk, int which, int send_to, int receive_from);
/* Waits until nothing of the bucket is being sent from arena `which`. */
gg_status gg_stream_wait_sent(gg_stream *stream, int bucket, int which);
/* Waits until nothing at all is being sent: partners have read everything. */
gg_status gg_stream_wait_all_sent(gg_stream *stream);
/* Waits until a chunk of the bucket has arrived, if it is in flight; gg_stream_received then gives it until
 * gg_stream_release. */
gg_status gg_stream_wait_chunk(gg_stream *stream, int bucket, int chunk);
/* Waits until the whole bucket has arrived; gg_stream_received then gives it until gg_stream_release. */
gg_status gg_stream_wait_received(gg_stream *stream, int bucket);
/* Whether chunk i has arrived. */
gg_status gg_stream_test(gg_stream *stream, int chunk, bool *arrived);
/* From element `offset` of the arena on, which lies in the chunk. */
const void *gg_stream_received(const gg_stream *stream, int chunk, size_t offset);
/* Where element `offset` of arena `which` is. */
void *gg_stream_snapshot(const gg_stream *stream, int which, size_t offset);
/* Releases the chunk. With the last one of a bucket the trace records its exchange. */
gg_status gg_stream_release(gg_stream *stream, int chunk);

#endif
