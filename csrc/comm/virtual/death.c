/* Deaths: what becomes of a dead rank's messages and of those who wait for it.
 *
 * 1. A rank dies inside of a call of its own. Its requests leave the cluster, because its thread goes on to free them.
 *    Messages that have left whole are copied: the copy arrives in place of the message. The others vanish.
 * 2. Until the others are told, their requests for the dead rank stay as they are.
 * 3. At the time of telling, which is an entry in the heap of ranks that can run, these requests become LOST, and every
 *    rank that waits looks again. From then on such a request is LOST at once. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "comm/virtual/virtual_private.h"

/* A message of a dead rank that still arrives. */
struct gg_virtual_ghost {
    gg_request request; /* first: a gg_request is cast to this */
    gg_virtual_ghost *next, **place;
    char data[];
};

static gg_status ghost_create(gg_virtual *cluster, const gg_request *send, gg_request **out) {
    gg_virtual_ghost *ghost = NULL;
    GG_TRY(gg_alloc(sizeof *ghost + send->bytes, "message of a dead rank", &ghost));
    ghost->request = *send;
    memcpy(ghost->data, gg_link_of(&ghost->request)->data, send->bytes);
    ghost->request.data = gg_link_of(&ghost->request)->data = ghost->data;
    ghost->next = cluster->ghosts;
    ghost->place = &cluster->ghosts;
    if (ghost->next != NULL) ghost->next->place = &ghost->next;
    cluster->ghosts = ghost;
    *out = &ghost->request;
    return GG_OK;
}

void gg_virtual_free_ghost(gg_virtual *cluster, gg_request *request) {
    gg_virtual_ghost *ghost = (gg_virtual_ghost *)request;
    if (!gg_link_of(request)->arrived)
        gg_virtual_off_wire(cluster, &cluster->ranks[gg_link_of(request)->owner], request);
    *ghost->place = ghost->next;
    if (ghost->next != NULL) ghost->next->place = ghost->place;
    gg_free(ghost);
}

/* Message memory that a dead rank has freed: a reader may still hold an address in it. */
struct gg_virtual_kept {
    gg_virtual_kept *next;
    void *block;
};

bool gg_virtual_keep(gg_virtual_rank *rank, void *block) {
    gg_virtual *cluster = rank->cluster;
    gg_virtual_kept *made = NULL;
    if (!rank->dead || !cluster->running) return false;
    if (gg_alloc(sizeof *made, "memory of a dead rank", &made) != GG_OK) return true; /* lost rather than wrong */
    *made = (gg_virtual_kept){.next = cluster->kept, .block = block};
    cluster->kept = made;
    return true;
}

void gg_virtual_bury(gg_virtual *cluster) {
    while (cluster->kept != NULL) {
        gg_virtual_kept *kept = cluster->kept;
        cluster->kept = kept->next;
        gg_free(kept->block);
        gg_free(kept);
    }
    while (cluster->ghosts != NULL) {
        gg_virtual_ghost *ghost = cluster->ghosts;
        cluster->ghosts = ghost->next;
        gg_free(ghost);
    }
}

void gg_virtual_lose(gg_virtual *cluster, gg_request *request, double time) {
    gg_virtual_request *own = gg_link_of(request);
    own->lost = own->known = true;
    own->time = time;
    gg_virtual_wake(cluster, request, time);
}

/* Takes a send of a dying rank out of the cluster, or puts a copy in its place. queue: where it waits for a receive, or
 * the dying rank's list of those that have one. */
static gg_status leave_send(gg_virtual_rank *rank, gg_virtual_queue *queue, gg_request *send) {
    gg_virtual *cluster = rank->cluster;
    gg_virtual_request *own = gg_link_of(send);
    gg_request *receive = own->partner, *copy = NULL;
    const bool read = receive != NULL && receive->state == GG_REQUEST_ARRIVED;
    if (own->left <= rank->clock || read) {
        GG_TRY(ghost_create(cluster, send, &copy));
        if (read && receive->data == own->data) receive->data = gg_link_of(copy)->data;
        gg_virtual_replace(queue, send, copy);
        if (receive != NULL) gg_link_of(receive)->partner = copy;
        if (!own->arrived) gg_virtual_replace_on_wire(rank, send, copy);
        return GG_OK;
    }
    if (!own->arrived) gg_virtual_off_wire(cluster, rank, send);
    if (receive == NULL) {
        gg_virtual_remove(queue, send);
        return GG_OK;
    }
    gg_virtual_part(cluster, send);
    gg_link_of(receive)->known = false;
    gg_virtual_append(gg_virtual_receives_of(cluster, gg_link_of(receive)->owner, receive->peer, receive->tag),
                      receive);
    return GG_OK;
}

/* A receive of a dying rank that has a message: its sender waits as if the receive had not been posted. */
static void leave_receive(gg_virtual *cluster, gg_request *receive) {
    gg_request *send = gg_link_of(receive)->partner;
    gg_virtual_part(cluster, receive);
    const int sender = gg_link_of(send)->owner;
    if (cluster->ranks[sender].dead) gg_virtual_free_ghost(cluster, send);
    else gg_virtual_append(gg_virtual_sends_to(cluster, send->peer, sender, send->tag), send);
}

