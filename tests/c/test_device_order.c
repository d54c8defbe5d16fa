/* Messages in the order of a separate device's work: what is held back, until when, and in which order. Two ranks of a
 * post office that delivers at once, in one thread, with devices whose work is done when the test says so. */
#include <stdlib.h>

#include "check.h"
#include "comm/device_order.h"
#include "comm/network.h"
#include "late_device.h"
#include "post_office.h"

/* ---- two ranks, each with a device ---- */

typedef struct pair {
    post_office office;
    late_device device[2];
    gg_transport *rank[2];
} pair;

static void pair_open(pair *p, const gg_transport_table *table) {
    memset(p, 0, sizeof *p);
    for (int r = 0; r < 2; ++r) {
        p->office.rank[r] =
            (post_rank){.transport = {.table = table, .rank = r, .size = 2, .identity = r + 5}, .office = &p->office};
        late_open(&p->device[r]);
        CHECK_OK(gg_device_order_create(&p->office.rank[r].transport, &p->device[r].head, &p->rank[r]));
    }
}

static void pair_close(pair *p) {
    for (int r = 0; r < 2; ++r) {
        gg_transport_destroy(p->rank[r]);
        CHECK_INT(p->device[r].shared, 0);
        CHECK(p->device[r].head.shared == NULL); /* the list of shared memory is freed with the last block */
    }
}

static int passed(const pair *p, int rank) { return p->office.rank[rank].passed; }

enum { BYTES = 192 };

/* Message memory is collective but where the transport stands; other memory that the device shares is held back alike.
 */
static unsigned char *message_memory(pair *p, int rank) {
    unsigned char *block = NULL;
    if (p->rank[rank]->table->stands) CHECK_OK(gg_message_alloc(p->rank[rank], BYTES, "message", &block));
    else CHECK_OK(gg_device_alloc_host(&p->device[rank].head, BYTES, "message", &block));
    return block;
}

static void message_free(pair *p, int rank, void *block) {
    if (p->rank[rank]->table->stands) gg_message_free(p->rank[rank], block);
    else gg_device_free_host(&p->device[rank].head, block);
}

static unsigned char *landing_memory(pair *p, int rank) {
    unsigned char *block = NULL;
    CHECK_OK(gg_device_alloc_landing(&p->device[rank].head, BYTES, "landing", &block));
    return block;
}

/* Memory of the device, filled with a byte. */
static unsigned char *filled(pair *p, int rank, unsigned char byte) {
    unsigned char *block = NULL;
    CHECK_OK(gg_device_alloc(&p->device[rank].head, BYTES, "arena", &block));
    memset(block, byte, BYTES);
    return block;
}

static void copy(pair *p, int rank, void *to, const void *from) {
    gg_device_copy(&p->device[rank].head, GG_QUEUE_COMPUTE, to, from, BYTES);
}

static bool is_full_of(const unsigned char *at, unsigned char byte) {
    for (int i = 0; i < BYTES; ++i)
        if (at[i] != byte) return false;
    return true;
}

static bool tested(gg_transport *t, gg_request *request) {
    bool done = false;
    CHECK_OK(gg_test(t, request, &done));
    return done;
}

/* ---- cases ---- */

static void test_none_where_not_separate(void) {
    static const gg_backend host = {.name = "host"};
    gg_device device = {.table = &host};
    post_rank rank = {.transport = {.table = &post_table, .size = 2}};
    gg_transport *made = &rank.transport;
    CHECK_OK(gg_device_order_create(&rank.transport, &device, &made));
    CHECK(made == NULL);
    unsigned char *landing = NULL;
    CHECK_OK(gg_device_alloc_landing(&device, BYTES, "landing", &landing));
    CHECK(landing != NULL && !gg_device_shares(&device, landing));
    gg_device_free_host(&device, landing);
}

static void stay(gg_transport *transport) { (void)transport; }

/* Both transports read memory of a GPU, but a slow network in front hides it: the network passes messages on without
 * the place of their memory. */
