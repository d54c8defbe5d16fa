/* The end of a rank, and how the other ranks detect it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/mpi/mpi_private.h"
#include "comm/mpi/mpi_transport.h"
#include "comm/stall.h"

/* A rank that ends waits in MPI_Finalize for all others. A rank that waits for a message from it would wait without
 * end. So a rank that has waited for about a second sends a question, which a rank that has ended answers. These
 * messages use communicators of their own: one of all ranks of the world if MPI was started here, otherwise one for
 * each group with a transport that is not part of an earlier group. */
#define TAG_QUESTION 1
#define TAG_ANSWER 2

#define BETWEEN_ANSWERS 100e-6 /* seconds */

/* Steps that a process has begun in a group. */
typedef struct group_steps {
    int64_t group; /* its number; 0 means none */
    int64_t begun;
} group_steps;

/* This process's last groups, each at its number modulo GROUPS. An answer is the whole array: it is static because MPI
 * may read it after the call that sends it. */
#define GROUPS 64
static group_steps own_steps[GROUPS];
static int64_t last_group;

typedef enum knowledge { NOT_ASKED = 0, ASKED, ENDED } knowledge;

/* Known state of another rank. */
typedef struct known_rank {
    knowledge state;
    group_steps steps; /* ENDED: in the group whose wait received the answer */
} known_rank;

typedef struct questions {
    struct questions *next;
    MPI_Comm comm;
    MPI_Request all;   /* of the barrier at which all its ranks have ended */
    known_rank *known; /* of each rank */
} questions;

static questions *first;

/* Whether all ranks of `comm` are ranks of `q`. Equal on all of them. */
static gg_status is_part(MPI_Comm comm, const questions *q, bool *part) {
    gg_status status = GG_OK;
    MPI_Group mine = MPI_GROUP_NULL, all = MPI_GROUP_NULL, both = MPI_GROUP_NULL;
    int size = 0, common = 0;
    GG_TRY_MPI_CLEANUP(MPI_Comm_group, comm, &mine);
    GG_TRY_MPI_CLEANUP(MPI_Comm_group, q->comm, &all);
    GG_TRY_MPI_CLEANUP(MPI_Group_intersection, mine, all, &both);
    GG_TRY_MPI_CLEANUP(MPI_Group_size, mine, &size);
    GG_TRY_MPI_CLEANUP(MPI_Group_size, both, &common);
    *part = size == common;
cleanup:
    if (mine != MPI_GROUP_NULL) (void)MPI_Group_free(&mine);
    if (all != MPI_GROUP_NULL) (void)MPI_Group_free(&all);
    if (both != MPI_GROUP_NULL && both != MPI_GROUP_EMPTY) (void)MPI_Group_free(&both);
    return status;
}

gg_status gg_mpi_questions_open(MPI_Comm comm) {
    gg_status status = GG_OK;
    questions *made = NULL;
    int size = 0;
    bool part = false;
    for (const questions *q = first; q != NULL && !part; q = q->next) GG_TRY_CLEANUP(is_part(comm, q, &part));
    if (part) goto cleanup;
    GG_TRY_MPI_CLEANUP(MPI_Comm_size, comm, &size);
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "questions", &made));
    GG_TRY_CLEANUP(gg_calloc((size_t)size, sizeof *made->known, "known state of each rank", &made->known));
    GG_TRY_MPI_CLEANUP(MPI_Comm_dup, comm, &made->comm);
    GG_TRY_MPI_CLEANUP(MPI_Comm_set_errhandler, made->comm, MPI_ERRORS_RETURN);
    made->all = MPI_REQUEST_NULL;
    made->next = first;
    first = made;
    made = NULL;
cleanup:
    if (made != NULL) gg_free(made->known);
    gg_free(made);
    return status;
}

gg_status gg_mpi_group_open(MPI_Comm comm, int64_t *group) {
    const int64_t next = last_group + 1;
    GG_TRY_MPI(MPI_Allreduce, &next, group, 1, MPI_INT64_T, MPI_MAX, comm);
    last_group = *group;
    gg_mpi_group_step(*group, 0);
    return GG_OK;
}

void gg_mpi_group_step(int64_t group, int64_t begun) {
    own_steps[group % GROUPS] = (group_steps){.group = group, .begun = begun};
}

/* Its steps among those of one process; none if the process has made too many groups since. */
static group_steps steps_in(const group_steps *all, int64_t group) {
    const group_steps found = all[group % GROUPS];
    return found.group == group ? found : (group_steps){0};
}

/* A question is empty; an answer has all groups' steps. */
static gg_status question_send(const questions *q, int rank, int tag) {
    MPI_Request request = MPI_REQUEST_NULL;
    const int bytes = tag == TAG_ANSWER ? (int)sizeof own_steps : 0;
    GG_TRY_MPI(MPI_Isend, own_steps, bytes, MPI_BYTE, rank, tag, q->comm, &request);
    GG_TRY_MPI(MPI_Request_free, &request);
    return GG_OK;
}

/* Receives such a message, if there is one. *rank: its sender; unchanged if there is none. `steps` receives an answer's
 * array. */
static gg_status question_receive(const questions *q, int from, int tag, int *rank, group_steps *steps) {
    MPI_Status found;
    int flag = 0;
    GG_TRY_MPI(MPI_Iprobe, from, tag, q->comm, &flag, &found);
    if (!flag) return GG_OK;
    GG_TRY_MPI(MPI_Recv, steps, tag == TAG_ANSWER ? (int)sizeof own_steps : 0, MPI_BYTE, found.MPI_SOURCE, tag, q->comm,
               MPI_STATUS_IGNORE);
    *rank = found.MPI_SOURCE;
    return GG_OK;
}

