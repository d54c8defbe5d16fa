/* What every transport must do; run by test_virtual.c, test_mpi.c and test_net.c on each rank. */
#ifndef GG_TESTS_COMM_CASES_H
#define GG_TESTS_COMM_CASES_H

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "comm/allreduce.h"
#include "comm/collective.h"
#include "comm/subgroup.h"
#include "comm/transport.h"
#include "comm_check.h"

/* A device with the one kernel that a reduction needs. */
static void case_weighted_sum(gg_device *device, size_t n, int sources, const float *const *source, const float *scale,
                              float *out) {
    (void)device;
    for (size_t i = 0; i < n; ++i) {
        float sum = scale[0] * source[0][i];
        for (int s = 1; s < sources; ++s) sum = fmaf(scale[s], source[s][i], sum);
        out[i] = sum;
    }
}

static const gg_backend case_backend = {.name = "test", .weighted_sum = case_weighted_sum};

static uint64_t case_hash(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; ++i) hash = (hash ^ byte[i]) * 1099511628211u;
    return hash;
}

static unsigned char case_byte(int rank, size_t i, int salt) {
    return (unsigned char)((size_t)rank * 131 + i * 7 + (i >> 8) * 13 + (size_t)salt);
}

/* The counter is the process's: in a virtual cluster other ranks move it. */
static bool case_counts(const gg_transport *t) { return strcmp(t->table->name, "virtual") != 0; }

/* True if the core holds no message: MPI does, and the net transport where no receive has asked for it. */
static bool case_holds_nothing(const gg_transport *t) { return strcmp(t->table->name, "mpi") == 0; }

static float case_value(int rank, size_t i) {
    uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)rank * 40503u + 12345u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (float)(int32_t)x * 0x1p-31f;
}

/* A buffer that is written while it is sent, or a message before it is released, is told of. */
static gg_status case_watched(gg_transport *t) {
    enum { BYTES = 5003 };
    unsigned char landing[BYTES] = {0};
    void *block = NULL; /* a peer may read it here: what each of them sees of a write then depends on when it looks */
    bool before = t->check_buffers;
    MUST(gg_message_alloc(t, BYTES, "watched", &block));
    t->check_buffers = true;
    for (int late = 0; t->size > 1 && t->rank < 2 && late < 3; ++late) {
        gg_request request = {0};
        if (t->rank == 0) {
            MUST(gg_send(t, block, BYTES, 1, 70, &request));
            while (request.awaits_device) MUST(gg_progress(t)); /* until then a device may write it */
            if (late == 1) ((unsigned char *)block)[BYTES - 1]++;
            gg_status status = gg_wait(t, &request);
            if (late == 0) CHECK(status == GG_OK);
            if (late == 1) CHECK(status == GG_ERROR_STATE);
            if (late == 1) CHECK(strstr(gg_error_message(), "5003 bytes sent to rank 1 with tag 70") != NULL);
            if (late == 2) CHECK(status == GG_OK || status == GG_ERROR_STATE);
            CHECK(request.state == GG_REQUEST_IDLE);
        } else if (t->rank == 1) {
            MUST(gg_receive_exact(t, landing, BYTES, 0, 70, &request));
            MUST(gg_wait(t, &request));
            if (late == 2) ((unsigned char *)(uintptr_t)request.data)[7]++;
            gg_status status = gg_release(t, &request);
            if (late != 1) CHECK(status == (late == 2 ? GG_ERROR_STATE : GG_OK));
            if (late == 2) CHECK(strstr(gg_error_message(), "5003 bytes received from rank 0 with tag 70") != NULL);
            CHECK(request.state == GG_REQUEST_IDLE);
        }
    }
    t->check_buffers = before;
    gg_message_free(t, block);
    return GG_OK;
}

static const size_t case_sizes[] = {1, 31, 32, 33, 4095, 4096, 4097, 65536 + 5, 1 << 20, 8 << 20};
#define CASE_LARGEST ((size_t)8 << 20)

/* Each size around the ring, out of memory for messages and out of plain memory. *direct counts messages that were read
 * in the sender's memory. */