static void test_a_slow_network_reads_no_devices(void) {
    static const gg_transport_table left = {.destroy = stay};
    for (int slow = 0; slow < 2; ++slow) {
        gg_transport mpi = {.table = &left, .size = 2, .reads_devices = true, .may_read_devices = true};
        gg_transport *inner = &mpi, *made = NULL;
        late_device device;
        late_open(&device);
        if (slow) CHECK_OK(gg_network_transport_create(&mpi, &(gg_network){.latency = 1}, &inner));
        CHECK(inner->reads_devices == !slow && inner->may_read_devices == !slow);
        CHECK_OK(gg_device_order_create(inner, &device.head, &made));
        CHECK(device.head.own_messages == !slow);
        gg_transport_destroy(made);
        if (slow) gg_transport_destroy(inner);
    }
}

/* A send leaves when the work that writes it is done, in whichever call comes next. */
static void test_send(void) {
    pair p;
    pair_open(&p, &post_table);
    for (int by = 0; by < 5; ++by) {
        gg_request send = {0}, receive = {0}, unused = {0};
        unsigned char *message = message_memory(&p, 0), *landing = landing_memory(&p, 1), *arena = filled(&p, 0, 9);
        const int before = passed(&p, 0);
        copy(&p, 0, message, arena);
        copy(&p, 0, arena, message); /* work behind it is done before as well: the mark is made at the send */
        CHECK_OK(gg_send(p.rank[0], message, BYTES, 1, 70, &send));
        CHECK_INT(p.rank[0]->bytes_sent, BYTES * (by + 1));
        copy(&p, 0, arena, message); /* given later: not waited for */
        late_do(&p.device[0], 1);
        CHECK(!tested(p.rank[0], &send) && passed(&p, 0) == before);
        CHECK_OK(gg_progress(p.rank[0]));
        CHECK_INT(passed(&p, 0), before);
        late_do(&p.device[0], 1);
        if (by == 0) CHECK(!tested(p.rank[0], &send)); /* nobody has received it */
        if (by == 1) CHECK_OK(gg_progress(p.rank[0]));
        if (by == 2) CHECK_OK(gg_pause(p.rank[0], 0, -1));
        if (by == 3) CHECK_OK(gg_transport_idle(p.rank[0], 0));
        if (by == 4) {
            CHECK_OK(gg_receive(p.rank[0], &unused, 1, 1, 99, &unused)); /* of host memory */
            gg_cancel(p.rank[0], &unused);
        }
        CHECK_INT(passed(&p, 0) % 1000, (before + (by == 4 ? 2 : 1)) % 1000);
        CHECK_OK(gg_receive_exact(p.rank[1], landing, BYTES, 0, 70, &receive));
        CHECK_OK(gg_wait(p.rank[1], &receive));
        CHECK(is_full_of(receive.data, 9));
        CHECK(!tested(p.rank[0], &send));
        CHECK_OK(gg_release(p.rank[1], &receive));
        CHECK(tested(p.rank[0], &send) && send.state == GG_REQUEST_IDLE);
        CHECK(p.device[0].done < p.device[0].given); /* nothing waited for the device */
        message_free(&p, 0, message);
        gg_device_free_host(&p.device[1].head, landing);
        gg_device_free(&p.device[0].head, arena);
    }
    CHECK_INT(p.rank[0]->messages_sent, p.office.rank[0].transport.messages_sent);
    pair_close(&p);
}

