/* The virtual cluster where something goes wrong: deadlocks, failures, messages that do not fit or are changed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "comm/collective.h"
#include "comm/link.h"
#include "comm/subgroup.h"
#include "comm/virtual/virtual.h"
#include "comm_check.h"
#include "corrupting.h"
#include "virtual_setup.h"

/* ---- failures ---- */

/* Ranks 1 and 2 of 3 wait for each other, rank 0 returns. */
static gg_status run_deadlock(void *context, int rank) {
    setup *s = context;
    gg_transport *t = at(s, rank);
    gg_request request = {0};
    char data[8] = {0};
    gg_status status = GG_OK;
    if (rank == 0) return GG_OK;
    if (rank == 1) GG_TRY_CLEANUP(gg_receive_exact(t, data, 7, 2, 77, &request));
    else GG_TRY_CLEANUP(gg_send(t, data, 8, 1, 78, &request));
    GG_TRY_CLEANUP(gg_wait(t, &request));
cleanup:
    s->order[rank] = (int)status;
    gg_cancel(t, &request);
    return gg_error_prefix(status, "layer 'x': ");
}

static void test_deadlock(void) {
    setup s = {.cluster = make(3, 0, 0)};
    CHECK(gg_virtual_run(s.cluster, run_deadlock, &s) == GG_ERROR_COMM);
    const char *text = gg_error_message();
    CHECK(strstr(text, "rank 1: layer 'x': "));
    CHECK(strstr(text, "1 of 3"));
    CHECK(strstr(text, "rank 1 waits for 7 bytes from rank 2 (tag 77)"));
    CHECK(strstr(text, "rank 2 waits for rank 1 to receive 8 bytes (tag 78)"));
    CHECK(s.order[1] == GG_ERROR_COMM && s.order[2] == GG_ERROR_COMM);
    CHECK(gg_virtual_run(s.cluster, run_deadlock, &s) == GG_ERROR_STATE);
    gg_virtual_destroy(s.cluster);
}

/* Rank 0 measures links while rank 1 compares as many bytes as the values of a measurement have. */
static gg_status run_mistaken(void *context, int rank) {
    setup *s = context;
    gg_link link;
    double own[5] = {0}, all[2 * 5];
    const gg_status status =
        rank == 0 ? gg_link_measure(at(s, 0), 4096, &link) : gg_agree(at(s, 1), own, sizeof own, all);
    s->order[rank] = (int)status;
    return status;
}

static void test_a_measurement_is_no_agreement(void) {
    setup s = {.cluster = make(2, 0, 0)};
    CHECK(gg_virtual_run(s.cluster, run_mistaken, &s) == GG_ERROR_COMM);
    CHECK(s.order[0] == GG_ERROR_COMM && s.order[1] == GG_ERROR_COMM);
    gg_virtual_destroy(s.cluster);
}

/* More ranks than fit into one message. */
static gg_status run_all_wait(void *context, int rank) {
    setup *s = context;
    gg_transport *t = at(s, rank);
    static char data[1];
    gg_request request = {0};
    gg_status status = gg_receive_exact(t, data, 1, (rank + 1) % t->size, 64, &request);
    if (status == GG_OK) status = gg_wait(t, &request);
    gg_cancel(t, &request);
    return s->number ? GG_OK : status; /* number 1: ignores the failure */
}

static void test_wide_deadlock(void) {
    for (int ignore = 0; ignore < 2; ++ignore) {
        setup s = {.cluster = make(100, 0, 0), .number = ignore};
        CHECK(gg_virtual_run(s.cluster, run_all_wait, &s) == GG_ERROR_COMM);
        CHECK(strstr(gg_error_message(), "rank 0 waits for 1 bytes from rank 1 (tag 64)"));
        CHECK(strstr(gg_error_message(), "more"));
        CHECK(strlen(gg_error_message()) < 1024);
        gg_virtual_destroy(s.cluster);
    }
}

/* Rank 2 fails; number: 0 others wait, 1 others compute and test, 2 others have not begun. */
static gg_status run_failure(void *context, int rank) {
    setup *s = context;
    gg_transport *t = at(s, rank);
    gg_request request = {0};
    char data = 0;
    bool done = false;
    gg_status status = GG_OK;
    if (rank == 2) {
        if (s->number < 2) MUST(gg_transport_compute(t, 5));
        GG_TRY_CLEANUP(gg_progress(t));
        return gg_fail(GG_ERROR_NUMERIC, "loss is NaN");
    }
    if (s->number == 2) GG_TRY_CLEANUP(gg_transport_compute(t, 1));
    GG_TRY_CLEANUP(gg_receive_exact(t, &data, 1, 2, 64, &request));
    while (s->number == 1 && !done) {
        GG_TRY_CLEANUP(gg_test(t, &request, &done));
        GG_TRY_CLEANUP(gg_transport_compute(t, 0.5));
    }
    GG_TRY_CLEANUP(gg_wait(t, &request));
cleanup:
    s->order[rank] = (int)status;
    gg_cancel(t, &request);
    return status;
}

