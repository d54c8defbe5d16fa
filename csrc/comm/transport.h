/* The transport: messages between the ranks of a group. One table: MPI, net, virtual.
 *
 * Point-to-point only. comm/collective.h and comm/allreduce.h build collectives on it with one fixed order, so all
 * implementations give equal bits. Only sums may use a library's own collective (gg_sum). A transport belongs to one
 * rank and is used by its thread alone.
 *
 * - Messages of one tag between two ranks arrive in the order of sending.
 * - A message's bytes must not be written between gg_send and the request's completion.
 * - A received message is in `landing`, or in the sender's own memory without a copy: read it at request->data only,
 *   until gg_release.
 * - A receive states its room; request->bytes then states the message's bytes.
 * - Messages progress only inside calls of the rank. A wait sleeps instead of spinning.
 *
 * Each request belongs to the topology epoch in which it began (gg_transport_set_epoch). A receive never gives the
 * bytes of a message of another epoch: it fails with GG_ERROR_COMM, which names the peer, the tag and both epochs.
 *
 * Ranks may die, if the table has `dead`. Each survivor is told of a death at some time after it.
 *
 * - From then on each request that awaits the dead rank completes as GG_REQUEST_LOST: done, without an error.
 * - A message that had left the dead rank whole arrives. A receive never gives a part of a message.
 * - A request also completes as LOST if its peer leaves a call because of a death and cancels its message.
 * - A collective needs every rank of its group. Its waits (gg_wait_collective, gg_reach_collective) fail with
 *   GG_ERROR_PEER on every rank that cannot complete without more messages: if its own message is LOST, or has not come
 *   when a death in the group is known. So nobody waits for a rank that has left the collective. Some ranks may have
 *   completed it; the callers must agree on what follows. */
#ifndef GG_COMM_TRANSPORT_H
#define GG_COMM_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/stall.h"

typedef enum gg_request_state {
    GG_REQUEST_IDLE = 0, /* zero-initialised, or finished */
    GG_REQUEST_SENDING,
    GG_REQUEST_RECEIVING,
    GG_REQUEST_ARRIVED, /* a receive whose data may be read; must be released */
    GG_REQUEST_SUMMING, /* by gg_sum: peer is -1, tag the number of ranks; IDLE when the sum is there */
    GG_REQUEST_LOST     /* the peer has died: the message will never be complete, a sent one's memory may be written
                           again. gg_release or gg_cancel makes it IDLE; the implementation does not know it any more */
} gg_request_state;

/* Owned by the caller, zero-initialised, not moved while in use. */
typedef struct gg_request {
    gg_request_state state;
    int peer, tag;
    size_t bytes;     /* of the message; RECEIVING: of the room */
    size_t capacity;  /* of a receive: bytes of its landing */
    bool exact;       /* a receive whose message must fill the landing */
    int64_t epoch;    /* the transport's when it began */
    const void *data; /* ARRIVED: the message; SENDING: the sent bytes; SUMMING: the values */
    void *landing;
    void *own_landing;    /* comm/device_order.h's */
    double when;          /* ARRIVED: the clock at its arrival */
    uint64_t checksum;    /* of data while it must not be written; only if buffers are checked */
    bool held;            /* comm/network.h's */
    bool awaits_device;   /* comm/device_order.h's */
    uint64_t private_[8]; /* the implementation's */
} gg_request;

typedef struct gg_transport gg_transport;

/* Ranks that sum together by a library's collective; the implementation's. */
typedef struct gg_sums {
    int ranks;
} gg_sums;

/* Answers other ranks while this one waits: every wait calls it between tests. The virtual cluster also calls it after
 * the rank's function has returned, until all have. A service tests its own requests, sends and releases, and never
 * waits. Sets *busy if it found work. */
typedef struct gg_service {
    gg_status (*serve)(void *context, bool *busy); /* NULL: none */
    void *context;
} gg_service;

/* A wait checks about once a second that the peer has not ended: a busy machine makes rounds slow, and messages need
 * rounds to arrive. */
#define GG_CHECK_ROUNDS 512
#define GG_CHECK_SECONDS 1.0
/* True if a wait is to check in this round; rounds count from 0. *due: the wait's own, written in the first rounds. */
bool gg_check_due(double *due, int round);