/* A landing is written again when the work that reads its last message is done. */
static void test_landing(void) {
    pair p;
    pair_open(&p, &post_table);
    gg_request send[2] = {0}, receive = {0};
    unsigned char *message[2], *landing = landing_memory(&p, 1), *arena = filled(&p, 1, 0);
    for (int i = 0; i < 2; ++i) {
        message[i] = message_memory(&p, 0);
        memset(message[i], i + 1, BYTES);
        CHECK_OK(gg_send(p.rank[0], message[i], BYTES, 1, 70, &send[i]));
    }
    CHECK_OK(gg_receive_exact(p.rank[1], landing, BYTES, 0, 70, &receive));
    CHECK(tested(p.rank[1], &receive));
    CHECK(receive.data == landing && is_full_of(landing, 1)); /* copied out of the sender's memory */
    copy(&p, 1, arena, landing);
    CHECK_OK(gg_release(p.rank[1], &receive)); /* the sender need not wait for this device */
    CHECK(tested(p.rank[0], &send[0]));
    memset(message[0], 77, BYTES);
    const int before = passed(&p, 1);
    CHECK_OK(gg_receive_exact(p.rank[1], landing, BYTES, 0, 70, &receive));
    CHECK(!tested(p.rank[1], &receive) && passed(&p, 1) == before);
    CHECK(is_full_of(landing, 1));
    late_do_all(&p.device[1]);
    CHECK(is_full_of(arena, 1));
    CHECK(tested(p.rank[1], &receive) && receive.data == landing && is_full_of(landing, 2) && receive.exact);
    CHECK_OK(gg_release(p.rank[1], &receive));
    CHECK(tested(p.rank[0], &send[1]));
    for (int i = 0; i < 2; ++i) message_free(&p, 0, message[i]);
    gg_device_free_host(&p.device[1].head, landing);
    gg_device_free(&p.device[1].head, arena);
    pair_close(&p);
}

/* Host memory that no device shares waits for no work and is read where the sender has it. */
static void test_host_memory(void) {
    pair p;
    pair_open(&p, &post_table);
    gg_request send = {0}, receive = {0};
    unsigned char from[BYTES], to[BYTES] = {0}, *arena = filled(&p, 0, 3), *other = filled(&p, 1, 3);
    memset(from, 5, sizeof from);
    copy(&p, 0, arena + 0, arena);
    copy(&p, 1, other + 0, other);
    CHECK_OK(gg_send(p.rank[0], from, BYTES, 1, 70, &send));
    CHECK_OK(gg_receive(p.rank[1], to, BYTES, 0, 70, &receive));
    CHECK(passed(&p, 0) == 1 && passed(&p, 1) == 1);
    CHECK(tested(p.rank[1], &receive) && receive.data == from && to[0] == 0);
    CHECK_OK(gg_release(p.rank[1], &receive));
    CHECK(p.device[0].done == 0 && p.device[1].done == 0);
    gg_device_free(&p.device[0].head, arena);
    gg_device_free(&p.device[1].head, other);
    pair_close(&p);
}

/* Messages of one tag leave in the order of their sends, wherever they lie; others may overtake them. */
static void test_order(void) {
    pair p;
    pair_open(&p, &post_table);
    gg_request send[4] = {0}, receive[4] = {0};
    unsigned char plain[BYTES], landing[4][BYTES], *shared[2] = {message_memory(&p, 0), message_memory(&p, 0)};
    unsigned char *arena = filled(&p, 0, 1);
    memset(plain, 2, sizeof plain);
    copy(&p, 0, shared[0], arena);
    CHECK_OK(gg_send(p.rank[0], shared[0], BYTES, 1, 70, &send[0]));
    CHECK_OK(gg_send(p.rank[0], plain, BYTES, 1, 70, &send[1])); /* behind it */
    CHECK_INT(passed(&p, 0), 0);
    CHECK_OK(gg_send(p.rank[0], plain, BYTES, 1, 71, &send[2]));
    CHECK_INT(passed(&p, 0), 1); /* past both */
    gg_device_zero(&p.device[0].head, GG_QUEUE_COMPUTE, shared[1], BYTES);
    CHECK_OK(gg_send(p.rank[0], shared[1], BYTES, 1, 70, &send[3]));
    late_do(&p.device[0], 1);
    CHECK(!tested(p.rank[0], &send[3]));
    CHECK_INT(passed(&p, 0), 3);
    late_do(&p.device[0], 1);
    CHECK_OK(gg_progress(p.rank[0]));
    CHECK_INT(passed(&p, 0), 4);
    static const int wanted[3] = {1, 2, 0};
    for (int i = 0; i < 3; ++i) {
        CHECK_OK(gg_receive_exact(p.rank[1], landing[i], BYTES, 0, 70, &receive[i]));
        CHECK(tested(p.rank[1], &receive[i]) && is_full_of(receive[i].data, (unsigned char)wanted[i]));
        CHECK_OK(gg_release(p.rank[1], &receive[i]));
    }
    CHECK_OK(gg_receive_exact(p.rank[1], landing[3], BYTES, 0, 71, &receive[3]));
    CHECK(tested(p.rank[1], &receive[3]));
    CHECK_OK(gg_release(p.rank[1], &receive[3]));
    for (int i = 0; i < 4; ++i) CHECK(tested(p.rank[0], &send[i]));
    for (int i = 0; i < 2; ++i) message_free(&p, 0, shared[i]);
    gg_device_free(&p.device[0].head, arena);
    pair_close(&p);
}

