/* Ranks of the virtual cluster that die: which messages arrive, when the others learn of it, and what collectives do.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "comm/allreduce.h"
#include "comm/collective.h"
#include "comm/link.h"
#include "comm/subgroup.h"
#include "comm_check.h"
#include "virtual_setup.h"

#define DETECT 0.25

static gg_virtual *make_deadly(int size, double bandwidth, const gg_virtual_death *deaths, int count) {
    gg_virtual *cluster = NULL;
    const gg_virtual_options options = {.size = size,
                                        .network = {.latency = 0.001, .bandwidth = bandwidth},
                                        .compute_rate = 1,
                                        .deaths = deaths,
                                        .death_count = count,
                                        .detect = DETECT};
    CHECK(gg_virtual_create(&options, &cluster) == GG_OK);
    return cluster;
}

static uint64_t mixed(uint64_t hash, uint64_t word) { return (hash ^ word) * 0x9e3779b97f4a7c15u + (hash >> 29); }

/* ---- a ring ---- */

enum { STEPS = 3, MESSAGES = 4, BYTES = 100 };

/* What each rank saw: by step and message, 1 arrived, 2 lost. */
typedef struct ring {
    gg_virtual *cluster;
    int seen[MAX][STEPS][MESSAGES];
    double when[MAX]; /* the clock of the first loss */
    uint64_t hash[MAX];
    int returned[MAX];
} ring;

static void fill(char *message, int rank, int step, int i) {
    for (int k = 0; k < BYTES; ++k) message[k] = (char)(rank * 31 + step * 7 + i * 3 + k);
}

/* Sends from the stack, and returns in the middle if it has died. */
static gg_status ring_steps(ring *it, int rank) {
    gg_status status = GG_OK;
    gg_transport *t = gg_virtual_transport(it->cluster, rank);
    const int next = (rank + 1) % t->size, before = (rank + t->size - 1) % t->size;
    char out[MESSAGES][BYTES], in[MESSAGES][BYTES], wanted[BYTES];
    gg_request sent[MESSAGES] = {0}, received[MESSAGES] = {0};
    for (int step = 0; step < STEPS; ++step) {
        gg_transport_step_begun(t, step + 1);
        GG_TRY_CLEANUP(gg_transport_compute(t, 0.01 * (rank + 1)));
        for (int i = 0; i < MESSAGES; ++i) {
            fill(out[i], rank, step, i);
            GG_TRY_CLEANUP(gg_receive_exact(t, in[i], BYTES, before, 70 + i % 2, &received[i]));
            GG_TRY_CLEANUP(gg_send(t, out[i], BYTES, next, 70 + i % 2, &sent[i]));
        }
        for (int i = 0; i < MESSAGES; ++i) {
            GG_TRY_CLEANUP(gg_wait(t, &received[i]));
            const bool lost = received[i].state == GG_REQUEST_LOST;
            if (lost && it->when[rank] == 0) it->when[rank] = gg_transport_now(t);
            it->seen[rank][step][i] = lost ? 2 : 1;
            fill(wanted, before, step, i);
            if (!lost) CHECK(memcmp(received[i].data, wanted, BYTES) == 0);
            CHECK_OK(gg_release(t, &received[i]));
            CHECK(received[i].state == GG_REQUEST_IDLE);
        }
        for (int i = 0; i < MESSAGES; ++i) {
            GG_TRY_CLEANUP(gg_wait(t, &sent[i]));
            CHECK(sent[i].state == GG_REQUEST_IDLE || sent[i].state == GG_REQUEST_LOST);
            CHECK_OK(gg_release(t, &sent[i]));
        }
        uint64_t clock;
        const double now = gg_transport_now(t);
        memcpy(&clock, &now, sizeof clock);
        it->hash[rank] = mixed(it->hash[rank], clock);
    }
cleanup:
    gg_cancel_all(t, sent, MESSAGES);
    gg_cancel_all(t, received, MESSAGES);
    memset(out, 0, sizeof out);
    return status;
}

