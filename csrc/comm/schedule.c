#include "comm/schedule.h"

#include <string.h>

#include "base/memory.h"
#include "base/random.h"

/* ---- creation and destruction ---- */

bool gg_schedule_turns(const gg_schedule *schedule) {
    const gg_schedule_options *o = &schedule->options;
    return o->topology == GG_TOPOLOGY_RANDOM || (o->rotate && o->permutations != 1 && o->topology != GG_TOPOLOGY_TABLE);
}

int64_t gg_schedule_period(const gg_schedule *schedule) {
    const gg_schedule_options *o = &schedule->options;
    const int64_t cycle = o->topology == GG_TOPOLOGY_RING ? 2 * schedule->stages : schedule->stages;
    return gg_schedule_turns(schedule) ? cycle * o->permutations : cycle;
}

static void turn_to(gg_schedule *schedule, int64_t cycle) {
    uint32_t size = (uint32_t)schedule->size;
    if (!gg_schedule_turns(schedule) || (cycle == 0 && schedule->options.topology != GG_TOPOLOGY_RANDOM)) {
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

static gg_status check_table(const gg_schedule_options *o, int size) {
    if (o->table == NULL || o->rows < 1)
        return gg_fail(GG_ERROR_ARGUMENT, "topology: the table has no rows; allowed: at least one, a row a step");
    if (o->columns != size)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "topology: the table has %lld columns; allowed: %d, one a rank, or a node where nodes gossip",
                       (long long)o->columns, size);
    for (int64_t i = 0; i < o->rows * o->columns; ++i)
        if (o->table[i] < -1 || o->table[i] >= size)
            return gg_fail(GG_ERROR_ARGUMENT,
                           "topology: row %lld, rank %lld: partner %lld; allowed: 0 to %d, or -1 for none",
                           (long long)(i / size), (long long)(i % size), (long long)o->table[i], size - 1);
    return GG_OK;
}

static gg_status check_permutations(const gg_schedule_options *o) {
    if (o->permutations < 0)
        return gg_fail(GG_ERROR_ARGUMENT, "permutations: %d; allowed: at least 1, or 0 for a new one after each cycle",
                       o->permutations);
    if (o->permutations == 0) return GG_OK;
    if (!o->rotate) return gg_fail(GG_ERROR_ARGUMENT, "permutations: %d without rotate; allowed: 0", o->permutations);
    if (o->topology == GG_TOPOLOGY_RANDOM || o->topology == GG_TOPOLOGY_TABLE)
        return gg_fail(GG_ERROR_ARGUMENT, "permutations: %d with %s, whose ranks do not change places; allowed: 0",
                       o->permutations, o->topology == GG_TOPOLOGY_RANDOM ? "random pairs" : "a table");
    return GG_OK;
}

static int64_t stages_of(const gg_schedule_options *o, int size) {
    int64_t stages = 0;
    if (size == 1) return 0;
    switch (o->topology) {
    case GG_TOPOLOGY_RING: return size - 1;
    case GG_TOPOLOGY_RANDOM: return 1;
    case GG_TOPOLOGY_TABLE: return o->rows;
    default:
        while (((int64_t)1 << stages) < size) ++stages;
        return stages;
    }
}

gg_status gg_schedule_create(const gg_schedule_options *options, int size, uint64_t seed, gg_schedule *out) {
    gg_status status = GG_OK;
    gg_schedule schedule = {.options = *options, .size = size, .seed = seed};
    void *block;
    memset(out, 0, sizeof *out);
    if ((unsigned)options->topology >= GG_TOPOLOGY_COUNT)
        GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "topology: number %d is none of the %d known", (int)options->topology,
                        GG_TOPOLOGY_COUNT);
    if (size < 1) GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "schedule for %d ranks: at least 1 is needed", size);
    if (options->topology == GG_TOPOLOGY_TABLE) GG_TRY_CLEANUP(check_table(options, size));
    GG_TRY_CLEANUP(check_permutations(options));
    schedule.stages = stages_of(options, size);
    GG_TRY_CLEANUP(gg_alloc((size_t)size * sizeof *schedule.rank_at, "a partner schedule", &block));
    schedule.rank_at = block;
    GG_TRY_CLEANUP(gg_alloc((size_t)size * sizeof *schedule.place_of, "a partner schedule", &block));
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