static gg_status case_ring(gg_transport *t, int64_t *direct) {
    int next = (t->rank + 1) % t->size, previous = (t->rank + t->size - 1) % t->size;
    void *block = NULL;
    unsigned char *plain = NULL, *landing = NULL;
    if (t->size == 1) return GG_OK;
    MUST(gg_message_alloc(t, CASE_LARGEST + 64, "ring", &block));
    CHECK(((uintptr_t)block & 63) == 0);
    bool zero = true;
    for (size_t i = 0; i < CASE_LARGEST + 64; i += 997) zero = zero && ((unsigned char *)block)[i] == 0;
    CHECK(zero);
    MUST(gg_alloc(CASE_LARGEST + 64, "ring", &plain));
    MUST(gg_alloc(CASE_LARGEST, "ring", &landing));
    int64_t bytes = t->bytes_sent, messages = t->messages_sent, expected = 0;
    for (int kind = 0; kind < 2; ++kind)
        for (size_t s = 0; s < LENGTH(case_sizes); ++s) {
            gg_request receive = {0}, send = {0};
            size_t n = case_counts(t) || case_sizes[s] < CASE_LARGEST ? case_sizes[s]
                                                                      : CASE_LARGEST / 8; /* no new way there */
            unsigned char *data = (kind == 0 ? (unsigned char *)block : plain) + s;       /* odd places as well */
            for (size_t i = 0; i < n; ++i) data[i] = case_byte(t->rank, i, (int)s);
            MUST(gg_receive_exact(t, landing, n, previous, GG_TAG_USER + (int)s, &receive));
            MUST(gg_send(t, data, n, next, GG_TAG_USER + (int)s, &send));
            MUST(gg_wait(t, &receive));
            CHECK(receive.state == GG_REQUEST_ARRIVED && receive.bytes == n && receive.peer == previous);
            const unsigned char *got = receive.data;
            *direct += receive.data != landing;
            size_t wrong = 0;
            for (size_t i = 0; i < n; ++i) wrong += got[i] != case_byte(previous, i, (int)s);
            CHECK(wrong == 0);
            MUST(gg_release(t, &receive));
            MUST(gg_wait(t, &send));
            CHECK(receive.state == GG_REQUEST_IDLE && send.state == GG_REQUEST_IDLE);
            expected += (int64_t)n;
        }
    CHECK(t->bytes_sent - bytes == expected && t->messages_sent - messages == 2 * (int64_t)LENGTH(case_sizes));
    gg_message_free(t, block);
    gg_free(plain);
    gg_free(landing);
    return GG_OK;
}

#define CASE_MARK 0x67676d73u /* how a descriptor of shared memory begins: comm/mpi/mpi_shared.h */

/* The beginning of a message: nothing of its content may matter. The third is a whole descriptor. */
static const uint32_t case_beginnings[][8] = {
    {1, 2, 3, 4, 5, 6, 7, 8}, {CASE_MARK, 2, 3, 4, 5, 6, 7, 8}, {CASE_MARK, 0, 0, 0, 32, 0, 0, 0}};

static void case_fill(unsigned char *at, size_t n, int rank, int kind) {
    for (size_t i = 0; i < n; ++i) at[i] = case_byte(rank, i, (int)n + kind);
    memcpy(at, case_beginnings[kind], n < sizeof case_beginnings[kind] ? n : sizeof case_beginnings[kind]);
}

/* Messages that are shorter than their landings, of all lengths at which a transport may change its way, whatever they
 * begin with. Two of a tag are in flight, and the second is looked at first. */
