#include "comm/virtual/virtual.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

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
    const void *data;                      /* send: the message */
    double time;                           /* if known: the clock at which this request completes */
    int32_t owner;                         /* the rank whose request it is */
    bool known, broken;                    /* broken: the other side gave up */
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

typedef struct virtual_rank {
    gg_transport transport; /* first: a gg_transport is cast to this */
    gg_virtual *cluster;
    baton baton;
    pthread_t thread;
    bool started, finished;
    double clock, link_free;
    /* Ranks that can run and do not are in the heap, by (key, rank). */
    int place; /* in the heap; -1: not in it */
    double key;
    bool only_deadline;  /* the key is the end of a wait's patience: does not count as able to run */
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
    virtual_rank **heap;
    int heap_size, able;     /* able: entries of the heap that are not only_deadline */
    int unfinished, working; /* working: of them, those whose function has not returned yet */
    bool running, quit;
    gg_status (*fn)(void *context, int rank);
    void *context;
    baton caller;
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
    if (pthread_cond_init(&b->turn, NULL) != 0) {
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

/* ---- the heap of ranks that could run ---- */

static bool earlier(const virtual_rank *a, const virtual_rank *b) {
    return a->key < b->key || (a->key == b->key && a->transport.rank < b->transport.rank);
}

static void put(gg_virtual *cluster, int place, virtual_rank *rank) {
    cluster->heap[place] = rank;
    rank->place = place;
}

static void sift(gg_virtual *cluster, int place) {
    virtual_rank **heap = cluster->heap, *rank = heap[place];
    while (place > 0 && earlier(rank, heap[(place - 1) / 2])) {
        put(cluster, place, heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    for (int child; (child = 2 * place + 1) < cluster->heap_size; place = child) {
        if (child + 1 < cluster->heap_size && earlier(heap[child + 1], heap[child])) child++;
        if (!earlier(heap[child], rank)) break;
        put(cluster, place, heap[child]);
    }
    put(cluster, place, rank);
}

static void heap_push(gg_virtual *cluster, virtual_rank *rank, double key, bool only_deadline) {
    rank->key = key;
    rank->only_deadline = only_deadline;
    cluster->able += !only_deadline;
    put(cluster, cluster->heap_size++, rank);
    sift(cluster, rank->place);
}

static void heap_remove(gg_virtual *cluster, virtual_rank *rank) {
    int place = rank->place;
    virtual_rank *last = cluster->heap[--cluster->heap_size];
    rank->place = -1;
    cluster->able -= !rank->only_deadline;
    if (last == rank) return;
    put(cluster, place, last);
    sift(cluster, place);
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
static void release_waiting(gg_virtual *cluster) {
    for (int r = 0; r < cluster->options.size; ++r) {
        virtual_rank *rank = &cluster->ranks[r];
        bool asleep = (rank->polling || rank->waits_for_any) && rank->place < 0;
        if (rank->finished || !(rank->waiting || asleep)) continue;
        if (rank->place >= 0) heap_remove(cluster, rank);
        rank->waiting = NULL;
        heap_push(cluster, rank, rank->clock, false);
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
    cluster->failed = cluster->deadlock = true;
    release_waiting(cluster);
}

/* Nobody can run but ranks that poll: what they do next may help. */
static bool release_polling(gg_virtual *cluster) {
    for (int r = 0; r < cluster->options.size; ++r) {
        virtual_rank *rank = &cluster->ranks[r];
        if (rank->polling && rank->place < 0) heap_push(cluster, rank, rank->clock, false);
    }
    return cluster->able > 0;
}

/* Hands the baton to the rank that is due. self: the caller, who then sleeps until it is due itself; NULL: nobody. */
static void hand_on(gg_virtual *cluster, virtual_rank *self) {
    if (cluster->able == 0 && cluster->unfinished > 0 && !release_polling(cluster)) declare_deadlock(cluster);
    if (cluster->heap_size == 0) {
        baton_give(&cluster->caller);
        return;
    }
    virtual_rank *next = cluster->heap[0];
    heap_remove(cluster, next);
    if (next->clock < next->key) next->clock = next->key;
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
    if (status != GG_OK || cluster->heap_size == 0) return status;
    rank->key = rank->clock;
    if (!earlier(cluster->heap[0], rank)) return GG_OK;
    heap_push(cluster, rank, rank->clock, false);
    hand_on(cluster, rank);
    return still_good(rank);
}

/* `request` will complete at `time`: if its rank waits for it, the rank can run from then on. */
static void wake(gg_virtual *cluster, gg_request *request, double time) {
    virtual_rank *rank = &cluster->ranks[link_of(request)->owner];
    rank->news = true;
    if (rank->waiting != request && !rank->polling && !rank->waits_for_any) return;
    double key = time > rank->clock ? time : rank->clock;
    rank->waiting = NULL;
    if (rank->place >= 0) { /* its patience ends at rank->key, or it polls and knows of another event */
        if (rank->key < key) key = rank->key;
        heap_remove(cluster, rank);
    }
    heap_push(cluster, rank, key, false);
}

/* A test found nothing. Puts a rank that only polls to sleep until there is something to find. */
static gg_status found_nothing(virtual_rank *rank, gg_request *request) {
    gg_virtual *cluster = rank->cluster;
    if (link_of(request)->known && link_of(request)->time < rank->next_known) rank->next_known = link_of(request)->time;
    if (++rank->fruitless < POLL_LIMIT) return GG_OK;
    bool knows = rank->next_known < INFINITY;
    if (cluster->able == 0 && !knows) {
        if (rank->fruitless < POLL_HOPELESS) return GG_OK;
        return gg_fail(GG_ERROR_COMM, "rank %d polls for ever (peer %d, tag %d): all other ranks have returned or wait",
                       rank->transport.rank, request->peer, request->tag);
    }
    if (cluster->able > 0) rank->fruitless = POLL_LIMIT - POLL_AGAIN;
    rank->polling = true;
    if (knows) heap_push(cluster, rank, rank->next_known, false);
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
    to->time = from->time;
    to->known = true;
    wake(cluster, receive, to->time);
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
    const gg_virtual_options *options = &rank->cluster->options;
    gg_status status = still_good(rank);
    if (status != GG_OK) return status;
    double depart = rank->clock > rank->link_free ? rank->clock : rank->link_free;
    if (options->bandwidth > 0) depart += (double)bytes / options->bandwidth;
    rank->link_free = depart;
    *link_of(request) = (request_link){.data = data, .owner = transport->rank};
    link_of(request)->time = depart + options->latency; /* of arrival, until the receiver releases it */
    unsigned bucket = bucket_of(transport->rank, tag);
    for (gg_request *r = to->receives[bucket].first; r; r = link_of(r)->next) {
        if (r->peer != transport->rank || r->tag != tag) continue;
        queue_remove(&to->receives[bucket], r);
        match(rank->cluster, request, r);
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
    rank->next_known = INFINITY;
    *done = true;
cleanup:
    return status;
}

/* The sender of a matched receive may write its memory from this rank's clock on. */
static void let_go(virtual_rank *rank, gg_request *request) {
    gg_request *send_request = link_of(request)->partner;
    if (!send_request) return;
    request_link *theirs = link_of(send_request);
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
        if (rank->next_known < INFINITY) heap_push(cluster, rank, rank->next_known, false);
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
        heap_push(cluster, rank, patient || key < deadline ? key : deadline, false);
    } else {
        rank->waiting = request;
        if (!patient) heap_push(cluster, rank, deadline, true);
    }
    hand_on(cluster, rank);
    rank->waiting = NULL;
    return still_good(rank);
}

static gg_status progress(gg_transport *transport) { return let_others_catch_up(rank_of(transport)); }

static double now(gg_transport *transport) { return rank_of(transport)->clock; }

static gg_status compute(gg_transport *transport, double seconds) {
    virtual_rank *rank = rank_of(transport);
    double after = rank->clock + seconds * rank->cluster->options.compute_rate;
    if (!(after < INFINITY)) return gg_fail(GG_ERROR_ARGUMENT, "compute: %g seconds are beyond any clock", seconds);
    if (after > rank->clock) {
        rank->fruitless = 0;
        rank->next_known = INFINITY;
    }
    rank->clock = after;
    return rank->cluster->failed ? still_good(rank) : GG_OK;
}

static const gg_transport_table table = {
    .name = "virtual",
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
};

/* ---- the cluster ---- */

static void record(gg_virtual *cluster, int rank, gg_status status, const char *text) {
    cluster->recorded = true;
    cluster->status = status;
    snprintf(cluster->text, sizeof cluster->text, "rank %d: %.1000s", rank, text);
}

static void finish(virtual_rank *rank, gg_status status) {
    gg_virtual *cluster = rank->cluster;
    rank->finished = true;
    cluster->unfinished--;
    if (status == GG_OK) return;
    if (!cluster->recorded) record(cluster, rank->transport.rank, status, gg_error_message());
    if (cluster->failed) return;
    cluster->failed = true;
    cluster->failed_rank = rank->transport.rank;
    release_waiting(cluster);
}

/* All functions have returned: nobody needs to be served any more. */
static void release_lingering(gg_virtual *cluster) {
    for (int r = 0; r < cluster->options.size; ++r) {
        virtual_rank *rank = &cluster->ranks[r];
        if (!rank->lingers) continue;
        if (rank->place >= 0) heap_remove(cluster, rank);
        heap_push(cluster, rank, rank->clock, false);
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
    if (!(options->latency >= 0 && options->latency < INFINITY))
        return gg_fail(GG_ERROR_ARGUMENT, "virtual cluster: latency is %g s, expected at least 0", options->latency);
    if (!(options->bandwidth >= 0))
        return gg_fail(GG_ERROR_ARGUMENT, "virtual cluster: bandwidth is %g bytes/s, expected at least 0 (0: unlimited)",
                       options->bandwidth);
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
    GG_TRY(gg_calloc(size, sizeof *made->heap, "virtual cluster's heap", (void **)&made->heap));
    GG_TRY(gg_calloc(size, sizeof *made->ranks, "virtual ranks", (void **)&made->ranks));
    GG_TRY(baton_create(&made->caller));
    for (int r = 0; r < options->size; ++r) {
        virtual_rank *rank = &made->ranks[r];
        rank->transport = (gg_transport){.table = &table, .rank = r, .size = options->size};
        rank->cluster = made;
        rank->place = -1;
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
    gg_free(cluster->heap);
    gg_free(cluster);
}

gg_transport *gg_virtual_transport(gg_virtual *cluster, int rank) {
    return rank >= 0 && rank < cluster->options.size ? &cluster->ranks[rank].transport : NULL;
}

gg_status gg_virtual_run(gg_virtual *cluster, gg_status (*fn)(void *context, int rank), void *context) {
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
        heap_push(cluster, &cluster->ranks[r], cluster->ranks[r].clock, false);
    }
    hand_on(cluster, NULL);
    baton_await(&cluster->caller);
    cluster->running = false;
    /* A deadlock is a failure of the run even if every function ignored it. */
    if (cluster->deadlock && !cluster->recorded) record(cluster, 0, GG_ERROR_COMM, cluster->deadlock_text);
    return cluster->recorded ? gg_fail(cluster->status, "%s", cluster->text) : GG_OK;
}
