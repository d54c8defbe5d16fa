/* A rank goes on while its device computes: it gives steps that have not been done, a few and not more, counts them
 * when they are, and a failure names its own step. On the strict device, whose work a gate holds back; or on the device
 * that the program's argument names. */
#include <pthread.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "check.h"
#include "comm/device_order.h"
#include "comm/local.h"
#include "cpu/cpu_backend.h"
#include "ops/library.h"
#include "replica_case.h"
#include "strict/strict.h"
#include "train/replica_private.h"

enum { SAMPLES = 14, BATCH = 3, STEPS = 5, LENGTH = 3, WORDS = 7, CLASSES = 4, HANG = 60 };

/* Seconds: by which a device's times are rounded, and within which they are on the host's clock. */
static const double CLOCKS = 1e-5, ABOUT = 5;

static gg_graph *make_graph(void) {
    gg_graph *graph = NULL;
    int node = 0;
    gg_layer_desc input = {.kind = GG_LAYER_INPUT, .name = "tokens", .dtype = GG_INT32};
    gg_layer_desc table = {.kind = GG_LAYER_EMBEDDING, .name = "table", .outputs = 2, .embedding.numbers = WORDS};
    gg_layer_desc flat = {.kind = GG_LAYER_FLATTEN, .name = "flat"};
    gg_layer_desc last = {.kind = GG_LAYER_LINEAR, .name = "last", .outputs = CLASSES, .bias = true};
    CHECK_OK(gg_graph_create(&graph));
    CHECK_OK(gg_graph_add(graph, &input, &(gg_shape){.dims = 1, .size = {LENGTH}}, 0, NULL, &node));
    gg_layer_desc *behind[] = {&table, &flat, &last};
    for (int i = 0; i < 3; ++i) CHECK_OK(gg_graph_add(graph, behind[i], NULL, 1, (int[]){node}, &node));
    CHECK_OK(gg_graph_finish(graph, 1, &(gg_head){.node = node}));
    return graph;
}

/* Of tokens, in the order of the set. wrong: the sample with a token that is no row of the table; -1: none. */
static void make_set(int wrong, gg_dataset *out) {
    *out = (gg_dataset){.count = SAMPLES, .inputs = 1, .targets = 1};
    out->field[0] = (gg_field){.dtype = GG_UINT8, .tokens = true, .scale = 1, .shape = {.dims = 1, .size = {LENGTH}}};
    out->field[1] = (gg_field){.dtype = GG_INT32, .scale = 1};
    CHECK_OK(gg_storage_create(SAMPLES * LENGTH, "samples", &out->memory[0]));
    CHECK_OK(gg_storage_create(SAMPLES * sizeof(int32_t), "targets", &out->memory[1]));
    uint8_t *tokens = gg_storage_data(out->memory[0]);
    for (int i = 0; i < SAMPLES * LENGTH; ++i) tokens[i] = (uint8_t)(i * i % WORDS);
    for (int i = 0; i < SAMPLES; ++i) ((int32_t *)gg_storage_data(out->memory[1]))[i] = (int32_t)(i * 5 % CLASSES);
    if (wrong >= 0) tokens[wrong * LENGTH + 1] = WORDS;
}

typedef struct run {
    gg_graph *graph;
    gg_transport *transport;
    gg_dataset set;
    gg_replica *replica;
} run;

static void begin(run *it, const char *device, int wrong) {
    *it = (run){.graph = make_graph()};
    CHECK_OK(gg_local_transport_create(&it->transport));
    const gg_optimizer sgd = {.type = &gg_optimizer_sgd, .rate = {.lr = 0.1}, .sgd = {.momentum = 0.9f}};
    gg_exchange_options options =
        case_options(it->transport, sgd, (gg_strategy_options){.kind = GG_STRATEGY_NO_EXCHANGE});
    options.trace = 200;
    options.device = device;
    if (strcmp(device, "cuda") == 0) options.devices.backend = NULL;
    const gg_data_options data = {.batch = BATCH, .shard = GG_SHARD_INTERLEAVED};
    make_set(wrong, &it->set);
    CHECK_OK(open_replica(it->graph, &options, &it->replica));
    CHECK_OK(gg_replica_begin(it->replica, &it->set, &data));
    CHECK_OK(gg_replica_plan_epoch(it->replica));
    CHECK_OK(gg_replica_epoch(it->replica, &(gg_position){0}));
    CHECK_INT(gg_replica_epoch_steps(it->replica), STEPS);
}

