/* The virtual cluster, the local transport, and the collectives on them. */
#include "comm/virtual/virtual.h"

#include <stdlib.h>

#include "base/clock.h"
#include "comm/local.h"
#include "comm_cases.h"
#include "virtual_setup.h"

/* ---- everything, for several sizes ---- */

static gg_status run_all(void *context, int rank) {
    setup *s = context;
    gg_status status = case_all(at(s, rank), &s->hash[rank], &s->direct[rank]);
    s->clock[rank] = gg_transport_now(at(s, rank));
    return status;
}

static void test_all(void) {
    static const int sizes[] = {1, 2, 3, 4, 5, 8, 13};
    for (size_t i = 0; i < LENGTH(sizes); ++i) {
        setup first = {0}, second = {0};
        for (int again = 0; again < 2; ++again) {
            setup *s = again ? &second : &first;
            s->cluster = make(sizes[i], 1e-6, 1e9);
            gg_status status = gg_virtual_run(s->cluster, run_all, s);
            CHECK(status == GG_OK);
            if (status != GG_OK) fprintf(stderr, "%s\n", gg_error_message());
            gg_virtual_destroy(s->cluster);
        }
        for (int r = 0; r < sizes[i]; ++r) {
            CHECK(first.hash[r] == first.hash[0]);
            CHECK(first.hash[r] == second.hash[r]);
            CHECK(first.clock[r] == second.clock[r]);
            CHECK(sizes[i] == 1 || first.clock[r] > 0);
            CHECK(sizes[i] == 1 || first.direct[r] == 2 * (int64_t)LENGTH(case_sizes));
        }
    }
}

/* Nothing is allocated once things are made: counted over all ranks. */
static gg_status run_warm(void *context, int rank) {
    static float data[MAX][4800];
    static gg_allreduce *allreduce[MAX];
    static gg_device device = {.table = &case_backend, .threads = 1};
    static const float scale[MAX] = {1, 2, 3, 4, 5};
    setup *s = context;
    double values[3] = {1, 2, 3};
    char bytes[5 * 100] = {0};
    if (s->number == 0)
        MUST(gg_allreduce_create(at(s, rank), &device, 4800, GG_TAG_ALLREDUCE, NULL, GG_COLLECTIVES_OWN,
                                 &allreduce[rank]));
    MUST(gg_allreduce_run(allreduce[rank], data[rank], scale));
    MUST(gg_allreduce_doubles(at(s, rank), values, 3));
    MUST(gg_allgather(at(s, rank), bytes + 100 * rank, 100, bytes));
    MUST(gg_broadcast(at(s, rank), bytes, 100, 2));
    MUST(gg_barrier(at(s, rank)));
    if (s->number == 2) gg_allreduce_destroy(allreduce[rank]);
    return GG_OK;
}

static void test_warm(void) {
    setup s = {.cluster = make(5, 0, 0)};
    CHECK(gg_virtual_run(s.cluster, run_warm, &s) == GG_OK);
    int64_t allocations = gg_memory_allocations();
    s.number = 1;
    CHECK(gg_virtual_run(s.cluster, run_warm, &s) == GG_OK);
    CHECK(gg_memory_allocations() == allocations);
    s.number = 2;
    CHECK(gg_virtual_run(s.cluster, run_warm, &s) == GG_OK);
    gg_virtual_destroy(s.cluster);
}

/* A reduction tells how long it waited, without the sums, which take rank r here r + 1 seconds each. */
static _Thread_local gg_transport *summing;

static void slow_sum(gg_device *device, size_t n, int sources, const float *const *source, const float *scale,
                     float *out) {
    (void)gg_transport_compute(summing, summing->rank + 1.0);
    case_backend.weighted_sum(device, n, sources, source, scale, out);
}

static void add_wait(void *context, double begin) {
    CHECK(gg_transport_now(summing) > begin); /* it was a wait */
    *(double *)context += gg_transport_now(summing) - begin;
}

