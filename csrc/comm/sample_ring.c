#include "comm/sample_ring.h"

#include <string.h>

#include "base/memory.h"
#include "comm/collective.h"

struct gg_sample_ring {
    gg_transport *transport;
    gg_shard_copy *shard;
    gg_sharding sharding;
    int64_t slots, rows; /* slots that move; of them in an exchange */
    int64_t
        exchanges; /* exchanges that have begun, including those that a seek has skipped; -1: the shard is not filled */
    size_t bytes;  /* of a message */
    void *message[2]; /* used alternately: one is packed while the other may still be read */
    void *landing;
    gg_request sent[2], received;
    int64_t bytes_sent, messages_sent;
    gg_trace *trace;
    const int64_t *step;
    double sent_at; /* of the exchange in flight; only with a trace */
    int64_t sent_in_step;
};

gg_status gg_sample_ring_create(gg_transport *transport, gg_shard_copy *shard, const gg_sharding *sharding,
                                int64_t rows, gg_sample_ring **out) {
    gg_status status = GG_OK;
    gg_sample_ring *ring = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *ring, "sample ring", &ring));
    ring->transport = transport;
    ring->shard = shard;
    ring->sharding = *sharding;
    ring->slots = sharding->count / sharding->size;
    ring->rows = rows;
    ring->exchanges = -1;
    ring->bytes = (size_t)rows * gg_shard_copy_slot_bytes(shard);
    for (int i = 0; i < 2; ++i)
        GG_TRY_CLEANUP(gg_message_alloc(transport, ring->bytes, "samples to send", &ring->message[i]));
    GG_TRY_CLEANUP(gg_alloc(ring->bytes, "samples that arrive", &ring->landing));
    *out = ring;
    ring = NULL;
cleanup:
    gg_sample_ring_destroy(ring);
    return status;
}

void gg_sample_ring_show(gg_sample_ring *ring, gg_trace *trace, const int64_t *step) {
    ring->trace = trace;
    ring->step = step;
}

void gg_sample_ring_destroy(gg_sample_ring *ring) {
    if (ring == NULL) return;
    gg_cancel(ring->transport, &ring->received);
    for (int i = 0; i < 2; ++i) gg_cancel(ring->transport, &ring->sent[i]);
    for (int i = 0; i < 2; ++i) gg_message_free(ring->transport, ring->message[i]);
    gg_free(ring->landing);
    gg_free(ring);
}

/* The first slot of exchange number `exchange`. */
static int64_t first_slot(const gg_sample_ring *ring, int64_t exchange) { return exchange * ring->rows % ring->slots; }

gg_status gg_sample_ring_seek(gg_sample_ring *ring, const gg_dataset *source, int64_t exchanges) {
    gg_shard_copy *shard = ring->shard;
    GG_TRY(gg_sample_ring_settle(ring));
    if (ring->exchanges == exchanges) return GG_OK;
    for (int64_t slot = 0; slot < shard->set.count; ++slot)
        shard->id[slot] =
            (int32_t)gg_sharding_moved_id(&ring->sharding, ring->transport->rank, slot, ring->rows, exchanges);
    gg_shard_copy_fill(shard, source);
    ring->exchanges = exchanges;
    return GG_OK;
}

static int ring_before(const gg_transport *transport) {
    return (transport->rank + transport->size - 1) % transport->size;
}
static int ring_after(const gg_transport *transport) { return (transport->rank + 1) % transport->size; }

static gg_status ring_wait_for(gg_sample_ring *ring, gg_request *request) {
    const bool shown = ring->trace != NULL && request->state != GG_REQUEST_IDLE;
    gg_trace_span span = {.name = "wait", .lane = GG_LANE_DATA, .index = -1};
    if (shown) {
        span.step = *ring->step;
        span.begin = gg_transport_now(ring->transport);
    }
    gg_status status = gg_wait_collective(ring->transport, request);
    if (shown) span.end = gg_transport_now(ring->transport);
    if (span.end > span.begin) gg_trace_add(ring->trace, &span);
    return status;
}

gg_status gg_sample_ring_begin(gg_sample_ring *ring) {
    gg_status status = GG_OK;
    gg_transport *transport = ring->transport;
    if (ring->shard->in_flight) GG_FAIL_CLEANUP(GG_ERROR_STATE, "the one before is not finished");
    int turn = (int)(ring->exchanges % 2);
    GG_TRY_CLEANUP(ring_wait_for(ring, &ring->sent[turn]));
    gg_shard_copy_pack(ring->shard, first_slot(ring, ring->exchanges), ring->rows, ring->slots, ring->message[turn]);
    ring->shard->in_flight = true;
    ring->exchanges++;
    if (ring->trace != NULL) {
        ring->sent_at = gg_transport_now(transport);
        ring->sent_in_step = *ring->step;
    }
    GG_TRY_CLEANUP(gg_receive_exact(transport, ring->landing, ring->bytes, ring_after(transport), GG_TAG_SAMPLES,
                                    &ring->received));
    GG_TRY_CLEANUP(gg_send(transport, ring->message[turn], ring->bytes, ring_before(transport), GG_TAG_SAMPLES,
                           &ring->sent[turn]));
    ring->bytes_sent += (int64_t)ring->bytes;
    ring->messages_sent++;
cleanup:
    return gg_error_prefix(status, "exchange %lld of samples: ", (long long)ring->exchanges);
}

