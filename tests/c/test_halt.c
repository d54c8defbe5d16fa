/* Ranks that come to stop after the same step. mpi ranks: 4; any number of ranks will do. */
#include "base/clock.h"
#include "base/random.h"
#include "comm/collective.h"
#include "comm/halt.h"
#include "comm/mpi/mpi_transport.h"
#include "comm/team.h"

#include "check.h"

#define MAX_STEPS 1000000
#define PATIENCE 60.0 /* seconds until ranks count as hung */

/* Steps of a rank, in pieces that each cuts for itself. */
typedef struct run {
    gg_team *team;
    bool ring;          /* each step wants a message of the rank before, of the same step */
    int slow;           /* a rank that takes several times as long for a step; -1: none */
    int64_t wants_from; /* the step from which on this rank wants to stop */
    uint64_t draws;
    int64_t longest; /* piece */
} run;

static int64_t piece_of(run *r) {
    float draw = 0;
    const gg_random_key key = {
        .seed = 7, .purpose = GG_RANDOM_TEST, .rank = (uint32_t)gg_team_rank(r->team), .step = r->draws++};
    gg_random_uniform(&key, 1, 0, 1, &draw);
    return 1 + (int64_t)(draw * (float)r->longest);
}

static gg_status make_step(const run *r, int64_t step) {
    gg_status status = GG_OK;
    gg_transport *t = gg_team_transport(r->team, 0);
    gg_request out = {0}, in = {0};
    int64_t heard = -1;
    if (r->slow >= 0) gg_clock_sleep(t->rank == r->slow ? 300e-6 : 20e-6);
    if (!r->ring || t->size < 2) goto cleanup;
    GG_TRY_CLEANUP(gg_receive_exact(t, &heard, sizeof heard, (t->rank + t->size - 1) % t->size, 70, &in));
    GG_TRY_CLEANUP(gg_send(t, &step, sizeof step, (t->rank + 1) % t->size, 70, &out));
    GG_TRY_CLEANUP(gg_wait_and_copy(t, &in, &heard));
    GG_TRY_CLEANUP(gg_wait(t, &out));
    CHECK_INT(heard, step);
cleanup:
    gg_cancel(t, &in);
    gg_cancel(t, &out);
    return status;
}

/* *step: before which it has stopped. */
static gg_status run_on(run *r, int64_t *step) {
    int64_t until = -1;
    while (*step < MAX_STEPS) {
        GG_TRY(gg_team_halt_until(r->team, *step, *step + piece_of(r), *step >= r->wants_from, &until));
        CHECK(until >= *step);
        if (until <= *step) break;
        for (; *step < until; ++*step) GG_TRY(make_step(r, *step));
    }
    return GG_OK;
}

/* All stop after the same step, which is at least `least`. */
static bool check_together(gg_team *team, int64_t step, int64_t least) {
    int64_t all[64] = {0};
    bool good = CHECK(step >= least && step < MAX_STEPS);
    if (!CHECK_OK(gg_agree(gg_team_transport(team, 0), &step, sizeof step, all))) return false;
    for (int rank = 0; rank < gg_team_size(team); ++rank) good = CHECK_INT(all[rank], step) && good;
    return good;
}

/* Many rounds of the same team, in which one rank, some or all want to stop, at different steps. */
static void test_rounds(const gg_network *network, bool ring, int slow, int64_t longest) {
    gg_team *team = NULL;
    int64_t step = 100;
    bool good = CHECK_OK(gg_team_create_mpi(true, 0, network, PATIENCE, &team));
    run r = {.team = team, .ring = ring, .slow = slow, .longest = longest};
    for (int round = 0; good && gg_team_size(team) > 1 && round < (slow < 0 ? 60 : 12); ++round) {
        const int rank = gg_team_rank(team), first = round % gg_team_size(team);
        const bool wants = round % 3 == 0 ? rank == first : round % 3 == 1 || rank <= first;
        const int64_t least = step + 50;
        r.wants_from = wants ? least + (rank == first ? 0 : 1 + rank) : MAX_STEPS;
        good = CHECK_OK(gg_team_halt_begin(team, step)) && CHECK_OK(gg_barrier(gg_team_transport(team, 0))) &&
               CHECK_OK(run_on(&r, &step)) && check_together(team, step, least);
        gg_team_halt_end(team);
    }
    if (!good) gg_mpi_abort(1); /* others may wait for ever */
    gg_team_release(team);
}

