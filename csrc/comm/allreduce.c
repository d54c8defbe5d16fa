#include "comm/allreduce.h"

#include "base/memory.h"
#include "base/parallel.h"
#include "comm/collective.h"

/* State of a reduction. With GATHERED and IDLE the data holds the sum. SUMMED: in halves, the owner's
 * second one. */
typedef enum stage { IDLE = 0, SCATTERING, SUMMED, READ_BY_PEERS, GATHERING, GATHERED, LEFT_TO_MPI } stage;

struct gg_allreduce {
    gg_transport *transport;
    gg_device *device;
    size_t most;       /* elements that it was created for */
    size_t count, own; /* of the sum under way, of this rank's slice */
    int tag;
    gg_allreduce_form form;
    const gg_codec *back; /* of the sum */
    char *reply;          /* displaces: message memory, own elements for each rank */
    float *exact;         /* displaces, rest: the sum of the own slice, not rounded */
    char *landing;        /* own elements for each rank */
    float *landed;        /* where `count` gathered elements land; NULL means form.gathered */
    const void **source;
    /* One a rank each: parts of the own slice, and this rank's sent parts of the others'; slices of the sum, and the
     * sent own one. */
    gg_request *parts, *scattered, *slices, *gathered;
    stage stage;
    int next;       /* the next peer of this stage, counted from this rank */
    double arrived; /* when the last message did */
    float *data;
    const float *scale;
    bool by_mpi; /* then `sum` is used, and of the above only transport, device, count and stage */
    gg_request sum;
    gg_waited *waited; /* NULL: nothing is counted */
    void *context;
};

gg_allreduce_slice gg_allreduce_even_slice(size_t count, int rank, int ranks) {
    size_t begin, end;
    gg_parallel_split(count, GG_LANES, rank, ranks, &begin, &end);
    return (gg_allreduce_slice){begin, end - begin};
}

static size_t allreduce_slice(const gg_allreduce *allreduce, int rank, size_t *begin) {
    const gg_allreduce_slice slice = allreduce->form.slice != NULL
                                         ? allreduce->form.slice[rank]
                                         : gg_allreduce_even_slice(allreduce->count, rank, allreduce->transport->size);
    *begin = slice.begin;
    return slice.count;
}

gg_status gg_allreduce_create(gg_transport *transport, gg_device *device, size_t count, int tag,
                              const gg_allreduce_form *form, gg_collectives by, gg_allreduce **out) {
    gg_status status = GG_OK;
    gg_allreduce *made = NULL;
    size_t p = (size_t)transport->size, begin = 0, size = form != NULL ? form->codec->size : sizeof(float);
    *out = NULL;
    if (count % GG_LANES != 0)
        GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "allreduce: count is %zu, expected a multiple of %d", count, GG_LANES);
    if (by == GG_COLLECTIVES_MPI && form != NULL && !form->codec->exact)
        GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT,
                        "wire_dtype: 'bfloat16' with collectives 'mpi', but MPI has no sum of bfloat16; allowed is "
                        "'float32', or collectives 'own'");
    if (by == GG_COLLECTIVES_MPI) {
        /* The barrier names a rank that does not arrive; MPI's own call would wait for it without end. */
        if (transport->sums == NULL && transport->table->sums_open != NULL) GG_TRY_CLEANUP(gg_barrier(transport));
        GG_TRY_CLEANUP(gg_sum_prepare(transport));
    }
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "allreduce", &made));
    made->transport = transport;
    made->device = device;
    made->most = made->count = count;
    made->by_mpi = by == GG_COLLECTIVES_MPI;
    made->tag = tag;
    made->form = form != NULL ? *form : (gg_allreduce_form){.codec = gg_codec_of(GG_FLOAT32)};
    if (p == 1) made->form.codec = gg_codec_of(GG_FLOAT32); /* nothing travels */
    if (made->form.codec->exact) {
        made->form.memory = made->form.rest = NULL;
        made->form.displaces = false;
    }
    made->back = made->form.exact_sum || made->form.gathered != NULL ? gg_codec_of(GG_FLOAT32) : made->form.codec;
    made->own = allreduce_slice(made, transport->rank, &begin);
    GG_TRY_CLEANUP(gg_calloc(p, sizeof *made->source, "allreduce sources", &made->source));
    if (p > 1 && !made->by_mpi) {
        GG_TRY_CLEANUP(gg_device_alloc_landing(device, p * made->own * size, "allreduce landing", &made->landing));
        if (made->form.gathered != NULL && gg_device_is_separate(device) &&
            !gg_device_shares(device, made->form.gathered))
            GG_TRY_CLEANUP(
                gg_device_alloc_landing(device, count * sizeof(float), "landing of gathered slices", &made->landed));
        if (made->form.displaces) {
            /* One size on every rank, enough for the largest slice. */
            size_t elements = count + p * GG_LANES;
            GG_TRY_CLEANUP(gg_message_alloc_device(transport, elements * size, "displacements", &made->reply));
        }
        if (made->form.displaces || made->form.rest != NULL)
            GG_TRY_CLEANUP(gg_device_alloc(device, made->own * sizeof(float), "exact sum", &made->exact));
        GG_TRY_CLEANUP(gg_calloc(p, sizeof(gg_request), "allreduce requests", &made->parts));
        GG_TRY_CLEANUP(gg_calloc(p, sizeof(gg_request), "allreduce requests", &made->scattered));
        GG_TRY_CLEANUP(gg_calloc(p, sizeof(gg_request), "allreduce requests", &made->slices));
        GG_TRY_CLEANUP(gg_calloc(p, sizeof(gg_request), "allreduce requests", &made->gathered));
    }
    *out = made;
    made = NULL;
