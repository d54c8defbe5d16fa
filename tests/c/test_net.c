/* The transport over rings and sockets: each rank is a process forked here.
 *
 * test_net measure   prints the seconds of exchanges between two ranks, instead of testing */
#define _GNU_SOURCE /* memfd_create */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/collective.h"
#include "comm/device_order.h"
#include "comm/net/net.h"
#include "comm/net/net_private.h"
#include "comm/team.h"
#include "comm/view_pages.h"
#include "comm/virtual/virtual.h"
#include "comm_cases.h"
#include "late_device.h"

#define MAX 8
#define PATIENCE 60.0 /* seconds until ranks count as hung */

typedef struct job {
    int size, per_node; /* ranks; consecutive ones are a node */
    size_t ring, heap;
    int dies; /* a rank that ends with a code or a signal of its own; -1: none */
} job;

typedef void part(gg_net *net, const job *j);

static void run_rank(const job *j, int rank, const int *memory, int sockets[MAX][MAX], part *work) {
    gg_net *net = NULL;
    int node_of[MAX], own[MAX];
    const int64_t started = gg_memory_live_bytes();
    check_failed = 0;
    for (int r = 0; r < j->size; ++r) {
        node_of[r] = r / j->per_node * j->per_node;
        own[r] = r / j->per_node == rank / j->per_node ? -1 : sockets[rank][r];
        for (int s = 0; s < j->size; ++s)
            if (r != rank && sockets[r][s] >= 0) close(sockets[r][s]);
    }
    const gg_net_options options = {.rank = rank,
                                    .size = j->size,
                                    .node_of = node_of,
                                    .sockets = own,
                                    .memory = memory[rank / j->per_node],
                                    .ring_bytes = j->ring,
                                    .heap_bytes = j->heap};
    if (CHECK_OK(gg_net_create(&options, &net))) {
        CHECK_INT(gg_net_rank(net), rank);
        work(net, j);
    }
    gg_net_destroy(net);
    CHECK_INT(gg_memory_live_bytes(), started);
    exit(check_failed != 0);
}

/* Runs the ranks to their ends, and marks each that was reaped, as their starter does. */
static void run_job(const job *j, part *work) {
    int memory[MAX], sockets[MAX][MAX], reaped = 0;
    pid_t process[MAX];
    for (int r = 0; r < j->size; ++r) memory[r] = memfd_create("node", MFD_CLOEXEC);
    for (int r = 0; r < j->size; ++r)
        for (int s = 0; s < j->size; ++s) sockets[r][s] = -1;
    for (int r = 0; r < j->size; ++r)
        for (int s = r + 1; s < j->size; ++s) {
            int pair[2];
            if (r / j->per_node == s / j->per_node) continue;
            CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
            sockets[r][s] = pair[0];
            sockets[s][r] = pair[1];
        }
    fflush(NULL);
    for (int r = 0; r < j->size; ++r) {
        process[r] = fork();
        if (process[r] == 0) run_rank(j, r, memory, sockets, work);
    }
    for (int r = 0; r < j->size; ++r)
        for (int s = 0; s < j->size; ++s)
            if (sockets[r][s] >= 0) close(sockets[r][s]);
    for (; reaped < j->size; ++reaped) {
        const uint32_t ended = 1;
        int status = -1, rank = 0;
        const pid_t pid = wait(&status);
        while (rank < j->size && process[rank] != pid) ++rank;
        if (!CHECK(rank < j->size)) break;
        CHECK(pwrite(memory[rank / j->per_node], &ended, sizeof ended, (off_t)GG_NET_ENDED(rank % j->per_node)) ==
              (ssize_t)sizeof ended);
        if (rank != j->dies && status != 0) fprintf(stderr, "rank %d of %d: status %d\n", rank, j->size, status);
        CHECK(rank == j->dies || status == 0);
    }
    for (int r = 0; r < j->size; ++r) close(memory[r]);
}

/* ---- the bits of the virtual cluster ---- */

typedef struct twin {
    gg_virtual *cluster;
    uint64_t hash[MAX];
} twin;

static gg_status run_twin(void *context, int rank) {
    twin *s = context;
    int64_t direct = 0;
    return case_all(gg_virtual_transport(s->cluster, rank), &s->hash[rank], &direct);
}

static part wrapped;

static twin of_size; /* computed before the ranks of this size are forked */

static void all_cases(gg_net *net, const job *j) {
    gg_transport *t = NULL;
    uint64_t hash = 0;
    int64_t direct = 0;
    CHECK_OK(gg_net_transport_create(net, PATIENCE, &t));
    CHECK_OK(case_all(t, &hash, &direct));
    CHECK(hash == of_size.hash[t->rank]);
    int places = 0;
    for (size_t i = 0; i < LENGTH(case_sizes); ++i) places += case_sizes[i] >= 4096;
    const int previous = (t->rank + t->size - 1) % t->size;
    const bool together = t->size > 1 && t->node_of[previous] == t->node_of[t->rank] && j->heap > 0;
    if (together) CHECK(direct >= places); /* besides these, messages may have been stored */
    CHECK(t->table->one_clock == (j->per_node >= j->size));
    gg_transport_destroy(t);
}

