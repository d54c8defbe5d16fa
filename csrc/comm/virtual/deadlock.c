/* No rank can run, or one has failed: how the other ranks are stopped, and the message. */
#include <stdio.h>
#include <string.h>

#include "comm/virtual/virtual_private.h"

static void describe_wait(const gg_virtual_rank *rank, char *text, size_t bytes) {
    const gg_request *request = rank->waiting;
    if (rank->waits_for_any) snprintf(text, bytes, "rank %d waits for any of its messages", rank->transport.rank);
    else if (request->state == GG_REQUEST_SENDING)
        snprintf(text, bytes, "rank %d waits for rank %d to receive %zu bytes (tag %d)", rank->transport.rank,
                 request->peer, request->bytes, request->tag);
    else
        snprintf(text, bytes, "rank %d waits for %s%zu bytes from rank %d (tag %d)", rank->transport.rank,
                 request->exact ? "" : "up to ", request->bytes, request->peer, request->tag);
}

void gg_virtual_fail_all(gg_virtual *cluster) {
    cluster->failed = true;
    cluster->wire.size = 0; /* the requests may be freed soon */
    for (int r = 0; r < cluster->options.size; ++r) {
        gg_virtual_rank *rank = &cluster->ranks[r];
        bool asleep = (rank->polling || rank->waits_for_any) && rank->due.place < 0;
        if (rank->finished || !(rank->waiting || asleep)) continue;
        if (rank->due.place >= 0) gg_virtual_make_undue(cluster, rank);
        rank->waiting = NULL;
        gg_virtual_make_due(cluster, rank, rank->clock, false);
    }
}

void gg_virtual_declare_deadlock(gg_virtual *cluster) {
    char *text = cluster->deadlock_text;
    const int living = cluster->options.size - cluster->dead;
    int left = cluster->working, returned = living - left;
    size_t used = (size_t)snprintf(text, GG_VIRTUAL_TEXT, "all ranks wait for messages that nobody will send");
    if (returned > 0)
        used += (size_t)snprintf(text + used, GG_VIRTUAL_TEXT - used, " (%d of %d have returned)", returned, living);
    for (int r = 0; r < cluster->options.size; ++r) {
        const gg_virtual_rank *rank = &cluster->ranks[r];
        char line[128], more[32];
        if (rank->finished || rank->lingers || !(rank->waiting || rank->waits_for_any)) continue;
        describe_wait(rank, line, sizeof line);
        int room = left > 1 ? snprintf(more, sizeof more, "; and %d more", left) : 0;
        if (used + strlen(line) + 2 + (size_t)room + 64 >= GG_VIRTUAL_TEXT) {
            snprintf(text + used, GG_VIRTUAL_TEXT - used, "; and %d more", left);
            break;
        }
        used +=
            (size_t)snprintf(text + used, GG_VIRTUAL_TEXT - used, "%s%s", left == cluster->working ? ": " : "; ", line);
        left--;
    }
    cluster->deadlock = true;
    gg_virtual_fail_all(cluster);
}
