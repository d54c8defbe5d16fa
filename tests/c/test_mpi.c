/* The transport over MPI. mpi ranks: 3; any number of ranks will do.
 *
 * test_mpi measure   prints what an exchange of 1.7 MB between two ranks costs, instead of testing */
#include <stdlib.h>
#include <sys/statvfs.h>

#include "base/clock.h"
#include "comm/allreduce.h"
#include "comm/collective.h"
#include "comm/device_order.h"
#include "comm/mpi/mpi_transport.h"
#include "comm/stall.h"
#include "comm/subgroup.h"
#include "comm/virtual/virtual.h"
#include "comm_cases.h"
#include "late_device.h"

#define MAX 64

typedef struct twin {
    gg_virtual *cluster;
    uint64_t hash[MAX];
} twin;

static gg_status run_twin(void *context, int rank) {
    twin *s = context;
    int64_t direct = 0;
    return case_all(gg_virtual_transport(s->cluster, rank), &s->hash[rank], &direct);
}

static bool room_for_sharing(void) {
    struct statvfs facts;
    return statvfs("/dev/shm", &facts) == 0 && (double)facts.f_bavail * (double)facts.f_frsize > 256e6;
}

/* All ranks, with and without shared memory, get the bits that the virtual cluster gets. limit: of a piece of a
 * message; 0: MPI's own. */
static void test_all(int rank, int size, const char *sharing_of_first, const char *sharing, size_t limit) {
    gg_transport *t = NULL;
    uint64_t hash = 0;
    int64_t direct = 0;
    twin s = {0};
    gg_virtual_options options = {.size = size, .network = {.latency = 1e-6}, .compute_rate = 1};
    if (size > MAX) return;
    setenv("GOSSIPGRAD_SHARED", rank == 0 ? sharing_of_first : sharing, 1);
    CHECK_OK(gg_mpi_transport_create(true, 0, 0, &t));
    if (limit > 0) gg_mpi_transport_limit(t, limit);
    CHECK_OK(case_all(t, &hash, &direct));
    int sizes = 0;
    for (size_t i = 0; i < LENGTH(case_sizes); ++i) sizes += case_sizes[i] >= 4096;
    bool shares = strcmp(sharing_of_first, "1") == 0 && strcmp(sharing, "1") == 0 && size > 1;
    if (!shares) CHECK(direct == 0);
    else if (room_for_sharing()) CHECK(direct == sizes);
    CHECK_OK(gg_virtual_create(&options, &s.cluster));
    CHECK_OK(gg_virtual_run(s.cluster, run_twin, &s));
    CHECK(s.hash[rank] == hash);
    gg_virtual_destroy(s.cluster);
    gg_transport_destroy(t);
    setenv("GOSSIPGRAD_SHARED", "1", 1);
}

/* In the order of the work of a device that lags behind: the same bits, over MPI alone and over a network. */
static void test_late(int rank, int size, const char *sharing, bool network) {
    const gg_network brisk = {.latency = 20e-6, .bandwidth = 10e9};
    gg_transport *t = NULL, *order = NULL;
    uint64_t hash[2] = {0};
    int64_t direct = 0;
    late_device device;
    (void)rank, (void)size;
    setenv("GOSSIPGRAD_SHARED", sharing, 1);
    for (int late = 0; late < 2; ++late) {
        late_open(&device);
        device.lag = late * 3;
        CHECK_OK(gg_mpi_transport_create(true, 0, 0, &t));
        if (network) CHECK_OK(gg_network_transport_create(t, &brisk, &t));
        CHECK_OK(gg_device_order_create(t, &device.head, &order));
        CHECK_OK(case_all(late ? order : t, &hash[late], &direct));
        CHECK_INT(t->bytes_sent, late ? order->bytes_sent : t->bytes_sent);
        CHECK_INT(device.shared, 0);
        CHECK((device.given > 1000) == (late && size > 1)); /* messages were held back */
        gg_transport_destroy(order);
        gg_transport_destroy(t);
    }
    CHECK(hash[0] == hash[1]);
    setenv("GOSSIPGRAD_SHARED", "1", 1);
}

