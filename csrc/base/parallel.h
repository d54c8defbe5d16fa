/* Work shared by the threads of one rank.
 *
 * The threads are OpenMP's, which oneDNN uses as well: two pools would compete for the same cores. How work is split
 * depends on the number of threads alone, so the bits of a result do too. With one thread the function is called
 * directly and no OpenMP is entered. */
#ifndef GG_BASE_PARALLEL_H
#define GG_BASE_PARALLEL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/cpu.h"

/* From enter to leave the calling thread, and the threads that share its work, compute in gg_cpu_compute_mode;
 * afterwards each has the mode that it had before. Every thread that computes calls it: a rank of the virtual cluster
 * once, for the life of its thread, any other rank in each call into the core. Pairs on one thread do not nest. */
gg_float_mode gg_parallel_enter(void);
/* `former`: what enter gave. */
void gg_parallel_leave(gg_float_mode former);

typedef void (*gg_parallel_fn)(void *context, int thread, int threads);

/* Calls fn(context, i, threads) for i = 0..threads-1, at the same time, and returns when all have. */
void gg_parallel_run(int threads, gg_parallel_fn fn, void *context);

/* Whether this process was forked from one whose threads have shared work: they are gone here, and OpenMP would wait
 * for them. */
bool gg_parallel_is_lost(void);

/* The part [begin, end) of 0..n-1 that belongs to `thread`, cut at multiples of `grain` elements. */
void gg_parallel_split(size_t n, size_t grain, int thread, int threads, size_t *begin, size_t *end);

/* How many threads a library that uses OpenMP by itself uses when the calling thread calls it, until it leaves: other
 * libraries of the process, such as PyTorch, go by the same number. */
void gg_parallel_set_threads(int threads);

#endif
