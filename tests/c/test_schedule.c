/* Partner schedules: who sends to whom, how fast averages spread. */
#include <stdlib.h>

#include "base/memory.h"
#include "base/random.h"
#include "check.h"
#include "comm/schedule.h"

#define RANKS 33

static gg_status create(gg_topology topology, int size, bool rotate, uint64_t seed, gg_schedule *out) {
    return gg_schedule_create(&(gg_schedule_options){.topology = topology, .rotate = rotate}, size, seed, out);
}

static int log2_up(int size) {
    int k = 0;
    while ((1 << k) < size) ++k;
    return k;
}

static int stages_of(gg_topology topology, int size) {
    if (topology == GG_TOPOLOGY_RING) return size - 1;
    return topology == GG_TOPOLOGY_RANDOM ? size > 1 : log2_up(size);
}

/* Both ranks of a pair send to each other, and somebody may be left over. */
static bool in_pairs(const gg_schedule *schedule) {
    return schedule->options.topology == GG_TOPOLOGY_CUBE || schedule->options.topology == GG_TOPOLOGY_RANDOM;
}

/* The partners of all ranks in one step. */
static void partners(gg_schedule *schedule, int64_t step, int send[RANKS], int receive[RANKS]) {
    for (int r = 0; r < schedule->size; ++r) gg_schedule_at(schedule, step, r, &send[r], &receive[r]);
}

static void check_steps(gg_schedule *schedule) {
    int size = schedule->size, send[RANKS], receive[RANKS];
    bool consistent = true, complete = true, inverse = true, within = true;
    for (int64_t step = 0; step < 5 * schedule->stages + 3; ++step) {
        partners(schedule, step, send, receive);
        int receivers[RANKS] = {0};
        for (int r = 0; r < size; ++r) {
            int to = send[r], from = receive[r];
            within = within && to >= -1 && to < size && from >= -1 && from < size && to != r && from != r;
            if (to >= 0) {
                consistent = consistent && receive[to] == r;
                ++receivers[to];
            }
            if (from >= 0) consistent = consistent && send[from] == r;
            if (in_pairs(schedule)) consistent = consistent && to == from;
            else complete = complete && (size == 1 || (to >= 0 && from >= 0));
            inverse = inverse && (int)schedule->rank_at[schedule->place_of[r]] == r;
        }
        for (int r = 0; r < size; ++r)
            complete = complete && receivers[r] <= 1 && (in_pairs(schedule) || size == 1 || receivers[r] == 1);
        if (schedule->options.topology == GG_TOPOLOGY_RANDOM) {
            int resting = 0;
            for (int r = 0; r < size; ++r) resting += send[r] < 0;
            CHECK_INT(resting, size % 2);
        }
    }
    CHECK(within);
    CHECK(consistent);
    CHECK(complete);
    CHECK(inverse);
}

/* What rank 0 .. p-1 knows at the start reaches everybody within one cycle. */
static void check_diffusion(gg_schedule *schedule, int64_t first) {
    int size = schedule->size, send[RANKS], receive[RANKS];
    uint64_t known[RANKS], before[RANKS];
    for (int r = 0; r < size; ++r) known[r] = (uint64_t)1 << r;
    for (int64_t step = first; step < first + schedule->stages; ++step) {
        partners(schedule, step, send, receive);
        memcpy(before, known, sizeof before);
        for (int r = 0; r < size; ++r)
            if (receive[r] >= 0) known[r] |= before[receive[r]];
    }
    bool all = true;
    for (int r = 0; r < size; ++r) all = all && known[r] == ((uint64_t)1 << size) - 1;
    CHECK(all);
}

