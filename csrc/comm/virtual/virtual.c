#include "comm/virtual/virtual.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"

#define MAX_SIZE 4096
#define BUCKETS 16
#define TEXT_BYTES 1024
/* Tests in a row that find nothing at one clock before a rank counts as polling: it then sleeps until something happens
 * to one of its requests, because in virtual time polling alone would last for ever. Far above what a strategy tests in
 * a step. */
#define POLL_LIMIT 100000
#define POLL_AGAIN 1000
#define POLL_HOPELESS 50000000 /* the same when no other rank can run: about a second, then it fails */

/* What a request's private words hold. */
typedef struct __attribute__((may_alias)) request_link {
    gg_request *next, *previous, *partner; /* partner: the matched request of the other side */
    gg_request *behind;                    /* send: the next one on the wire from this rank */
    const void *data;                      /* send: the message */
    double time;                           /* if known: the clock at which this request completes */
    int32_t owner;                         /* the rank whose request it is */
    bool known, broken;                    /* broken: the other side gave up */
    bool arrived;                          /* send: `time` is that of its arrival; before, of its first byte's */
} request_link;

_Static_assert(sizeof(request_link) <= sizeof((gg_request *)0)->private_, "request_link must fit");

typedef struct queue {
    gg_request *first, *last;
} queue;

/* Who has the baton runs. Set under the mutex by the one who hands it on. */
typedef struct baton {
    pthread_mutex_t mutex;
    pthread_cond_t turn;
    bool here, made;
} baton;

/* A rank's place in a heap, by (key, rank). */
typedef struct entry {
    double key;
    int place; /* -1: not in it */
    int rank;
} entry;

typedef struct heap {
    entry **entries;
    int size;
} heap;

typedef struct virtual_rank {
    gg_transport transport; /* first: a gg_transport is cast to this */
    gg_virtual *cluster;
    baton baton;
    pthread_t thread;
    bool started, finished;
    double clock, out_free, in_free; /* the latter: when the links are idle again */
    entry due;                       /* in the heap of ranks that can run and do not: from when */
    bool only_deadline;              /* that is the end of a wait's patience: does not count as able to run */
    entry wire;                      /* in the heap of ranks with messages on the wire: when the next first byte arrives */
    gg_request *wire_first, *wire_last;
    gg_request *waiting; /* its completion time is not known yet */
    double wait_start;
    bool polling;       /* sleeps until something happens to any of its requests, or nobody else can run */
    bool waits_for_any; /* sleeps until something happens to any of its requests */
    bool lingers;       /* its function has returned, and it serves those whose function has not */
    bool news;          /* something has happened to one of them since it last waited for any */
    int fruitless;      /* tests in a row that found nothing */
    double next_known;  /* the first clock at which one of the requests that they asked for completes */
    /* Messages and receives for which this rank is the destination, unmatched, by (source, tag). */
    queue sends[BUCKETS], receives[BUCKETS];
} virtual_rank;

struct gg_virtual {
    gg_virtual_options options;
    virtual_rank *ranks;
    heap due, wire;
    int able;                /* entries of due that are not only_deadline */
    int unfinished, working; /* working: of them, those whose function has not returned yet */
    bool running, quit;
    gg_status (*fn)(void *context, int rank);
    void *context;
    baton caller;
    atomic_bool watch_due;
    bool failed, deadlock, recorded;
    int failed_rank;
    gg_status status;
    char text[TEXT_BYTES], deadlock_text[TEXT_BYTES];
};

static request_link *link_of(gg_request *request) { return (request_link *)request->private_; }
static virtual_rank *rank_of(gg_transport *transport) { return (virtual_rank *)transport; }

/* ---- the baton ---- */

static gg_status baton_create(baton *b) {
    if (pthread_mutex_init(&b->mutex, NULL) != 0) return gg_fail(GG_ERROR_MEMORY, "the system gave no mutex");
    pthread_condattr_t attributes;
    bool made = pthread_condattr_init(&attributes) == 0;
    if (made) {
        made = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 && pthread_cond_init(&b->turn, &attributes) == 0;
        pthread_condattr_destroy(&attributes);
    }
    if (!made) {
        pthread_mutex_destroy(&b->mutex);
        return gg_fail(GG_ERROR_MEMORY, "the system gave no condition variable");
    }
    b->made = true;
    return GG_OK;
}

static void baton_destroy(baton *b) {
    if (!b->made) return;
    pthread_cond_destroy(&b->turn);
    pthread_mutex_destroy(&b->mutex);
}

