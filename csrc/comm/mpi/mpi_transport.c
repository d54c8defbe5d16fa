#include "comm/mpi/mpi_transport.h"

#include <limits.h>
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/mpi/mpi_private.h"
#include "comm/mpi/mpi_shared.h"
#include "comm/mpi/mpi_sums.h"

/* A tag above all others, on which nothing is ever sent: asking for it drives MPI's progress. */
#define TAG_NOBODY (GG_TAG_LIMIT + 1)

/* On the wire a tag carries the number of its epoch modulo `epochs`, in steps that leave room for mpi_sums.c's. */
#define TAG_STEP (GG_TAG_LIMIT + 3)
#define MAX_EPOCHS 64

/* A request's private words. */
typedef struct __attribute__((may_alias)) request_link {
    MPI_Request mpi;
    bool as_it_is;                   /* it is neither described nor read */
    bool described;                  /* the message is a descriptor with the following content */
    gg_shared_descriptor descriptor; /* lives here until MPI has sent it */
} request_link;

_Static_assert(sizeof(request_link) <= sizeof((gg_request *)0)->private_, "request_link must fit");

typedef struct mpi_transport {
    gg_transport transport; /* first: a gg_transport is cast to this */
    MPI_Comm comm;
    gg_shared *shared;
    gg_mpi_limits *limits; /* NULL: there is one rank */
    int *node_of;          /* transport.node_of */
    int64_t group;         /* its number (mpi_private.h) */
    size_t most;           /* bytes of a piece; a larger message is several pieces and a rest */
    int epochs;            /* that tags tell from each other; 1: none */
    /* A wait has seen a message of another epoch; one that still sees it a second later has waited in vain. Before
     * that, the awaited message may have just come: a barrier, after which a peer has begun the next epoch. */
    bool foreign;
    int64_t foreign_epoch; /* of this rank, when it was seen */
    bool broken;           /* a call failed: collective clean-up might wait for ever */
    bool unfinished;       /* a sum was abandoned: MPI may still write its memory, so no message memory is freed */
} mpi_transport;

static request_link *link_of(gg_request *request) { return (request_link *)request->private_; }
static mpi_transport *mpi_of(gg_transport *transport) { return (mpi_transport *)transport; }

/* Names the message in MPI's own error. */
static gg_status mpi_check(gg_transport *transport, int code, const char *function, const gg_request *request) {
    if (code == MPI_SUCCESS) return GG_OK;
    mpi_of(transport)->broken = true;
    if (request->state == GG_REQUEST_SUMMING)
        return gg_error_prefix(gg_mpi_check(code, function), "rank %d: sum of %zu values: ", transport->rank,
                               request->bytes / sizeof(float));
    return gg_error_prefix(gg_mpi_check(code, function), "rank %d: %zu bytes %s rank %d with tag %d: ", transport->rank,
                           request->bytes, request->state == GG_REQUEST_SENDING ? "to" : "from", request->peer,
                           request->tag);
}

/* Extent of a message for MPI: `count` elements of a type; count fits an int. */
typedef struct extent {
    MPI_Datatype type;
    int count;
} extent;

/* MPI retains the type for as long as a message in flight needs it. */
static void extent_free(extent *e) {
    if (e->type != MPI_BYTE && e->type != MPI_DATATYPE_NULL) (void)MPI_Type_free(&e->type);
}

/* A message larger than a piece is one element of a type of its own: pieces, and the rest behind them. */
static gg_status extent_make(gg_transport *transport, size_t bytes, extent *out) {
    gg_status status = GG_OK;
    const size_t most = mpi_of(transport)->most, pieces = bytes / most, rest = bytes % most;
    MPI_Datatype parts[2] = {MPI_DATATYPE_NULL, MPI_BYTE};
    if (bytes <= most) {
        *out = (extent){MPI_BYTE, (int)bytes};
        goto cleanup;
    }
    const int count[2] = {(int)pieces, (int)rest};
    const MPI_Aint begin[2] = {0, (MPI_Aint)(bytes - rest)};
    *out = (extent){MPI_DATATYPE_NULL, 1};
    GG_TRY_MPI_CLEANUP(MPI_Type_contiguous, (int)most, MPI_BYTE, &parts[0]);
    GG_TRY_MPI_CLEANUP(MPI_Type_create_struct, rest > 0 ? 2 : 1, count, begin, parts, &out->type);
    GG_TRY_MPI_CLEANUP(MPI_Type_commit, &out->type);
cleanup:
    if (status != GG_OK) extent_free(out);
    if (parts[0] != MPI_DATATYPE_NULL) (void)MPI_Type_free(&parts[0]);
    return status;
}