/* Averages with the partner, for some cycles: the mean stays; a cycle of a power of two gives consensus. */
static void check_averages(gg_schedule *schedule) {
    int size = schedule->size, send[RANKS], receive[RANKS];
    double value[RANKS], before[RANKS], mean = 0;
    for (int r = 0; r < size; ++r) {
        value[r] = sin(3.0 * r + 1) + r;
        mean += value[r] / size;
    }
    double spread = 0;
    for (int r = 0; r < size; ++r) spread = fmax(spread, fabs(value[r] - mean));
    /* Averages travel a ring in size^2 steps or so. */
    int64_t steps = schedule->options.topology == GG_TOPOLOGY_RING ? size * size : 4 * log2_up(size);
    for (int64_t step = 0; step < steps; ++step) {
        partners(schedule, step, send, receive);
        memcpy(before, value, sizeof before);
        double now = 0;
        for (int r = 0; r < size; ++r) {
            if (receive[r] >= 0) value[r] = 0.5 * (before[r] + before[receive[r]]);
            now += value[r] / size;
        }
        CHECK_NEAR(now, mean, 1e-13);
        if (step != log2_up(size) - 1 || (size & (size - 1)) != 0 || schedule->stages != log2_up(size)) continue;
        for (int r = 0; r < size; ++r) CHECK_NEAR(value[r], mean, 1e-13);
    }
    double left = 0;
    for (int r = 0; r < size; ++r) left = fmax(left, fabs(value[r] - mean));
    CHECK(size == 1 || left < 0.5 * spread);
}

static void check_meetings(gg_schedule *schedule) {
    int size = schedule->size, send[RANKS], receive[RANKS];
    static bool met[RANKS][RANKS];
    memset(met, 0, sizeof met);
    for (int64_t step = 0; step < 400 * schedule->stages; ++step) {
        partners(schedule, step, send, receive);
        for (int r = 0; r < size; ++r)
            if (send[r] >= 0) met[r][send[r]] = true;
    }
    bool all = true;
    for (int r = 0; r < size; ++r)
        for (int q = 0; q < size; ++q) all = all && (met[r][q] || r == q);
    CHECK(all);
}

static void test_all(void) {
    for (int size = 1; size <= RANKS; ++size)
        for (int topology = 0; topology < GG_TOPOLOGY_TABLE; ++topology)
            for (int rotate = 0; rotate < 2; ++rotate) {
                gg_schedule schedule;
                bool power = (size & (size - 1)) == 0;
                if (!CHECK_OK(create((gg_topology)topology, size, rotate, 77, &schedule))) return;
                CHECK_INT(schedule.stages, stages_of((gg_topology)topology, size));
                int64_t made = gg_memory_allocations(), steps;
                check_steps(&schedule);
                const bool reaches = topology != GG_TOPOLOGY_RANDOM && (topology != GG_TOPOLOGY_CUBE || power);
                if (reaches && topology != GG_TOPOLOGY_RING)
                    for (int64_t cycle = 0; cycle < 3; ++cycle) check_diffusion(&schedule, cycle * schedule.stages);
                if (reaches || rotate) check_averages(&schedule);
                if (rotate) check_meetings(&schedule);
                CHECK_INT(gg_memory_allocations(), made);
                CHECK_OK(gg_schedule_check_balance(&schedule));
                CHECK_OK(gg_schedule_diffusion(&schedule, &steps));
                if (reaches) CHECK_INT(steps, schedule.stages);
                else CHECK(steps >= log2_up(size));
                gg_schedule_destroy(&schedule);
                CHECK(schedule.rank_at == NULL);
                gg_schedule_destroy(&schedule);
            }
}

/* Ranks with which a rank exchanges in the first `steps` steps, the most that any has. */
static int most_partners(gg_schedule *schedule, int64_t steps) {
    int send[RANKS], receive[RANKS], most = 0;
    uint64_t met[RANKS] = {0};
    for (int64_t step = 0; step < steps; ++step) {
        partners(schedule, step, send, receive);
        for (int r = 0; r < schedule->size; ++r) {
            if (send[r] >= 0) met[r] |= (uint64_t)1 << send[r];
            if (receive[r] >= 0) met[r] |= (uint64_t)1 << receive[r];
        }
    }
    for (int r = 0; r < schedule->size; ++r)
        if (__builtin_popcountll(met[r]) > most) most = __builtin_popcountll(met[r]);
    return most;
}

/* In the first cycles the partners are those of rotation without end, and then the same again; with one permutation
 * they are those of no rotation. */