static gg_status case_lengths_of(gg_transport *t, const size_t *lengths, size_t n_lengths) {
    enum { ROOM = 5000 };
    const int next = (t->rank + 1) % t->size, previous = (t->rank + t->size - 1) % t->size;
    unsigned char *shared = NULL, *plain = NULL, *landing = NULL, *wanted = NULL;
    size_t wrong = 0, lengths_wrong = 0;
    MUST(gg_message_alloc(t, (size_t)2 * ROOM, "lengths", &shared));
    MUST(gg_alloc((size_t)2 * ROOM, "lengths", &plain));
    MUST(gg_alloc((size_t)2 * ROOM, "lengths", &landing));
    MUST(gg_alloc(ROOM, "lengths", &wanted));
    for (size_t l = 0; l < n_lengths; ++l)
        for (int kind = 0; kind < 3; ++kind)
            for (int from = 0; from < 2; ++from) {
                const size_t n[2] = {lengths[l], lengths[n_lengths - 1 - l]};
                const size_t room[4] = {n[0], n[1] + 1, ROOM, n[0] < 32 ? 32 : n[0]};
                const size_t capacity[2] = {room[l % 2 ? 0 : (l / 2) % 2 ? 2 : 3], room[l % 3 ? 2 : 1]};
                gg_request receive[2] = {{0}}, send[2] = {{0}};
                for (int k = 0; k < 2; ++k) {
                    unsigned char *data = (from ? shared : plain) + (size_t)k * ROOM;
                    case_fill(data, n[k], t->rank, kind);
                    MUST(gg_receive(t, landing + (size_t)k * ROOM, capacity[k] < ROOM ? capacity[k] : ROOM, previous,
                                    GG_TAG_USER, &receive[k]));
                    MUST(gg_send(t, data, n[k], next, GG_TAG_USER, &send[k]));
                    lengths_wrong += send[k].bytes != n[k];
                }
                for (int k = 1; k >= 0; --k) {
                    MUST(gg_wait(t, &receive[k]));
                    case_fill(wanted, n[k], previous, kind);
                    lengths_wrong +=
                        receive[k].bytes != n[k] || receive[k].capacity != (capacity[k] < ROOM ? capacity[k] : ROOM);
                    wrong += memcmp(receive[k].data, wanted, n[k]) != 0;
                    MUST(gg_release(t, &receive[k]));
                }
                for (int k = 0; k < 2; ++k) MUST(gg_wait(t, &send[k]));
            }
    CHECK(wrong == 0);
    CHECK(lengths_wrong == 0);
    gg_message_free(t, shared);
    gg_free(plain);
    gg_free(landing);
    gg_free(wanted);
    return GG_OK;
}

static gg_status case_any_length(gg_transport *t) {
    enum { SMALL = 72, AROUND = 4, LARGEST = 4 };
    size_t lengths[SMALL + 2 * AROUND + 1 + LARGEST], n = 0;
    gg_transport *view = NULL;
    int members[64], count = 0;
    const bool before = t->check_buffers;
    if (t->size == 1 || t->size > 64) return GG_OK;
    for (size_t i = 1; i <= SMALL; ++i) lengths[n++] = i;
    for (size_t i = 4096 - AROUND; i <= 4096 + AROUND; ++i) lengths[n++] = i;
    for (size_t i = 0; i < LARGEST; ++i) lengths[n++] = 4200 + 266 * i;
    t->check_buffers = true;
    MUST(case_lengths_of(t, lengths, n));
    for (int r = t->size - 1; r >= 0; --r) members[count++] = r; /* all, in another order */
    MUST(gg_subgroup_create(t, members, count, &view));
    MUST(case_lengths_of(view, lengths, n));
    t->check_buffers = before;
    gg_transport_destroy(view);
    return GG_OK;
}

/* What a rank answers while it waits for an answer itself: a number plus one. */
typedef struct case_server {
    gg_transport *transport;
    gg_request request; /* the receive of a question, then the send of its answer */
    int64_t landing, answer;
    int peer, served;
} case_server;

static gg_status case_serve(void *context, bool *busy) {
    case_server *s = context;
    bool done = false;
    GG_TRY(gg_test(s->transport, &s->request, &done));
    *busy = *busy || done;
    if (s->request.state == GG_REQUEST_ARRIVED) {
        memcpy(&s->answer, s->request.data, sizeof s->answer);
        s->answer++;
        s->served++;
        GG_TRY(gg_release(s->transport, &s->request));
        GG_TRY(gg_send(s->transport, &s->answer, sizeof s->answer, s->peer, GG_TAG_USER, &s->request));
    } else if (done) {
        GG_TRY(gg_receive_exact(s->transport, &s->landing, sizeof s->landing, s->peer, GG_TAG_USER, &s->request));
    }
    return GG_OK;
}