/* The device is done with both between two looks at it. */
static void test_order_in_a_race(void) {
    pair p;
    pair_open(&p, &post_table);
    gg_request send[2] = {0}, receive[2] = {0};
    unsigned char landing[2][BYTES], *shared[2] = {message_memory(&p, 0), message_memory(&p, 0)};
    unsigned char *arena[2] = {filled(&p, 0, 1), filled(&p, 0, 2)};
    for (int i = 0; i < 2; ++i) {
        copy(&p, 0, shared[i], arena[i]);
        p.device[0].surge = 2 * i;
        CHECK_OK(gg_send(p.rank[0], shared[i], BYTES, 1, 70, &send[i]));
    }
    late_do_all(&p.device[0]);
    CHECK_OK(gg_progress(p.rank[0]));
    for (int i = 0; i < 2; ++i) {
        CHECK_OK(gg_receive_exact(p.rank[1], landing[i], BYTES, 0, 70, &receive[i]));
        CHECK(tested(p.rank[1], &receive[i]) && is_full_of(receive[i].data, (unsigned char)(i + 1)));
        CHECK_OK(gg_release(p.rank[1], &receive[i]));
        CHECK(tested(p.rank[0], &send[i]));
        message_free(&p, 0, shared[i]);
        gg_device_free(&p.device[0].head, arena[i]);
    }
    pair_close(&p);
}

/* A wait for what is held back ends; the transport behind never hears of it before. */
static void test_wait(void) {
    pair p;
    pair_open(&p, &post_table);
    gg_request send = {0}, receive = {0};
    unsigned char from[BYTES], *landing = landing_memory(&p, 1), *arena = filled(&p, 1, 3);
    memset(from, 4, sizeof from);
    CHECK_OK(gg_send(p.rank[0], from, BYTES, 1, 70, &send));
    copy(&p, 1, arena, landing);
    CHECK_OK(gg_receive_exact(p.rank[1], landing, BYTES, 0, 70, &receive));
    p.device[1].surge = 8;
    CHECK_OK(gg_wait(p.rank[1], &receive));
    CHECK(is_full_of(landing, 4) && is_full_of(arena, 0));
    CHECK(passed(&p, 1) > 1000); /* it has paused */
    CHECK_OK(gg_release(p.rank[1], &receive));
    CHECK(tested(p.rank[0], &send));
    gg_device_free_host(&p.device[1].head, landing);
    gg_device_free(&p.device[1].head, arena);
    pair_close(&p);
}

/* Before a rank does something else, all that its wrappers hold back leaves. */
static void test_flush(void) {
    pair p;
    pair_open(&p, &post_table);
    gg_transport *inner = &p.office.rank[0].transport, *second = NULL;
    gg_request send[3] = {0};
    unsigned char plain[BYTES] = {0}, *shared = message_memory(&p, 0), *arena = filled(&p, 0, 1);
    CHECK_OK(gg_device_order_create(inner, &p.device[0].head, &second));
    CHECK_OK(gg_device_order_flush(inner));
    copy(&p, 0, shared, arena);
    CHECK_OK(gg_send(p.rank[0], shared, BYTES, 1, 70, &send[0]));
    CHECK_OK(gg_send(p.rank[0], plain, BYTES, 1, 70, &send[1]));
    CHECK_OK(gg_send(second, shared, BYTES, 1, 71, &send[2]));
    CHECK_INT(passed(&p, 0), 0);
    CHECK_OK(gg_device_order_flush(inner));
    CHECK_INT(passed(&p, 0), 3);
    CHECK(is_full_of(shared, 1));
    gg_cancel_all(p.rank[0], send, 2);
    gg_cancel(second, &send[2]);
    gg_transport_destroy(p.rank[0]); /* the one that was made first */
    CHECK(inner->holding == second);
    gg_transport_destroy(second);
    CHECK(inner->holding == NULL);
    CHECK_OK(gg_device_order_create(inner, &p.device[0].head, &p.rank[0]));
    message_free(&p, 0, shared);
    gg_device_free(&p.device[0].head, arena);
    pair_close(&p);
}