cleanup:
    gg_allreduce_destroy(made);
    return status;
}

/* Requests must not outlive their memory. */
void gg_allreduce_cancel(gg_allreduce *allreduce) {
    if (!allreduce) return;
    int p = allreduce->transport->size;
    gg_cancel_all(allreduce->transport, allreduce->parts, p);
    gg_cancel_all(allreduce->transport, allreduce->scattered, p);
    gg_cancel_all(allreduce->transport, allreduce->slices, p);
    gg_cancel_all(allreduce->transport, allreduce->gathered, p);
    gg_cancel_all(allreduce->transport, &allreduce->sum, 1);
    allreduce->stage = IDLE;
}

static gg_status allreduce_failed(gg_allreduce *allreduce, gg_status status) {
    if (status == GG_OK) return status;
    gg_allreduce_cancel(allreduce);
    return gg_error_prefix(status, "allreduce of %zu values: ", allreduce->count);
}

void gg_allreduce_destroy(gg_allreduce *allreduce) {
    if (!allreduce) return;
    gg_allreduce_cancel(allreduce);
    gg_message_free(allreduce->transport, allreduce->reply);
    gg_device_free(allreduce->device, allreduce->exact);
    gg_device_free_host(allreduce->device, allreduce->landed);
    gg_device_free_host(allreduce->device, allreduce->landing);
    gg_free(allreduce->source);
    gg_free(allreduce->parts);
    gg_free(allreduce->scattered);
    gg_free(allreduce->slices);
    gg_free(allreduce->gathered);
    gg_free(allreduce);
}

/* The address of element `at` in the memory that is sent. */
static void *sent_at(const gg_allreduce *allreduce, size_t at) {
    void *base = allreduce->form.memory != NULL ? allreduce->form.memory : allreduce->data;
    return gg_codec_at(allreduce->form.codec, base, at);
}

/* The sum at this place. */
static void *sum_at(const gg_allreduce *allreduce, size_t at) {
    return allreduce->form.exact_sum ? allreduce->data + at : sent_at(allreduce, at);
}

/* Copies n elements of the sum into the data. */
static void allreduce_accept(gg_allreduce *allreduce, size_t at, size_t n, const void *sum) {
    const gg_codec *codec = allreduce->back;
    if (allreduce->form.displaces) codec->add(allreduce->device, n, sum, allreduce->data + at);
    else codec->decode(allreduce->device, n, sum, allreduce->data + at);
}

/* The sum of the own slice for rank `to`, as it travels. */
static void *sum_for(const gg_allreduce *allreduce, int to) {
    size_t begin = 0, own = allreduce_slice(allreduce, allreduce->transport->rank, &begin);
    return allreduce->form.displaces ? gg_codec_at(allreduce->form.codec, allreduce->reply, (size_t)to * own)
                                     : sum_at(allreduce, begin);
}

/* Rounds the sum of the own slice, n elements from `begin` on, and adds the difference to the rest. */
static void round_own(gg_allreduce *allreduce, size_t begin, size_t n) {
    static const float scale[3] = {1, -1, 1};
    gg_device *device = allreduce->device;
    const gg_codec *codec = allreduce->form.codec;
    float *data = allreduce->data + begin, *rest = allreduce->form.rest + begin;
    const float *const source[3] = {data, allreduce->exact, rest};
    codec->encode(device, n, allreduce->exact, sent_at(allreduce, begin));
    codec->decode(device, n, sent_at(allreduce, begin), data);
    device->table->weighted_sum(device, n, 3, source, scale, rest);
}