static void check_turns(gg_schedule *few, gg_schedule *always, gg_schedule *never) {
    const int count = few->options.permutations;
    const size_t bytes = (size_t)few->size * sizeof(int);
    const int64_t period = gg_schedule_period(few);
    int send[RANKS], receive[RANKS], other_send[RANKS], other_receive[RANKS];
    bool begins = true, repeats = true, stays = true;
    CHECK(few->size == 1 ? period == 0 : period >= count * few->stages && period % (count * few->stages) == 0);
    for (int64_t step = 0; step < 3 * period; ++step) {
        partners(few, step, send, receive);
        if (step < count * few->stages) {
            partners(always, step, other_send, other_receive);
            begins = begins && !memcmp(send, other_send, bytes) && !memcmp(receive, other_receive, bytes);
        }
        partners(few, step + period * 1000, other_send, other_receive);
        repeats = repeats && !memcmp(send, other_send, bytes) && !memcmp(receive, other_receive, bytes);
        partners(never, step, other_send, other_receive);
        stays = stays && !memcmp(send, other_send, bytes) && !memcmp(receive, other_receive, bytes);
    }
    CHECK(begins);
    CHECK(repeats);
    if (count == 1) CHECK(stays && !gg_schedule_turns(few));
    else CHECK(few->size < 6 || (!stays && gg_schedule_turns(few)));
    CHECK_INT(gg_schedule_period(always), 0);
}

static void test_few_permutations(void) {
    static const int counts[] = {1, 2, 3, 7};
    gg_schedule few = {0}, always = {0}, never = {0};
    for (int size = 1; size <= RANKS; ++size)
        for (int topology = 0; topology < GG_TOPOLOGY_RANDOM; ++topology)
            for (int i = 0; i < 4; ++i) {
                gg_schedule_options options = {
                    .topology = (gg_topology)topology, .rotate = true, .permutations = counts[i]};
                if (!CHECK_OK(gg_schedule_create(&options, size, 77, &few)) ||
                    !CHECK_OK(create((gg_topology)topology, size, true, 77, &always)) ||
                    !CHECK_OK(create((gg_topology)topology, size, false, 77, &never)))
                    goto cleanup;
                check_steps(&few);
                check_turns(&few, &always, &never);
                const bool ring = topology == GG_TOPOLOGY_RING, cube = topology == GG_TOPOLOGY_CUBE;
                const int a_cycle = ring ? 2 : cube ? log2_up(size) : 2 * log2_up(size);
                const int most = most_partners(&few, gg_schedule_period(&few));
                CHECK(most <= a_cycle * counts[i] && most <= size - 1);
                CHECK_INT(most_partners(&few, 4 * gg_schedule_period(&few)), most);
                if (!ring && (!cube || (size & (size - 1)) == 0))
                    for (int64_t cycle = 0; cycle < 9; ++cycle) check_diffusion(&few, cycle * few.stages);
                if (!cube || (size & (size - 1)) == 0) check_averages(&few);
                gg_schedule_destroy(&few);
                gg_schedule_destroy(&always);
                gg_schedule_destroy(&never);
            }
    /* Who meets whom is known after one period. */
    int64_t steps;
    gg_schedule_options options = {.topology = GG_TOPOLOGY_CUBE, .rotate = true, .permutations = 2};
    if (!CHECK_OK(gg_schedule_create(&options, 32, 1, &few))) goto cleanup;
    CHECK_OK(gg_schedule_meeting(&few, &steps));
    CHECK_INT(steps, -1);
    gg_schedule_destroy(&few);
    options.permutations = 1 << 30;
    if (!CHECK_OK(gg_schedule_create(&options, 32, 1, &few)) ||
        !CHECK_OK(create(GG_TOPOLOGY_CUBE, 32, true, 1, &always)))
        goto cleanup;
    int64_t without_end;
    CHECK_OK(gg_schedule_meeting(&few, &steps));
    CHECK_OK(gg_schedule_meeting(&always, &without_end));
    CHECK(steps > 0 && steps == without_end);
    gg_schedule_destroy(&few);
    /* The search has an end, however long the period is. */
    options.topology = GG_TOPOLOGY_RING;
    if (!CHECK_OK(gg_schedule_create(&options, 2000, 1, &few))) goto cleanup;
    CHECK_OK(gg_schedule_meeting(&few, &steps));
    CHECK_INT(steps, -1);
    gg_schedule_destroy(&few);

    options.permutations = -1;
    CHECK_FAILS(gg_schedule_create(&options, 4, 1, &few), GG_ERROR_ARGUMENT, "permutations: -1; allowed: at least 1");
    options = (gg_schedule_options){.topology = GG_TOPOLOGY_CUBE, .permutations = 2};
    CHECK_FAILS(gg_schedule_create(&options, 4, 1, &few), GG_ERROR_ARGUMENT, "permutations: 2 without rotate");
    options = (gg_schedule_options){.topology = GG_TOPOLOGY_RANDOM, .rotate = true, .permutations = 2};
    CHECK_FAILS(gg_schedule_create(&options, 4, 1, &few), GG_ERROR_ARGUMENT, "permutations: 2 with random pairs");
    options = (gg_schedule_options){.topology = GG_TOPOLOGY_TABLE,
                                    .rotate = true,
                                    .permutations = 2,
                                    .table = (const int64_t[]){1, 0},
                                    .rows = 1,
                                    .columns = 2};
    CHECK_FAILS(gg_schedule_create(&options, 2, 1, &few), GG_ERROR_ARGUMENT, "permutations: 2 with a table");
cleanup:
    gg_schedule_destroy(&few);
    gg_schedule_destroy(&always);
    gg_schedule_destroy(&never);
}