/* Over a slow network: the same bits, and nothing comes sooner than the model says. */
static void test_slow(int rank, int size) {
    enum { BYTES = 8000 };
    const gg_network brisk = {.latency = 20e-6, .bandwidth = 10e9}, slow = {.latency = 0.02, .bandwidth = 400e3};
    gg_transport *t = NULL, *fast = NULL;
    uint64_t hash[2] = {0};
    int64_t direct = 0;
    char *block = NULL, *landing = NULL;
    for (int i = 0; i < 2; ++i) {
        CHECK_OK(gg_mpi_transport_create(true, 0, 0, &t));
        if (i == 1) CHECK_OK(gg_network_transport_create(t, &brisk, &t));
        CHECK_OK(case_all(t, &hash[i], &direct));
        gg_transport_destroy(t);
    }
    CHECK(hash[0] == hash[1]);

    CHECK_OK(gg_mpi_transport_create(true, 0, 0, &fast));
    CHECK_FAILS(gg_network_transport_create(fast, &(gg_network){.latency = -1}, &t), GG_ERROR_ARGUMENT,
                "latency is -1");
    CHECK_OK(gg_network_transport_create(fast, &slow, &t));
    CHECK_OK(gg_message_alloc(t, BYTES, "block", &block));
    CHECK_OK(gg_message_alloc(t, (size_t)size * BYTES, "landing", &landing));
    if (rank > 0) {
        gg_request request = {0};
        double begin = gg_clock_now();
        memcpy(block, &begin, sizeof begin);
        CHECK_OK(gg_send(t, block, BYTES, 0, 64, &request));
        CHECK_OK(gg_wait(t, &request));
        CHECK(t->bytes_sent == BYTES && t->messages_sent == 1);
        /* what waits here when it is given up */
        for (int i = 0; i < 2; ++i) {
            gg_request given_up[3] = {0};
            for (int k = 0; k < 3; ++k) CHECK_OK(gg_send(t, block, BYTES, 0, 65 + k, &given_up[k]));
            for (int k = 0; k < 3; ++k) gg_cancel(t, &given_up[i == 0 ? k : 2 - k]);
        }
    } else {
        gg_request *request = NULL;
        double before = 0;
        CHECK_OK(gg_calloc((size_t)size, sizeof *request, "requests", &request));
        for (int r = 1; r < size; ++r) CHECK_OK(gg_receive_exact(t, landing + r * BYTES, BYTES, r, 64, &request[r]));
        for (int r = 1; r < size; ++r) {
            double begun, now;
            CHECK_OK(gg_wait(t, &request[r]));
            now = gg_clock_now();
            memcpy(&begun, request[r].data, sizeof begun);
            CHECK(now - begun >= 0.04 && now >= request[r].when);
            CHECK(request[r].when >= before + 0.02); /* one after the other on the one link of this rank */
            before = request[r].when;
            CHECK_OK(gg_release(t, &request[r]));
        }
        gg_free(request);
    }
    CHECK_OK(gg_transport_idle(t, 0.001));
    gg_message_free(t, landing);
    gg_message_free(t, block);
    gg_transport_destroy(t);
}

/* MPI's own sums: the right ones, the same bits on every rank, several at once, of parts of the group; counted like
 * ours. */