static void mpi_destroy(gg_transport *transport) {
    mpi_transport *own = mpi_of(transport);
    int finalised = 0;
    bool touch = MPI_Finalized(&finalised) == MPI_SUCCESS && !finalised && !own->broken;
    if (!own->unfinished) gg_shared_destroy(own->shared, touch);
    gg_mpi_limits_destroy(own->limits, touch);
    if (touch && own->comm != MPI_COMM_NULL) (void)MPI_Comm_free(&own->comm);
    gg_free(own->node_of);
    gg_free(own);
}

static gg_status mpi_alloc(gg_transport *transport, size_t bytes, const char *what, void **out) {
    gg_status status = gg_shared_alloc(mpi_of(transport)->shared, bytes, what, transport->timeout, out);
    if (status == GG_ERROR_COMM) mpi_of(transport)->broken = true;
    if (status != GG_OK || *out) return status;
    return gg_calloc(1, bytes, what, out);
}

static void mpi_free_block(gg_transport *transport, void *block) {
    if (mpi_of(transport)->unfinished) return;
    if (!gg_shared_free(mpi_of(transport)->shared, block)) gg_free(block);
}

static void mpi_recycle(gg_transport *transport, bool on) { gg_shared_recycle(mpi_of(transport)->shared, on); }

static int wire_tag(const mpi_transport *own, const gg_request *request) {
    return request->tag + (int)(request->epoch % own->epochs) * TAG_STEP;
}

static gg_status mpi_send(gg_transport *transport, const void *data, size_t bytes, int peer, int tag,
                          gg_request *request) {
    mpi_transport *own = mpi_of(transport);
    request_link *link = link_of(request);
    gg_status status = GG_OK;
    extent e;
    (void)tag; /* the request's */
    *link = (request_link){.mpi = MPI_REQUEST_NULL, .as_it_is = transport->as_it_is};
    if (!link->as_it_is)
        GG_TRY(gg_shared_describe(own->shared, peer, data, bytes, &link->described, &link->descriptor));
    if (link->described) {
        data = &link->descriptor;
        bytes = sizeof link->descriptor;
    }
    GG_TRY(extent_make(transport, bytes, &e));
    status = mpi_check(transport, MPI_Isend(data, e.count, e.type, peer, wire_tag(own, request), own->comm, &link->mpi),
                       "MPI_Isend", request);
    extent_free(&e);
    return status;
}

static gg_status mpi_receive(gg_transport *transport, void *landing, size_t capacity, int peer, int tag,
                             gg_request *request) {
    mpi_transport *own = mpi_of(transport);
    request_link *link = link_of(request);
    gg_status status = GG_OK;
    extent e;
    (void)tag; /* the request's */
    *link = (request_link){.mpi = MPI_REQUEST_NULL, .as_it_is = transport->as_it_is};
    GG_TRY(extent_make(transport, capacity, &e)); /* MPI fills as much of it as comes */
    status =
        mpi_check(transport, MPI_Irecv(landing, e.count, e.type, peer, wire_tag(own, request), own->comm, &link->mpi),
                  "MPI_Irecv", request);
    extent_free(&e);
    return status;
}

/* A message that is longer than its landing. */
static gg_status too_long(gg_transport *transport, const gg_request *request, unsigned long long received, bool more) {
    return gg_fail(GG_ERROR_COMM, "rank %d: message from rank %d with tag %d: expected %s%zu bytes, received %s%llu",
                   transport->rank, request->peer, request->tag, request->exact ? "" : "at most ", request->capacity,
                   more ? "more than " : "", received);
}

/* MPI has the message: is it the payload, or a descriptor that says where it lies? */
static gg_status mpi_arrived(gg_transport *transport, gg_request *request, const MPI_Status *result) {
    gg_status status = GG_OK;
    mpi_transport *own = mpi_of(transport);
    request_link *link = link_of(request);
    MPI_Count count = 0; /* of bytes; MPI_Get_count's is an int */
    status = mpi_check(transport, MPI_Get_elements_x(result, MPI_BYTE, &count), "MPI_Get_elements_x", request);
    if (status != GG_OK) return status;
    request->data = request->landing;
    if (!link->as_it_is && gg_shared_is_descriptor(own->shared, request->peer, request->landing, (size_t)count)) {
        memcpy(&link->descriptor, request->landing, sizeof link->descriptor);
        GG_TRY(gg_shared_locate(own->shared, request->peer, &link->descriptor, &request->data));
        if (link->descriptor.bytes > request->capacity) {
            return too_long(transport, request, link->descriptor.bytes, false);
        }
        link->described = true;
        count = (MPI_Count)link->descriptor.bytes;
    }
    request->bytes = (size_t)count;
    request->when = gg_clock_now();
    request->state = GG_REQUEST_ARRIVED;
    return status;
}