static void test_all(int size) {
    gg_virtual_options options = {.size = size, .network = {.latency = 1e-6}, .compute_rate = 1};
    const size_t small = 4096, large = 1 << 17, heap = (size_t)64 << 20;
    CHECK_OK(gg_virtual_create(&options, &of_size.cluster));
    CHECK_OK(gg_virtual_run(of_size.cluster, run_twin, &of_size));
    gg_virtual_destroy(of_size.cluster);
    run_job(&(job){size, size, large, heap, -1}, all_cases);
    if (size > 1) run_job(&(job){size, size, small, 0, -1}, all_cases);
    if (size > 2) run_job(&(job){size, 2, small, heap, -1}, all_cases);
    if (size == 3) run_job(&(job){size, 1, small, 0, -1}, all_cases);
    if (size == 3) run_job(&(job){size, 2, large, heap, -1}, wrapped);
}

/* ---- errors ---- */

static void wrong_sizes(gg_net *net, const job *j) {
    static const struct {
        size_t sent, room;
        bool any;
        const char *text;
    } cases[] = {{50, 100, false, "expected 100 bytes, received 50"},
                 {8192, 10000, false, "expected 10000 bytes, received 8192"},
                 {100, 50, false, "expected 50 bytes, received 100"},
                 {8192, 8191, true, "expected at most 8191 bytes, received 8192"},
                 {9000, 50, true, "expected at most 50 bytes, received 9000"}};
    gg_transport *t = NULL;
    char *block = NULL, *landing = NULL;
    (void)j;
    CHECK_OK(gg_net_transport_create(net, PATIENCE, &t));
    CHECK_OK(gg_message_alloc(t, 10000, "sizes", &block));
    CHECK_OK(gg_alloc(10000, "sizes", &landing));
    for (int early = 0; early < 2; ++early) /* the receive is first, or the message */
        for (size_t i = 0; i < LENGTH(cases); ++i) {
            gg_request request = {0}, send = {0};
            if (t->rank == 1) CHECK_OK(gg_send(t, block, cases[i].sent, 0, 64, &send));
            if (early) CHECK_OK(gg_barrier(t));
            if (t->rank == 0) {
                CHECK_OK((cases[i].any ? gg_receive : gg_receive_exact)(t, landing, cases[i].room, 1, 64, &request));
                CHECK_FAILS(gg_wait(t, &request), GG_ERROR_COMM, cases[i].text);
                gg_cancel(t, &request);
            } else {
                CHECK_OK(gg_wait(t, &send));
            }
        }
    CHECK_OK(gg_barrier(t)); /* the transport still serves */
    gg_message_free(t, block);
    gg_free(landing);
    gg_transport_destroy(t);
}

static void other_epochs(gg_net *net, const job *j) {
    gg_transport *t = NULL;
    gg_request request = {0};
    char data[8] = {0};
    (void)j;
    CHECK_OK(gg_net_transport_create(net, PATIENCE, &t));
    for (int early = 0; early < 2; ++early) {
        gg_transport_set_epoch(t, 7 + 10 * early);
        if (t->rank == 1) {
            CHECK_OK(gg_send(t, data, 5, 0, 70, &request));
            CHECK_OK(gg_wait(t, &request));
        }
        if (early) CHECK_OK(gg_barrier(t));
        gg_transport_set_epoch(t, 8 + 10 * early);
        if (t->rank == 0) {
            CHECK_OK(gg_receive(t, data, 8, 1, 70, &request));
            CHECK_FAILS(gg_wait(t, &request), GG_ERROR_COMM,
                        early ? "a message of topology epoch 17 from rank 1 with tag 70 met a receive of epoch 18"
                              : "a message of topology epoch 7 from rank 1 with tag 70 met a receive of epoch 8");
            gg_cancel(t, &request);
        }
        CHECK_OK(gg_barrier(t));
    }
    gg_transport_destroy(t);
}

static void timeouts(gg_net *net, const job *j) {
    gg_transport *t = NULL, *late = NULL;
    gg_request request = {0};
    char landing[100];
    (void)j;
    CHECK_OK(gg_net_transport_create(net, PATIENCE, &t));
    if (t->rank == 0) {
        t->timeout = 0.2;
        CHECK_OK(gg_receive_exact(t, landing, 100, 1, 70, &request));
        CHECK_FAILS(gg_wait(t, &request), GG_ERROR_COMM, "s for 100 bytes from rank 1 with tag 70 (net)");
        CHECK(request.state == GG_REQUEST_RECEIVING);
        gg_cancel(t, &request);
        t->timeout = 0;
        CHECK_FAILS(gg_net_transport_create(net, 0.2, &late), GG_ERROR_COMM,
                    "making the group: barrier: rank 0: waited ");
        CHECK(late == NULL);
    }
    CHECK_OK(gg_barrier(t));
    gg_transport_destroy(t);
}

