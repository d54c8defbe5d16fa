/* Tracked, aligned memory. All memory of the core comes from here.
 *
 * Blocks are aligned to 64 bytes (2 MiB and huge pages asked for from 2 MiB up). Two counters are exact under threads:
 * live bytes, 0 again after everything is destroyed, and the number of all allocations, which a warm step does not
 * change. Any thread may allocate and free. */
#ifndef GG_BASE_MEMORY_H
#define GG_BASE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define GG_ALIGNMENT 64

/* Bytes rounded up to whole lines, so that the next array in a block is aligned. */
static inline size_t gg_aligned(size_t bytes) { return (bytes + GG_ALIGNMENT - 1) / GG_ALIGNMENT * GG_ALIGNMENT; }

/* The allocating functions write to `out`, the address of a pointer of any object type: `float *x; gg_alloc(bytes,
 * "weights", &x)`. They copy the pointer byte by byte, so that no pointer is written through another pointer's type
 * (strict aliasing). An argument that is no address of a pointer does not compile. */
#define GG_POINTER_OUT(out) ((void)sizeof(*(out) == NULL), (void *)(out))

/* Uninitialised memory; bytes = 0 gives NULL. `what` names the block in the error message. */
gg_status gg_alloc(size_t bytes, const char *what, void *out);
#define gg_alloc(bytes, what, out) gg_alloc(bytes, what, GG_POINTER_OUT(out))
/* Zeroed memory for `count` elements of `size` bytes. */
gg_status gg_calloc(size_t count, size_t size, const char *what, void *out);
#define gg_calloc(count, size, what, out) gg_calloc(count, size, what, GG_POINTER_OUT(out))
/* Frees a block of gg_alloc or gg_calloc. NULL is a no-op. */
void gg_free(void *block);
/* A tracked copy of a string. */
gg_status gg_strdup(const char *text, char **out);

int64_t gg_memory_live_bytes(void);
/* Adds device memory, which these functions do not allocate, to both counters; negative bytes mean a free. */
void gg_memory_count(int64_t bytes, int64_t allocations);
int64_t gg_memory_allocations(void);

#endif