static gg_status run_slow_sums(void *context, int rank) {
    static const float scale[MAX] = {1, 2, 3};
    setup *s = context;
    gg_backend slow = case_backend;
    slow.weighted_sum = slow_sum;
    gg_device device = {.table = &slow, .threads = 1};
    float data[GG_LANES * 9] = {0};
    gg_allreduce *allreduce = NULL;
    double waited = 0;
    summing = at(s, rank);
    MUST(gg_allreduce_create(summing, &device, LENGTH(data), GG_TAG_ALLREDUCE, NULL, GG_COLLECTIVES_OWN, &allreduce));
    gg_allreduce_watch(allreduce, add_wait, &waited);
    for (int i = 0; i < 4; ++i) MUST(gg_allreduce_run(allreduce, data, scale));
    gg_allreduce_destroy(allreduce);
    s->seen[rank] = waited;
    s->clock[rank] = gg_transport_now(summing);
    return GG_OK;
}

static void test_waits_of_reductions(void) {
    setup s = {.cluster = make(3, 0.5, 0)};
    CHECK(gg_virtual_run(s.cluster, run_slow_sums, &s) == GG_OK);
    for (int r = 0; r < 3; ++r) CHECK(s.seen[r] > 0 && fabs(s.clock[r] - s.seen[r] - 4 * (r + 1.0)) < 1e-9);
    gg_virtual_destroy(s.cluster);
}

static void test_local(void) {
    gg_transport *t = NULL;
    uint64_t hash = 0;
    int64_t direct = 0;
    CHECK(gg_local_transport_create(&t) == GG_OK);
    CHECK(case_all(t, &hash, &direct) == GG_OK);
    setup s = {.cluster = make(1, 0, 0)};
    CHECK(gg_virtual_run(s.cluster, run_all, &s) == GG_OK);
    CHECK(s.hash[0] == hash);
    gg_virtual_destroy(s.cluster);
    gg_transport_destroy(t);
}

/* ---- clocks ---- */

/* Two messages of 1000 bytes one after the other over the same link; latency 0.5 s, 1000 bytes/s. */
static gg_status run_link(void *context, int rank) {
    setup *s = context;
    gg_transport *t = at(s, rank);
    gg_request request[2] = {0};
    char data[1000] = {0};
    MUST(gg_transport_compute(t, rank == 0 ? 2.0 : 1.0));
    for (int i = 0; i < 2; ++i) {
        if (rank == 0) MUST(gg_send(t, data, sizeof data, 1, 64, &request[i]));
        else MUST(gg_receive_exact(t, data, sizeof data, 0, 64, &request[i]));
    }
    for (int i = 0; i < 2; ++i) {
        MUST(gg_wait(t, &request[i]));
        if (rank == 1) {
            s->seen[i] = request[i].when;
            CHECK(gg_transport_now(t) == request[i].when);
            MUST(gg_transport_compute(t, 0.25)); /* it reads for that long */
            MUST(gg_release(t, &request[i]));
        }
        s->clock[2 * rank + i] = gg_transport_now(t);
    }
    return GG_OK;
}

static void test_link(void) {
    setup s = {.cluster = make(2, 0.5, 1000)};
    CHECK(gg_virtual_run(s.cluster, run_link, &s) == GG_OK);
    CHECK(s.seen[0] == 3.5 && s.seen[1] == 4.5); /* 2 + 1 + 0.5; the link is busy until 3, then one more second */
    CHECK(s.clock[2] == 3.75 && s.clock[3] == 4.75);
    CHECK(s.clock[0] == 3.75 && s.clock[1] == 4.75); /* a send is complete when the receiver lets go */
    /* clocks go on in the next run */
    CHECK(gg_virtual_run(s.cluster, run_link, &s) == GG_OK);
    CHECK(s.clock[2] == 4.75 + 2 + 1.5 + 0.25);
    gg_virtual_destroy(s.cluster);
}

/* Ranks 1 and 2 send 1000 bytes to rank 0, which come in the order of their first bytes, one after the other; latency
 * 0.5 s, 1000 bytes/s. number 0: rank 1 sends at clock 2, rank 2 at 1.75. number 1: rank 1 first sends to rank 2 for
 * three seconds. */
