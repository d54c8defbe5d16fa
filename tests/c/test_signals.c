/* Signals while oneDNN's product of matrices runs: handlers run on a thread's own stack, on each of the threads. The
 * product points the stack pointer into the heap, and a handler there would overwrite its neighbours. */
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/time.h>

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

/* Another library's use of the threads has the caller's signals again. */
static void note_mask(void *context, int thread, int threads) {
    sigset_t mask;
    (void)threads;
    CHECK_INT(pthread_sigmask(SIG_SETMASK, NULL, &mask), 0);
    ((int *)context)[thread] = sigismember(&mask, SIGALRM);
}

static void test_threads_are_given_back(void) {
    int held[2] = {-1, -1};
    const gg_float_mode former = gg_parallel_enter();
    gg_parallel_run(2, note_mask, held);
    CHECK(held[0] == 0 && held[1] == 1);
    gg_parallel_leave(former);
    gg_parallel_run(2, note_mask, held);
    CHECK(held[0] == 0 && held[1] == 0);
}

int main(void) {
    gg_isa isa = GG_ISA_SCALAR;
    CHECK_OK(gg_isa_select(NULL, &isa));
    CHECK_INT(sigaction(SIGALRM, &(struct sigaction){.sa_handler = handle, .sa_flags = SA_RESTART}, NULL), 0);
    test_threads_are_given_back();
    test_products(isa, 1);
    test_products(isa, 2);
    return CHECK_RESULT;
}
