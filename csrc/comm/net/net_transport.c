/* The transport table of a channel. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/collective.h"
#include "comm/net/net_private.h"
#include "comm/subgroup.h"

typedef struct net_transport {
    gg_transport transport; /* first: a gg_transport is cast to this */
    gg_net *net;
    gg_net_channel channel;
    gg_status (*watch)(void *context, int64_t begun); /* gg_net_transport_survive's; NULL means that it has not */
    gg_status (*look)(void *context);                 /* gg_net_transport_look's; NULL likewise */
    double waits_since;                               /* with a look */
    void *context;
    bool trains;   /* gg_net_transport_train */
    int64_t begun; /* steps */
    gg_halt *halt;
} net_transport;

static net_transport *net_of(gg_transport *transport) { return (net_transport *)transport; }

static gg_net_peer *peer_of(gg_transport *transport, int rank) { return &net_of(transport)->net->peers[rank]; }

static void net_destroy(gg_transport *transport) {
    net_transport *own = net_of(transport);
    gg_net_channel **at = &own->net->channels;
    while (*at != &own->channel) at = &(*at)->next;
    *at = own->channel.next;
    (void)gg_halt_destroy(own->halt, false);
    gg_net_forget_channel(own->net, own->channel.number);
    gg_free(own);
}

/* ---- messages of the transport itself ---- */

/* Takes the oldest one of the channel and tag if it has come whole. False if none has, or it has other bytes. */
static bool hear_small(gg_net *net, gg_net_peer *peer, uint32_t channel, int tag, void *to, size_t bytes) {
    gg_net_stored *found = gg_net_take(peer, channel, tag, true);
    if (found == NULL) return false;
    const bool heard = found->frame.kind == GG_NET_BYTES && found->frame.bytes == bytes;
    if (heard) memcpy(to, found->bytes, bytes);
    gg_net_drop_stored(net, found);
    return heard;
}

/* ---- limits of ranks that stop together ---- */

#define TAG_LIMIT GG_TAG_LIMIT

static gg_status limits_tell(void *context, const gg_halt_limit *limit) {
    const net_transport *own = context;
    for (int rank = 0; rank < own->transport.size; ++rank)
        if (rank != own->transport.rank)
            GG_TRY(
                gg_net_post(own->net, &own->net->peers[rank], own->channel.number, TAG_LIMIT, 0, limit, sizeof *limit));
    return GG_OK;
}

static gg_status limits_hear(void *context, gg_halt_limit *limit, bool *heard) {
    const net_transport *own = context;
    *heard = false;
    GG_TRY(gg_net_progress(own->net));
    for (int rank = 0; rank < own->transport.size && !*heard; ++rank)
        *heard = hear_small(own->net, &own->net->peers[rank], own->channel.number, TAG_LIMIT, limit, sizeof *limit);
    return GG_OK;
}

gg_halt *gg_net_transport_halt(gg_transport *transport) { return net_of(transport)->halt; }

/* ---- the table ---- */

static gg_status net_alloc(gg_transport *transport, size_t bytes, const char *what, void **out) {
    GG_TRY(gg_net_heap_alloc(net_of(transport)->net, bytes, out));
    return *out != NULL ? GG_OK : gg_calloc(1, bytes, what, out);
}

static void net_free_block(gg_transport *transport, void *block) {
    if (!gg_net_heap_free(net_of(transport)->net, block)) gg_free(block);
}

static void net_recycle(gg_transport *transport, bool on) { gg_net_heap_recycle(net_of(transport)->net, on); }

static gg_status net_send(gg_transport *transport, const void *data, size_t bytes, int peer, int tag,
                          gg_request *request) {
    (void)data, (void)bytes, (void)tag; /* the request's */
    *gg_net_link_of(request) = (gg_net_link){.channel = net_of(transport)->channel.number};
    return gg_net_send(net_of(transport)->net, peer_of(transport, peer), request, transport->as_it_is);
}

static gg_status net_receive(gg_transport *transport, void *landing, size_t capacity, int peer, int tag,
                             gg_request *request) {
    (void)landing, (void)capacity, (void)tag; /* the request's */
    *gg_net_link_of(request) = (gg_net_link){.channel = net_of(transport)->channel.number};
    gg_net_receive(peer_of(transport, peer), request);
    return GG_OK;
}

