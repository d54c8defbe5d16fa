/* Views of ranks that are processes of one host: memory that they share with the keeper of their membership.
 *
 * The keeper (the process that starts and reaps the ranks) writes the current phase and view; each rank writes its
 * limit and its report. Nobody sends anything, and ranks only look: a run without deaths costs a load a step. The
 * keeper reads what ranks have told when it polls, which it does only while a view changes. */
#ifndef GG_COMM_VIEW_PAGES_H
#define GG_COMM_VIEW_PAGES_H

#include <stddef.h>

#include "comm/view.h"

/* Bytes of the shared memory for `most` identities. */
size_t gg_view_pages_bytes(int most);

/* ---- the keeper ---- */

typedef struct gg_view_keeper gg_view_keeper;

/* members, most, least: as in gg_membership_create. memory: of gg_view_pages_bytes, zeroed, aligned to 64 bytes; it
 * outlives the keeper and the ranks' views. */
gg_status gg_view_keeper_create(void *memory, int members, int most, int least, gg_view_keeper **out);
void gg_view_keeper_destroy(gg_view_keeper *keeper); /* NULL is a no-op */
/* A rank has been reaped: it writes no more. */
gg_status gg_view_keeper_died(gg_view_keeper *keeper, int identity);
/* Reads what the ranks have told, and publishes what follows. *phase: the phase then. A newcomer that is ready is told
 * of when no view changes. */
gg_status gg_view_keeper_poll(gg_view_keeper *keeper, gg_phase *phase);
/* True if no view changes, all members have their state, and no newcomer waits to be told of: there is nothing to poll
 * for. */
bool gg_view_keeper_rests(const gg_view_keeper *keeper);
/* A rank trains: if it ends now, whatever its exit code, it has died. */
bool gg_view_keeper_trains(const gg_view_keeper *keeper, int identity);
const gg_membership *gg_view_keeper_membership(const gg_view_keeper *keeper);

/* ---- mirrors ----
 *
 * Ranks of several hosts have one keeper. Each host has memory of its own, with pages of all ranks. Agents carry what
 * ranks have told to the keeper's memory, and what the keeper has published back. The bytes are opaque. */

size_t gg_view_pages_told_bytes(int most);
/* Copies what this rank has told. */
void gg_view_pages_told(void *memory, int most, int identity, void *to);
/* Takes what the rank had told elsewhere. A copy older than this memory's changes nothing. */
void gg_view_pages_tell(void *memory, int most, int identity, const void *from);
/* From now on no vote is heard of this rank (gg_views_table.heard): whoever asks next knows all that counted here. */
void gg_view_pages_freeze(void *memory, int most, int identity);
/* As gg_view_keeper_trains. */
bool gg_view_pages_trains(void *memory, int most, int identity);

size_t gg_view_pages_published_bytes(int most);
/* Copies what the keeper has published last; by the one process that publishes in this memory. */
void gg_view_pages_published(void *memory, int most, void *to);
void gg_view_pages_publish(void *memory, int most, const void *from);
/* The view that has been published last: its number, start, and members, for which `member` has room for `most`.
 * Returns their number, 0 before the first view. Others may see a part of the next one. */
int gg_view_pages_view(void *memory, int most, int64_t *number, int64_t *start, int *member);
/* A keeper just created goes on from what another has published last. */
gg_status gg_view_keeper_restore(gg_view_keeper *keeper, const void *published);

/* ---- a rank ---- */

/* The views of the rank with this identity. The memory, of `most` identities, has been made by a keeper. */
gg_status gg_view_pages_open(void *memory, int most, int identity, gg_views **out);

#endif
