/* The strict device: the host cannot touch its memory, it works late, only marks fix the order of its work, and it
 * names arguments that it could not use. */
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "check.h"
#include "cpu/cpu_backend.h"
#include "strict/strict.h"

enum { COUNT = 64 };

static gg_device *open_strict(int seed) {
    gg_device *device = NULL;
    const gg_device_options options = {.threads = 1, .isa = GG_ISA_SCALAR, .number = seed};
    CHECK_OK(gg_backend_strict.open(&options, &device));
    return device;
}

/* A block of the device with these numbers. */
static float *device_floats(gg_device *device, const float *values) {
    float *at = NULL;
    CHECK_OK(gg_device_alloc(device, COUNT * sizeof *at, "numbers", &at));
    CHECK_OK(gg_device_write(device, at, values, COUNT * sizeof *at));
    return at;
}

/* ---- memory ---- */

static void test_memory(void) {
    gg_device *device = open_strict(0);
    char *block = NULL, *none = &(char){1};
    char got[1000], sent[1000];
    CHECK_OK(gg_device_alloc(device, 1, "what makes the device's lists", &block));
    gg_device_free(device, block);
    const int64_t before = gg_memory_live_bytes();
    memset(got, 1, sizeof got);
    for (size_t i = 0; i < sizeof sent; ++i) sent[i] = (char)i;
    CHECK(gg_device_is_separate(device));
    CHECK_OK(gg_device_alloc(device, 0, "nothing", &none));
    CHECK(none == NULL);
    CHECK_OK(gg_device_alloc(device, sizeof got, "a block", &block));
    CHECK(block != NULL && (uintptr_t)block % GG_ALIGNMENT == 0);
    CHECK(gg_memory_live_bytes() >= before + (int64_t)sizeof got);
    CHECK_OK(gg_device_read(device, got, block, sizeof got));
    for (size_t i = 0; i < sizeof got; ++i) CHECK(got[i] == 0);
    CHECK_OK(gg_device_write(device, block + 10, sent, 500));
    gg_device_zero(device, GG_QUEUE_COMPUTE, block + 20, 3);
    CHECK_OK(gg_device_read(device, got, block + 9, 502));
    CHECK(got[0] == 0 && memcmp(got + 1, sent, 10) == 0 && got[11] == 0 && got[13] == 0);
    CHECK(memcmp(got + 14, sent + 13, 487) == 0 && got[501] == 0);
    gg_device_free(device, block);
    CHECK(gg_memory_live_bytes() == before);
    device->table->close(device);
}

