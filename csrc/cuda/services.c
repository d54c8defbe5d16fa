/* Functions of base/ that this library calls, through the core's table of services. A library loaded by a Python module
 * does not see the module's symbols. */
#include "cuda/services.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"

enum { MAX_TEXT = 1024 };

static const gg_library_services *core;

void gg_cuda_services_use(const gg_library_services *services) { core = services; }

gg_status gg_fail(gg_status status, const char *format, ...) {
    char text[MAX_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return core->fail(status, text);
}

gg_status gg_error_prefix(gg_status status, const char *format, ...) {
    char text[MAX_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return core->prefix(status, text);
}

const char *gg_error_message(void) { return core->message(); }

gg_status(gg_alloc)(size_t bytes, const char *what, void *out) { return core->alloc(bytes, what, out); }

gg_status(gg_calloc)(size_t count, size_t size, const char *what, void *out) {
    return core->calloc(count, size, what, out);
}

void gg_free(void *block) { core->free(block); }

void gg_memory_count(int64_t bytes, int64_t allocations) { core->count(bytes, allocations); }

int64_t gg_memory_live_bytes(void) { return core->live_bytes(); }
