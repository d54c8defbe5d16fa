/* What the files of this room share. */
#ifndef GG_COMM_MPI_MPI_PRIVATE_H
#define GG_COMM_MPI_MPI_PRIVATE_H

#include <mpi.h>
#include <stdbool.h>

#include "base/status.h"
#include "comm/mpi/mpi_halt.h"

/* GG_ERROR_COMM with the name of the MPI function and MPI's own text; GG_OK for MPI_SUCCESS. */
gg_status gg_mpi_check(int code, const char *function);

/* Returns after a while, longer from round to round: between tests of what is waited for. */
void gg_mpi_pause(int round);
/* Whether the library says that it reads and writes memory of GPUs. */
bool gg_mpi_reads_devices(void);

/* Messages by which a rank that has waited for long learns that another has ended. Open: for the ranks of `comm`,
 * unless they can ask each other already. Collective. */
gg_status gg_mpi_questions_open(MPI_Comm comm);
/* Asks `peer`, a rank of `comm`; called about once a second while this rank waits for it. GG_ERROR_COMM: it has ended.
 * The other form: for every rank of `comm`. */
gg_status gg_mpi_check_rank(MPI_Comm comm, int peer);
gg_status gg_mpi_check_ranks(MPI_Comm comm);
/* From a rank that ends: answers the questions of others until all that can ask it have ended as well. After `timeout`
 * seconds (0: those of comm/stall.h) one rank of a host reports on stderr that it waits, and continues to wait. */
gg_status gg_mpi_wait_for_ends(double timeout);
int gg_mpi_world_rank(void);
/* Keeps the launcher's variables that gg_mpi_first_of_host needs: they may leave the environment once MPI runs. */
void gg_mpi_keep_launcher(void);
/* Whether this is the first process of this job on this host to call it with this text. True where that cannot be
 * determined. */
bool gg_mpi_first_of_host(const char *what);

/* Returns when all ranks of `comm` have come here. Called before MPI's own collective calls, which would wait for ever
 * and report nothing. After `timeout` seconds (0: never), or where a rank has ended, GG_ERROR_COMM that names `what`,
 * and the communicator cannot be used any more. halt: which listens meanwhile; NULL: none. */
gg_status gg_mpi_meet(MPI_Comm comm, double timeout, const char *what, gg_mpi_halt *halt);
/* Collective over `comm`. */
gg_status gg_mpi_halt_create(MPI_Comm comm, gg_mpi_halt **out);
/* After how many seconds gg_mpi_stop says that it waits for other ranks; 0: it never does. */
void gg_mpi_set_stop_timeout(double seconds);

#define GG_TRY_MPI(function, ...) GG_TRY(gg_mpi_check(function(__VA_ARGS__), #function))
#define GG_TRY_MPI_CLEANUP(function, ...) GG_TRY_CLEANUP(gg_mpi_check(function(__VA_ARGS__), #function))

#endif
