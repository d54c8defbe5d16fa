/* Two ranks of a transport that delivers at once, in one thread: a post office. */
#ifndef GG_TESTS_POST_OFFICE_H
#define GG_TESTS_POST_OFFICE_H

#include <string.h>

#include "base/memory.h"
#include "check.h"
#include "comm/transport.h"
#include "late_device.h"

enum { POST_MAX = 64 };

typedef struct post_office post_office;

typedef struct post_rank {
    gg_transport transport; /* first */
    post_office *office;
    gg_request *receive[POST_MAX]; /* posted, in order; NULL: matched or withdrawn */
    int receives, passed;          /* how many there were; and how many calls of any kind reached this transport */
    int last_tag;                  /* of the message or receive that came last */
    int shared_frees;
} post_rank;

struct post_office {
    post_rank rank[2];
    gg_request *sent[2][POST_MAX]; /* by each rank, in order; NULL: released */
    int sends[2];
    float *summed[2]; /* what each rank has given to the sum; NULL: nothing yet */
    bool may_end;     /* a rank may sum although the other one has not come */
    bool gone[2];     /* a rank has died */
};

/* What a request's private words hold: of a receive that has arrived, the send. */
static gg_request **post_partner(gg_request *request) { return (gg_request **)(void *)request->private_; }
static post_rank *post_of(gg_transport *t) { return (post_rank *)t; }

static gg_status post_send(gg_transport *t, const void *data, size_t bytes, int peer, int tag, gg_request *request) {
    post_office *o = post_of(t)->office;
    (void)data, (void)bytes, (void)peer;
    *post_partner(request) = request; /* itself: not released yet */
    o->sent[t->rank][o->sends[t->rank]++] = request;
    post_of(t)->passed++;
    post_of(t)->last_tag = tag;
    return GG_OK;
}

static gg_status post_receive(gg_transport *t, void *landing, size_t capacity, int peer, int tag, gg_request *request) {
    post_rank *own = post_of(t);
    (void)landing, (void)capacity, (void)peer;
    *post_partner(request) = NULL;
    own->receive[own->receives++] = request;
    own->passed++;
    own->last_tag = tag;
    return GG_OK;
}

/* The oldest receive of a tag gets the oldest message of that tag. */
static bool post_is_first(post_rank *own, const gg_request *request) {
    for (int i = 0; i < own->receives; ++i)
        if (own->receive[i] != NULL && own->receive[i]->tag == request->tag) return own->receive[i] == request;
    return false;
}

static gg_status post_test(gg_transport *t, gg_request *request, bool *done) {
    post_rank *own = post_of(t);
    post_office *o = own->office;
    const int peer = 1 - t->rank;
    *done = false;
    if (request->state == GG_REQUEST_SENDING) {
        *done = *post_partner(request) == NULL;
        if (*done) request->state = GG_REQUEST_IDLE;
        else if (o->gone[peer]) *done = true, request->state = GG_REQUEST_LOST;
        return GG_OK;
    }
    if (request->state == GG_REQUEST_SUMMING) {
        *done = o->may_end || (o->summed[0] != NULL && o->summed[1] != NULL);
        if (*done) request->state = GG_REQUEST_IDLE;
        return GG_OK;
    }
    for (int i = 0; i < o->sends[peer] && post_is_first(own, request); ++i) {
        gg_request *sent = o->sent[peer][i];
        if (sent == NULL || sent->tag != request->tag) continue;
        for (int r = 0; r < own->receives; ++r)
            if (own->receive[r] == request) own->receive[r] = NULL;
        o->sent[peer][i] = NULL;
        *post_partner(request) = sent;
        request->data = sent->data; /* read where the sender has it */
        request->bytes = sent->bytes;
        request->state = GG_REQUEST_ARRIVED;
        *done = true;
        break;
    }
    if (!*done && o->gone[peer]) *done = true, request->state = GG_REQUEST_LOST;
    return GG_OK;
}

static int post_dead(gg_transport *t, int rank) {
    const bool *gone = post_of(t)->office->gone;
    if (rank < 0) rank = gone[0] ? 0 : 1;
    return gone[rank] ? rank : -1;
}

static gg_status post_release(gg_transport *t, gg_request *request) {
    (void)t;
    if (*post_partner(request) != NULL) *post_partner(*post_partner(request)) = NULL;
    return GG_OK;
}

static void post_cancel(gg_transport *t, gg_request *request) {
    post_rank *own = post_of(t);
    if (request->state == GG_REQUEST_ARRIVED) (void)post_release(t, request);
    for (int r = 0; r < own->receives; ++r)
        if (own->receive[r] == request) own->receive[r] = NULL;
    for (int i = 0; i < own->office->sends[t->rank]; ++i)
        if (own->office->sent[t->rank][i] == request) own->office->sent[t->rank][i] = NULL;
}

static gg_status post_alloc(gg_transport *t, size_t bytes, const char *what, void **out) {
    (void)t;
    return gg_calloc(1, bytes, what, out);
}

static void post_free(gg_transport *t, void *block) {
    post_of(t)->shared_frees++;
    gg_free(block);
}

static gg_status post_pause(gg_transport *t, int round, gg_request *request) {
    (void)round;
    if (request != NULL && request->awaits_device) return gg_fail(GG_ERROR_STATE, "unknown to this transport");
    post_of(t)->passed += 1000;
    return GG_OK;
}

static gg_status post_check_peer(gg_transport *t, int peer) {
    (void)t;
    return gg_fail(GG_ERROR_COMM, "rank %d has ended", peer);
}

static int64_t post_begun;

static void post_step_begun(gg_transport *t, int64_t begun) {
    (void)t;
    post_begun = begun;
}

static gg_status post_progress(gg_transport *t) {
    (void)t;
    return GG_OK;
}

static double post_now(gg_transport *t) {
    (void)t;
    return 7;
}

static gg_status post_compute(gg_transport *t, double seconds) {
    (void)t, (void)seconds;
    return GG_OK;
}

static double post_idled;
static late_device *post_works; /* works while a rank is idle */

static gg_status post_idle(gg_transport *t, double seconds) {
    (void)t;
    post_idled += seconds;
    if (post_works != NULL) late_do(post_works, 1);
    return GG_OK;
}

static gg_sums post_sums = {.ranks = 2};

static gg_status post_sums_open(gg_transport *t, const int *members, int count, gg_sums **out) {
    (void)t, (void)members, (void)count;
    *out = &post_sums;
    return GG_OK;
}

static void post_sums_close(gg_transport *t, gg_sums *sums) { (void)t, (void)sums; }

static gg_status post_sum(gg_transport *t, gg_sums *sums, float *data, size_t count, gg_request *request) {
    (void)count, (void)request;
    CHECK(sums == &post_sums);
    post_of(t)->office->summed[t->rank] = data;
    post_of(t)->passed++;
    return GG_OK;
}

static void post_destroy(gg_transport *t) { (void)t; }

#define POST_TABLE                                                                                                     \
    .name = "post", .destroy = post_destroy, .alloc = post_alloc, .free = post_free, .send = post_send,                \
    .receive = post_receive, .test = post_test, .release = post_release, .cancel = post_cancel, .pause = post_pause,   \
    .check_peer = post_check_peer, .dead = post_dead, .step_begun = post_step_begun, .progress = post_progress,        \
    .now = post_now, .compute = post_compute, .idle = post_idle, .sums_open = post_sums_open,                          \
    .sums_close = post_sums_close, .sum = post_sum

static const gg_transport_table post_table = {POST_TABLE};
static const gg_transport_table standing_table = {POST_TABLE, .stands = true};

#endif