typedef struct gg_transport_table {
    const char *name;
    bool checks_behind; /* the inner transport checks buffers */
    bool one_clock;     /* `now` counts from one moment on all ranks */
    bool stands; /* while a rank waits for an event outside of the group, the clock and the other ranks stand still */
    void (*destroy)(gg_transport *transport);
    gg_status (*alloc)(gg_transport *transport, size_t bytes, const char *what, void **out);
    gg_status (*alloc_device)(gg_transport *transport, size_t bytes, const char *what,
                              void **out); /* NULL means alloc */
    void (*free)(gg_transport *transport, void *block);
    void (*recycle)(gg_transport *transport, bool on); /* NULL means that allocation is cheap */
    gg_status (*send)(gg_transport *transport, const void *data, size_t bytes, int peer, int tag, gg_request *request);
    gg_status (*receive)(gg_transport *transport, void *landing, size_t capacity, int peer, int tag,
                         gg_request *request);
    /* When a receive has arrived, test sets data, bytes, when and the state. */
    gg_status (*test)(gg_transport *transport, gg_request *request, bool *done);
    gg_status (*release)(gg_transport *transport, gg_request *request);
    void (*cancel)(gg_transport *transport, gg_request *request);
    /* Called by gg_wait and gg_pause between tests, round = 0, 1, ...: sleeps a little longer each time, or hands the
     * baton on until the request changes; request NULL means any request of this rank. */
    gg_status (*pause)(gg_transport *transport, int round, gg_request *request);
    /* Called by gg_wait and gg_pause when gg_check_due says so: GG_ERROR_COMM if the peer (-1 means any rank) has
     * ended, so the wait would never end. NULL means that peers do not end. */
    gg_status (*check_peer)(gg_transport *transport, int peer);
    /* gg_transport_dead. A transport sets requests LOST in send, receive and test; its pause must return after a death
     * has become known. NULL means that no rank dies while others go on. */
    int (*dead)(gg_transport *transport, int rank);
    int (*identity)(gg_transport *transport, int rank); /* of a rank of this group; NULL means its number here */
    /* Replaces the loop of gg_wait, for views, whose messages name the rank in the whole group. NULL means gg_wait's
     * loop. */
    gg_status (*wait)(gg_transport *transport, gg_request *request);
    gg_status (*progress)(gg_transport *transport);
    /* Pass the epoch, the step and the service on to an inner transport. NULL means no inner transport, or none in
     * which this rank waits (service). */
    void (*set_epoch)(gg_transport *transport, int64_t epoch);
    void (*step_begun)(gg_transport *transport, int64_t begun); /* gg_transport_step_begun */
    void (*set_service)(gg_transport *transport, const gg_service *service);
    double (*now)(gg_transport *transport);
    gg_status (*compute)(gg_transport *transport, double seconds);
    gg_status (*idle)(gg_transport *transport, double seconds);
    /* Sums by a library's collective, also tested and cancelled; all three NULL without one. Open is collective over
     * the members: ranks of this transport, this one included; NULL means all. Close is collective, after all sums are
     * complete. */
    gg_status (*sums_open)(gg_transport *transport, const int *members, int count, gg_sums **out);
    void (*sums_close)(gg_transport *transport, gg_sums *sums);
    gg_status (*sum)(gg_transport *transport, gg_sums *sums, float *data, size_t count, gg_request *request);
} gg_transport_table;

struct gg_transport {
    const gg_transport_table *table;
    int rank, size; /* `rank` is the place: messages and schedules use it */
    int identity;   /* the rank's number for random draws: stays when `rank` changes with the view */
    int64_t epoch;  /* of the topology, from 0; set by gg_transport_set_epoch alone */
    const int *
        node_of; /* one a rank: the lowest rank with which it shares memory; NULL means all share it. The transport's */
    gg_sums *sums;         /* of all ranks here; made by gg_sum_prepare, freed with the transport */
    gg_transport *holding; /* the first wrapper that holds messages back before this transport; comm/device_order.h's */
    gg_service service;    /* set by gg_transport_set_service alone */
    bool reads_devices;    /* sends from and receives into GPU memory like host memory, and advertises it */
    bool may_read_devices; /* MPI may be GPU-aware without advertising it */
    bool as_it_is; /* the host reads no message sent or received while this is set. Both sides of a message set it, by
                      comm/device_order.h alone, if the transport reads_devices */
    int64_t bytes_sent, messages_sent; /* by this rank since creation: payloads as callers count them */
    double timeout; /* max seconds of a wait since this rank last served; then it fails and names the peer. 0 means for
                       ever */
    bool mortal;    /* ranks may die while the others go on; set by the team at creation */
    bool reports_stalls; /* report long waits (comm/stall.h): true if the clock is real and ranks are processes
                          */
    const int64_t
        *step; /* of training, for these reports; NULL means not known. Set and cleared by the counter's owner */
    const char *waits_for[2]; /* first and last layer of the awaited exchange; NULL means not known */
    gg_transport *needs_all;  /* group of the collective that waits; NULL means that the wait outlives deaths */
    gg_stall stall;           /* of gg_pause */
    double check_due;         /* of gg_pause */
    bool check_buffers; /* detect writes to buffers in flight by checksums (GG_ERROR_STATE): reads every message twice
                           more */
};

