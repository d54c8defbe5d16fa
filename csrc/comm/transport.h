/* The transport: messages between the ranks of a group. One table, two implementations (MPI and virtual).
 *
 * Point-to-point; everything collective is built on it in comm/collective.h and comm/allreduce.h with one fixed order,
 * so both implementations give the same bits. Only sums may be left to a library's own collective, where there is one
 * (gg_sum). A transport belongs to one rank and is used by that rank's thread alone.
 *
 * Messages between two ranks with the same tag arrive in the order they were sent. A message's bytes must not be
 * written between gg_send and the request's completion. A receive gives its bytes in `landing`, or, where the transport
 * can, in the sender's own memory without a copy: read them at request->data, and only there, until gg_release. A
 * receive says how many bytes it has room for; request->bytes then says how many came.
 * Messages progress only inside calls of the rank. A wait sleeps instead of spinning.
 *
 * Each request belongs to the topology epoch in which it began (gg_transport_set_epoch). A receive never gives the
 * bytes of a message of another epoch: it fails with GG_ERROR_COMM, which names the peer, the tag and both epochs. */
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
    GG_REQUEST_SUMMING  /* by gg_sum: peer is -1, tag the number of ranks; IDLE when the sum is there */
} gg_request_state;

/* Owned by the caller, zero-initialised, not moved while in use. */
typedef struct gg_request {
    gg_request_state state;
    int peer, tag;
    size_t bytes;     /* of the message; RECEIVING: those that there is room for */
    size_t capacity;  /* of a receive: the bytes of its landing */
    bool exact;       /* a receive of which the message must fill the landing */
    int64_t epoch;    /* of the transport when it began */
    const void *data; /* ARRIVED: the message; SENDING: what is sent; SUMMING: the values */
    void *landing;
    void *own_landing;    /* comm/device_order.h's */
    double when;          /* ARRIVED: the clock at which it arrived */
    uint64_t checksum;    /* of data, while it must not be written; only where buffers are checked */
    bool held;            /* comm/network.h's */
    bool awaits_device;   /* comm/device_order.h's */
    uint64_t private_[8]; /* the implementation's */
} gg_request;

typedef struct gg_transport gg_transport;

/* Ranks that sum together by a library's collective; the implementation's. */
typedef struct gg_sums {
    int ranks;
} gg_sums;

/* Answers other ranks while this one waits: every wait calls it between its tests. In the virtual cluster it is also
 * called after the rank's function has returned, until all have. It tests its own requests, sends and releases, and
 * never waits. *busy: set to true where it found something to do. */
typedef struct gg_service {
    gg_status (*serve)(void *context, bool *busy); /* NULL: none */
    void *context;
} gg_service;

/* A wait checks every so many rounds that the peer has not ended. */
#define GG_CHECK_ROUNDS 4096

typedef struct gg_transport_table {
    const char *name;
    bool checks_behind; /* check_buffers is what a transport behind this one does */
    bool one_clock;     /* `now` counts from the same moment on all ranks */
    bool stands; /* while a rank waits for something outside of the group, the clock and the other ranks stand still */
    void (*destroy)(gg_transport *transport);
    gg_status (*alloc)(gg_transport *transport, size_t bytes, const char *what, void **out);
    gg_status (*alloc_device)(gg_transport *transport, size_t bytes, const char *what, void **out); /* NULL: alloc */
    void (*free)(gg_transport *transport, void *block);
    void (*recycle)(gg_transport *transport, bool on); /* NULL: to allocate costs little */
    gg_status (*send)(gg_transport *transport, const void *data, size_t bytes, int peer, int tag, gg_request *request);
    gg_status (*receive)(gg_transport *transport, void *landing, size_t capacity, int peer, int tag,
                         gg_request *request);
    /* Of a receive that has arrived it sets data, bytes, when and the state. */
    gg_status (*test)(gg_transport *transport, gg_request *request, bool *done);
    gg_status (*release)(gg_transport *transport, gg_request *request);
    void (*cancel)(gg_transport *transport, gg_request *request);
    /* Called by gg_wait and gg_pause between tests, round = 0, 1, ...: sleeps a little longer each time, or hands the
     * baton on until something happens to the request; NULL: to any request of this rank. */
    gg_status (*pause)(gg_transport *transport, int round, gg_request *request);
    /* Called by gg_wait and gg_pause every GG_CHECK_ROUNDS rounds, which take about a second: GG_ERROR_COMM where the
     * peer (-1: any rank) has ended, so that the wait would never end. NULL: peers do not end. */
    gg_status (*check_peer)(gg_transport *transport, int peer);
    /* Replaces the loop of gg_wait; NULL: that loop is used. For views: messages then name the rank in the whole
     * group. */
    gg_status (*wait)(gg_transport *transport, gg_request *request);
    gg_status (*progress)(gg_transport *transport);
    /* Pass the epoch, and the service, on to a transport behind this one; NULL: there is none, or, for the service,
     * none in which this rank waits. */
    void (*set_epoch)(gg_transport *transport, int64_t epoch);
    void (*set_service)(gg_transport *transport, const gg_service *service);
    double (*now)(gg_transport *transport);
    gg_status (*compute)(gg_transport *transport, double seconds);
    gg_status (*idle)(gg_transport *transport, double seconds);
    /* Sums by a library's collective, in `test` and `cancel` too; all three NULL where there is none. Open: collective
     * over the members, ranks of this transport, this one among them; NULL: all. Close: collective too, when all sums
     * are complete. */
    gg_status (*sums_open)(gg_transport *transport, const int *members, int count, gg_sums **out);
    void (*sums_close)(gg_transport *transport, gg_sums *sums);
    gg_status (*sum)(gg_transport *transport, gg_sums *sums, float *data, size_t count, gg_request *request);
} gg_transport_table;