static gg_status run_ring(void *context, int rank) {
    ring *it = context;
    const gg_status status = ring_steps(it, rank);
    it->returned[rank] = (int)status;
    return status;
}

static ring play(int size, double bandwidth, const gg_virtual_death *deaths, int count) {
    ring it = {.cluster = make_deadly(size, bandwidth, deaths, count)};
    CHECK_OK(gg_virtual_run(it.cluster, run_ring, &it));
    for (int i = 0; i < count; ++i) {
        const gg_virtual_death *death = &deaths[i];
        const bool dies = death->step < STEPS - 1 || death->after_messages <= MESSAGES;
        double when = -1;
        CHECK(gg_virtual_dead(it.cluster, death->rank, &when) == dies && (when >= 0) == dies);
        CHECK_INT(it.returned[death->rank], dies ? GG_ERROR_CANCELLED : GG_OK);
    }
    gg_virtual_destroy(it.cluster);
    it.cluster = NULL;
    return it;
}

/* One death after each message: all that left before it arrive, the others are lost `detect` later. */
static void test_each_message(void) {
    for (int size = 2; size <= 5; ++size)
        for (int limited = 0; limited < 2; ++limited)
            for (int step = 0; step < STEPS; ++step)
                for (int after = 0; after <= MESSAGES + 1; ++after) {
                    const gg_virtual_death death = {.rank = size - 1, .step = step, .after_messages = after};
                    const double bandwidth = limited ? 2.5e4 : 0; /* 4 ms a message */
                    const ring first = play(size, bandwidth, &death, 1), second = play(size, bandwidth, &death, 1);
                    CHECK(memcmp(first.hash, second.hash, sizeof first.hash) == 0);
                    CHECK(memcmp(first.seen, second.seen, sizeof first.seen) == 0);
                    for (int t = 0; t < STEPS; ++t)
                        for (int i = 0; i < MESSAGES; ++i) {
                            /* Messages of the last step queue for the link, so with a limit none has left. */
                            const int left = t < step           ? MESSAGES
                                             : t > step         ? 0
                                             : after > MESSAGES ? MESSAGES
                                             : limited          ? 0
                                                                : after;
                            CHECK_INT(first.seen[0][t][i], i < left ? 1 : 2);
                            for (int r = 1; r + 1 < size; ++r) CHECK_INT(first.seen[r][t][i], 1);
                        }
                }
}

/* The receiver waits from early on, so it learns of the death exactly `detect` after it. */
static void test_when(void) {
    const gg_virtual_death death = {.rank = 1, .step = 0, .after_messages = 0};
    ring it = {.cluster = make_deadly(2, 0, &death, 1)};
    double when = 0;
    CHECK_OK(gg_virtual_run(it.cluster, run_ring, &it));
    CHECK(gg_virtual_dead(it.cluster, 1, &when) && !gg_virtual_dead(it.cluster, 0, NULL));
    CHECK(it.when[0] == when + DETECT);
    CHECK_INT(gg_transport_dead(gg_virtual_transport(it.cluster, 0), 1), 1);
    CHECK_INT(gg_transport_dead(gg_virtual_transport(it.cluster, 0), 0), -1);
    CHECK_INT(gg_transport_dead(gg_virtual_transport(it.cluster, 0), -1), 1);
    /* Later runs leave it out. */
    memset(it.returned, -1, sizeof it.returned);
    CHECK_OK(gg_virtual_run(it.cluster, run_ring, &it));
    CHECK(it.returned[0] == GG_OK && it.returned[1] == -1);
    gg_virtual_destroy(it.cluster);
}

