/* A transport that corrupts what it receives: for tests of who reads messages of others.
 *
 *     corruption c = {.kind = CORRUPT_TRUNCATE, .peer = 1, .tag = -1, .which = 2, .keep = 20};
 *     gg_transport *t = NULL;
 *     MUST(corrupting_create(gg_virtual_transport(cluster, rank), &c, &t));   t is used in place of the rank's own
 *     ...                                                                    c.corrupted says how many messages were
 *     corrupting_destroy(t);                                                 the rank's own transport remains
 *
 * A message is changed in a copy, when it has arrived; what its sender and the other ranks see is not touched. */
#ifndef GG_TESTS_CORRUPTING_H
#define GG_TESTS_CORRUPTING_H

#include <string.h>

#include "base/memory.h"
#include "comm/transport.h"

typedef enum corruption_kind {
    CORRUPT_NOTHING = 0,
    CORRUPT_TRUNCATE, /* only the first `keep` bytes come, one at least */
    CORRUPT_FLIP,     /* byte `at` (from the end where it is negative) is XORed with `mask` */
    CORRUPT_FILL,     /* all bytes from `at` on become `mask` */
    CORRUPT_GROW      /* `keep` bytes of `mask` follow, as far as the landing has room */
} corruption_kind;

typedef struct corruption {
    corruption_kind kind;
    int peer, tag; /* of the corrupted messages; -1: any */
    int which;     /* the first of them, 0, 1, ..., that is corrupted */
    int many;      /* number of corrupted messages; 0 counts as 1 */
    size_t least;  /* min bytes of a message that counts */
    size_t keep;
    ptrdiff_t at;
    unsigned char mask;
    int seen, corrupted; /* counted here */
} corruption;

enum { CORRUPT_AT_ONCE = 64 };

typedef struct corrupting {
    gg_transport transport; /* first: a gg_transport is cast to this */
    gg_transport *inner;
    gg_transport_table table;
    corruption *how;
    struct {
        const gg_request *request;
        void *copy;
    } held[CORRUPT_AT_ONCE]; /* arrived and not released */
} corrupting;

static corrupting *corrupting_of(gg_transport *t) { return (corrupting *)t; }

static bool corrupting_chosen(corruption *c, const gg_request *request) {
    if (c->kind == CORRUPT_NOTHING || (c->peer >= 0 && c->peer != request->peer)) return false;
    if ((c->tag >= 0 && c->tag != request->tag) || request->bytes < c->least) return false;
    const int place = c->seen++;
    return place >= c->which && place < c->which + (c->many > 0 ? c->many : 1);
}

static gg_status corrupting_change(corrupting *own, gg_request *request) {
    corruption *c = own->how;
    unsigned char *copy = NULL;
    int place = 0;
    if (!corrupting_chosen(c, request)) return GG_OK;
    while (place < CORRUPT_AT_ONCE && own->held[place].request != NULL) ++place;
    if (place == CORRUPT_AT_ONCE) return gg_fail(GG_ERROR_STATE, "more than %d corrupted messages at once", place);
    GG_TRY(gg_calloc(1, request->capacity, "corrupted message", &copy));
    memcpy(copy, request->data, request->bytes);
    const size_t n = request->bytes;
    const size_t at = c->at < 0           ? n - ((size_t)-c->at < n ? (size_t)-c->at : n)
                      : (size_t)c->at < n ? (size_t)c->at
                                          : n - 1;
    if (c->kind == CORRUPT_TRUNCATE) request->bytes = c->keep < 1 ? 1 : c->keep < n ? c->keep : n;
    if (c->kind == CORRUPT_FLIP) copy[at] ^= c->mask;
    if (c->kind == CORRUPT_FILL) memset(copy + at, c->mask, n - at);
    if (c->kind == CORRUPT_GROW) {
        request->bytes = n + c->keep < request->capacity ? n + c->keep : request->capacity;
        memset(copy + n, c->mask, request->bytes - n);
    }
    request->data = copy;
    own->held[place].request = request;
    own->held[place].copy = copy;
    c->corrupted++;
    return GG_OK;
}