static void test_failure(void) {
    for (int kind = 0; kind < 3; ++kind) {
        setup s = {.cluster = make(4, 0, 0), .number = kind};
        CHECK(gg_virtual_run(s.cluster, run_failure, &s) == GG_ERROR_NUMERIC);
        CHECK(strcmp(gg_error_message(), "rank 2: loss is NaN") == 0);
        CHECK(s.order[0] == GG_ERROR_CANCELLED && s.order[1] == GG_ERROR_CANCELLED && s.order[3] == GG_ERROR_CANCELLED);
        gg_virtual_destroy(s.cluster);
    }
}

/* Rank 0 is impatient; the message comes at clock 10. number: its patience in seconds. */
static gg_status run_timeout(void *context, int rank) {
    setup *s = context;
    gg_transport *t = at(s, rank);
    gg_request request = {0};
    char data[3] = {0};
    gg_status status = GG_OK;
    if (rank == 1) {
        MUST(gg_transport_compute(t, 10));
        GG_TRY_CLEANUP(gg_progress(t));
        GG_TRY_CLEANUP(gg_send(t, data, 3, 0, 64, &request));
    } else {
        t->timeout = s->number;
        GG_TRY_CLEANUP(gg_receive_exact(t, data, 3, 1, 64, &request));
    }
    GG_TRY_CLEANUP(gg_wait(t, &request));
    GG_TRY_CLEANUP(gg_release(t, &request));
cleanup:
    s->clock[rank] = gg_transport_now(t);
    gg_cancel(t, &request);
    return status;
}

static void test_timeout(void) {
    setup s = {.cluster = make(2, 0, 0), .number = 3};
    CHECK(gg_virtual_run(s.cluster, run_timeout, &s) == GG_ERROR_COMM);
    CHECK(strstr(gg_error_message(), "rank 0: ") && strstr(gg_error_message(), "waited 3.000 s"));
    CHECK(strstr(gg_error_message(), "3 bytes from rank 1 with tag 64"));
    CHECK(s.clock[0] >= 3 && s.clock[0] < 3.001);
    gg_virtual_destroy(s.cluster);
    s = (setup){.cluster = make(2, 0, 0), .number = 30};
    CHECK(gg_virtual_run(s.cluster, run_timeout, &s) == GG_OK);
    CHECK(s.clock[0] == 10);
    gg_virtual_destroy(s.cluster);
}

static gg_status run_size_mismatch(void *context, int rank) {
    setup *s = context;
    gg_request request = {0};
    char data[8] = {0};
    gg_status status = GG_OK;
    if (rank == 1) GG_TRY_CLEANUP(gg_send(at(s, 1), data, 5, 0, 64, &request));
    else if (s->number == 8) GG_TRY_CLEANUP(gg_receive_exact(at(s, 0), data, 8, 1, 64, &request));
    else GG_TRY_CLEANUP(gg_receive(at(s, 0), data, (size_t)s->number, 1, 64, &request));
    GG_TRY_CLEANUP(gg_wait(at(s, rank), &request));
    GG_TRY_CLEANUP(gg_release(at(s, rank), &request));
cleanup:
    gg_cancel(at(s, rank), &request);
    return status;
}

static void test_size_mismatch(void) {
    static const char *const expected[] = {"expected at most 4 bytes, received 5", "expected 8 bytes, received 5"};
    for (int exact = 0; exact < 2; ++exact) {
        setup s = {.cluster = make(2, 0, 0), .number = exact ? 8 : 4};
        CHECK_FAILS(gg_virtual_run(s.cluster, run_size_mismatch, &s), GG_ERROR_COMM, expected[exact]);
        CHECK(strstr(gg_error_message(), "rank 0: message from rank 1 with tag 64: "));
        gg_virtual_destroy(s.cluster);
    }
}

/* A message of another topology epoch is refused, whichever of the two began first; those of one epoch pass. number:
 * bit 0: through a subgroup; bit 1: the receiver is behind. */