/* All ranks ask at once, and none looks but in waits; a receive that nothing comes for is taken back. */
static gg_status case_service(gg_transport *t) {
    int next = (t->rank + 1) % t->size, previous = (t->rank + t->size - 1) % t->size;
    case_server server = {.transport = t, .peer = previous};
    if (t->size < 3) return GG_OK; /* questions and answers would share a tag */
    bool busy = false;
    MUST(case_serve(&server, &busy));
    gg_transport_set_service(t, &(gg_service){.serve = case_serve, .context = &server});
    for (int64_t i = 0; i < 50; ++i) {
        gg_request ask = {0}, answer = {0};
        int64_t question = i * 1000 + t->rank, landing = 0, got = 0;
        MUST(gg_receive_exact(t, &landing, sizeof landing, next, GG_TAG_USER, &answer));
        MUST(gg_send(t, &question, sizeof question, next, GG_TAG_USER, &ask));
        MUST(gg_wait(t, &answer));
        memcpy(&got, answer.data, sizeof got);
        CHECK(got == question + 1);
        MUST(gg_release(t, &answer));
        MUST(gg_wait(t, &ask));
    }
    MUST(gg_barrier(t)); /* nobody asks any more */
    gg_transport_set_service(t, &(gg_service){0});
    CHECK(server.served == 50);
    while (server.request.state != GG_REQUEST_RECEIVING) MUST(case_serve(&server, &busy));
    gg_cancel(t, &server.request);
    CHECK(server.request.state == GG_REQUEST_IDLE);
    MUST(gg_barrier(t)); /* before other messages come that it would have taken */
    return GG_OK;
}

/* Many messages in flight, received in another order of tags than sent, and two of each tag: more than a transport may
 * have resources for. */
enum { CASE_MANY = 700, CASE_PIECE = 4096 };

static gg_status case_many(gg_transport *t) {
    int next = (t->rank + 1) % t->size, previous = (t->rank + t->size - 1) % t->size;
    unsigned char *block = NULL, *landing = NULL;
    gg_request *request = NULL;
    if (t->size == 1) return GG_OK;
    MUST(gg_message_alloc(t, (size_t)2 * CASE_MANY * CASE_PIECE, "many", &block));
    MUST(gg_alloc((size_t)2 * CASE_MANY * CASE_PIECE, "many", &landing));
    MUST(gg_calloc(4 * CASE_MANY, sizeof *request, "many", &request));
    gg_request *receive = request, *send = request + 2 * CASE_MANY;
    for (int again = 0; again < 2; ++again) {
        int64_t allocations = gg_memory_allocations();
        for (int i = 0; i < 2 * CASE_MANY; ++i) {
            for (size_t j = 0; j < CASE_PIECE; j += 64)
                block[(size_t)i * CASE_PIECE + j] = case_byte(t->rank, j, i + again);
            MUST(gg_send(t, block + (size_t)i * CASE_PIECE, CASE_PIECE, next, GG_TAG_USER + i / 2, &send[i]));
        }
        for (int i = 2 * CASE_MANY - 2; i >= 0; i -= 2)
            for (int k = i; k < i + 2; ++k)
                MUST(gg_receive_exact(t, landing + (size_t)k * CASE_PIECE, CASE_PIECE, previous, GG_TAG_USER + i / 2,
                                      &receive[k]));
        size_t wrong = 0;
        for (int i = 0; i < 2 * CASE_MANY; ++i) {
            MUST(gg_wait(t, &receive[i]));
            const unsigned char *got = receive[i].data;
            for (size_t j = 0; j < CASE_PIECE; j += 64) wrong += got[j] != case_byte(previous, j, i + again);
            MUST(gg_release(t, &receive[i]));
            MUST(gg_progress(t));
        }
        for (int i = 0; i < 2 * CASE_MANY; ++i) MUST(gg_wait(t, &send[i]));
        CHECK(wrong == 0);
        if (case_holds_nothing(t)) CHECK(gg_memory_allocations() == allocations);
    }
    gg_message_free(t, block);
    gg_free(landing);
    gg_free(request);
    return GG_OK;
}