static gg_status mpi_progress(gg_transport *transport) {
    mpi_transport *own = mpi_of(transport);
    int flag = 0;
    int code = MPI_Iprobe(MPI_ANY_SOURCE, TAG_NOBODY, own->comm, &flag, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) own->broken = true;
    return gg_mpi_check(code, "MPI_Iprobe");
}

static gg_status mpi_test(gg_transport *transport, gg_request *request, bool *done) {
    gg_status status = GG_OK;
    mpi_transport *own = mpi_of(transport);
    request_link *link = link_of(request);
    MPI_Status result;
    int flag = 1;
    *done = false;
    bool pending = link->mpi != MPI_REQUEST_NULL;
    if (pending) {
        int code = MPI_Test(&link->mpi, &flag, &result);
        int class = MPI_SUCCESS;
        if (code != MPI_SUCCESS && request->state == GG_REQUEST_RECEIVING &&
            MPI_Error_class(code, &class) == MPI_SUCCESS && class == MPI_ERR_TRUNCATE) {
            status = too_long(transport, request, request->capacity, true);
            own->broken = true;
            return status;
        }
        GG_TRY(mpi_check(transport, code, "MPI_Test", request));
    }
    if (!flag) return status;
    if (request->state == GG_REQUEST_RECEIVING) {
        GG_TRY(mpi_arrived(transport, request, &result));
    } else {
        if (link->described && !gg_shared_acknowledged(own->shared, link->descriptor.slot)) {
            if (!pending) GG_TRY(mpi_progress(transport)); /* needed: peers may wait for other messages of this rank */
            return status;
        }
        request->state = GG_REQUEST_IDLE;
    }
    *done = true;
    return status;
}

static gg_status mpi_release(gg_transport *transport, gg_request *request) {
    const request_link *link = link_of(request);
    if (link->described) gg_shared_acknowledge(mpi_of(transport)->shared, &link->descriptor);
    return GG_OK;
}

static void mpi_cancel(gg_transport *transport, gg_request *request) {
    mpi_transport *own = mpi_of(transport);
    request_link *link = link_of(request);
    int finalised = 0;
    bool touch = MPI_Finalized(&finalised) == MPI_SUCCESS && !finalised && link->mpi != MPI_REQUEST_NULL;
    int unused = 0; /* a receive without a matching message */
    if (request->state == GG_REQUEST_ARRIVED) {
        (void)mpi_release(transport, request);
    } else if (request->state == GG_REQUEST_RECEIVING && touch) {
        /* Cancelling a receive is local: after the wait nothing is written to its landing any more. */
        MPI_Status result;
        if (MPI_Cancel(&link->mpi) != MPI_SUCCESS || MPI_Wait(&link->mpi, &result) != MPI_SUCCESS ||
            MPI_Test_cancelled(&result, &unused) != MPI_SUCCESS)
            unused = 0;
    } else if (request->state == GG_REQUEST_SENDING && touch) {
        (void)MPI_Request_free(&link->mpi); /* its slot, if it has one, is not used again */
    } else if (request->state == GG_REQUEST_SUMMING && touch) {
        /* Neither cancelled nor freed: MPI forbids it for a collective. */
        own->unfinished = MPI_Test(&link->mpi, &unused, MPI_STATUS_IGNORE) != MPI_SUCCESS || !unused || own->unfinished;
    }
    if (!unused) own->broken = true;
}

static gg_status mpi_pause_round(gg_transport *transport, int round, gg_request *request) {
    gg_status status = GG_OK;
    (void)request;
    if (round % GG_HALT_LISTEN_ROUNDS == GG_HALT_LISTEN_ROUNDS - 1)
        GG_TRY_CLEANUP(gg_halt_listen(gg_mpi_limits_halt(mpi_of(transport)->limits)));
    gg_clock_back_off(round);
cleanup:
    if (status != GG_OK) mpi_of(transport)->broken = true;
    return status;
}

