#include "comm/transport.h"

#include <string.h>

#include "base/clock.h"

static gg_status transport_check(const gg_transport *transport, const void *memory, size_t bytes, int peer, int tag,
                                 const gg_request *request, const char *verb) {
    if (!memory) return gg_fail(GG_ERROR_ARGUMENT, "rank %d: %s: no memory given (NULL)", transport->rank, verb);
    if (bytes == 0)
        return gg_fail(GG_ERROR_ARGUMENT, "rank %d: %s: bytes is 0, at least 1 is needed", transport->rank, verb);
    if (peer < 0 || peer >= transport->size || peer == transport->rank)
        return gg_fail(GG_ERROR_ARGUMENT, "rank %d: %s: peer is %d, expected another rank of 0 to %d", transport->rank,
                       verb, peer, transport->size - 1);
    if (tag < 0 || tag >= GG_TAG_LIMIT)
        return gg_fail(GG_ERROR_ARGUMENT, "rank %d: %s: tag is %d, expected 0 to %d", transport->rank, verb, tag,
                       GG_TAG_LIMIT - 1);
    if (request->state != GG_REQUEST_IDLE)
        return gg_fail(GG_ERROR_STATE, "rank %d: %s with rank %d, tag %d: the request is in use (peer %d, tag %d)",
                       transport->rank, verb, peer, tag, request->peer, request->tag);
    return GG_OK;
}

static void transport_begin(const gg_transport *transport, gg_request *request, gg_request_state state, size_t bytes,
                            int peer, int tag) {
    *request = (gg_request){
        .state = state, .peer = peer, .tag = tag, .bytes = bytes, .capacity = bytes, .epoch = transport->epoch};
}

static bool checks_here(const gg_transport *transport) {
    return transport->check_buffers && !transport->table->checks_behind;
}

/* Any change of one word changes it: each step is a bijection of the sum. */
static uint64_t transport_checksum(const void *data, size_t bytes) {
    const unsigned char *at = data;
    uint64_t sum = bytes;
    for (size_t i = 0; i < bytes; i += sizeof sum) {
        uint64_t word = 0;
        memcpy(&word, at + i, bytes - i < sizeof word ? bytes - i : sizeof word);
        sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 32;
    }
    return sum;
}

static gg_status check_unwritten(const gg_transport *transport, const gg_request *request, bool sent) {
    if (transport_checksum(request->data, request->bytes) == request->checksum) return GG_OK;
    return gg_fail(GG_ERROR_STATE, "rank %d: a buffer in flight was written: %zu bytes %s rank %d with tag %d (%s)",
                   transport->rank, request->bytes, sent ? "sent to" : "received from", request->peer, request->tag,
                   transport->table->name);
}

gg_status(gg_message_alloc)(gg_transport *transport, size_t bytes, const char *what, void *out) {
    void *block = NULL;
    gg_status status = bytes ? transport->table->alloc(transport, bytes, what, &block) : GG_OK;
    memcpy(out, &block, sizeof block);
    return status;
}

gg_status(gg_message_alloc_device)(gg_transport *transport, size_t bytes, const char *what, void *out) {
    void *block = NULL;
    gg_status status = GG_OK;
    if (transport->table->alloc_device == NULL) GG_TRY_CLEANUP(gg_message_alloc(transport, bytes, what, &block));
    else if (bytes > 0) GG_TRY_CLEANUP(transport->table->alloc_device(transport, bytes, what, &block));
cleanup:
    memcpy(out, &block, sizeof block);
    return status;
}

void gg_message_free(gg_transport *transport, void *block) {
    if (block) transport->table->free(transport, block);
}

void gg_message_recycle(gg_transport *transport, bool on) {
    if (transport->table->recycle != NULL) transport->table->recycle(transport, on);
}

gg_status gg_send(gg_transport *transport, const void *data, size_t bytes, int peer, int tag, gg_request *request) {
    gg_status status = GG_OK;
    GG_TRY(transport_check(transport, data, bytes, peer, tag, request, "send"));
    transport_begin(transport, request, GG_REQUEST_SENDING, bytes, peer, tag);
    request->data = data;
    if (checks_here(transport)) request->checksum = transport_checksum(data, bytes);
    status = transport->table->send(transport, data, bytes, peer, tag, request);
    if (status == GG_OK) {
        const bool sent = request->state != GG_REQUEST_LOST;
        transport->bytes_sent += sent ? (int64_t)bytes : 0;
        transport->messages_sent += sent;
    } else {
        request->state = GG_REQUEST_IDLE;
    }
    return status;
}

