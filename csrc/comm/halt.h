/* Stops all ranks after one common step when a rank wants to stop. No messages are sent before that.
 *
 * A rank that wants to stop sends all others its limit: the step to which it trains. A rank that receives a limit sends
 * its own. No rank passes its own limit before it knows all limits; each stops at the largest.
 *
 * Proof that nobody waits for ever:
 *
 * 1. A rank at its limit waits for limits alone.
 * 2. Every other rank computes, and so reaches the end of its steps or a wait, or it waits. In both places it
 *    receives limits and sends its own.
 * 3. So all limits arrive, whatever the ranks at their limits withhold.
 * 4. Each rank then trains to the largest limit and sends the messages that others wait for.
 * 5. No rank is beyond that step: it is at least each rank's own limit. */
#ifndef GG_COMM_HALT_H
#define GG_COMM_HALT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct gg_halt gg_halt;

/* A rank's message, once a round. */
typedef struct gg_halt_limit {
    int64_t round, step;
} gg_halt_limit;

/* How limits travel, apart from all other messages. */
typedef struct gg_halt_wire {
    gg_status (*tell)(void *context, const gg_halt_limit *limit);        /* to all other ranks */
    gg_status (*hear)(void *context, gg_halt_limit *limit, bool *heard); /* the next limit of any rank */
    gg_status (*is_idle)(void *context, bool *idle); /* whether `limit` of the last tell may be written; NULL: always */
} gg_halt_wire;

/* Rounds of a wait between calls of gg_halt_listen. */
#define GG_HALT_LISTEN_ROUNDS 64

gg_status gg_halt_create(int rank, int size, const gg_halt_wire *wire, void *context, gg_halt **out);
/* Ends the round. False: the wire may still read the last limit, so the halt was not freed. NULL: true. Without
 * `touch`, after a failure, the wire is not asked. */
bool gg_halt_destroy(gg_halt *halt, bool touch);

/* Number of the last round of steps that has begun; 0 means none. */
int64_t gg_halt_round(const gg_halt *halt);
/* *idle: all messages of earlier rounds have left. Listens. Collective; repeat until true. */
gg_status gg_halt_idle(gg_halt *halt, bool *idle);
/* Begins a round of steps after `step` steps; no message of an earlier round is unread. All ranks give one number above
 * all earlier ones, and meet once more before the first looks. Messages of another round are dropped on arrival. */
void gg_halt_begin(gg_halt *halt, int64_t round, int64_t step);
void gg_halt_end(gg_halt *halt);

/* This rank is about to train to step `next`, which is its limit unless it has sent one. want: it wants to stop. */
gg_status gg_halt_look(gg_halt *halt, int64_t next, bool want);
/* Receives limits, and sends this rank's limit after the first. Never waits: called repeatedly in every wait for other
 * ranks. NULL is a no-op. */
gg_status gg_halt_listen(gg_halt *halt);
/* True if a rank that has made `step` steps must wait for others' limits. */
bool gg_halt_waits(const gg_halt *halt, int64_t step);
/* The step up to which a rank may train that wants to train to `next`: at most its limit; the largest limit, after
 * which all stop, once all limits are known. */
int64_t gg_halt_until(const gg_halt *halt, int64_t next);

#endif
