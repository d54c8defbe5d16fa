/* A rank's ledger: entries in memory that outlives the rank (gg_views_table.ledger), zero at first.
 *
 * The rank appends. Other ranks read when it has died; its agent also reads while it lives. A rank that is killed while
 * it appends leaves the earlier entries whole. Mirrors (comm/view_pages.h) carry copies of the last entry to other
 * hosts, so a ledger there lacks entries between two copies. */
#ifndef GG_COMM_LEDGER_H
#define GG_COMM_LEDGER_H

#include <stddef.h>
#include <stdint.h>

enum { GG_LEDGER_ENTRIES = 64, GG_LEDGER_WORDS = 64 }; /* entries in memory; numbers of an entry */
#define GG_LEDGER_BYTES (64 + GG_LEDGER_ENTRIES * GG_LEDGER_WORDS * sizeof(int64_t))

/* bytes: at most those of GG_LEDGER_WORDS numbers. */
void gg_ledger_append(void *ledger, const void *entry, size_t bytes);
/* The entry before `back` later ones. NULL if there is none, or it is no longer kept. */
const void *gg_ledger_back(const void *ledger, int64_t back);

/* ---- mirrors ---- */

enum { GG_LEDGER_TOLD = 1 + GG_LEDGER_WORDS };

/* Copies the last entry to GG_LEDGER_TOLD numbers. */
void gg_ledger_told(const void *ledger, int64_t *to);
/* Appends an entry told elsewhere, if it is newer than all in this memory. */
void gg_ledger_tell(void *ledger, const int64_t *from);

#endif
