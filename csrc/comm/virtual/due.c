/* Which ranks can run, and from when. */
#include "comm/virtual/virtual_private.h"

void gg_virtual_make_due(gg_virtual *cluster, gg_virtual_rank *rank, double key, bool only_deadline) {
    rank->only_deadline = only_deadline;
    cluster->able += !only_deadline;
    gg_heap_push(&cluster->due, &rank->due, key);
}

void gg_virtual_make_undue(gg_virtual *cluster, gg_virtual_rank *rank) {
    cluster->able -= !rank->only_deadline;
    gg_heap_remove(&cluster->due, &rank->due);
}

void gg_virtual_wake(gg_virtual *cluster, gg_request *request, double time) {
    gg_virtual_rank *rank = &cluster->ranks[gg_link_of(request)->owner];
    rank->has_event = true;
    if (rank->waiting == request || rank->polling || rank->waits_for_any) gg_virtual_stir(cluster, rank, time);
}

void gg_virtual_stir(gg_virtual *cluster, gg_virtual_rank *rank, double time) {
    rank->has_event = true;
    if (rank->waiting == NULL && !rank->polling && !rank->waits_for_any) return;
    double key = time > rank->clock ? time : rank->clock;
    rank->waiting = NULL;
    if (rank->due.place >= 0) { /* its timeout ends then, or it polls and knows of another event */
        if (rank->due.key < key) key = rank->due.key;
        gg_virtual_make_undue(cluster, rank);
    }
    gg_virtual_make_due(cluster, rank, key, false);
}
