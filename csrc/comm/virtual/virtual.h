/* The virtual cluster: p ranks as threads of one process under one baton.
 *
 * Only the holder of the baton runs. Each rank has a virtual clock. Computing adds modelled time, messages take the
 * time of comm/network.h's model. The next to run is the rank with the smallest clock (ties: the lowest rank) among
 * those that can. Messages reach a receiver's link in the order of their first bytes (ties: the lowest sender). So
 * every run is deterministic, asynchronous methods included. Messages are read in the sender's memory.
 *
 * Ranks may die. A dead rank's calls return GG_ERROR_CANCELLED, so its function ends; later runs leave the rank out,
 * and they succeed if all living ranks do. A message arrives whole if its last byte had left the rank's link before the
 * death; all others are lost. An unlimited bandwidth sends every posted message at once. `detect` seconds after the
 * death the others are told (transport.h), at one moment of virtual time, so runs with deaths are deterministic too.
 * Messages that arrive from a dead rank, or are being read, are copied at its death.
 *
 * Newcomers, the last ranks, are in no run before they are admitted.
 *
 * A rank with a service (transport.h) continues to serve after it has returned from a run, until all ranks have. Its
 * clock advances to its last answer. */
#ifndef GG_COMM_VIRTUAL_VIRTUAL_H
#define GG_COMM_VIRTUAL_VIRTUAL_H

#include "comm/network.h"

/* A rank dies in a training step, counted from 0 (gg_transport_step_begun), right after it has posted this many
 * messages in the step, in the run in which it has begun the step. 0 means that it dies at the step's begin, more than
 * the step sends at the begin of the rank's next step: the last step of all is survived. */
typedef struct gg_virtual_death {
    int rank;
    int64_t step, after_messages;
} gg_virtual_death;

typedef struct gg_virtual_options {
    int size; /* ranks, 1 to 4096 */
    gg_network network;
    double compute_rate;            /* multiplies gg_transport_compute's modelled seconds; 1 leaves them unchanged */
    const gg_virtual_death *deaths; /* at most one a rank; copied */
    int death_count;
    double detect;        /* seconds from a death until the others are told; 0 means GG_VIRTUAL_DETECT */
    const int64_t *joins; /* one a newcomer: the step from which it is ready; read at the team's creation */
    int newcomers;        /* the last ranks, fewer than `size` */
} gg_virtual_options;
#define GG_VIRTUAL_DETECT 0.01

typedef struct gg_virtual gg_virtual;

gg_status gg_virtual_create(const gg_virtual_options *options, gg_virtual **out);
void gg_virtual_destroy(gg_virtual *cluster);

/* The transport of one rank, owned by the cluster. */
gg_transport *gg_virtual_transport(gg_virtual *cluster, int rank);

/* True if the rank has died; *when then receives its clock at the death, unless `when` is NULL. Between runs, or by a
 * rank. Ranks ask gg_transport_dead if they have been told. */
bool gg_virtual_dead(const gg_virtual *cluster, int rank, double *when);

/* Later runs include this newcomer. Its clock begins at `now`. Between runs. A rank that is there is a no-op. */
void gg_virtual_admit(gg_virtual *cluster, int rank, double now);

int gg_virtual_size(const gg_virtual *cluster);                /* dead ranks and newcomers included */
int64_t gg_virtual_begun(const gg_virtual *cluster, int rank); /* steps, as gg_transport_step_begun told */

/* A rank's clock, and the times at which its links become idle; in seconds. */
typedef struct gg_virtual_clock {
    double now, out_free, in_free;
} gg_virtual_clock;

/* Between runs, with nothing in flight: messages in flight have times of their own. */
gg_virtual_clock gg_virtual_get_clock(const gg_virtual *cluster, int rank);
void gg_virtual_set_clock(gg_virtual *cluster, int rank, gg_virtual_clock clock);

/* Runs fn(context, rank) on every living rank's own thread and returns when all have returned. The first failure (in
 * baton order) stops the others at their next wait with GG_ERROR_CANCELLED; its status and message, prefixed with "rank
 * r: ", are the caller's. If all ranks wait for messages that nobody will send, the run fails with GG_ERROR_COMM and
 * says who waits for whom. Called by one thread at a time. After a failure the cluster can be used no more. */
gg_status gg_virtual_run(gg_virtual *cluster, gg_status (*fn)(void *context, int rank), void *context);

/* Runs beside the clock, for measuring: clocks, links and message counts are restored afterwards. No wait ends by a
 * timeout, and no rank dies. Nothing may be in flight before or after. */
gg_status gg_virtual_run_aside(gg_virtual *cluster, gg_status (*fn)(void *context, int rank), void *context);

/* Like gg_virtual_run. Every `seconds` of real time, when the baton next changes hands, fn(context) is called on the
 * caller's thread while all ranks stand still. fn may read and write the ranks' data, but not run the cluster. A call
 * that changes nothing has no effect on the run. fn NULL means never. */
typedef struct gg_watch {
    void (*fn)(void *context);
    void *context;
    double seconds;
} gg_watch;

gg_status gg_virtual_run_watched(gg_virtual *cluster, gg_status (*fn)(void *context, int rank), void *context,
                                 const gg_watch *watch);

#endif