static void end(run *it) {
    close_replica(it->replica);
    gg_graph_destroy(it->graph);
    gg_transport_destroy(it->transport);
    gg_dataset_release(&it->set);
}

static gg_progress_counts counted(const run *it) {
    gg_progress_counts counts;
    gg_replica_counts(it->replica, &counts);
    return counts;
}

static gg_progress_counts wanted(void) {
    run it;
    begin(&it, "cpu", -1);
    for (int64_t step = 1; step <= STEPS; ++step) {
        CHECK_OK(gg_replica_run(it.replica, 1));
        CHECK_INT(counted(&it).steps, step);
    }
    const gg_progress_counts counts = counted(&it);
    end(&it);
    return counts;
}

static void check_counts(const run *it, const gg_progress_counts *all) {
    const gg_progress_counts counts = counted(it);
    CHECK_INT(counts.steps, STEPS);
    CHECK_INT(counts.samples, SAMPLES);
    CHECK_INT(counts.correct, all->correct);
    CHECK_INT(counts.counted, SAMPLES);
    CHECK(counts.loss_sum == all->loss_sum);
}

/* ---- work that is held back ---- */

/* A record behind a mark that is never reached. */
typedef struct gate {
    gg_strict *device;
    gg_strict_work *work;
    int64_t number; /* in its queue, from 1 */
} gate;

/* Holds a queue back; the other one goes on. */
static gate close_gate(const run *it, gg_queue queue) {
    gg_strict *strict = (gg_strict *)it->replica->device;
    gg_strict_work *work = gg_strict_work_new(strict, queue);
    work->run = NULL;
    work->behind = (gg_mark){.number = INT64_MAX, .queue = queue == GG_QUEUE_COPY ? GG_QUEUE_COMPUTE : GG_QUEUE_COPY};
    gg_strict_give(strict, queue, "gate");
    return (gate){strict, work, strict->queue[queue].given};
}

static void open_gate(const gate *it) {
    pthread_mutex_lock(&it->device->mutex);
    it->work->behind.number = 0;
    pthread_cond_broadcast(&it->device->given);
    pthread_mutex_unlock(&it->device->mutex);
}

static void *open_gate_late(void *context) {
    usleep(20000); /* mostly after the call that waits for it has begun */
    open_gate(context);
    return NULL;
}

static void test_steps_are_given_before_others_are_done(const char *device, gg_queue queue) {
    pthread_t opener;
    const gg_progress_counts all = wanted();
    run it;
    begin(&it, device, -1);
    gate held = close_gate(&it, queue);
    for (int step = 0; step < GG_MAX_OUTSTANDING; ++step) CHECK_OK(gg_replica_run(it.replica, 1));
    CHECK_INT(counted(&it).steps, 0);
    CHECK_INT(counted(&it).samples, 0);
    for (int i = 0; queue == GG_QUEUE_COMPUTE && i < GG_UPLOADS; ++i) /* batches have gone up nevertheless */
        gg_device_wait(it.replica->device, it.replica->uploads.upload[i].sent);
    CHECK(it.replica->uploads.upload[1].sent.number > 0);
    CHECK_INT(it.replica->uploads.room, 2 * GG_ALIGNMENT); /* bytes of tokens, and targets */
    CHECK(!gg_device_reached(it.replica->device, it.replica->uploads.upload[0].used));
    CHECK(pthread_create(&opener, NULL, open_gate_late, &held) == 0);
    CHECK_OK(gg_replica_run(it.replica, 1)); /* waits for one of those */
    CHECK(counted(&it).steps >= 1);
    CHECK(pthread_join(opener, NULL) == 0);
    CHECK_OK(gg_replica_settle(it.replica));
    CHECK_INT(counted(&it).steps, GG_MAX_OUTSTANDING + 1);
    CHECK_OK(gg_replica_run(it.replica, STEPS)); /* the last step of the epoch waits */
    check_counts(&it, &all);
    end(&it);
}