/* While nobody wants to stop a rank waits for none: here all others have made no step before it has made its last. */
static void test_nobody_waits(void) {
    gg_team *team = NULL;
    int64_t step = 0, until = 0;
    CHECK_OK(gg_team_create_mpi(true, 0, NULL, PATIENCE, &team));
    CHECK_OK(gg_team_halt_begin(team, 0));
    for (int turn = 0; turn < gg_team_size(team); ++turn) {
        if (turn == gg_team_rank(team))
            for (step = 0; step < 1000; ++step) {
                CHECK_OK(gg_team_halt_until(team, step, step + 1, false, &until));
                CHECK_INT(until, step + 1);
            }
        CHECK_OK(gg_barrier(gg_team_transport(team, 0)));
    }
    gg_team_halt_end(team);
    gg_team_release(team);
}

/* A rank at its limit hears also of those that wait for it in a collective call of MPI. */
static void test_shared_memory(void) {
    gg_team *team = NULL;
    void *block = NULL;
    int64_t until = 0;
    CHECK_OK(gg_team_create_mpi(true, 0, NULL, PATIENCE, &team));
    gg_transport *t = gg_team_transport(team, 0);
    CHECK_OK(gg_team_halt_begin(team, 3));
    CHECK_OK(gg_barrier(t));
    if (t->rank == 0 && t->size > 1) {
        CHECK_OK(gg_team_halt_until(team, 3, 5, true, &until));
        CHECK_INT(until, 5);
        CHECK_OK(gg_team_halt_until(team, 5, 9, true, &until));
        CHECK_INT(until, 5);
    }
    CHECK_OK(gg_message_alloc(t, 100000, "block", &block));
    gg_team_halt_end(team);
    gg_message_free(t, block);
    gg_team_release(team);
}

/* What a rank has told in a round that others have left before they heard of it means nothing in the next. */
static void test_late_message(void) {
    gg_transport *t = NULL;
    CHECK_OK(gg_mpi_transport_create(true, 0, PATIENCE, &t));
    gg_halt *halt = gg_mpi_transport_halt(t);
    if (halt != NULL) {
        gg_halt_begin(halt, t->rank == 0 ? 1 : 2, 0);
        if (t->rank == 0) CHECK_OK(gg_halt_look(halt, 5, true));
        const double begin = gg_clock_now();
        for (int round = 0; gg_clock_now() - begin < 0.2; ++round) CHECK_OK(gg_halt_listen(halt));
        CHECK_INT(gg_halt_until(halt, 100), t->rank == 0 ? 5 : 100);
        CHECK(gg_halt_waits(halt, 5) == (t->rank == 0));
        gg_halt_end(halt);
        CHECK_OK(gg_barrier(t));
    }
    gg_transport_destroy(t);
}

/* A rank that others leave alone at its limit fails after the timeout. */
static void test_timeout(void) {
    gg_team *team = NULL;
    int64_t until = 0;
    CHECK_OK(gg_team_create_mpi(true, 0, NULL, 0.3, &team));
    gg_transport *t = gg_team_transport(team, 0);
    CHECK_OK(gg_team_halt_begin(team, 0));
    if (t->rank == 0 && t->size > 1) {
        CHECK_OK(gg_team_halt_until(team, 0, 5, true, &until));
        CHECK_INT(until, 5);
        gg_team_halt_end(team); /* a listener in a barrier below would answer */
        CHECK(t->size == 1 || gg_team_halt_until(team, 5, 6, true, &until) == GG_ERROR_COMM);
    }
    gg_team_set_timeout(team, PATIENCE);
    gg_team_halt_end(team);
    CHECK_OK(gg_barrier(t));
    gg_team_release(team);
}

int main(void) {
    const gg_network slow = {.latency = 200e-6, .bandwidth = 1e9};
    gg_mpi_info info;
    if (!CHECK_OK(gg_mpi_start(0))) return check_report();
    CHECK_OK(gg_mpi_query(&info));
    const int64_t started = gg_memory_live_bytes();
    test_rounds(NULL, true, -1, 100);
    test_rounds(NULL, true, 0, 7);
    test_rounds(NULL, false, -1, 100);
    test_rounds(NULL, false, 0, 7);
    test_rounds(&slow, true, -1, 7);
    test_nobody_waits();
    test_shared_memory();
    test_late_message();
    test_timeout();
    CHECK(gg_memory_live_bytes() == started);
    gg_mpi_stop();
    if (info.rank == 0 || check_failed > 0) return check_report();
    return 0;
}
