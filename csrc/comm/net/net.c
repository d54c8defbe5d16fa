/* The links of a process: what is written and read when. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/net/net_private.h"

#define EVENTS 32  /* sockets a look */
#define LINGER 1.0 /* seconds */

/* ---- progress ---- */

static void push(gg_net *net, gg_net_peer *peer) {
    while (peer->sends != NULL) {
        gg_request *request = peer->sends;
        gg_net_link *link = gg_net_link_of(request);
        const gg_net_frame frame = {.kind = link->described ? GG_NET_PLACE : GG_NET_BYTES,
                                    .channel = link->channel,
                                    .tag = request->tag,
                                    .slot = link->slot,
                                    .epoch = request->epoch,
                                    .bytes = request->bytes,
                                    .offset = link->offset};
        const size_t content = link->described ? 0 : request->bytes, whole = sizeof frame + content;
        const size_t of_frame = link->bytes < sizeof frame ? sizeof frame - (size_t)link->bytes : 0;
        const size_t of_content = link->bytes < sizeof frame ? 0 : (size_t)link->bytes - sizeof frame;
        const size_t n = gg_net_write(net, peer, (const unsigned char *)&frame + (sizeof frame - of_frame), of_frame,
                                      (const unsigned char *)request->data + of_content, content - of_content);
        link->bytes += n;
        if (n > 0) net->quiet = 0;
        if (link->bytes < whole) {
            if (n == 0 || peer->socket >= 0) return;
            continue;
        }
        link->whole = true;
        gg_net_unlist(&peer->sends, &peer->sends_last, request);
        if (link->owned) gg_free(request);
    }
}

static gg_status pull(gg_net *net, gg_net_peer *peer) {
    unsigned char nobody[4096];
    for (;;) {
        if (peer->frame_got < sizeof peer->frame) {
            const size_t n = gg_net_read(net, peer, (unsigned char *)&peer->frame + peer->frame_got,
                                         sizeof peer->frame - peer->frame_got);
            peer->frame_got += n;
            if (n > 0) net->quiet = 0;
            if (peer->frame_got < sizeof peer->frame) {
                if (n == 0) return GG_OK;
                continue;
            }
            GG_TRY(gg_net_message_begins(net, peer));
            if (peer->gone) return GG_OK;
        }
        const size_t content = peer->frame.kind == GG_NET_BYTES ? (size_t)peer->frame.bytes : 0;
        while (peer->got < content) {
            const size_t left = content - peer->got;
            const size_t n = peer->to != NULL
                                 ? gg_net_read(net, peer, peer->to + peer->got, left)
                                 : gg_net_read(net, peer, nobody, left < sizeof nobody ? left : sizeof nobody);
            if (n == 0) return GG_OK;
            peer->got += n;
            net->quiet = 0;
        }
        gg_net_message_ends(net, peer);
        peer->frame_got = 0;
    }
}

static gg_status add_socket(gg_net *net, gg_net_peer *peer) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)peer->rank};
    if (net->poll < 0) net->poll = epoll_create1(EPOLL_CLOEXEC);
    if (net->poll < 0 || epoll_ctl(net->poll, EPOLL_CTL_ADD, peer->socket, &event) != 0)
        return gg_fail(GG_ERROR_COMM, "rank %d: the socket to rank %d cannot be watched: %s", net->rank, peer->rank,
                       strerror(errno));
    net->sockets++;
    return GG_OK;
}

void gg_net_arrive(gg_net *net, int rank, int socket) {
    const int before = atomic_exchange(&net->peers[rank].arriving, socket + 1);
    if (before > 0) close(before - 1);
}

/* Of others the connection may have broken before its welcome: they connect again. */
gg_status gg_net_admit(gg_net *net, const int *member, int members) {
    for (int i = 0; i < members; ++i) {
        const int rank = member[i];
        gg_net_peer *peer = &net->peers[rank];
        const int socket = atomic_exchange(&peer->arriving, 0) - 1;
        if (socket < 0) continue;
        if (rank < net->members || rank == net->rank || peer->socket >= 0 || peer->gone) {
            close(socket);
            continue;
        }
        peer->place = -1;
        peer->out = peer->in = NULL;
        peer->socket = socket;
        GG_TRY(add_socket(net, peer));
    }
    return GG_OK;
}

gg_status gg_net_progress(gg_net *net) {
    for (int rank = 0; rank < net->size; ++rank) {
        gg_net_peer *peer = &net->peers[rank];
        if (peer->sends != NULL) push(net, peer);
        if (peer->gone || (peer->in == NULL && !peer->died)) continue;
        const bool ended = peer->died || gg_net_has_ended(net, peer); /* before its last bytes are read */
        GG_TRY(pull(net, peer));
        if (ended) gg_net_lose(net, peer);
    }
    if (net->sockets == 0) return GG_OK;
    struct epoll_event events[EVENTS];
    const int n = epoll_wait(net->poll, events, EVENTS, 0);
    for (int i = 0; i < n; ++i) GG_TRY(pull(net, &net->peers[events[i].data.u32]));
    return GG_OK;
}