static void corrupting_forget(corrupting *own, const gg_request *request) {
    for (int i = 0; i < CORRUPT_AT_ONCE; ++i) {
        if (own->held[i].request != request) continue;
        gg_free(own->held[i].copy);
        own->held[i].request = NULL;
        own->held[i].copy = NULL;
    }
}

static gg_status corrupting_alloc(gg_transport *t, size_t bytes, const char *what, void **out) {
    return gg_message_alloc(corrupting_of(t)->inner, bytes, what, out);
}

static void corrupting_free(gg_transport *t, void *block) { gg_message_free(corrupting_of(t)->inner, block); }

static gg_status corrupting_send(gg_transport *t, const void *data, size_t bytes, int peer, int tag, gg_request *r) {
    gg_transport *inner = corrupting_of(t)->inner;
    return inner->table->send(inner, data, bytes, peer, tag, r);
}

static gg_status corrupting_receive(gg_transport *t, void *landing, size_t capacity, int peer, int tag, gg_request *r) {
    gg_transport *inner = corrupting_of(t)->inner;
    return inner->table->receive(inner, landing, capacity, peer, tag, r);
}

static gg_status corrupting_test(gg_transport *t, gg_request *request, bool *done) {
    gg_transport *inner = corrupting_of(t)->inner;
    GG_TRY(inner->table->test(inner, request, done));
    if (request->state == GG_REQUEST_ARRIVED) GG_TRY(corrupting_change(corrupting_of(t), request));
    return GG_OK;
}

static gg_status corrupting_release(gg_transport *t, gg_request *request) {
    gg_transport *inner = corrupting_of(t)->inner;
    corrupting_forget(corrupting_of(t), request);
    return inner->table->release(inner, request);
}

static void corrupting_cancel(gg_transport *t, gg_request *request) {
    gg_transport *inner = corrupting_of(t)->inner;
    corrupting_forget(corrupting_of(t), request);
    inner->table->cancel(inner, request);
}

static gg_status corrupting_pause(gg_transport *t, int round, gg_request *request) {
    gg_transport *inner = corrupting_of(t)->inner;
    return inner->table->pause(inner, round, request);
}

static gg_status corrupting_progress(gg_transport *t) { return gg_progress(corrupting_of(t)->inner); }
static double corrupting_now(gg_transport *t) { return gg_transport_now(corrupting_of(t)->inner); }
static gg_status corrupting_compute(gg_transport *t, double seconds) {
    return gg_transport_compute(corrupting_of(t)->inner, seconds);
}
static gg_status corrupting_idle(gg_transport *t, double seconds) {
    return gg_transport_idle(corrupting_of(t)->inner, seconds);
}

/* Frees the wrapper alone; as gg_transport_destroy does with it. */
static void corrupting_destroy(gg_transport *t) {
    if (t == NULL) return;
    for (int i = 0; i < CORRUPT_AT_ONCE; ++i) gg_free(corrupting_of(t)->held[i].copy);
    gg_free(t);
}

/* `inner` and `how` must outlive *out; settings of `inner` (timeout, check_buffers) are copied. Sums that are left to a
 * library are not offered. */
static gg_status corrupting_create(gg_transport *inner, corruption *how, gg_transport **out) {
    corrupting *made = NULL;
    *out = NULL;
    GG_TRY(gg_calloc(1, sizeof *made, "corrupting transport", &made));
    made->transport = *inner;
    made->inner = inner;
    made->how = how;
    made->table = (gg_transport_table){.name = inner->table->name,
                                       .one_clock = inner->table->one_clock,
                                       .stands = inner->table->stands,
                                       .destroy = corrupting_destroy,
                                       .alloc = corrupting_alloc,
                                       .free = corrupting_free,
                                       .send = corrupting_send,
                                       .receive = corrupting_receive,
                                       .test = corrupting_test,
                                       .release = corrupting_release,
                                       .cancel = corrupting_cancel,
                                       .pause = corrupting_pause,
                                       .progress = corrupting_progress,
                                       .now = corrupting_now,
                                       .compute = corrupting_compute,
                                       .idle = corrupting_idle};
    made->transport.table = &made->table;
    *out = &made->transport;
    return GG_OK;
}

#endif
