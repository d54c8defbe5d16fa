#include "comm/network.h"

#include <math.h>

#include "base/clock.h"
#include "base/memory.h"

/* The private words of a message that is held back here; `inner` overwrites them when it receives the message. */
typedef struct __attribute__((may_alias)) waiting {
    gg_request *next;
    const void *data;
    double due; /* when `inner` receives it */
} waiting;

_Static_assert(sizeof(waiting) <= sizeof((gg_request *)0)->private_, "waiting must fit");

typedef struct slow_transport {
    gg_transport transport; /* first: a gg_transport is cast to this */
    gg_transport *inner;
    gg_network network;
    gg_request *first, *last; /* not passed on yet, in the order in which they are due */
    double out_free, in_free; /* when the links are idle again */
} slow_transport;

static slow_transport *slow_of(gg_transport *transport) { return (slow_transport *)transport; }
static waiting *waiting_of(gg_request *request) { return (waiting *)request->private_; }

static double network_transfer(const slow_transport *own, size_t bytes) {
    return own->network.bandwidth > 0 ? (double)bytes / own->network.bandwidth : 0;
}

static void network_destroy(gg_transport *transport) {
    gg_transport_destroy(slow_of(transport)->inner);
    gg_free(transport);
}

static gg_status network_alloc(gg_transport *transport, size_t bytes, const char *what, void **out) {
    return gg_message_alloc(slow_of(transport)->inner, bytes, what, out);
}

static void network_free_block(gg_transport *transport, void *block) {
    gg_message_free(slow_of(transport)->inner, block);
}

static void network_recycle(gg_transport *transport, bool on) { gg_message_recycle(slow_of(transport)->inner, on); }

/* Gives the messages that are due to `inner`. */
static gg_status send_due(slow_transport *own) {
    double now = own->first ? gg_clock_now() : 0;
    while (own->first && waiting_of(own->first)->due <= now) {
        gg_request *request = own->first;
        const void *data = waiting_of(request)->data;
        own->first = waiting_of(request)->next;
        request->held = false;
        GG_TRY(own->inner->table->send(own->inner, data, request->bytes, request->peer, request->tag, request));
    }
    return GG_OK;
}

static gg_status network_send(gg_transport *transport, const void *data, size_t bytes, int peer, int tag,
                              gg_request *request) {
    slow_transport *own = slow_of(transport);
    (void)peer, (void)tag;
    GG_TRY(send_due(own));
    own->out_free = fmax(own->out_free, gg_clock_now()) + network_transfer(own, bytes);
    *waiting_of(request) = (waiting){.data = data, .due = own->out_free + own->network.latency};
    request->held = true;
    if (own->first) waiting_of(own->last)->next = request;
    else own->first = request;
    own->last = request;
    return GG_OK;
}

static gg_status network_receive(gg_transport *transport, void *landing, size_t capacity, int peer, int tag,
                                 gg_request *request) {
    slow_transport *own = slow_of(transport);
    GG_TRY(send_due(own));
    request->when = gg_clock_now();
    return own->inner->table->receive(own->inner, landing, capacity, peer, tag, request);
}

static gg_status network_test(gg_transport *transport, gg_request *request, bool *done) {
    slow_transport *own = slow_of(transport);
    bool receiving = request->state == GG_REQUEST_RECEIVING;
    *done = false;
    GG_TRY(send_due(own));
    if (!request->held) {
        double looked = request->when;
        GG_TRY(own->inner->table->test(own->inner, request, done));
        if (!receiving || request->state == GG_REQUEST_LOST) return GG_OK;
        if (!*done) {
            request->when = gg_clock_now();
            return GG_OK;
        }
        /* The message has arrived since the last test. The earliest possible time is assumed, so that the link is never
         * slower than specified. */
        own->in_free = request->when = fmax(own->in_free + network_transfer(own, request->bytes), looked);
        request->held = true;
        request->state = GG_REQUEST_RECEIVING;
    }
    *done = receiving && gg_clock_now() >= request->when;
    if (*done) {
        request->held = false;
        request->state = GG_REQUEST_ARRIVED;
    }
    return GG_OK;
}

