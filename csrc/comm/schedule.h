/* Partners: pure functions of (options, ranks, seed, step). Every rank knows all ranks' partners in any step, without a
 * message. */
#ifndef GG_COMM_SCHEDULE_H
#define GG_COMM_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* In step t every rank has a place; h = t mod stages is the step within the cycle. Places are the ranks themselves;
 * with rotation each later cycle has a permutation drawn from the seed. With `permutations` cycle c has the permutation
 * of cycle c mod `permutations`, so a rank has few partners. From place x:
 *
 *              sends to        receives from   stages
 *   DISSEMINATION  (x - 2^h) mod p  (x + 2^h) mod p  ceil(log2 p)
 *   CUBE           x XOR 2^h        x XOR 2^h        ceil(log2 p); a peer >= p is missing: no partner
 *   RING           (x -+ 1) mod p   (x +- 1) mod p   p - 1; upper signs in even steps t, lower ones in odd steps
 *   EXPONENTIAL    (x + 2^h) mod p  (x - 2^h) mod p  ceil(log2 p)
 *   RANDOM         the other of its pair             1; a random perfect matching each step; for odd p one is left out
 *   TABLE          table[h][rank]   who sends to it  the rows of the table; places are always the ranks
 *
 * EXPONENTIAL is the one-peer exponential graph. With place x renamed to p - x it is DISSEMINATION, so both mix equally
 * fast. RING alternates directions, so that averages spread to both sides; they go around in p - 1 steps. Except in
 * some tables every rank receives as many messages as it sends, so averaging two halves preserves the mean over the
 * ranks. */
typedef enum gg_topology {
    GG_TOPOLOGY_DISSEMINATION = 0,
    GG_TOPOLOGY_CUBE,
    GG_TOPOLOGY_RING,
    GG_TOPOLOGY_EXPONENTIAL,
    GG_TOPOLOGY_RANDOM,
    GG_TOPOLOGY_TABLE,
    GG_TOPOLOGY_COUNT
} gg_topology;

typedef struct gg_schedule_options {
    gg_topology topology;
    bool rotate; /* a new permutation of the ranks after each cycle; without effect on RANDOM and TABLE */
    /* Number of permutations among which cycles rotate; 0 means no limit. Only with rotate, not with RANDOM and TABLE.
     * 1 equals no rotation: the first permutation is that of the ranks themselves. */
    int permutations;
    /* TABLE only: rows * columns numbers, a column a rank; table[h * columns + r] is the rank that r sends to; r itself
     * or -1 means none. The caller's; outlives the schedule. */
    const int64_t *table;
    int64_t rows, columns;
} gg_schedule_options;

typedef struct gg_schedule {
    gg_schedule_options options;
    int size; /* ranks, >= 1 */
    uint64_t seed;
    int64_t stages; /* steps of a cycle; 0 for one rank */
    /* The last step's permutation, from place to rank and back, and its cycle.
     */
    int64_t cycle;
    uint32_t *rank_at, *place_of;
} gg_schedule;

/* GG_ERROR_ARGUMENT names the wrong option; for a table also row, rank and value. */
gg_status gg_schedule_create(const gg_schedule_options *options, int size, uint64_t seed, gg_schedule *out);
void gg_schedule_destroy(gg_schedule *schedule);

/* True if partners change from cycle to cycle. */
bool gg_schedule_turns(const gg_schedule *schedule);
/* Steps until the schedule repeats (RING: an even number of cycles); 0 means never, or one rank. */
int64_t gg_schedule_period(const gg_schedule *schedule);
/* The rank to which `rank` sends in this step; -1 means none. These three functions allocate nothing. */
int gg_schedule_send_to(gg_schedule *schedule, int64_t step, int rank);
/* The first rank above `after` that sends to `rank` in this step; -1 means no more. The senders, in ascending order:
 * for (int from = -1; (from = gg_schedule_next_sender(schedule, step, rank, from)) >= 0;) */
int gg_schedule_next_sender(gg_schedule *schedule, int64_t step, int rank, int after);
/* Receiver and sender of `rank`, in schedules with at most one sender a rank. */
void gg_schedule_at(gg_schedule *schedule, int64_t step, int rank, int *send_to, int *receive_from);

/* GG_ERROR_ARGUMENT, naming row and ranks, if a rank does not receive as many messages as it sends: averaging halves
 * would not preserve the mean. */
gg_status gg_schedule_check_balance(const gg_schedule *schedule);
/* *steps receives the number of steps, from step 0, until every rank's data have reached all ranks; -1 means never.
 * Uses size^2 bits of memory while it runs. */
gg_status gg_schedule_diffusion(gg_schedule *schedule, int64_t *steps);
/* *steps receives the number of steps, from step 0, until every rank has sent directly to every other; -1 means never,
 * or not within GG_MEETING_SEARCH messages over all ranks, a search of some tenths of a second. Uses size^2 bits of
 * memory while it runs. */
#define GG_MEETING_SEARCH ((int64_t)1 << 24)
gg_status gg_schedule_meeting(gg_schedule *schedule, int64_t *steps);

/* Groups of ranks, drawn anew for every turn: a permutation from the seed is cut into groups of `most`; the last may be
 * smaller, down to one rank. */
typedef struct gg_groups {
    int size, most;
    uint64_t seed;
    int64_t turn; /* of `rank_at`; -1 means none */
    uint32_t *rank_at;
} gg_groups;

/* GG_ERROR_ARGUMENT: size or most is below 1. */
gg_status gg_groups_create(int size, int most, uint64_t seed, gg_groups *out);
void gg_groups_destroy(gg_groups *groups);
/* Writes the group of `rank` in a turn (from 0), itself included, ascending, to `members`, room for `most`; returns its
 * size. Equal on all ranks. Allocates nothing. */
int gg_groups_at(gg_groups *groups, int64_t turn, int rank, int *members);

/* Push-sum: every rank that sends gives half of its scalar to the receiver. `after` receives all ranks' scalars after
 * `step`, from `before`. Rounding is equal on every rank. Allocates nothing. */
void gg_schedule_push(gg_schedule *schedule, int64_t step, const double *before, double *after);

#endif