static void test_sums(int rank, int size, size_t limit) {
    enum { MANY = 5, COUNT = 16 * 64 * 3 };
    gg_device device = {.table = &case_backend, .threads = 1};
    gg_transport *t = NULL, *view = NULL;
    gg_allreduce *many[MANY] = {NULL};
    float *data = NULL, share[MAX];
    uint64_t hash = 14695981039346656037u, first;
    int members[MAX], count = 0, place = 0;
    if (size > MAX) return;
    CHECK_OK(gg_mpi_transport_create(true, 0, 0, &t));
    if (limit > 0) gg_mpi_transport_limit(t, limit);
    CHECK(t->sums == NULL);
    for (size_t c = 0; c < LENGTH(case_lengths); ++c)
        CHECK_OK(case_allreduce(t, case_lengths[c], true, GG_COLLECTIVES_MPI, &hash));
    first = hash;
    CHECK_OK(gg_broadcast(t, &first, sizeof first, 0));
    CHECK(first == hash);
    CHECK_FAILS(gg_allreduce_create(t, &device, 16, GG_TAG_ALLREDUCE,
                                    &(gg_allreduce_form){.codec = gg_codec_of(GG_BFLOAT16), .memory = &hash},
                                    GG_COLLECTIVES_MPI, &many[0]),
                GG_ERROR_ARGUMENT, "MPI has no sum of bfloat16");

    /* Whole numbers have one sum in any order. Every second rank: two groups side by side, both under way while the
     * whole group's are. */
    for (int r = rank % 2; r < size; r += 2) {
        if (r == rank) place = count;
        members[count++] = r;
    }
    CHECK_OK(gg_subgroup_create(t, members, count, &view));
    CHECK_OK(gg_message_alloc(t, MANY * COUNT * sizeof(float), "arena", &data));
    for (int r = 0; r < size; ++r) share[r] = (float)(r + 1);
    for (int i = 0; i < MANY; ++i)
        CHECK_OK(
            gg_allreduce_create(i % 2 ? view : t, &device, COUNT, GG_TAG_USER + i, NULL, GG_COLLECTIVES_MPI, &many[i]));
    for (int again = 0; again < 20; ++again) {
        int left = MANY;
        bool summed[MANY] = {false};
        int64_t bytes = t->bytes_sent, messages = t->messages_sent;
        for (int i = 0; i < MANY; ++i) {
            for (int k = 0; k < COUNT; ++k) data[i * COUNT + k] = (float)(rank + k % 7 + i + again);
            CHECK_OK(gg_allreduce_start(many[i], data + i * COUNT, share));
            if (i % 2 == 0 && size > 1)
                CHECK_FAILS(gg_allreduce_start(many[i], data + i * COUNT, share), GG_ERROR_STATE, "started again");
        }
        for (int round = 0; left > 0 && again % 2; ++round) {
            for (int i = 0; i < MANY; ++i) {
                bool before = summed[i];
                CHECK_OK(gg_allreduce_poll(many[i], &summed[i]));
                left -= summed[i] && !before;
            }
            if (left > 0) CHECK_OK(gg_pause(t, round, -1));
        }
        size_t wrong = 0;
        for (int i = 0; i < MANY; ++i) {
            CHECK_OK(i % 4 ? gg_allreduce_wait(many[i]) : gg_allreduce_finish(many[i]));
            for (int k = 0; k < COUNT; ++k) {
                float sum = 0;
                for (int r = 0; r < (i % 2 ? count : size); ++r)
                    sum += share[r] * (float)((i % 2 ? members[r] : r) + k % 7 + i + again);
                wrong += data[i * COUNT + k] != sum;
            }
        }
        CHECK(wrong == 0);
        const int64_t each = COUNT * sizeof(float), whole = (MANY + 1) / 2, part = MANY / 2;
        CHECK(t->messages_sent - messages == 2 * (whole * (size - 1) + part * (count - 1)));
        CHECK(t->bytes_sent - bytes ==
              whole * (2 * each * (size - 1) / size) + part * (2 * each * (count - 1) / count));
    }
    CHECK(place == view->rank);
    for (int i = 0; i < MANY; ++i) gg_allreduce_destroy(many[i]);
    gg_message_free(t, data);
    gg_transport_destroy(view);
    gg_transport_destroy(t);
}

/* A wait for a missing rank ends after `timeout`. The sum can then still complete, or be given up. Memory that MPI may
 * still write is kept, as the live bytes show. */
static int64_t test_sum_in_vain(int rank, int size) {
    enum { COUNT = 4096 };
    gg_device device = {.table = &case_backend, .threads = 1};
    gg_transport *t = NULL, *other = NULL;
    gg_allreduce *sum = NULL;
    float *data = NULL, share[MAX];
    char expected[100];
    if (size < 2 || size > MAX) return 0;
    int64_t before = gg_memory_live_bytes();
    CHECK_OK(gg_mpi_transport_create(true, 0, 0, &other));
    CHECK_OK(gg_mpi_transport_create(true, 0, 0, &t));
    CHECK_OK(gg_message_alloc(t, COUNT * sizeof(float), "arena", &data));
    CHECK_OK(gg_allreduce_create(t, &device, COUNT, GG_TAG_USER, NULL, GG_COLLECTIVES_MPI, &sum));
    for (int r = 0; r < size; ++r) share[r] = 1;
    for (int again = 0; again < 2; ++again) {
        for (int k = 0; k < COUNT; ++k) data[k] = (float)(again + 1);
        if (rank == 0) {
            gg_request request = {0};
            CHECK_OK(gg_sum(t, t->sums, data, COUNT, &request));
            t->timeout = 0.3;
            snprintf(expected, sizeof expected, "s for the sum of %d values over %d ranks", COUNT, size);
            CHECK_FAILS(gg_wait(t, &request), GG_ERROR_COMM, expected);
            CHECK(strstr(gg_error_message(), "rank 0: waited 0.") && request.state == GG_REQUEST_SUMMING);
            t->timeout = 0;
            CHECK_OK(gg_barrier(other));
            if (again == 0) {
                CHECK_OK(gg_wait(t, &request));
                CHECK(data[0] == (float)size && data[COUNT - 1] == (float)size);
            } else {
                gg_cancel(t, &request);
                CHECK(request.state == GG_REQUEST_IDLE);
            }
        } else {
            CHECK_OK(gg_barrier(other));
            CHECK_OK(gg_allreduce_run(sum, data, share));
            CHECK(data[0] == (float)(size * (again + 1)));
        }
        CHECK_OK(gg_barrier(other));
    }
    gg_allreduce_destroy(sum);
    gg_message_free(t, data);
    if (rank == 0) {
        for (int i = 0; i < 100 && data[COUNT - 1] != (float)(2 * size); ++i) CHECK_OK(gg_progress(other));
        CHECK(data[0] == (float)(2 * size) && data[COUNT - 1] == (float)(2 * size));
    }
    CHECK_OK(gg_barrier(other));
    gg_transport_destroy(t);
    gg_transport_destroy(other);
    int64_t kept = gg_memory_live_bytes() - before;
    CHECK(rank == 0 ? kept > 0 : kept == 0);
    return kept;
}