static gg_status run_epochs(void *context, int rank) {
    setup *s = context;
    static const int members[] = {2, 0};
    gg_transport *view = NULL, *t = at(s, rank);
    gg_request request = {0};
    char data[8] = {0};
    gg_status status = GG_OK;
    const bool sends = rank == 2, viewed = s->number & 1, behind = (s->number & 2) != 0;
    const int peer = viewed ? (sends ? 1 : 0) : (sends ? 0 : 2);
    if (rank == 1) return GG_OK;
    if (viewed) {
        GG_TRY_CLEANUP(gg_subgroup_create(t, members, 2, &view));
        t = view;
    }
    for (int epoch = 5; epoch < 7; ++epoch) {
        const bool stays = epoch == 6 && sends != behind;
        if (!stays) gg_transport_set_epoch(t, epoch);
        if (sends) GG_TRY_CLEANUP(gg_send(t, data, 5, peer, 70, &request));
        else GG_TRY_CLEANUP(gg_receive(t, data, 8, peer, 70, &request));
        GG_TRY_CLEANUP(gg_wait(t, &request));
        GG_TRY_CLEANUP(gg_release(t, &request));
    }
cleanup:
    gg_cancel(t, &request);
    gg_transport_destroy(view);
    return status;
}

static void test_epochs(void) {
    for (int number = 0; number < 4; ++number) {
        setup s = {.cluster = make(3, 0, 0), .number = number};
        CHECK_FAILS(gg_virtual_run(s.cluster, run_epochs, &s), GG_ERROR_COMM,
                    number & 2
                        ? "rank 0: a message of topology epoch 6 from rank 2 with tag 70 met a receive of epoch 5"
                        : "rank 0: a message of topology epoch 5 from rank 2 with tag 70 met a receive of epoch 6");
        gg_virtual_destroy(s.cluster);
    }
}

/* Requests that are given up leave nothing behind. */
static gg_status run_cancel(void *context, int rank) {
    setup *s = context;
    gg_transport *t = at(s, rank);
    gg_request first = {0}, second = {0};
    int data = 0, landing = 0;
    if (rank == 0) {
        MUST(gg_receive_exact(t, &landing, 4, 1, 64, &first));
        gg_cancel(t, &first);
        CHECK(first.state == GG_REQUEST_IDLE);
        MUST(gg_receive_exact(t, &landing, 4, 1, 64, &first));
        MUST(gg_receive_exact(t, &landing, 4, 1, 65, &second));
        MUST(gg_wait(t, &first));
        CHECK(*(const int *)first.data == 1);
        gg_cancel(t, &first); /* as good as a release */
        CHECK(gg_wait(t, &second) == GG_ERROR_COMM);
        CHECK(strstr(gg_error_message(), "gave up"));
        gg_cancel(t, &second);
        return GG_OK;
    }
    data = 1;
    MUST(gg_send(t, &data, 4, 0, 66, &first));
    gg_cancel(t, &first);
    MUST(gg_send(t, &data, 4, 0, 64, &first));
    MUST(gg_transport_compute(t, 1));
    MUST(gg_wait(t, &first));
    MUST(gg_send(t, &data, 4, 0, 65, &second));
    gg_cancel(t, &second);
    return GG_OK;
}

static void test_cancel(void) {
    setup s = {.cluster = make(2, 0, 0)};
    CHECK(gg_virtual_run(s.cluster, run_cancel, &s) == GG_OK);
    gg_virtual_destroy(s.cluster);
}

/* A message may wait from one run to the next. */
static gg_request kept[2];
static int kept_value;

static gg_status run_kept(void *context, int rank) {
    setup *s = context;
    gg_transport *t = at(s, rank);
    if (s->number == 0 && rank == 0) MUST(gg_send(t, &kept_value, sizeof kept_value, 1, 64, &kept[0]));
    if (s->number == 0 && rank == 1) MUST(gg_receive_exact(t, &s->ordered, sizeof kept_value, 0, 64, &kept[1]));
    if (s->number == 1) {
        MUST(gg_wait(t, &kept[rank]));
        if (rank == 1) CHECK(*(const int *)kept[1].data == 42);
        MUST(gg_release(t, &kept[rank]));
    }
    return GG_OK;
}

static void test_kept(void) {
    setup s = {.cluster = make(2, 1, 0)};
    gg_request request = {0};
    bool done = false;
    kept_value = 42;
    CHECK(gg_virtual_run(s.cluster, run_kept, &s) == GG_OK);
    CHECK(gg_send(at(&s, 0), &kept_value, 1, 1, 64, &request) == GG_ERROR_STATE); /* outside of a run */
    CHECK(gg_test(at(&s, 1), &kept[1], &done) == GG_ERROR_STATE && !done);
    s.number = 1;
    CHECK(gg_virtual_run(s.cluster, run_kept, &s) == GG_OK);
    gg_virtual_destroy(s.cluster);
}

