/* Private to the room: the packed messages of a sum, this rank's and those of its peers.
 *
 * The own message is in message memory. Its memory is not written again before all peers have read it;
 * gg_packed_messages_read waits for that. */
#ifndef GG_EXCHANGE_PARTS_PACKED_MESSAGES_H
#define GG_EXCHANGE_PARTS_PACKED_MESSAGES_H

#include "comm/transport.h"
#include "exchange/strategy.h"

/* The caller fills in the first part, and zeroes the rest. */
typedef struct gg_packed_messages {
    gg_strategy *owner;
    gg_transport *group;
    int tag;

    size_t capacity;     /* of a message */
    char *own;           /* message memory: this rank's message */
    size_t size;         /* its bytes */
    char *landing;       /* `capacity` bytes for each of `landings` ranks */
    int landings;        /* all ranks, or 1 if only one sends */
    gg_request *sent;    /* one a rank */
    gg_request *arrived; /* one a rank */
} gg_packed_messages;

/* Makes requests and, unless capacity is 0, the memory of messages. */
gg_status gg_packed_messages_create(gg_packed_messages *m, size_t capacity, int landings);
void gg_packed_messages_destroy(gg_packed_messages *m); /* nothing is in flight */
void gg_packed_messages_cancel(gg_packed_messages *m);

gg_status gg_packed_messages_send(gg_packed_messages *m); /* the own message, to all */
gg_status gg_packed_messages_receive(gg_packed_messages *m, int from);
/* Returns the message of a rank, which may be this one. *done: it has arrived. */
gg_status gg_packed_messages_reach(gg_packed_messages *m, int from, bool wait, bool *done, const void **message,
                                   size_t *bytes);
/* Ends the reading of a rank's message; a no-op for this rank's. */
gg_status gg_packed_messages_release(gg_packed_messages *m, int from);
/* Waits until all peers have read the own message. */
gg_status gg_packed_messages_read(gg_packed_messages *m);

#endif