/* How often a wait has looked in vain: the last round that its pause was called with. */
static const gg_transport_table *mpi_table;
static int rounds;

static gg_status count_round(gg_transport *transport, int round, gg_request *request) {
    rounds = round;
    return mpi_table->pause(transport, round, request);
}

static void test_timeout(int rank, int size) {
    gg_transport *t = NULL;
    gg_transport_table counting;
    char landing[100] = {0};
    gg_request request = {0};
    if (size < 2) return;
    CHECK_OK(gg_mpi_transport_create(true, 0, 0, &t));
    if (rank == 0) {
        double waited;
        mpi_table = t->table;
        counting = *mpi_table;
        counting.pause = count_round;
        t->table = &counting;
        t->timeout = 1;
        CHECK_OK(gg_receive_exact(t, landing, 100, 1, 70, &request));
        waited = -gg_clock_now();
        CHECK_FAILS(gg_wait(t, &request), GG_ERROR_COMM, "for 100 bytes from rank 1 with tag 70");
        waited += gg_clock_now();
        const char *said = strstr(gg_error_message(), "rank 0: waited ");
        CHECK(said && atof(said + strlen("rank 0: waited ")) >= 1);
        /* it sleeps between its looks: after the first ones, which only yield, and some short sleeps, 0.2 ms at least
         * each */
        CHECK(rounds < 2048 + 100 + waited / 200e-6);
        CHECK(request.state == GG_REQUEST_RECEIVING);
        gg_cancel(t, &request);
        CHECK(request.state == GG_REQUEST_IDLE);
        t->table = mpi_table;
        t->timeout = 0;
    }
    /* the transport still serves */
    CHECK_OK(gg_barrier(t));
    gg_transport_destroy(t);
}

/* Rank 1 sends, rank 0 expects another size: plain, as a descriptor, and too much for the landing. */
static void test_size_mismatch(int rank, int size, size_t limit) {
    static const struct {
        size_t sent, expected;
        bool any;
        const char *text;
    } cases[] = {{50, 100, false, "expected 100 bytes, received 50"},
                 {8192, 10000, false, "expected 10000 bytes, received 8192"},
                 {32, 10000, false, "expected 10000 bytes, received 32"},
                 {100, 50, false, "expected 50 bytes, received more than 50"},
                 {100, 50, true, "expected at most 50 bytes, received more than 50"},
                 {8192, 8191, true, "expected at most 8191 bytes, received "}};
    gg_transport *t = NULL;
    char *block = NULL, *landing = NULL;
    if (size < 2) return;
    CHECK_OK(gg_mpi_transport_create(true, 0, 0, &t));
    if (limit > 0) gg_mpi_transport_limit(t, limit);
    CHECK_OK(gg_message_alloc(t, 10000, "mismatch", &block));
    CHECK_OK(gg_alloc(10000, "mismatch", &landing));
    for (size_t i = 0; i < LENGTH(cases); ++i) {
        gg_request request = {0};
        if (rank == 0) {
            CHECK_OK((cases[i].any ? gg_receive : gg_receive_exact)(t, landing, cases[i].expected, 1, 64, &request));
            CHECK_FAILS(gg_wait(t, &request), GG_ERROR_COMM, cases[i].text);
            CHECK(strstr(gg_error_message(), "from rank 1 with tag 64"));
            gg_cancel(t, &request);
        }
        if (rank == 1) {
            CHECK_OK(gg_send(t, block, cases[i].sent, 0, 64, &request));
            t->timeout = 0.1;
            (void)gg_wait(t, &request);
            t->timeout = 0;
            gg_cancel(t, &request);
        }
    }
    CHECK_OK(gg_barrier(t));
    gg_message_free(t, block);
    gg_free(landing);
    gg_transport_destroy(t);
}

