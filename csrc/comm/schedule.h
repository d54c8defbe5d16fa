/* Who talks to whom: pure functions of (topology, ranks, seed, step). */
#ifndef GG_COMM_SCHEDULE_H
#define GG_COMM_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef enum gg_topology { GG_TOPOLOGY_DISSEMINATION = 0, GG_TOPOLOGY_CUBE, GG_TOPOLOGY_COUNT } gg_topology;

typedef struct gg_schedule {
    gg_topology topology;
    int size;    /* ranks, >= 1 */
    bool rotate; /* a new permutation of the ranks after each cycle */
    uint64_t seed;
    int stages; /* ceil(log2 size); 0 for one rank */
    /* The permutation of the current cycle, place -> rank and back; refreshed by gg_schedule_at. */
    int64_t cycle;
    uint32_t *rank_at, *place_of;
} gg_schedule;

gg_status gg_schedule_create(gg_topology topology, int size, bool rotate, uint64_t seed, gg_schedule *out);
void gg_schedule_destroy(gg_schedule *schedule);

/* Partners of `rank` at step t: h = t mod stages in cycle t / stages. With places of this cycle's permutation
 * (cycle 0: identity):
 *   dissemination: send to (place - 2^h) mod p, receive from (place + 2^h) mod p
 *   cube:          both place XOR 2^h; a peer >= p is missing
 * -1: no partner in this step (cube with a missing peer, or one rank). Allocates nothing. */
void gg_schedule_at(gg_schedule *schedule, int64_t step, int rank, int *send_to, int *receive_from);

#endif