static gg_status case_collectives(gg_transport *t, uint64_t *hash) {
    static const size_t sizes[] = {1, 13, 5000, 300001};
    int p = t->size;
    unsigned char *bytes = NULL, *all = NULL;
    MUST(gg_alloc(300001, "bytes", &bytes));
    MUST(gg_alloc((size_t)5000 * (size_t)p, "all", &all));
    for (size_t s = 0; s < LENGTH(sizes); ++s)
        for (int root = 0; root<p; root += p> 8 ? 5 : 1) {
            for (size_t i = 0; i < sizes[s]; ++i) bytes[i] = case_byte(t->rank, i, root);
            MUST(gg_broadcast(t, bytes, sizes[s], root));
            size_t wrong = 0;
            for (size_t i = 0; i < sizes[s]; ++i) wrong += bytes[i] != case_byte(root, i, root);
            CHECK(wrong == 0);
            MUST(gg_barrier(t));
        }
    for (size_t s = 0; s < 3; ++s) {
        for (size_t i = 0; i < sizes[s]; ++i) bytes[i] = case_byte(t->rank, i, 3);
        MUST(gg_allgather(t, bytes, sizes[s], all));
        size_t wrong = 0;
        for (int r = 0; r < p; ++r)
            for (size_t i = 0; i < sizes[s]; ++i) wrong += all[(size_t)r * sizes[s] + i] != case_byte(r, i, 3);
        CHECK(wrong == 0);
        *hash = case_hash(*hash, all, (size_t)p * sizes[s]);
    }
    for (int n = 0; n <= 144; n += 16) {
        double values[144], expected[144];
        for (int i = 0; i < n; ++i) {
            values[i] = (double)case_value(t->rank, (size_t)i);
            expected[i] = (double)case_value(0, (size_t)i);
            for (int r = 1; r < p; ++r) expected[i] += (double)case_value(r, (size_t)i);
        }
        MUST(gg_allreduce_doubles(t, values, n));
        CHECK(memcmp(values, expected, (size_t)n * sizeof(double)) == 0);
        *hash = case_hash(*hash, values, (size_t)n * sizeof(double));
    }
    CHECK(gg_allreduce_doubles(t, (double *)all, -1) == GG_ERROR_ARGUMENT);
    CHECK(gg_broadcast(t, all, 1, p) == GG_ERROR_ARGUMENT);
    gg_free(bytes);
    gg_free(all);
    return GG_OK;
}

/* In halves: slices of unlike sizes, one of them empty, and twice the sum is gathered in other memory. In every second
 * turn ranks make the sums of their slices themselves. */
static gg_status case_halves(gg_transport *t, uint64_t *hash) {
    const int p = t->size, last = p > 1 ? p - 1 : p;
    size_t count = 0;
    float *data = NULL, *own = NULL, *gathered = NULL, *scale = NULL;
    gg_allreduce_slice *slice = NULL;
    gg_allreduce *allreduce = NULL;
    gg_device device = {.table = &case_backend, .threads = 1};
    MUST(gg_alloc((size_t)p * sizeof *slice, "slices", &slice));
    for (int r = p - 1; r >= 0; --r) {
        slice[r] = (gg_allreduce_slice){count, r < last ? 48 * (size_t)(r + 1) : 0};
        count += slice[r].count;
    }
    const gg_allreduce_slice mine = slice[t->rank];
    MUST(gg_message_alloc(t, count * sizeof *data, "arena", &data));
    MUST(gg_message_alloc(t, 48 * (size_t)p * sizeof *own, "slice", &own));
    MUST(gg_calloc(count, sizeof *gathered, "gathered", &gathered));
    MUST(gg_alloc((size_t)p * sizeof *scale, "scale", &scale));
    for (int r = 0; r < p; ++r) scale[r] = 1.0f / (float)(p + r);
    const gg_allreduce_form form = {.codec = gg_codec_of(GG_FLOAT32), .slice = slice, .gathered = gathered};
    MUST(gg_allreduce_create(t, &device, count, GG_TAG_ALLREDUCE, &form, GG_COLLECTIVES_OWN, &allreduce));
    CHECK(gg_allreduce_gather(allreduce, own) == GG_ERROR_STATE);
    for (size_t again = 0; again < 4; ++again) {
        const bool parts = again % 2 == 0;
        for (size_t i = 0; i < count; ++i) data[i] = case_value(t->rank, i + again);
        if (parts) MUST(gg_allreduce_start(allreduce, data, scale));
        else MUST(gg_allreduce_start_without_parts(allreduce, data));
        CHECK(gg_allreduce_start(allreduce, data, scale) == GG_ERROR_STATE);
        MUST(gg_allreduce_wait(allreduce));
        MUST(gg_allreduce_wait_read(allreduce));
        for (size_t i = 0; i < mine.count; ++i)
            own[i] = 2 * (parts ? data[mine.begin + i] : case_value(0, mine.begin + i + again));
        MUST(gg_allreduce_gather(allreduce, own));
        MUST(gg_allreduce_wait(allreduce));
        if (mine.count > 0) memcpy(gathered + mine.begin, own, mine.count * sizeof *own);
        double worst = 0;
        for (size_t i = 0; i < count; ++i) {
            double sum = parts ? 0 : (double)case_value(0, i + again), size = fabs(sum);
            for (int r = 0; r < p && parts; ++r) {
                double term = (double)scale[r] * (double)case_value(r, i + again);
                sum += term;
                size += fabs(term);
            }
            double error = fabs(2 * sum - (double)gathered[i]) / (size + 1e-30);
            if (error > worst) worst = error;
        }
        CHECK(worst <= 2 * p * 0x1p-24);
        *hash = case_hash(*hash, gathered, count * sizeof *gathered);
    }
    MUST(gg_allreduce_finish(allreduce));
    gg_allreduce_destroy(allreduce);
    gg_free(scale);
    gg_free(gathered);
    gg_message_free(t, own);
    gg_message_free(t, data);
    gg_free(slice);
    return GG_OK;
}

