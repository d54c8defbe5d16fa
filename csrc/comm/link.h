/* Measures the cost of messages between the ranks of a group by sending some: over shared memory, a network, a
 * simulated network or in virtual time. */
#ifndef GG_COMM_LINK_H
#define GG_COMM_LINK_H

#include "comm/transport.h"

typedef struct gg_link {
    double latency; /* seconds until a small message arrives */
    double message; /* seconds of each further message in flight: work of the ranks */
    double byte;    /* seconds a byte of a large message; nearly 0 in shared memory */
    double read;    /* seconds a byte until the receiver has read it once */
} gg_link;

/* All ranks send around a ring at once: small messages, then growing ones, up to about `bytes` (at most a megabyte) or
 * until one takes milliseconds. On one machine this takes a few milliseconds. In the ring many messages leave their
 * node. All ranks get the worst rank's figures, one rank gets zeros. Collective, with nothing in flight. */
gg_status gg_link_measure(gg_transport *transport, size_t bytes, gg_link *out);

#endif