/* A message of another topology epoch never arrives, and a wait for one of this epoch finds it; held back by a slow
 * network it still belongs to the epoch in which it was sent. Those of one epoch pass, also past the last number that a
 * tag has room for. */
static void test_epochs(int rank, int size) {
    const gg_network slow = {.latency = 0.02};
    gg_transport *t = NULL;
    gg_request request = {0};
    char data[8] = {0};
    if (size < 2) return;
    CHECK_OK(gg_mpi_transport_create(true, 0, 0, &t));
    CHECK_OK(gg_network_transport_create(t, &slow, &t));
    for (int epoch = 0; epoch < 200; epoch += epoch < 62 ? 31 : 1 + epoch / 2) {
        gg_transport_set_epoch(t, epoch);
        CHECK_OK(gg_barrier(t));
    }
    gg_transport_set_epoch(t, 1001);
    if (rank == 1) {
        CHECK_OK(gg_send(t, data, 5, 0, 70, &request));
        gg_transport_set_epoch(t, 1002);
        CHECK_OK(gg_wait(t, &request));
    } else if (rank == 0) {
        gg_transport_set_epoch(t, 1002);
        CHECK_OK(gg_receive(t, data, 8, 1, 70, &request));
        CHECK_FAILS(gg_wait(t, &request), GG_ERROR_COMM,
                    "rank 0: a message of topology epoch 1001 from rank 1 with tag 70 met a receive of epoch 1002");
        gg_cancel(t, &request);
    } else {
        gg_transport_set_epoch(t, 1002);
    }
    CHECK_OK(gg_barrier(t));
    gg_transport_destroy(t);
}

/* More messages that would be read as descriptors than there is room for are refused; what was sent arrives, and the
 * room is used again. Large messages leave that room alone. */
static void test_marked(int rank, int size) {
    enum { LARGE = 1500, MANY = 256, EACH = 4096 };
    static gg_request request[LARGE + MANY + 1];
    static unsigned char landing[LARGE + MANY][EACH];
    uint32_t content[MANY][8];
    gg_transport *t = NULL;
    unsigned char *block = NULL;
    if (size < 2 || !room_for_sharing()) return;
    CHECK_OK(gg_mpi_transport_create(true, 0, 0, &t));
    CHECK_OK(gg_message_alloc(t, EACH, "marked", &block));
    for (int again = 0; again < 2; ++again) {
        memset(request, 0, sizeof request);
        if (rank == 1) {
            for (int i = 0; i < LARGE; ++i) CHECK_OK(gg_send(t, block, EACH, 0, 64, &request[i]));
            for (int i = 0; i < MANY; ++i) {
                for (int k = 0; k < 8; ++k) content[i][k] = k == 0 ? CASE_MARK : (uint32_t)(i * 10 + k);
                CHECK_OK(gg_send(t, content[i], sizeof content[i], 0, 65, &request[LARGE + i]));
            }
            CHECK_FAILS(gg_send(t, content[0], sizeof content[0], 0, 65, &request[LARGE + MANY]), GG_ERROR_COMM,
                        "more than 256 messages of 32 bytes that begin with 0x67676d73");
        }
        CHECK_OK(gg_barrier(t));
        size_t wrong = 0;
        for (int i = 0; rank == 0 && i < LARGE + MANY; ++i)
            CHECK_OK(gg_receive(t, landing[i], EACH, 1, i < LARGE ? 64 : 65, &request[i]));
        for (int i = 0; rank < 2 && i < LARGE + MANY; ++i) {
            CHECK_OK(gg_wait(t, &request[i]));
            if (rank == 0) {
                uint32_t word[8];
                memcpy(word, request[i].data, sizeof word);
                wrong += request[i].bytes != (i < LARGE ? EACH : sizeof word);
                for (int k = 1; i >= LARGE && k < 8; ++k) wrong += word[k] != (uint32_t)((i - LARGE) * 10 + k);
                CHECK_OK(gg_release(t, &request[i]));
            }
        }
        CHECK(wrong == 0);
    }
    CHECK_OK(gg_barrier(t));
    gg_message_free(t, block);
    gg_transport_destroy(t);
}