/* With a look the rank's death may be told yet. */
static bool fails(gg_transport *transport, const gg_net_peer *peer) {
    return peer->gone && gg_clock_now() >= peer->fails_at + (net_of(transport)->look != NULL ? GG_NET_GRACE : 0);
}

/* The error of a wait for a rank that is gone, with both numbers of steps if they are known. */
static gg_status fail_gone(gg_transport *transport, const gg_net_peer *peer) {
    const gg_net *net = net_of(transport)->net;
    char steps[96] = "";
    if (net_of(transport)->look != NULL) GG_TRY(net_of(transport)->look(net_of(transport)->context));
    if (peer->place >= 0) {
        const gg_net_board *own = gg_net_board_of(net, net->place), *theirs = gg_net_board_of(net, peer->place);
        const int64_t number = net_of(transport)->channel.number;
        const int64_t begun = atomic_load(&own->begun) + atomic_load(&theirs->begun);
        if (atomic_load(&own->channel) == number && atomic_load(&theirs->channel) == number && begun > 0)
            snprintf(steps, sizeof steps, " (steps begun: %lld on rank %d; %lld on rank %d)",
                     (long long)atomic_load(&own->begun), net->rank, (long long)atomic_load(&theirs->begun),
                     peer->rank);
    }
    return gg_fail(GG_ERROR_COMM,
                   "rank %d waits for rank %d, which has ended%s; all ranks make the same collective calls",
                   transport->rank, peer->rank, steps);
}

static gg_status net_arrived(gg_transport *transport, const gg_net_peer *peer, gg_request *request) {
    const gg_net_link *link = gg_net_link_of(request);
    if (link->epoch != request->epoch)
        return gg_transport_other_epoch(transport, request->epoch, link->epoch, request->peer, request->tag);
    if (link->bytes > request->capacity)
        return gg_fail(GG_ERROR_COMM, "rank %d: message from rank %d with tag %d: expected %s%zu bytes, received %llu",
                       transport->rank, request->peer, request->tag, request->exact ? "" : "at most ",
                       request->capacity, (unsigned long long)link->bytes);
    const gg_net_frame frame = {.slot = link->slot, .bytes = link->bytes, .offset = link->offset};
    request->data = link->described        ? gg_net_locate(net_of(transport)->net, peer, &frame)
                    : link->stored != NULL ? link->stored->bytes
                                           : request->landing;
    request->bytes = (size_t)link->bytes;
    request->when = gg_clock_now();
    request->state = GG_REQUEST_ARRIVED;
    return GG_OK;
}

/* Where ranks may die: requests of this peer are LOST. */
static bool has_died(const gg_net_peer *peer) { return peer->gone && (peer->place >= 0 || peer->died); }

static gg_status net_test(gg_transport *transport, gg_request *request, bool *done) {
    gg_net *net = net_of(transport)->net;
    const gg_net_link *link = gg_net_link_of(request);
    gg_net_peer *peer = peer_of(transport, request->peer);
    *done = gg_net_is_done(net, request, link);
    if (!*done) {
        GG_TRY(gg_net_progress(net));
        *done = gg_net_is_done(net, request, link);
    }
    if (!*done && net_of(transport)->watch != NULL) {
        if (!has_died(peer))
            return !net_of(transport)->trains && fails(transport, peer) ? fail_gone(transport, peer) : GG_OK;
        gg_net_cancel(net, peer, request);
        request->state = GG_REQUEST_LOST;
        *done = true;
        return GG_OK;
    }
    if (!*done) return fails(transport, peer) ? fail_gone(transport, peer) : GG_OK;
    if (request->state == GG_REQUEST_RECEIVING) return net_arrived(transport, peer, request);
    request->state = GG_REQUEST_IDLE;
    return GG_OK;
}

static gg_status net_release(gg_transport *transport, gg_request *request) {
    gg_net_release(net_of(transport)->net, peer_of(transport, request->peer), request);
    return GG_OK;
}

static void net_cancel(gg_transport *transport, gg_request *request) {
    gg_net_cancel(net_of(transport)->net, peer_of(transport, request->peer), request);
}

