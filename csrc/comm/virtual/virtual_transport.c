/* The transport table of a virtual rank, and which message a receive gets. */
#include <math.h>

#include "base/memory.h"
#include "comm/virtual/virtual_private.h"

static void virtual_match(gg_virtual *cluster, gg_request *send, gg_request *receive) {
    const gg_virtual_request *from = gg_link_of(send);
    gg_virtual_pair(cluster, send, receive);
    if (from->arrived) gg_virtual_announce(cluster, receive, from->time);
}

/* ---- the table ---- */

static void virtual_destroy(gg_transport *transport) { (void)transport; } /* the cluster's */

static gg_status virtual_alloc(gg_transport *transport, size_t bytes, const char *what, void **out) {
    (void)transport;
    return gg_calloc(1, bytes, what, out);
}

static void virtual_free_block(gg_transport *transport, void *block) {
    if (!gg_virtual_keep(gg_rank_of(transport), block)) gg_free(block);
}

/* Gives a message to its receive, or queues it. */
static void virtual_offer(gg_virtual *cluster, gg_request *send) {
    const int source = gg_link_of(send)->owner;
    gg_virtual_queue *receives = gg_virtual_receives_of(cluster, send->peer, source, send->tag);
    for (gg_request *r = receives->first; r; r = gg_link_of(r)->next) {
        if (r->peer != source || r->tag != send->tag) continue;
        gg_virtual_remove(receives, r);
        virtual_match(cluster, send, r);
        return;
    }
    gg_virtual_append(gg_virtual_sends_to(cluster, send->peer, source, send->tag), send);
}

static gg_status virtual_send(gg_transport *transport, const void *data, size_t bytes, int peer, int tag,
                              gg_request *request) {
    (void)bytes, (void)tag; /* the request's */
    gg_virtual_rank *rank = gg_rank_of(transport), *to = &rank->cluster->ranks[peer];
    GG_TRY(gg_virtual_still_good(rank));
    if (to->told) {
        request->state = GG_REQUEST_LOST;
    } else {
        gg_virtual_put_on_wire(rank, data, request);
        virtual_offer(rank->cluster, request);
    }
    if (rank->in_last_step && rank->counts && !rank->cluster->aside && ++rank->sent == rank->death->after_messages)
        rank->dying = true;
    return rank->dying ? gg_virtual_still_good(rank) : GG_OK;
}

static gg_status virtual_receive(gg_transport *transport, void *landing, size_t capacity, int peer, int tag,
                                 gg_request *request) {
    (void)landing, (void)capacity; /* the request's */
    gg_virtual_rank *rank = gg_rank_of(transport);
    GG_TRY(gg_virtual_still_good(rank));
    *gg_link_of(request) = (gg_virtual_request){.owner = transport->rank};
    gg_virtual_queue *sends = gg_virtual_sends_to(rank->cluster, transport->rank, peer, tag);
    for (gg_request *s = sends->first; s; s = gg_link_of(s)->next) {
        if (gg_link_of(s)->owner != peer || s->tag != tag) continue;
        gg_virtual_remove(sends, s);
        virtual_match(rank->cluster, s, request);
        return GG_OK;
    }
    if (rank->cluster->ranks[peer].told) request->state = GG_REQUEST_LOST;
    else gg_virtual_append(gg_virtual_receives_of(rank->cluster, transport->rank, peer, tag), request);
    return GG_OK;
}

static gg_status virtual_test(gg_transport *transport, gg_request *request, bool *done) {
    gg_virtual_rank *rank = gg_rank_of(transport);
    gg_virtual_request *own = gg_link_of(request);
    *done = false;
    GG_TRY(gg_virtual_let_others_catch_up(rank));
    if (own->broken) {
        return gg_fail(GG_ERROR_COMM, "rank %d: rank %d gave up the message of %zu bytes with tag %d", transport->rank,
                       request->peer, request->bytes, request->tag);
    }
    if (!own->known || own->time > rank->clock) {
        return gg_virtual_found_nothing(rank, request);
    }
    if (own->lost) {
        request->state = GG_REQUEST_LOST;
    } else if (request->state == GG_REQUEST_RECEIVING) {
        if (own->partner->epoch != request->epoch)
            GG_TRY(
                gg_transport_other_epoch(transport, request->epoch, own->partner->epoch, request->peer, request->tag));
        if (own->partner->bytes > request->capacity)
            return gg_fail(GG_ERROR_COMM,
                           "rank %d: message from rank %d with tag %d: expected %s%zu bytes, received %zu",
                           transport->rank, request->peer, request->tag, request->exact ? "" : "at most ",
                           request->capacity, own->partner->bytes);
        request->bytes = own->partner->bytes;
        request->data = gg_link_of(own->partner)->data;
        request->when = own->time;
        request->state = GG_REQUEST_ARRIVED;
    } else {
        request->state = GG_REQUEST_IDLE;
    }
    rank->empty_tests = 0;
    /* Events of requests tested before this one are retained: the rank may sleep next. */
    if (rank->next_known <= rank->clock) rank->next_known = INFINITY;
    *done = true;
    return GG_OK;
}