/* ---- partners ---- */

static int in_table(const gg_schedule *schedule, int64_t step, int rank) {
    const gg_schedule_options *o = &schedule->options;
    int64_t to = o->table[step % o->rows * o->columns + rank];
    return to == rank ? -1 : (int)to;
}

/* The partner in step `step`, the receiver or the sender. Not for tables. */
static int schedule_partner(gg_schedule *schedule, int64_t step, int rank, bool sends) {
    int64_t cycle = step / schedule->stages, size = schedule->size;
    if (schedule->options.permutations > 0) cycle %= schedule->options.permutations;
    if (gg_schedule_turns(schedule) && cycle != schedule->cycle) turn_to(schedule, cycle);
    int64_t place = schedule->place_of[rank], hop = 1, peer;
    if (schedule->options.topology != GG_TOPOLOGY_RING)
        hop <<= step % schedule->stages; /* below size: no rank is its own partner */
    switch (schedule->options.topology) {
    case GG_TOPOLOGY_CUBE:
    case GG_TOPOLOGY_RANDOM: peer = place ^ hop; return peer < size ? (int)schedule->rank_at[peer] : -1;
    case GG_TOPOLOGY_RING: hop = step % 2 == 0 ? -hop : hop; break;
    case GG_TOPOLOGY_DISSEMINATION: hop = -hop; break;
    default: break;
    }
    return (int)schedule->rank_at[(place + (sends ? hop : -hop) + size) % size];
}

static bool schedule_nobody(const gg_schedule *schedule, int64_t step, int rank) {
    return schedule->stages == 0 || step < 0 || rank < 0 || rank >= schedule->size;
}

int gg_schedule_send_to(gg_schedule *schedule, int64_t step, int rank) {
    if (schedule_nobody(schedule, step, rank)) return -1;
    if (schedule->options.topology == GG_TOPOLOGY_TABLE) return in_table(schedule, step, rank);
    return schedule_partner(schedule, step, rank, true);
}

int gg_schedule_next_sender(gg_schedule *schedule, int64_t step, int rank, int after) {
    if (schedule_nobody(schedule, step, rank)) return -1;
    if (schedule->options.topology == GG_TOPOLOGY_TABLE) {
        for (int from = after + 1; from < schedule->size; ++from)
            if (in_table(schedule, step, from) == rank) return from;
        return -1;
    }
    int from = schedule_partner(schedule, step, rank, false);
    return from > after ? from : -1;
}

void gg_schedule_at(gg_schedule *schedule, int64_t step, int rank, int *send_to, int *receive_from) {
    *send_to = gg_schedule_send_to(schedule, step, rank);
    *receive_from = gg_schedule_next_sender(schedule, step, rank, -1);
}

/* ---- properties of all steps ---- */

gg_status gg_schedule_check_balance(const gg_schedule *schedule) {
    gg_status status = GG_OK;
    const char *remedy = "allowed with push_sum=True only";
    int *sender = NULL;
    if (schedule->options.topology != GG_TOPOLOGY_TABLE) goto cleanup;
    GG_TRY_CLEANUP(gg_alloc((size_t)schedule->size * sizeof *sender, "senders of a step", &sender));
    for (int64_t row = 0; row < schedule->options.rows; ++row) {
        for (int r = 0; r < schedule->size; ++r) sender[r] = -1;
        for (int r = 0; r < schedule->size; ++r) {
            int sent = in_table(schedule, row, r), to = sent < 0 ? r : sent, other = sender[to];
            if (other < 0) {
                sender[to] = r;
                continue;
            }
            if (other == to || r == to)
                GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT,
                                "topology: row %lld: rank %d receives from rank %d and sends to nobody; %s",
                                (long long)row, to, other == to ? r : other, remedy);
            GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "topology: row %lld: ranks %d and %d both send to rank %d; %s",
                            (long long)row, other, r, to, remedy);
        }
    }
cleanup:
    gg_free(sender);
    return status;
}