/* Adds all ranks' parts of the own slice, and computes their messages from the sum. */
static void sum_own(gg_allreduce *allreduce) {
    gg_device *device = allreduce->device;
    const gg_codec *codec = allreduce->form.codec;
    const int p = allreduce->transport->size;
    size_t begin = 0, own = allreduce_slice(allreduce, allreduce->transport->rank, &begin);
    if (allreduce->exact == NULL) {
        codec->sum(device, own, p, allreduce->source, allreduce->scale, allreduce->data + begin,
                   allreduce->form.exact_sum ? NULL : sent_at(allreduce, begin));
        return;
    }
    codec->sum(device, own, p, allreduce->source, allreduce->scale, allreduce->exact, NULL);
    if (!allreduce->form.displaces) {
        round_own(allreduce, begin, own);
        return;
    }
    for (int r = 0; r < p; ++r)
        codec->difference(device, own, allreduce->exact, allreduce->source[r], sum_for(allreduce, r));
    allreduce_accept(allreduce, begin, own, sum_for(allreduce, allreduce->transport->rank));
}

/* A peer's slice has arrived: copies it, unless it landed where it belongs. */
static gg_status accept_slice(gg_allreduce *allreduce, int from) {
    gg_request *request = &allreduce->slices[from];
    float *gathered = allreduce->form.gathered;
    size_t at = 0, n = allreduce_slice(allreduce, from, &at);
    if (request->state == GG_REQUEST_IDLE) return GG_OK;
    if (gathered == NULL) allreduce_accept(allreduce, at, n, request->data);
    else if (request->data != gathered + at)
        gg_device_copy(allreduce->device, GG_QUEUE_COMPUTE, gathered + at, request->data, n * sizeof *gathered);
    return gg_release(allreduce->transport, request);
}

/* data = scale * data */
static void scale_by(gg_allreduce *allreduce, float *data, const float *scale) {
    const float *source = data;
    if (*scale != 1.0f)
        allreduce->device->table->weighted_sum(allreduce->device, allreduce->count, 1, &source, scale, data);
}

/* Where peer `from`'s slice lands. */
static gg_status receive_slice(gg_allreduce *allreduce, int from) {
    size_t at = 0, n = allreduce_slice(allreduce, from, &at);
    float *gathered = allreduce->landed != NULL ? allreduce->landed : allreduce->form.gathered;
    if (n == 0) return GG_OK;
    return gg_receive_exact(allreduce->transport, gathered != NULL ? gathered + at : sum_at(allreduce, at),
                            n * allreduce->back->size, from, allreduce->tag, &allreduce->slices[from]);
}

/* Peers are visited from the next rank on, so that not all of them send to one. Receives come first: a message whose
 * receive is posted needs no extra copy. */
static gg_status send_parts(gg_allreduce *allreduce, bool parts) {
    gg_transport *transport = allreduce->transport;
    int p = transport->size, rank = transport->rank;
    const size_t own = allreduce->own, size = allreduce->form.codec->size;
    for (int i = 1; i < p; ++i) {
        int from = (rank - i + p) % p;
        if (parts && own > 0)
            GG_TRY(gg_receive_exact(transport, allreduce->landing + (size_t)from * own * size, own * size, from,
                                    allreduce->tag, &allreduce->parts[from]));
        if (allreduce->form.gathered != NULL) GG_TRY(receive_slice(allreduce, from));
    }
    for (int i = 1; i < p && parts; ++i) {
        int to = (rank + i) % p;
        size_t at = 0, n = allreduce_slice(allreduce, to, &at);
        if (n == 0) continue;
        GG_TRY(gg_send(transport, sent_at(allreduce, at), n * size, to, allreduce->tag, &allreduce->scattered[to]));
    }
    allreduce->stage = parts ? SCATTERING : SUMMED;
    allreduce->next = 1;
    allreduce->arrived = 0;
    return GG_OK;
}