gg_status gg_receive(gg_transport *transport, void *landing, size_t capacity, int peer, int tag, gg_request *request) {
    gg_status status = GG_OK;
    GG_TRY(transport_check(transport, landing, capacity, peer, tag, request, "receive"));
    transport_begin(transport, request, GG_REQUEST_RECEIVING, capacity, peer, tag);
    request->landing = landing;
    status = transport->table->receive(transport, landing, capacity, peer, tag, request);
    if (status != GG_OK) request->state = GG_REQUEST_IDLE;
    return status;
}

gg_status gg_receive_exact(gg_transport *transport, void *landing, size_t bytes, int peer, int tag,
                           gg_request *request) {
    gg_status status = gg_receive(transport, landing, bytes, peer, tag, request);
    request->exact = status == GG_OK;
    return status;
}

/* Of a message that has arrived. */
static gg_status check_size(const gg_transport *transport, const gg_request *request) {
    if (request->bytes == request->capacity || !request->exact) return GG_OK;
    return gg_fail(GG_ERROR_COMM, "rank %d: message from rank %d with tag %d: expected %zu bytes, received %zu",
                   transport->rank, request->peer, request->tag, request->capacity, request->bytes);
}

gg_status gg_test(gg_transport *transport, gg_request *request, bool *done) {
    const bool sent = request->state == GG_REQUEST_SENDING, summed = request->state == GG_REQUEST_SUMMING;
    *done = true;
    if (request->state == GG_REQUEST_IDLE || request->state == GG_REQUEST_ARRIVED || request->state == GG_REQUEST_LOST)
        return GG_OK;
    GG_TRY(transport->table->test(transport, request, done));
    if (request->state == GG_REQUEST_LOST) return GG_OK;
    if (request->state == GG_REQUEST_ARRIVED) GG_TRY(check_size(transport, request));
    if (!checks_here(transport) || !*done || summed) return GG_OK;
    if (sent) GG_TRY(check_unwritten(transport, request, sent));
    else request->checksum = transport_checksum(request->data, request->bytes);
    return GG_OK;
}

static gg_status wait_timed_out(const gg_transport *transport, const gg_request *request, double seconds) {
    const char *name = transport->table->name;
    if (request->state == GG_REQUEST_SUMMING)
        return gg_fail(GG_ERROR_COMM,
                       "rank %d: waited %.3f s for the sum of %zu values over %d ranks, not all of which came (%s)",
                       transport->rank, seconds, request->bytes / sizeof(float), request->tag, name);
    const bool sending = request->state == GG_REQUEST_SENDING;
    return gg_fail(GG_ERROR_COMM, "rank %d: waited %.3f s for %s%zu bytes %s rank %d with tag %d (%s)", transport->rank,
                   seconds, sending || request->exact ? "" : "up to ", request->bytes,
                   sending ? "to be received by" : "from", request->peer, request->tag, name);
}

/* Rounds before a wait looks at the clock: it then already sleeps between tests. */
#define STALL_ROUNDS 2048

/* peer: its number in the whole group. */
static gg_stall_facts stall_of(const gg_transport *transport, int peer) {
    return (gg_stall_facts){.rank = transport->identity,
                            .size = transport->size,
                            .peer = peer,
                            .step = transport->step != NULL ? *transport->step : -1,
                            .first_layer = transport->waits_for[0],
                            .last_layer = transport->waits_for[1]};
}

static void look_at_stall(const gg_transport *transport, gg_stall *stall, int peer, const char *what) {
    gg_stall_facts facts = stall_of(transport, peer);
    facts.what = what;
    gg_stall_look(stall, &facts);
}

static void end_stall(const gg_transport *transport, gg_stall *stall, int peer) {
    gg_stall_facts facts = stall_of(transport, peer);
    gg_stall_end(stall, &facts);
}

bool gg_check_due(double *due, int round) {
    if (round % GG_CHECK_ROUNDS != GG_CHECK_ROUNDS - 1) return false;
    const double now = gg_clock_now();
    const bool checks = round >= GG_CHECK_ROUNDS && now >= *due;
    if (checks || round < GG_CHECK_ROUNDS) *due = now + GG_CHECK_SECONDS;
    return checks;
}

static gg_status check_peer(gg_transport *transport, double *due, int round, int peer) {
    if (transport->table->check_peer == NULL || !gg_check_due(due, round)) return GG_OK;
    return transport->table->check_peer(transport, peer);
}

int gg_transport_dead(gg_transport *transport, int rank) {
    return transport->table->dead != NULL ? transport->table->dead(transport, rank) : -1;
}

int gg_transport_identity(gg_transport *transport, int rank) {
    return transport->table->identity != NULL ? transport->table->identity(transport, rank) : rank;
}

/* Ends the wait of a collective after a death in its group: ranks that know of the death send no more. */
static gg_status check_all_live(gg_transport *transport) {
    if (transport->needs_all == NULL) return GG_OK;
    const int dead = gg_transport_dead(transport->needs_all, -1);
    if (dead < 0) return GG_OK;
    return gg_fail(GG_ERROR_PEER, "rank %d: rank %d has died, and all ranks are needed here", transport->rank, dead);
}

