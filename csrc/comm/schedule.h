/* Who sends to whom: pure functions of (options, ranks, seed, step). So every rank knows, without a message, what all
 * ranks send in any step. */
#ifndef GG_COMM_SCHEDULE_H
#define GG_COMM_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* In step t every rank has a place, and h = t mod stages is the step within the cycle. The places are the ranks
 * themselves; with rotation those of each cycle but the first are a permutation drawn from the seed. Of few
 * permutations cycle c has that of cycle c mod `permutations`, so a rank has few partners. From place x:
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
 * fast. RING alternates directions, so that averages spread to both sides; they go around in p - 1 steps. In all
 * topologies but some tables every rank receives as many messages as it sends, so averaging
 * two halves preserves the mean over the ranks. */
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
    /* Cycles go round among so many permutations; 0: no two cycles need have the same one. Only with rotate, and not
     * with RANDOM and TABLE. 1 is as without rotate: the first permutation is that of the ranks themselves. */
    int permutations;
    /* TABLE only: rows * columns numbers, columns the ranks; table[h * columns + r] is the rank that r sends to; r
     * itself or -1: it sends nothing. The caller's; must outlive the schedule. */
    const int64_t *table;
    int64_t rows, columns;
} gg_schedule_options;

typedef struct gg_schedule {
    gg_schedule_options options;
    int size; /* ranks, >= 1 */
    uint64_t seed;
    int64_t stages; /* steps of a cycle; 0 for one rank */
    /* The permutation of the last step that was asked for, from place to rank and back, and the cycle it is drawn for.
     */
    int64_t cycle;
    uint32_t *rank_at, *place_of;
} gg_schedule;

/* GG_ERROR_ARGUMENT: what is wrong with the options, of a table row, rank and value. */
gg_status gg_schedule_create(const gg_schedule_options *options, int size, uint64_t seed, gg_schedule *out);
void gg_schedule_destroy(gg_schedule *schedule);

/* Whether cycles differ: who meets whom changes from each one to the next. */
bool gg_schedule_turns(const gg_schedule *schedule);
/* After so many steps it repeats, in an even number of cycles of a RING; 0: never, or one rank has no steps. */
int64_t gg_schedule_period(const gg_schedule *schedule);
/* The rank to which `rank` sends in this step; -1: nobody. These three allocate nothing. */
int gg_schedule_send_to(gg_schedule *schedule, int64_t step, int rank);
/* The first rank above `after` that sends to `rank` in this step; -1: no more. The senders, in ascending order:
 * for (int from = -1; (from = gg_schedule_next_sender(schedule, step, rank, from)) >= 0;) */
int gg_schedule_next_sender(gg_schedule *schedule, int64_t step, int rank, int after);
/* The same where a rank has one sender at most. */
void gg_schedule_at(gg_schedule *schedule, int64_t step, int rank, int *send_to, int *receive_from);

/* GG_ERROR_ARGUMENT naming row and ranks if somebody receives more, or less, than it sends: averaging halves
 * then does not preserve the mean. */
gg_status gg_schedule_check_balance(const gg_schedule *schedule);
/* *steps: how many steps from step 0 on it takes until the data of every rank have reached all ranks; -1: they never
 * do. Uses size^2 bits of memory while it runs. */
gg_status gg_schedule_diffusion(gg_schedule *schedule, int64_t *steps);
/* *steps: how many steps from step 0 on it takes until every rank has sent to every other one directly; -1: never, or
 * not within GG_MEETING_SEARCH messages over all ranks, a search of some tenths of a second. Uses size^2 bits of memory
 * while it runs. */
#define GG_MEETING_SEARCH ((int64_t)1 << 24)
gg_status gg_schedule_meeting(gg_schedule *schedule, int64_t *steps);

/* Groups of ranks, drawn anew for every turn: a permutation of the ranks drawn from the seed is cut into groups of
 * `most`; the last one is what is left, perhaps one rank. */
typedef struct gg_groups {
    int size, most;
    uint64_t seed;
    int64_t turn; /* of `rank_at`; -1: of none */
    uint32_t *rank_at;
} gg_groups;

/* GG_ERROR_ARGUMENT: size or most is below 1. */
gg_status gg_groups_create(int size, int most, uint64_t seed, gg_groups *out);
void gg_groups_destroy(gg_groups *groups);
/* The ranks of the group of `rank` in a turn from 0 on, itself among them, ascending, into `members`, room for `most`;
 * returns how many. The same on all ranks. Allocates nothing. */
int gg_groups_at(gg_groups *groups, int64_t turn, int rank, int *members);

/* Push-sum: every rank that sends gives half of its scalar to the receiver. after: of all ranks, what `step` makes of
 * `before`. Rounding is the same on every rank. Allocates nothing. */
void gg_schedule_push(gg_schedule *schedule, int64_t step, const double *before, double *after);

#endif
