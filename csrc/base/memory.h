/* Tracked, aligned memory. All memory of the core comes from here.
 *
 * Blocks are aligned to 64 bytes (2 MiB and huge pages asked for from 2 MiB up). Two counters are kept,
 * exact under threads: live bytes (0 again after everything is destroyed) and the number of allocations
 * ever made (unchanged over a warm step). Any thread may allocate and free. */
#ifndef GG_BASE_MEMORY_H
#define GG_BASE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define GG_ALIGNMENT 64

/* Uninitialised memory; bytes = 0 gives NULL. `what` names the block in the error message. */
gg_status gg_alloc(size_t bytes, const char *what, void **out);
/* The same, zeroed. */
gg_status gg_calloc(size_t count, size_t size, const char *what, void **out);
/* Frees a block of gg_alloc or gg_calloc; NULL is fine. */
void gg_free(void *block);
/* A tracked copy of a string. */
gg_status gg_strdup(const char *text, char **out);

int64_t gg_memory_live_bytes(void);
int64_t gg_memory_allocations(void);

#endif