static gg_status start_idle(gg_allreduce *allreduce, float *data, const float *scale) {
    gg_status status = GG_OK;
    gg_transport *transport = allreduce->transport;
    int p = transport->size, rank = transport->rank;
    const gg_codec *codec = allreduce->form.codec;
    const bool halves = allreduce->form.gathered != NULL;
    if (allreduce->count == 0 || p == 1) allreduce->stage = halves ? SUMMED : IDLE;
    if (allreduce->count == 0) goto cleanup;
    allreduce->data = data;
    allreduce->scale = scale;
    codec->encode(allreduce->device, allreduce->count, data, sent_at(allreduce, 0));
    if (allreduce->form.applied != NULL)
        codec->add(allreduce->device, allreduce->count, sent_at(allreduce, 0), allreduce->form.applied);
    if (p == 1 || allreduce->by_mpi) scale_by(allreduce, data, &scale[rank]);
    if (p == 1) goto cleanup;
    if (allreduce->by_mpi) {
        GG_TRY_CLEANUP(gg_sum(transport, transport->sums, data, allreduce->count, &allreduce->sum));
        allreduce->stage = LEFT_TO_MPI;
        goto cleanup;
    }
    GG_TRY_CLEANUP(send_parts(allreduce, true));
cleanup:
    return allreduce_failed(allreduce, status);
}

static gg_status check_idle(const gg_allreduce *allreduce) {
    if (allreduce->stage != IDLE)
        return gg_fail(GG_ERROR_STATE, "allreduce of %zu values: started again before it was finished",
                       allreduce->count);
    return GG_OK;
}

gg_status gg_allreduce_start_some(gg_allreduce *allreduce, float *data, size_t count, const float *scale) {
    size_t begin;
    GG_TRY(check_idle(allreduce));
    if (count > allreduce->most || count % GG_LANES != 0)
        return gg_fail(GG_ERROR_ARGUMENT, "allreduce: count is %zu, expected a multiple of %d, at most %zu", count,
                       GG_LANES, allreduce->most);
    allreduce->count = count;
    allreduce->own = allreduce_slice(allreduce, allreduce->transport->rank, &begin);
    return start_idle(allreduce, data, scale);
}

gg_status gg_allreduce_start(gg_allreduce *allreduce, float *data, const float *scale) {
    return gg_allreduce_start_some(allreduce, data, allreduce->most, scale);
}

gg_status gg_allreduce_start_without_parts(gg_allreduce *allreduce, float *data) {
    GG_TRY(check_idle(allreduce));
    allreduce->data = data;
    return allreduce_failed(allreduce, send_parts(allreduce, false));
}

/* Sends the slice to all peers. */
static gg_status send_slice(gg_allreduce *allreduce, const void *own) {
    gg_transport *transport = allreduce->transport;
    const int p = transport->size;
    for (int i = 1; i < p && allreduce->own > 0; ++i) {
        int to = (transport->rank + i) % p;
        GG_TRY(gg_send(transport, own != NULL ? own : sum_for(allreduce, to), allreduce->own * allreduce->back->size,
                       to, allreduce->tag, &allreduce->gathered[to]));
    }
    return GG_OK;
}

/* All peers' parts of the own slice have arrived: adds them in the order of ranks. */
static gg_status add_own(gg_allreduce *allreduce) {
    gg_transport *transport = allreduce->transport;
    int p = transport->size, rank = transport->rank;
    size_t begin = 0, own = allreduce_slice(allreduce, rank, &begin);
    if (own == 0) return GG_OK;
    for (int i = 0; i < p; ++i) allreduce->source[i] = i == rank ? sent_at(allreduce, begin) : allreduce->parts[i].data;
    sum_own(allreduce);
    for (int i = 0; i < p; ++i) GG_TRY(gg_release(transport, &allreduce->parts[i]));
    return GG_OK;
}

gg_status gg_allreduce_gather(gg_allreduce *allreduce, const float *own) {
    gg_status status = GG_OK;
    if (allreduce->stage != SUMMED)
        GG_FAIL_CLEANUP(GG_ERROR_STATE, "allreduce of %zu values: gathered before its own slice was summed",
                        allreduce->count);
    GG_TRY_CLEANUP(send_slice(allreduce, own));
    allreduce->stage = allreduce->transport->size > 1 ? GATHERING : IDLE;
    allreduce->next = 1;
    allreduce->arrived = 0;
cleanup:
    return allreduce_failed(allreduce, status);
}

double gg_allreduce_arrived(const gg_allreduce *allreduce) { return allreduce->arrived; }

void gg_allreduce_watch(gg_allreduce *allreduce, gg_waited *waited, void *context) {
    allreduce->waited = waited;
    allreduce->context = context;
}

/* Waits for a request, or only tests it. */
static gg_status allreduce_reach(gg_allreduce *allreduce, gg_request *request, bool wait, bool *done) {
    return gg_reach_collective(allreduce->transport, request, wait, done, allreduce->waited, allreduce->context);
}

