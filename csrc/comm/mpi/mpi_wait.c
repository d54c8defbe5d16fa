/* Waiting without spinning, and with a limit. */
#include <stdio.h>

#include "base/clock.h"
#include "comm/mpi/mpi_private.h"
#include "comm/stall.h"
#include "comm/transport.h"

/* Rounds of a wait that only yield the processor, about half a millisecond: ranks in step differ by less, and a sleep
 * lasts 0.07 ms at least. After them it sleeps, from SLEEP_MIN up to SLEEP_MAX seconds. */
#define YIELD_ROUNDS 2048
#define SLEEP_MIN 20e-6
#define SLEEP_MAX 200e-6
#define SLEEP_GROWTH 10 /* percent a round */

void gg_mpi_pause(int round) {
    double seconds = 0;
    if (round >= YIELD_ROUNDS) {
        seconds = SLEEP_MIN * (1.0 + SLEEP_GROWTH * 0.01 * (round - YIELD_ROUNDS));
        if (seconds > SLEEP_MAX) seconds = SLEEP_MAX;
    }
    gg_clock_sleep(seconds);
}

gg_status gg_mpi_meet(MPI_Comm comm, double timeout, const char *what, gg_mpi_halt *halt, bool ends) {
    gg_status status = GG_OK;
    MPI_Request all = MPI_REQUEST_NULL;
    gg_stall stall = {0};
    gg_stall_facts facts = {.peer = -1, .step = -1, .what = what};
    int come = 0;
    bool asked = false, speaks = false; /* of the ranks of a host that have ended, one reports that it waits */
    double begin = gg_clock_now(), next_report = timeout > 0 ? timeout : gg_stall_seconds();
    GG_TRY_MPI(MPI_Comm_rank, comm, &facts.rank);
    GG_TRY_MPI(MPI_Comm_size, comm, &facts.size);
    GG_TRY_MPI(MPI_Ibarrier, comm, &all);
    for (int round = 0;; ++round) {
        GG_TRY_MPI(MPI_Test, &all, &come, MPI_STATUS_IGNORE);
        if (come) break;
        if (round % GG_MPI_LISTEN_ROUNDS == 0) GG_TRY(gg_mpi_halt_listen(halt));
        if (ends) GG_TRY(gg_mpi_questions_answer());
        else if (round % GG_CHECK_ROUNDS == GG_CHECK_ROUNDS - 1) GG_TRY(gg_mpi_check_ranks(comm));
        double waited = gg_clock_now() - begin;
        if (ends && next_report > 0 && waited >= next_report) {
            if (!asked) speaks = gg_mpi_first_of_host("waits-at-end");
            if (speaks)
                fprintf(stderr, "gossipgrad: rank %d has waited for %.0f s in %s for other ranks; it waits on\n",
                        facts.rank, waited, what);
            asked = true;
            next_report = gg_stall_seconds() > 0 ? waited + GG_STALL_REPEAT * gg_stall_seconds() : 0;
        }
        if (!ends && timeout > 0 && waited >= timeout) {
            status = gg_fail(GG_ERROR_COMM, "rank %d: waited %.3f s for all of %d ranks to come to the same place: %s",
                             facts.rank, waited, facts.size, what);
            goto cleanup;
        }
        if (!ends && round >= YIELD_ROUNDS) gg_stall_look(&stall, &facts);
        gg_mpi_pause(round);
    }
cleanup:
    gg_stall_end(&stall, &facts);
    return status;
}