static gg_status run_contention(void *context, int rank) {
    setup *s = context;
    gg_transport *t = at(s, rank);
    gg_request request[4] = {0};
    static char data[3][4][1000];
    int count = 0;
    if (rank == 0) {
        for (int peer = 1; peer <= 2; ++peer, ++count)
            MUST(gg_receive_exact(t, data[0][count], 1000, peer, 64, &request[count]));
    } else if (s->number == 0) {
        MUST(gg_transport_compute(t, rank == 1 ? 2.0 : 1.75));
        MUST(gg_send(t, data[rank][0], 1000, 0, 64, &request[count++]));
    } else {
        MUST(gg_transport_compute(t, rank == 1 ? 0.0 : 1.0));
        for (; count < 3; ++count) {
            if (rank == 1) MUST(gg_send(t, data[1][count], 1000, 2, 64, &request[count]));
            else MUST(gg_receive_exact(t, data[2][count], 1000, 1, 64, &request[count]));
        }
        MUST(gg_send(t, data[rank][3], 1000, 0, 64, &request[count++]));
    }
    for (int i = 0; i < count; ++i) {
        bool receives = request[i].state == GG_REQUEST_RECEIVING;
        MUST(gg_wait(t, &request[i]));
        if (rank == 0) s->seen[i + 1] = request[i].when;
        if (receives) MUST(gg_release(t, &request[i]));
    }
    return GG_OK;
}

static void test_contention(void) {
    setup s = {.cluster = make(3, 0.5, 1000)};
    CHECK(gg_virtual_run(s.cluster, run_contention, &s) == GG_OK);
    CHECK(s.seen[2] == 3.25 &&
          s.seen[1] == 4.25); /* 1.75 + 0.5 + 1; then the link is free for rank 1's, there since 2.5 */
    gg_virtual_destroy(s.cluster);
    s = (setup){.cluster = make(3, 0.5, 1000), .number = 1};
    CHECK(gg_virtual_run(s.cluster, run_contention, &s) == GG_OK);
    CHECK(s.seen[2] == 2.5 && s.seen[1] == 4.5); /* rank 0's link does not wait for what still waits at rank 1 */
    gg_virtual_destroy(s.cluster);
}

/* What is given up while it is on the wire, by either side, leaves the wire. */
static gg_status run_cancel_on_wire(void *context, int rank) {
    setup *s = context;
    gg_transport *t = at(s, rank);
    gg_request first = {0}, second = {0};
    char data[1000] = {0};
    if (rank == 0) {
        MUST(gg_send(t, data, 1000, 1, 64, &first));
        MUST(gg_send(t, data, 1000, 1, 65, &second));
        if (s->number == 0) gg_cancel(t, &first);
        else MUST(gg_wait(t, &first)); /* done when the receiver gives it up */
        return gg_wait(t, &second);
    }
    MUST(gg_receive_exact(t, data, 1000, 0, 64, &first));
    MUST(gg_transport_compute(t, 0.25));
    MUST(gg_progress(t));
    gg_cancel(t, &first);
    MUST(gg_receive_exact(t, data, 1000, 0, 65, &second));
    MUST(gg_wait(t, &second));
    s->clock[1] = gg_transport_now(t);
    return gg_release(t, &second);
}

static void test_cancel_on_wire(void) {
    for (int by = 0; by < 2; ++by) {
        setup s = {.cluster = make(2, 0.5, 1000), .number = by};
        CHECK(gg_virtual_run(s.cluster, run_cancel_on_wire, &s) == GG_OK);
        CHECK(s.clock[1] == 2.5);
        gg_virtual_destroy(s.cluster);
    }
}

/* Watching stops all ranks now and then, and changes no clock. */
static gg_status run_watched(void *context, int rank) {
    setup *s = context;
    gg_transport *t = at(s, rank);
    while (s->number == 0) {
        double begin = gg_clock_now();
        while (gg_clock_now() - begin < 1e-4) continue;
        MUST(gg_transport_compute(t, 1.0 + rank));
        MUST(gg_progress(t));
        s->order[rank]++;
    }
    return GG_OK;
}

