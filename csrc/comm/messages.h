/* One round of messages whose sizes both sides know; basis of the primitives of a team.
 *
 * All ranks make the same calls in the same order. The receiver of a message expects it in the round in which it is
 * sent. */
#ifndef GG_COMM_MESSAGES_H
#define GG_COMM_MESSAGES_H

#include "comm/transport.h"

/* Either `data` or `landing` is NULL; a received message has a landing. The bytes are the caller's. Messages between
 * two ranks are matched in the order of both sides' lists. */
typedef struct gg_message {
    int peer;         /* another rank */
    size_t bytes;     /* 0: nothing travels */
    const void *data; /* to send */
    void *landing;    /* to receive into */
} gg_message;

/* Sends and receives all n messages; returns when sent memory may be written and received messages are in their
 * landings. After a failure nothing is in flight, and messages of the round are lost. Allocates. */
gg_status gg_messages_exchange(gg_transport *transport, const gg_message *messages, int n);

#endif