/* Whether the next message that nobody has received, of this peer (-1: of any rank), is one of another epoch. */
static gg_status check_epoch(gg_transport *transport, int peer) {
    mpi_transport *own = mpi_of(transport);
    const int64_t epoch = transport->epoch;
    int flag = 0;
    MPI_Status found;
    if (own->epochs < 2) return GG_OK;
    GG_TRY_MPI(MPI_Iprobe, peer >= 0 ? peer : MPI_ANY_SOURCE, MPI_ANY_TAG, own->comm, &flag, &found);
    const bool ours = flag && found.MPI_TAG % TAG_STEP < GG_TAG_LIMIT; /* not of MPI's or mpi_sums.c's own */
    const int ahead = ours ? (int)((found.MPI_TAG / TAG_STEP - epoch % own->epochs + own->epochs) % own->epochs) : 0;
    const bool again = own->foreign && own->foreign_epoch == epoch;
    own->foreign = ahead != 0;
    own->foreign_epoch = epoch;
    if (ahead != 0 && again)
        GG_TRY(gg_transport_other_epoch(transport, epoch,
                                        epoch + (ahead < own->epochs / 2 ? ahead : ahead - own->epochs),
                                        found.MPI_SOURCE, found.MPI_TAG % TAG_STEP));
    return GG_OK;
}

static gg_status mpi_check_peer(gg_transport *transport, int peer) {
    mpi_transport *own = mpi_of(transport);
    gg_status status = check_epoch(transport, peer);
    if (status == GG_OK)
        status = peer >= 0 ? gg_mpi_check_rank(own->comm, peer, own->group) : gg_mpi_check_ranks(own->comm, own->group);
    if (status != GG_OK) own->broken = true;
    return status;
}

static void mpi_step_begun(gg_transport *transport, int64_t begun) {
    gg_mpi_group_step(mpi_of(transport)->group, begun);
}

static double mpi_now(gg_transport *transport) {
    (void)transport;
    return gg_clock_now();
}

static gg_status mpi_compute(gg_transport *transport, double seconds) {
    (void)transport, (void)seconds;
    return GG_OK;
}

static gg_status mpi_idle(gg_transport *transport, double seconds) {
    (void)transport;
    gg_clock_sleep(seconds);
    return GG_OK;
}

static gg_status mpi_sums_open(gg_transport *transport, const int *members, int count, gg_sums **out) {
    return gg_mpi_sums_create(mpi_of(transport)->comm, members, count, out);
}

static void mpi_sums_close(gg_transport *transport, gg_sums *sums) {
    int finalised = 0;
    bool touch = MPI_Finalized(&finalised) == MPI_SUCCESS && !finalised && !mpi_of(transport)->broken;
    gg_mpi_sums_destroy(sums, touch);
}

static gg_status mpi_sum(gg_transport *transport, gg_sums *sums, float *data, size_t count, gg_request *request) {
    request_link *link = link_of(request);
    *link = (request_link){.mpi = MPI_REQUEST_NULL};
    const size_t most = mpi_of(transport)->most / sizeof *data;
    return mpi_check(transport, gg_mpi_sums_start(sums, data, count, most, &link->mpi), "MPI_Iallreduce", request);
}

static const gg_transport_table table = {
    .name = "mpi",
    .destroy = mpi_destroy,
    .alloc = mpi_alloc,
    .free = mpi_free_block,
    .recycle = mpi_recycle,
    .send = mpi_send,
    .receive = mpi_receive,
    .test = mpi_test,
    .release = mpi_release,
    .cancel = mpi_cancel,
    .pause = mpi_pause_round,
    .check_peer = mpi_check_peer,
    .progress = mpi_progress,
    .step_begun = mpi_step_begun,
    .now = mpi_now,
    .compute = mpi_compute,
    .idle = mpi_idle,
    .sums_open = mpi_sums_open,
    .sums_close = mpi_sums_close,
    .sum = mpi_sum,
};

/* Which ranks share memory, for all ranks. Collective. */
static gg_status find_nodes(mpi_transport *own) {
    int first = gg_shared_first(own->shared);
    GG_TRY(gg_alloc((size_t)own->transport.size * sizeof(int), "nodes of ranks", &own->node_of));
    GG_TRY_MPI(MPI_Allgather, &first, 1, MPI_INT, own->node_of, 1, MPI_INT, own->comm);
    own->transport.node_of = own->node_of;
    return GG_OK;
}