static gg_status net_pause_round(gg_transport *transport, int round, gg_request *request) {
    gg_net *net = net_of(transport)->net;
    (void)request;
    if (round % GG_HALT_LISTEN_ROUNDS == GG_HALT_LISTEN_ROUNDS - 1) GG_TRY(gg_halt_listen(net_of(transport)->halt));
    gg_clock_back_off(round < net->quiet ? round : net->quiet); /* the next piece of a message comes soon */
    if (net->quiet < 2 * GG_CLOCK_YIELDS) net->quiet++;         /* more make no longer sleep */
    net_transport *own = net_of(transport);
    if (own->look != NULL && round == 0) own->waits_since = gg_clock_now();
    if (own->look != NULL && gg_clock_now() - own->waits_since > GG_NET_GRACE) GG_TRY(own->look(own->context));
    return own->watch != NULL ? own->watch(own->context, own->begun) : GG_OK;
}

static int net_dead(gg_transport *transport, int rank) {
    const net_transport *own = net_of(transport);
    for (int i = 0; own->watch != NULL && i < transport->size; ++i)
        if ((rank < 0 || rank == i) && has_died(&own->net->peers[i])) return i;
    return -1;
}

static gg_status net_check_peer(gg_transport *transport, int peer) {
    GG_TRY(gg_net_progress(net_of(transport)->net));
    for (int rank = 0; rank < transport->size; ++rank)
        if ((peer < 0 || peer == rank) && net_of(transport)->watch == NULL &&
            fails(transport, peer_of(transport, rank)))
            return fail_gone(transport, peer_of(transport, rank));
    return GG_OK;
}

static gg_status net_progress(gg_transport *transport) { return gg_net_progress(net_of(transport)->net); }

static void net_step_begun(gg_transport *transport, int64_t begun) {
    net_of(transport)->begun = begun;
    const gg_net *net = net_of(transport)->net;
    if (net->base == NULL) return;
    gg_net_board *board = gg_net_board_of(net, net->place);
    atomic_store(&board->channel, net_of(transport)->channel.number);
    atomic_store(&board->begun, begun);
}

static void net_set_epoch(gg_transport *transport, int64_t epoch) {
    net_transport *own = net_of(transport);
    if (own->watch == NULL) return;
    own->channel.oldest = epoch;
    gg_net_drop_old(own->net, &own->channel);
}

static double net_now(gg_transport *transport) {
    (void)transport;
    return gg_clock_now();
}

static gg_status net_compute(gg_transport *transport, double seconds) {
    (void)transport, (void)seconds;
    return GG_OK;
}

static gg_status net_idle(gg_transport *transport, double seconds) {
    (void)transport;
    gg_clock_sleep(seconds);
    return GG_OK;
}

/* One a value of one_clock: CLOCK_MONOTONIC counts from one moment on the ranks of a node. */
#define TABLE(clock)                                                                                                   \
    {                                                                                                                  \
        .name = "net", .one_clock = (clock), .destroy = net_destroy, .alloc = net_alloc, .free = net_free_block,       \
        .send = net_send, .receive = net_receive, .test = net_test, .release = net_release, .cancel = net_cancel,      \
        .pause = net_pause_round, .check_peer = net_check_peer, .dead = net_dead, .progress = net_progress,            \
        .set_epoch = net_set_epoch, .step_begun = net_step_begun, .now = net_now, .compute = net_compute,              \
        .idle = net_idle, .recycle = net_recycle,                                                                      \
    }
static const gg_transport_table tables[] = {TABLE(false), TABLE(true)};

void gg_net_transport_survive(gg_transport *transport, gg_status (*watch)(void *context, int64_t begun),
                              void *context) {
    net_of(transport)->watch = watch;
    net_of(transport)->context = context;
}

void gg_net_transport_look(gg_transport *transport, gg_status (*look)(void *context), void *context) {
    net_of(transport)->look = look;
    net_of(transport)->context = context;
}

void gg_net_transport_died(gg_transport *transport, int rank) { peer_of(transport, rank)->died = true; }

bool gg_net_transport_is_cut_off(gg_transport *transport, int rank) {
    const gg_net_peer *peer = peer_of(transport, rank);
    return peer->gone && peer->place < 0 && !peer->died;
}

gg_status gg_net_transport_admit(gg_transport *transport, const int *member, int members) {
    return gg_net_admit(net_of(transport)->net, member, members);
}

