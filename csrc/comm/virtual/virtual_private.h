/* Shared by the files of this folder: a cluster, its ranks and the insides of requests. Only the holder of the baton
 * touches them, except for gg_virtual.watch_due.
 *
 * virtual.c: life of a cluster, runs, the ranks' threads. virtual_transport.c: the transport table, matching of
 * messages and receives. due.c: ranks that can run. wire.c: times of arrival. deadlock.c: no rank can run. death.c:
 * ranks that die. queue.c: lists of requests. scheduler.c: the next rank.
 *
 * Calls go one way: virtual.c and virtual_transport.c call scheduler.c, it calls deadlock.c and death.c, that calls
 * wire.c and queue.c, and all of these call due.c. */
#ifndef GG_COMM_VIRTUAL_VIRTUAL_PRIVATE_H
#define GG_COMM_VIRTUAL_VIRTUAL_PRIVATE_H

#include <stdatomic.h>

#include "comm/virtual/baton.h"
#include "comm/virtual/heap.h"
#include "comm/virtual/virtual.h"

#define GG_VIRTUAL_BUCKETS 16
#define GG_VIRTUAL_TEXT 1024

/* A request's private words. */
typedef struct __attribute__((may_alias)) gg_virtual_request {
    gg_request *next, *previous, *partner; /* partner: the matched request of the other side */
    gg_request *behind;                    /* send: the next one on the wire from this rank */
    const void *data;                      /* send: the message */
    double time;                           /* if known: the clock of this request's completion */
    double left;                           /* send: the clock at which the last byte leaves its rank */
    int32_t owner;                         /* the request's rank */
    bool known, broken;                    /* broken: the other side cancelled */
    bool arrived;                          /* send: `time` is the message's arrival; before, its first byte's arrival */
    bool lost;                             /* the other side has died; the request is known and in no list */
} gg_virtual_request;

_Static_assert(sizeof(gg_virtual_request) <= sizeof((gg_request *)0)->private_, "gg_virtual_request must fit");

typedef struct gg_virtual_ghost gg_virtual_ghost;
typedef struct gg_virtual_kept gg_virtual_kept;

typedef struct gg_virtual_queue {
    gg_request *first, *last;
} gg_virtual_queue;

typedef struct gg_virtual_rank {
    gg_transport transport; /* first: a gg_transport is cast to this */
    gg_virtual *cluster;
    gg_baton baton;
    pthread_t thread;
    bool started, finished;
    double clock, out_free, in_free; /* *_free: when the links become idle */
    gg_heap_entry due;  /* entry in the heap of ranks that wait for the baton: the clock from which the rank can run */
    bool only_deadline; /* that clock is a wait's timeout: the rank does not count as able to run */
    gg_heap_entry wire; /* entry in the heap of ranks with messages on the wire: the next first byte's arrival */
    gg_request *wire_first, *wire_last;
    gg_request *waiting; /* its completion time is not known yet */
    double wait_start;
    bool polling;       /* sleeps until one of its requests changes, or no other rank can run */
    bool waits_for_any; /* sleeps until one of its requests changes */
    bool lingers;       /* its function has returned, and it serves the other ranks */
    bool has_event;     /* a request has changed since the rank last waited for any */
    int empty_tests;    /* consecutive tests that found nothing */
    double next_known;  /* the earliest completion among the requests of these tests */
    /* Messages and receives for which this rank is the destination, unmatched, by (source, tag). */
    gg_virtual_queue sends[GG_VIRTUAL_BUCKETS], receives[GG_VIRTUAL_BUCKETS];
    gg_virtual_queue paired;       /* this rank's requests that have a partner */
    const gg_virtual_death *death; /* NULL means that it lives */
    bool in_last_step, dying;      /* dying: it dies in its next call */
    bool dead, told;               /* told: the others know */
    bool absent;                   /* a newcomer that has not been admitted */
    bool counts;                   /* its last step has begun in this run: later runs are not the step */
    int64_t sent;                  /* messages posted in its last step */
    int64_t begun;                 /* steps, as gg_transport_step_begun told */
} gg_virtual_rank;

struct gg_virtual {
    gg_virtual_options options;
    gg_virtual_rank *ranks;
    gg_heap due, wire;
    int able;                /* entries of due that are not only_deadline */
    int unfinished, working; /* working: of them, those whose function has not returned yet */
    int dead, told, absent;  /* ranks */
    gg_virtual_death *deaths;
    gg_virtual_ghost *ghosts;
    gg_virtual_kept *kept;
    bool running, quit, aside; /* aside: gg_virtual_run_aside */
    gg_status (*fn)(void *context, int rank);
    void *context;
    gg_baton caller;
    atomic_bool watch_due;
    bool failed, deadlock, recorded;
    int failed_rank;
    gg_status status;
    char text[GG_VIRTUAL_TEXT], deadlock_text[GG_VIRTUAL_TEXT];
};