/* Collective: all ranks call it in one order with equal sizes. Zeroed memory, 64-byte aligned. If the system offers
 * shared memory, messages from it to ranks of the node need no copy; otherwise plain memory. `out` is the address of a
 * pointer of any type (see gg_alloc). */
gg_status gg_message_alloc(gg_transport *transport, size_t bytes, const char *what, void *out);
#define gg_message_alloc(transport, bytes, what, out) gg_message_alloc(transport, bytes, what, GG_POINTER_OUT(out))
/* Memory for messages that only device work touches, never the host (comm/device_order.h): may be device memory. */
gg_status gg_message_alloc_device(gg_transport *transport, size_t bytes, const char *what, void *out);
#define gg_message_alloc_device(transport, bytes, what, out)                                                           \
    gg_message_alloc_device(transport, bytes, what, GG_POINTER_OUT(out))
void gg_message_free(gg_transport *transport, void *block); /* collective as well; NULL is a no-op */
/* Between on and off, freed memory is kept and reused for allocations that fit, because making shared memory is slow.
 * Collective: all ranks switch it on before they free and off after they have allocated. */
void gg_message_recycle(gg_transport *transport, bool on);

/* Tags: 0 <= tag < GG_TAG_LIMIT. Strategies use tags from GG_TAG_USER on, collectives the tags below. The peer is
 * another rank, never the caller's. */
#define GG_TAG_USER 64
#define GG_TAG_LIMIT 30000

/* bytes > 0, of any content. */
gg_status gg_send(gg_transport *transport, const void *data, size_t bytes, int peer, int tag, gg_request *request);
/* Receives a message of 1 to `capacity` bytes; request->bytes is its size when it has arrived. The test of a longer one
 * gives GG_ERROR_COMM. */
gg_status gg_receive(gg_transport *transport, void *landing, size_t capacity, int peer, int tag, gg_request *request);
/* Receives a message whose size both sides know: a shorter one also gives GG_ERROR_COMM. */
gg_status gg_receive_exact(gg_transport *transport, void *landing, size_t bytes, int peer, int tag,
                           gg_request *request);
/* *done: a send is complete (its memory may be written, the request is IDLE), a receive has ARRIVED, or the request is
 * LOST. IDLE: done. */
gg_status gg_test(gg_transport *transport, gg_request *request, bool *done);
gg_status gg_wait(gg_transport *transport, gg_request *request);
/* `waited` is called at the end of every wait, with the time of its begin. */
typedef void gg_waited(void *context, double begin);
/* gg_test, then gg_wait if `wait` and not done. waited NULL counts no wait. */
gg_status gg_reach(gg_transport *transport, gg_request *request, bool wait, bool *done, gg_waited *waited,
                   void *context);
/* gg_wait and gg_reach for collectives over the ranks of `transport`: GG_ERROR_PEER, which names a dead rank, if the
 * request is LOST, or not done when a rank of the group is known to be dead. The caller cancels its requests. */
gg_status gg_wait_collective(gg_transport *transport, gg_request *request);
gg_status gg_reach_collective(gg_transport *transport, gg_request *request, bool wait, bool *done, gg_waited *waited,
                              void *context);
/* For loops that wait for the first of several requests. Called when all have been tested and none is done, with round
 * = 0, 1, ... since the last that was. Returns after a while, or after an event. peer: a rank that the loop depends on;
 * -1 means none. */