/* The same of receives: one into host memory does not get the message of one that is held back. */
static void test_order_of_receives(void) {
    pair p;
    pair_open(&p, &post_table);
    gg_request send[2] = {0}, receive[2] = {0};
    unsigned char from[2][BYTES], host[BYTES], *landing = landing_memory(&p, 1), *arena = filled(&p, 1, 0);
    copy(&p, 1, arena, landing);
    CHECK_OK(gg_receive_exact(p.rank[1], landing, BYTES, 0, 70, &receive[0]));
    CHECK_OK(gg_receive_exact(p.rank[1], host, BYTES, 0, 70, &receive[1]));
    CHECK_INT(passed(&p, 1), 0);
    for (int i = 0; i < 2; ++i) {
        memset(from[i], i + 1, BYTES);
        CHECK_OK(gg_send(p.rank[0], from[i], BYTES, 1, 70, &send[i]));
    }
    CHECK(!tested(p.rank[1], &receive[1]) && !tested(p.rank[1], &receive[0]));
    late_do_all(&p.device[1]);
    for (int i = 0; i < 2; ++i) {
        CHECK(tested(p.rank[1], &receive[i]) && is_full_of(receive[i].data, (unsigned char)(i + 1)));
        CHECK_OK(gg_release(p.rank[1], &receive[i]));
        CHECK(tested(p.rank[0], &send[i]));
    }
    gg_device_free_host(&p.device[1].head, landing);
    gg_device_free(&p.device[1].head, arena);
    pair_close(&p);
}

/* Of several that are held back any one may be cancelled; the others leave. */
static void test_cancel(void) {
    enum { N = 3 };
    for (int which = 0; which <= N; ++which)
        for (int receives = 0; receives < 2; ++receives) {
            pair p;
            pair_open(&p, &post_table);
            gg_request request[N + 1] = {0};
            unsigned char *memory[N], *arena = filled(&p, 0, 1);
            for (int i = 0; i < N; ++i) {
                memory[i] = receives ? landing_memory(&p, 0) : message_memory(&p, 0);
                copy(&p, 0, memory[i], arena);
                if (receives) CHECK_OK(gg_receive(p.rank[0], memory[i], BYTES, 1, 70 + i, &request[i]));
                else CHECK_OK(gg_send(p.rank[0], memory[i], BYTES, 1, 70 + i, &request[i]));
            }
            for (int i = 0; i < N; ++i)
                if (which == N || i == which) gg_cancel(p.rank[0], &request[i]);
            for (int i = 0; i < N; ++i)
                CHECK((request[i].state == GG_REQUEST_IDLE) == (which == N || i == which) &&
                      request[i].awaits_device == (request[i].state != GG_REQUEST_IDLE));
            CHECK(p.device[0].done == 0);
            /* The line still has an end to which others are added. */
            if (receives) CHECK_OK(gg_receive(p.rank[0], memory[0], BYTES, 1, 80, &request[N]));
            else CHECK_OK(gg_send(p.rank[0], memory[0], BYTES, 1, 80, &request[N]));
            late_do_all(&p.device[0]);
            CHECK_OK(gg_progress(p.rank[0]));
            CHECK_INT(passed(&p, 0), which == N ? 1 : N);
            CHECK_INT(p.office.rank[0].last_tag, 80);
            gg_cancel_all(p.rank[0], request, N + 1); /* those that were passed on */
            for (int i = 0; i <= N; ++i) CHECK(request[i].state == GG_REQUEST_IDLE);
            CHECK_INT(p.office.rank[0].receives, receives ? passed(&p, 0) : 0);
            for (int i = 0; i < passed(&p, 0); ++i)
                CHECK(receives ? p.office.rank[0].receive[i] == NULL : p.office.sent[0][i] == NULL);
            for (int i = 0; i < N; ++i) {
                if (receives) gg_device_free_host(&p.device[0].head, memory[i]);
                else message_free(&p, 0, memory[i]);
            }
            gg_device_free(&p.device[0].head, arena);
            pair_close(&p);
        }
}

