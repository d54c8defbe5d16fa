/* Which receive gets which message. */
#include <string.h>

#include "comm/net/net_private.h"

#define STORED_MIN 256                /* bytes of room */
#define STORED_KEPT ((size_t)1 << 20) /* larger ones are freed after use */

void gg_net_list(gg_request **first, gg_request **last, gg_request *request) {
    gg_net_link_of(request)->next = NULL;
    if (*first == NULL) *first = request;
    else gg_net_link_of(*last)->next = request;
    *last = request;
}

void gg_net_unlist(gg_request **first, gg_request **last, gg_request *request) {
    gg_request *before = NULL;
    for (gg_request *at = *first; at != request; at = gg_net_link_of(at)->next) {
        if (at == NULL) return;
        before = at;
    }
    gg_request *next = gg_net_link_of(request)->next;
    if (before == NULL) *first = next;
    else gg_net_link_of(before)->next = next;
    if (next == NULL) *last = before;
}

/* False if nobody here will ask for the message. */
static bool is_wanted(const gg_net *net, const gg_net_frame *frame) {
    const gg_net_channel *channel = net->channels;
    while (channel != NULL && channel->number != frame->channel) channel = channel->next;
    if (channel != NULL) return frame->epoch >= channel->oldest;
    return frame->channel >= net->next_channel; /* other ranks may be ahead */
}

static gg_request *find_receive(const gg_net_peer *peer, const gg_net_frame *frame) {
    gg_request *at = peer->receives;
    while (at != NULL && (at->tag != frame->tag || gg_net_link_of(at)->channel != frame->channel))
        at = gg_net_link_of(at)->next;
    return at;
}

/* ---- messages without a receive ---- */

static gg_status store(gg_net *net, gg_net_peer *peer) {
    gg_net_stored *made = NULL, **at = &net->spare;
    const size_t bytes = peer->frame.kind == GG_NET_BYTES ? (size_t)peer->frame.bytes : 0;
    while (*at != NULL && (*at)->room < bytes) at = &(*at)->next;
    if (*at != NULL) {
        made = *at;
        *at = made->next;
    } else {
        size_t room = STORED_MIN;
        while (room < bytes && room < STORED_KEPT) room *= 2;
        if (room < bytes) room = bytes;
        GG_TRY(gg_alloc(gg_aligned(sizeof *made) + room, "message before its receive", &made));
        made->room = room;
        made->bytes = (unsigned char *)made + gg_aligned(sizeof *made);
    }
    made->next = NULL;
    made->frame = peer->frame;
    made->whole = made->given_up = false;
    if (peer->unasked == NULL) peer->unasked = made;
    else peer->unasked_last->next = made;
    peer->unasked_last = made;
    peer->stored = made;
    peer->to = made->bytes;
    return GG_OK;
}

static void unlink_stored(gg_net_peer *peer, gg_net_stored *before, const gg_net_stored *stored) {
    if (before == NULL) peer->unasked = stored->next;
    else before->next = stored->next;
    if (stored->next == NULL) peer->unasked_last = before;
}

gg_net_stored *gg_net_take(gg_net_peer *peer, uint32_t channel, int tag, bool whole) {
    gg_net_stored *before = NULL, *at = peer->unasked;
    for (; at != NULL && (at->frame.tag != tag || at->frame.channel != channel); at = at->next) before = at;
    if (at == NULL || (whole && !at->whole)) return NULL;
    unlink_stored(peer, before, at);
    return at;
}

void gg_net_drop_stored(gg_net *net, gg_net_stored *stored) {
    if (!stored->whole) {
        stored->given_up = true; /* its bytes still come */
    } else if (stored->room > STORED_KEPT) {
        gg_free(stored);
    } else {
        stored->next = net->spare;
        net->spare = stored;
    }
}

/* ---- a message ---- */

/* What a receive learns from the frame. */
static void match(gg_net_link *link, const gg_net_frame *frame) {
    link->matched = true;
    link->described = frame->kind == GG_NET_PLACE;
    link->offset = frame->offset;
    link->slot = frame->slot;
    link->bytes = frame->bytes;
    link->epoch = frame->epoch;
}

static bool is_frame(const gg_net *net, const gg_net_peer *peer) {
    const gg_net_frame *frame = &peer->frame;
    if (frame->kind == GG_NET_PLACE && gg_net_locate(net, peer, frame) == NULL) return false;
    return (frame->kind == GG_NET_BYTES || frame->kind == GG_NET_PLACE) && frame->bytes > 0 &&
           frame->bytes <= SIZE_MAX / 2 && frame->tag >= 0 && frame->tag <= GG_NET_TAG_MAX;
}

