#include "base/parallel.h"

#ifdef _OPENMP
#include <omp.h>
#endif

void gg_parallel_run(int threads, gg_parallel_fn fn, void *context) {
    if (threads <= 1) {
        fn(context, 0, 1);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
    {
        /* A thread limit or a surrounding parallel region may give fewer threads; the parts stay the same. */
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
    omp_set_num_threads(threads > 0 ? threads : 1);
#else
    (void)threads;
#endif
}