static void test_two_at_once(void) {
    for (int size = 3; size <= 8; ++size)
        for (int after = 0; after <= MESSAGES; after += 2) {
            const gg_virtual_death deaths[2] = {{1, 1, after}, {2, 1, MESSAGES - after}};
            const ring first = play(size, 0, deaths, 2), second = play(size, 0, deaths, 2);
            CHECK(memcmp(first.hash, second.hash, sizeof first.hash) == 0);
            for (int i = 0; i < MESSAGES; ++i) CHECK_INT(first.seen[3 % size][1][i], i < MESSAGES - after ? 1 : 2);
        }
}

/* ---- single messages ---- */

static char shared[MAX][BYTES];

/* Rank 1 dies with its third message. Rank 0 holds its first message, finds the second, and asks for two more. */
static gg_status run_held(void *context, int rank) {
    gg_transport *t = gg_virtual_transport(context, rank);
    gg_request first = {0}, second = {0}, third = {0}, fourth = {0}, other = {0};
    char landing[4][BYTES] = {{0}};
    bool done;
    gg_transport_step_begun(t, 1);
    if (rank == 2) {
        MUST(gg_receive_exact(t, landing[0], BYTES, 0, 75, &first));
        MUST(gg_wait(t, &first));
        MUST(gg_release(t, &first));
        MUST(gg_send(t, landing[1], BYTES, 0, 71, &second));
        return gg_wait(t, &second);
    }
    if (rank == 1) {
        MUST(gg_receive(t, landing[0], BYTES, 0, 71, &other)); /* its message is never read */
        for (int i = 0; i < BYTES; ++i) shared[0][i] = 1, shared[1][i] = 2;
        MUST(gg_send(t, shared[0], BYTES, 0, 70, &first));
        MUST(gg_send(t, shared[1], BYTES, 0, 70, &second));
        MUST(gg_transport_idle(t, 1));
        MUST(gg_progress(t)); /* rank 0 reads the first message */
        const gg_status died = gg_send(t, landing[2], BYTES, 2, 77, &third);
        CHECK(died == GG_ERROR_CANCELLED && third.state == GG_REQUEST_IDLE);
        CHECK(gg_release(t, &first) != GG_OK && gg_transport_compute(t, 1) == GG_ERROR_CANCELLED);
        gg_cancel(t, &first);
        gg_cancel(t, &second);
        gg_cancel(t, &other);
        memset(shared[1], 0, BYTES);
        return died;
    }
    MUST(gg_receive_exact(t, landing[0], BYTES, 1, 70, &first));
    MUST(gg_wait(t, &first));
    CHECK(first.state == GG_REQUEST_ARRIVED);
    MUST(gg_send(t, landing[3], 50, 1, 71, &other));
    MUST(gg_wait(t, &other));
    CHECK(other.state == GG_REQUEST_LOST && gg_transport_now(t) >= 1 + DETECT);
    CHECK(((const char *)first.data)[5] == 1);
    gg_request living = {0}; /* in one queue with receives from rank 1 */
    char from_living[BYTES];
    MUST(gg_receive_exact(t, from_living, BYTES, 2, 71, &living));
    gg_cancel(t, &first);
    MUST(gg_receive_exact(t, landing[1], BYTES, 1, 70, &second));
    MUST(gg_receive_exact(t, landing[2], BYTES, 1, 70, &third));
    MUST(gg_test(t, &second, &done));
    CHECK(done && second.state == GG_REQUEST_ARRIVED && ((const char *)second.data)[BYTES - 1] == 2);
    MUST(gg_test(t, &third, &done));
    CHECK(done && third.state == GG_REQUEST_LOST);
    CHECK_FAILS(gg_receive(t, landing[2], BYTES, 1, 70, &third), GG_ERROR_STATE, "in use");
    gg_cancel(t, &third);
    CHECK(third.state == GG_REQUEST_IDLE);
    MUST(gg_release(t, &second));
    const int64_t bytes = t->bytes_sent;
    MUST(gg_send(t, landing[3], BYTES, 1, 71, &fourth));
    MUST(gg_reach(t, &fourth, true, &done, NULL, NULL));
    CHECK(done && fourth.state == GG_REQUEST_LOST && t->bytes_sent == bytes);
    CHECK_FAILS(gg_wait_collective(t, &fourth), GG_ERROR_PEER, "rank 1 has died");
    MUST(gg_release(t, &fourth));
    MUST(gg_send(t, landing[3], BYTES, 2, 75, &fourth));
    MUST(gg_wait(t, &living));
    MUST(gg_release(t, &living));
    return gg_wait(t, &fourth);
}