/* One that has arrived, and a sum. */
static void test_cancel_later(void) {
    pair p;
    pair_open(&p, &post_table);
    gg_request send = {0}, receive = {0}, sum = {0};
    unsigned char *message = message_memory(&p, 0), *landing = landing_memory(&p, 1);
    CHECK_OK(gg_send(p.rank[0], message, BYTES, 1, 70, &send));
    CHECK_OK(gg_receive(p.rank[1], landing, BYTES, 0, 70, &receive));
    CHECK(tested(p.rank[1], &receive) && !tested(p.rank[0], &send));
    gg_cancel(p.rank[1], &receive);
    CHECK(receive.state == GG_REQUEST_IDLE && tested(p.rank[0], &send)); /* its sender goes on */
    CHECK_OK(gg_sum_prepare(p.rank[0]));
    gg_device_zero(&p.device[0].head, GG_QUEUE_COMPUTE, message, BYTES);
    CHECK_OK(gg_sum(p.rank[0], p.rank[0]->sums, (float *)(void *)message, BYTES / sizeof(float), &sum));
    gg_cancel(p.rank[0], &sum);
    late_do_all(&p.device[0]);
    CHECK_OK(gg_progress(p.rank[0]));
    CHECK(p.office.summed[0] == NULL && sum.state == GG_REQUEST_IDLE);
    message_free(&p, 0, message);
    gg_device_free_host(&p.device[1].head, landing);
    pair_close(&p);
}

static void test_sum(void) {
    pair p;
    pair_open(&p, &post_table);
    gg_request sum[2] = {0}, send = {0};
    float *data = (float *)(void *)message_memory(&p, 0), *arena = (float *)(void *)filled(&p, 0, 0);
    arena[5] = 2;
    CHECK_OK(gg_sum_prepare(p.rank[0]));
    copy(&p, 0, data, arena);
    CHECK_OK(gg_sum(p.rank[0], p.rank[0]->sums, data, 16, &sum[0]));
    CHECK(!tested(p.rank[0], &sum[0]) && p.office.summed[0] == NULL);
    CHECK_OK(gg_send(p.rank[0], data + 16, 64, 1, 70, &send)); /* in line behind it */
    late_do_all(&p.device[0]);
    CHECK(!tested(p.rank[0], &sum[0]));
    CHECK(p.office.summed[0] == data && data[5] == 2 && passed(&p, 0) == 2);
    p.office.may_end = true;
    CHECK(tested(p.rank[0], &sum[0]) && sum[0].state == GG_REQUEST_IDLE);
    gg_cancel(p.rank[0], &send);
    message_free(&p, 0, data);
    gg_device_free(&p.device[0].head, arena);
    pair_close(&p);
}

/* Where the world stands still while a rank waits, calls wait and nothing is held back. */
static void test_standing(void) {
    pair p;
    pair_open(&p, &standing_table);
    gg_request send = {0}, receive = {0};
    unsigned char *message = message_memory(&p, 0), *landing = landing_memory(&p, 1), *arena = filled(&p, 0, 6);
    CHECK(p.rank[0]->table->stands);
    copy(&p, 0, message, arena);
    CHECK_OK(gg_send(p.rank[0], message, BYTES, 1, 70, &send));
    CHECK(passed(&p, 0) == 1 && is_full_of(message, 6) && !send.awaits_device);
    copy(&p, 0, arena, message);
    copy(&p, 1, arena, landing);
    CHECK_OK(gg_receive(p.rank[1], landing, BYTES, 0, 70, &receive));
    CHECK(passed(&p, 1) == 1 && p.device[1].done == 1 && p.device[0].done == 1);
    CHECK(tested(p.rank[1], &receive) && is_full_of(landing, 6));
    CHECK_OK(gg_release(p.rank[1], &receive));
    CHECK(tested(p.rank[0], &send));
    message_free(&p, 0, message);
    gg_device_free_host(&p.device[1].head, landing);
    gg_device_free(&p.device[0].head, arena);
    pair_close(&p);
}