static void watch(void *context) {
    setup *s = context;
    int now = s->order[0] + s->order[1] + s->order[2];
    gg_clock_sleep(1e-3);
    CHECK(now == s->order[0] + s->order[1] + s->order[2]); /* all stand still */
    CHECK(s->order[0] >= s->order[1] && s->order[1] >= s->order[2]);
    s->number = ++s->ordered >= 5;
}

static void test_watched(void) {
    setup s = {.cluster = make(3, 0, 0)};
    CHECK(gg_virtual_run_watched(s.cluster, run_watched, &s, &(gg_watch){watch, &s, 0.005}) == GG_OK);
    CHECK(s.ordered >= 5 && s.order[2] > 0);
    for (int r = 0; r < 3; ++r) CHECK(gg_transport_now(at(&s, r)) == s.order[r] * (1.0 + r));
    gg_virtual_destroy(s.cluster);
}

/* Rank 0 is ahead; it must see what rank 1 sent before that clock, and nothing sent later. */
static gg_status run_causal(void *context, int rank) {
    setup *s = context;
    gg_transport *t = at(s, rank);
    gg_request early = {0}, late = {0};
    char data[2] = {0};
    bool done = false;
    if (rank == 0) {
        MUST(gg_receive_exact(t, data, 1, 1, 64, &early));
        MUST(gg_receive_exact(t, data + 1, 1, 1, 65, &late));
        MUST(gg_transport_compute(t, 10));
        MUST(gg_test(t, &early, &done));
        CHECK(done);
        MUST(gg_test(t, &late, &done));
        CHECK(!done);
        MUST(gg_wait(t, &late));
        CHECK(gg_transport_now(t) == 13);
        MUST(gg_release(t, &early));
        MUST(gg_release(t, &late));
    } else {
        MUST(gg_transport_compute(t, 8));
        MUST(gg_send(t, data, 1, 0, 64, &early));
        MUST(gg_transport_compute(t, 4));
        MUST(gg_send(t, data, 1, 0, 65, &late));
        MUST(gg_wait(t, &early));
        CHECK(gg_transport_now(t) == 13);
        MUST(gg_wait(t, &late));
    }
    return GG_OK;
}

static void test_causal(void) {
    setup s = {.cluster = make(2, 1, 0)};
    CHECK(gg_virtual_run(s.cluster, run_causal, &s) == GG_OK);
    gg_virtual_destroy(s.cluster);
}

/* The rank with the smallest clock, then with the lowest number, is due. */
static gg_status run_order(void *context, int rank) {
    setup *s = context;
    gg_transport *t = at(s, rank);
    for (int i = 0; i < 4; ++i) {
        MUST(gg_transport_compute(t, rank == 1 ? 2.0 : 1.0));
        MUST(gg_progress(t));
        s->order[s->ordered++] = rank;
    }
    return GG_OK;
}

static void test_order(void) {
    static const int expected[] = {0, 2, 0, 1, 2, 0, 2, 0, 1, 2, 1, 1};
    setup s = {.cluster = make(3, 0, 0)};
    CHECK(gg_virtual_run(s.cluster, run_order, &s) == GG_OK);
    CHECK(s.ordered == 12 && memcmp(s.order, expected, sizeof expected) == 0);
    gg_virtual_destroy(s.cluster);
}

/* Testing in a loop, without computing, ends as well. */
static gg_status run_poll(void *context, int rank) {
    setup *s = context;
    gg_transport *t = at(s, rank);
    gg_request request = {0};
    char data = 0;
    bool done = false;
    if (rank == 0) {
        MUST(gg_receive_exact(t, &data, 1, 1, 64, &request));
        while (!done) MUST(gg_test(t, &request, &done));
        CHECK(gg_transport_now(t) == 6);
        return gg_release(t, &request);
    }
    MUST(gg_transport_compute(t, 5));
    MUST(gg_progress(t));
    MUST(gg_send(t, &data, 1, 0, 64, &request));
    while (!done) MUST(gg_test(t, &request, &done));
    CHECK(gg_transport_now(t) == 6);
    return GG_OK;
}