/* Two channels with equal tags, used in another order on each rank; one is destroyed with messages under way. */
static void channels(gg_net *net, const job *j) {
    gg_transport *t[2] = {NULL, NULL};
    (void)j;
    for (int i = 0; i < 2; ++i) CHECK_OK(gg_net_transport_create(net, PATIENCE, &t[i]));
    const int next = (t[0]->rank + 1) % t[0]->size, before = (t[0]->rank + t[0]->size - 1) % t[0]->size;
    gg_request send[2] = {{0}}, receive[2] = {{0}};
    int64_t out[2], in[2] = {0};
    for (int k = 0; k < 2; ++k) {
        const int i = t[0]->rank % 2 ? k : 1 - k;
        out[i] = t[0]->rank * 10 + i;
        CHECK_OK(gg_send(t[i], &out[i], sizeof out[i], next, 64, &send[i]));
    }
    for (int i = 0; i < 2; ++i) CHECK_OK(gg_receive_exact(t[i], &in[i], sizeof in[i], before, 64, &receive[i]));
    for (int i = 0; i < 2; ++i) {
        CHECK_OK(gg_wait_and_copy(t[i], &receive[i], &in[i]));
        CHECK_INT(in[i], before * 10 + i);
        CHECK_OK(gg_wait(t[i], &send[i]));
    }
    CHECK_OK(gg_send(t[0], &out[0], sizeof out[0], next, 65, &send[0])); /* nobody wants it */
    CHECK_OK(gg_wait(t[0], &send[0]));
    gg_transport_destroy(t[0]);
    CHECK_OK(gg_barrier(t[1]));
    gg_transport_destroy(t[1]);
}

/* Rank 1 reads nothing before rank 0 has written a byte here. */
static int gate[2];

/* A send that is cancelled when a part of it has left arrives whole; messages behind it are right. */
static void cancelled(gg_net *net, const job *j) {
    gg_transport *t = NULL;
    unsigned char *data = NULL, *landing = NULL;
    const size_t bytes = 10 * j->ring, room = (size_t)1 << 22; /* more than a socket holds */
    const size_t n = j->per_node > 1 ? bytes : room;
    gg_request request[2] = {{0}};
    CHECK_OK(gg_net_transport_create(net, PATIENCE, &t));
    CHECK_OK(gg_alloc(n, "data", &data));
    CHECK_OK(gg_alloc(n, "landing", &landing));
    for (size_t i = 0; i < n; ++i) data[i] = case_byte(t->rank, i, 5);
    if (t->rank == 0) {
        bool done = true;
        CHECK_OK(gg_send(t, data, n, 1, 64, &request[0]));
        CHECK_OK(gg_send(t, data, n, 1, 65, &request[1]));
        CHECK_OK(gg_test(t, &request[0], &done));
        CHECK(!done);
        gg_cancel(t, &request[0]);
        gg_cancel(t, &request[1]); /* nothing of it has left */
        CHECK(write(gate[1], "x", 1) == 1);
        memset(data, 0, n);
        CHECK_OK(gg_send(t, "end", 4, 1, 65, &request[1]));
        CHECK_OK(gg_wait(t, &request[1]));
    } else {
        char end[4] = "";
        CHECK(read(gate[0], end, 1) == 1);
        if (j->per_node > 1) CHECK_OK(gg_net_progress(net)); /* what has come has no receive yet */
        /* One that arrives half when its receive is cancelled is lost. */
        CHECK_OK(gg_receive_exact(t, end, 4, 0, 65, &request[1]));
        CHECK_OK(gg_receive_exact(t, landing, n, 0, 64, &request[0]));
        CHECK_OK(gg_wait_and_copy(t, &request[1], end));
        CHECK_TEXT(end, "end");
        CHECK_OK(gg_wait_and_copy(t, &request[0], landing));
        size_t wrong = 0;
        for (size_t i = 0; i < n; ++i) wrong += landing[i] != case_byte(0, i, 5);
        CHECK_INT(wrong, 0);
    }
    CHECK_OK(gg_barrier(t));
    if (t->rank == 0) {
        CHECK_OK(gg_send(t, data, n, 1, 66, &request[0]));
        CHECK_OK(gg_wait(t, &request[0]));
    } else {
        bool done;
        CHECK_OK(gg_receive_exact(t, landing, n, 0, 66, &request[0]));
        CHECK_OK(gg_test(t, &request[0], &done));
        gg_cancel(t, &request[0]);
        gg_free(landing);
        landing = NULL;
    }
    CHECK_OK(gg_barrier(t));
    gg_free(data);
    gg_free(landing);
    gg_transport_destroy(t);
}