static void test_options(void) {
    gg_virtual *cluster = NULL;
    gg_virtual_options good = {.size = 1, .compute_rate = 1}, bad = good;
    bad.size = 0;
    CHECK(gg_virtual_create(&bad, &cluster) == GG_ERROR_ARGUMENT && !cluster);
    bad.size = 4097;
    CHECK(gg_virtual_create(&bad, &cluster) == GG_ERROR_ARGUMENT);
    bad = good;
    bad.network.latency = -1;
    CHECK(gg_virtual_create(&bad, &cluster) == GG_ERROR_ARGUMENT);
    bad = good;
    bad.network.bandwidth = (double)NAN;
    CHECK(gg_virtual_create(&bad, &cluster) == GG_ERROR_ARGUMENT);
}

/* ---- a transport that corrupts (corrupting.h) ---- */

static const corruption corruptions[] = {{.kind = CORRUPT_TRUNCATE, .peer = 1, .tag = -1, .which = 1, .keep = 20},
                                         {.kind = CORRUPT_FLIP, .peer = -1, .tag = 64, .which = 1, .at = -1, .mask = 3},
                                         {.kind = CORRUPT_FILL, .peer = 1, .tag = 64, .which = 1, .at = 98, .mask = 7},
                                         {.kind = CORRUPT_GROW, .peer = 1, .tag = 64, .which = 1, .keep = 2, .mask = 9},
                                         {.kind = CORRUPT_FLIP, .peer = 2, .tag = 64, .which = 1}};

/* Of three messages the second is changed as asked, and the sender's bytes are not. */
static gg_status run_corrupting(void *context, int rank) {
    setup *s = context;
    corruption c = corruptions[s->number];
    static unsigned char data[100];
    unsigned char landing[120] = {0};
    gg_transport *t = NULL;
    if (rank == 0) MUST(corrupting_create(at(s, rank), &c, &t));
    for (int i = 0; i < 3; ++i) {
        gg_request request = {0};
        if (rank == 1) {
            MUST(gg_send(at(s, rank), data, sizeof data, 0, 64, &request));
            MUST(gg_wait(at(s, rank), &request));
        } else if (rank == 0) {
            MUST(gg_receive(t, landing, sizeof landing, 1, 64, &request));
            MUST(gg_wait(t, &request));
            const unsigned char *got = request.data;
            const bool changed = i == 1 && c.peer != 2;
            const size_t grown[] = {20, 100, 100, 102};
            CHECK(request.bytes == (changed ? grown[s->number] : 100));
            unsigned sum = 0;
            for (size_t k = 0; k < request.bytes; ++k) sum += got[k];
            const unsigned sums[] = {0, 3, 14, 18};
            CHECK(sum == (changed ? sums[s->number] : 0));
            CHECK(c.corrupted == (i >= 1 && c.peer != 2));
            MUST(gg_release(t, &request));
        }
    }
    corrupting_destroy(t);
    return GG_OK;
}

static void test_corrupting(void) {
    for (int i = 0; i < (int)LENGTH(corruptions); ++i) {
        setup s = {.cluster = make(3, 0, 0), .number = i};
        CHECK_OK(gg_virtual_run(s.cluster, run_corrupting, &s));
        gg_virtual_destroy(s.cluster);
    }
}

/* A wait checks its peer if rounds and time have passed. */
static void test_check_due(void) {
    const int rounds = GG_CHECK_ROUNDS;
    double due = 0;
    CHECK(!gg_check_due(&due, rounds - 2) && due == 0);
    CHECK(!gg_check_due(&due, rounds - 1) && due > 0); /* the first rounds of a wait */
    due = INFINITY;
    CHECK(!gg_check_due(&due, 2 * rounds - 1));
    due = 0;
    CHECK(!gg_check_due(&due, 2 * rounds - 2));
    CHECK(gg_check_due(&due, 2 * rounds - 1) && due > 0);
}

int main(void) {
    test_check_due();
    test_options();
    test_deadlock();
    test_a_measurement_is_no_agreement();
    test_wide_deadlock();
    test_failure();
    test_timeout();
    test_size_mismatch();
    test_epochs();
    test_cancel();
    test_kept();
    test_corrupting();
    CHECK(gg_memory_live_bytes() == 0);
    return CHECK_RESULT;
}
