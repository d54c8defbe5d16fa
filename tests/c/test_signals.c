/* Signals while oneDNN's product of matrices runs: handlers run on a thread's own stack, on each of the threads. The
 * product points the stack pointer into the heap, and a handler there would overwrite its neighbours. */
#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/parallel.h"
#include "check.h"
#include "cpu/cpu_backend.h"
#include "guarded.h"
#include "ops/backend.h"

#define STACK ((uintptr_t)1 << 20) /* more than a handler is below the frame that this test notes */
#define EACH 400                   /* products with each number of threads */

static _Thread_local uintptr_t frame;
static atomic_int came, elsewhere;

static void note_frame(void *context, int thread, int threads) {
    (void)context, (void)thread, (void)threads;
    frame = (uintptr_t)__builtin_frame_address(0);
}

static void handle(int number) {
    (void)number;
    atomic_fetch_add(&came, 1);
    if (frame != 0 && frame - (uintptr_t)__builtin_frame_address(0) > STACK) atomic_fetch_add(&elsewhere, 1);
}

static void interrupt_every(suseconds_t microseconds) {
    const struct itimerval timer = {{0, microseconds}, {0, microseconds}};
    CHECK_INT(setitimer(ITIMER_REAL, &timer, NULL), 0);
}

/* Bytes of code in this process. */
static size_t code_bytes(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    size_t bytes = 0, begin, end;
    char line[8192], executable;
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        if (sscanf(line, "%zx-%zx %*c%*c%c", &begin, &end, &executable) == 3 && executable == 'x') bytes += end - begin;
    if (maps != NULL) fclose(maps);
    return bytes;
}

static bool holds(void) {
    sigset_t mask;
    CHECK_INT(pthread_sigmask(SIG_SETMASK, NULL, &mask), 0);
    return sigismember(&mask, SIGALRM) == 1;
}

/* Threads of this process other than the first, and those of them that do not hold signals. */
static int others(int *taking) {
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;
    *taking = 0;
    if (!CHECK(tasks != NULL)) return 0;
    for (const struct dirent *task; (task = readdir(tasks)) != NULL;) {
        char path[sizeof task->d_name + 64], line[256];
        unsigned long long blocked;
        (void)snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *file = task->d_name[0] == '.' || atoi(task->d_name) == getpid() ? NULL : fopen(path, "r");
        while (file != NULL && fgets(line, sizeof line, file) != NULL)
            if (sscanf(line, "SigBlk: %llx", &blocked) == 1) {
                ++count;
                *taking += (blocked >> (SIGALRM - 1) & 1u) == 0;
            }
        if (file != NULL) (void)fclose(file);
    }
    (void)closedir(tasks);
    return count;
}

/* The core's calls of oneDNN, with its headers' types in plain C. Each may run a product. */
static int compilations, executions;

typedef int sgemm_fn(char, char, int64_t, int64_t, int64_t, float, const float *, int64_t, const float *, int64_t,
                     float, float *, int64_t);
sgemm_fn __real_dnnl_sgemm, __wrap_dnnl_sgemm;

int __wrap_dnnl_sgemm(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                      const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    ++compilations;
    CHECK(holds());
    return __real_dnnl_sgemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

typedef int execute_fn(const void *, void *, int, const void *);
execute_fn __real_dnnl_primitive_execute, __wrap_dnnl_primitive_execute;

int __wrap_dnnl_primitive_execute(const void *primitive, void *stream, int arguments, const void *argument) {
    ++executions;
    CHECK(holds());
    return __real_dnnl_primitive_execute(primitive, stream, arguments, argument);
}

static void test_products(gg_isa isa, int threads) {
    const gg_op_desc desc = {.kind = GG_OP_LINEAR,
                             .batch = 5,
                             .inputs = 1,
                             .input = {{1, {800}}},
                             .output = {1, {500}},
                             .offered = {{GG_FLOAT32, GG_LAYOUT_PLAIN}},
                             .training = true,
                             .input_grad = true};
    gg_device *device = NULL;
    gg_op *op = NULL;
    const gg_float_mode former = gg_parallel_enter();
    if (!CHECK_OK(gg_backend_onednn.open(&(gg_device_options){.threads = threads, .isa = isa}, &device))) return;
    if (!CHECK_OK(gg_backend_onednn.create[desc.kind](device, &desc, &op))) return;
    buffer w = buffer_uniform(1, 800 * 500, -1, 1), dy = buffer_uniform(2, 5 * 500, -1, 1), dx = buffer_floats(5 * 800);
    buffer y = buffer_uniform(3, 5 * 500, -1, 1), scratch = buffer_create(op->scratch_bytes);
    buffer prepared = buffer_create(op->prepared_bytes), saved = buffer_create(op->saved_bytes);
    const float *parameter[2] = {w.data, NULL};
    const gg_op_args args = {.parameter = parameter,
                             .output = y.data,
                             .grad_output = dy.data,
                             .grad_input = {dx.data},
                             .prepared = op->prepared_bytes > 0 ? prepared.data : NULL,
                             .saved = op->saved_bytes > 0 ? saved.data : NULL,
                             .scratch = op->scratch_bytes > 0 ? scratch.data : NULL};
    CHECK_OK(gg_op_prepare(op, &args, GG_PASS_DATA));
    gg_op_compile(op);
    const size_t code = code_bytes();
    CHECK_OK(op->type->backward_data(op, &args));
    CHECK(code_bytes() == code); /* compiled by gg_op_compile */
    gg_parallel_run(threads, note_frame, NULL);
    atomic_store(&came, 0);
    interrupt_every(50);
    for (int i = 0; i < EACH || atomic_load(&came) < 10; ++i) CHECK_OK(op->type->backward_data(op, &args));
    interrupt_every(0);
    CHECK_INT(atomic_load(&elsewhere), 0);
    buffer *all[] = {&w, &dy, &dx, &y, &scratch, &prepared, &saved};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) buffer_free(all[i]);
    gg_op_destroy(op);
    gg_backend_onednn.close(device);
    gg_parallel_leave(former);
}

