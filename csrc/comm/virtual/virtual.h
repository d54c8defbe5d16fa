/* The virtual cluster: p ranks as threads of one process under one baton.
 *
 * Only the holder of the baton runs. Each rank has a virtual clock; computing adds modelled time, a message takes what
 * comm/network.h says, and the rank with the smallest clock (ties: the lowest rank) that can run runs next. Messages
 * come to a receiver's link in the order of their first bytes (ties: the lowest sender). So every run is deterministic,
 * asynchronous methods included. Messages are read in the sender's memory.
 *
 * A rank with a service (transport.h) continues to serve after it has returned from a run, until all ranks have. Its
 * clock advances to what it served last. */
#ifndef GG_COMM_VIRTUAL_VIRTUAL_H
#define GG_COMM_VIRTUAL_VIRTUAL_H

#include "comm/network.h"

typedef struct gg_virtual_options {
    int size; /* ranks, 1 to 4096 */
    gg_network network;
    double compute_rate; /* multiplies modelled seconds given to gg_transport_compute; 1: as they are */
} gg_virtual_options;

typedef struct gg_virtual gg_virtual;

gg_status gg_virtual_create(const gg_virtual_options *options, gg_virtual **out);
void gg_virtual_destroy(gg_virtual *cluster);

/* The transport of one rank, owned by the cluster. */
gg_transport *gg_virtual_transport(gg_virtual *cluster, int rank);

/* A rank's clock, and when its links are idle again; in seconds. */
typedef struct gg_virtual_clock {
    double now, out_free, in_free;
} gg_virtual_clock;

/* Between runs, with nothing in flight: what is in flight has times of its own. */
gg_virtual_clock gg_virtual_get_clock(const gg_virtual *cluster, int rank);
void gg_virtual_set_clock(gg_virtual *cluster, int rank, gg_virtual_clock clock);

/* Runs fn(context, rank) on every rank's own thread and returns when all have returned. The first failure (in baton
 * order) stops the others at their next wait with GG_ERROR_CANCELLED; its status and message, prefixed with "rank r: ",
 * are the caller's. If all ranks wait for messages that nobody will send, the run fails with GG_ERROR_COMM and says who
 * waits for whom. Called by one thread at a time. After a failure the cluster can be used no more. */
gg_status gg_virtual_run(gg_virtual *cluster, gg_status (*fn)(void *context, int rank), void *context);

/* The same beside the clock, for measuring: afterwards clocks, links and counts of messages are what they were. No wait
 * ends by a timeout. Nothing may be in flight before it or after it. */
gg_status gg_virtual_run_aside(gg_virtual *cluster, gg_status (*fn)(void *context, int rank), void *context);

/* The same as gg_virtual_run, and every `seconds` of real time, when the baton next changes hands, watch(context) is
 * called on the caller's thread while all ranks stand still. It may read and write what they read and write; it may not
 * run the cluster. What it does not change goes on as if it had not been called. fn NULL: never. */
typedef struct gg_watch {
    void (*fn)(void *context);
    void *context;
    double seconds;
} gg_watch;

gg_status gg_virtual_run_watched(gg_virtual *cluster, gg_status (*fn)(void *context, int rank), void *context,
                                 const gg_watch *watch);

#endif