static void test_poll(void) {
    setup s = {.cluster = make(2, 1, 0)};
    CHECK(gg_virtual_run(s.cluster, run_poll, &s) == GG_OK);
    gg_virtual_destroy(s.cluster);
}

/* Rank 0 waits for the first of messages that ranks 1 and 2 send at 5 and at 3; rank 2 gets no answer before that. */
static gg_status run_any(void *context, int rank) {
    setup *s = context;
    gg_transport *t = at(s, rank);
    gg_request request[3] = {0};
    char data[3] = {0};
    bool done = false;
    if (rank > 0) {
        MUST(gg_transport_compute(t, rank == 1 ? 5 : 3));
        MUST(gg_progress(t));
        MUST(gg_send(t, data, 1, 0, 64, &request[0]));
        return gg_wait(t, &request[0]);
    }
    for (int peer = 1; peer < 3; ++peer) MUST(gg_receive_exact(t, &data[peer], 1, peer, 64, &request[peer]));
    for (int left = 2, rounds = 0; left > 0;) {
        done = false;
        for (int peer = 1; peer < 3; ++peer) {
            if (request[peer].state != GG_REQUEST_RECEIVING) continue;
            MUST(gg_test(t, &request[peer], &done));
            if (!done) continue;
            CHECK(gg_transport_now(t) == (peer == 1 ? 6 : 4));
            MUST(gg_release(t, &request[peer]));
            left--;
            break;
        }
        if (!done && left > 0) MUST(gg_pause(t, 0, -1));
        CHECK(++rounds < 20);
    }
    return GG_OK;
}

/* Ranks 0 and 1 wait for anything, rank 2 for rank 0: nobody ever sends. */
static gg_status run_nothing(void *context, int rank) {
    setup *s = context;
    gg_transport *t = at(s, rank);
    gg_request request = {0};
    gg_status status = GG_OK;
    char data = 0;
    GG_TRY_CLEANUP(gg_receive_exact(t, &data, 1, (rank + 1) % 3, 64, &request));
    if (rank == 2) GG_TRY_CLEANUP(gg_wait(t, &request));
    for (bool done = false; !done;) {
        GG_TRY_CLEANUP(gg_test(t, &request, &done));
        if (!done) GG_TRY_CLEANUP(gg_pause(t, 0, -1));
    }
cleanup:
    CHECK(status == GG_ERROR_COMM);
    gg_cancel(t, &request);
    return status;
}

static void test_any(void) {
    setup s = {.cluster = make(3, 1, 0)};
    CHECK(gg_virtual_run(s.cluster, run_any, &s) == GG_OK);
    CHECK_FAILS(gg_virtual_run(s.cluster, run_nothing, &s), GG_ERROR_COMM, "rank 0 waits for any of its messages");
    CHECK(strstr(gg_error_message(), "rank 1 waits for any of its messages; rank 2 waits for 1 bytes from rank 0"));
    gg_virtual_destroy(s.cluster);
}

/* Rank 0 has returned when rank 1 asks; with `number`, rank 1 waits for what nobody sends. */
static case_server lingering;

static gg_status run_linger(void *context, int rank) {
    setup *s = context;
    gg_transport *t = at(s, rank);
    gg_request ask = {0}, answer = {0};
    int64_t question = 7, landing = 0;
    bool busy = false;
    gg_status status = GG_OK;
    if (rank == 0) {
        lingering = (case_server){.transport = t, .peer = 1};
        gg_transport_set_service(t, &(gg_service){.serve = case_serve, .context = &lingering});
        return s->number == 0 ? case_serve(&lingering, &busy) : GG_OK;
    }
    MUST(gg_transport_compute(t, 5));
    MUST(gg_receive_exact(t, &landing, sizeof landing, 0, GG_TAG_USER + s->number, &answer));
    if (s->number == 0) MUST(gg_send(t, &question, sizeof question, 0, GG_TAG_USER, &ask));
    status = gg_wait(t, &answer);
    if (status != GG_OK) return status;
    CHECK(*(const int64_t *)answer.data == 8 && gg_transport_now(t) == 7);
    MUST(gg_release(t, &answer));
    return gg_wait(t, &ask);
}