static void note_mask(void *context, int thread, int threads) {
    (void)threads;
    ((int *)context)[thread] = holds();
}

/* Checks that all workers of a region hold signals, and the caller does not. */
static void check_region(int threads, bool workers_hold) {
    int held[4] = {-1, -1, -1, -1};
    gg_parallel_run(threads, note_mask, held);
    for (int i = 0; i < threads; ++i) CHECK_INT(held[i], workers_hold && i > 0);
}

/* Workers that are started after a smaller region hold signals, too. Another library's use of the threads has the
 * caller's signals again. */
static void test_workers(void) {
    static const int threads[] = {2, 4, 2, 4, 3, 4};
    for (int again = 0; again < 2; ++again) {
        const gg_float_mode former = gg_parallel_enter();
        for (size_t i = 0; i < sizeof threads / sizeof threads[0]; ++i) check_region(threads[i], true);
        gg_parallel_leave(former);
        check_region(4, false);
    }
}

/* Workers that oneDNN starts hold signals, too: those of its next product. */
static void test_workers_of_primitives(gg_isa isa) {
    const gg_op_desc desc = {.kind = GG_OP_TANH,
                             .batch = 64,
                             .inputs = 1,
                             .input = {{1, {4096}}},
                             .output = {1, {4096}},
                             .offered = {{GG_FLOAT32, GG_LAYOUT_PLAIN}}};
    gg_device *device = NULL;
    gg_op *op = NULL;
    int taking = 0;
    const gg_float_mode former = gg_parallel_enter();
    if (!CHECK_OK(gg_backend_onednn.open(&(gg_device_options){.threads = 4, .isa = isa}, &device))) return;
    if (!CHECK_OK(gg_backend_onednn.create[desc.kind](device, &desc, &op))) return;
    buffer x = buffer_uniform(1, 64 * 4096, -1, 1), y = buffer_floats(64 * 4096);
    check_region(4, true);
    check_region(2, true); /* OpenMP may end two workers; oneDNN starts them again */
    executions = 0;
    CHECK_OK(gg_op_forward(op, &(gg_op_args){.input = {x.data}, .output = y.data}));
    CHECK_INT(executions, 1);
    CHECK(others(&taking) >= 3);
    CHECK_INT(taking, 0);
    buffer_free(&x);
    buffer_free(&y);
    gg_op_destroy(op);
    gg_backend_onednn.close(device);
    gg_parallel_leave(former);
    check_region(4, false);
}

/* An LSTM of bfloat16 runs its products itself. */
static void test_lstm(gg_isa isa) {
    const gg_op_desc desc = {.kind = GG_OP_LSTM,
                             .dtype = GG_BFLOAT16,
                             .batch = 3,
                             .inputs = 1,
                             .input = {{2, {2, 8}}},
                             .output = {2, {2, 16}},
                             .offered = {{GG_BFLOAT16, GG_LAYOUT_PLAIN}},
                             .lstm = {.layers = 1}};
    gg_device *device = NULL;
    gg_op *op = NULL;
    if (isa < GG_ISA_AVX512) return;
    if (!CHECK_OK(gg_backend_onednn.open(&(gg_device_options){.threads = 1, .isa = isa}, &device))) return;
    if (!CHECK_OK(gg_backend_onednn.create[desc.kind](device, &desc, &op))) return;
    buffer w = buffer_uniform(1, 4 * 16 * 16, -1, 1), x = buffer_floats(3 * 2 * 8), y = buffer_floats(3 * 2 * 16);
    buffer prepared = buffer_create(op->prepared_bytes), scratch = buffer_create(op->scratch_bytes);
    const float *parameter[4] = {w.data, w.data, w.data, w.data};
    const gg_op_args args = {.parameter = parameter,
                             .input = {x.data},
                             .output = y.data,
                             .prepared = prepared.data,
                             .scratch = scratch.data};
    executions = 0;
    CHECK_OK(gg_op_prepare(op, &args, GG_PASS_FORWARD));
    CHECK_OK(gg_op_forward(op, &args));
    CHECK(executions > 2);
    buffer *all[] = {&w, &x, &y, &prepared, &scratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) buffer_free(all[i]);
    gg_op_destroy(op);
    gg_backend_onednn.close(device);
}

int main(void) {
    gg_isa isa = GG_ISA_SCALAR;
    CHECK_OK(gg_isa_select(NULL, &isa));
    CHECK_INT(sigaction(SIGALRM, &(struct sigaction){.sa_handler = handle, .sa_flags = SA_RESTART}, NULL), 0);
    test_workers();
    test_workers_of_primitives(isa);
    test_lstm(isa);
    test_products(isa, 1);
    test_products(isa, 2);
    CHECK_INT(compilations, 1);
    return CHECK_RESULT;
}
