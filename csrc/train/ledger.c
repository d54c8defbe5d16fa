#include "train/ledger.h"

#include "comm/ledger.h"

_Static_assert(sizeof(gg_ledger_entry) <= GG_LEDGER_WORDS * sizeof(int64_t), "an entry fits into a ledger's");

void gg_ledger_write(void *ledger, const gg_ledger_entry *entry) { gg_ledger_append(ledger, entry, sizeof *entry); }

const gg_ledger_entry *gg_ledger_last(const void *ledger) { return gg_ledger_back(ledger, 0); }

const gg_ledger_entry *gg_ledger_after(const void *ledger, int64_t made) {
    const gg_ledger_entry *last = gg_ledger_last(ledger), *entry = last;
    for (int64_t back = 0; entry != NULL && entry->epoch == last->epoch && entry->made >= made;) {
        if (entry->made == made) return entry;
        entry = gg_ledger_back(ledger, ++back);
    }
    return NULL;
}
