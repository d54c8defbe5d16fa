/* Private to the room: a rank's counts of its epoch, in its ledger (comm/ledger.h). It writes an entry at each step
 * that it counts. */
#ifndef GG_TRAIN_LEDGER_H
#define GG_TRAIN_LEDGER_H

#include "train/replica.h"

typedef struct gg_ledger_entry {
    int64_t epoch; /* number of the epoch to which the counts belong */
    int64_t view;  /* number of the view for which the rank has regrouped */
    int64_t made;  /* steps of training that the counts include */
    gg_progress_counts counts;
} gg_ledger_entry;

void gg_ledger_write(void *ledger, const gg_ledger_entry *entry);
/* The last entry; NULL means none. */
const gg_ledger_entry *gg_ledger_last(const void *ledger);
/* The last entry after `made` steps of the last entry's epoch; NULL if it is older than those kept. */
const gg_ledger_entry *gg_ledger_after(const void *ledger, int64_t made);

#endif
