/* A newcomer takes the state of its donor: weights, statistics, moments, step.
 *
 * Its residue and edge copies begin at zero. Both ranks have the next view's transport. Their messages are those of its
 * epoch, so those of a broken copy are never read. The owners of the exchanges add numbers and a text of their own. */
#ifndef GG_EXCHANGE_HANDOVER_H
#define GG_EXCHANGE_HANDOVER_H

#include "comm/team.h"
#include "exchange/exchange.h"

/* What a donor says before it gives its arenas. */
typedef struct gg_handover {
    int64_t *number; /* the owner's */
    int64_t numbers;
    int64_t fixed; /* the first of them, equally many on all ranks */
    char *text;    /* the donor's caller's; ends with a zero byte when heard */
    size_t bytes;
    bool linked; /* `link` is known */
    gg_link link;
    /* Set by gg_exchange_hear: of the donor's exchange. */
    int64_t step, push_sum_since, moments_since;
    bool missed;
    int64_t elements;
    int arenas;
} gg_handover;

/* Frees numbers and text. Zeroed is a no-op. */
void gg_handover_free(gg_handover *handover);

/* The donor sends its state to rank `to`, after its own gg_exchange_regroup. If the newcomer dies, this succeeds. */
gg_status gg_exchange_give(gg_exchange *x, int to, const gg_handover *given);
/* The newcomer's side in the view of this number: gg_exchange_hear, then its own gg_exchange_regroup, then
 * gg_exchange_take. fixed: as in gg_handover. GG_ERROR_PEER if a rank has died before the copy is whole: the newcomer
 * waits for the next view. *heard is empty after a failure. */
gg_status gg_exchange_hear(gg_exchange *x, int from, int64_t view, int64_t fixed, gg_handover *heard);
/* GG_ERROR_ARGUMENT for a donor with other arenas. GG_ERROR_PEER as in gg_exchange_hear. */
gg_status gg_exchange_take(gg_exchange *x, int from, const gg_handover *heard);

#endif
