#include "comm/schedule.h"

#include <string.h>

#include "base/memory.h"
#include "base/random.h"

static void turn_to(gg_schedule *schedule, int64_t cycle) {
    uint32_t size = (uint32_t)schedule->size;
    if (cycle == 0 || !schedule->rotate) {
        for (uint32_t i = 0; i < size; ++i) schedule->rank_at[i] = i;
    } else {
        const gg_random_key key = {
            .seed = schedule->seed,
            .purpose = GG_RANDOM_SCHEDULE,
            .step = (uint64_t)cycle,
        };
        gg_random_permutation(&key, size, schedule->rank_at);
    }
    for (uint32_t i = 0; i < size; ++i) schedule->place_of[schedule->rank_at[i]] = i;
    schedule->cycle = cycle;
}

gg_status gg_schedule_create(gg_topology topology, int size, bool rotate, uint64_t seed, gg_schedule *out) {
    gg_status status = GG_OK;
    gg_schedule schedule = {.topology = topology, .size = size, .rotate = rotate, .seed = seed};
    void *block;
    memset(out, 0, sizeof *out);
    if ((unsigned)topology >= GG_TOPOLOGY_COUNT)
        GG_TRY(gg_fail(GG_ERROR_ARGUMENT, "topology %d: allowed are 0 (dissemination), 1 (cube)", (int)topology));
    if (size < 1) GG_TRY(gg_fail(GG_ERROR_ARGUMENT, "schedule for %d ranks: at least 1 is needed", size));
    while (((int64_t)1 << schedule.stages) < size) ++schedule.stages;
    GG_TRY(gg_alloc((size_t)size * sizeof *schedule.rank_at, "a partner schedule", &block));
    schedule.rank_at = block;
    GG_TRY(gg_alloc((size_t)size * sizeof *schedule.place_of, "a partner schedule", &block));
    schedule.place_of = block;
    turn_to(&schedule, 0);
    *out = schedule;
    memset(&schedule, 0, sizeof schedule);
cleanup:
    gg_schedule_destroy(&schedule);
    return status;
}

void gg_schedule_destroy(gg_schedule *schedule) {
    if (!schedule) return;
    gg_free(schedule->rank_at);
    gg_free(schedule->place_of);
    memset(schedule, 0, sizeof *schedule);
}

void gg_schedule_at(gg_schedule *schedule, int64_t step, int rank, int *send_to, int *receive_from) {
    *send_to = *receive_from = -1;
    if (schedule->stages == 0 || step < 0 || rank < 0 || rank >= schedule->size) return;
    int64_t cycle = step / schedule->stages;
    if (schedule->rotate && cycle != schedule->cycle) turn_to(schedule, cycle);

    int64_t size = schedule->size, place = schedule->place_of[rank];
    int64_t distance = (int64_t)1 << (step % schedule->stages); /* below size: nobody meets himself */
    if (schedule->topology == GG_TOPOLOGY_CUBE) {
        int64_t peer = place ^ distance;
        if (peer < size) *send_to = *receive_from = (int)schedule->rank_at[peer];
    } else {
        *send_to = (int)schedule->rank_at[(place - distance + size) % size];
        *receive_from = (int)schedule->rank_at[(place + distance) % size];
    }
}