static gg_status mpi_transport_create(bool use_world, int fortran_handle, double timeout, gg_transport **out) {
    gg_status status = GG_OK;
    mpi_transport *made = NULL;
    int initialised = 0, finalised = 0, flag = 0;
    int *limit = NULL;
    *out = NULL;
    GG_TRY_MPI_CLEANUP(MPI_Initialized, &initialised);
    GG_TRY_MPI_CLEANUP(MPI_Finalized, &finalised);
    if (!initialised || finalised) {
        status = gg_fail(GG_ERROR_STATE, "MPI does not run (%s)", finalised ? "finalised" : "not started");
        goto cleanup;
    }
    MPI_Comm given = use_world ? MPI_COMM_WORLD : MPI_Comm_f2c((MPI_Fint)fortran_handle);
    if (given == MPI_COMM_NULL) {
        status = gg_fail(GG_ERROR_ARGUMENT,
                         "comm: null, as Split gives it to a process that is in none of the groups, or freed; such a "
                         "process makes no trainer");
        goto cleanup;
    }
    GG_TRY_MPI_CLEANUP(MPI_Comm_test_inter, given, &flag);
    if (flag) {
        status = gg_fail(GG_ERROR_ARGUMENT, "comm: an intercommunicator; allowed: a communicator of one group, as "
                                            "comm.Merge() makes of it");
        goto cleanup;
    }
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "MPI transport", &made));
    made->transport.table = &table;
    made->transport.timeout = timeout;
    made->most = INT_MAX;
    made->transport.reports_stalls = true;
    made->comm = MPI_COMM_NULL;
    made->transport.reads_devices = gg_mpi_reads_devices();
    made->transport.may_read_devices = true;
    GG_TRY_CLEANUP(gg_mpi_meet(given, timeout, "making the group", NULL));
    GG_TRY_CLEANUP(gg_mpi_questions_open(given));
    gg_mpi_set_stop_timeout(timeout);
    GG_TRY_MPI_CLEANUP(MPI_Comm_dup, given, &made->comm);
    GG_TRY_MPI_CLEANUP(MPI_Comm_set_errhandler, made->comm, MPI_ERRORS_RETURN);
    GG_TRY_MPI_CLEANUP(MPI_Comm_rank, made->comm, &made->transport.rank);
    GG_TRY_MPI_CLEANUP(MPI_Comm_size, made->comm, &made->transport.size);
    made->transport.identity = made->transport.rank;
    GG_TRY_MPI_CLEANUP(MPI_Comm_get_attr, made->comm, MPI_TAG_UB, &limit, &flag);
    if (flag && limit && *limit < TAG_NOBODY) {
        status = gg_fail(GG_ERROR_UNSUPPORTED, "this MPI library has tags up to %d, %d are needed", *limit, TAG_NOBODY);
        goto cleanup;
    }
    const int64_t tags = flag && limit ? (int64_t)*limit + 1 : TAG_STEP;
    made->epochs = tags / TAG_STEP < 1 ? 1 : tags / TAG_STEP > MAX_EPOCHS ? MAX_EPOCHS : (int)(tags / TAG_STEP);
    if (made->transport.size > 1) GG_TRY_CLEANUP(gg_mpi_limits_create(made->comm, &made->limits));
    GG_TRY_CLEANUP(gg_shared_create(made->comm, gg_mpi_limits_halt(made->limits), &made->shared));
    GG_TRY_CLEANUP(find_nodes(made));
    GG_TRY_CLEANUP(gg_mpi_group_open(made->comm, &made->group));
    *out = &made->transport;
    made = NULL;
cleanup:
    if (made) {
        made->broken = status == GG_ERROR_COMM;
        mpi_destroy(&made->transport);
    }
    return status;
}

gg_status gg_mpi_transport_create(bool use_world, int fortran_handle, double timeout, gg_transport **out) {
    /* Its collective calls must not mix with those of another thread's. */
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one_at_a_time);
    gg_status status = mpi_transport_create(use_world, fortran_handle, timeout, out);
    pthread_mutex_unlock(&one_at_a_time);
    return status;
}

gg_halt *gg_mpi_transport_halt(gg_transport *transport) { return gg_mpi_limits_halt(mpi_of(transport)->limits); }

void gg_mpi_transport_limit(gg_transport *transport, size_t bytes) { mpi_of(transport)->most = bytes; }