static gg_status network_release(gg_transport *transport, gg_request *request) {
    gg_transport *inner = slow_of(transport)->inner;
    return inner->table->release(inner, request);
}

static void network_cancel(gg_transport *transport, gg_request *request) {
    slow_transport *own = slow_of(transport);
    if (!request->held) {
        own->inner->table->cancel(own->inner, request);
    } else if (request->state == GG_REQUEST_RECEIVING) {
        request->state = GG_REQUEST_ARRIVED;
        own->inner->table->cancel(own->inner, request);
    } else {
        gg_request **place = &own->first, *before = NULL;
        for (; *place != request; place = &waiting_of(before)->next) before = *place;
        *place = waiting_of(request)->next;
        if (own->last == request) own->last = before;
    }
    request->held = false;
}

static gg_status network_pause_round(gg_transport *transport, int round, gg_request *request) {
    slow_transport *own = slow_of(transport);
    GG_TRY(send_due(own));
    return own->inner->table->pause(own->inner, round, request);
}

static gg_status network_check_peer(gg_transport *transport, int peer) {
    gg_transport *inner = slow_of(transport)->inner;
    return inner->table->check_peer != NULL ? inner->table->check_peer(inner, peer) : GG_OK;
}

static int network_dead(gg_transport *transport, int rank) {
    return gg_transport_dead(slow_of(transport)->inner, rank);
}

static gg_status network_progress(gg_transport *transport) {
    GG_TRY(send_due(slow_of(transport)));
    return gg_progress(slow_of(transport)->inner);
}

static void network_set_epoch(gg_transport *transport, int64_t epoch) {
    gg_transport_set_epoch(slow_of(transport)->inner, epoch);
}

static void network_step_begun(gg_transport *transport, int64_t begun) {
    gg_transport_step_begun(slow_of(transport)->inner, begun);
}

static double network_now(gg_transport *transport) { return gg_transport_now(slow_of(transport)->inner); }

static gg_status network_compute(gg_transport *transport, double seconds) {
    return gg_transport_compute(slow_of(transport)->inner, seconds);
}

/* The links work while the rank sleeps. */
static gg_status network_idle(gg_transport *transport, double seconds) {
    slow_transport *own = slow_of(transport);
    double end = gg_clock_now() + seconds;
    for (double time = 0; (time = gg_clock_now()) < end;) {
        double until = own->first ? fmin(end, waiting_of(own->first)->due) : end;
        GG_TRY(gg_transport_idle(own->inner, fmax(until - time, 0)));
        GG_TRY(send_due(own));
    }
    return GG_OK;
}

static const gg_transport_table table = {
    .name = "slow network",
    .destroy = network_destroy,
    .alloc = network_alloc,
    .recycle = network_recycle,
    .free = network_free_block,
    .send = network_send,
    .receive = network_receive,
    .test = network_test,
    .release = network_release,
    .cancel = network_cancel,
    .pause = network_pause_round,
    .check_peer = network_check_peer,
    .dead = network_dead,
    .progress = network_progress,
    .set_epoch = network_set_epoch,
    .step_begun = network_step_begun,
    .now = network_now,
    .compute = network_compute,
    .idle = network_idle,
};

gg_status gg_network_check(const gg_network *network) {
    if (!(network->latency >= 0 && network->latency < INFINITY))
        return gg_fail(GG_ERROR_ARGUMENT, "latency is %g s, expected at least 0", network->latency);
    if (!(network->bandwidth >= 0))
        return gg_fail(GG_ERROR_ARGUMENT, "bandwidth is %g bytes/s, expected at least 0 (0: unlimited)",
                       network->bandwidth);
    return GG_OK;
}

gg_status gg_network_transport_create(gg_transport *inner, const gg_network *network, gg_transport **out) {
    slow_transport *made = NULL;
    *out = NULL;
    GG_TRY(gg_network_check(network));
    GG_TRY(gg_calloc(1, sizeof *made, "slow network", &made));
    made->transport = *inner;
    made->transport.table = &table;
    made->transport.reads_devices = made->transport.may_read_devices = false; /* `as_it_is` does not reach `inner` */
    made->inner = inner;
    made->network = *network;
    *out = &made->transport;
    return GG_OK;
}