static void baton_give(baton *b) {
    pthread_mutex_lock(&b->mutex);
    b->here = true;
    pthread_mutex_unlock(&b->mutex);
    /* Outside of the lock: the woken thread need not sleep again for it. */
    pthread_cond_signal(&b->turn);
}

static void baton_await(baton *b) {
    pthread_mutex_lock(&b->mutex);
    while (!b->here) pthread_cond_wait(&b->turn, &b->mutex);
    b->here = false;
    pthread_mutex_unlock(&b->mutex);
}

/* False: it did not come within so many seconds. */
static bool baton_await_for(baton *b, double seconds) {
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    double nanoseconds = (double)until.tv_nsec + 1e9 * seconds;
    until.tv_sec += (time_t)(nanoseconds / 1e9);
    until.tv_nsec = (long)fmod(nanoseconds, 1e9);
    pthread_mutex_lock(&b->mutex);
    while (!b->here && pthread_cond_timedwait(&b->turn, &b->mutex, &until) == 0) continue;
    bool came = b->here;
    b->here = false;
    pthread_mutex_unlock(&b->mutex);
    return came;
}

/* ---- heaps ---- */

static bool earlier(const entry *a, const entry *b) { return a->key < b->key || (a->key == b->key && a->rank < b->rank); }

static void put(heap *h, int place, entry *e) {
    h->entries[place] = e;
    e->place = place;
}