gg_status gg_net_send(gg_net *net, gg_net_peer *peer, gg_request *request, bool copy) {
    gg_net_link *link = gg_net_link_of(request);
    if (!copy) (void)gg_net_describe(net, peer, request->data, request->bytes, link);
    gg_net_list(&peer->sends, &peer->sends_last, request);
    return gg_net_progress(net);
}

gg_status gg_net_post(gg_net *net, gg_net_peer *peer, uint32_t channel, int tag, int64_t epoch, const void *data,
                      size_t bytes) {
    gg_request *made = NULL;
    GG_TRY(gg_calloc(1, sizeof *made + bytes, "message", &made));
    memcpy(made + 1, data, bytes);
    *made = (gg_request){.state = GG_REQUEST_SENDING, .tag = tag, .epoch = epoch, .bytes = bytes, .data = made + 1};
    *gg_net_link_of(made) = (gg_net_link){.channel = channel, .owned = true};
    return gg_net_send(net, peer, made, true);
}

/* ---- creation and destruction ---- */

static gg_status open_peers(gg_net *net, const gg_net_options *options) {
    int place = 0;
    for (int rank = 0; rank < net->size; ++rank) {
        gg_net_peer *peer = &net->peers[rank];
        const int socket = options->sockets != NULL ? options->sockets[rank] : -1;
        *peer = (gg_net_peer){.rank = rank, .place = -1, .socket = socket};
        if (net->node_of[rank] != net->node_of[net->rank]) continue;
        if (socket < 0) peer->place = place; /* a newcomer of another node leaves its place empty */
        place++;
    }
    net->places = place;
    net->place = net->peers[net->rank].place;
    GG_TRY(gg_net_memory_open(net, options));
    for (int rank = 0; rank < net->size; ++rank) {
        gg_net_peer *peer = &net->peers[rank];
        if (rank == net->rank) continue;
        if (peer->place >= 0) {
            peer->out = gg_net_ring_of(net, net->place, peer->place);
            peer->in = gg_net_ring_of(net, peer->place, net->place);
        } else if (peer->socket < 0 && net->rank >= net->members) {
            peer->gone = peer->died = true;
        } else if (peer->socket < 0) {
            return gg_fail(GG_ERROR_ARGUMENT, "sockets: none to rank %d, which is on another node", rank);
        } else {
            GG_TRY(add_socket(net, peer));
        }
    }
    return GG_OK;
}

gg_status gg_net_create(const gg_net_options *options, gg_net **out) {
    gg_status status = GG_OK;
    gg_net *made = NULL;
    const size_t size = (size_t)options->size;
    *out = NULL;
    if (options->size < 1 || options->rank < 0 || options->rank >= options->size)
        GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "rank: %d of %d; allowed: 0 to size - 1", options->rank, options->size);
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "links", &made));
    made->rank = options->rank;
    made->size = options->size;
    made->members = options->members > 0 ? options->members : options->size;
    made->poll = made->memory = -1;
    GG_TRY_CLEANUP(gg_alloc(size * sizeof *made->node_of, "nodes of ranks", &made->node_of));
    memcpy(made->node_of, options->node_of, size * sizeof *made->node_of);
    GG_TRY_CLEANUP(gg_calloc(size, sizeof *made->peers, "links", &made->peers));
    GG_TRY_CLEANUP(open_peers(made, options));
    *out = made;
    made = NULL;
cleanup:
    gg_net_destroy(made);
    return status;
}

void gg_net_leave(gg_net *net) {
    if (net == NULL || net->sockets == 0) return;
    const double begin = gg_clock_now();
    for (int rank = 0; rank < net->size; ++rank)
        if (net->peers[rank].socket >= 0) (void)shutdown(net->peers[rank].socket, SHUT_WR);
    for (int round = 0; net->sockets > 0 && gg_clock_now() - begin < LINGER; ++round) {
        unsigned char nobody[4096];
        for (int rank = 0; rank < net->size; ++rank)
            while (gg_net_read(net, &net->peers[rank], nobody, sizeof nobody) > 0 && net->peers[rank].socket >= 0)
                continue;
        gg_clock_back_off(round);
    }
}

static void free_stored(gg_net_stored *first) {
    for (gg_net_stored *next; first != NULL; first = next) {
        next = first->next;
        gg_free(first);
    }
}

void gg_net_destroy(gg_net *net) {
    if (net == NULL) return;
    gg_net_leave(net);
    for (int rank = 0; net->peers != NULL && rank < net->size; ++rank) {
        gg_net_peer *peer = &net->peers[rank];
        for (gg_request *request = peer->sends, *next; request != NULL; request = next) {
            next = gg_net_link_of(request)->next;
            if (gg_net_link_of(request)->owned) gg_free(request);
        }
        if (peer->stored != NULL && peer->stored->given_up) gg_free(peer->stored); /* it has not come whole */
        free_stored(peer->unasked); /* of channels that this rank has not */
        if (peer->socket >= 0) close(peer->socket);
        if (peer->arriving > 0) close(peer->arriving - 1);
    }
    free_stored(net->spare);
    if (net->poll >= 0) close(net->poll);
    gg_net_memory_close(net);
    gg_free(net->peers);
    gg_free(net->node_of);
    gg_free(net);
}

int gg_net_rank(const gg_net *net) { return net->rank; }
int gg_net_size(const gg_net *net) { return net->size; }
int gg_net_members(const gg_net *net) { return net->members; }
