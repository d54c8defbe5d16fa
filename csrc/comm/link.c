#include "comm/link.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

/* Tags below those of the strategies and different from those of the collectives. */
enum { TAG_RING = 7, TAG_WORST = 9 };

#define SMALL 8
#define BURST 8 /* small messages that are sent together */
/* Groups of small messages: as many as fit into FEW seconds, but GROUPS_AT_LEAST if those fit into MANY,
 * for a machine with other work. */
#define GROUPS 8
#define GROUPS_AT_LEAST 3
#define FEW 5e-3
#define MANY 50e-3
#define SMALLEST ((size_t)4 << 10) /* of the large messages: from here on shared memory is read without a copy */
#define LARGEST ((size_t)1 << 20)
#define ROUNDS 3
#define LONG 12e-3    /* seconds of them, after which no larger messages are tried */
#define NOTHING 1e-15 /* seconds a byte: rounding of clocks */

enum { LATENCY, MESSAGE, BYTE, READ, ELAPSED, VALUES };

typedef struct ring {
    gg_transport *transport;
    int to, from;
    char *out, *landing; /* message memory; plain */
    gg_request sent[BURST], received[BURST];
} ring;

/* The maximum of all ranks' values, on all ranks. A maximum may include a value twice, so the message pattern of a
 * barrier suffices. */
static gg_status link_agree(gg_transport *transport, double values[VALUES]) {
    gg_status status = GG_OK;
    gg_request request[2] = {0};
    double out[VALUES], landing[VALUES], in[VALUES];
    const int p = transport->size, rank = transport->rank;
    for (int64_t hop = 1; hop < p; hop *= 2) {
        memcpy(out, values, sizeof out);
        GG_TRY_CLEANUP(
            gg_receive_exact(transport, landing, sizeof landing, (int)((rank - hop + p) % p), TAG_WORST, &request[0]));
        GG_TRY_CLEANUP(gg_send(transport, out, sizeof out, (int)((rank + hop) % p), TAG_WORST, &request[1]));
        GG_TRY_CLEANUP(gg_wait_collective(transport, &request[0]));
        memcpy(in, request[0].data, sizeof in);
        GG_TRY_CLEANUP(gg_release(transport, &request[0]));
        GG_TRY_CLEANUP(gg_wait_collective(transport, &request[1]));
        for (int i = 0; i < VALUES; ++i)
            if (in[i] > values[i]) values[i] = in[i];
    }
cleanup:
    if (status != GG_OK) gg_cancel_all(transport, request, 2);
    return status;
}

/* How far around the ring to send, so that most messages leave their node. Equal on every rank. */
static int hop_of(const gg_transport *transport) {
    int p = transport->size, best = 1, most = -1;
    if (transport->node_of == NULL) return 1;
    for (int hop = 1; hop < p; hop *= 2) {
        int leaving = 0;
        for (int r = 0; r < p; ++r) leaving += transport->node_of[r] != transport->node_of[(r + hop) % p];
        if (leaving > most) most = leaving, best = hop;
    }
    return best;
}

static void read_once(const char *data, size_t bytes) {
    uint64_t sum = 0;
    for (size_t i = 0; i + sizeof sum <= bytes; i += sizeof sum) {
        uint64_t word;
        memcpy(&word, data + i, sizeof word);
        sum += word;
    }
    volatile uint64_t sink = sum; /* or nothing would be read */
    (void)sink;
}

/* Every rank sends n messages and receives n. *arrived: seconds until they have arrived; *read: further seconds to read
 * them. */
static gg_status go_around(ring *r, size_t bytes, int n, double *arrived, double *read) {
    gg_transport *t = r->transport;
    double begin = gg_transport_now(t), then = 0;
    for (int i = 0; i < n; ++i)
        GG_TRY(gg_receive_exact(t, r->landing + (size_t)i * bytes, bytes, r->from, TAG_RING, &r->received[i]));
    for (int i = 0; i < n; ++i) GG_TRY(gg_send(t, r->out, bytes, r->to, TAG_RING, &r->sent[i]));
    for (int i = 0; i < n; ++i) GG_TRY(gg_wait_collective(t, &r->received[i]));
    then = gg_transport_now(t);
    for (int i = 0; i < n; ++i) read_once(r->received[i].data, bytes);
    *arrived = then - begin;
    *read = gg_transport_now(t) - then;
    for (int i = 0; i < n; ++i) GG_TRY(gg_release(t, &r->received[i]));
    for (int i = 0; i < n; ++i) GG_TRY(gg_wait_collective(t, &r->sent[i]));
    return GG_OK;
}