static void test_held(void) {
    const gg_virtual_death death = {.rank = 1, .step = 0, .after_messages = 3};
    gg_virtual *cluster = make_deadly(3, 0, &death, 1);
    CHECK_OK(gg_virtual_run(cluster, run_held, cluster));
    gg_virtual_destroy(cluster);
}

/* A rank that waits for a living one that never sends is still a deadlock, and the dead are not counted. */
static gg_status run_hopeless(void *context, int rank) {
    gg_transport *t = gg_virtual_transport(context, rank);
    gg_request request = {0};
    char byte;
    gg_transport_step_begun(t, 1);
    GG_TRY(gg_progress(t));
    if (rank != 0) return GG_OK;
    GG_TRY(gg_receive_exact(t, &byte, 1, 2, 70, &request));
    const gg_status status = gg_wait(t, &request);
    gg_cancel(t, &request);
    return status;
}

static void test_deadlock(void) {
    const gg_virtual_death death = {.rank = 1, .step = 0, .after_messages = 0};
    gg_virtual *cluster = make_deadly(3, 0, &death, 1);
    CHECK_FAILS(gg_virtual_run(cluster, run_hopeless, cluster), GG_ERROR_COMM, "1 of 2 have returned");
    gg_virtual_destroy(cluster);
}

/* ---- random messages ---- */

enum { ROUNDS = 30, SLOTS = 6 };

typedef struct storm {
    gg_virtual *cluster;
    uint64_t seed, hash[MAX];
} storm;

/* In each round every rank sends to ranks, and receives from ranks, that a common draw names; requests of several
 * rounds are outstanding. Every wait must end. */
static gg_status run_storm(void *context, int rank) {
    storm *it = context;
    gg_status status = GG_OK;
    gg_transport *t = gg_virtual_transport(it->cluster, rank);
    char out[SLOTS][64] = {{0}}, in[SLOTS][64];
    gg_request sent[SLOTS] = {0}, received[SLOTS] = {0};
    for (int round = 0; round < ROUNDS; ++round) {
        const gg_random_key key = {.seed = it->seed, .purpose = GG_RANDOM_TEST, .step = (uint64_t)round};
        uint32_t word[4];
        gg_random_block(&key, 0, word);
        const int hop = 1 + (int)(word[0] % (uint32_t)(t->size - 1)), slot = round % SLOTS;
        gg_transport_step_begun(t, round + 1);
        GG_TRY_CLEANUP(gg_transport_idle(t, 0.001 * (double)((word[1] + (uint32_t)rank * 7) % 20)));
        for (int k = 0; k < 2; ++k) {
            gg_request *request = k == 0 ? &received[slot] : &sent[slot];
            GG_TRY_CLEANUP(gg_wait(t, request));
            if (request->state == GG_REQUEST_ARRIVED)
                it->hash[rank] = mixed(it->hash[rank], ((const unsigned char *)request->data)[0]);
            it->hash[rank] = mixed(it->hash[rank], (uint64_t)request->state);
            GG_TRY_CLEANUP(gg_release(t, request));
        }
        memset(out[slot], rank + round, sizeof out[slot]);
        GG_TRY_CLEANUP(
            gg_receive(t, in[slot], 64, (rank + t->size - hop) % t->size, 70 + (int)(word[2] % 3), &received[slot]));
        GG_TRY_CLEANUP(
            gg_send(t, out[slot], 1 + word[3] % 64, (rank + hop) % t->size, 70 + (int)(word[2] % 3), &sent[slot]));
        if (word[3] & 64) GG_TRY_CLEANUP(gg_progress(t));
    }
    for (int k = 0; k < 2; ++k)
        for (int slot = 0; slot < SLOTS; ++slot) {
            gg_request *request = k == 0 ? &received[slot] : &sent[slot];
            GG_TRY_CLEANUP(gg_wait(t, request));
            it->hash[rank] = mixed(it->hash[rank], (uint64_t)request->state);
            GG_TRY_CLEANUP(gg_release(t, request));
        }
    uint64_t clock;
    const double now = gg_transport_now(t);
    memcpy(&clock, &now, sizeof clock);
    it->hash[rank] = mixed(it->hash[rank], clock);
cleanup:
    gg_cancel_all(t, sent, SLOTS);
    gg_cancel_all(t, received, SLOTS);
    return status;
}