void gg_net_transport_train(gg_transport *transport, bool trains) { net_of(transport)->trains = trains; }

/* ---- votes ---- */

#define OF_ALL_EPOCHS (INT64_MAX - 1) /* never dropped with those of an epoch */

gg_status gg_net_transport_tell_vote(gg_transport *transport, int64_t vote) {
    const net_transport *own = net_of(transport);
    for (int rank = 0; rank < transport->size; ++rank) {
        gg_net_peer *peer = &own->net->peers[rank];
        if (rank == transport->rank || peer->place >= 0 || peer->gone) continue;
        GG_TRY(gg_net_post(own->net, peer, own->channel.number, GG_NET_TAG_VOTE, OF_ALL_EPOCHS, &vote, sizeof vote));
    }
    return GG_OK;
}

gg_status gg_net_transport_hear_vote(gg_transport *transport, int *rank, int64_t *vote) {
    const net_transport *own = net_of(transport);
    GG_TRY(gg_net_progress(own->net));
    for (*rank = transport->size - 1; *rank >= 0; --*rank)
        if (hear_small(own->net, peer_of(transport, *rank), own->channel.number, GG_NET_TAG_VOTE, vote, sizeof *vote))
            break;
    return GG_OK;
}

/* ---- greetings ---- */

#define GREETINGS UINT32_MAX /* a channel without a transport */

int64_t gg_net_transport_channel(gg_transport *transport) { return net_of(transport)->channel.number; }

gg_status gg_net_transport_greet(gg_transport *transport, int rank, int64_t view) {
    const net_transport *own = net_of(transport);
    const int64_t number = own->channel.number;
    return gg_net_post(own->net, peer_of(transport, rank), GREETINGS, GG_NET_TAG_GREETING, view, &number,
                       sizeof number);
}

gg_status gg_net_transport_hear_greeting(gg_transport *transport, int rank, int64_t view, int64_t *number) {
    const net_transport *own = net_of(transport);
    gg_net_peer *peer = peer_of(transport, rank);
    *number = -1;
    GG_TRY(gg_net_progress(own->net));
    while (*number < 0) {
        const gg_net_stored *first = peer->unasked;
        while (first != NULL && first->frame.channel != GREETINGS) first = first->next;
        if (first == NULL || first->frame.epoch > view) break; /* views ascend */
        const bool old = first->frame.epoch < view;
        int64_t told;
        if (!hear_small(own->net, peer, GREETINGS, GG_NET_TAG_GREETING, &told, sizeof told)) break;
        if (!old) *number = told;
    }
    return GG_OK;
}

/* Waits for the first members; a newcomer waits for nobody. */
static gg_status meet(gg_transport *transport, int members) {
    gg_status status = GG_OK;
    gg_transport *first = NULL;
    int *member = NULL;
    if (transport->rank >= members) goto cleanup;
    GG_TRY_CLEANUP(gg_alloc((size_t)members * sizeof *member, "members", &member));
    for (int i = 0; i < members; ++i) member[i] = i;
    GG_TRY_CLEANUP(gg_subgroup_create(transport, member, members, &first));
    GG_TRY_CLEANUP(gg_barrier(first));
cleanup:
    gg_transport_destroy(first);
    gg_free(member);
    return status;
}

gg_status gg_net_transport_create(gg_net *net, double timeout, gg_transport **out) {
    static const gg_halt_wire wire = {.tell = limits_tell, .hear = limits_hear};
    net_transport *made = NULL;
    *out = NULL;
    GG_TRY(gg_calloc(1, sizeof *made, "net transport", &made));
    made->transport = (gg_transport){.table = &tables[net->places == net->size],
                                     .rank = net->rank,
                                     .identity = net->rank,
                                     .size = net->size,
                                     .node_of = net->node_of,
                                     .timeout = timeout,
                                     .reports_stalls = true};
    made->net = net;
    made->channel = (gg_net_channel){.next = net->channels, .number = net->next_channel++};
    net->channels = &made->channel;
    gg_status status = gg_halt_create(net->rank, net->size, &wire, made, &made->halt);
    if (status == GG_OK) status = meet(&made->transport, net->members);
    if (status == GG_OK) *out = &made->transport;
    else net_destroy(&made->transport);
    return gg_error_prefix(status, "making the group: ");
}
