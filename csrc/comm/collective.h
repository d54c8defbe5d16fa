/* Collectives over any transport: fixed order of summation, so the same bits on MPI, in the virtual cluster, on every
 * rank and from run to run. All ranks call in the same order. Blocking; waits sleep. */
#ifndef GG_COMM_COLLECTIVE_H
#define GG_COMM_COLLECTIVE_H

#include "backend/backend.h"
#include "comm/transport.h"

gg_status gg_barrier(gg_transport *transport);
/* data of rank `root` to all, in place. */
gg_status gg_broadcast(gg_transport *transport, void *data, size_t bytes, int root);
/* Every rank's `bytes` bytes to all: out holds size * bytes, in rank order. */
gg_status gg_allgather(gg_transport *transport, const void *data, size_t bytes, void *out);
/* Sums over ranks 0, 1, ..., p-1 in this order, of a few doubles, in place. n <= 64. */
gg_status gg_allreduce_doubles(gg_transport *transport, double *values, int n);

/* Weighted sum over the ranks of a large arena, in place: data = sum over r of scale[r] * data_r, in rank order.
 * Reduce-scatter (rank i adds slice i of all) and all-gather: 2(p-1)/p of the arena sent by each rank. Created for
 * one size so that a run allocates nothing. `data` given to run should come from gg_message_alloc; any memory works. */
typedef struct gg_allreduce gg_allreduce;

gg_status gg_allreduce_create(gg_transport *transport, gg_device *device, size_t count, gg_allreduce **out);
void gg_allreduce_destroy(gg_allreduce *allreduce);
/* scale[size of group]: the same on every rank. */
gg_status gg_allreduce_run(gg_allreduce *allreduce, float *data, const float *scale);

#endif