static void test_storm(void) {
    for (uint64_t seed = 0; seed < 60; ++seed) {
        const int size = 2 + (int)(seed % 6), deaths = 1 + (int)(seed % 3);
        gg_virtual_death death[3];
        storm it[2] = {{.seed = seed}, {.seed = seed}};
        for (int i = 0; i < deaths; ++i)
            death[i] = (gg_virtual_death){.rank = (int)(seed + (uint64_t)i) % size,
                                          .step = (int64_t)(seed * 5 % ROUNDS) + i,
                                          .after_messages = (int64_t)((seed + (uint64_t)i) % 3)};
        for (int again = 0; again < 2; ++again) {
            it[again].cluster = make_deadly(size, seed % 4 == 0 ? 0 : 1e4, death, deaths < size ? deaths : size);
            CHECK_OK(gg_virtual_run(it[again].cluster, run_storm, &it[again]));
            gg_virtual_destroy(it[again].cluster);
        }
        CHECK(memcmp(it[0].hash, it[1].hash, sizeof it[0].hash) == 0);
    }
}

/* ---- collectives ---- */

typedef struct collectives {
    gg_virtual *cluster;
    int which, dead;
    int returned[MAX];
    double mean[MAX];
} collectives;

enum { BARRIER, BROADCAST, GATHER, AGREE, DOUBLES, REDUCE, LINK, COLLECTIVES };

static void weighted_sum(gg_device *device, size_t n, int sources, const float *const *source, const float *scale,
                         float *out) {
    (void)device;
    for (size_t i = 0; i < n; ++i) {
        float sum = 0;
        for (int k = 0; k < sources; ++k) sum += scale[k] * source[k][i];
        out[i] = sum;
    }
}

static const gg_backend backend = {.name = "test", .weighted_sum = weighted_sum};

static gg_status reduce(gg_transport *t) {
    gg_status status = GG_OK;
    gg_device device = {.table = &backend, .threads = 1};
    gg_allreduce *sum = NULL;
    float *data = NULL, share[MAX];
    for (int r = 0; r < t->size; ++r) share[r] = 1;
    GG_TRY_CLEANUP(gg_message_alloc(t, 64 * sizeof *data, "values", &data));
    GG_TRY_CLEANUP(gg_allreduce_create(t, &device, 64, GG_TAG_ALLREDUCE, NULL, GG_COLLECTIVES_OWN, &sum));
    GG_TRY_CLEANUP(gg_allreduce_run(sum, data, share));
cleanup:
    gg_allreduce_destroy(sum);
    gg_message_free(t, data);
    return status;
}