/* Rank 1 ends in the middle of a message. */
static void death(gg_net *net, const job *j) {
    gg_transport *t = NULL;
    const size_t n = (size_t)8 << 20;
    unsigned char *data = NULL, *first = NULL;
    gg_request request[4] = {{0}}, unread[2] = {{0}};
    bool done = true;
    CHECK_OK(gg_net_transport_create(net, PATIENCE, &t));
    const int slots = net->free_count;
    gg_transport_step_begun(t, 5 + t->rank);
    CHECK_OK(gg_calloc(1, n, "data", &data));
    CHECK_OK(gg_message_alloc(t, 5000, "first", &first));
    memset(first, 9, 5000);
    if (t->rank == 1) {
        CHECK_OK(gg_send(t, first, 5000, 0, 64, &request[0])); /* a place, if they share a node */
        CHECK_OK(gg_send(t, "whole", 6, 0, 65, &request[1]));
        CHECK_OK(gg_send(t, data, n, 0, 66, &request[2]));
        CHECK_OK(gg_test(t, &request[2], &done));
        CHECK(!done); /* a part of it has left */
        if (check_failed == 0) raise(SIGKILL);
    } else if (t->rank == 0) {
        char whole[6] = "", in[5000];
        if (j->per_node > 1) CHECK_OK(gg_send(t, first, 5000, 1, 68, &unread[0]));
        while (gg_net_progress(net) == GG_OK && !net->peers[1].gone) gg_clock_sleep(1e-3);
        CHECK_OK(gg_send(t, first, 5000, 1, 69, &unread[1]));
        gg_cancel_all(t, unread, 2);
        CHECK_INT(net->free_count, slots); /* a dead rank keeps no slot */
        CHECK_OK(gg_receive_exact(t, whole, 6, 1, 65, &request[1]));
        CHECK_OK(gg_wait_and_copy(t, &request[1], whole));
        CHECK_TEXT(whole, "whole");
        CHECK_OK(gg_receive_exact(t, in, 5000, 1, 64, &request[0]));
        CHECK_OK(gg_wait(t, &request[0]));
        CHECK(((const char *)request[0].data)[4999] == 9 && ((const char *)request[0].data)[0] == 9);
        CHECK_OK(gg_release(t, &request[0]));
        CHECK_OK(gg_receive_exact(t, data, n, 1, 66, &request[2]));
        CHECK_FAILS(gg_wait(t, &request[2]), GG_ERROR_COMM,
                    j->per_node > 1 ? "rank 0 waits for rank 1, which has ended (steps begun: 5 on rank 0; 6 on rank 1)"
                                    : "rank 0 waits for rank 1, which has ended; all ranks");
        gg_cancel(t, &request[2]);
        CHECK_OK(gg_send(t, data, n, 1, 67, &request[3])); /* as one to a rank that ends a moment later */
        CHECK_FAILS(gg_wait(t, &request[3]), GG_ERROR_COMM, "rank 0 waits for rank 1, which has ended");
        gg_cancel(t, &request[3]);
        CHECK_FAILS(t->table->check_peer(t, 1), GG_ERROR_COMM, "waits for rank 1");
        CHECK_FAILS(t->table->check_peer(t, -1), GG_ERROR_COMM, "waits for rank 1");
        if (t->size > 2) CHECK_OK(t->table->check_peer(t, 2));
    }
    for (int r = 0; t->size > 2 && r < 2 && t->rank != 1; ++r) { /* the others still serve each other */
        const int peer = t->rank == 0 ? 2 : 0;
        int64_t value = 40 + t->rank, other = 0;
        CHECK_OK(gg_receive_exact(t, &other, sizeof other, peer, 70, &request[0]));
        CHECK_OK(gg_send(t, &value, sizeof value, peer, 70, &request[1]));
        CHECK_OK(gg_wait_and_copy(t, &request[0], &other));
        CHECK_INT(other, 40 + peer);
        CHECK_OK(gg_wait(t, &request[1]));
    }
    gg_message_free(t, first);
    gg_free(data);
    gg_transport_destroy(t);
}

/* What is no message ends the link. */
static void garbage(gg_net *net, const job *j) {
    gg_transport *t = NULL;
    gg_request request = {0};
    char landing[8];
    (void)j;
    CHECK_OK(gg_net_transport_create(net, PATIENCE, &t));
    if (t->rank == 1) {
        const gg_net_frame bad = {.kind = GG_NET_PLACE, .channel = 0, .tag = 64, .bytes = 100, .offset = 1 << 20};
        CHECK_INT(gg_net_write(net, &net->peers[0], &bad, sizeof bad, NULL, 0), sizeof bad);
        /* its end must not come before rank 0 has read */
        CHECK_OK(gg_receive_exact(t, landing, 8, 0, 70, &request));
        (void)gg_wait(t, &request);
        gg_cancel(t, &request);
    } else {
        CHECK_OK(gg_receive_exact(t, landing, 8, 1, 64, &request));
        CHECK_FAILS(gg_wait(t, &request), GG_ERROR_COMM, "rank 0 waits for rank 1, which has ended");
        gg_cancel(t, &request);
    }
    gg_transport_destroy(t);
}

/* Freed memory serves again where it is large enough; it is zero then. */
static void check_recycling(gg_net *net, gg_transport *whole) {
    const int own = whole->rank;
    gg_transport *t = NULL;
    unsigned char *first = NULL, *second = NULL, *third = NULL;
    size_t wrong = 0;
    CHECK_OK(gg_subgroup_create(whole, &own, 1, &t));
    CHECK_OK(gg_message_alloc(t, 90000, "first", &first));
    CHECK_OK(gg_message_alloc(t, 50000, "second", &second));
    memset(first, 1, 90000);
    const unsigned char *large = first, *small = second;
    gg_message_recycle(t, true);
    gg_message_free(t, first);
    gg_message_free(t, second);
    CHECK_OK(gg_message_alloc(t, 95000, "third", &third)); /* larger */
    CHECK_OK(gg_message_alloc(t, 45000, "second", &second));
    CHECK_OK(gg_message_alloc(t, 45000, "first", &first));
    CHECK(third != large && second == small && first == large);
    for (size_t b = 0; b < 45000; ++b) wrong += first[b] != 0;
    CHECK_INT(wrong, 0);
    gg_message_free(t, second);
    gg_message_recycle(t, false); /* what is held is freed */
    gg_message_free(t, third);
    gg_message_free(t, first);
    CHECK(net->blocks == NULL);
    gg_transport_destroy(t);
}

