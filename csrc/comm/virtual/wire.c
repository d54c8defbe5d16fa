/* Messages in flight: links that carry one at a time, and the clocks at which messages arrive. */
#include <math.h>

#include "comm/virtual/virtual_private.h"

void gg_virtual_announce(gg_virtual *cluster, gg_request *receive, double time) {
    gg_link_of(receive)->time = time;
    gg_link_of(receive)->known = true;
    gg_virtual_wake(cluster, receive, time);
}

static double wire_transfer(const gg_virtual *cluster, size_t bytes) {
    double bandwidth = cluster->options.network.bandwidth;
    return bandwidth > 0 ? (double)bytes / bandwidth : 0;
}

/* The first byte of a message has reached its receiver. */
static void wire_arrive(gg_virtual *cluster, gg_request *send) {
    gg_virtual_request *own = gg_link_of(send);
    gg_virtual_rank *to = &cluster->ranks[send->peer];
    if (cluster->options.network.bandwidth > 0) {
        to->in_free = fmax(to->in_free, own->time) + wire_transfer(cluster, send->bytes);
        own->time = to->in_free;
    }
    own->arrived = true;
    if (own->partner) gg_virtual_announce(cluster, own->partner, own->time);
}

/* A rank's messages reach their receivers in the order of sending, so only the first of each is in the heap. */
static void wire_append(gg_virtual *cluster, gg_virtual_rank *from, gg_request *send) {
    if (from->wire_first) gg_link_of(from->wire_last)->behind = send;
    else {
        from->wire_first = send;
        gg_heap_push(&cluster->wire, &from->wire, gg_link_of(send)->time);
    }
    from->wire_last = send;
}

void gg_virtual_put_on_wire(gg_virtual_rank *from, const void *data, gg_request *send) {
    gg_virtual *cluster = from->cluster;
    double leaves = fmax(from->clock, from->out_free);
    from->out_free = leaves + wire_transfer(cluster, send->bytes);
    *gg_link_of(send) = (gg_virtual_request){.data = data,
                                             .owner = from->transport.rank,
                                             .time = leaves + cluster->options.network.latency,
                                             .left = from->out_free};
    /* Where bandwidth is unlimited no other message can come between. */
    if (cluster->options.network.bandwidth > 0) wire_append(cluster, from, send);
    else wire_arrive(cluster, send);
}

void gg_virtual_off_wire(gg_virtual *cluster, gg_virtual_rank *from, gg_request *send) {
    gg_request **place = &from->wire_first, *before = NULL;
    for (; *place != send; place = &gg_link_of(before)->behind) before = *place;
    *place = gg_link_of(send)->behind;
    if (from->wire_last == send) from->wire_last = before;
    if (before) return;
    gg_heap_remove(&cluster->wire, &from->wire);
    if (from->wire_first) gg_heap_push(&cluster->wire, &from->wire, gg_link_of(from->wire_first)->time);
}

void gg_virtual_replace_on_wire(gg_virtual_rank *from, gg_request *send, gg_request *copy) {
    gg_request **place = &from->wire_first;
    while (*place != send) place = &gg_link_of(*place)->behind;
    *place = copy;
    if (from->wire_last == send) from->wire_last = copy;
}

void gg_virtual_deliver(gg_virtual *cluster, double until) {
    while (cluster->wire.size > 0) {
        const gg_heap_entry *first = cluster->wire.entries[0];
        if (first->key > until || (cluster->due.size > 0 && cluster->due.entries[0]->key < first->key)) return;
        gg_virtual_rank *from = &cluster->ranks[first->rank];
        gg_request *send = from->wire_first;
        gg_virtual_off_wire(cluster, from, send);
        wire_arrive(cluster, send);
    }
}
