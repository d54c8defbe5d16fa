#include "exchange/parts/centre_private.h"

#include "base/memory.h"
#include "exchange/parts/common.h"

/* Modelled bandwidth of a server, for the virtual clock: it reads the message and the centre, and writes the centre and
 * the answer, on a modest core. */
#define MODEL_BYTES_PER_SECOND 10e9
#define MODEL_BYTES_PER_ELEMENT 16

int gg_centre_first_server(const gg_centre *s) { return s->head.env.transport->size - s->servers; }

int gg_centre_server_of(const gg_centre *s, int chunk) {
    const gg_chunk *c = &s->buckets.chunk[chunk];
    return gg_centre_first_server(s) +
           (int)((c->offset + c->count / 2) * (size_t)s->servers / s->head.env.state->count);
}

size_t gg_centre_part_of(const gg_centre *s, int server, int *first, int *end, size_t *begin) {
    *begin = 0;
    for (*first = 0; *first < s->buckets.chunk_count && gg_centre_server_of(s, *first) < server;) ++*first;
    for (*end = *first; *end < s->buckets.chunk_count && gg_centre_server_of(s, *end) == server;) ++*end;
    if (*end == *first) return 0;
    const gg_chunk *last = &s->buckets.chunk[*end - 1];
    *begin = s->buckets.chunk[*first].offset;
    return last->offset + last->count - *begin;
}

gg_status gg_centre_change(gg_centre *s, int chunk, int worker, const void *message, void *answer, size_t *bytes) {
    const gg_chunk *c = &s->buckets.chunk[chunk];
    const bool difference = gg_centre_sends_differences(s) && worker != s->head.env.transport->rank;
    float *weight = s->weight + (c->offset - s->begin);
    float *known = difference ? s->known + (size_t)worker * s->count + (c->offset - s->begin) : NULL;
    if (difference && s->packs) {
        gg_centre_run run = {.chunk = chunk,
                             .count = c->count,
                             .message = message,
                             .message_bytes = *bytes,
                             .answer = answer,
                             .whole = gg_centre_says_all(s, chunk, message, *bytes)};
        GG_TRY(s->rule->answer_difference(s, &run, weight, known));
        *bytes = run.answer_bytes;
    }
    for (size_t at = 0; at < c->count && !(difference && s->packs); at += GG_CENTRE_PIECE) {
        size_t n = c->count - at < GG_CENTRE_PIECE ? c->count - at : GG_CENTRE_PIECE;
        gg_centre_run run = {.chunk = chunk,
                             .count = n,
                             .message = gg_codec_at(s->codec, message, at),
                             .answer = gg_codec_at(s->codec, answer, at)};
        if (difference) GG_TRY(s->rule->answer_difference(s, &run, weight + at, known + at));
        else s->rule->answer(s, n, weight + at, (const float *)message + at, (float *)answer + at);
    }
    return gg_transport_compute(s->head.env.transport,
                                (double)c->count * MODEL_BYTES_PER_ELEMENT / MODEL_BYTES_PER_SECOND);
}

static void *room_of(const gg_centre *s, int chunk, int worker) {
    const size_t all = s->place[s->end_chunk] - s->place[s->first_chunk];
    return s->room + (size_t)worker * all + (s->place[chunk] - s->place[s->first_chunk]);
}

static gg_request *served_of(const gg_centre *s, int chunk) {
    return s->served + (size_t)(chunk - s->first_chunk) * (size_t)s->workers;
}

/* Returns the worker whose message arrived first; -1 means none. */
static int centre_earliest(const gg_centre *s, const gg_request *served) {
    int found = -1;
    for (int worker = 0; worker < s->workers; ++worker)
        if (served[worker].state == GG_REQUEST_ARRIVED && (found < 0 || served[worker].when < served[found].when))
            found = worker;
    return found;
}

static gg_status serve_chunk(gg_centre *s, int chunk, bool *busy) {
    gg_status status = GG_OK;
    gg_transport *transport = s->head.env.transport;
    gg_request *served = served_of(s, chunk);
    const int tag = GG_TAG_USER + chunk;
    for (int worker = 0; worker < s->workers; ++worker) {
        bool done = false;
        if (worker == transport->rank) continue;
        GG_TRY(gg_test(transport, &served[worker], &done));
        if (served[worker].state != GG_REQUEST_IDLE) continue;
        GG_TRY(gg_centre_receive(s, chunk, room_of(s, chunk, worker), worker, &served[worker]));
        *busy = true;
    }
    for (int worker; (worker = centre_earliest(s, served)) >= 0; *busy = true) {
        const void *message = served[worker].data;
        void *answer = room_of(s, chunk, worker);
        size_t bytes = served[worker].bytes;
        bool landed = message == answer; /* the answer overwrites the message in its arena */
        if (landed) GG_TRY(gg_release(transport, &served[worker]));
        status = gg_centre_change(s, chunk, worker, message, answer, &bytes);
        GG_TRY(gg_centre_at_bucket(s, gg_buckets_of_chunk(&s->buckets, chunk),
                                   gg_error_prefix(status, "message of rank %d: ", worker)));
        if (!landed) GG_TRY(gg_release(transport, &served[worker]));
        GG_TRY(gg_send(transport, answer, bytes, worker, tag, &served[worker]));
    }
    return status;
}

gg_status gg_centre_serve(void *context, bool *busy) {
    gg_status status = GG_OK;
    gg_centre *s = context;
    int chunk = s->first_chunk;
    for (; chunk < s->end_chunk; ++chunk) GG_TRY_CLEANUP(serve_chunk(s, chunk, busy));
cleanup:
    return gg_error_prefix(status, "server of the centre, part %d of %d: ", chunk + 1, s->buckets.chunk_count);
}

gg_status gg_centre_complete_answers(gg_centre *s) {
    gg_status status = GG_OK;
    gg_transport *transport = s->head.env.transport;
    const gg_service service = transport->service;
    gg_transport_set_service(transport, &(gg_service){0});
    for (int i = 0; i < (s->end_chunk - s->first_chunk) * s->workers; ++i)
        if (s->served[i].state == GG_REQUEST_SENDING) GG_TRY_CLEANUP(gg_strategy_wait(&s->head, &s->served[i]));
cleanup:
    gg_transport_set_service(transport, &service);
    return status;
}

gg_status gg_centre_make_server(gg_centre *s) {
    s->count = gg_centre_part_of(s, s->head.env.transport->rank, &s->first_chunk, &s->end_chunk, &s->begin);
    if (s->count == 0) return GG_OK;
    gg_device *device = s->head.env.device;
    const size_t workers = (size_t)s->workers;
    GG_TRY(gg_device_alloc(device, s->count * sizeof(float), "centre", &s->weight));
    GG_TRY(gg_centre_alloc_messages(s, workers * (s->place[s->end_chunk] - s->place[s->first_chunk]),
                                    "answers of the centre", &s->room));
    if (gg_centre_sends_differences(s))
        GG_TRY(gg_device_alloc(device, workers * s->count * sizeof(float), "copies of the workers' bases", &s->known));
    return gg_calloc(workers * (size_t)(s->end_chunk - s->first_chunk), sizeof(gg_request), "requests of a server",
                     &s->served);
}
