#include "comm/mpi/mpi_halt.h"

#include "base/memory.h"
#include "comm/mpi/mpi_private.h"

#define TAG_LIMIT 1

/* A rank's message, once a round. */
typedef struct limit {
    int64_t round, step;
} limit;

struct gg_mpi_halt {
    MPI_Comm comm; /* its own: whatever else is sent, and in which order, does not matter */
    int rank, size;
    int64_t round; /* the last one that has begun */
    bool begun;    /* and has not ended */
    bool told;     /* this rank's limit, which `next` then stays */
    int64_t next;  /* the step that it trains to */
    int64_t most;  /* the greatest limit that is known, */
    int known;     /* of so many */
    limit own;     /* as it is sent: MPI reads it until all of `sent` are complete */
    MPI_Request *sent;
};

gg_status gg_mpi_halt_create(MPI_Comm comm, gg_mpi_halt **out) {
    gg_status status = GG_OK;
    gg_mpi_halt *made = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "where ranks stop", &made));
    made->comm = MPI_COMM_NULL;
    GG_TRY_MPI_CLEANUP(MPI_Comm_dup, comm, &made->comm);
    GG_TRY_MPI_CLEANUP(MPI_Comm_set_errhandler, made->comm, MPI_ERRORS_RETURN);
    GG_TRY_MPI_CLEANUP(MPI_Comm_rank, made->comm, &made->rank);
    GG_TRY_MPI_CLEANUP(MPI_Comm_size, made->comm, &made->size);
    GG_TRY_CLEANUP(gg_alloc((size_t)made->size * sizeof(MPI_Request), "where ranks stop", &made->sent));
    for (int rank = 0; rank < made->size; ++rank) made->sent[rank] = MPI_REQUEST_NULL;
    *out = made;
    made = NULL;
cleanup:
    gg_mpi_halt_destroy(made, false);
    return status;
}

void gg_mpi_halt_destroy(gg_mpi_halt *halt, bool touch_mpi) {
    bool idle = true;
    if (halt == NULL) return;
    if (touch_mpi) {
        gg_mpi_halt_end(halt);
        if (gg_mpi_halt_idle(halt, &idle) != GG_OK) idle = false;
        (void)MPI_Comm_free(&halt->comm);
    } else {
        idle = !halt->told;
    }
    if (!idle) return; /* MPI may still read it */
    gg_free(halt->sent);
    gg_free(halt);
}

int64_t gg_mpi_halt_round(const gg_mpi_halt *halt) { return halt->round; }

void gg_mpi_halt_begin(gg_mpi_halt *halt, int64_t round, int64_t step) {
    halt->round = round;
    halt->begun = true;
    halt->told = false;
    halt->next = halt->most = step;
    halt->known = 0;
}

void gg_mpi_halt_end(gg_mpi_halt *halt) { halt->begun = false; }

static void learn(gg_mpi_halt *halt, int64_t step) {
    halt->known++;
    if (step > halt->most) halt->most = step;
}

static gg_status tell(gg_mpi_halt *halt) {
    halt->told = true;
    halt->own = (limit){.round = halt->round, .step = halt->next};
    learn(halt, halt->next);
    for (int rank = 0; rank < halt->size; ++rank)
        if (rank != halt->rank)
            GG_TRY_MPI(MPI_Isend, &halt->own, (int)sizeof halt->own, MPI_BYTE, rank, TAG_LIMIT, halt->comm,
                       &halt->sent[rank]);
    return GG_OK;
}

gg_status gg_mpi_halt_listen(gg_mpi_halt *halt) {
    MPI_Status found;
    int flag = 0;
    if (halt == NULL) return GG_OK;
    for (;;) {
        limit other;
        GG_TRY_MPI(MPI_Iprobe, MPI_ANY_SOURCE, TAG_LIMIT, halt->comm, &flag, &found);
        if (!flag) break;
        GG_TRY_MPI(MPI_Recv, &other, (int)sizeof other, MPI_BYTE, found.MPI_SOURCE, TAG_LIMIT, halt->comm,
                   MPI_STATUS_IGNORE);
        if (halt->begun && other.round == halt->round) learn(halt, other.step);
    }
    if (halt->begun && halt->known > 0 && !halt->told) GG_TRY(tell(halt));
    return GG_OK;
}

gg_status gg_mpi_halt_idle(gg_mpi_halt *halt, bool *idle) {
    bool all = true;
    GG_TRY(gg_mpi_halt_listen(halt));
    for (int i = 0; i < halt->size; ++i) {
        int flag = 0;
        GG_TRY_MPI(MPI_Test, &halt->sent[i], &flag, MPI_STATUS_IGNORE);
        all = all && flag;
    }
    *idle = all;
    return GG_OK;
}

gg_status gg_mpi_halt_look(gg_mpi_halt *halt, int64_t next, bool want) {
    if (!halt->told) halt->next = next;
    GG_TRY(gg_mpi_halt_listen(halt));
    if (want && halt->begun && !halt->told) GG_TRY(tell(halt));
    return GG_OK;
}

bool gg_mpi_halt_waits(const gg_mpi_halt *halt, int64_t step) {
    return halt->told && halt->known < halt->size && step >= halt->next;
}

int64_t gg_mpi_halt_until(const gg_mpi_halt *halt, int64_t next) {
    const int64_t end = halt->known < halt->size ? halt->next : halt->most;
    return halt->told && end < next ? end : next;
}
