#include "base/parallel.h"

#include <stdatomic.h>
#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>

#include "base/signals.h"
#endif

static _Atomic pid_t sharing; /* the process whose threads have shared work; 0: none has */

static void threads_share(void) {
    if (atomic_load_explicit(&sharing, memory_order_relaxed) == 0)
        atomic_store_explicit(&sharing, getpid(), memory_order_relaxed);
}

bool gg_parallel_is_lost(void) {
    const pid_t process = atomic_load_explicit(&sharing, memory_order_relaxed);
    return process != 0 && process != getpid();
}

#ifdef _OPENMP
/* Other libraries in this process may use the same OpenMP threads, so their mode and their signals are restored too. A
 * thread that OpenMP starts inherits both from the thread that starts it. */
typedef struct float_modes {
    bool entered;
    gg_float_mode former; /* if entered */
    sigset_t signals;     /* former mask, if entered */
    int workers;          /* of a thread that starts regions: the most threads of one since it entered */
    int libraries;        /* threads of the libraries that it called before; 0: nobody has set another number since */
} float_modes;

static _Thread_local float_modes own;

/* Called by each thread of a region; enters a worker that has not entered. OpenMP may end workers that a smaller region
 * does not need, and start others for a larger one. Threads below caller->workers have entered, so a new one there was
 * started since: its former mode and signals are the caller's. */
static void worker_enters(const float_modes *caller, int thread) {
    if (own.entered || !caller->entered) return;
    const bool since = thread < caller->workers;
    own = (float_modes){.entered = true, .former = since ? caller->former : gg_cpu_float_mode()};
    gg_signals_hold(&own.signals);
    if (since) own.signals = caller->signals;
    gg_cpu_set_float_mode(gg_cpu_compute_mode());
}

/* Called before the first region with this many threads: they enter too. Workers hold signals: a thread that holds them
 * for a library would otherwise pass them on to the workers of the same library. */
static void workers_enter(int threads) {
    const float_modes *caller = &own;
    if (!own.entered || threads <= own.workers) return;
    gg_cpu_set_float_mode(own.former); /* for threads that are started here */
#pragma omp parallel num_threads(threads)
    worker_enters(caller, omp_get_thread_num());
    gg_cpu_set_float_mode(gg_cpu_compute_mode());
    own.workers = threads;
}

static void workers_leave(void) {
    const float_modes *caller = &own;
    if (own.workers == 0) return;
#pragma omp parallel num_threads(own.workers)
    if (omp_get_thread_num() != 0) {
        /* The caller has started a worker that has not entered, so that worker gets the caller's modes. */
        const float_modes *restored = own.entered ? &own : caller;
        gg_cpu_set_float_mode(restored->former);
        gg_signals_release(&restored->signals);
        own.entered = false;
    }
}
#endif

gg_float_mode gg_parallel_enter(void) {
    const gg_float_mode former = gg_cpu_float_mode();
    gg_cpu_set_float_mode(gg_cpu_compute_mode());
#ifdef _OPENMP
    own = (float_modes){.entered = true, .former = former};
    (void)pthread_sigmask(SIG_SETMASK, NULL, &own.signals);
#endif
    return former;
}

void gg_parallel_leave(gg_float_mode former) {
#ifdef _OPENMP
    workers_leave();
    if (own.libraries > 0) omp_set_num_threads(own.libraries);
    own = (float_modes){0};
#endif
    gg_cpu_set_float_mode(former);
}

void gg_parallel_run(int threads, gg_parallel_fn fn, void *context) {
    if (threads <= 1) {
        fn(context, 0, 1);
        return;
    }
    threads_share();
#ifdef _OPENMP
    workers_enter(threads);
    const float_modes *caller = &own;
#pragma omp parallel num_threads(threads)
    {
        worker_enters(caller, omp_get_thread_num());
        /* Under a thread limit or inside another region there may be fewer threads. The parts are the same. */
        int team = omp_get_num_threads();
        for (int i = omp_get_thread_num(); i < threads; i += team) fn(context, i, threads);
    }
#else
    for (int i = 0; i < threads; ++i) fn(context, i, threads);
#endif
}

void gg_parallel_split(size_t n, size_t grain, int thread, int threads, size_t *begin, size_t *end) {
    if (grain == 0) grain = 1;
    size_t parts = threads > 0 ? (size_t)threads : 1, part = (size_t)thread;
    size_t grains = n / grain + (n % grain != 0);
    size_t each = grains / parts, more = grains % parts;
    size_t first = part * each + (part < more ? part : more);
    size_t last = first + each + (part < more);
    /* Only the very last grain may be cut. */
    *begin = first < grains ? first * grain : n;
    *end = last < grains ? last * grain : n;
}

void gg_parallel_set_threads(int threads) {
#ifdef _OPENMP
    if (threads > 1) threads_share();
    workers_enter(threads);
    if (own.entered && own.libraries == 0) own.libraries = omp_get_max_threads();
    omp_set_num_threads(threads > 0 ? threads : 1);
#else
    (void)threads;
#endif
}