gg_status gg_virtual_die(gg_virtual_rank *rank) {
    gg_virtual *cluster = rank->cluster;
    for (int r = 0; r < cluster->options.size; ++r)
        for (int bucket = 0; bucket < GG_VIRTUAL_BUCKETS; ++bucket) {
            gg_virtual_queue *sends = &cluster->ranks[r].sends[bucket];
            for (gg_request *next, *s = sends->first; s != NULL; s = next) {
                next = gg_link_of(s)->next;
                if (gg_link_of(s)->owner == rank->transport.rank) GG_TRY(leave_send(rank, sends, s));
            }
        }
    for (gg_request *next, *one = rank->paired.first; one != NULL; one = next) {
        next = gg_link_of(one)->next;
        if (one->state != GG_REQUEST_SENDING) leave_receive(cluster, one);
        else GG_TRY(leave_send(rank, &rank->paired, one));
    }
    memset(rank->receives, 0, sizeof rank->receives);
    rank->dead = true;
    cluster->dead++;
    gg_virtual_make_due(cluster, rank, rank->clock + cluster->options.detect, false);
    return GG_OK;
}

void gg_virtual_tell(gg_virtual *cluster, gg_virtual_rank *dead) {
    const double time = dead->clock + cluster->options.detect;
    dead->told = true;
    cluster->told++;
    if (cluster->failed) return; /* requests may be freed already */
    for (int bucket = 0; bucket < GG_VIRTUAL_BUCKETS; ++bucket)
        for (gg_request *s; (s = dead->sends[bucket].first) != NULL;) {
            gg_virtual_rank *from = &cluster->ranks[gg_link_of(s)->owner];
            gg_virtual_remove(&dead->sends[bucket], s);
            if (from->dead) {
                gg_virtual_free_ghost(cluster, s);
                continue;
            }
            if (!gg_link_of(s)->arrived) gg_virtual_off_wire(cluster, from, s);
            gg_link_of(s)->arrived = true;
            gg_virtual_lose(cluster, s, time);
        }
    for (int r = 0; r < cluster->options.size; ++r) {
        gg_virtual_rank *rank = &cluster->ranks[r];
        for (int bucket = 0; bucket < GG_VIRTUAL_BUCKETS; ++bucket)
            for (gg_request *next, *one = rank->receives[bucket].first; one != NULL; one = next) {
                next = gg_link_of(one)->next;
                if (one->peer != dead->transport.rank) continue;
                gg_virtual_remove(&rank->receives[bucket], one);
                gg_virtual_lose(cluster, one, time);
            }
        if (!rank->finished) gg_virtual_stir(cluster, rank, time); /* its collective may need the dead rank */
    }
}

/* ---- when ---- */

void gg_virtual_step_begun(gg_transport *transport, int64_t begun) {
    gg_virtual_rank *rank = gg_rank_of(transport);
    const int64_t step = begun - 1;
    const gg_virtual_death *death = rank->death;
    rank->begun = begun;
    if (death == NULL || rank->dead) return;
    if (rank->in_last_step && step > death->step) rank->dying = true;
    rank->in_last_step = step == death->step;
    rank->sent = 0;
    rank->counts = true;
    if (rank->in_last_step && death->after_messages == 0) rank->dying = true;
}

int64_t gg_virtual_begun(const gg_virtual *cluster, int rank) { return cluster->ranks[rank].begun; }

gg_status gg_virtual_check_deaths(const gg_virtual_options *options) {
    for (int i = 0; i < options->death_count; ++i) {
        const gg_virtual_death *death = &options->deaths[i];
        if (death->rank < 0 || death->rank >= options->size)
            return gg_fail(GG_ERROR_ARGUMENT, "virtual cluster: death %d is that of rank %d, expected 0 to %d", i,
                           death->rank, options->size - 1);
        if (death->step < 0 || death->after_messages < 0)
            return gg_fail(GG_ERROR_ARGUMENT,
                           "virtual cluster: death of rank %d in step %lld after %lld messages, expected at least 0",
                           death->rank, (long long)death->step, (long long)death->after_messages);
        for (int k = 0; k < i; ++k)
            if (options->deaths[k].rank == death->rank)
                return gg_fail(GG_ERROR_ARGUMENT, "virtual cluster: two deaths of rank %d, expected at most one",
                               death->rank);
    }
    if (!(options->detect >= 0 && options->detect < INFINITY))
        return gg_fail(GG_ERROR_ARGUMENT, "virtual cluster: detect is %g s, expected at least 0", options->detect);
    return GG_OK;
}

bool gg_virtual_dead(const gg_virtual *cluster, int rank, double *when) {
    const gg_virtual_rank *one = &cluster->ranks[rank];
    if (when != NULL && one->dead) *when = one->clock;
    return one->dead;
}