struct gg_transport {
    const gg_transport_table *table;
    int rank, size;
    int64_t epoch; /* of the topology, from 0 on; set by gg_transport_set_epoch alone */
    const int
        *node_of;  /* of each rank: the lowest rank with which it shares memory; NULL: all share it. The transport's */
    gg_sums *sums; /* of all ranks here; made by gg_sum_prepare, freed with the transport */
    gg_transport
        *holding;       /* the first that holds messages back before it gives them to this one; comm/device_order.h's */
    gg_service service; /* set by gg_transport_set_service alone */
    bool reads_devices; /* sends from, and receives in, memory of a GPU as in that of the host; says so by itself */
    bool may_read_devices; /* a library that may, even if it does not say so */
    bool as_it_is; /* of what is sent and received while it is set nothing is read by the host: set by both sides of a
                      message, by comm/device_order.h alone, where the transport reads_devices */
    int64_t bytes_sent, messages_sent; /* by this rank, since creation: payloads as the caller counts them */
    double timeout; /* seconds a wait may take, since this rank last served, before it fails naming the peer; 0: for
                       ever */
    bool reports_stalls; /* long waits are reported (comm/stall.h): true where the clock is real and ranks are processes
                          */
    const int64_t
        *step; /* of training, for such reports; NULL: not known. Set and cleared by the owner of the counter */
    const char *waits_for[2]; /* the first and the last layer whose exchange is waited for; NULL: not known */
    gg_stall stall;           /* of gg_pause */
    bool check_buffers; /* GG_ERROR_STATE where a buffer in flight was written, by checksums: reads every message twice
                           more */
};

/* Collective: all ranks call it in the same order with the same sizes. Zeroed memory, 64-byte aligned, from which
 * messages to ranks on the same node need no copy where the system offers shared memory; plain memory otherwise. `out`
 * is the address of a pointer of any type (see gg_alloc). */
gg_status gg_message_alloc(gg_transport *transport, size_t bytes, const char *what, void *out);
#define gg_message_alloc(transport, bytes, what, out) gg_message_alloc(transport, bytes, what, GG_POINTER_OUT(out))
/* The same for messages that the host never touches, only work of a device (comm/device_order.h): they may lie in the
 * device's memory. */
gg_status gg_message_alloc_device(gg_transport *transport, size_t bytes, const char *what, void *out);
#define gg_message_alloc_device(transport, bytes, what, out)                                                           \
    gg_message_alloc_device(transport, bytes, what, GG_POINTER_OUT(out))
void gg_message_free(gg_transport *transport, void *block); /* collective as well; NULL is fine */
/* Between on and off, what is freed is held and serves allocations that it is large enough for, as shared memory takes
 * long to make. Collective: all ranks switch it on before they free, and off after they have allocated. */
void gg_message_recycle(gg_transport *transport, bool on);

/* Tags: 0 <= tag < GG_TAG_LIMIT. Strategies use tags from GG_TAG_USER on, the collectives those below. The peer is
 * another rank, never oneself. */
#define GG_TAG_USER 64
#define GG_TAG_LIMIT 30000

/* bytes > 0, of any content. */
gg_status gg_send(gg_transport *transport, const void *data, size_t bytes, int peer, int tag, gg_request *request);
/* A message of 1 to `capacity` bytes; request->bytes says how many when it has arrived. A longer one is GG_ERROR_COMM,
 * when the receive is tested. */
gg_status gg_receive(gg_transport *transport, void *landing, size_t capacity, int peer, int tag, gg_request *request);
/* The same for a message whose size both sides know: a shorter one is GG_ERROR_COMM as well. */
gg_status gg_receive_exact(gg_transport *transport, void *landing, size_t bytes, int peer, int tag,
                           gg_request *request);