gg_status gg_wait(gg_transport *transport, gg_request *request) {
    gg_status status = GG_OK;
    double start = 0, due = 0;
    gg_stall stall = {0};
    const int peer = request->peer;
    const bool serves = transport->service.serve != NULL;
    if (transport->stall.begin > 0) end_stall(transport, &transport->stall, -1); /* the last loop of gg_pause is over */
    if (transport->table->wait != NULL) {
        status = transport->table->wait(transport, request);
        goto cleanup;
    }
    for (int round = 0;; ++round) {
        bool done = false, busy = false;
        GG_TRY_CLEANUP(gg_test(transport, request, &done));
        if (done) break;
        if (serves) GG_TRY_CLEANUP(transport->service.serve(transport->service.context, &busy));
        if (busy) {
            if (stall.begin > 0) end_stall(transport, &stall, peer);
            round = -1;
            continue;
        }
        /* A message that comm/network.c holds back has arrived: its time on a simulated link is no stall. */
        if (transport->reports_stalls && round >= STALL_ROUNDS && !request->held)
            look_at_stall(transport, &stall, request->peer, NULL);
        if (transport->timeout > 0) {
            double now = gg_transport_now(transport);
            if (round == 0) start = now;
            if (now - start >= transport->timeout) GG_TRY_CLEANUP(wait_timed_out(transport, request, now - start));
        }
        GG_TRY_CLEANUP(check_all_live(transport));
        GG_TRY_CLEANUP(check_peer(transport, &due, round, peer));
        GG_TRY_CLEANUP(transport->table->pause(transport, round, serves ? NULL : request));
    }
cleanup:
    if (stall.begin > 0) end_stall(transport, &stall, peer);
    return status;
}

gg_status gg_reach(gg_transport *transport, gg_request *request, bool wait, bool *done, gg_waited *waited,
                   void *context) {
    GG_TRY(gg_test(transport, request, done));
    if (*done || !wait) return GG_OK;
    const double begin = waited != NULL ? gg_transport_now(transport) : 0;
    GG_TRY(gg_wait(transport, request));
    if (waited != NULL) waited(context, begin);
    *done = true;
    return GG_OK;
}

gg_status gg_reach_collective(gg_transport *transport, gg_request *request, bool wait, bool *done, gg_waited *waited,
                              void *context) {
    transport->needs_all = transport;
    gg_status status = gg_reach(transport, request, wait, done, waited, context);
    transport->needs_all = NULL;
    if (status != GG_OK || request->state != GG_REQUEST_LOST) return status;
    const int dead = gg_transport_dead(transport, -1); /* the peer itself may have given up because of another rank */
    return gg_fail(GG_ERROR_PEER, "rank %d: rank %d has died; a message %s rank %d with tag %d is lost",
                   transport->rank, dead >= 0 ? dead : request->peer, request->data != NULL ? "to" : "from",
                   request->peer, request->tag);
}

gg_status gg_wait_collective(gg_transport *transport, gg_request *request) {
    bool done;
    return gg_reach_collective(transport, request, true, &done, NULL, NULL);
}

gg_status gg_pause(gg_transport *transport, int round, int peer) {
    if (peer >= 0) GG_TRY(check_peer(transport, &transport->check_due, round, peer));
    if (round == 0 && transport->stall.begin > 0) end_stall(transport, &transport->stall, -1);
    if (transport->reports_stalls && round >= STALL_ROUNDS)
        look_at_stall(transport, &transport->stall, peer >= 0 ? gg_transport_identity(transport, peer) : peer, NULL);
    return transport->table->pause(transport, round, NULL);
}

/* Seconds between looks at messages while something else is waited for. */
#define ATTEND_SECONDS 0.0005
#define STANDING_SECONDS 1.0

gg_status gg_transport_attend(gg_transport *transport, const char *what, bool (*done)(void *context, double seconds),
                              void *context) {
    gg_status status = GG_OK;
    gg_stall stall = {0};
    bool busy;
    if (done(context, 0)) goto cleanup;
    look_at_stall(transport, &stall, transport->identity, what); /* of any transport: this wait is a real one */
    while (!done(context, transport->table->stands ? STANDING_SECONDS : ATTEND_SECONDS)) {
        look_at_stall(transport, &stall, transport->identity, what);
        if (transport->table->stands) continue;
        if (transport->service.serve != NULL)
            GG_TRY_CLEANUP(transport->service.serve(transport->service.context, &busy));
        GG_TRY_CLEANUP(gg_progress(transport));
    }
cleanup:
    if (stall.begin > 0) end_stall(transport, &stall, transport->identity);
    return status;
}

