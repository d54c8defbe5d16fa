/* Lists of requests: those without a partner, by receiver, source and tag, and those with one, by owner. */
#include "comm/virtual/virtual_private.h"

void gg_virtual_append(gg_virtual_queue *q, gg_request *request) {
    gg_virtual_request *own = gg_link_of(request);
    own->next = NULL;
    own->previous = q->last;
    if (q->last) gg_link_of(q->last)->next = request;
    else q->first = request;
    q->last = request;
}

void gg_virtual_remove(gg_virtual_queue *q, gg_request *request) {
    gg_virtual_request *own = gg_link_of(request);
    if (own->previous) gg_link_of(own->previous)->next = own->next;
    else q->first = own->next;
    if (own->next) gg_link_of(own->next)->previous = own->previous;
    else q->last = own->previous;
    own->next = own->previous = NULL;
}

void gg_virtual_replace(gg_virtual_queue *q, gg_request *request, gg_request *by) {
    gg_virtual_request *own = gg_link_of(request), *new = gg_link_of(by);
    new->next = own->next;
    new->previous = own->previous;
    if (own->previous) gg_link_of(own->previous)->next = by;
    else q->first = by;
    if (own->next) gg_link_of(own->next)->previous = by;
    else q->last = by;
    own->next = own->previous = NULL;
}

gg_virtual_queue *gg_virtual_sends_to(gg_virtual *cluster, int receiver, int source, int tag) {
    return &cluster->ranks[receiver].sends[((unsigned)source * 31u + (unsigned)tag) % GG_VIRTUAL_BUCKETS];
}

gg_virtual_queue *gg_virtual_receives_of(gg_virtual *cluster, int receiver, int source, int tag) {
    return &cluster->ranks[receiver].receives[((unsigned)source * 31u + (unsigned)tag) % GG_VIRTUAL_BUCKETS];
}

void gg_virtual_pair(gg_virtual *cluster, gg_request *send, gg_request *receive) {
    gg_link_of(send)->partner = receive;
    gg_link_of(receive)->partner = send;
    gg_virtual_append(&cluster->ranks[gg_link_of(send)->owner].paired, send);
    gg_virtual_append(&cluster->ranks[gg_link_of(receive)->owner].paired, receive);
}

void gg_virtual_part(gg_virtual *cluster, gg_request *request) {
    gg_request *partner = gg_link_of(request)->partner;
    gg_virtual_remove(&cluster->ranks[gg_link_of(request)->owner].paired, request);
    gg_virtual_remove(&cluster->ranks[gg_link_of(partner)->owner].paired, partner);
    gg_link_of(request)->partner = gg_link_of(partner)->partner = NULL;
}
