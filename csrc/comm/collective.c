#include "comm/collective.h"

#include <math.h>
#include <string.h>

/* One tag per operation suffices: messages between two ranks arrive in order, and all ranks call in the same order. */
enum { TAG_BARRIER = 1, TAG_BROADCAST, TAG_GATHER, TAG_SUM, TAG_TRANSFER, TAG_AGREE };

#define PIECE ((size_t)64 << 20) /* a broadcast goes in pieces: a message's size is an int for MPI */
#define ROUNDS 31                /* more than log2 of any group's size */
#define WINDOW 16                /* outstanding receives of the root of a sum */
#define MAX_VALUES 64            /* doubles that are summed at once */
#define CLOCK_ROUNDS 10

gg_status gg_barrier(gg_transport *transport) {
    gg_status status = GG_OK;
    gg_request request[2] = {0};
    int p = transport->size, rank = transport->rank;
    char token = 1, landing = 0;
    for (int64_t hop = 1; hop < p; hop *= 2) {
        int to = (int)((rank + hop) % p), from = (int)((rank - hop + p) % p);
        GG_TRY_CLEANUP(gg_receive_exact(transport, &landing, 1, from, TAG_BARRIER, &request[0]));
        GG_TRY_CLEANUP(gg_send(transport, &token, 1, to, TAG_BARRIER, &request[1]));
        GG_TRY_CLEANUP(gg_wait_and_copy(transport, &request[0], &landing));
        GG_TRY_CLEANUP(gg_wait_collective(transport, &request[1]));
    }
cleanup:
    if (status != GG_OK) {
        gg_cancel_all(transport, request, 2);
        gg_error_prefix(status, "barrier: ");
    }
    return status;
}

/* Sends one piece down the binomial tree. The place of a rank is its number relative to the root; the place of its
 * parent is its own place with the lowest set bit cleared. */
static gg_status broadcast_piece(gg_transport *transport, char *data, size_t bytes, int root) {
    gg_status status = GG_OK;
    gg_request up = {0}, down[ROUNDS] = {0};
    int p = transport->size, place = (transport->rank - root + p) % p, children = 0;
    int64_t bit = 1;
    while (bit < p && !(place & bit)) bit *= 2;
    if (place) {
        int parent = (int)((place - bit + root) % p);
        GG_TRY_CLEANUP(gg_receive_exact(transport, data, bytes, parent, TAG_BROADCAST, &up));
        GG_TRY_CLEANUP(gg_wait_and_copy(transport, &up, data));
    }
    for (bit /= 2; bit >= 1; bit /= 2) {
        if (place + bit >= p) continue;
        GG_TRY_CLEANUP(
            gg_send(transport, data, bytes, (int)((place + bit + root) % p), TAG_BROADCAST, &down[children]));
        children++;
    }
    for (int i = 0; i < children; ++i) GG_TRY_CLEANUP(gg_wait_collective(transport, &down[i]));
cleanup:
    if (status != GG_OK) {
        gg_cancel_all(transport, &up, 1);
        gg_cancel_all(transport, down, ROUNDS);
    }
    return status;
}

gg_status gg_broadcast(gg_transport *transport, void *data, size_t bytes, int root) {
    if (root < 0 || root >= transport->size)
        return gg_fail(GG_ERROR_ARGUMENT, "broadcast: root is %d, expected 0 to %d", root, transport->size - 1);
    for (size_t done = 0; done < bytes; done += PIECE)
        GG_TRY(gg_error_prefix(
            broadcast_piece(transport, (char *)data + done, bytes - done < PIECE ? bytes - done : PIECE, root),
            "broadcast from rank %d: ", root));
    return GG_OK;
}

/* The run of n blocks from `first` on wraps around the end: at most two parts, the same on both sides. */
static int split_run(int first, int n, int size, int begin[2], int length[2]) {
    begin[0] = first;
    length[0] = first + n <= size ? n : size - first;
    begin[1] = 0;
    length[1] = n - length[0];
    return length[1] > 0 ? 2 : 1;
}

static gg_status collective_gather_all(gg_transport *transport, const void *data, size_t bytes, int tag, void *out) {
    gg_status status = GG_OK;
    gg_request receives[2] = {0}, sends[2] = {0};
    int p = transport->size, rank = transport->rank, begin[2], length[2];
    char *blocks = out;
    if (bytes == 0) goto cleanup;
    if (blocks + (size_t)rank * bytes != data) memmove(blocks + (size_t)rank * bytes, data, bytes);
    /* Doubling: a rank that has blocks rank .. rank+hop-1 receives the next ones from rank+hop. */
    for (int64_t hop = 1; hop < p; hop *= 2) {
        int to = (int)((rank - hop + p) % p), from = (int)((rank + hop) % p);
        int n = (int)(hop < p - hop ? hop : p - hop);
        int parts = split_run(from, n, p, begin, length);
        int received[2] = {begin[0], begin[1]};
        for (int i = 0; i < parts; ++i)
            GG_TRY_CLEANUP(gg_receive_exact(transport, blocks + (size_t)begin[i] * bytes, (size_t)length[i] * bytes,
                                            from, tag, &receives[i]));
        parts = split_run(rank, n, p, begin, length);
        for (int i = 0; i < parts; ++i)
            GG_TRY_CLEANUP(
                gg_send(transport, blocks + (size_t)begin[i] * bytes, (size_t)length[i] * bytes, to, tag, &sends[i]));
        for (int i = 0; i < 2; ++i)
            GG_TRY_CLEANUP(gg_wait_and_copy(transport, &receives[i], blocks + (size_t)received[i] * bytes));
        for (int i = 0; i < 2; ++i) GG_TRY_CLEANUP(gg_wait_collective(transport, &sends[i]));
    }
cleanup:
    if (status != GG_OK) {
        gg_cancel_all(transport, receives, 2);
        gg_cancel_all(transport, sends, 2);
        gg_error_prefix(status, "%s: ", tag == TAG_AGREE ? "agreement of the ranks" : "allgather");
    }
    return status;
}