/* The samples that arrived replace those that were sent. */
static gg_status copy_arrived(gg_sample_ring *ring) {
    gg_shard_copy_unpack(ring->shard, first_slot(ring, ring->exchanges - 1), ring->rows, ring->slots,
                         ring->received.data);
    ring->shard->in_flight = false;
    if (ring->trace != NULL)
        gg_trace_add(ring->trace, &(gg_trace_span){.begin = ring->sent_at,
                                                   .arrived = ring->received.when > ring->sent_at ? ring->received.when
                                                                                                  : ring->sent_at,
                                                   .end = gg_transport_now(ring->transport),
                                                   .name = "samples",
                                                   .step = ring->sent_in_step,
                                                   .lane = GG_LANE_DATA,
                                                   .index = -1,
                                                   .last = -1,
                                                   .peer = ring_after(ring->transport),
                                                   .bytes = (int64_t)ring->bytes});
    return gg_release(ring->transport, &ring->received);
}

gg_status gg_sample_ring_poll(gg_sample_ring *ring) {
    gg_status status = GG_OK;
    bool arrived = false;
    if (!ring->shard->in_flight) goto cleanup;
    GG_TRY_CLEANUP(gg_reach_collective(ring->transport, &ring->received, false, &arrived, NULL, NULL));
    if (arrived) GG_TRY_CLEANUP(copy_arrived(ring));
cleanup:
    return gg_error_prefix(status, "exchange %lld of samples: ", (long long)ring->exchanges);
}

gg_status gg_sample_ring_finish(gg_sample_ring *ring) {
    gg_status status = GG_OK;
    if (!ring->shard->in_flight) goto cleanup;
    GG_TRY_CLEANUP(ring_wait_for(ring, &ring->received));
    GG_TRY_CLEANUP(copy_arrived(ring));
cleanup:
    return gg_error_prefix(status, "exchange %lld of samples: ", (long long)ring->exchanges);
}

gg_status gg_sample_ring_settle(gg_sample_ring *ring) {
    GG_TRY(gg_sample_ring_finish(ring));
    for (int i = 0; i < 2; ++i) GG_TRY(ring_wait_for(ring, &ring->sent[i]));
    return GG_OK;
}

bool gg_sample_ring_is_idle(const gg_sample_ring *ring) {
    return !ring->shard->in_flight && ring->sent[0].state == GG_REQUEST_IDLE && ring->sent[1].state == GG_REQUEST_IDLE;
}

void gg_sample_ring_sent(const gg_sample_ring *ring, int64_t *bytes, int64_t *messages) {
    *bytes = ring->bytes_sent;
    *messages = ring->messages_sent;
}

/* ---- the audit ---- */

/* A rank's message to all others, followed by its ids, and -1 if it has one less than the largest shard. */
typedef struct part {
    int32_t slots, altered, first_altered;
    int32_t id[];
} part;

static void count_ids(const char *parts, size_t part_bytes, int size, int64_t count, uint8_t *seen,
                      gg_sample_audit *out) {
    *out = (gg_sample_audit){.first_missing = -1, .first_duplicate = -1, .first_altered = -1};
    for (int rank = 0; rank < size; ++rank) {
        const part *p = (const part *)(const void *)(parts + (size_t)rank * part_bytes);
        out->samples += p->slots;
        if (out->altered == 0 && p->altered > 0) out->first_altered = p->first_altered;
        out->altered += p->altered;
        for (int32_t slot = 0; slot < p->slots; ++slot) {
            int32_t id = p->id[slot];
            if (id < 0 || id >= count)
                continue; /* the sample found counts as altered, and the one expected there as missing */
            if (seen[id] && out->duplicate++ == 0) out->first_duplicate = id;
            seen[id] = 1;
        }
    }
    for (int64_t id = 0; id < count; ++id)
        if (!seen[id] && out->missing++ == 0) out->first_missing = id;
}

gg_status gg_sample_audit_run(gg_transport *transport, const gg_sharding *sharding, const int32_t *ids,
                              const gg_shard_copy *shard, const gg_dataset *source, gg_sample_audit *out) {
    gg_status status = GG_OK;
    const int rank = transport->rank;
    int64_t largest = 0;
    char *parts = NULL;
    uint8_t *seen = NULL;
    for (int holder = 0; holder < sharding->size; ++holder)
        if (gg_sharding_slots(sharding, holder) > largest) largest = gg_sharding_slots(sharding, holder);
    size_t part_bytes = sizeof(part) + (size_t)largest * sizeof(int32_t);
    GG_TRY_CLEANUP(gg_calloc((size_t)transport->size, part_bytes, "ids of all samples", &parts));
    GG_TRY_CLEANUP(gg_calloc((size_t)sharding->count, 1, "which samples there are", &seen));

    part *own = (part *)(void *)(parts + (size_t)transport->rank * part_bytes);
    own->slots = rank < sharding->size ? (int32_t)gg_sharding_slots(sharding, rank) : 0;
    if (own->slots > 0) memcpy(own->id, ids, (size_t)own->slots * sizeof *ids);
    if (shard != NULL) own->altered = (int32_t)gg_shard_copy_altered(shard, source, &own->first_altered);
    GG_TRY_CLEANUP(gg_allgather(transport, own, part_bytes, parts));
    count_ids(parts, part_bytes, transport->size, sharding->count, seen, out);
cleanup:
    gg_free(parts);
    gg_free(seen);
    return gg_error_prefix(status, "audit of samples: ");
}
