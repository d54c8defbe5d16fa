#include "comm/mpi/mpi_sums.h"

#include <limits.h>

#include "base/memory.h"
#include "comm/mpi/mpi_private.h"

#define TAG_SUMS (GG_TAG_LIMIT + 2) /* of the messages by which MPI makes a communicator of some ranks */

/* A communicator of its own: MPI matches collectives by their order on a communicator alone. */
typedef struct mpi_sums {
    gg_sums sums; /* first: a gg_sums is cast to this */
    MPI_Comm comm;
    /* For more values than an int holds: blocks of them, and MPI_SUM for blocks. NULL handles until they are needed. */
    MPI_Datatype block;
    MPI_Op add;
} mpi_sums;

static void add_blocks(void *from, void *to, int *count, MPI_Datatype *type) {
    const float *restrict x = from;
    float *restrict y = to;
    (void)type;
    for (size_t i = 0, n = (size_t)*count * GG_MPI_SUMS_BLOCK; i < n; ++i) y[i] += x[i];
}

gg_status gg_mpi_sums_create(MPI_Comm comm, const int *members, int count, gg_sums **out) {
    gg_status status = GG_OK;
    mpi_sums *made = NULL;
    MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "sums of MPI", &made));
    made->comm = MPI_COMM_NULL;
    made->block = MPI_DATATYPE_NULL;
    made->add = MPI_OP_NULL;
    if (members == NULL) {
        GG_TRY_MPI_CLEANUP(MPI_Comm_dup, comm, &made->comm);
    } else {
        GG_TRY_MPI_CLEANUP(MPI_Comm_group, comm, &all);
        GG_TRY_MPI_CLEANUP(MPI_Group_incl, all, count, members, &some);
        GG_TRY_MPI_CLEANUP(MPI_Comm_create_group, comm, some, TAG_SUMS, &made->comm);
    }
    GG_TRY_MPI_CLEANUP(MPI_Comm_set_errhandler, made->comm, MPI_ERRORS_RETURN);
    GG_TRY_MPI_CLEANUP(MPI_Comm_size, made->comm, &made->sums.ranks);
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
    if (touch_mpi && own->block != MPI_DATATYPE_NULL) (void)MPI_Type_free(&own->block);
    if (touch_mpi && own->add != MPI_OP_NULL) (void)MPI_Op_free(&own->add);
    gg_free(own);
}

static int make_blocks(mpi_sums *own) {
    int code = MPI_SUCCESS;
    if (own->block == MPI_DATATYPE_NULL) {
        code = MPI_Type_contiguous(GG_MPI_SUMS_BLOCK, MPI_FLOAT, &own->block);
        if (code == MPI_SUCCESS) code = MPI_Type_commit(&own->block);
    }
    if (code == MPI_SUCCESS && own->add == MPI_OP_NULL) code = MPI_Op_create(add_blocks, true, &own->add);
    return code;
}

int gg_mpi_sums_start(gg_sums *sums, float *data, size_t count, size_t most, MPI_Request *request) {
    mpi_sums *own = (mpi_sums *)sums;
    if (count <= most) return MPI_Iallreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, own->comm, request);
    const size_t blocks = count / GG_MPI_SUMS_BLOCK;
    if (count % GG_MPI_SUMS_BLOCK != 0 || blocks > INT_MAX) return MPI_ERR_COUNT;
    const int code = make_blocks(own);
    if (code != MPI_SUCCESS) return code;
    return MPI_Iallreduce(MPI_IN_PLACE, data, (int)blocks, own->block, own->add, own->comm, request);
}