static gg_status case_allreduce(gg_transport *t, size_t count, bool messages, gg_collectives by, uint64_t *hash) {
    int p = t->size;
    float *data = NULL, *scale = NULL;
    gg_allreduce *allreduce = NULL;
    gg_device device = {.table = &case_backend, .threads = 1};
    if (messages) MUST(gg_message_alloc(t, count * sizeof(float), "arena", &data));
    else MUST(gg_calloc(count, sizeof(float), "arena", &data));
    MUST(gg_alloc((size_t)p * sizeof(float), "scale", &scale));
    MUST(gg_allreduce_create(t, &device, count, GG_TAG_ALLREDUCE, NULL, by, &allreduce));
    for (int again = 0; again < 3; ++again) {
        for (int r = 0; r < p; ++r) scale[r] = again == 0 ? 1.0f : 1.0f / (float)(p + r);
        for (size_t i = 0; i < count; ++i) data[i] = case_value(t->rank, i + (size_t)again);
        int64_t allocations = gg_memory_allocations(), sent = t->bytes_sent;
        MUST(gg_allreduce_run(allreduce, data, scale));
        if (case_holds_nothing(t)) CHECK(gg_memory_allocations() == allocations);
        if (count % (16 * (size_t)p) == 0)
            CHECK(t->bytes_sent - sent == (int64_t)(2 * (size_t)(p - 1) * (count / (size_t)p) * 4));
        double worst = 0;
        /* Each element on one rank: that all have the same bits is seen by their hashes. */
        for (size_t i = (size_t)t->rank; i < count; i += (size_t)p) {
            double sum = 0, size = 0;
            for (int r = 0; r < p; ++r) {
                double term = (double)scale[r] * (double)case_value(r, i + (size_t)again);
                sum += term;
                size += fabs(term);
            }
            double error = fabs(sum - (double)data[i]) / (size + 1e-30);
            if (error > worst) worst = error;
        }
        CHECK(worst <= (p + (by == GG_COLLECTIVES_MPI)) * 0x1p-24); /* terms are rounded before MPI adds them */
        *hash = case_hash(*hash, data, count * sizeof(float));
    }
    gg_allreduce_destroy(allreduce);
    gg_free(scale);
    if (messages) gg_message_free(t, data);
    else gg_free(data);
    return GG_OK;
}

static const size_t case_lengths[] = {16, 48, 16 * 12, 16 * 1001, 16 * 16384};