static void test_partners_by_hand(void) {
    gg_schedule schedule;
    int to, from;
    if (!CHECK_OK(create(GG_TOPOLOGY_DISSEMINATION, 6, true, 1, &schedule))) return;
    const int distance[] = {1, 2, 4}; /* cycle 0 is the identity */
    for (int step = 0; step < 3; ++step)
        for (int r = 0; r < 6; ++r) {
            gg_schedule_at(&schedule, step, r, &to, &from);
            CHECK_INT(to, (r + 6 - distance[step]) % 6);
            CHECK_INT(from, (r + distance[step]) % 6);
        }
    gg_schedule_at(&schedule, -1, 0, &to, &from);
    CHECK(to == -1 && from == -1);
    gg_schedule_at(&schedule, 0, 6, &to, &from);
    CHECK(to == -1 && from == -1);
    gg_schedule_destroy(&schedule);

    if (!CHECK_OK(create(GG_TOPOLOGY_CUBE, 6, false, 1, &schedule))) return;
    const int peers[3][6] = {{1, 0, 3, 2, 5, 4}, {2, 3, 0, 1, -1, -1}, {4, 5, -1, -1, 0, 1}};
    for (int step = 0; step < 12; ++step)
        for (int r = 0; r < 6; ++r) {
            gg_schedule_at(&schedule, step, r, &to, &from);
            CHECK_INT(to, peers[step % 3][r]);
            CHECK_INT(from, peers[step % 3][r]);
        }
    gg_schedule_destroy(&schedule);

    if (!CHECK_OK(create(GG_TOPOLOGY_CUBE, 1, true, 1, &schedule))) return;
    gg_schedule_at(&schedule, 5, 0, &to, &from);
    CHECK(to == -1 && from == -1);
    gg_schedule_destroy(&schedule);

    CHECK_FAILS(create(GG_TOPOLOGY_CUBE, 0, true, 1, &schedule), GG_ERROR_ARGUMENT, "0 ranks");
    CHECK(schedule.rank_at == NULL);
    CHECK_FAILS(create((gg_topology)GG_TOPOLOGY_COUNT, 4, true, 1, &schedule), GG_ERROR_ARGUMENT, "topology: number 6");
    gg_schedule_destroy(NULL);
}

