#include "train/ledger.h"

#include <stdatomic.h>

#include "comm/view.h"

enum { ENTRIES = 64 };

typedef struct ledger {
    _Atomic int64_t written;
    gg_ledger_entry entry[ENTRIES]; /* a ring */
} ledger;

_Static_assert(sizeof(ledger) <= GG_LEDGER_BYTES, "a ledger fits into its memory");

void gg_ledger_write(void *memory, const gg_ledger_entry *entry) {
    ledger *l = memory;
    const int64_t written = atomic_load_explicit(&l->written, memory_order_relaxed);
    l->entry[written % ENTRIES] = *entry;
    atomic_store_explicit(&l->written, written + 1, memory_order_release);
}

static int64_t written_to(const ledger *l) { return atomic_load_explicit(&l->written, memory_order_acquire); }

const gg_ledger_entry *gg_ledger_last(const void *memory) {
    const ledger *l = memory;
    const int64_t written = written_to(l);
    return written > 0 ? &l->entry[(written - 1) % ENTRIES] : NULL;
}

const gg_ledger_entry *gg_ledger_after(const void *memory, int64_t made) {
    const ledger *l = memory;
    const int64_t written = written_to(l), oldest = written - ENTRIES + 1; /* the next entry's place may be half new */
    const gg_ledger_entry *last = gg_ledger_last(memory);
    if (last == NULL) return NULL;
    for (int64_t i = written - 1; i >= 0 && i >= oldest; --i) {
        const gg_ledger_entry *entry = &l->entry[i % ENTRIES];
        if (entry->epoch != last->epoch || entry->made < made) break;
        if (entry->made == made) return entry;
    }
    return NULL;
}