/* Blocks of any sizes, freed in another order; each is zero at its begin. */
static void memory(gg_net *net, const job *j) {
    enum { BLOCKS = 24 };
    unsigned char *block[BLOCKS] = {NULL};
    gg_transport *t = NULL;
    size_t wrong = 0;
    CHECK_OK(gg_net_transport_create(net, PATIENCE, &t));
    for (int round = 0; round < 6; ++round)
        for (int i = 0; i < BLOCKS; ++i) {
            const int k = (i * 7 + round * 5) % BLOCKS;
            const size_t bytes = (size_t)1 << (8 + (k + round) % 15), odd = bytes + (size_t)k;
            gg_message_free(t, block[k]);
            CHECK_OK(gg_message_alloc(t, odd, "block", &block[k]));
            wrong += ((uintptr_t)block[k] & 63) != 0;
            for (size_t b = 0; b < odd; ++b) wrong += block[k][b] != 0;
            memset(block[k], k + 1, odd);
            for (int other = 0; other < BLOCKS; ++other) wrong += block[other] != NULL && block[other][0] != other + 1;
        }
    CHECK_INT(wrong, 0);
    for (int i = 0; i < BLOCKS; ++i) gg_message_free(t, block[i]);
    CHECK(net->blocks == NULL);
    unsigned char *large = NULL;
    CHECK_OK(gg_message_alloc(t, j->heap + 1, "larger than the heap", &large));
    CHECK(net->blocks == NULL && large != NULL);
    gg_message_free(t, large);
    check_recycling(net, t);
    gg_transport_destroy(t);
}

static void test_options(void) {
    gg_net *net = NULL;
    const int nodes[2] = {0, 0}, apart[2] = {0, 1};
    gg_net_options options = {.rank = 2, .size = 2, .node_of = nodes, .memory = -1, .ring_bytes = 4096};
    CHECK_FAILS(gg_net_create(&options, &net), GG_ERROR_ARGUMENT, "rank: 2 of 2");
    options.rank = 0;
    CHECK_FAILS(gg_net_create(&options, &net), GG_ERROR_ARGUMENT, "memory: no descriptor");
    options.node_of = apart;
    CHECK_FAILS(gg_net_create(&options, &net), GG_ERROR_ARGUMENT, "sockets: none to rank 1");
    options.node_of = nodes;
    options.memory = memfd_create("node", MFD_CLOEXEC);
    options.ring_bytes = 5000;
    CHECK_FAILS(gg_net_create(&options, &net), GG_ERROR_ARGUMENT, "ring_bytes: 5000; allowed: a power of two");
    CHECK(net == NULL);
}

/* A newcomer of another node takes the place of a ring when a view admits it; on it a dead rank is gone. */
static void test_arrival(void) {
    gg_net *net[2] = {NULL, NULL};
    gg_transport *first = NULL, *newcomer = NULL;
    gg_request sent = {0}, came = {0};
    const int home[3] = {0, 0, 0}, there[3] = {0, 1, 2}, both[2] = {0, 2};
    const int64_t started = gg_memory_live_bytes();
    int pair[2], broken[2], late[2], value = 41, got = 0;
    bool done = false;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, late) == 0);
    const int sockets[3] = {pair[1], -1, -1};
    gg_net_options options = {.rank = 0, .size = 3, .members = 1, .node_of = home, .ring_bytes = 4096};
    options.memory = memfd_create("node", MFD_CLOEXEC);
    CHECK_OK(gg_net_create(&options, &net[0]));
    options = (gg_net_options){.rank = 2, .size = 3, .members = 1, .node_of = there, .sockets = sockets, .memory = -1};
    CHECK_OK(gg_net_create(&options, &net[1]));
    CHECK(net[1]->peers[1].gone && net[0]->peers[2].in != NULL);
    /* It connects, the connection breaks, and a view comes that does not have it. */
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, broken) == 0);
    close(broken[1]);
    gg_net_arrive(net[0], 2, broken[0]);
    CHECK_OK(gg_net_admit(net[0], both, 1));
    CHECK_OK(gg_net_progress(net[0]));
    gg_net_arrive(net[0], 2, pair[0]);
    CHECK(net[0]->peers[2].in != NULL); /* nothing is written to it before it is welcomed */
    CHECK_OK(gg_net_admit(net[0], both, 2));
    CHECK(net[0]->peers[2].in == NULL && net[0]->peers[2].place == -1 && net[0]->sockets == 1);
    CHECK_OK(gg_net_transport_create(net[0], 0, &first));
    CHECK_OK(gg_net_transport_create(net[1], 0, &newcomer));
    CHECK_OK(gg_receive(newcomer, &got, sizeof got, 0, 3, &came));
    CHECK_OK(gg_send(first, &value, sizeof value, 2, 3, &sent));
    while (!done && CHECK_OK(gg_test(newcomer, &came, &done))) continue;
    if (!done) return;
    CHECK_INT(*(const int *)came.data, 41);
    CHECK_OK(gg_release(newcomer, &came));
    CHECK_OK(gg_wait(first, &sent));
    gg_net_arrive(net[0], 2, late[0]); /* it comes once */
    CHECK_OK(gg_net_admit(net[0], both, 2));
    CHECK(recv(late[1], &got, 1, 0) == 0);
    close(late[1]);
    gg_net_arrive(net[0], 1, dup(net[1]->peers[0].socket)); /* never admitted */
    gg_transport_destroy(first);
    gg_transport_destroy(newcomer);
    CHECK(shutdown(net[1]->peers[0].socket, SHUT_WR) == 0); /* so that nobody lingers */
    gg_net_destroy(net[0]);
    gg_net_destroy(net[1]);
    CHECK_INT(gg_memory_live_bytes(), started);
}

