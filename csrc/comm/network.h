/* A simulated slow network.
 *
 * The model, which moves the clocks of the virtual cluster and holds messages back here: every rank has an outgoing and
 * an incoming link of `bandwidth` bytes a second, and each carries one message at a time. A message of b bytes leaves
 * when those that its sender sent before have left, which takes b / bandwidth seconds; its first byte is at the
 * receiver `latency` seconds after it left, and it has arrived b / bandwidth seconds after its first byte, or after the
 * message before it on the receiver's link if that is later. So alone it takes latency + b / bandwidth; the messages of
 * many ranks to one wait for each other; those of a ring do not. */
#ifndef GG_COMM_NETWORK_H
#define GG_COMM_NETWORK_H

#include "comm/transport.h"

typedef struct gg_network {
    double latency;   /* seconds, >= 0 */
    double bandwidth; /* bytes a second of each link; 0: unlimited */
} gg_network;

gg_status gg_network_check(const gg_network *network);

/* A transport that slows `inner` down in real time, and owns it from now on if this succeeds. A message is given to
 * `inner` when its last byte would be there with the receiver's link free, never sooner. The receiver delays it until
 * the messages before it have arrived. Both happen only inside calls of the rank, so times are as exact as it polls
 * often. Messages lie in memory of the host, whatever `inner` reads. */
gg_status gg_network_transport_create(gg_transport *inner, const gg_network *network, gg_transport **out);

#endif