gg_status gg_release(gg_transport *transport, gg_request *request) {
    gg_status status = GG_OK;
    if (request->state == GG_REQUEST_LOST) request->state = GG_REQUEST_IDLE;
    if (request->state == GG_REQUEST_IDLE) return status;
    if (request->state != GG_REQUEST_ARRIVED)
        return gg_fail(GG_ERROR_STATE, "rank %d: release: the message (peer %d, tag %d) has not arrived",
                       transport->rank, request->peer, request->tag);
    gg_status unwritten = checks_here(transport) ? check_unwritten(transport, request, false) : GG_OK;
    status = transport->table->release(transport, request);
    if (status == GG_OK) status = unwritten;
    request->state = GG_REQUEST_IDLE;
    return status;
}

gg_status gg_wait_and_copy(gg_transport *transport, gg_request *request, void *target) {
    if (request->state == GG_REQUEST_IDLE) return GG_OK;
    GG_TRY(gg_wait_collective(transport, request));
    if (request->data != target) memcpy(target, request->data, request->bytes);
    return gg_release(transport, request);
}

void gg_cancel(gg_transport *transport, gg_request *request) {
    if (request->state == GG_REQUEST_IDLE) return;
    if (request->state != GG_REQUEST_LOST) transport->table->cancel(transport, request);
    request->state = GG_REQUEST_IDLE;
}

void gg_cancel_all(gg_transport *transport, gg_request *requests, int n) {
    for (int i = 0; requests != NULL && i < n; ++i) gg_cancel(transport, &requests[i]);
}

gg_status gg_sum_prepare(gg_transport *transport) {
    if (transport->sums != NULL) return GG_OK;
    if (transport->table->sums_open == NULL)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "collectives: 'mpi', but not MPI alone connects the ranks here (%s); allowed is 'own', and "
                       "'mpi' under mpiexec "
                       "without network=",
                       transport->table->name);
    return transport->table->sums_open(transport, NULL, 0, &transport->sums);
}

gg_status gg_sum(gg_transport *transport, gg_sums *sums, float *data, size_t count, gg_request *request) {
    gg_status status = GG_OK;
    const size_t bytes = count * sizeof *data;
    if (request->state != GG_REQUEST_IDLE)
        return gg_fail(GG_ERROR_STATE, "rank %d: sum of %zu values: the request is in use", transport->rank, count);
    transport_begin(transport, request, GG_REQUEST_SUMMING, bytes, -1, sums->ranks);
    request->data = data;
    status = transport->table->sum(transport, sums, data, count, request);
    if (status == GG_OK) {
        transport->bytes_sent += (int64_t)bytes * 2 * (sums->ranks - 1) / sums->ranks;
        transport->messages_sent += 2 * (sums->ranks - 1);
    } else {
        request->state = GG_REQUEST_IDLE;
    }
    return status;
}

gg_status gg_progress(gg_transport *transport) { return transport->table->progress(transport); }

double gg_transport_now(gg_transport *transport) { return transport->table->now(transport); }

gg_status gg_transport_compute(gg_transport *transport, double seconds) {
    if (!(seconds >= 0))
        return gg_fail(GG_ERROR_ARGUMENT, "rank %d: compute: seconds is %g, expected at least 0", transport->rank,
                       seconds);
    return transport->table->compute(transport, seconds);
}

gg_status gg_transport_idle(gg_transport *transport, double seconds) {
    if (!(seconds >= 0))
        return gg_fail(GG_ERROR_ARGUMENT, "rank %d: idle: seconds is %g, expected at least 0", transport->rank,
                       seconds);
    return transport->table->idle(transport, seconds);
}

void gg_transport_set_epoch(gg_transport *transport, int64_t epoch) {
    transport->epoch = epoch;
    if (transport->table->set_epoch != NULL) transport->table->set_epoch(transport, epoch);
}

void gg_transport_step_begun(gg_transport *transport, int64_t begun) {
    if (transport->table->step_begun != NULL) transport->table->step_begun(transport, begun);
}

void gg_transport_set_service(gg_transport *transport, const gg_service *service) {
    transport->service = *service;
    if (transport->table->set_service != NULL) transport->table->set_service(transport, service);
}

gg_status gg_transport_other_epoch(const gg_transport *transport, int64_t own, int64_t theirs, int peer, int tag) {
    return gg_fail(GG_ERROR_COMM,
                   "rank %d: a message of topology epoch %lld from rank %d with tag %d met a receive of epoch %lld",
                   transport->rank, (long long)theirs, peer, tag, (long long)own);
}

void gg_transport_destroy(gg_transport *transport) {
    if (!transport) return;
    if (transport->sums) transport->table->sums_close(transport, transport->sums);
    transport->table->destroy(transport);
}