/* Every rank sends to every other, and takes what comes in the order in which it comes. */
static gg_status case_any(gg_transport *t) {
    gg_request *send = NULL, *receive = NULL;
    int *data = NULL;
    size_t p = (size_t)t->size;
    MUST(gg_calloc(p, sizeof *send, "any", &send));
    MUST(gg_calloc(p, sizeof *receive, "any", &receive));
    MUST(gg_calloc(p + 1, sizeof *data, "any", &data));
    data[p] = t->rank;
    for (int again = 0; again < 20; ++again) {
        int left = 2 * (t->size - 1);
        for (int peer = 0; peer < t->size; ++peer) {
            if (peer == t->rank) continue;
            MUST(gg_receive_exact(t, &data[peer], sizeof *data, peer, GG_TAG_USER, &receive[peer]));
            MUST(gg_send(t, &data[p], sizeof *data, peer, GG_TAG_USER, &send[peer]));
            MUST(gg_transport_compute(t, 1e-6 * ((t->rank + peer + again) % 3)));
        }
        for (int round = 0; left > 0; ++round) {
            for (int peer = 0; peer < t->size; ++peer) {
                bool sent = send[peer].state == GG_REQUEST_SENDING,
                     received = receive[peer].state == GG_REQUEST_RECEIVING;
                if (sent) MUST(gg_test(t, &send[peer], &sent));
                if (received) MUST(gg_test(t, &receive[peer], &received));
                if (received) {
                    int value;
                    memcpy(&value, receive[peer].data, sizeof value);
                    CHECK(value == peer);
                    MUST(gg_release(t, &receive[peer]));
                }
                if (sent || received) round = -1;
                left -= sent + received;
            }
            if (left > 0 && round >= 0) MUST(gg_pause(t, round, -1));
        }
    }
    gg_free(send);
    gg_free(receive);
    gg_free(data);
    return GG_OK;
}

static gg_status case_arguments(gg_transport *t) {
    gg_request request = {0};
    gg_allreduce *allreduce = NULL;
    gg_device device = {.table = &case_backend, .threads = 1};
    char memory = 0;
    bool done = false;
    CHECK(gg_send(t, &memory, 1, t->rank, 64, &request) == GG_ERROR_ARGUMENT);
    CHECK(gg_send(t, &memory, 1, t->size, 64, &request) == GG_ERROR_ARGUMENT);
    CHECK(gg_receive_exact(t, &memory, 1, -1, 64, &request) == GG_ERROR_ARGUMENT);
    if (t->size > 1) {
        int peer = (t->rank + 1) % t->size;
        CHECK(gg_send(t, &memory, 0, peer, 64, &request) == GG_ERROR_ARGUMENT);
        CHECK(gg_send(t, NULL, 1, peer, 64, &request) == GG_ERROR_ARGUMENT);
        CHECK(gg_send(t, &memory, 1, peer, GG_TAG_LIMIT, &request) == GG_ERROR_ARGUMENT);
        CHECK(gg_receive_exact(t, &memory, 1, peer, -1, &request) == GG_ERROR_ARGUMENT);
    }
    CHECK(request.state == GG_REQUEST_IDLE);
    CHECK(gg_test(t, &request, &done) == GG_OK && done);
    CHECK(gg_release(t, &request) == GG_OK);
    gg_cancel(t, &request);
    CHECK(gg_transport_compute(t, -1.0) == GG_ERROR_ARGUMENT);
    if (strcmp(t->table->name, "mpi") != 0) {
        MUST(gg_allreduce_create(t, &device, 16, GG_TAG_ALLREDUCE, NULL, GG_COLLECTIVES_OWN, &allreduce));
        gg_allreduce_destroy(allreduce);
        allreduce = NULL;
        CHECK(gg_allreduce_create(t, &device, 16, GG_TAG_ALLREDUCE, NULL, GG_COLLECTIVES_MPI, &allreduce) ==
              GG_ERROR_ARGUMENT);
        CHECK(!allreduce && strstr(gg_error_message(), "collectives: 'mpi'") &&
              strstr(gg_error_message(), "allowed is 'own'"));
    }
    CHECK(gg_allreduce_create(t, &device, 17, GG_TAG_ALLREDUCE, NULL, GG_COLLECTIVES_OWN, &allreduce) ==
              GG_ERROR_ARGUMENT &&
          !allreduce);
    return GG_OK;
}

/* All of it; *hash stands for the results, *direct for messages that were not copied. */
static gg_status case_all(gg_transport *t, uint64_t *hash, int64_t *direct) {
    *hash = 14695981039346656037u;
    *direct = 0;
    GG_TRY(case_arguments(t));
    GG_TRY(case_ring(t, direct));
    GG_TRY(case_many(t));
    GG_TRY(case_any_length(t));
    GG_TRY(case_watched(t));
    GG_TRY(case_service(t));
    GG_TRY(case_any(t));
    GG_TRY(case_collectives(t, hash));
    for (size_t c = 0; c < LENGTH(case_lengths); ++c)
        for (int messages = 0; messages < 2; ++messages)
            GG_TRY(case_allreduce(t, case_lengths[c], messages != 0, GG_COLLECTIVES_OWN, hash));
    return case_halves(t, hash);
}

#endif