static gg_status serve_nothing(void *context, bool *busy) {
    (void)context, (void)busy;
    return GG_OK;
}

static void test_passed_through(void) {
    pair p;
    pair_open(&p, &post_table);
    gg_transport *t = p.rank[0], *inner = &p.office.rank[0].transport;
    gg_request send = {0};
    unsigned char *message = message_memory(&p, 0), *arena = filled(&p, 0, 1);
    gg_transport_set_epoch(t, 3);
    CHECK(inner->epoch == 3);
    gg_transport_set_service(t, &(gg_service){.serve = serve_nothing, .context = &p});
    CHECK(inner->service.context == &p && t->service.context == &p);
    gg_transport_set_service(t, &(gg_service){0});
    CHECK(inner->service.serve == NULL);
    inner->timeout = 12;
    CHECK_OK(gg_progress(t));
    CHECK(t->timeout == 12);
    CHECK(gg_transport_now(t) == 7 && strcmp(t->table->name, "post") == 0);
    CHECK_FAILS(t->table->check_peer(t, 1), GG_ERROR_COMM, "rank 1 has ended");
    gg_transport_step_begun(t, 5);
    CHECK(post_begun == 5);

    /* Buffers are checked from when they are passed on: the work that writes one is none of its owner's mistakes. */
    t->check_buffers = true;
    gg_request receive = {0};
    unsigned char landing[BYTES];
    for (int late = 0; late < 2; ++late) {
        bool done;
        copy(&p, 0, message, arena);
        CHECK_OK(gg_send(t, message, BYTES, 1, 70, &send));
        late_do_all(&p.device[0]);
        CHECK_OK(gg_progress(t));
        message[3] += (unsigned char)late;
        CHECK_OK(gg_receive(p.rank[1], landing, BYTES, 0, 70, &receive));
        CHECK(tested(p.rank[1], &receive));
        CHECK_OK(gg_release(p.rank[1], &receive));
        if (late == 0) CHECK_OK(gg_test(t, &send, &done));
        else CHECK_FAILS(gg_test(t, &send, &done), GG_ERROR_STATE, "a buffer in flight was written");
    }
    t->check_buffers = false;

    /* While the rank is idle, what becomes ready leaves. */
    const int before = passed(&p, 0);
    post_idled = 0;
    post_works = &p.device[0];
    copy(&p, 0, message, arena);
    copy(&p, 0, message, arena);
    CHECK_OK(gg_send(t, message, BYTES, 1, 70, &send));
    CHECK_OK(gg_transport_idle(t, 0.5));
    CHECK_INT(passed(&p, 0), before + 1);
    CHECK_NEAR(post_idled, 0.5, 1e-9);
    post_works = NULL;
    gg_cancel(t, &send);
    message_free(&p, 0, message);
    gg_device_free(&p.device[0].head, arena);
    pair_close(&p);
}

static void test_failures(void) {
    pair p;
    pair_open(&p, &standing_table);
    gg_transport *t = p.rank[0];
    gg_request send = {0};
    void *block = &p;
    p.device[0].no_sharing = true;
    CHECK_FAILS(gg_message_alloc(t, BYTES, "arena", &block), GG_ERROR_MEMORY, "arena: the device shares no more");
    CHECK(block == NULL && p.office.rank[0].shared_frees == 1);
    p.device[0].no_sharing = false;
    unsigned char *message = message_memory(&p, 0);
    CHECK(gg_device_shares(&p.device[0].head, message) && gg_device_shares(&p.device[0].head, message + BYTES - 1));
    CHECK(!gg_device_shares(&p.device[0].head, message + BYTES));
    p.device[0].lost = true;
    gg_device_zero(&p.device[0].head, GG_QUEUE_COMPUTE, message, BYTES);
    CHECK_FAILS(gg_send(t, message, BYTES, 1, 70, &send), GG_ERROR_BACKEND, "the device is lost");
    CHECK(send.state == GG_REQUEST_IDLE && passed(&p, 0) == 0);
    message_free(&p, 0, message);
    CHECK(!gg_device_shares(&p.device[0].head, message));
    pair_close(&p);

    pair_open(&p, &post_table);
    message = message_memory(&p, 0);
    gg_device_zero(&p.device[0].head, GG_QUEUE_COMPUTE, message, BYTES);
    CHECK_OK(gg_send(p.rank[0], message, BYTES, 1, 70, &send));
    p.device[0].lost = true;
    late_do_all(&p.device[0]);
    CHECK_FAILS(gg_progress(p.rank[0]), GG_ERROR_BACKEND, "the device is lost");
    CHECK_INT(passed(&p, 0), 0);
    gg_cancel(p.rank[0], &send);
    message_free(&p, 0, message);
    pair_close(&p);
}