/* Ranks that ask for different sizes are told, all of them on that node. */
static void test_alloc_mismatch(int rank, int size) {
    gg_transport *t = NULL;
    void *block = NULL;
    if (size < 2 || !room_for_sharing()) return;
    CHECK_OK(gg_mpi_transport_create(true, 0, 0, &t));
    CHECK_FAILS(gg_message_alloc(t, rank == 0 ? 5000 : 6000, "arena", &block), GG_ERROR_ARGUMENT, "5000 to 6000 bytes");
    CHECK(!block);
    gg_transport_destroy(t);
}

/* Every rank sends what it has in the block to the next rank: *right says whether what comes is that rank's. */
static void pass_around(gg_transport *t, unsigned char *block, size_t bytes, bool *right) {
    static unsigned char landing[100000];
    gg_request request[2] = {0};
    const int before = (t->rank + t->size - 1) % t->size;
    memset(block, t->rank + 1, bytes);
    CHECK_OK(gg_receive(t, landing, bytes, before, 64, &request[0]));
    CHECK_OK(gg_send(t, block, bytes, (t->rank + 1) % t->size, 64, &request[1]));
    CHECK_OK(gg_wait(t, &request[0]));
    const unsigned char *found = request[0].data;
    *right = request[0].bytes == bytes && found[0] == before + 1 && found[bytes - 1] == before + 1;
    CHECK_OK(gg_release(t, &request[0]));
    CHECK_OK(gg_wait(t, &request[1]));
}

/* Freed memory serves again where all ranks have freed it and it is large enough; it is zero then. */
static void test_recycling(int rank, int size) {
    gg_transport *t = NULL;
    unsigned char *first = NULL, *second = NULL, *third = NULL;
    bool right = false, zero = true;
    if (size < 2 || !room_for_sharing()) return;
    CHECK_OK(gg_mpi_transport_create(true, 0, 0, &t));
    CHECK_OK(gg_message_alloc(t, 90000, "first", &first));
    CHECK_OK(gg_message_alloc(t, 50000, "second", &second));
    pass_around(t, first, 90000, &right);
    CHECK(right);
    gg_message_recycle(t, true);
    const unsigned char *was = first;
    gg_message_free(t, first);
    CHECK_OK(gg_message_alloc(t, 95000, "third", &third)); /* larger */
    CHECK(third != was);
    CHECK_OK(gg_message_alloc(t, 60000, "first", &first));
    CHECK(first == was);
    for (int i = 0; i < 60000; ++i) zero = zero && first[i] == 0;
    CHECK(zero);
    pass_around(t, first, 60000, &right);
    CHECK(right);
    /* A rank that still has it: nobody uses it again. */
    was = second;
    if (rank != 1) gg_message_free(t, second);
    unsigned char *other = NULL;
    CHECK_OK(gg_message_alloc(t, 40000, "other", &other));
    CHECK(other != was);
    pass_around(t, other, 40000, &right);
    CHECK(right);
    if (rank == 1) gg_message_free(t, second);
    gg_message_recycle(t, false);
    CHECK_OK(gg_message_alloc(t, 40000, "second", &second));
    pass_around(t, second, 40000, &right);
    CHECK(right);
    CHECK_OK(gg_barrier(t));
    gg_message_free(t, second);
    gg_message_free(t, other);
    gg_message_free(t, third);
    gg_message_recycle(t, true); /* what is held is freed with the transport */
    gg_message_free(t, first);
    gg_transport_destroy(t);
}

/* What the reporter was last told, how often, and how often that a wait is over. */
static gg_stall_facts told;
static int reports, ends;

static double count_reports(const gg_stall_facts *facts) {
    told = *facts;
    if (facts->over) ends++;
    else reports++;
    return reports < 3 ? 0.01 : 0;
}

