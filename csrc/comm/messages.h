/* One round of messages whose sizes both sides know: what the primitives of a team are made of.
 *
 * All ranks make the same calls in the same order, and every message that a rank sends in a round its receiver expects
 * in the same round. */
#ifndef GG_COMM_MESSAGES_H
#define GG_COMM_MESSAGES_H

#include "comm/transport.h"

/* Of `data` and `landing` one is NULL: a message that is received has a landing. The bytes are the caller's. Two
 * messages between the same ranks are matched in the order in which both sides list them. */
typedef struct gg_message {
    int peer;         /* another rank */
    size_t bytes;     /* 0: nothing travels */
    const void *data; /* what is sent */
    void *landing;    /* where what is received goes */
} gg_message;

/* Sends and receives all n messages; returns when what was sent may be written and what was received lies in its
 * landing. After a failure nothing is in flight, and messages of the round are lost. It allocates. */
gg_status gg_messages_exchange(gg_transport *transport, const gg_message *messages, int n);

#endif