static gg_status collective(gg_transport *t, int which) {
    char data[8] = {0}, all[8 * MAX];
    double value = 1;
    gg_link link;
    switch (which) {
    case BARRIER: return gg_barrier(t);
    case BROADCAST: return gg_broadcast(t, data, sizeof data, t->size / 2);
    case GATHER: return gg_allgather(t, data, sizeof data, all);
    case AGREE: return gg_agree(t, data, sizeof data, all);
    case DOUBLES: return gg_allreduce_doubles(t, &value, 1);
    case REDUCE: return reduce(t);
    default: return gg_link_measure(t, 4096, &link);
    }
}

/* All ranks come at times of their own; one dies in it. Then the living make the same call in a group of their own. */
static gg_status run_collective(void *context, int rank) {
    collectives *it = context;
    gg_status status = GG_OK;
    gg_transport *t = gg_virtual_transport(it->cluster, rank), *living = NULL;
    int member[MAX], count = 0;
    gg_transport_step_begun(t, 1);
    GG_TRY(gg_transport_idle(t, 0.1 * ((rank * 5) % 3)));
    it->returned[rank] = (int)collective(t, it->which);
    if (rank == it->dead) { /* at the latest it dies now */
        gg_transport_step_begun(t, 2);
        return gg_progress(t);
    }
    if (it->returned[rank] == GG_ERROR_PEER) {
        char name[32];
        snprintf(name, sizeof name, "rank %d has died", it->dead);
        CHECK(strstr(gg_error_message(), name) != NULL);
    }
    for (int r = 0; r < t->size; ++r)
        if (r != it->dead) member[count++] = r;
    GG_TRY_CLEANUP(gg_subgroup_create(t, member, count, &living));
    CHECK_INT(living->identity, rank);
    GG_TRY_CLEANUP(gg_transport_idle(t, 1 + DETECT)); /* all have left the first call, */
    GG_TRY_CLEANUP(gg_progress(t));                   /* and run up to here */
    CHECK_INT(gg_transport_dead(t, -1), it->dead);
    CHECK_INT(gg_transport_dead(living, -1), -1);
    GG_TRY_CLEANUP(collective(living, it->which));
cleanup:
    gg_transport_destroy(living);
    return status;
}

static void test_collectives(void) {
    for (int which = 0; which < COLLECTIVES; ++which)
        for (int size = 2; size <= 6; ++size)
            for (int dead = 0; dead < size; ++dead)
                for (int after = 0; after < 5; ++after) {
                    const gg_virtual_death death = {.rank = dead, .step = 0, .after_messages = after};
                    collectives it = {.cluster = make_deadly(size, 0, &death, 1), .which = which, .dead = dead};
                    CHECK_OK(gg_virtual_run(it.cluster, run_collective, &it));
                    CHECK(gg_virtual_dead(it.cluster, dead, NULL));
                    for (int r = 0; r < size; ++r)
                        CHECK(r == dead || it.returned[r] == GG_OK || it.returned[r] == GG_ERROR_PEER);
                    if (after == 0 && which != BROADCAST)
                        for (int r = 0; r < size; ++r) CHECK(r == dead || it.returned[r] == GG_ERROR_PEER);
                    gg_virtual_destroy(it.cluster);
                }
}

/* ---- services, measuring, options ---- */

/* Rank 0 has returned and serves; rank 1 asks it once and dies with the second question; rank 2 asks on. */
typedef struct asked {
    gg_virtual *cluster;
    gg_request question[2];
    char landing[2], answers;
} asked;

static gg_status serve(void *context, bool *busy) {
    asked *it = context;
    gg_transport *t = gg_virtual_transport(it->cluster, 0);
    for (int i = 0; i < 2; ++i) {
        bool done = false;
        if (it->question[i].state == GG_REQUEST_LOST) continue;
        GG_TRY(gg_test(t, &it->question[i], &done));
        if (!done || it->question[i].state == GG_REQUEST_LOST) continue;
        GG_TRY(gg_release(t, &it->question[i]));
        GG_TRY(gg_receive_exact(t, &it->landing[i], 1, i + 1, 70, &it->question[i]));
        it->answers++;
        *busy = true;
    }
    return GG_OK;
}