/* Rank 0 waits for a byte that rank 1 sends after `seconds`. */
static void wait_for_late(gg_transport *t, int rank, double seconds) {
    gg_request request = {0};
    int64_t step = 7;
    char byte = 1;
    CHECK_OK(gg_barrier(t));
    reports = ends = 0;
    gg_stall_configure(0.05, count_reports);
    if (rank == 1) {
        gg_clock_sleep(seconds);
        CHECK_OK(gg_send(t, &byte, 1, 0, GG_TAG_USER, &request));
        CHECK_OK(gg_wait(t, &request));
    } else if (rank == 0) {
        t->step = &step;
        t->waits_for[0] = t->waits_for[1] = "fc1";
        CHECK_OK(gg_receive_exact(t, &byte, 1, 1, GG_TAG_USER, &request));
        CHECK_OK(gg_wait(t, &request));
        t->step = NULL;
        t->waits_for[0] = t->waits_for[1] = NULL;
        CHECK_OK(gg_release(t, &request));
    }
    gg_stall_configure(0, NULL);
}

/* A wait that lasts is reported as often as the reporter wants, with the peer, and so is its end; a short one is not.
 * Where the processor is busy, rank 0 may not have begun to wait when the byte is sent: then rank 1 sleeps longer. */
static void test_stall(int rank, int size) {
    gg_transport *t = NULL;
    int enough[MAX] = {0};
    if (size < 2 || size > MAX) return;
    CHECK_OK(gg_mpi_transport_create(true, 0, 0, &t));
    for (double seconds = 0.5; seconds < 60 && !enough[0]; seconds *= 4) {
        wait_for_late(t, rank, seconds);
        const int seen = reports >= 3;
        CHECK_OK(gg_agree(t, &seen, sizeof seen, enough));
    }
    if (rank == 0) {
        CHECK(reports == 3 && ends == 1);
        CHECK(told.over && told.rank == 0 && told.size == size && told.peer == 1 && told.step == 7);
        CHECK(told.seconds >= 0.05 && strcmp(told.first_layer, "fc1") == 0 && told.what == NULL);
    }
    CHECK_OK(gg_barrier(t));
    gg_transport_destroy(t);
}

/* Every rank's bytes in their order; counted as nothing, and not mixed up with a message that nobody has waited for. */
static void test_agree(int rank, int size) {
    gg_transport *t = NULL;
    gg_request request = {0};
    int all[MAX] = {0};
    char mark = (char)(rank + 1), other = 0;
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;
    if (size < 2 || size > MAX) return;
    CHECK_OK(gg_mpi_transport_create(true, 0, 0, &t));
    CHECK_OK(gg_send(t, &mark, 1, next, GG_TAG_USER, &request));
    CHECK_OK(gg_wait(t, &request));
    const int64_t bytes = t->bytes_sent, messages = t->messages_sent;
    CHECK_OK(gg_agree(t, &rank, sizeof rank, all));
    for (int r = 0; r < size; ++r) CHECK(all[r] == r);
    CHECK(t->bytes_sent == bytes && t->messages_sent == messages);
    CHECK_OK(gg_receive_exact(t, &other, 1, before, GG_TAG_USER, &request));
    CHECK_OK(gg_wait(t, &request));
    CHECK(*(const char *)request.data == (char)(before + 1));
    CHECK_OK(gg_release(t, &request));
    CHECK_OK(gg_barrier(t));
    gg_transport_destroy(t);
}

static void test_start(void) {
    gg_mpi_info info;
    char expected[64];
    CHECK_OK(gg_mpi_query(&info));
    CHECK(info.initialised && info.ours && info.thread_level >= 1 && info.init_seconds > 0);
    CHECK(info.library[0] && info.built_against[0]);
    CHECK(!strchr(info.library, '\n'));
    snprintf(expected, sizeof expected, "started %d ranks, but MPI sees %d", info.size + 1, info.size);
    CHECK_FAILS(gg_mpi_start(info.size + 1), GG_ERROR_COMM, expected);
    CHECK_OK(gg_mpi_start(info.size));
    CHECK_OK(gg_mpi_start(0));
    if (info.rank == 0)
        printf("%s; init %.3f s; fault tolerance %d, cuda %d\n", info.library, info.init_seconds, info.fault_tolerance,
               info.cuda);
}

