/* How much memory the machine has left for this process. */
#ifndef GG_BASE_AVAILABLE_H
#define GG_BASE_AVAILABLE_H

#include <stddef.h>

#include "base/status.h"

/* Bytes available without swapping: /proc/meminfo's figure, limited by the process's control groups (versions 1 and 2).
 * SIZE_MAX if the system gives no figure. Reads files and allocates nothing. `root` is put before all paths, for tests;
 * NULL means "". */
size_t gg_memory_available(const char *root);

/* GG_ERROR_MEMORY if `bytes` exceed gg_memory_available. The message names `what`, both sizes, and `advice`. */
gg_status gg_memory_check(size_t bytes, const char *what, const char *advice);

/* "3.1 GiB"; returns `text`. */
#define GG_BYTES_TEXT 32
const char *gg_bytes_text(size_t bytes, char text[GG_BYTES_TEXT]);

#endif