gg_status gg_allgather(gg_transport *transport, const void *data, size_t bytes, void *out) {
    return collective_gather_all(transport, data, bytes, TAG_GATHER, out);
}

gg_status gg_agree(gg_transport *transport, const void *data, size_t bytes, void *out) {
    const int64_t bytes_sent = transport->bytes_sent, messages_sent = transport->messages_sent;
    gg_status status = collective_gather_all(transport, data, bytes, TAG_AGREE, out);
    transport->bytes_sent = bytes_sent;
    transport->messages_sent = messages_sent;
    return status;
}

static gg_status sum_doubles(gg_transport *transport, double *values, int n) {
    gg_status status = GG_OK;
    gg_request request[WINDOW] = {0};
    double landing[WINDOW][MAX_VALUES];
    int p = transport->size;
    size_t bytes = (size_t)n * sizeof *values;
    if (p == 1) goto cleanup;
    if (transport->rank == 0) {
        /* Rank 0 adds in the order of ranks: the same bits as if every rank did, with 2(p-1) messages and no memory. */
        int posted = 1;
        for (int r = 1; r < p; ++r) {
            for (; posted < p && posted < r + WINDOW; ++posted)
                GG_TRY_CLEANUP(gg_receive_exact(transport, landing[posted % WINDOW], bytes, posted, TAG_SUM,
                                                &request[posted % WINDOW]));
            double *own = landing[r % WINDOW];
            GG_TRY_CLEANUP(gg_wait_and_copy(transport, &request[r % WINDOW], own));
            for (int i = 0; i < n; ++i) values[i] += own[i];
        }
    } else {
        GG_TRY_CLEANUP(gg_send(transport, values, bytes, 0, TAG_SUM, &request[0]));
        GG_TRY_CLEANUP(gg_wait_collective(transport, &request[0]));
    }
    GG_TRY_CLEANUP(gg_broadcast(transport, values, bytes, 0));
cleanup:
    if (status != GG_OK) {
        gg_cancel_all(transport, request, WINDOW);
        gg_error_prefix(status, "allreduce of %d doubles: ", n);
    }
    return status;
}

gg_status gg_allreduce_doubles(gg_transport *transport, double *values, int n) {
    if (n < 0) return gg_fail(GG_ERROR_ARGUMENT, "allreduce_doubles: n is %d, expected at least 0", n);
    for (int at = 0; at < n; at += MAX_VALUES)
        GG_TRY(sum_doubles(transport, values + at, n - at < MAX_VALUES ? n - at : MAX_VALUES));
    return GG_OK;
}

gg_status gg_transfer(gg_transport *transport, void *data, size_t bytes, int from, int to) {
    gg_status status = GG_OK;
    gg_request request = {0};
    for (size_t done = 0; done < bytes; done += PIECE) {
        char *at = (char *)data + done;
        size_t n = bytes - done < PIECE ? bytes - done : PIECE;
        if (transport->rank == from) {
            GG_TRY_CLEANUP(gg_send(transport, at, n, to, TAG_TRANSFER, &request));
            GG_TRY_CLEANUP(gg_wait_collective(transport, &request));
        } else if (transport->rank == to) {
            GG_TRY_CLEANUP(gg_receive_exact(transport, at, n, from, TAG_TRANSFER, &request));
            GG_TRY_CLEANUP(gg_wait_and_copy(transport, &request, at));
        }
    }
cleanup:
    if (status != GG_OK) gg_cancel_all(transport, &request, 1);
    return gg_error_prefix(status, "transfer from rank %d to rank %d: ", from, to);
}

gg_status gg_clock_offset(gg_transport *transport, double *seconds) {
    gg_status status = GG_OK;
    double quickest = INFINITY;
    *seconds = 0;
    if (transport->table->one_clock) goto cleanup;
    for (int r = 1; r < transport->size; ++r)
        for (int i = 0; i < CLOCK_ROUNDS; ++i) {
            double begin = gg_transport_now(transport), there = 0;
            GG_TRY_CLEANUP(gg_transfer(transport, &begin, sizeof begin, r, 0));
            if (transport->rank == 0) there = gg_transport_now(transport);
            GG_TRY_CLEANUP(gg_transfer(transport, &there, sizeof there, 0, r));
            double duration = gg_transport_now(transport) - begin;
            if (transport->rank != r || duration >= quickest) continue;
            quickest = duration;
            *seconds = there - (begin + duration / 2);
        }
    if (fabs(*seconds) <= quickest / 2) *seconds = 0;
cleanup:
    return gg_error_prefix(status, "comparing clocks: ");
}
