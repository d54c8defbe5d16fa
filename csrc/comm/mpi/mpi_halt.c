/* Limits of ranks that stop together, as messages of MPI. */
#include "base/memory.h"
#include "comm/mpi/mpi_private.h"

#define TAG_LIMIT 1

struct gg_mpi_limits {
    MPI_Comm comm; /* its own: whatever else is sent, and in which order, does not matter */
    int rank, size;
    MPI_Request *sent;
    gg_halt *halt;
};

static gg_status limits_tell(void *context, const gg_halt_limit *limit) {
    const gg_mpi_limits *limits = context;
    for (int rank = 0; rank < limits->size; ++rank)
        if (rank != limits->rank)
            GG_TRY_MPI(MPI_Isend, limit, (int)sizeof *limit, MPI_BYTE, rank, TAG_LIMIT, limits->comm,
                       &limits->sent[rank]);
    return GG_OK;
}

static gg_status limits_hear(void *context, gg_halt_limit *limit, bool *heard) {
    const gg_mpi_limits *limits = context;
    MPI_Status found;
    int flag = 0;
    GG_TRY_MPI(MPI_Iprobe, MPI_ANY_SOURCE, TAG_LIMIT, limits->comm, &flag, &found);
    *heard = flag != 0;
    if (flag)
        GG_TRY_MPI(MPI_Recv, limit, (int)sizeof *limit, MPI_BYTE, found.MPI_SOURCE, TAG_LIMIT, limits->comm,
                   MPI_STATUS_IGNORE);
    return GG_OK;
}

static gg_status limits_are_idle(void *context, bool *idle) {
    const gg_mpi_limits *limits = context;
    for (int rank = 0; rank < limits->size; ++rank) {
        int flag = 0;
        GG_TRY_MPI(MPI_Test, &limits->sent[rank], &flag, MPI_STATUS_IGNORE);
        *idle = *idle && flag;
    }
    return GG_OK;
}

gg_status gg_mpi_limits_create(MPI_Comm comm, gg_mpi_limits **out) {
    static const gg_halt_wire wire = {.tell = limits_tell, .hear = limits_hear, .is_idle = limits_are_idle};
    gg_status status = GG_OK;
    gg_mpi_limits *made = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "where ranks stop", &made));
    made->comm = MPI_COMM_NULL;
    GG_TRY_MPI_CLEANUP(MPI_Comm_dup, comm, &made->comm);
    GG_TRY_MPI_CLEANUP(MPI_Comm_set_errhandler, made->comm, MPI_ERRORS_RETURN);
    GG_TRY_MPI_CLEANUP(MPI_Comm_rank, made->comm, &made->rank);
    GG_TRY_MPI_CLEANUP(MPI_Comm_size, made->comm, &made->size);
    GG_TRY_CLEANUP(gg_alloc((size_t)made->size * sizeof(MPI_Request), "where ranks stop", &made->sent));
    for (int rank = 0; rank < made->size; ++rank) made->sent[rank] = MPI_REQUEST_NULL;
    GG_TRY_CLEANUP(gg_halt_create(made->rank, made->size, &wire, made, &made->halt));
    *out = made;
    made = NULL;
cleanup:
    gg_mpi_limits_destroy(made, false);
    return status;
}

void gg_mpi_limits_destroy(gg_mpi_limits *limits, bool touch_mpi) {
    if (limits == NULL) return;
    const bool idle = gg_halt_destroy(limits->halt, touch_mpi);
    if (touch_mpi) (void)MPI_Comm_free(&limits->comm);
    if (!idle) return; /* MPI may still read and write it */
    gg_free(limits->sent);
    gg_free(limits);
}

gg_halt *gg_mpi_limits_halt(const gg_mpi_limits *limits) { return limits != NULL ? limits->halt : NULL; }