/* ---- messages of a rank that waits ---- */

/* A rank of two whose messages leave at once. */
typedef struct outbox {
    gg_transport transport; /* first */
    bool sent;
} outbox;

static gg_status outbox_send(gg_transport *t, const void *data, size_t bytes, int peer, int tag, gg_request *request) {
    (void)data, (void)bytes, (void)peer, (void)tag;
    ((outbox *)t)->sent = true;
    request->state = GG_REQUEST_IDLE;
    return GG_OK;
}

static gg_status outbox_progress(gg_transport *t) {
    (void)t;
    return GG_OK;
}

static const gg_transport_table outbox_table = {.name = "outbox", .send = outbox_send, .progress = outbox_progress};

/* What the rank is asked meanwhile: it opens the gate before the message, and when that has left the one behind. */
typedef struct asked {
    outbox *out;
    gate before, behind;
    int times;
    bool done; /* both are open */
} asked;

static gg_status answer(void *context, bool *busy) {
    asked *it = context;
    *busy = false;
    if (it->times++ == 0) open_gate(&it->before);
    if (it->out->sent && !it->done) open_gate(&it->behind);
    it->done = it->out->sent;
    return GG_OK;
}

/* The third step waits: for the first one, or for its batch to go up where the queue of the copies is held back. */
static void test_messages_move_while_a_rank_waits(const char *device, gg_queue queue) {
    run it;
    char *message = NULL;
    gg_request send = {0};
    gg_transport *order = NULL;
    outbox out = {.transport = {.table = &outbox_table, .size = 2}};
    asked by = {.out = &out};
    begin(&it, device, -1);
    CHECK_OK(gg_device_order_create(&out.transport, it.replica->device, &order));
    CHECK_OK(gg_device_alloc_host(it.replica->device, GG_ALIGNMENT, "message", &message));
    gg_transport_set_service(order, &(gg_service){.serve = answer, .context = &by});
    it.replica->outstanding.transport = it.replica->uploads.transport = order;
    by.before = close_gate(&it, GG_QUEUE_COMPUTE);
    CHECK_OK(gg_send(order, message, GG_ALIGNMENT, 1, GG_TAG_USER, &send));
    by.behind = close_gate(&it, queue);
    for (int step = 0; step < GG_MAX_OUTSTANDING; ++step) CHECK_OK(gg_replica_run(it.replica, 1));
    CHECK(by.times == 0 && !out.sent && counted(&it).steps == 0);
    CHECK_OK(gg_replica_run(it.replica, 1));
    CHECK(out.sent && by.done && counted(&it).steps >= 1);
    CHECK_OK(gg_replica_settle(it.replica));
    CHECK_INT(counted(&it).steps, GG_MAX_OUTSTANDING + 1);
    gg_device_free_host(it.replica->device, message);
    end(&it);
    gg_transport_destroy(order);
}

/* ---- a benchmark ---- */

enum { HELD_MICROSECONDS = 20000 };

/* Once work is given behind the gate. */
static void *open_gate_behind_work(void *context) {
    const gate *it = context;
    for (bool given = false; !given;) {
        pthread_mutex_lock(&it->device->mutex);
        given = it->device->queue[GG_QUEUE_COMPUTE].given > it->number;
        pthread_mutex_unlock(&it->device->mutex);
        usleep(100);
    }
    usleep(HELD_MICROSECONDS);
    open_gate(it);
    return NULL;
}

