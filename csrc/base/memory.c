#include "base/memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

/* Before every block lies one cache line with its size. In a block of 2 MiB and more it is the line that lies
 * on the 2 MiB boundary: the data start 64 bytes behind it and share its huge page, and nothing is wasted. */
typedef union header {
    size_t bytes;
    unsigned char line[GG_ALIGNMENT];
} header;

_Static_assert(sizeof(header) == GG_ALIGNMENT, "the header preserves the block's alignment");

static _Atomic int64_t live_bytes;
static _Atomic int64_t allocations;

/* Writes a pointer to `out`, the address of a pointer of any type: POSIX gives all of them one representation. */
static void set_pointer(void *out, void *pointer) { memcpy(out, &pointer, sizeof pointer); }

gg_status(gg_alloc)(size_t bytes, const char *what, void *out) {
    set_pointer(out, NULL);
    if (bytes == 0) return GG_OK;
    void *base = NULL;
    size_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : GG_ALIGNMENT;
    if (bytes > (size_t)PTRDIFF_MAX - HUGE_PAGE || posix_memalign(&base, alignment, bytes + sizeof(header)) != 0)
        return gg_fail(GG_ERROR_MEMORY, "no memory for %s: %zu bytes wanted, %lld bytes in use", what, bytes,
                       (long long)gg_memory_live_bytes());
#ifdef MADV_HUGEPAGE
    /* Only a hint: where the system has no huge pages, nothing changes. */
    if (bytes >= HUGE_PAGE) (void)madvise(base, bytes + sizeof(header), MADV_HUGEPAGE);
#endif
    header *head = base;
    head->bytes = bytes;
    atomic_fetch_add_explicit(&live_bytes, (int64_t)bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    set_pointer(out, head + 1);
    return GG_OK;
}

gg_status(gg_calloc)(size_t count, size_t size, const char *what, void *out) {
    set_pointer(out, NULL);
    if (size != 0 && count > SIZE_MAX / size)
        return gg_fail(GG_ERROR_MEMORY, "no memory for %s: %zu times %zu bytes wanted", what, count, size);
    void *block = NULL;
    GG_TRY(gg_alloc(count * size, what, &block));
    if (block) set_pointer(out, memset(block, 0, count * size));
    return GG_OK;
}

void gg_free(void *block) {
    if (!block) return;
    header *head = (header *)block - 1;
    atomic_fetch_sub_explicit(&live_bytes, (int64_t)head->bytes, memory_order_relaxed);
    free(head);
}

gg_status gg_strdup(const char *text, char **out) {
    *out = NULL;
    char *copy = NULL;
    size_t bytes = strlen(text) + 1;
    gg_status status = gg_alloc(bytes, "a text", &copy);
    if (copy != NULL) *out = memcpy(copy, text, bytes);
    return status;
}

int64_t gg_memory_live_bytes(void) { return atomic_load_explicit(&live_bytes, memory_order_relaxed); }

int64_t gg_memory_allocations(void) { return atomic_load_explicit(&allocations, memory_order_relaxed); }

void gg_memory_count(int64_t bytes, int64_t count) {
    atomic_fetch_add_explicit(&live_bytes, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&allocations, count, memory_order_relaxed);
}
