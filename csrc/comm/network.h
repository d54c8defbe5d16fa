/* A simulated slow network.
 *
 * The model, which also moves the clocks of the virtual cluster. Every rank has an outgoing and an incoming link of
 * `bandwidth` bytes a second; each carries one message at a time. For a message of b bytes:
 *
 * 1. The message leaves after its sender's earlier ones, and takes b / bandwidth seconds to leave.
 * 2. Its first byte reaches the receiver `latency` seconds after it left.
 * 3. The message has arrived b / bandwidth seconds later, or that long after the previous message on the receiver's
 * link.
 *
 * Alone it takes latency + b / bandwidth. Messages of many ranks to one wait for each other; those of a ring do not. */
#ifndef GG_COMM_NETWORK_H
#define GG_COMM_NETWORK_H

#include "comm/transport.h"

typedef struct gg_network {
    double latency;   /* seconds, >= 0 */
    double bandwidth; /* bytes a second of each link; 0: unlimited */
} gg_network;

gg_status gg_network_check(const gg_network *network);

/* Creates a transport that slows `inner` down in real time, and owns `inner` on success. The sender gives a message to
 * `inner` when its last byte would arrive on a free link, never sooner. The receiver delays it until earlier messages
 * have arrived. Both happen only inside calls of the rank, so frequent polls make times exact. Messages lie in host
 * memory, whatever `inner` reads. */
gg_status gg_network_transport_create(gg_transport *inner, const gg_network *network, gg_transport **out);

#endif