/* ---- in a team ---- */

/* Over a slow network and in the order of a device that lags: the same bits. */
static void wrapped(gg_net *net, const job *j) {
    const gg_network brisk = {.latency = 20e-6, .bandwidth = 10e9};
    gg_team *team = NULL;
    gg_transport *order = NULL;
    uint64_t hash = 0;
    int64_t direct = 0;
    late_device device;
    (void)j;
    late_open(&device);
    device.lag = 3;
    CHECK_OK(gg_team_create_net(net, &brisk, PATIENCE, NULL, &team));
    CHECK_TEXT(gg_team_kind(team), "net");
    CHECK_OK(gg_device_order_create(gg_team_transport(team, 0), &device.head, &order));
    CHECK_OK(case_all(order, &hash, &direct));
    CHECK(hash == of_size.hash[order->rank]);
    gg_transport_destroy(order);
    gg_team_release(team);
}

/* One rank, or several, want to stop, at different steps: all stop after the same one. */
static void stops(gg_net *net, const job *j) {
    gg_team *team = NULL;
    int64_t step = 100, all[MAX] = {0};
    CHECK_OK(gg_team_create_net(net, NULL, PATIENCE, NULL, &team));
    gg_transport *t = gg_team_transport(team, 0);
    const int next = (t->rank + 1) % j->size, before = (t->rank + j->size - 1) % j->size;
    for (int round = 0; round < 20; ++round) {
        const bool wants = round % 2 ? t->rank == round % j->size : t->rank > 0;
        const int64_t least = step + 20, from = wants ? least + 3 * t->rank : INT64_MAX;
        int64_t until = 0;
        CHECK_OK(gg_team_halt_begin(team, step));
        CHECK_OK(gg_barrier(t));
        for (;;) {
            CHECK_OK(gg_team_halt_until(team, step, step + 1 + t->rank, step >= from, &until));
            if (until <= step || check_failed > 0) break;
            for (; step < until; ++step) {
                gg_request out = {0}, in = {0};
                int64_t heard = -1;
                CHECK_OK(gg_receive_exact(t, &heard, sizeof heard, before, 70, &in));
                CHECK_OK(gg_send(t, &step, sizeof step, next, 70, &out));
                CHECK_OK(gg_wait_and_copy(t, &in, &heard));
                CHECK_OK(gg_wait(t, &out));
                CHECK_INT(heard, step);
            }
        }
        gg_team_halt_end(team);
        CHECK(step >= least);
        CHECK_OK(gg_agree(t, &step, sizeof step, all));
        for (int rank = 0; rank < j->size; ++rank) CHECK_INT(all[rank], step);
    }
    gg_team_release(team);
}

/* ---- measuring ---- */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(gg_net *net, const job *j) {
    enum { ROUNDS = 200 };
    static double seconds[ROUNDS];
    gg_transport *t = NULL;
    (void)j;
    CHECK_OK(gg_net_transport_create(net, 0, &t));
    for (size_t bytes = 8; bytes <= 16 << 20; bytes *= 8)
        for (int shared = 0; shared < 2; ++shared) {
            float *own = NULL, *landing = NULL, sum = 0;
            if (shared) CHECK_OK(gg_message_alloc(t, bytes, "measure", &own));
            else CHECK_OK(gg_calloc(1, bytes, "measure", &own));
            CHECK_OK(gg_calloc(1, bytes, "measure", &landing));
            for (int round = 0; round < ROUNDS; ++round) {
                gg_request receive = {0}, send = {0};
                float partial[16] = {0};
                for (size_t i = 0; i < bytes / sizeof(float); ++i) own[i] = (float)(i + (size_t)round);
                CHECK_OK(gg_barrier(t));
                const double begin = gg_clock_now();
                CHECK_OK(gg_receive_exact(t, landing, bytes, 1 - t->rank, 64, &receive));
                CHECK_OK(gg_send(t, own, bytes, 1 - t->rank, 64, &send));
                CHECK_OK(gg_wait(t, &receive));
                for (size_t i = 0; i + 16 <= bytes / sizeof(float); i += 16)
                    for (size_t k = 0; k < 16; ++k) partial[k] += ((const float *)receive.data)[i + k];
                for (size_t k = 0; k < 16; ++k) sum += partial[k];
                CHECK_OK(gg_release(t, &receive));
                CHECK_OK(gg_wait(t, &send));
                seconds[round] = gg_clock_now() - begin;
            }
            qsort(seconds, ROUNDS, sizeof seconds[0], by_value);
            if (t->rank == 0)
                printf("%s, %9zu bytes both ways and read once, %s: %8.1f us (%g)\n",
                       j->per_node > 1 ? "ring" : "socket", bytes, shared ? "shared" : "plain",
                       seconds[ROUNDS / 2] * 1e6, (double)sum);
            if (shared) gg_message_free(t, own);
            else gg_free(own);
            gg_free(landing);
        }
    gg_transport_destroy(t);
}

