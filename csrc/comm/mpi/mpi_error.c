/* MPI's error codes as status and text. */
#include <stdio.h>

#include "comm/mpi/mpi_private.h"

gg_status gg_mpi_check(int code, const char *function) {
    if (code == MPI_SUCCESS) return GG_OK;
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) snprintf(text, sizeof text, "error code %d", code);
    return gg_fail(GG_ERROR_COMM, "%s failed: %s", function, text);
}