static inline gg_virtual_request *gg_link_of(gg_request *request) { return (gg_virtual_request *)request->private_; }
static inline gg_virtual_rank *gg_rank_of(gg_transport *transport) { return (gg_virtual_rank *)transport; }

extern const gg_transport_table gg_virtual_table;

/* ---- due.c ---- */

/* Insert a rank into the heap of ranks that can run, from clock `key` on, and remove it. */
void gg_virtual_make_due(gg_virtual *cluster, gg_virtual_rank *rank, double key, bool only_deadline);
void gg_virtual_make_undue(gg_virtual *cluster, gg_virtual_rank *rank);

/* `request` will complete at `time`: if its rank waits for it, that rank can run from then on. */
void gg_virtual_wake(gg_virtual *cluster, gg_request *request, double time);

/* A waiting rank can run from `time` on, whatever it waits for: it looks again. */
void gg_virtual_stir(gg_virtual *cluster, gg_virtual_rank *rank, double time);

/* ---- queue.c ---- */

void gg_virtual_append(gg_virtual_queue *q, gg_request *request);
void gg_virtual_remove(gg_virtual_queue *q, gg_request *request);
void gg_virtual_replace(gg_virtual_queue *q, gg_request *request, gg_request *by);
/* The lists of a receiver's unmatched messages and receives with this source and tag, among others. */
gg_virtual_queue *gg_virtual_sends_to(gg_virtual *cluster, int receiver, int source, int tag);
gg_virtual_queue *gg_virtual_receives_of(gg_virtual *cluster, int receiver, int source, int tag);
/* Make a send and a receive, in no list, partners, and end that. */
void gg_virtual_pair(gg_virtual *cluster, gg_request *send, gg_request *receive);
void gg_virtual_part(gg_virtual *cluster, gg_request *request);

/* ---- death.c ---- */

gg_status gg_virtual_check_deaths(const gg_virtual_options *options);
void gg_virtual_step_begun(gg_transport *transport, int64_t begun);
/* The calling rank dies. A failure leaves it alive. */
gg_status gg_virtual_die(gg_virtual_rank *rank);
/* The heap has reached the time at which the others learn of a death. */
void gg_virtual_tell(gg_virtual *cluster, gg_virtual_rank *dead);
/* A request in no list becomes LOST at `time`. */
void gg_virtual_lose(gg_virtual *cluster, gg_request *request, double time);
/* Sends of dead ranks that are in some list are copies of the cluster's. */
void gg_virtual_free_ghost(gg_virtual *cluster, gg_request *request);
/* True if the cluster takes message memory that a rank frees, because others may still read it. */
bool gg_virtual_keep(gg_virtual_rank *rank, void *block);
/* Frees what is left of the dead. */
void gg_virtual_bury(gg_virtual *cluster);

/* ---- scheduler.c ---- */

/* Hands the baton to the due rank. self: the calling rank, which then sleeps until it is due; NULL means none. */
void gg_virtual_hand_on(gg_virtual *cluster, gg_virtual_rank *self);

/* GG_OK while the cluster runs, no rank has failed, and this one lives. A rank that is to die does so here. */
gg_status gg_virtual_still_good(gg_virtual_rank *rank);

/* Lets ranks that are behind run first, so that all messages sent before this rank's clock have been. */
gg_status gg_virtual_let_others_catch_up(gg_virtual_rank *rank);

/* A test found nothing. Puts a rank that only polls to sleep until a test can succeed. */
gg_status gg_virtual_found_nothing(gg_virtual_rank *rank, gg_request *request);

/* Returns at once if a request changed while the rank was testing others: it must test all of them again. */
gg_status gg_virtual_wait_for_any(gg_virtual_rank *rank);

/* ---- wire.c ---- */

/* A message leaves this rank as soon as its link is idle. */
void gg_virtual_put_on_wire(gg_virtual_rank *from, const void *data, gg_request *send);
/* Removes a message that has not arrived. */
void gg_virtual_off_wire(gg_virtual *cluster, gg_virtual_rank *from, gg_request *send);
/* Puts a copy in the place of a message that has not arrived. */
void gg_virtual_replace_on_wire(gg_virtual_rank *from, gg_request *send, gg_request *copy);

/* The receive has its message, or will have it at `time`. */
void gg_virtual_announce(gg_virtual *cluster, gg_request *receive, double time);

/* Lets first bytes reach their receivers, in order, up to `until` and while no rank could still send an earlier one. */
void gg_virtual_deliver(gg_virtual *cluster, double until);

/* ---- deadlock.c ---- */

/* Lets every waiting rank run, to find that it has failed. */
void gg_virtual_fail_all(gg_virtual *cluster);

/* Reports who waits for whom, and fails all ranks. */
void gg_virtual_declare_deadlock(gg_virtual *cluster);

#endif