static void test_linger(void) {
    setup s = {.cluster = make(2, 1, 0)};
    CHECK(gg_virtual_run(s.cluster, run_linger, &s) == GG_OK);
    CHECK(lingering.served == 1 && gg_transport_now(at(&s, 0)) == 7); /* when its answer was taken */
    gg_cancel(at(&s, 0), &lingering.request);
    s.number = 1;
    CHECK(gg_virtual_run(s.cluster, run_linger, &s) == GG_ERROR_COMM);
    CHECK(strstr(gg_error_message(), "1 of 2 have returned") && strstr(gg_error_message(), "rank 1 waits for 8 bytes"));
    gg_virtual_destroy(s.cluster);
}

/* ---- clocks that differ ---- */

static double (*true_now)(gg_transport *transport);
static double now_apart(gg_transport *transport) { return true_now(transport) - 100.0 * transport->rank; }

/* number 0: all on one time; 1: each rank's clock is 100 s behind that of the rank before it. */
static gg_status run_clocks(void *context, int rank) {
    setup *s = context;
    gg_transport *t = at(s, rank);
    const gg_transport_table *real = t->table;
    gg_transport_table other = *real;
    true_now = real->now;
    other.one_clock = false;
    if (s->number) other.now = now_apart;
    t->table = &other;
    gg_status status = gg_clock_offset(t, &s->seen[rank]);
    t->table = real;
    return status;
}

static void test_clocks(void) {
    for (int number = 0; number < 2; ++number) {
        setup s = {.cluster = make(4, 1e-3, 0), .number = number};
        CHECK_OK(gg_virtual_run(s.cluster, run_clocks, &s));
        for (int r = 0; r < 4; ++r) {
            if (number == 0) CHECK(s.seen[r] == 0);
            else CHECK(fabs(s.seen[r] - 100.0 * r) < 1.1e-3);
        }
        double offset = 1;
        gg_virtual_destroy(s.cluster);
        s.cluster = make(1, 0, 0);
        CHECK_OK(gg_clock_offset(at(&s, 0), &offset)); /* one clock: no message, so no run is needed */
        CHECK(offset == 0);
        gg_virtual_destroy(s.cluster);
    }
}

/* ---- many ranks ---- */

static gg_status run_barriers(void *context, int rank) {
    setup *s = context;
    for (int i = 0; i < s->number; ++i) MUST(gg_barrier(at(s, rank)));
    return GG_OK;
}

#ifdef __SANITIZE_THREAD__
#define WIDE 40 /* its thread switches take minutes otherwise */
#else
#define WIDE 300
#endif

/* ranks from the command line: test_virtual 4096 10 */
static void test_wide(int ranks, int barriers) {
    double begin = gg_clock_now();
    setup s = {.cluster = make(ranks, 1e-6, 1e9), .number = barriers};
    double made = gg_clock_now();
    CHECK(gg_virtual_run(s.cluster, run_barriers, &s) == GG_OK);
    double ran = gg_clock_now();
    gg_virtual_destroy(s.cluster);
    double messages = (double)barriers * ranks * ceil(log2(ranks));
    printf("%d ranks: created in %.3f s, %d barriers in %.3f s, %.2f us a message, destroyed in %.3f s\n", ranks,
           made - begin, barriers, ran - made, (ran - made) * 1e6 / messages, gg_clock_now() - ran);
}

int main(int argc, char **argv) {
    if (argc > 1) test_wide(atoi(argv[1]), argc > 2 ? atoi(argv[2]) : 10);
    else test_wide(WIDE, 2);
    test_local();
    test_link();
    test_contention();
    test_cancel_on_wire();
    test_watched();
    test_causal();
    test_order();
    test_poll();
    test_any();
    test_linger();
    test_clocks();
    test_all();
    test_warm();
    test_waits_of_reductions();
    CHECK(gg_memory_live_bytes() == 0);
    return CHECK_RESULT;
}