gg_status gg_pause(gg_transport *transport, int round, int peer);
/* Waits for an event outside of the group, for example samples; `what` names it in reports of long waits. done(context,
 * seconds) waits at most `seconds` and returns true after the event. Messages progress and requests are answered
 * meanwhile. In the virtual cluster no time passes and no other rank runs, so results do not depend on the wait. */
gg_status gg_transport_attend(gg_transport *transport, const char *what, bool (*done)(void *context, double seconds),
                              void *context);
/* Ends the reading of an arrived message, or forgets a LOST one; the request is IDLE again. */
gg_status gg_release(gg_transport *transport, gg_request *request);
/* Waits for a message of a collective, copies it to `target` unless it landed there, and releases it. IDLE is a no-op.
 */
gg_status gg_wait_and_copy(gg_transport *transport, gg_request *request, void *target);
/* Cancels a request in any state, so that its memory may be freed. A receive without a sent message is withdrawn
 * without harm. Otherwise the message is lost, and the peer may wait for ever or fail: for use after a failure. IDLE is
 * a no-op. The error message does not change. */
void gg_cancel(gg_transport *transport, gg_request *request);
/* Cancels n requests, whose memory may then be freed. NULL is a no-op. */
void gg_cancel_all(gg_transport *transport, gg_request *requests, int n);
/* Prepares gg_sum with transport->sums; the first call is collective. GG_ERROR_ARGUMENT, naming the strategies'
 * keyword, if no library offers sums. */
gg_status gg_sum_prepare(gg_transport *transport);
/* data becomes the sum of all ranks' data by a library's collective. The library chooses the order: bits differ from
 * comm/allreduce.h's, but MPI demands equal bits on all ranks. Returns at once. The request is tested, waited for and
 * cancelled like a message's, and IDLE when the sum is complete; until then data must not be read or written. All ranks
 * start sums over equal ranks in one order. data comes from gg_message_alloc. A library cannot cancel a sum and may
 * still write, so the memory of a cancelled one is never freed. The library does not report its traffic; counted are a
 * reduce-scatter and an all-gather: 2(ranks-1)/ranks of the bytes in 2(ranks-1) messages. */
gg_status gg_sum(gg_transport *transport, gg_sums *sums, float *data, size_t count, gg_request *request);
/* Lets messages progress; cheap; called between layers. In the virtual cluster ranks with earlier clocks run first. */
gg_status gg_progress(gg_transport *transport);

/* Returns the number of a dead rank in the whole group, -1 for none: `rank` if this rank knows that it has died; rank
 * -1 means any rank of this group. */
int gg_transport_dead(gg_transport *transport, int rank);

/* The number that a rank of this group has in the whole one, as reports of long waits name it. */
int gg_transport_identity(gg_transport *transport, int rank);

/* The rank's clock in seconds: real time under MPI, virtual time in the virtual cluster. */
double gg_transport_now(gg_transport *transport);
/* Advances the rank's virtual clock by `seconds`, the modelled time of its last computation. A no-op under MPI. */
gg_status gg_transport_compute(gg_transport *transport, double seconds);
/* Idles for `seconds` of the rank's clock; sleeps if the clock is real. Messages need not progress meanwhile. */
gg_status gg_transport_idle(gg_transport *transport, double seconds);
/* Messages sent and received from now on belong to this epoch, which never decreases: the ranks have changed the
 * meaning of messages. All ranks set equal epochs after a barrier. Sends nothing, and messages stay as short. MPI
 * detects a message of another epoch after a receive has waited a second or two, if the epochs are at most 31 apart; a
 * library with few tags may not. */
void gg_transport_set_epoch(gg_transport *transport, int64_t epoch);
/* Sets the number of training steps that this rank has begun. If a rank waits for an ended one, its error shows the
 * numbers of both. */
void gg_transport_step_begun(gg_transport *transport, int64_t begun);
/* Set by the service's owner, and cleared by a zero service. */
void gg_transport_set_service(gg_transport *transport, const gg_service *service);
void gg_transport_destroy(gg_transport *transport); /* NULL is a no-op */

/* For implementations: the error of a request that met a message of another epoch. */
gg_status gg_transport_other_epoch(const gg_transport *transport, int64_t own, int64_t theirs, int peer, int tag);

#endif
