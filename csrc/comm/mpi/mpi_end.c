/* The end of a rank, and how the other ranks detect it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "comm/mpi/mpi_private.h"
#include "comm/mpi/mpi_transport.h"

/* A rank that ends waits in gg_mpi_stop for all others, because MPI_Finalize does. A rank that waits for a message from
 * it would wait without end. So a rank that has waited for about a second sends a question, which a rank that has ended
 * answers. These messages use a separate communicator. */
#define TAG_QUESTION 1
#define TAG_ANSWER 2

/* What this rank knows of another. */
typedef enum knowledge { NOT_ASKED = 0, ASKED, ENDED } knowledge;

static MPI_Comm questions = MPI_COMM_NULL; /* all ranks of the world */
static unsigned char *known;               /* of each rank of the world: a `knowledge` */
static int world_size;
static char empty;

gg_status gg_mpi_questions_open(void) {
    gg_status status = GG_OK;
    GG_TRY_MPI(MPI_Comm_dup, MPI_COMM_WORLD, &questions);
    GG_TRY_MPI(MPI_Comm_set_errhandler, questions, MPI_ERRORS_RETURN);
    GG_TRY_MPI(MPI_Comm_size, questions, &world_size);
    GG_TRY(gg_calloc((size_t)world_size, 1, "what is known of each rank", &known));
cleanup:
    return status;
}

/* Sends an empty message, which MPI buffers. */
static gg_status question_send(int rank, int tag) {
    gg_status status = GG_OK;
    MPI_Request request = MPI_REQUEST_NULL;
    GG_TRY_MPI(MPI_Isend, &empty, 0, MPI_BYTE, rank, tag, questions, &request);
    GG_TRY_MPI(MPI_Request_free, &request);
cleanup:
    return status;
}

/* Receives such a message, if there is one. *rank: its sender; unchanged if there is none. */
static gg_status question_receive(int from, int tag, int *rank) {
    gg_status status = GG_OK;
    MPI_Status found;
    int flag = 0;
    GG_TRY_MPI(MPI_Iprobe, from, tag, questions, &flag, &found);
    if (!flag) goto cleanup;
    GG_TRY_MPI(MPI_Recv, &empty, 0, MPI_BYTE, found.MPI_SOURCE, tag, questions, MPI_STATUS_IGNORE);
    *rank = found.MPI_SOURCE;
cleanup:
    return status;
}

gg_status gg_mpi_check_rank(MPI_Comm comm, int peer) {
    gg_status status = GG_OK;
    MPI_Group ours = MPI_GROUP_NULL, all = MPI_GROUP_NULL;
    int rank = MPI_UNDEFINED, answered = -1, own = 0;
    if (questions == MPI_COMM_NULL) goto cleanup; /* MPI was started elsewhere */
    GG_TRY_MPI(MPI_Comm_group, comm, &ours);
    GG_TRY_MPI(MPI_Comm_group, questions, &all);
    GG_TRY_MPI(MPI_Group_translate_ranks, ours, 1, &peer, all, &rank);
    GG_TRY_MPI(MPI_Comm_rank, comm, &own);
    if (rank == MPI_UNDEFINED || peer == own) goto cleanup;
    if (known[rank] == ENDED) {
        /* Its answer arrived some time ago, and all that it had sent before has arrived since. */
        status =
            gg_fail(GG_ERROR_COMM,
                    "rank %d waits for rank %d, which has ended; all ranks make the same collective calls", own, peer);
    } else if (known[rank] == NOT_ASKED) {
        GG_TRY(question_send(rank, TAG_QUESTION));
        known[rank] = ASKED;
    } else {
        GG_TRY(question_receive(rank, TAG_ANSWER, &answered));
        if (answered >= 0) known[rank] = ENDED;
    }
cleanup:
    if (ours != MPI_GROUP_NULL) (void)MPI_Group_free(&ours);
    if (all != MPI_GROUP_NULL) (void)MPI_Group_free(&all);
    return status;
}

gg_status gg_mpi_check_ranks(MPI_Comm comm) {
    gg_status status = GG_OK;
    int size = 0;
    GG_TRY_MPI(MPI_Comm_size, comm, &size);
    for (int peer = 0; peer < size; ++peer) GG_TRY(gg_mpi_check_rank(comm, peer));
cleanup:
    return status;
}

gg_status gg_mpi_questions_answer(void) {
    gg_status status = GG_OK;
    int rank = -1;
    if (questions == MPI_COMM_NULL) goto cleanup;
    GG_TRY(question_receive(MPI_ANY_SOURCE, TAG_QUESTION, &rank));
    if (rank >= 0) GG_TRY(question_send(rank, TAG_ANSWER));
cleanup:
    return status;
}

void gg_mpi_questions_close(void) {
    if (questions != MPI_COMM_NULL) (void)MPI_Comm_free(&questions);
    gg_free(known);
    known = NULL;
}

/* A variable of the launcher, and its value as it was when MPI started here. */
typedef struct launcher_variable {
    const char *name;
    char kept[2048];
} launcher_variable;

static launcher_variable of_folder = {.name = "PMIX_SERVER_TMPDIR"}, of_job = {.name = "PMIX_NAMESPACE"};

static void launcher_keep(launcher_variable *variable) {
    const char *value = getenv(variable->name);
    if (value != NULL && strlen(value) < sizeof variable->kept) strcpy(variable->kept, value);
}

void gg_mpi_keep_launcher(void) {
    launcher_keep(&of_folder);
    launcher_keep(&of_job);
}

static const char *launcher_value(const launcher_variable *variable) {
    const char *value = getenv(variable->name);
    return value != NULL ? value : variable->kept;
}

/* The launcher creates a folder per job on every host, and removes it. A file there shows that a rank has reported,
 * however slow the others are. */
bool gg_mpi_first_of_host(const char *what) {
    const char *folder = launcher_value(&of_folder), *job = launcher_value(&of_job);
    char path[4096];
    if (*folder == '\0' || *job == '\0') return true;
    int length = snprintf(path, sizeof path, "%s/gossipgrad-%s-%s", folder, what, job);
    if (length < 0 || (size_t)length >= sizeof path) return true;
    for (char *at = path + strlen(folder) + 1; *at != '\0'; ++at)
        if (*at == '/') *at = '-';
    const int file = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (file < 0) return errno != EEXIST; /* another error: we cannot write to the folder */
    close(file);
    return true;
}

bool gg_mpi_first_to_report(void) { return gg_mpi_first_of_host("reported"); }
