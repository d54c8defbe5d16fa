/* What the files of this room share. */
#ifndef GG_COMM_MPI_MPI_PRIVATE_H
#define GG_COMM_MPI_MPI_PRIVATE_H

#include <mpi.h>

#include "base/status.h"

/* GG_ERROR_COMM with the name of the MPI function and MPI's own text; GG_OK for MPI_SUCCESS. */
gg_status gg_mpi_check(int code, const char *function);

#define GG_TRY_MPI(function, ...) GG_TRY(gg_mpi_check(function(__VA_ARGS__), #function))

#endif