/* The sender of a matched receive may write its memory from this rank's clock on. */
static void release_sender(gg_virtual_rank *rank, gg_request *request) {
    gg_request *send_request = gg_link_of(request)->partner;
    if (!send_request) return;
    gg_virtual_request *theirs = gg_link_of(send_request);
    gg_virtual_part(rank->cluster, request);
    if (rank->cluster->ranks[theirs->owner].dead) {
        gg_virtual_free_ghost(rank->cluster, send_request);
        return;
    }
    if (!theirs->arrived) gg_virtual_off_wire(rank->cluster, &rank->cluster->ranks[theirs->owner], send_request);
    theirs->arrived = true;
    theirs->time = rank->clock;
    theirs->known = true;
    gg_virtual_wake(rank->cluster, send_request, rank->clock);
}

static gg_status virtual_release(gg_transport *transport, gg_request *request) {
    gg_status status = gg_virtual_still_good(gg_rank_of(transport));
    if (status == GG_OK) release_sender(gg_rank_of(transport), request);
    return status;
}

static void virtual_cancel(gg_transport *transport, gg_request *request) {
    gg_virtual_rank *rank = gg_rank_of(transport);
    gg_virtual *cluster = rank->cluster;
    gg_virtual_request *own = gg_link_of(request);
    if (cluster->failed) return;         /* other requests may be freed already, and are not accessed any more */
    if (rank->dead || own->lost) return; /* the cluster does not know it any more */
    if (request->state == GG_REQUEST_SENDING && !own->arrived) gg_virtual_off_wire(cluster, rank, request);
    if (request->state != GG_REQUEST_SENDING) {
        if (own->partner) release_sender(rank, request);
        else if (!own->broken)
            gg_virtual_remove(gg_virtual_receives_of(cluster, transport->rank, request->peer, request->tag), request);
    } else if (own->partner) {
        gg_request *receive = own->partner;
        gg_virtual_part(cluster, request);
        gg_link_of(receive)->broken = cluster->told == 0;
        if (cluster->told > 0) gg_virtual_lose(cluster, receive, rank->clock); /* it leaves because of a death */
        else gg_virtual_wake(cluster, receive, rank->clock);
    } else if (!own->known) {
        gg_virtual_remove(gg_virtual_sends_to(cluster, request->peer, transport->rank, request->tag), request);
    }
}

static gg_status virtual_pause_round(gg_transport *transport, int round, gg_request *request) {
    gg_virtual_rank *rank = gg_rank_of(transport);
    if (request == NULL) {
        return gg_virtual_wait_for_any(rank);
    }
    gg_virtual *cluster = rank->cluster;
    const gg_virtual_request *own = gg_link_of(request);
    GG_TRY(gg_virtual_still_good(rank));
    bool patient = !(transport->timeout > 0);
    double deadline = 0;
    if (!patient) {
        if (round == 0) rank->wait_start = rank->clock;
        /* The first clock at which gg_wait will find that its timeout is over. */
        deadline = rank->wait_start + transport->timeout;
        while (deadline - rank->wait_start < transport->timeout) deadline = nextafter(deadline, INFINITY);
        if (deadline < rank->clock) deadline = rank->clock;
    }
    rank->empty_tests = 0;
    rank->next_known = INFINITY;
    rank->waiting = request;
    if (own->known) {
        double key = own->time > rank->clock ? own->time : rank->clock;
        gg_virtual_make_due(cluster, rank, patient || key < deadline ? key : deadline, false);
    } else {
        if (!patient) gg_virtual_make_due(cluster, rank, deadline, true);
    }
    gg_virtual_hand_on(cluster, rank);
    rank->waiting = NULL;
    return gg_virtual_still_good(rank);
}

static gg_status virtual_progress(gg_transport *transport) {
    return gg_virtual_let_others_catch_up(gg_rank_of(transport));
}

static double virtual_now(gg_transport *transport) { return gg_rank_of(transport)->clock; }

static gg_status virtual_idle(gg_transport *transport, double seconds) {
    gg_virtual_rank *rank = gg_rank_of(transport);
    if (rank->dying) GG_TRY(gg_virtual_still_good(rank));
    double after = rank->clock + seconds;
    if (!(after < INFINITY)) return gg_fail(GG_ERROR_ARGUMENT, "%g seconds are beyond any clock", seconds);
    if (after > rank->clock) {
        rank->empty_tests = 0;
        rank->next_known = INFINITY;
    }
    rank->clock = after;
    return rank->cluster->failed ? gg_virtual_still_good(rank) : GG_OK;
}

static gg_status virtual_compute(gg_transport *transport, double seconds) {
    return virtual_idle(transport, seconds * gg_rank_of(transport)->cluster->options.compute_rate);
}

static int virtual_dead(gg_transport *transport, int rank) {
    const gg_virtual *cluster = gg_rank_of(transport)->cluster;
    if (rank >= 0) return cluster->ranks[rank].told ? rank : -1;
    for (int r = 0; cluster->told > 0 && r < transport->size; ++r)
        if (cluster->ranks[r].told) return r;
    return -1;
}

const gg_transport_table gg_virtual_table = {
    .name = "virtual",
    .one_clock = true,
    .stands = true,
    .destroy = virtual_destroy,
    .alloc = virtual_alloc,
    .free = virtual_free_block,
    .send = virtual_send,
    .receive = virtual_receive,
    .test = virtual_test,
    .release = virtual_release,
    .cancel = virtual_cancel,
    .pause = virtual_pause_round,
    .dead = virtual_dead,
    .step_begun = gg_virtual_step_begun,
    .progress = virtual_progress,
    .now = virtual_now,
    .compute = virtual_compute,
    .idle = virtual_idle,
};