/* Whether a process ends that writes, or reads, at this address. */
static bool dies_at(volatile char *at, bool writes) {
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        if (writes) *at = 1;
        else (void)*at;
        _exit(0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

static void test_host_access_dies(void) {
    gg_device *device = open_strict(0);
    char *block = NULL, *shared = NULL;
    CHECK_OK(gg_device_alloc(device, 5000, "a block", &block));
    CHECK_OK(gg_device_alloc_host(device, 5000, "shared", &shared));
    CHECK(dies_at(block, false) && dies_at(block, true) && dies_at(block + 4999, false));
    CHECK(!dies_at(shared, true) && !dies_at(shared, false));
    gg_device_free(device, block);
    gg_device_free_host(device, shared);
    device->table->close(device);
}

/* ---- when work is done ---- */

static sem_t gate;

static gg_status run_gate(gg_strict *device, gg_strict_work *work) {
    (void)device, (void)work;
    sem_wait(&gate);
    return GG_OK;
}

/* The thread does nothing until the gate is opened. */
static void close_gate(gg_device *device) {
    gg_strict *strict = (gg_strict *)device;
    gg_strict_work_new(strict, GG_QUEUE_COMPUTE)->run = run_gate;
    gg_strict_give(strict, GG_QUEUE_COMPUTE, "gate");
}

static void open_gate(void) { sem_post(&gate); }

static void test_work_is_late(void) {
    gg_device *device = open_strict(1);
    float ones[COUNT], *shared = NULL;
    for (int i = 0; i < COUNT; ++i) ones[i] = 1;
    float *a = device_floats(device, ones);
    const float *source[2] = {a, a};
    float scale[2] = {2, 3};
    CHECK_OK(gg_device_alloc_host(device, COUNT * sizeof *shared, "shared", &shared));
    const gg_mark before = gg_device_mark(device, GG_QUEUE_COMPUTE);
    CHECK(gg_device_reached(device, before) && gg_device_reached(device, (gg_mark){0}));
    close_gate(device);
    device->table->weighted_sum(device, COUNT, 2, source, scale, shared);
    const gg_mark mark = gg_device_mark(device, GG_QUEUE_COMPUTE);
    scale[0] = 100; /* what a call is given is read before it returns */
    source[1] = NULL;
    CHECK(!gg_device_reached(device, mark) && shared[0] == 0);
    open_gate();
    gg_device_wait(device, mark);
    CHECK(gg_device_reached(device, mark) && shared[0] == 5 && shared[COUNT - 1] == 5);
    /* What returns a value waits for all work before it. */
    for (int i = 0; i < 3; ++i) device->table->weighted_sum(device, COUNT, 1, (const float *[]){a}, (float[]){2}, a);
    CHECK(device->table->sum_squares(device, COUNT, a, NULL) == 64.0 * COUNT);
    CHECK(device->table->all_finite(device, COUNT, a));
    /* More than there are records. */
    for (int i = 0; i < 3 * GG_STRICT_MAX_WORKS; ++i)
        gg_device_copy(device, (gg_queue)(i % 2), shared, &ones[i % COUNT], sizeof(float));
    gg_device_finish(device);
    CHECK(shared[0] == 1);
    CHECK_OK(gg_device_check(device));
    gg_device_free_host(device, shared);
    gg_device_free(device, a);
    device->table->close(device);
}

/* In how many of `times` tries the work of one queue sees the earlier writes of the other. */
static int times_seen(gg_device *device, int times, bool follows, float *middle, float *end) {
    int seen = 0;
    for (int i = 1; i <= times; ++i) {
        const float number = (float)i;
        float *from = NULL, got = 0;
        CHECK_OK(gg_device_alloc_host(device, sizeof number, "a number", &from));
        *from = number;
        close_gate(device);
        gg_device_copy(device, GG_QUEUE_COMPUTE, middle, from, sizeof number);
        if (follows) gg_device_follow(device, GG_QUEUE_COPY, gg_device_mark(device, GG_QUEUE_COMPUTE));
        gg_device_copy(device, GG_QUEUE_COPY, end, middle, sizeof number);
        open_gate();
        gg_device_finish(device);
        CHECK_OK(gg_device_read(device, &got, end, sizeof got));
        seen += got == number;
        gg_device_free_host(device, from);
    }
    return seen;
}

static void test_only_marks_order_queues(void) {
    enum { TIMES = 60 };
    gg_device *device = open_strict(2);
    const float zeros[COUNT] = {0};
    float *middle = device_floats(device, zeros), *end = device_floats(device, zeros);
    CHECK_INT(times_seen(device, TIMES, true, middle, end), TIMES);
    CHECK(times_seen(device, TIMES, false, middle, end) < TIMES);
    gg_device_free(device, middle);
    gg_device_free(device, end);
    device->table->close(device);
}

/* ---- what cannot be used ---- */

static void test_invalid_addresses(void) {
    const float zeros[COUNT] = {0};
    const char *text = "strict device: mix has an address that is neither in its memory";
    float own[COUNT] = {0}, *shared = NULL;
    gg_device *device = open_strict(3);
    float *a = device_floats(device, zeros);
    CHECK_OK(gg_device_share(device, own, sizeof own));
    device->table->mix(device, COUNT, GG_FLOAT32, 0.5f, a, own, a, a);
    gg_device_finish(device);
    CHECK_OK(gg_device_check(device));
    gg_device_unshare(device, own);
    device->table->mix(device, COUNT, GG_FLOAT32, 0.5f, a, own, a, a);
    CHECK_FAILS(gg_device_check(device), GG_ERROR_BACKEND, text);
    CHECK_FAILS(gg_device_read(device, own, a, sizeof own), GG_ERROR_BACKEND, text); /* and stays so */
    gg_device_free(device, a);
    device->table->close(device);
    /* Memory that has been freed. */
    device = open_strict(4);
    a = device_floats(device, zeros);
    CHECK_OK(gg_device_alloc_host(device, sizeof own, "shared", &shared));
    gg_device_free(device, a);
    device->table->mix(device, COUNT, GG_FLOAT32, 0.5f, shared, a, shared, shared);
    CHECK_FAILS(gg_device_check(device), GG_ERROR_BACKEND, text);
    gg_device_free_host(device, shared);
    device->table->close(device);
}

/* An operation that fails late: a token that is no row of the table. */
static void test_late_failure(void) {
    gg_device *device = open_strict(5);
    const gg_format tokens = {GG_INT32, GG_LAYOUT_PLAIN};
    const gg_op_desc desc = {.kind = GG_OP_EMBEDDING,
                             .batch = 1,
                             .inputs = 1,
                             .input = {{1, {4}}},
                             .output = {2, {4, 16}},
                             .offered = {tokens},
                             .embedding.numbers = 3};
    const int32_t token[COUNT] = {0, 1, 2, 3};
    gg_op *op = NULL;
    void *input = NULL;
    float *table = NULL, *output = NULL;
    CHECK_OK(device->table->create[desc.kind](device, &desc, &op));
    CHECK_OK(gg_device_alloc(device, sizeof token, "tokens", &input));
    CHECK_OK(gg_device_write(device, input, token, sizeof token));
    CHECK_OK(gg_device_alloc(device, 3 * 16 * sizeof *table, "table", &table));
    CHECK_OK(gg_device_alloc(device, 4 * 16 * sizeof *output, "output", &output));
    const gg_op_args args = {.input = {input}, .output = output, .parameter = (const float *[]){table}};
    CHECK_OK(gg_op_forward(op, &args));
    gg_device_finish(device);
    CHECK_FAILS(gg_device_check(device), GG_ERROR_ARGUMENT, "3");
    gg_op_destroy(op);
    gg_device_free(device, input);
    gg_device_free(device, table);
    gg_device_free(device, output);
    device->table->close(device);
}

/* ---- capturing ---- */

static void test_captured_work(void) {
    gg_device *device = open_strict(6);
    float values[COUNT], *a, *b, *pinned = NULL;
    gg_device_graph *graph = NULL;
    for (int i = 0; i < COUNT; ++i) values[i] = 1;
    a = device_floats(device, values);
    b = device_floats(device, values);
    CHECK_OK(gg_device_alloc_host(device, sizeof values, "numbers", &pinned));
    CHECK(gg_device_captures(device));
    CHECK_OK(gg_device_capture_begin(device));
    gg_device_copy(device, GG_QUEUE_COMPUTE, b, pinned, sizeof values);
    device->table->mix(device, COUNT, GG_FLOAT32, 0.5f, a, b, a, a); /* a = (a + b)/2 */
    gg_device_copy(device, GG_QUEUE_COPY, b, pinned, sizeof values);
    CHECK_OK(gg_device_capture_end(device, &graph));
    CHECK_OK(gg_device_read(device, values, a, sizeof values));
    CHECK(values[0] == 1); /* not done */
    for (int turn = 0; turn < 200; ++turn) {
        for (int i = 0; i < COUNT; ++i) pinned[i] = 3;
        gg_device_replay(device, graph);
        gg_device_finish(device);
    }
    CHECK_OK(gg_device_read(device, values, a, sizeof values));
    CHECK(values[0] == 3 && values[COUNT - 1] == 3);
    gg_device_destroy_graph(device, graph);
    gg_device_destroy_graph(device, NULL);
    const int64_t freed = gg_device_freed(device);
    gg_device_free(device, a);
    gg_device_free(device, b);
    gg_device_free_host(device, pinned);
    CHECK(gg_device_freed(device) == freed + 3);
    device->table->close(device);
}

static void test_what_is_not_allowed_while_capturing(void) {
    for (int wrong = 0; wrong < 6; ++wrong) {
        gg_device *device = open_strict(7);
        float values[COUNT] = {0}, *a = device_floats(device, values), *more = NULL;
        gg_device_graph *graph = NULL;
        const gg_mark mark = gg_device_mark(device, GG_QUEUE_COMPUTE);
        const char *text[] = {"a mark is made",      "a mark is asked for",   "the host waits",
                              "memory is allocated", "neither in its memory", "the host waits"};
        CHECK_OK(gg_device_capture_begin(device));
        if (wrong == 0) (void)gg_device_mark(device, GG_QUEUE_COPY);
        if (wrong == 1) (void)gg_device_reached(device, mark);
        if (wrong == 2) gg_device_wait(device, mark);
        if (wrong == 3) CHECK_OK(gg_device_alloc(device, 4, "more", &more));
        if (wrong == 4) gg_device_copy(device, GG_QUEUE_COMPUTE, a, values, sizeof values);
        if (wrong == 5) (void)device->table->all_finite(device, COUNT, a);
        CHECK_OK(gg_device_capture_end(device, &graph));
        CHECK_FAILS(gg_device_check(device), GG_ERROR_BACKEND, text[wrong]);
        gg_device_destroy_graph(device, graph);
        gg_device_free(device, more);
        gg_device_free(device, a);
        device->table->close(device);
    }
}

int main(void) {
    gg_cpu_register();
    CHECK(sem_init(&gate, 0, 0) == 0);
    test_memory();
    test_host_access_dies();
    test_work_is_late();
    test_only_marks_order_queues();
    test_invalid_addresses();
    test_late_failure();
    test_captured_work();
    test_what_is_not_allowed_while_capturing();
    CHECK(gg_memory_live_bytes() == 0);
    return CHECK_RESULT;
}