/* Many blocks: the list of what is shared grows and shrinks. */
static void test_shared_blocks(void) {
    enum { BLOCKS = 300 };
    late_device device;
    void *block[BLOCKS];
    late_open(&device);
    for (int i = 0; i < BLOCKS; ++i) CHECK_OK(gg_device_alloc_host(&device.head, 64, "block", &block[i]));
    for (int i = 0; i < BLOCKS; i += 2) gg_device_free_host(&device.head, block[i]);
    for (int i = 0; i < BLOCKS; ++i) CHECK(gg_device_shares(&device.head, block[i]) == (i % 2 != 0));
    for (int i = 1; i < BLOCKS; i += 2) gg_device_free_host(&device.head, block[i]);
    CHECK(device.head.shared == NULL && device.head.shared_blocks == 0);
}

/* A message that has been sent arrives, the next one and a send are lost, through the wrapper and a slow network. */
static void test_deaths(void) {
    for (int slow = 0; slow < 2; ++slow) {
        pair p;
        char bytes[4] = {1, 0, 0, 0};
        gg_request sent = {0}, first = {0}, second = {0}, vain = {0};
        gg_transport *t = NULL;
        pair_open(&p, &post_table);
        if (slow)
            CHECK_OK(gg_network_transport_create(&p.office.rank[0].transport, &(gg_network){.bandwidth = 1e9}, &t));
        else t = p.rank[0];
        CHECK_INT(t->identity, 5);
        CHECK_OK(gg_send(p.rank[1], &bytes[0], 1, 0, 70, &sent));
        CHECK_OK(gg_receive(t, &bytes[1], 1, 1, 70, &first));
        CHECK_OK(gg_receive(t, &bytes[2], 1, 1, 70, &second));
        CHECK_INT(gg_transport_dead(t, -1), -1);
        p.office.gone[1] = true;
        CHECK_INT(gg_transport_dead(t, -1), 1);
        CHECK_INT(gg_transport_dead(t, 0), -1);
        CHECK_OK(gg_send(t, &bytes[3], 1, 1, 71, &vain));
        CHECK_OK(gg_wait(t, &vain));
        CHECK_OK(gg_wait(t, &first));
        CHECK(first.state == GG_REQUEST_ARRIVED && *(const char *)first.data == 1);
        CHECK_OK(gg_release(t, &first));
        CHECK_OK(gg_wait(t, &second));
        CHECK(second.state == GG_REQUEST_LOST && vain.state == GG_REQUEST_LOST);
        CHECK_FAILS(gg_wait_collective(t, &second), GG_ERROR_PEER, "rank 1 has died");
        CHECK_OK(gg_release(t, &second));
        gg_cancel(t, &vain);
        CHECK(second.state == GG_REQUEST_IDLE && vain.state == GG_REQUEST_IDLE);
        if (slow) gg_transport_destroy(t);
        gg_cancel(p.rank[1], &sent);
        pair_close(&p);
    }
}

int main(void) {
    const int64_t before = gg_memory_live_bytes();
    test_none_where_not_separate();
    test_a_slow_network_reads_no_devices();
    test_send();
    test_landing();
    test_host_memory();
    test_order();
    test_order_in_a_race();
    test_wait();
    test_flush();
    test_order_of_receives();
    test_cancel();
    test_cancel_later();
    test_sum();
    test_standing();
    test_passed_through();
    test_failures();
    test_deaths();
    test_shared_blocks();
    CHECK_INT(gg_memory_live_bytes(), before);
    return CHECK_RESULT;
}