/* Both ranks send and read `bytes`, once each; the median of the seconds it takes. */
static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double measure(gg_transport *t, size_t bytes, bool shared, float *sum) {
    enum { ROUNDS = 300 };
    static double seconds[ROUNDS];
    float *block[2] = {NULL, NULL}, *landing = NULL;
    for (int i = 0; i < 2; ++i) {
        if (shared) CHECK_OK(gg_message_alloc(t, bytes, "measure", &block[i]));
        else CHECK_OK(gg_calloc(1, bytes, "measure", &block[i]));
    }
    CHECK_OK(gg_calloc(1, bytes, "measure", &landing));
    for (int round = 0; round < ROUNDS; ++round) {
        gg_request receive = {0}, send = {0};
        float *own = block[round % 2];
        for (size_t i = 0; i < bytes / sizeof(float); ++i) own[i] = (float)(i + (size_t)round);
        CHECK_OK(gg_barrier(t));
        double begin = gg_clock_now();
        CHECK_OK(gg_receive_exact(t, landing, bytes, 1 - t->rank, 64, &receive));
        CHECK_OK(gg_send(t, own, bytes, 1 - t->rank, 64, &send));
        CHECK_OK(gg_wait(t, &receive));
        const float *data = receive.data;
        float partial[16] = {0};
        for (size_t i = 0; i < bytes / sizeof(float); i += 16)
            for (size_t k = 0; k < 16; ++k) partial[k] += data[i + k];
        for (size_t k = 0; k < 16; ++k) *sum += partial[k];
        CHECK_OK(gg_release(t, &receive));
        CHECK_OK(gg_wait(t, &send));
        seconds[round] = gg_clock_now() - begin;
    }
    for (int i = 0; i < 2; ++i) {
        if (shared) gg_message_free(t, block[i]);
        else gg_free(block[i]);
    }
    gg_free(landing);
    qsort(seconds, ROUNDS, sizeof seconds[0], by_value);
    return seconds[ROUNDS / 2];
}

static void measure_all(void) {
    gg_transport *t = NULL;
    float sum = 0;
    CHECK_OK(gg_mpi_transport_create(true, 0, 0, &t));
    if (t->size != 2) return;
    for (size_t bytes = 4096; bytes <= 64 << 20; bytes = bytes < 1024000 ? bytes * 10 : bytes * 4) {
        size_t n = bytes == 409600 ? 1724416 : bytes; /* LeNet's parameters */
        for (int again = 0; again < 2; ++again) {
            double plain = measure(t, n, false, &sum), shared = measure(t, n, true, &sum);
            if (t->rank == 0)
                printf("%9zu bytes both ways and read once: plain %8.1f us, shared %8.1f us, ratio %.2f\n", n,
                       plain * 1e6, shared * 1e6, plain / shared);
        }
    }
    gg_transport_destroy(t);
    if (sum < 0) printf("%g\n", (double)sum);
}

int main(int argc, char **argv) {
    gg_mpi_info info;
    int64_t kept = 0;
    CHECK_OK(gg_mpi_query(&info)); /* before the start as well */
    CHECK(!info.initialised && info.size == 1);
    if (!CHECK_OK(gg_mpi_start(0))) return check_report();
    CHECK_OK(gg_mpi_query(&info));
    const int64_t started = gg_memory_live_bytes(); /* what MPI's start allocated is freed by its stop */
    if (argc > 1 && strcmp(argv[1], "measure") == 0) {
        measure_all();
    } else {
        test_start();
        test_all(info.rank, info.size, "1", "1", 0);
        test_all(info.rank, info.size, "0", "0", 0);
        test_all(info.rank, info.size, "0", "1", 0); /* nobody shares unless all do */
        test_all(info.rank, info.size, "1", "1", 1000);
        test_all(info.rank, info.size, "0", "0", 1000);
        test_late(info.rank, info.size, "1", false);
        test_late(info.rank, info.size, "0", true);
        test_slow(info.rank, info.size);
        test_stall(info.rank, info.size);
        test_agree(info.rank, info.size);
        test_timeout(info.rank, info.size);
        test_size_mismatch(info.rank, info.size, 0);
        test_size_mismatch(info.rank, info.size, 64);
        test_epochs(info.rank, info.size);
        test_marked(info.rank, info.size);
        test_alloc_mismatch(info.rank, info.size);
        test_recycling(info.rank, info.size);
        test_sums(info.rank, info.size, 0);
        test_sums(info.rank, info.size, 1000);
        kept = test_sum_in_vain(info.rank, info.size);
    }
    CHECK(gg_memory_live_bytes() == started + kept);
    gg_mpi_stop();
    CHECK(gg_memory_live_bytes() == kept);
    CHECK_FAILS(gg_mpi_start(0), GG_ERROR_STATE, "finalised");
    if (info.rank == 0 || check_failed > 0) return check_report();
    return 0;
}
