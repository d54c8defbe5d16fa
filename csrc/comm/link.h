/* Measures what messages between the ranks of a group cost, by sending some. The same code serves shared memory, a
 * network, a simulated network and virtual time. */
#ifndef GG_COMM_LINK_H
#define GG_COMM_LINK_H

#include "comm/transport.h"

typedef struct gg_link {
    double latency; /* seconds until a small message is there */
    double message; /* seconds that each further message adds when several are in flight: work of the ranks */
    double byte;    /* seconds that a byte of a large message adds; nearly 0 in shared memory */
    double read;    /* and until the receiver has read it once */
} gg_link;

/* All ranks send around a ring at the same time, small messages and larger and larger ones, up to `bytes` (about; at
 * most a megabyte) or until that takes milliseconds: a few in all on one machine. The ring is one in which many
 * messages leave their node. Every rank gets the same figures, the worst of all ranks'. Zeroes for one rank.
 * Collective, with nothing in flight. */
gg_status gg_link_measure(gg_transport *transport, size_t bytes, gg_link *out);

#endif
