#include "comm/ledger.h"

#include <stdatomic.h>
#include <string.h>

typedef struct ledger {
    _Alignas(64) _Atomic int64_t written; /* entries here */
    _Atomic int64_t copied;               /* `written` of the rank's own memory at the last copy; 0 means no copies */
    _Alignas(64) int64_t entry[GG_LEDGER_ENTRIES][GG_LEDGER_WORDS]; /* a ring */
} ledger;

_Static_assert(sizeof(ledger) == GG_LEDGER_BYTES, "a ledger fills its memory");

static int64_t written_to(const ledger *l) { return atomic_load_explicit(&l->written, memory_order_acquire); }

/* Entries that the rank had written at the last one here. */
static int64_t newest(const ledger *l) {
    const int64_t written = written_to(l), copied = atomic_load_explicit(&l->copied, memory_order_relaxed);
    return copied > 0 ? copied : written;
}

void gg_ledger_append(void *memory, const void *entry, size_t bytes) {
    ledger *l = memory;
    const int64_t written = atomic_load_explicit(&l->written, memory_order_relaxed);
    memcpy(l->entry[written % GG_LEDGER_ENTRIES], entry, bytes);
    atomic_store_explicit(&l->written, written + 1, memory_order_release);
}

const void *gg_ledger_back(const void *memory, int64_t back) {
    const ledger *l = memory;
    const int64_t number = written_to(l) - 1 - back;
    /* The next entry's place may be half new. */
    return number >= 0 && back < GG_LEDGER_ENTRIES - 1 ? l->entry[number % GG_LEDGER_ENTRIES] : NULL;
}

void gg_ledger_told(const void *memory, int64_t *to) {
    const ledger *l = memory;
    int64_t written;
    memset(to, 0, GG_LEDGER_TOLD * sizeof *to);
    do {
        written = written_to(l);
        if (written == 0) return;
        to[0] = newest(l);
        memcpy(to + 1, l->entry[(written - 1) % GG_LEDGER_ENTRIES], sizeof l->entry[0]);
        atomic_thread_fence(memory_order_acquire);
    } while (written_to(l) >= written + GG_LEDGER_ENTRIES - 1); /* overwritten meanwhile */
}

void gg_ledger_tell(void *memory, const int64_t *from) {
    ledger *l = memory;
    if (from[0] <= newest(l)) return;
    gg_ledger_append(l, from + 1, sizeof l->entry[0]);
    atomic_store_explicit(&l->copied, from[0], memory_order_relaxed);
}