static void sift(heap *h, int place) {
    entry **entries = h->entries, *e = entries[place];
    while (place > 0 && earlier(e, entries[(place - 1) / 2])) {
        put(h, place, entries[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    for (int child; (child = 2 * place + 1) < h->size; place = child) {
        if (child + 1 < h->size && earlier(entries[child + 1], entries[child])) child++;
        if (!earlier(entries[child], e)) break;
        put(h, place, entries[child]);
    }
    put(h, place, e);
}

static void heap_push(heap *h, entry *e, double key) {
    e->key = key;
    put(h, h->size++, e);
    sift(h, e->place);
}

static void heap_remove(heap *h, entry *e) {
    int place = e->place;
    entry *last = h->entries[--h->size];
    e->place = -1;
    if (last == e) return;
    put(h, place, last);
    sift(h, place);
}

static void make_due(gg_virtual *cluster, virtual_rank *rank, double key, bool only_deadline) {
    rank->only_deadline = only_deadline;
    cluster->able += !only_deadline;
    heap_push(&cluster->due, &rank->due, key);
}

static void make_undue(gg_virtual *cluster, virtual_rank *rank) {
    cluster->able -= !rank->only_deadline;
    heap_remove(&cluster->due, &rank->due);
}

/* ---- who runs next ---- */

static void describe_wait(const virtual_rank *rank, char *text, size_t bytes) {
    const gg_request *request = rank->waiting;
    if (rank->waits_for_any) snprintf(text, bytes, "rank %d waits for any of its messages", rank->transport.rank);
    else if (request->state == GG_REQUEST_SENDING)
        snprintf(text, bytes, "rank %d waits for rank %d to take %zu bytes (tag %d)", rank->transport.rank, request->peer,
                 request->bytes, request->tag);
    else
        snprintf(text, bytes, "rank %d waits for %zu bytes from rank %d (tag %d)", rank->transport.rank, request->bytes,
                 request->peer, request->tag);
}

/* Every rank that waits may run again, to find that it has failed. */
static void fail_all(gg_virtual *cluster) {
    cluster->failed = true;
    cluster->wire.size = 0; /* the requests may be gone soon */
    for (int r = 0; r < cluster->options.size; ++r) {
        virtual_rank *rank = &cluster->ranks[r];
        bool asleep = (rank->polling || rank->waits_for_any) && rank->due.place < 0;
        if (rank->finished || !(rank->waiting || asleep)) continue;
        if (rank->due.place >= 0) make_undue(cluster, rank);
        rank->waiting = NULL;
        make_due(cluster, rank, rank->clock, false);
    }
}

static void declare_deadlock(gg_virtual *cluster) {
    char *text = cluster->deadlock_text;
    int left = cluster->working, returned = cluster->options.size - left;
    size_t used = (size_t)snprintf(text, TEXT_BYTES, "all ranks wait for messages that nobody will send");
    if (returned > 0)
        used += (size_t)snprintf(text + used, TEXT_BYTES - used, " (%d of %d have returned)", returned, cluster->options.size);
    for (int r = 0; r < cluster->options.size; ++r) {
        const virtual_rank *rank = &cluster->ranks[r];
        char line[128], more[32];
        if (rank->finished || rank->lingers || !(rank->waiting || rank->waits_for_any)) continue;
        describe_wait(rank, line, sizeof line);
        int room = left > 1 ? snprintf(more, sizeof more, "; and %d more", left) : 0;
        if (used + strlen(line) + 2 + (size_t)room + 64 >= TEXT_BYTES) {
            snprintf(text + used, TEXT_BYTES - used, "; and %d more", left);
            break;
        }
        used += (size_t)snprintf(text + used, TEXT_BYTES - used, "%s%s", left == cluster->working ? ": " : "; ", line);
        left--;
    }
    cluster->deadlock = true;
    fail_all(cluster);
}

/* ---- messages on the wire ---- */

/* `request` will complete at `time`: if its rank waits for it, the rank can run from then on. */
static void wake(gg_virtual *cluster, gg_request *request, double time) {
    virtual_rank *rank = &cluster->ranks[link_of(request)->owner];
    rank->news = true;
    if (rank->waiting != request && !rank->polling && !rank->waits_for_any) return;
    double key = time > rank->clock ? time : rank->clock;
    rank->waiting = NULL;
    if (rank->due.place >= 0) { /* its patience ends then, or it polls and knows of another event */
        if (rank->due.key < key) key = rank->due.key;
        make_undue(cluster, rank);
    }
    make_due(cluster, rank, key, false);
}

static void announce(gg_virtual *cluster, gg_request *receive, double time) {
    link_of(receive)->time = time;
    link_of(receive)->known = true;
    wake(cluster, receive, time);
}

static double transfer(const gg_virtual *cluster, size_t bytes) {
    double bandwidth = cluster->options.network.bandwidth;
    return bandwidth > 0 ? (double)bytes / bandwidth : 0;
}

/* The first byte of a message is at its receiver. */
static void arrive(gg_virtual *cluster, gg_request *send) {
    request_link *own = link_of(send);
    virtual_rank *to = &cluster->ranks[send->peer];
    if (cluster->options.network.bandwidth > 0) {
        to->in_free = fmax(to->in_free, own->time) + transfer(cluster, send->bytes);
        own->time = to->in_free;
    }
    own->arrived = true;
    if (own->partner) announce(cluster, own->partner, own->time);
}

/* A rank's messages reach their receivers in the order of sending, so only the first of each is in the heap. */
static void wire_append(gg_virtual *cluster, virtual_rank *from, gg_request *send) {
    if (from->wire_first) link_of(from->wire_last)->behind = send;
    else {
        from->wire_first = send;
        heap_push(&cluster->wire, &from->wire, link_of(send)->time);
    }
    from->wire_last = send;
}

static void wire_remove(gg_virtual *cluster, virtual_rank *from, gg_request *send) {
    gg_request **place = &from->wire_first, *before = NULL;
    for (; *place != send; place = &link_of(before)->behind) before = *place;
    *place = link_of(send)->behind;
    if (from->wire_last == send) from->wire_last = before;
    if (before) return;
    heap_remove(&cluster->wire, &from->wire);
    if (from->wire_first) heap_push(&cluster->wire, &from->wire, link_of(from->wire_first)->time);
}

/* Lets first bytes reach their receivers, in order, up to `until` and as long as no rank could still send one before them. */
static void deliver(gg_virtual *cluster, double until) {
    while (cluster->wire.size > 0) {
        const entry *first = cluster->wire.entries[0];
        if (first->key > until || (cluster->due.size > 0 && cluster->due.entries[0]->key < first->key)) return;
        virtual_rank *from = &cluster->ranks[first->rank];
        gg_request *send = from->wire_first;
        wire_remove(cluster, from, send);
        arrive(cluster, send);
    }
}

/* ---- the baton's way ---- */

/* Nobody can run but ranks that poll: what they do next may help. */
static bool release_polling(gg_virtual *cluster) {
    for (int r = 0; r < cluster->options.size; ++r) {
        virtual_rank *rank = &cluster->ranks[r];
        if (rank->polling && rank->due.place < 0) make_due(cluster, rank, rank->clock, false);
    }
    return cluster->able > 0;
}

/* Hands the baton to the rank that is due. self: the caller, who then sleeps until it is due itself; NULL: nobody. */
static void hand_on(gg_virtual *cluster, virtual_rank *self) {
    if (atomic_load_explicit(&cluster->watch_due, memory_order_relaxed)) {
        atomic_store_explicit(&cluster->watch_due, false, memory_order_relaxed);
        baton_give(&cluster->caller);
        if (self) baton_await(&self->baton);
        return;
    }
    if (cluster->unfinished > 0) deliver(cluster, INFINITY);
    if (cluster->able == 0 && cluster->wire.size == 0 && cluster->unfinished > 0 && !release_polling(cluster))
        declare_deadlock(cluster);
    if (cluster->due.size == 0) {
        baton_give(&cluster->caller);
        return;
    }
    virtual_rank *next = &cluster->ranks[cluster->due.entries[0]->rank];
    make_undue(cluster, next);
    if (next->clock < next->due.key) next->clock = next->due.key;
    if (next == self) return;
    baton_give(&next->baton);
    if (self) baton_await(&self->baton);
}

static gg_status still_good(const virtual_rank *rank) {
    const gg_virtual *cluster = rank->cluster;
    if (cluster->deadlock) return gg_fail(GG_ERROR_COMM, "%s", cluster->deadlock_text);
    if (cluster->failed)
        return gg_fail(GG_ERROR_CANCELLED, "stopped, because rank %d of the virtual cluster failed", cluster->failed_rank);
    if (!cluster->running)
        return gg_fail(GG_ERROR_STATE, "rank %d of the virtual cluster does not run: messages move inside of a run only",
                       rank->transport.rank);
    return GG_OK;
}

/* Lets ranks that are behind run first, so that all messages sent before this rank's clock have been. */
static gg_status let_others_catch_up(virtual_rank *rank) {
    gg_virtual *cluster = rank->cluster;
    gg_status status = still_good(rank);
    if (status != GG_OK) return status;
    deliver(cluster, rank->clock);
    rank->due.key = rank->clock;
    bool behind = cluster->due.size > 0 && earlier(cluster->due.entries[0], &rank->due);
    if (!behind && !atomic_load_explicit(&cluster->watch_due, memory_order_relaxed)) return GG_OK;
    make_due(cluster, rank, rank->clock, false);
    hand_on(cluster, rank);
    return still_good(rank);
}

/* A test found nothing. Puts a rank that only polls to sleep until there is something to find. */
static gg_status found_nothing(virtual_rank *rank, gg_request *request) {
    gg_virtual *cluster = rank->cluster;
    if (link_of(request)->known && link_of(request)->time < rank->next_known) rank->next_known = link_of(request)->time;
    if (++rank->fruitless < POLL_LIMIT) return GG_OK;
    bool knows = rank->next_known < INFINITY;
    if (cluster->able == 0 && cluster->wire.size == 0 && !knows) {
        if (rank->fruitless < POLL_HOPELESS) return GG_OK;
        return gg_fail(GG_ERROR_COMM, "rank %d polls for ever (peer %d, tag %d): all other ranks have returned or wait",
                       rank->transport.rank, request->peer, request->tag);
    }
    if (cluster->able > 0) rank->fruitless = POLL_LIMIT - POLL_AGAIN;
    rank->polling = true;
    if (knows) make_due(cluster, rank, rank->next_known, false);
    hand_on(cluster, rank);
    rank->polling = false;
    rank->next_known = INFINITY;
    return still_good(rank);
}

/* ---- queues of unmatched messages and receives ---- */

static unsigned bucket_of(int source, int tag) { return ((unsigned)source * 31u + (unsigned)tag) % BUCKETS; }

static void queue_append(queue *q, gg_request *request) {
    request_link *own = link_of(request);
    own->next = NULL;
    own->previous = q->last;
    if (q->last) link_of(q->last)->next = request;
    else q->first = request;
    q->last = request;
}

static void queue_remove(queue *q, gg_request *request) {
    request_link *own = link_of(request);
    if (own->previous) link_of(own->previous)->next = own->next;
    else q->first = own->next;
    if (own->next) link_of(own->next)->previous = own->previous;
    else q->last = own->previous;
    own->next = own->previous = NULL;
}

static void match(gg_virtual *cluster, gg_request *send, gg_request *receive) {
    request_link *from = link_of(send), *to = link_of(receive);
    from->partner = receive;
    to->partner = send;
    if (from->arrived) announce(cluster, receive, from->time);
}

/* ---- the table ---- */

static void destroy(gg_transport *transport) { (void)transport; } /* the cluster's */

static gg_status alloc(gg_transport *transport, size_t bytes, const char *what, void **out) {
    (void)transport;
    return gg_calloc(1, bytes, what, out);
}

static void free_block(gg_transport *transport, void *block) {
    (void)transport;
    gg_free(block);
}

static gg_status send(gg_transport *transport, const void *data, size_t bytes, int peer, int tag, gg_request *request) {
    virtual_rank *rank = rank_of(transport), *to = &rank->cluster->ranks[peer];
    gg_virtual *cluster = rank->cluster;
    gg_status status = still_good(rank);
    if (status != GG_OK) return status;
    double leaves = fmax(rank->clock, rank->out_free);
    rank->out_free = leaves + transfer(cluster, bytes);
    *link_of(request) = (request_link){.data = data, .owner = transport->rank, .time = leaves + cluster->options.network.latency};
    /* Where bandwidth is unlimited no other message can come between. */
    if (cluster->options.network.bandwidth > 0) wire_append(cluster, rank, request);
    else arrive(cluster, request);
    unsigned bucket = bucket_of(transport->rank, tag);
    for (gg_request *r = to->receives[bucket].first; r; r = link_of(r)->next) {
        if (r->peer != transport->rank || r->tag != tag) continue;
        queue_remove(&to->receives[bucket], r);
        match(cluster, request, r);
        return GG_OK;
    }
    queue_append(&to->sends[bucket], request);
    return GG_OK;
}

static gg_status receive(gg_transport *transport, void *landing, size_t bytes, int peer, int tag, gg_request *request) {
    (void)landing, (void)bytes;
    virtual_rank *rank = rank_of(transport);
    gg_status status = still_good(rank);
    if (status != GG_OK) return status;
    *link_of(request) = (request_link){.owner = transport->rank};
    unsigned bucket = bucket_of(peer, tag);
    for (gg_request *s = rank->sends[bucket].first; s; s = link_of(s)->next) {
        if (link_of(s)->owner != peer || s->tag != tag) continue;
        queue_remove(&rank->sends[bucket], s);
        match(rank->cluster, s, request);
        return GG_OK;
    }
    queue_append(&rank->receives[bucket], request);
    return GG_OK;
}

static gg_status test(gg_transport *transport, gg_request *request, bool *done) {
    gg_status status = GG_OK;
    virtual_rank *rank = rank_of(transport);
    request_link *own = link_of(request);
    *done = false;
    GG_TRY(let_others_catch_up(rank));
    if (own->broken) {
        status = gg_fail(GG_ERROR_COMM, "rank %d: rank %d gave up the message of %zu bytes with tag %d", transport->rank,
                         request->peer, request->bytes, request->tag);
        goto cleanup;
    }
    if (!own->known || own->time > rank->clock) return found_nothing(rank, request);
    if (request->state == GG_REQUEST_RECEIVING) {
        if (own->partner->bytes != request->bytes) {
            status = gg_fail(GG_ERROR_COMM, "rank %d: message from rank %d with tag %d: expected %zu bytes, received %zu",
                             transport->rank, request->peer, request->tag, request->bytes, own->partner->bytes);
            goto cleanup;
        }
        request->data = link_of(own->partner)->data;
        request->when = own->time;
        request->state = GG_REQUEST_ARRIVED;
    } else {
        request->state = GG_REQUEST_IDLE;
    }
    rank->fruitless = 0;
    /* Of requests tested before this one, what is still to come is not forgotten: the rank may sleep next. */
    if (rank->next_known <= rank->clock) rank->next_known = INFINITY;
    *done = true;
cleanup:
    return status;
}

/* The sender of a matched receive may write its memory from this rank's clock on. */
static void let_go(virtual_rank *rank, gg_request *request) {
    gg_request *send_request = link_of(request)->partner;
    if (!send_request) return;
    request_link *theirs = link_of(send_request);
    if (!theirs->arrived) wire_remove(rank->cluster, &rank->cluster->ranks[theirs->owner], send_request);
    theirs->arrived = true;
    theirs->partner = NULL;
    theirs->time = rank->clock;
    theirs->known = true;
    link_of(request)->partner = NULL;
    wake(rank->cluster, send_request, rank->clock);
}

static gg_status release(gg_transport *transport, gg_request *request) {
    gg_status status = still_good(rank_of(transport));
    if (status == GG_OK) let_go(rank_of(transport), request);
    return status;
}

static void cancel(gg_transport *transport, gg_request *request) {
    virtual_rank *rank = rank_of(transport);
    gg_virtual *cluster = rank->cluster;
    request_link *own = link_of(request);
    if (cluster->failed) return; /* other requests may be gone already, and nobody looks at them any more */
    if (request->state == GG_REQUEST_SENDING && !own->arrived) wire_remove(cluster, rank, request);
    if (request->state != GG_REQUEST_SENDING) {
        if (own->partner) let_go(rank, request);
        else if (!own->broken) queue_remove(&rank->receives[bucket_of(request->peer, request->tag)], request);
    } else if (own->partner) {
        request_link *theirs = link_of(own->partner);
        theirs->broken = true;
        theirs->partner = NULL;
        wake(cluster, own->partner, rank->clock);
    } else if (!own->known) {
        queue_remove(&cluster->ranks[request->peer].sends[bucket_of(transport->rank, request->tag)], request);
    }
}

/* After news that came while the rank was testing other requests it returns at once: they are all to be tested again. */
static gg_status wait_for_any(virtual_rank *rank) {
    gg_virtual *cluster = rank->cluster;
    gg_status status = still_good(rank);
    if (status != GG_OK) return status;
    if (!rank->news) {
        rank->waits_for_any = true;
        if (rank->next_known < INFINITY) make_due(cluster, rank, rank->next_known, false);
        hand_on(cluster, rank);
        rank->waits_for_any = false;
    }
    rank->news = false;
    rank->fruitless = 0;
    rank->next_known = INFINITY;
    return still_good(rank);
}

static gg_status pause_round(gg_transport *transport, int round, gg_request *request) {
    virtual_rank *rank = rank_of(transport);
    if (request == NULL) return wait_for_any(rank);
    gg_virtual *cluster = rank->cluster;
    const request_link *own = link_of(request);
    gg_status status = still_good(rank);
    if (status != GG_OK) return status;
    bool patient = !(transport->timeout > 0);
    double deadline = 0;
    if (!patient) {
        if (round == 0) rank->wait_start = rank->clock;
        /* The first clock at which gg_wait will find that the time is over. */
        deadline = rank->wait_start + transport->timeout;
        while (deadline - rank->wait_start < transport->timeout) deadline = nextafter(deadline, INFINITY);
        if (deadline < rank->clock) deadline = rank->clock;
    }
    rank->fruitless = 0;
    rank->next_known = INFINITY;
    if (own->known) {
        double key = own->time > rank->clock ? own->time : rank->clock;
        make_due(cluster, rank, patient || key < deadline ? key : deadline, false);
    } else {
        rank->waiting = request;
        if (!patient) make_due(cluster, rank, deadline, true);
    }
    hand_on(cluster, rank);
    rank->waiting = NULL;
    return still_good(rank);
}

static gg_status progress(gg_transport *transport) { return let_others_catch_up(rank_of(transport)); }

static double now(gg_transport *transport) { return rank_of(transport)->clock; }

static gg_status idle(gg_transport *transport, double seconds) {
    virtual_rank *rank = rank_of(transport);
    double after = rank->clock + seconds;
    if (!(after < INFINITY)) return gg_fail(GG_ERROR_ARGUMENT, "%g seconds are beyond any clock", seconds);
    if (after > rank->clock) {
        rank->fruitless = 0;
        rank->next_known = INFINITY;
    }
    rank->clock = after;
    return rank->cluster->failed ? still_good(rank) : GG_OK;
}

static gg_status compute(gg_transport *transport, double seconds) {
    return idle(transport, seconds * rank_of(transport)->cluster->options.compute_rate);
}

static const gg_transport_table table = {
    .name = "virtual",
    .one_clock = true,
    .destroy = destroy,
    .alloc = alloc,
    .free = free_block,
    .send = send,
    .receive = receive,
    .test = test,
    .release = release,
    .cancel = cancel,
    .pause = pause_round,
    .progress = progress,
    .now = now,
    .compute = compute,
    .idle = idle,
};

/* ---- the cluster ---- */

static void record(gg_virtual *cluster, int rank, gg_status status, const char *text) {
    char who[32];
    snprintf(who, sizeof who, "rank %d: ", rank);
    const char *said = strstr(text, who); /* the transport's own messages name the rank as well */
    const char *rest = said ? said + strlen(who) : text;
    cluster->recorded = true;
    cluster->status = status;
    snprintf(cluster->text, sizeof cluster->text, "%s%.*s%.990s", who, said ? (int)(said - text) : 0, text, rest);
}

static void finish(virtual_rank *rank, gg_status status) {
    gg_virtual *cluster = rank->cluster;
    rank->finished = true;
    cluster->unfinished--;
    if (status == GG_OK) return;
    if (!cluster->recorded) record(cluster, rank->transport.rank, status, gg_error_message());
    if (cluster->failed) return;
    cluster->failed_rank = rank->transport.rank;
    fail_all(cluster);
}

/* All functions have returned: nobody needs to be served any more. */
static void release_lingering(gg_virtual *cluster) {
    for (int r = 0; r < cluster->options.size; ++r) {
        virtual_rank *rank = &cluster->ranks[r];
        if (!rank->lingers) continue;
        if (rank->due.place >= 0) make_undue(cluster, rank);
        make_due(cluster, rank, rank->clock, false);
    }
}

/* The rank's function has returned: goes on serving until all have, so that nobody waits for it in vain. */
static gg_status linger(virtual_rank *rank) {
    gg_status status = GG_OK;
    gg_virtual *cluster = rank->cluster;
    const gg_service *service = &rank->transport.service;
    rank->lingers = true;
    while (cluster->working > 0 && !cluster->failed && service->serve != NULL) {
        bool busy = false;
        GG_TRY(service->serve(service->context, &busy));
        if (!busy && cluster->working > 0) GG_TRY(wait_for_any(rank)); /* a test may let others run */
    }
cleanup:
    rank->lingers = false;
    return cluster->failed ? GG_OK : status; /* what failed has been recorded */
}

static void *thread_main(void *context) {
    virtual_rank *rank = context;
    gg_virtual *cluster = rank->cluster;
    for (;;) {
        baton_await(&rank->baton);
        if (cluster->quit) return NULL;
        gg_status status = cluster->fn(cluster->context, rank->transport.rank);
        if (--cluster->working == 0) release_lingering(cluster);
        if (status == GG_OK) status = linger(rank);
        finish(rank, status);
        hand_on(cluster, NULL);
    }
}

static gg_status check_options(const gg_virtual_options *options) {
    if (options->size < 1 || options->size > MAX_SIZE)
        return gg_fail(GG_ERROR_ARGUMENT, "virtual cluster: size is %d, expected 1 to %d", options->size, MAX_SIZE);
    gg_status status = gg_network_check(&options->network);
    if (status != GG_OK) return gg_error_prefix(status, "virtual cluster: ");
    if (!(options->compute_rate >= 0 && options->compute_rate < INFINITY))
        return gg_fail(GG_ERROR_ARGUMENT, "virtual cluster: compute_rate is %g, expected at least 0", options->compute_rate);
    return GG_OK;
}

static gg_status start_threads(gg_virtual *cluster) {
    gg_status status = GG_OK;
    pthread_attr_t attributes;
    /* Memory is taken only where a stack is touched; many ranks would still run out of addresses. */
    size_t stack = (size_t)(cluster->options.size <= 256 ? 8 : 1) << 20;
    if (pthread_attr_init(&attributes) != 0) return gg_fail(GG_ERROR_MEMORY, "virtual cluster: no thread attributes");
    int code = pthread_attr_setstacksize(&attributes, stack);
    for (int r = 0; r < cluster->options.size && code == 0; ++r) {
        code = pthread_create(&cluster->ranks[r].thread, &attributes, thread_main, &cluster->ranks[r]);
        if (code == 0) cluster->ranks[r].started = true;
        else
            status = gg_fail(GG_ERROR_MEMORY, "virtual cluster: the system gave %d threads of %d: %s", r, cluster->options.size,
                             strerror(code));
    }
    if (code != 0 && status == GG_OK) status = gg_fail(GG_ERROR_MEMORY, "virtual cluster: no stack of %zu bytes", stack);
    pthread_attr_destroy(&attributes);
    return status;
}

gg_status gg_virtual_create(const gg_virtual_options *options, gg_virtual **out) {
    gg_status status = GG_OK;
    gg_virtual *made = NULL;
    *out = NULL;
    GG_TRY(check_options(options));
    GG_TRY(gg_calloc(1, sizeof *made, "virtual cluster", (void **)&made));
    made->options = *options;
    size_t size = (size_t)options->size;
    GG_TRY(gg_calloc(size, sizeof(entry *), "virtual cluster's heap", (void **)&made->due.entries));
    GG_TRY(gg_calloc(size, sizeof(entry *), "virtual cluster's heap", (void **)&made->wire.entries));
    GG_TRY(gg_calloc(size, sizeof *made->ranks, "virtual ranks", (void **)&made->ranks));
    GG_TRY(baton_create(&made->caller));
    for (int r = 0; r < options->size; ++r) {
        virtual_rank *rank = &made->ranks[r];
        rank->transport = (gg_transport){.table = &table, .rank = r, .size = options->size};
        rank->cluster = made;
        rank->due = rank->wire = (entry){.place = -1, .rank = r};
        rank->next_known = INFINITY;
        GG_TRY(baton_create(&rank->baton));
    }
    GG_TRY(start_threads(made));
    *out = made;
    made = NULL;
cleanup:
    gg_virtual_destroy(made);
    return status;
}

void gg_virtual_destroy(gg_virtual *cluster) {
    if (!cluster) return;
    cluster->quit = true;
    for (int r = 0; cluster->ranks && r < cluster->options.size; ++r) {
        virtual_rank *rank = &cluster->ranks[r];
        if (!rank->started) continue;
        baton_give(&rank->baton);
        pthread_join(rank->thread, NULL);
    }
    for (int r = 0; cluster->ranks && r < cluster->options.size; ++r) baton_destroy(&cluster->ranks[r].baton);
    baton_destroy(&cluster->caller);
    gg_free(cluster->ranks);
    gg_free(cluster->due.entries);
    gg_free(cluster->wire.entries);
    gg_free(cluster);
}

gg_transport *gg_virtual_transport(gg_virtual *cluster, int rank) {
    return rank >= 0 && rank < cluster->options.size ? &cluster->ranks[rank].transport : NULL;
}

gg_status gg_virtual_run(gg_virtual *cluster, gg_status (*fn)(void *context, int rank), void *context) {
    return gg_virtual_run_watched(cluster, fn, context, &(gg_watch){0});
}

/* What of a rank its messages change, once nothing is under way. */
typedef struct aside {
    double clock, out_free, in_free, timeout;
    int64_t bytes_sent, messages_sent;
    bool news;
} aside;

static void keep_aside(virtual_rank *rank, aside *out) {
    gg_transport *t = &rank->transport;
    *out = (aside){.clock = rank->clock,
                   .out_free = rank->out_free,
                   .in_free = rank->in_free,
                   .timeout = t->timeout,
                   .bytes_sent = t->bytes_sent,
                   .messages_sent = t->messages_sent,
                   .news = rank->news};
    t->timeout = 0;
}

static void take_back(virtual_rank *rank, const aside *kept) {
    rank->clock = kept->clock;
    rank->out_free = kept->out_free;
    rank->in_free = kept->in_free;
    rank->news = kept->news;
    rank->transport.timeout = kept->timeout;
    rank->transport.bytes_sent = kept->bytes_sent;
    rank->transport.messages_sent = kept->messages_sent;
}

gg_status gg_virtual_run_aside(gg_virtual *cluster, gg_status (*fn)(void *context, int rank), void *context) {
    gg_status status = GG_OK;
    aside *kept = NULL;
    GG_TRY(gg_alloc((size_t)cluster->options.size * sizeof *kept, "clocks", (void **)&kept));
    for (int r = 0; r < cluster->options.size; ++r) keep_aside(&cluster->ranks[r], &kept[r]);
    status = gg_virtual_run(cluster, fn, context);
    for (int r = 0; r < cluster->options.size; ++r) take_back(&cluster->ranks[r], &kept[r]);
cleanup:
    gg_free(kept);
    return status;
}

gg_status gg_virtual_run_watched(gg_virtual *cluster, gg_status (*fn)(void *context, int rank), void *context,
                                 const gg_watch *watch) {
    if (cluster->running) return gg_fail(GG_ERROR_STATE, "virtual cluster: it runs already");
    if (cluster->recorded)
        return gg_fail(GG_ERROR_STATE, "virtual cluster: an earlier run failed, create a new one (%.900s)", cluster->text);
    cluster->fn = fn;
    cluster->context = context;
    cluster->unfinished = cluster->working = cluster->options.size;
    cluster->running = true;
    for (int r = 0; r < cluster->options.size; ++r) {
        cluster->ranks[r].finished = false;
        cluster->ranks[r].fruitless = 0;
        cluster->ranks[r].next_known = INFINITY;
        make_due(cluster, &cluster->ranks[r], cluster->ranks[r].clock, false);
    }
    do {
        hand_on(cluster, NULL);
        if (!watch->fn || !baton_await_for(&cluster->caller, watch->seconds)) {
            atomic_store(&cluster->watch_due, watch->fn != NULL);
            baton_await(&cluster->caller);
        }
        if (cluster->unfinished > 0) watch->fn(watch->context);
    } while (cluster->unfinished > 0);
    atomic_store(&cluster->watch_due, false);
    cluster->running = false;
    /* A deadlock is a failure of the run even if every function ignored it. */
    if (cluster->deadlock && !cluster->recorded) record(cluster, 0, GG_ERROR_COMM, cluster->deadlock_text);
    return cluster->recorded ? gg_fail(cluster->status, "%s", cluster->text) : GG_OK;
}
