/* Work shared by the threads of one rank.
 *
 * The threads are OpenMP's, which oneDNN uses as well: two pools would compete for the same cores. The split of work,
 * and so the bits of a result, depend on the number of threads alone. With one thread the function is called directly
 * and no OpenMP is entered. */
#ifndef GG_BASE_PARALLEL_H
#define GG_BASE_PARALLEL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/cpu.h"

/* From enter to leave the calling thread, and threads that share its work, compute in gg_cpu_compute_mode. The other
 * threads also hold signals (base/signals.h). Leave restores each one's mode and signals. A virtual rank enters once
 * for the life of its thread, any other rank in each call into the core. Pairs on one thread do not nest. */
gg_float_mode gg_parallel_enter(void);
/* `former` is gg_parallel_enter's result. */
void gg_parallel_leave(gg_float_mode former);

typedef void (*gg_parallel_fn)(void *context, int thread, int threads);

/* Calls fn(context, i, threads) for i = 0..threads-1, at the same time, and returns after the last. */
void gg_parallel_run(int threads, gg_parallel_fn fn, void *context);

/* True if this process was forked from a process whose OpenMP threads have run: they are gone here, and OpenMP would
 * wait for them. */
bool gg_parallel_is_lost(void);

/* The part [begin, end) of 0..n-1 that belongs to `thread`, cut at multiples of `grain` elements. */
void gg_parallel_split(size_t n, size_t grain, int thread, int threads, size_t *begin, size_t *end);

/* Sets OpenMP's number of threads for libraries that the calling thread calls, until gg_parallel_leave. Other libraries
 * of the process, such as PyTorch, read the same number. */
void gg_parallel_set_threads(int threads);

#endif