/* The minimum over some groups, because other work on the machine only adds time. The two single rounds of a group are
 * averaged: a rank that is late in one of them sees too short a time in the other. */
static gg_status measure_small(ring *r, double values[VALUES]) {
    double latency = INFINITY, burst = INFINITY, first = 0, second = 0, together = 0, read = 0, before = -1, spent = 0;
    bool again = true;
    for (int group = 1; group <= GROUPS && again; ++group) {
        GG_TRY(go_around(r, SMALL, 1, &first, &read));
        GG_TRY(go_around(r, SMALL, 1, &second, &read));
        GG_TRY(go_around(r, SMALL, BURST, &together, &read));
        latency = fmin(latency, (first + second) / 2);
        burst = fmin(burst, together);
        values[LATENCY] = latency;
        values[MESSAGE] = fmax(burst - latency, 0) / (BURST - 1);
        values[ELAPSED] = first + second + together;
        GG_TRY(link_agree(r->transport, values));
        /* A measurement that repeats exactly is virtual time: another one would add nothing. */
        again = values[ELAPSED] != before;
        before = values[ELAPSED];
        spent += before;
        if (spent > (group < GROUPS_AT_LEAST ? MANY : FEW)) again = false;
    }
    return GG_OK;
}

static gg_status measure_large(ring *r, size_t limit, double values[VALUES]) {
    for (size_t bytes = SMALLEST;; bytes = 4 * bytes < limit ? 4 * bytes : limit) {
        double arrived = INFINITY, read = INFINITY;
        for (int i = 0; i < ROUNDS; ++i) {
            double there = 0, then = 0;
            GG_TRY(go_around(r, bytes, 1, &there, &then));
            arrived = fmin(arrived, there);
            read = fmin(read, then);
        }
        values[LATENCY] = fmin(values[LATENCY], arrived); /* no small message takes longer */
        values[BYTE] = fmax((arrived - values[LATENCY]) / (double)bytes - NOTHING, 0);
        values[READ] = read / (double)bytes;
        values[ELAPSED] = ROUNDS * (arrived + read);
        GG_TRY(link_agree(r->transport, values));
        if (bytes == limit || values[ELAPSED] == 0 || values[ELAPSED] > LONG) break;
    }
    return GG_OK;
}

gg_status gg_link_measure(gg_transport *transport, size_t bytes, gg_link *out) {
    gg_status status = GG_OK;
    const int p = transport->size, rank = transport->rank;
    size_t limit = bytes < SMALLEST ? SMALLEST : bytes > LARGEST ? LARGEST : bytes;
    double values[VALUES] = {0};
    ring r = {.transport = transport};
    void *out_block = NULL, *landing = NULL;
    *out = (gg_link){0};
    if (p == 1) goto cleanup;
    int hop = hop_of(transport);
    r.to = (rank + hop) % p;
    r.from = (rank - hop + p) % p;
    GG_TRY_CLEANUP(gg_message_alloc(transport, limit, "messages to measure with", &out_block));
    GG_TRY_CLEANUP(gg_alloc(limit, "messages to measure with", &landing));
    r.out = out_block;
    r.landing = landing;
    memset(r.out, 1, limit); /* pages that were never written all map to one page */
    GG_TRY_CLEANUP(link_agree(transport, values));
    GG_TRY_CLEANUP(measure_small(&r, values));
    GG_TRY_CLEANUP(measure_large(&r, limit, values));
    *out =
        (gg_link){.latency = values[LATENCY], .message = values[MESSAGE], .byte = values[BYTE], .read = values[READ]};
cleanup:
    if (status != GG_OK) {
        gg_cancel_all(transport, r.sent, BURST);
        gg_cancel_all(transport, r.received, BURST);
        gg_error_prefix(status, "measuring the link: ");
    }
    gg_free(landing);
    gg_message_free(transport, out_block);
    return status;
}
