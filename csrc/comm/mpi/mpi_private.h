/* Shared by the files of this folder. */
#ifndef GG_COMM_MPI_MPI_PRIVATE_H
#define GG_COMM_MPI_MPI_PRIVATE_H

#include <mpi.h>
#include <stdbool.h>

#include "base/status.h"
#include "comm/halt.h"

/* GG_ERROR_COMM with the name of the MPI function and MPI's own text; GG_OK for MPI_SUCCESS. */
gg_status gg_mpi_check(int code, const char *function);

/* True if the library advertises that it reads and writes GPU memory. */
bool gg_mpi_reads_devices(void);

/* Messages by which a rank in a long wait learns that another has ended. Opens them for the ranks of `comm`, unless
 * they can already ask each other. Collective. */
gg_status gg_mpi_questions_open(MPI_Comm comm);
/* A number above 0 for a new group with the ranks of `comm`: no process of these has another group of this number.
 * Collective. */
gg_status gg_mpi_group_open(MPI_Comm comm, int64_t *group);
/* This process has begun this many steps in the group, which the error of a rank that waits for its end shows. */
void gg_mpi_group_step(int64_t group, int64_t begun);
/* Asks `peer`, a rank of `comm`; called about once a second while this rank waits for it. GG_ERROR_COMM: it has ended.
 * The error shows both ranks' steps in `group`; 0 means none. gg_mpi_check_ranks asks every rank of `comm`. */
gg_status gg_mpi_check_rank(MPI_Comm comm, int peer, int64_t group);
gg_status gg_mpi_check_ranks(MPI_Comm comm, int64_t group);
/* Called by a rank that ends: answers others until all ranks that can ask it have ended. After `timeout` seconds (0
 * means comm/stall.h's) one rank of a host reports its wait on stderr and continues to wait. */
gg_status gg_mpi_wait_for_ends(double timeout);
int gg_mpi_world_rank(void);
/* Keeps the launcher's variables that gg_mpi_first_of_host needs: they may leave the environment once MPI runs. */
void gg_mpi_keep_launcher(void);
/* True if this process is the first of its job on this host to call it with this text, or if that cannot be determined.
 */
bool gg_mpi_first_of_host(const char *what);

/* Returns when all ranks of `comm` have called it. Precedes MPI's own collective calls, which would wait for ever and
 * report nothing. GG_ERROR_COMM, naming `what`, after `timeout` seconds (0 means never) or if a rank has ended; the
 * communicator is then unusable. halt listens meanwhile; NULL means none. */
gg_status gg_mpi_meet(MPI_Comm comm, double timeout, const char *what, gg_halt *halt);
/* Collective over `comm`. */
typedef struct gg_mpi_limits gg_mpi_limits;
gg_status gg_mpi_limits_create(MPI_Comm comm, gg_mpi_limits **out);
/* Collective. touch_mpi false, after a failure, leaves the communicator alone. NULL is a no-op. */
void gg_mpi_limits_destroy(gg_mpi_limits *limits, bool touch_mpi);
gg_halt *gg_mpi_limits_halt(const gg_mpi_limits *limits); /* NULL of NULL */
/* Seconds after which gg_mpi_stop reports that it waits for other ranks; 0 means never. */
void gg_mpi_set_stop_timeout(double seconds);

#define GG_TRY_MPI(function, ...) GG_TRY(gg_mpi_check(function(__VA_ARGS__), #function))
#define GG_TRY_MPI_CLEANUP(function, ...) GG_TRY_CLEANUP(gg_mpi_check(function(__VA_ARGS__), #function))

#endif