static gg_status run_asked(void *context, int rank) {
    asked *it = context;
    gg_transport *t = gg_virtual_transport(it->cluster, rank);
    gg_request question = {0};
    char byte = 1;
    gg_transport_step_begun(t, 1);
    if (rank == 0) {
        for (int i = 0; i < 2; ++i) GG_TRY(gg_receive_exact(t, &it->landing[i], 1, i + 1, 70, &it->question[i]));
        gg_transport_set_service(t, &(gg_service){serve, it});
        return GG_OK;
    }
    for (int i = 0; i < 3; ++i) {
        GG_TRY(gg_send(t, &byte, 1, 0, 70, &question));
        GG_TRY(gg_wait(t, &question));
        GG_TRY(gg_transport_idle(t, rank == 2 ? 2 * DETECT : 0.01));
    }
    return GG_OK;
}

static void test_served(void) {
    const gg_virtual_death death = {.rank = 1, .step = 0, .after_messages = 2};
    asked it = {.cluster = make_deadly(3, 0, &death, 1)};
    CHECK_OK(gg_virtual_run(it.cluster, run_asked, &it));
    CHECK_INT(it.answers, 5); /* the last message of the dead rank arrives */
    gg_transport *t = gg_virtual_transport(it.cluster, 0);
    gg_transport_set_service(t, &(gg_service){0});
    gg_cancel_all(t, it.question, 2);
    gg_virtual_destroy(it.cluster);
}

static gg_status run_count(void *context, int rank) {
    gg_transport *t = gg_virtual_transport(((ring *)context)->cluster, rank);
    ++((ring *)context)->returned[rank];
    gg_transport_step_begun(t, 1);
    return gg_barrier(t);
}

/* No rank dies beside the clock; a dead one stays out there as well. */
static void test_aside(void) {
    const gg_virtual_death death = {.rank = 1, .step = 0, .after_messages = 1};
    ring it = {.cluster = make_deadly(2, 0, &death, 1)};
    CHECK_OK(gg_virtual_run_aside(it.cluster, run_count, &it));
    CHECK(!gg_virtual_dead(it.cluster, 1, NULL) && it.returned[0] == 1 && it.returned[1] == 1);
    (void)gg_virtual_run(it.cluster, run_count, &it);
    CHECK(gg_virtual_dead(it.cluster, 1, NULL) && it.returned[0] == 2 && it.returned[1] == 2);
    gg_virtual_destroy(it.cluster);
}

static void test_options(void) {
    const gg_virtual_death outside[] = {{2, 0, 0}}, negative[] = {{0, 0, -1}}, twice[] = {{1, 0, 0}, {1, 3, 0}};
    gg_virtual_options options = {.size = 2, .compute_rate = 1, .deaths = outside, .death_count = 1};
    gg_virtual *cluster = NULL;
    CHECK_FAILS(gg_virtual_create(&options, &cluster), GG_ERROR_ARGUMENT, "rank 2, expected 0 to 1");
    options.deaths = negative;
    CHECK_FAILS(gg_virtual_create(&options, &cluster), GG_ERROR_ARGUMENT, "-1 messages");
    options.deaths = twice;
    options.death_count = 2;
    CHECK_FAILS(gg_virtual_create(&options, &cluster), GG_ERROR_ARGUMENT, "two deaths of rank 1");
    options.death_count = 1;
    options.detect = NAN;
    CHECK_FAILS(gg_virtual_create(&options, &cluster), GG_ERROR_ARGUMENT, "detect");
}

int main(void) {
    test_each_message();
    test_when();
    test_two_at_once();
    test_held();
    test_deadlock();
    test_storm();
    test_collectives();
    test_served();
    test_aside();
    test_options();
    CHECK(gg_memory_live_bytes() == 0);
    return check_report();
}