/* Starts a receive. */
static gg_status reach_arrival(gg_allreduce *allreduce, gg_request *request, bool wait, bool *done) {
    gg_status status = allreduce_reach(allreduce, request, wait, done);
    if (status == GG_OK && *done && request->state == GG_REQUEST_ARRIVED && request->when > allreduce->arrived)
        allreduce->arrived = request->when;
    return status;
}

/* The messages of the stage from and to one peer. */
static gg_status advance_peer(gg_allreduce *allreduce, int peer, bool wait, bool *done) {
    const bool halves = allreduce->form.gathered != NULL;
    switch (allreduce->stage) {
    case SCATTERING: GG_TRY(reach_arrival(allreduce, &allreduce->parts[peer], wait, done)); break;
    case READ_BY_PEERS:
        /* The slice may be written only after the peer has read it. */
        GG_TRY(allreduce_reach(allreduce, &allreduce->scattered[peer], wait, done));
        if (*done) GG_TRY(receive_slice(allreduce, peer));
        break;
    default:
        GG_TRY(reach_arrival(allreduce, &allreduce->slices[peer], wait, done));
        if (!*done) return GG_OK;
        GG_TRY(accept_slice(allreduce, peer));
        /* In halves the peer has read this rank's part before it sent. */
        if (halves) GG_TRY(allreduce_reach(allreduce, &allreduce->scattered[peer], true, done));
    }
    return GG_OK;
}

/* All peers' messages of the stage are there. */
static gg_status end_stage(gg_allreduce *allreduce) {
    const bool halves = allreduce->form.gathered != NULL;
    if (allreduce->stage == SCATTERING) {
        GG_TRY(add_own(allreduce));
        if (!halves) GG_TRY(send_slice(allreduce, NULL));
        allreduce->stage = halves ? SUMMED : READ_BY_PEERS;
    } else if (allreduce->stage == READ_BY_PEERS) {
        allreduce->stage = GATHERING;
    } else {
        allreduce->stage = halves ? IDLE : GATHERED;
    }
    allreduce->next = 1;
    return GG_OK;
}

/* Continues until the data holds the sum. Without `wait` it stops at the first message that has not arrived yet. */
static gg_status allreduce_advance(gg_allreduce *allreduce, bool wait) {
    gg_status status = GG_OK;
    const int p = allreduce->transport->size, rank = allreduce->transport->rank;
    bool done = true;
    if (allreduce->stage == LEFT_TO_MPI) {
        GG_TRY_CLEANUP(allreduce_reach(allreduce, &allreduce->sum, wait, &done));
        if (done) allreduce->stage = IDLE;
    }
    while (allreduce->stage == SCATTERING || allreduce->stage == READ_BY_PEERS || allreduce->stage == GATHERING) {
        if (allreduce->next == p) {
            GG_TRY_CLEANUP(end_stage(allreduce));
            continue;
        }
        GG_TRY_CLEANUP(advance_peer(allreduce, (rank - allreduce->next + p) % p, wait, &done));
        if (!done) goto cleanup;
        allreduce->next++;
    }
cleanup:
    return allreduce_failed(allreduce, status);
}

gg_status gg_allreduce_poll(gg_allreduce *allreduce, bool *summed) {
    gg_status status = allreduce_advance(allreduce, false);
    *summed = allreduce->stage == IDLE || allreduce->stage == GATHERED || allreduce->stage == SUMMED;
    return status;
}

gg_status gg_allreduce_wait(gg_allreduce *allreduce) { return allreduce_advance(allreduce, true); }

gg_status gg_allreduce_wait_read(gg_allreduce *allreduce) {
    gg_status status = GG_OK;
    bool read = false;
    for (int i = 0; allreduce->gathered != NULL && i < allreduce->transport->size; ++i)
        GG_TRY_CLEANUP(allreduce_reach(allreduce, &allreduce->gathered[i], true, &read));
cleanup:
    return allreduce_failed(allreduce, status);
}

gg_status gg_allreduce_finish(gg_allreduce *allreduce) {
    GG_TRY(allreduce_advance(allreduce, true));
    GG_TRY(gg_allreduce_wait_read(allreduce));
    if (allreduce->stage == GATHERED) allreduce->stage = IDLE;
    return GG_OK;
}

gg_status gg_allreduce_run(gg_allreduce *allreduce, float *data, const float *scale) {
    GG_TRY(gg_allreduce_start(allreduce, data, scale));
    return gg_allreduce_finish(allreduce);
}
