/* Small collectives over any transport (the sum of an arena: comm/allreduce.h). Sums are added in a fixed order, so MPI
 * and the virtual cluster give the same bits, on every rank and in every run. All ranks make the same calls in the same
 * order. All calls block; while they wait they sleep. */
#ifndef GG_COMM_COLLECTIVE_H
#define GG_COMM_COLLECTIVE_H

#include "comm/transport.h"

gg_status gg_barrier(gg_transport *transport);
/* Sends data of rank `root` to all, in place. */
gg_status gg_broadcast(gg_transport *transport, void *data, size_t bytes, int root);
/* Gathers every rank's `bytes` bytes on all: out holds size * bytes, in rank order. */
gg_status gg_allgather(gg_transport *transport, const void *data, size_t bytes, void *out);
/* Like gg_allgather, for comparing the ranks' calls. Not counted. Has a tag of its own: a rank in another call never
 * receives these messages. */
gg_status gg_agree(gg_transport *transport, const void *data, size_t bytes, void *out);
/* Sums a few doubles over ranks 0, 1, ..., p-1 in this order, in place. */
gg_status gg_allreduce_doubles(gg_transport *transport, double *values, int n);

/* Copies `bytes` bytes from rank `from` to another rank `to`. Other ranks return at once. `to` writes data, `from`
 * reads it. */
gg_status gg_transfer(gg_transport *transport, void *data, size_t bytes, int from, int to);
/* Seconds to add to this rank's clock to get rank 0's, measured by the quickest of a few round trips. 0 if the clocks
 * differ by less than a round trip can resolve. A later drift of the clocks is not included. */
gg_status gg_clock_offset(gg_transport *transport, double *seconds);

#endif
