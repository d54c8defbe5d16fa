#include "comm/mpi/mpi_sums.h"

#include "base/memory.h"
#include "comm/mpi/mpi_private.h"

#define TAG_SUMS (GG_TAG_LIMIT + 2) /* of the messages by which MPI makes a communicator of some ranks */

/* A communicator of its own: MPI tells collectives apart by their order on a communicator alone. */
typedef struct mpi_sums {
    gg_sums sums; /* first: a gg_sums is cast to this */
    MPI_Comm comm;
} mpi_sums;

gg_status gg_mpi_sums_create(MPI_Comm comm, const int *members, int count, gg_sums **out) {
    gg_status status = GG_OK;
    mpi_sums *made = NULL;
    MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
    *out = NULL;
    GG_TRY(gg_calloc(1, sizeof *made, "sums of MPI", &made));
    made->comm = MPI_COMM_NULL;
    if (members == NULL) {
        GG_TRY_MPI(MPI_Comm_dup, comm, &made->comm);
    } else {
        GG_TRY_MPI(MPI_Comm_group, comm, &all);
        GG_TRY_MPI(MPI_Group_incl, all, count, members, &some);
        GG_TRY_MPI(MPI_Comm_create_group, comm, some, TAG_SUMS, &made->comm);
    }
    GG_TRY_MPI(MPI_Comm_set_errhandler, made->comm, MPI_ERRORS_RETURN);
    GG_TRY_MPI(MPI_Comm_size, made->comm, &made->sums.ranks);
    *out = &made->sums;
    made = NULL;
cleanup:
    if (some != MPI_GROUP_NULL) (void)MPI_Group_free(&some);
    if (all != MPI_GROUP_NULL) (void)MPI_Group_free(&all);
    if (made != NULL) gg_mpi_sums_destroy(&made->sums, false);
    return status;
}

void gg_mpi_sums_destroy(gg_sums *sums, bool touch_mpi) {
    mpi_sums *own = (mpi_sums *)sums;
    if (own == NULL) return;
    if (touch_mpi && own->comm != MPI_COMM_NULL) (void)MPI_Comm_free(&own->comm);
    gg_free(own);
}

int gg_mpi_sums_start(gg_sums *sums, float *data, int count, MPI_Request *request) {
    return MPI_Iallreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, ((mpi_sums *)sums)->comm, request);
}
