/* Waiting without spinning, and with a limit. */
#include "base/clock.h"
#include "comm/mpi/mpi_private.h"
#include "comm/stall.h"
#include "comm/transport.h"

gg_status gg_mpi_meet(MPI_Comm comm, double timeout, const char *what, gg_halt *halt) {
    gg_status status = GG_OK;
    MPI_Request all = MPI_REQUEST_NULL;
    gg_stall stall = {0};
    gg_stall_facts facts = {.peer = -1, .step = -1, .what = what};
    int come = 0;
    double due = 0;
    const double begin = gg_clock_now();
    GG_TRY_MPI_CLEANUP(MPI_Comm_rank, comm, &facts.rank);
    GG_TRY_MPI_CLEANUP(MPI_Comm_size, comm, &facts.size);
    GG_TRY_MPI_CLEANUP(MPI_Ibarrier, comm, &all);
    for (int round = 0;; ++round) {
        GG_TRY_MPI_CLEANUP(MPI_Test, &all, &come, MPI_STATUS_IGNORE);
        if (come) break;
        if (round % GG_HALT_LISTEN_ROUNDS == 0) GG_TRY_CLEANUP(gg_halt_listen(halt));
        if (gg_check_due(&due, round)) GG_TRY_CLEANUP(gg_mpi_check_ranks(comm, 0));
        const double waited = gg_clock_now() - begin;
        if (timeout > 0 && waited >= timeout) {
            status = gg_fail(GG_ERROR_COMM, "rank %d: waited %.3f s for all of %d ranks to come to the same place: %s",
                             facts.rank, waited, facts.size, what);
            goto cleanup;
        }
        if (round >= GG_CLOCK_YIELDS) gg_stall_look(&stall, &facts);
        gg_clock_back_off(round);
    }
cleanup:
    gg_stall_end(&stall, &facts);
    return status;
}
