/* How much memory the machine has left for this process. */
#ifndef GG_BASE_AVAILABLE_H
#define GG_BASE_AVAILABLE_H

#include <stddef.h>

#include "base/status.h"

/* Bytes that can be had without swapping: what /proc/meminfo says, and not more than the limits of the process's
 * control groups (versions 1 and 2) leave. SIZE_MAX where the system says nothing. Reads files and allocates nothing.
 * `root` stands before all paths, for tests; NULL: "". */
size_t gg_memory_available(const char *root);

/* GG_ERROR_MEMORY if `bytes` are more than that. The message names `what`, both sizes, and `advice`. */
gg_status gg_memory_check(size_t bytes, const char *what, const char *advice);

/* "3.1 GiB"; returns `text`. */
#define GG_BYTES_TEXT 32
const char *gg_bytes_text(size_t bytes, char text[GG_BYTES_TEXT]);

#endif