static void *pages; /* of views, shared by the ranks */
static gg_view_keeper *keeper;

/* A group without survival, where ranks may die: a wait for a rank that lives ends when another has died, because the
 * first may be in the change of the view, which waits for this one. */
static void death_elsewhere(gg_net *net, const job *j) {
    gg_team *team = NULL;
    gg_views *views = NULL;
    char byte = 0;
    CHECK_OK(gg_view_pages_open(pages, j->size + 1, gg_net_rank(net), &views)); /* one may join */
    CHECK_OK(gg_team_create_net(net, NULL, PATIENCE, NULL, &team));
    gg_team_fail_on_death(team, views);
    gg_transport *t = gg_team_transport(team, 0);
    if (t->rank == 2) CHECK_OK(gg_view_keeper_died(keeper, 2));
    if (t->rank == 0) {
        CHECK_FAILS(gg_transfer(t, &byte, 1, 1, 0), GG_ERROR_PEER,
                    "rank 0: rank 2 has died, and a gg.Team does not go on");
        CHECK(write(gate[1], "x", 1) == 1);
    }
    if (t->rank == 1) CHECK(read(gate[0], &byte, 1) == 1);
    gg_team_release(team);
}

static void *apart[2]; /* pages of views, of a node each */

static int stalls;
static gg_stall_facts told;

static double note_stall(const gg_stall_facts *facts) {
    told = *facts;
    stalls += !facts->over;
    return 0;
}

/* Waits in a view are told of, with the step; a vote that cannot come ends the wait for it. */
static void cut_off(gg_net *net, const job *j) {
    gg_team *team = NULL;
    gg_views *views = NULL;
    gg_request late = {0};
    int64_t step = 7;
    char byte = 0;
    bool all;
    const int rank = gg_net_rank(net);
    CHECK_OK(gg_view_pages_open(apart[rank], j->size, rank, &views));
    CHECK_OK(gg_team_create_net(net, NULL, PATIENCE, views, &team));
    gg_transport *t = gg_team_transport(team, 0);
    gg_team_train(team, true);
    gg_team_set_timeout(team, 2);
    gg_stall_configure(0.05, note_stall);
    t->step = &step;
    CHECK_OK(gg_receive_exact(t, &byte, 1, 1 - rank, 70, &late));
    CHECK_FAILS(gg_wait(t, &late), GG_ERROR_COMM, "s for 1 bytes from rank");
    gg_cancel(t, &late);
    CHECK(stalls == 1 && told.over && told.step == 7 && told.peer == 1 - rank);
    gg_net_lose(net, &net->peers[1 - rank]);
    CHECK_FAILS(gg_team_decide(team, true, &all), GG_ERROR_COMM,
                rank == 0 ? "s for the vote of rank 1, to which" : "s for the vote of rank 0, to which");
    CHECK(stalls == 2 && !told.over && told.step == 7 && told.rank == rank && told.peer == -1);
    gg_stall_configure(0, NULL);
    t->step = NULL;
    gg_team_release(team);
}