gg_status gg_net_message_begins(gg_net *net, gg_net_peer *peer) {
    peer->got = 0;
    peer->to = NULL;
    peer->stored = NULL;
    peer->receive = NULL;
    if (!is_frame(net, peer)) { /* nothing behind it can be read */
        gg_net_lose(net, peer);
        return GG_OK;
    }
    if (!is_wanted(net, &peer->frame)) return GG_OK;
    gg_request *receive = find_receive(peer, &peer->frame);
    if (receive == NULL) return store(net, peer);
    gg_net_unlist(&peer->receives, &peer->receives_last, receive);
    match(gg_net_link_of(receive), &peer->frame);
    peer->receive = receive;
    /* A message that the receive's test refuses has no landing. */
    if (peer->frame.bytes <= receive->capacity && peer->frame.epoch == receive->epoch) peer->to = receive->landing;
    return GG_OK;
}

void gg_net_message_ends(gg_net *net, gg_net_peer *peer) {
    if (peer->receive != NULL) gg_net_link_of(peer->receive)->whole = true;
    if (peer->stored != NULL) {
        peer->stored->whole = true;
        if (peer->stored->given_up) gg_net_drop_stored(net, peer->stored);
    }
    peer->receive = NULL;
    peer->stored = NULL;
    peer->to = NULL;
}

static void forget(gg_net *net, uint32_t channel, int64_t before_epoch) {
    for (int rank = 0; rank < net->size; ++rank) {
        gg_net_peer *peer = &net->peers[rank];
        gg_net_stored *before = NULL;
        for (gg_net_stored *at = peer->unasked, *next; at != NULL; at = next) {
            next = at->next;
            if (at->frame.channel == channel && at->frame.epoch < before_epoch) {
                unlink_stored(peer, before, at);
                gg_net_drop_stored(net, at);
            } else {
                before = at;
            }
        }
    }
}

void gg_net_forget_channel(gg_net *net, uint32_t channel) { forget(net, channel, INT64_MAX); }

void gg_net_drop_old(gg_net *net, const gg_net_channel *channel) { forget(net, channel->number, channel->oldest); }

/* ---- the calls of net_transport.c ---- */

void gg_net_receive(gg_net_peer *peer, gg_request *request) {
    gg_net_link *link = gg_net_link_of(request);
    link->stored = gg_net_take(peer, link->channel, request->tag, false);
    if (link->stored == NULL) gg_net_list(&peer->receives, &peer->receives_last, request);
    else match(link, &link->stored->frame);
}

/* Bytes of it are written, so the rest must follow: the link gets a copy. Without memory the link ends here. */
static void own_rest(gg_net *net, gg_net_peer *peer, gg_request *request) {
    gg_request *copy = NULL;
    if (gg_alloc(sizeof *copy + request->bytes, "rest of a cancelled message", &copy) != GG_OK) {
        gg_net_unlist(&peer->sends, &peer->sends_last, request);
        gg_net_lose(net, peer);
        return;
    }
    *copy = *request;
    memcpy(copy + 1, request->data, request->bytes);
    copy->data = copy + 1;
    gg_net_link_of(copy)->owned = true;
    gg_request *next = gg_net_link_of(request)->next;
    if (peer->sends_last == request) peer->sends_last = copy; /* it is the first of the list */
    peer->sends = copy;
    gg_net_link_of(copy)->next = next;
}

void gg_net_cancel(gg_net *net, gg_net_peer *peer, gg_request *request) {
    gg_net_link *link = gg_net_link_of(request);
    if (request->state == GG_REQUEST_SENDING) {
        /* A slot that a living rank may still acknowledge is not used again. */
        if (link->described && (link->bytes == 0 || gg_net_has_ended(net, peer))) gg_net_free_slot(net, link->slot);
        if (link->whole) return;
        if (link->bytes > 0) own_rest(net, peer, request);
        else gg_net_unlist(&peer->sends, &peer->sends_last, request);
        return;
    }
    if (!link->matched) gg_net_unlist(&peer->receives, &peer->receives_last, request);
    if (peer->receive == request) {
        peer->receive = NULL;
        peer->to = NULL;
    }
    gg_net_release(net, peer, request);
}

void gg_net_release(gg_net *net, gg_net_peer *peer, gg_request *request) {
    gg_net_link *link = gg_net_link_of(request);
    if (link->described) gg_net_acknowledge(net, peer, link->slot);
    if (link->stored != NULL) gg_net_drop_stored(net, link->stored);
    link->described = false;
    link->stored = NULL;
}

bool gg_net_is_done(gg_net *net, const gg_request *request, const gg_net_link *link) {
    if (request->state == GG_REQUEST_RECEIVING)
        return link->matched && (link->stored ? link->stored->whole : link->whole);
    return link->whole && (!link->described || gg_net_acknowledged(net, link->slot));
}