/* *done: a send is complete (its memory may be written, the request is IDLE), a receive has ARRIVED. IDLE: done. */
gg_status gg_test(gg_transport *transport, gg_request *request, bool *done);
gg_status gg_wait(gg_transport *transport, gg_request *request);
/* `waited` is called at the end of every wait, with the time at which the wait began. */
typedef void gg_waited(void *context, double begin);
/* gg_test, and with `wait`, where it is not done, gg_wait. waited NULL: no wait is counted. */
gg_status gg_reach(gg_transport *transport, gg_request *request, bool wait, bool *done, gg_waited *waited,
                   void *context);
/* For loops that wait for the first of several requests: called when none of them is done, after all have been tested,
 * with round = 0, 1, ... since the last one that was. Returns after a while, or when something has happened. peer: a
 * rank without which the loop does not end; -1: none in particular. */
gg_status gg_pause(gg_transport *transport, int round, int peer);
/* Waits for something outside of the group, samples for example; `what`: its name, for reports of long waits.
 * done(context, seconds) waits for it at most so long and says whether it is there. Messages move and requests are
 * answered meanwhile; in the virtual cluster no time passes and no other rank runs, so that nothing depends on how long
 * it takes. */
gg_status gg_transport_attend(gg_transport *transport, const char *what, bool (*done)(void *context, double seconds),
                              void *context);
/* Ends the reading of an arrived message; the request is IDLE again. */
gg_status gg_release(gg_transport *transport, gg_request *request);
/* Waits for a message, copies it to `target` unless it landed there, and releases it. IDLE: nothing. */
gg_status gg_wait_and_copy(gg_transport *transport, gg_request *request, void *target);
/* Cancels a request in any state, so that its memory may be freed. A receive for which nothing has been sent is
 * withdrawn without harm. Otherwise the message is lost, and the peer may wait for ever or fail: for use after a
 * failure. IDLE: nothing. The error message does not change. */
void gg_cancel(gg_transport *transport, gg_request *request);
/* Of n requests: they must not outlive their memory. NULL is fine. */
void gg_cancel_all(gg_transport *transport, gg_request *requests, int n);
/* Makes ready for gg_sum with transport->sums; the first time it is collective. GG_ERROR_ARGUMENT, naming the
 * strategies' keyword, where no library offers sums. */
gg_status gg_sum_prepare(gg_transport *transport);
/* data becomes the sum of all ranks' data, by a library's collective: in an order that is the library's, so these are
 * not the bits of comm/allreduce.h, but the same on all ranks, which MPI demands. Returns at once; the request is
 * tested, waited for and cancelled like one of a message, and IDLE when the sum is there; until then data must not be
 * touched. All ranks start their sums over the same ranks in the same order. data comes from gg_message_alloc: a
 * library cannot cancel a sum, so the memory of a cancelled one is never freed: it may still be written. The library
 * does not report what it sends; counted is what a reduce-scatter and an all-gather send, 2(ranks-1)/ranks of the bytes
 * in 2(ranks-1) messages. */
gg_status gg_sum(gg_transport *transport, gg_sums *sums, float *data, size_t count, gg_request *request);
/* Lets messages move; cheap; called between layers. In the virtual cluster ranks whose clock is behind run first. */
gg_status gg_progress(gg_transport *transport);

/* The rank's clock in seconds: real time under MPI, virtual time in the virtual cluster. */
double gg_transport_now(gg_transport *transport);
/* Advances the rank's virtual clock by `seconds`, the modelled time of what it has just computed. MPI ignores it. */
gg_status gg_transport_compute(gg_transport *transport, double seconds);
/* Does nothing for `seconds` of the rank's clock: sleeps, where that is real time. Messages need not progress
 * meanwhile. */
gg_status gg_transport_idle(gg_transport *transport, double seconds);
/* What is sent and received from here on belongs to this epoch, which is at least the one before: between the ranks
 * something has changed by which a message means something else. All ranks set the same one, behind a barrier; nothing
 * is sent for it, and no message is larger by it. MPI detects a message of another epoch when a receive has waited in
 * vain for a second or two, as long as the epochs are at most 31 apart; with a library of few tags it may not. */
void gg_transport_set_epoch(gg_transport *transport, int64_t epoch);
/* The owner sets it, and clears it with a service that is all zero. */
void gg_transport_set_service(gg_transport *transport, const gg_service *service);
void gg_transport_destroy(gg_transport *transport); /* NULL is fine */

/* For implementations: the error of a request that has met a message of another epoch. */
gg_status gg_transport_other_epoch(const gg_transport *transport, int64_t own, int64_t theirs, int peer, int tag);

#endif