static void test_cut_off(const job *j) {
    gg_view_keeper *keep[2] = {NULL, NULL};
    for (int node = 0; node < 2; ++node) {
        apart[node] = mmap(NULL, gg_view_pages_bytes(2), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK_OK(gg_view_keeper_create(apart[node], 2, 2, 1, &keep[node]));
    }
    run_job(j, cut_off);
    for (int node = 0; node < 2; ++node) {
        gg_view_keeper_destroy(keep[node]);
        CHECK(munmap(apart[node], gg_view_pages_bytes(2)) == 0);
    }
}

/* ---- a newcomer of another node, and deaths, in one process ---- */

#define NEW 3 /* beside the members 0 to 2, whose first one is a process */

/* The members tell their limits and reports, which lead to the next view. */
static void next_view(gg_view_keeper *keep, gg_views *member[NEW], int deaths) {
    const int64_t received[NEW] = {-1, -1, -1};
    int64_t goal;
    gg_phase phase;
    for (int i = 0; i < NEW; ++i) CHECK_OK(member[i]->table->look(member[i], -1, 5, &phase, &goal));
    CHECK_OK(gg_view_keeper_poll(keep, &phase));
    CHECK_INT(phase, GG_PHASE_GOAL);
    for (int i = 0; i < NEW; ++i) {
        CHECK_OK(member[i]->table->look(member[i], -1, 5, &phase, &goal));
        CHECK_OK(member[i]->table->report(member[i], i, deaths, received));
    }
    CHECK_OK(gg_view_keeper_poll(keep, &phase));
    CHECK_INT(phase, GG_PHASE_RUN);
}

/* Greetings count in their own view alone. A rank that was declared dead while its process lives ends. */
static void test_greetings(void) {
    const int home[NEW + 1] = {0, 0, 0, 0}, there[NEW + 1] = {0, 1, 2, 3};
    const int64_t started = gg_memory_live_bytes();
    int pair[2];
    bool again, member;
    gg_net *net[2] = {NULL, NULL};
    gg_views *views[NEW + 1] = {NULL};
    gg_team *donor = NULL, *newcomer = NULL;
    gg_view_keeper *keep = NULL;
    gg_phase phase;
    void *memory = mmap(NULL, gg_view_pages_bytes(NEW + 1), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    const int sockets[NEW + 1] = {pair[1], -1, -1, -1};
    gg_net_options options = {.size = NEW + 1, .members = 1, .node_of = home, .ring_bytes = 4096};
    options.memory = memfd_create("node", MFD_CLOEXEC);
    CHECK_OK(gg_net_create(&options, &net[0]));
    options = (gg_net_options){.rank = NEW, .size = NEW + 1, .members = 1, .node_of = there, .sockets = sockets};
    options.memory = -1;
    CHECK_OK(gg_net_create(&options, &net[1]));
    gg_net_arrive(net[0], NEW, pair[0]);
    CHECK_OK(gg_view_keeper_create(memory, NEW, NEW + 1, 1, &keep));
    for (int i = 0; i <= NEW; ++i) CHECK_OK(gg_view_pages_open(memory, NEW + 1, i, &views[i]));
    CHECK_OK(gg_team_create_net(net[0], NULL, PATIENCE, views[0], &donor));
    CHECK_OK(gg_team_create_net(net[1], NULL, PATIENCE, views[NEW], &newcomer));
    CHECK_OK(gg_team_await_member(newcomer, 0, &member));
    CHECK_OK(gg_view_keeper_poll(keep, &phase));
    next_view(keep, views, 0);
    CHECK_OK(gg_team_change_view(newcomer)); /* view 1 */
    CHECK_OK(gg_view_keeper_died(keep, 1));
    next_view(keep, views, 1);
    CHECK_OK(gg_team_change_view(donor)); /* view 2 */
    CHECK_OK(gg_team_greet(donor, gg_team_size(donor) - 1));
    CHECK_FAILS(gg_team_await_greeting(newcomer), GG_ERROR_PEER, "rank 0, a donor, has died"); /* of view 1 */
    CHECK_OK(gg_team_change_view(newcomer));
    CHECK_OK(gg_team_await_greeting(newcomer));
    CHECK_OK(gg_team_greet(donor, gg_team_size(donor) - 1));
    CHECK_OK(gg_view_keeper_died(keep, 2));
    next_view(keep, views, 1);
    CHECK_OK(gg_team_change_view(newcomer)); /* view 3 */
    CHECK_OK(gg_view_keeper_died(keep, 0));
    CHECK_FAILS(gg_team_await_greeting(newcomer), GG_ERROR_PEER, "rank 0, a donor, has died"); /* in view 3 */
    CHECK_FAILS(gg_team_change_view(donor), GG_ERROR_PEER, "rank 0 has been declared dead; the others go on");
    CHECK_FAILS(gg_team_await_view(donor, 0, &again), GG_ERROR_PEER, "rank 0 has been declared dead");
    gg_team_release(donor);
    gg_team_release(newcomer);
    for (int i = 1; i < NEW; ++i) views[i]->table->destroy(views[i]);
    gg_view_keeper_destroy(keep);
    CHECK(munmap(memory, gg_view_pages_bytes(NEW + 1)) == 0);
    CHECK(shutdown(net[1]->peers[0].socket, SHUT_WR) == 0); /* so that nobody lingers */
    gg_net_destroy(net[0]);
    gg_net_destroy(net[1]);
    CHECK_INT(gg_memory_live_bytes(), started);
}

int main(int argc, char **argv) {
    const size_t ring = 8192, heap = (size_t)64 << 20;
    if (argc > 1 && strcmp(argv[1], "measure") == 0) {
        run_job(&(job){2, 2, 1 << 17, heap, -1}, measure);
        run_job(&(job){2, 1, 1 << 17, heap, -1}, measure);
        return check_report();
    }
    for (int size = 1; size <= 4; ++size) test_all(size);
    CHECK(pipe(gate) == 0);
    for (int per_node = 1; per_node <= 2; ++per_node) {
        run_job(&(job){2, per_node, ring, heap, -1}, wrong_sizes);
        run_job(&(job){2, per_node, ring, heap, -1}, other_epochs);
        run_job(&(job){3, per_node, ring, heap, -1}, channels);
        run_job(&(job){3, per_node, ring, heap, -1}, stops);
        run_job(&(job){2, per_node, ring, heap, -1}, cancelled);
        run_job(&(job){2, per_node, ring, heap, 1}, death);
        run_job(&(job){3, per_node, ring, heap, 1}, death);
        run_job(&(job){2, per_node, ring, heap, -1}, garbage);
    }
    pages = mmap(NULL, gg_view_pages_bytes(4), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK_OK(gg_view_keeper_create(pages, 3, 4, 1, &keeper));
    run_job(&(job){3, 2, ring, heap, -1}, death_elsewhere);
    gg_view_keeper_destroy(keeper);
    CHECK(munmap(pages, gg_view_pages_bytes(4)) == 0);
    test_cut_off(&(job){2, 1, ring, heap, -1});
    run_job(&(job){2, 2, ring, heap, -1}, timeouts);
    run_job(&(job){2, 2, ring, heap, -1}, memory);
    test_options();
    test_arrival();
    test_greetings();
    return check_report();
}