/* The rank in `q` of rank `peer` of `comm`; MPI_UNDEFINED: it is none. */
static gg_status rank_in(const questions *q, MPI_Comm comm, int peer, int *rank) {
    gg_status status = GG_OK;
    MPI_Group ours = MPI_GROUP_NULL, all = MPI_GROUP_NULL;
    GG_TRY_MPI_CLEANUP(MPI_Comm_group, comm, &ours);
    GG_TRY_MPI_CLEANUP(MPI_Comm_group, q->comm, &all);
    GG_TRY_MPI_CLEANUP(MPI_Group_translate_ranks, ours, 1, &peer, all, rank);
cleanup:
    if (ours != MPI_GROUP_NULL) (void)MPI_Group_free(&ours);
    if (all != MPI_GROUP_NULL) (void)MPI_Group_free(&all);
    return status;
}

/* The error of a wait for a rank that has ended, with both numbers of steps if they are known. */
static gg_status fail_ended(int own, int peer, const group_steps *theirs, int64_t group) {
    const group_steps ours = steps_in(own_steps, group);
    char steps[96] = "";
    if (group > 0 && theirs->group == group && ours.group == group && (ours.begun > 0 || theirs->begun > 0))
        snprintf(steps, sizeof steps, " (steps begun: %lld on rank %d; %lld on rank %d)", (long long)ours.begun, own,
                 (long long)theirs->begun, peer);
    return gg_fail(GG_ERROR_COMM,
                   "rank %d waits for rank %d, which has ended%s; all ranks make the same collective calls", own, peer,
                   steps);
}

gg_status gg_mpi_check_rank(MPI_Comm comm, int peer, int64_t group) {
    gg_status status = GG_OK;
    int rank = MPI_UNDEFINED, answered = -1, own = 0;
    group_steps steps[GROUPS];
    const questions *q = first;
    GG_TRY_MPI(MPI_Comm_rank, comm, &own);
    if (peer == own) return status;
    for (; q != NULL; q = q->next) {
        GG_TRY(rank_in(q, comm, peer, &rank));
        if (rank != MPI_UNDEFINED) break;
    }
    if (q == NULL) return status;
    known_rank *known = &q->known[rank];
    if (known->state == ENDED) {
        /* Its answer arrived some time ago, and all that it had sent before has arrived since. */
        status = fail_ended(own, peer, &known->steps, group);
    } else if (known->state == NOT_ASKED) {
        GG_TRY(question_send(q, rank, TAG_QUESTION));
        known->state = ASKED;
    } else {
        GG_TRY(question_receive(q, rank, TAG_ANSWER, &answered, steps));
        if (answered >= 0) *known = (known_rank){.state = ENDED, .steps = steps_in(steps, group)};
    }
    return status;
}

gg_status gg_mpi_check_ranks(MPI_Comm comm, int64_t group) {
    int size = 0;
    GG_TRY_MPI(MPI_Comm_size, comm, &size);
    for (int peer = 0; peer < size; ++peer) GG_TRY(gg_mpi_check_rank(comm, peer, group));
    return GG_OK;
}

/* Answers questions of others, and tests whether all of them have ended. */
static gg_status answer_all(bool *ended) {
    int rank, come;
    *ended = true;
    for (questions *q = first; q != NULL; q = q->next) {
        rank = -1;
        GG_TRY(question_receive(q, MPI_ANY_SOURCE, TAG_QUESTION, &rank, NULL));
        if (rank >= 0) GG_TRY(question_send(q, rank, TAG_ANSWER));
        GG_TRY_MPI(MPI_Test, &q->all, &come, MPI_STATUS_IGNORE);
        *ended = *ended && come;
    }
    return GG_OK;
}

int gg_mpi_world_rank(void) {
    int rank = 0;
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}

gg_status gg_mpi_wait_for_ends(double timeout) {
    gg_status status = GG_OK;
    bool ended = false, asked = false,
         speaks = false; /* of the ranks of a host that have ended, one reports that it waits */
    const double begin = gg_clock_now();
    double next_report = timeout > 0 ? timeout : gg_stall_seconds();
    for (questions *q = first; q != NULL; q = q->next) GG_TRY_MPI_CLEANUP(MPI_Ibarrier, q->comm, &q->all);
    for (;;) {
        GG_TRY_CLEANUP(answer_all(&ended));
        if (ended) break;
        const double waited = gg_clock_now() - begin;
        if (next_report > 0 && waited >= next_report) {
            if (!asked) speaks = gg_mpi_first_of_host("waits-at-end");
            if (speaks)
                fprintf(stderr,
                        "gossipgrad: rank %d has waited for %.0f s in MPI_Finalize for other ranks; it waits on\n",
                        gg_mpi_world_rank(), waited);
            asked = true;
            next_report = gg_stall_seconds() > 0 ? waited + GG_STALL_REPEAT * gg_stall_seconds() : 0;
        }
        gg_clock_sleep(BETWEEN_ANSWERS);
    }
cleanup:
    while (first != NULL) {
        questions *q = first;
        first = q->next;
        gg_free(q->known);
        gg_free(q);
    }
    return status;
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
