/* Private to the room: the packed messages of a sum, this rank's and those of its peers.
 *
 * The own message is in message memory, and is not written again before all peers have read it, which is what
 * gg_packed_messages_read waits for. */
#ifndef GG_EXCHANGE_PARTS_PACKED_MESSAGES_H
#define GG_EXCHANGE_PARTS_PACKED_MESSAGES_H

#include "comm/transport.h"
#include "exchange/strategy.h"

/* The caller fills in the first part, and zeros behind it. */
typedef struct gg_packed_messages {
    gg_strategy *owner;
    gg_transport *group;
    int tag;

    size_t capacity;     /* of a message */
    char *own;           /* message memory: this rank's, */
    size_t size;         /* and its bytes */
    char *landing;       /* `capacity` bytes for each of `landings` ranks */
    int landings;        /* all ranks, or 1: only one sends */
    gg_request *sent;    /* one a rank */
    gg_request *arrived; /* likewise */
} gg_packed_messages;

/* Requests, and where capacity is not 0, the memory of messages. */
gg_status gg_packed_messages_create(gg_packed_messages *m, size_t capacity, int landings);
void gg_packed_messages_destroy(gg_packed_messages *m); /* nothing is in flight */
void gg_packed_messages_cancel(gg_packed_messages *m);

gg_status gg_packed_messages_send(gg_packed_messages *m); /* the own one, to all */
gg_status gg_packed_messages_receive(gg_packed_messages *m, int from);
/* The message of a rank, which may be this one: *done: it is there. */
gg_status gg_packed_messages_reach(gg_packed_messages *m, int from, bool wait, bool *done, const void **message,
                                   size_t *bytes);
/* It is not read any more; that of this rank is left alone. */
gg_status gg_packed_messages_release(gg_packed_messages *m, int from);
/* Until all peers have read the own one. */
gg_status gg_packed_messages_read(gg_packed_messages *m);

/* Bytes of others' messages, which have arrived. */
size_t gg_packed_messages_bytes(const gg_packed_messages *m);
/* Messages that lie with those who sent them are kept here, so that nobody waits. message: one a rank, as from reach.
 */
void gg_packed_messages_keep(gg_packed_messages *m, const void **message);

#endif