static void test_table(void) {
    /* A permutation with a rank at rest, and a step in which two send to one. */
    const int64_t table[] = {1, 2, 0, 3, 1, 3, 3, -1};
    gg_schedule_options options = {
        .topology = GG_TOPOLOGY_TABLE, .rotate = true, .table = table, .rows = 2, .columns = 4};
    gg_schedule schedule;
    int to, from;
    int64_t steps;
    if (!CHECK_OK(gg_schedule_create(&options, 4, 1, &schedule))) return;
    CHECK_INT(schedule.stages, 2);
    gg_schedule_at(&schedule, 6, 1, &to, &from);
    CHECK(to == 2 && from == 0);
    gg_schedule_at(&schedule, 6, 3, &to, &from);
    CHECK(to == -1 && from == -1);
    gg_schedule_at(&schedule, 7, 3, &to, &from);
    CHECK(to == -1 && from == 1);
    CHECK_INT(gg_schedule_next_sender(&schedule, 7, 3, 1), 2);
    CHECK_INT(gg_schedule_next_sender(&schedule, 7, 3, 2), -1);
    CHECK_FAILS(gg_schedule_check_balance(&schedule), GG_ERROR_ARGUMENT, "row 1: ranks 1 and 2 both send to rank 3");
    CHECK_OK(gg_schedule_diffusion(&schedule, &steps));
    CHECK_INT(steps, -1); /* rank 3 tells nobody */
    gg_schedule_destroy(&schedule);

    options.rows = 1;
    if (!CHECK_OK(gg_schedule_create(&options, 4, 1, &schedule))) return;
    CHECK_OK(gg_schedule_check_balance(&schedule));
    gg_schedule_destroy(&schedule);

    options.table = (const int64_t[]){1, -1, 2, 3};
    if (!CHECK_OK(gg_schedule_create(&options, 4, 1, &schedule))) return;
    CHECK_FAILS(gg_schedule_check_balance(&schedule), GG_ERROR_ARGUMENT,
                "row 0: rank 1 receives from rank 0 and sends to nobody");
    gg_schedule_destroy(&schedule);

    options.table = (const int64_t[]){1, 2, 4, 3};
    CHECK_FAILS(gg_schedule_create(&options, 4, 1, &schedule), GG_ERROR_ARGUMENT,
                "row 0, rank 2: partner 4; allowed: 0 to 3");
    options.table = (const int64_t[]){1, -2, 0, 3};
    CHECK_FAILS(gg_schedule_create(&options, 4, 1, &schedule), GG_ERROR_ARGUMENT, "row 0, rank 1: partner -2");
    CHECK_FAILS(gg_schedule_create(&options, 5, 1, &schedule), GG_ERROR_ARGUMENT, "4 columns; allowed: 5, one a rank");
    options.rows = 0;
    CHECK_FAILS(gg_schedule_create(&options, 4, 1, &schedule), GG_ERROR_ARGUMENT, "no rows");
}

/* A function of (topology, ranks, seed, step): not of what was asked before. */
static void test_pure(void) {
    gg_schedule up, down, other;
    enum { STEPS = 60, SIZE = 12 };
    int send[STEPS][RANKS], receive[STEPS][RANKS], again[RANKS], back[RANKS], differs = 0;
    if (!CHECK_OK(create(GG_TOPOLOGY_DISSEMINATION, SIZE, true, 5, &up))) return;
    if (!CHECK_OK(create(GG_TOPOLOGY_DISSEMINATION, SIZE, true, 5, &down))) return;
    if (!CHECK_OK(create(GG_TOPOLOGY_DISSEMINATION, SIZE, true, 6, &other))) return;
    for (int step = 0; step < STEPS; ++step) partners(&up, step, send[step], receive[step]);
    for (int step = STEPS - 1; step >= 0; --step) {
        partners(&down, step, again, back);
        CHECK(memcmp(again, send[step], SIZE * sizeof(int)) == 0);
        CHECK(memcmp(back, receive[step], SIZE * sizeof(int)) == 0);
        partners(&other, step, again, back);
        differs += memcmp(again, send[step], SIZE * sizeof(int)) != 0;
    }
    CHECK_INT(differs, STEPS - up.stages); /* all but cycle 0 */
    /* The cycle of a step far out: 4 stages for 12 ranks. */
    partners(&up, 4 * (int64_t)1000000000, again, back);
    CHECK_INT(up.cycle, 1000000000);
    gg_schedule_destroy(&up);
    gg_schedule_destroy(&down);
    gg_schedule_destroy(&other);
}

int main(void) {
    test_all();
    test_few_permutations();
    test_partners_by_hand();
    test_table();
    test_pure();
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
