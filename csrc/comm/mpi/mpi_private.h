/* What the files of this room share. */
#ifndef GG_COMM_MPI_MPI_PRIVATE_H
#define GG_COMM_MPI_MPI_PRIVATE_H

#include <mpi.h>
#include <stdbool.h>

#include "base/status.h"

/* GG_ERROR_COMM with the name of the MPI function and MPI's own text; GG_OK for MPI_SUCCESS. */
gg_status gg_mpi_check(int code, const char *function);

/* Returns after a while, longer from round to round: between tests of what is waited for. */
void gg_mpi_pause(int round);
/* Returns when all ranks of `comm` have come here. Before MPI's own collective calls, which wait for ever, without a
 * word. After `timeout` seconds (0: never) either GG_ERROR_COMM that names `what`, and the communicator is of no use
 * any more, or, with `insists`, that is said on stderr and waiting goes on. */
gg_status gg_mpi_meet(MPI_Comm comm, double timeout, const char *what, bool insists);
/* How long gg_mpi_stop waits before it says so; 0: it never does. */
void gg_mpi_be_patient(double seconds);

#define GG_TRY_MPI(function, ...) GG_TRY(gg_mpi_check(function(__VA_ARGS__), #function))

#endif
