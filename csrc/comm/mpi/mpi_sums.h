/* Sums over ranks by MPI's own non-blocking all-reduce. */
#ifndef GG_COMM_MPI_MPI_SUMS_H
#define GG_COMM_MPI_MPI_SUMS_H

#include <mpi.h>
#include <stdbool.h>

#include "comm/transport.h"

/* Sums over the `count` ranks of `comm` in `members`; NULL means all. Collective over them. */
gg_status gg_mpi_sums_create(MPI_Comm comm, const int *members, int count, gg_sums **out);
/* Collective. touch_mpi false, after a failure, leaves the communicator alone. NULL is a no-op. */
void gg_mpi_sums_destroy(gg_sums *sums, bool touch_mpi);
/* Starts a sum in place; returns MPI's code. If count exceeds `most`, which fits an int, it is a multiple of
 * GG_MPI_SUMS_BLOCK. */
#define GG_MPI_SUMS_BLOCK 16
int gg_mpi_sums_start(gg_sums *sums, float *data, size_t count, size_t most, MPI_Request *request);

#endif