gg_status gg_schedule_diffusion(gg_schedule *schedule, int64_t *steps) {
    gg_status status = GG_OK;
    const size_t size = (size_t)schedule->size, words = (size + 63) / 64;
    /* In a random schedule many steps may spread no data. A fixed cycle that spreads none once never will. */
    const int64_t patience = schedule->stages > 64 ? schedule->stages : 64;
    uint64_t *known = NULL, *before = NULL; /* one row of bits per rank */
    size_t reached = size;
    int64_t without_gain = 0;
    *steps = 0;
    GG_TRY_CLEANUP(gg_calloc(size * words, sizeof *known, "what ranks know", &known));
    GG_TRY_CLEANUP(gg_calloc(size * words, sizeof *before, "what ranks knew", &before));
    for (size_t r = 0; r < size; ++r) known[r * words + r / 64] = (uint64_t)1 << (r % 64);
    while (reached < size * size && without_gain < patience) {
        size_t now = 0;
        memcpy(before, known, size * words * sizeof *known);
        for (int r = 0; r < schedule->size; ++r) {
            int to = gg_schedule_send_to(schedule, *steps, r);
            for (size_t i = 0; to >= 0 && i < words; ++i)
                known[(size_t)to * words + i] |= before[(size_t)r * words + i];
        }
        for (size_t i = 0; i < size * words; ++i) now += (size_t)__builtin_popcountll(known[i]);
        without_gain = now > reached ? 0 : without_gain + 1;
        reached = now;
        ++*steps;
    }
    if (reached < size * size) *steps = -1;
cleanup:
    gg_free(known);
    gg_free(before);
    return status;
}

gg_status gg_schedule_meeting(gg_schedule *schedule, int64_t *steps) {
    gg_status status = GG_OK;
    const size_t size = (size_t)schedule->size, words = (size + 63) / 64, all = size * (size - 1);
    const int64_t period = gg_schedule_period(schedule), most = GG_MEETING_SEARCH / schedule->size;
    const int64_t last = gg_schedule_turns(schedule) && (period == 0 || period > most) ? most : period;
    uint64_t *met = NULL; /* one row of bits per rank */
    size_t count = 0;
    *steps = 0;
    GG_TRY_CLEANUP(gg_calloc(size * words, sizeof *met, "who has met whom", &met));
    for (; count < all && *steps < last; ++*steps)
        for (int r = 0; r < schedule->size; ++r) {
            const int to = gg_schedule_send_to(schedule, *steps, r);
            if (to < 0) continue;
            uint64_t *word = &met[(size_t)r * words + (size_t)to / 64], bit = (uint64_t)1 << (to % 64);
            count += (*word & bit) == 0;
            *word |= bit;
        }
    if (count < all) *steps = -1;
cleanup:
    gg_free(met);
    return status;
}

void gg_schedule_push(gg_schedule *schedule, int64_t step, const double *before, double *after) {
    memcpy(after, before, (size_t)schedule->size * sizeof *after);
    for (int r = 0; r < schedule->size; ++r) {
        int to = gg_schedule_send_to(schedule, step, r);
        if (to < 0) continue;
        after[r] -= before[r] / 2;
        after[to] += before[r] / 2;
    }
}

/* ---- groups ---- */

gg_status gg_groups_create(int size, int most, uint64_t seed, gg_groups *out) {
    *out = (gg_groups){.size = size, .most = most, .seed = seed, .turn = -1};
    if (size < 1 || most < 1)
        return gg_fail(GG_ERROR_ARGUMENT, "groups of %d of %d ranks: both must be at least 1", most, size);
    return gg_alloc((size_t)size * sizeof *out->rank_at, "groups of ranks", &out->rank_at);
}

void gg_groups_destroy(gg_groups *groups) {
    gg_free(groups->rank_at);
    memset(groups, 0, sizeof *groups);
}

int gg_groups_at(gg_groups *groups, int64_t turn, int rank, int *members) {
    int place = 0, count = 0;
    if (turn != groups->turn)
        gg_random_permutation(
            &(gg_random_key){.seed = groups->seed, .purpose = GG_RANDOM_GROUPS, .step = (uint64_t)turn},
            (uint32_t)groups->size, groups->rank_at);
    groups->turn = turn;
    while (groups->rank_at[place] != (uint32_t)rank) ++place;
    for (int i = place / groups->most * groups->most; i < groups->size && count < groups->most; ++i) {
        const int member = (int)groups->rank_at[i];
        int at = count++;
        for (; at > 0 && members[at - 1] > member; --at) members[at] = members[at - 1];
        members[at] = member;
    }
    return count;
}