/* A step is as long as the device takes for it, not as the call that gives it. */
static void test_a_benchmark_times_what_the_device_does(const char *device) {
    static const int32_t token[BATCH * LENGTH] = {0}, target[BATCH] = {0};
    const gg_given given = {.n = BATCH, .input = {token}, .target = {target}};
    double seconds[STEPS] = {0}, all = 0;
    pthread_t opener;
    run it;
    begin(&it, device, -1);
    gate held = close_gate(&it, GG_QUEUE_COMPUTE);
    CHECK(pthread_create(&opener, NULL, open_gate_behind_work, &held) == 0);
    const double before = gg_clock_now();
    CHECK_OK(gg_replica_bench(it.replica, &given, STEPS, seconds));
    const double after = gg_clock_now();
    CHECK(pthread_join(opener, NULL) == 0);
    /* The second one may be complete when the first is seen. */
    CHECK(seconds[0] + seconds[1] >= 1e-6 * HELD_MICROSECONDS);
    for (int i = 0; i < STEPS; ++i) {
        CHECK(seconds[i] > 0);
        all += seconds[i];
    }
    CHECK(all <= after - before + CLOCKS);
    CHECK_OK(gg_replica_bench(it.replica, &given, STEPS, NULL));
    CHECK_INT(it.replica->outstanding.count, 0);
    end(&it);
}

/* Whether a failure is that of its own step. */
static void test_failures_name_their_step(const char *device) {
    for (int step = 0; step < STEPS; ++step) {
        run it;
        char text[64];
        begin(&it, device, step * BATCH + 1);
        snprintf(text, sizeof text, "step %d: ", step);
        CHECK_FAILS(gg_replica_run(it.replica, STEPS), GG_ERROR_ARGUMENT, text);
        CHECK(gg_replica_failed(it.replica));
        end(&it);
    }
}

/* The device's own times are in the trace: a step's batch goes up before its work begins, and steps follow each other.
 */
static void test_the_trace_has_the_times_of_the_device(const char *device) {
    static const char *const names[] = {"batch", "forward and backward", "end"};
    gg_trace_span found[STEPS][3] = {0};
    int spans[3] = {0};
    run it;
    begin(&it, device, -1);
    const double before = gg_clock_now();
    CHECK_OK(gg_replica_run(it.replica, STEPS));
    const double after = gg_clock_now();
    for (size_t i = 0; i < gg_trace_count(it.replica->trace); ++i) {
        const gg_trace_span *span = gg_trace_get(it.replica->trace, i);
        if (span->lane < GG_LANE_GPU_COMPUTE) continue;
        for (int k = 0; k < 3; ++k) {
            if (strcmp(span->name, names[k]) != 0 || span->step >= STEPS) continue;
            CHECK_INT(span->lane, k == 0 ? GG_LANE_GPU_COPY : GG_LANE_GPU_COMPUTE);
            found[span->step][k] = *span;
            ++spans[k];
        }
    }
    for (int k = 0; k < 3; ++k) CHECK_INT(spans[k], STEPS);
    for (int step = 0; step < STEPS; ++step) {
        const gg_trace_span *it_has = found[step];
        for (int k = 0; k < 3; ++k) CHECK(it_has[k].begin <= it_has[k].end);
        CHECK(it_has[0].end <= it_has[1].begin + CLOCKS && it_has[1].end == it_has[2].begin);
        CHECK(it_has[0].begin >= before - ABOUT && it_has[2].end <= after + ABOUT);
        if (step > 0) CHECK(found[step - 1][2].end <= it_has[1].begin + CLOCKS);
    }
    end(&it);
}

int main(int count, char **word) {
    gg_cpu_register();
    gg_registry_add(&gg_strict_kind);
    alarm(HANG);
    if (count > 1) {
        gg_libraries_register();
        test_failures_name_their_step(word[1]);
        test_the_trace_has_the_times_of_the_device(word[1]);
        CHECK(gg_memory_live_bytes() == 0);
        return CHECK_RESULT;
    }
    for (int seed = 0; seed < 3; ++seed) {
        char device[16];
        snprintf(device, sizeof device, "strict:%d", seed);
        test_steps_are_given_before_others_are_done(device, GG_QUEUE_COMPUTE);
        test_steps_are_given_before_others_are_done(device, GG_QUEUE_COPY);
        test_messages_move_while_a_rank_waits(device, GG_QUEUE_COMPUTE);
        test_messages_move_while_a_rank_waits(device, GG_QUEUE_COPY);
        test_a_benchmark_times_what_the_device_does(device);
        test_failures_name_their_step(device);
        test_the_trace_has_the_times_of_the_device(device);
    }
    CHECK(gg_memory_live_bytes() == 0);
    return CHECK_RESULT;
}
