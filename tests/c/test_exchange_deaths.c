/* Ranks that die while others train by gossip: the survivors finish their steps, mix no part of a message, and their
 * mean moves by no more than the death explains. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "check.h"
#include "comm/virtual/virtual.h"
#include "cpu/cpu_backend.h"
#include "exchange/exchange.h"

enum { SLICE_COUNT = 3 };
enum { MAX = 8, LAYERS = 2, CHUNK = 64, ELEMENTS = 128 + 192 };

/* ---- the ways to exchange ---- */

typedef enum way {
    WEIGHTS,
    STALE,
    MOMENTUM,
    MOMENTUM_STALE,
    GRADIENTS,
    SLICES,
    NARROW,
    PUSH_SUM,
    PUSH_SUM_STALE,
    PUSH_SUM_TABLE,
    EDGES,
    QUASI,
    PULL,
    PUSH,
    PULL_SUM,
    PUSH_MASS,
    ALONE,
    WAYS
} way;

static bool is_random(way w) { return w >= PULL && w <= PUSH_MASS; }
static bool sends_gradients(way w) { return w == GRADIENTS; }
static bool sends_moments(way w) {
    return w == MOMENTUM || w == MOMENTUM_STALE || w == PUSH_SUM || w == PUSH_SUM_STALE;
}

static const int64_t table[2 * MAX] = {1, 2, 3, 0, -1, 0, 0, 0}; /* of four ranks */

static gg_strategy_options options_of(way w, int size) {
    const gg_strategy_kind kind = w == ALONE                    ? GG_STRATEGY_NO_EXCHANGE
                                  : w == QUASI                  ? GG_STRATEGY_QUASI_GLOBAL
                                  : w == PULL || w == PULL_SUM  ? GG_STRATEGY_PULL_GOSSIP
                                  : w == PUSH || w == PUSH_MASS ? GG_STRATEGY_PUSH_GOSSIP
                                                                : GG_STRATEGY_GOSSIPGRAD;
    gg_strategy_options o = gg_strategy_options_of(kind);
    o.bucket_bytes = 1;
    o.chunk_bytes = CHUNK * sizeof(float);
    if (is_random(w)) o.random.push_sum = w == PULL_SUM || w == PUSH_MASS;
    if (kind != GG_STRATEGY_GOSSIPGRAD) return o;
    o.gossip.staleness = w == STALE || w == MOMENTUM_STALE || w == PUSH_SUM_STALE;
    o.gossip.exchange = sends_gradients(w) ? GG_EXCHANGE_GRADIENTS
                        : sends_moments(w) ? GG_EXCHANGE_WEIGHTS_MOMENTUM
                                           : GG_EXCHANGE_WEIGHTS;
    o.gossip.slices = w == SLICES ? SLICE_COUNT : 1;
    o.gossip.push_sum = w == PUSH_SUM || w == PUSH_SUM_STALE || w == PUSH_SUM_TABLE;
    if (w == NARROW) o.wire = GG_BFLOAT16;
    if (w == PUSH_SUM_TABLE && size == 4)
        o.gossip.schedule =
            (gg_schedule_options){.topology = GG_TOPOLOGY_TABLE, .table = table, .rows = 2, .columns = 4};
    if (w == EDGES) {
        o.compression =
            (gg_compression){.active = true, .mode = GG_COMPRESSION_EXACT, .values = GG_FLOAT32, .warmup = 1};
        for (int f = 0; f < GG_FAMILY_COUNT; ++f) o.compression.bin[f] = 8, o.compression.factor[f] = 2;
    }
    return o;
}

/* ---- a training ---- */

typedef struct training {
    way way;
    int size, steps;
    bool learns; /* gradients are not zero */
    gg_virtual *cluster;
    gg_arena_layout layout;
    float weights[MAX][ELEMENTS];
    int64_t received[MAX][MAX], sent[MAX];
    uint64_t hash[MAX];
    int returned[MAX];
} training;

/* Equal in all elements, so that a chunk mixed in part shows. */
static float first_weight(int rank) { return (float)((rank * rank * 3 + 5 * rank) % 17) / 4; }

static uint64_t hashed(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; ++i) hash = (hash ^ byte[i]) * 1099511628211u;
    return hash;
}

static gg_status one_step(training *it, gg_exchange *x, gg_transport *t, int rank) {
    gg_state *state = gg_exchange_state(x);
    GG_TRY(gg_exchange_begin(x, NULL));
    GG_TRY(gg_transport_compute(t, 0.001 * (1 + rank % 3)));
    for (int layer = 0; layer < LAYERS; ++layer) GG_TRY(gg_exchange_need(x, layer));
    for (int layer = LAYERS - 1; layer >= 0; --layer) {
        const gg_slice *slice = gg_arena_layout_slice(&it->layout, layer);
        for (size_t i = slice->offset; i < slice->offset + slice->count; ++i)
            gg_state_gradients(state)[i] =
                it->learns ? gg_state_weights(state)[i] - (float)((i * 7 + (size_t)rank + (size_t)state->step) % 5) : 0;
        GG_TRY(gg_transport_compute(t, 0.0005));
        GG_TRY(gg_exchange_ready(x, layer));
        GG_TRY(gg_exchange_poll(x));
    }
    GG_TRY(gg_exchange_end(x));
    state->step++;
    return GG_OK;
}

/* Both moments began equal, so they are equal but for their decay if each chunk was mixed in both or in neither. */
static void check_moments(gg_exchange *x, int steps, const gg_adam *adam) {
    const float *first = gg_state_moment(gg_exchange_state(x), 0), *second = gg_state_moment(gg_exchange_state(x), 1);
    for (int i = 0; i < ELEMENTS; ++i)
        CHECK_NEAR(first[i] / pow(adam->beta1, steps), second[i] / pow(adam->beta2, steps), 1e-4);
}

static gg_status train(training *it, int rank) {
    gg_status status = GG_OK;
    gg_transport *t = gg_virtual_transport(it->cluster, rank);
    gg_exchange *x = NULL;
    gg_optimizer optimizer = gg_optimizer_of(sends_moments(it->way) ? &gg_optimizer_adam : &gg_optimizer_sgd);
    const float *weights = NULL;
    float first[ELEMENTS];
    optimizer.rate.lr = it->learns || !sends_moments(it->way) ? 0.05 : 0; /* moments alone move weights */
    if (it->way == QUASI) optimizer.sgd.momentum = 0.5f;
    GG_TRY_CLEANUP(gg_exchange_create(&(gg_exchange_options){.layout = &it->layout,
                                                             .transport = t,
                                                             .devices = {.device = {.threads = 1}, .backend = "native"},
                                                             .optimizer = optimizer,
                                                             .strategy = options_of(it->way, it->size),
                                                             .seed = 3},
                                      &x));
    for (int i = 0; i < ELEMENTS; ++i) first[i] = first_weight(rank);
    gg_exchange_load(x, GG_WEIGHTS, first);
    for (int i = 0; i < ELEMENTS; ++i) first[i] += 1;
    for (int i = 0; i < 2 && sends_moments(it->way); ++i) gg_exchange_load(x, GG_MOMENTS + i, first);
    for (int step = 0; step < it->steps; ++step) GG_TRY_CLEANUP(one_step(it, x, t, rank));
    GG_TRY_CLEANUP(gg_exchange_settle(x));
    weights = gg_state_weights(gg_exchange_state(x));
    memcpy(it->weights[rank], weights, sizeof it->weights[rank]);
    for (int i = 0; i < gg_exchange_state(x)->arenas; ++i)
        if (i != GG_GRADIENTS)
            it->hash[rank] = hashed(it->hash[rank], gg_exchange_state(x)->arena[i].data, ELEMENTS * sizeof(float));
    if (sends_moments(it->way) && !it->learns) check_moments(x, it->steps, &optimizer.adam);
    const double now = gg_transport_now(t);
    it->hash[rank] = hashed(it->hash[rank], &now, sizeof now);
    for (int r = 0; r < it->size; ++r) it->received[rank][r] = gg_exchange_received(x, r);
    it->sent[rank] = t->messages_sent;
cleanup:
    gg_exchange_destroy(x);
    return status;
}

static gg_status run_training(void *context, int rank) {
    training *it = context;
    const gg_status status = train(it, rank);
    it->returned[rank] = (int)status;
    if (status != GG_OK && status != GG_ERROR_CANCELLED) fprintf(stderr, "%s\n", gg_error_message());
    return status;
}

typedef struct plan {
    way way;
    int size, steps, deaths;
    gg_virtual_death death[2];
    double bandwidth;
    bool learns;
} plan;

static void play(const plan *p, training *it) {
    *it = (training){.way = p->way, .size = p->size, .steps = p->steps, .learns = p->learns};
    gg_parameter parameter[LAYERS] = {{.name = "a.w", .shape = {2, {8, 16}}, .layer = 0},
                                      {.name = "b.w", .shape = {2, {12, 16}}, .layer = 1}};
    const gg_layer_place layer[LAYERS] = {{.name = "a"}, {.name = "b"}};
    for (int i = 0; i < LAYERS; ++i) parameter[i].lr_factor = parameter[i].momentum_factor = 1;
    CHECK_OK(gg_arena_layout_create(layer, LAYERS, parameter, LAYERS, &it->layout));
    CHECK_INT(it->layout.count, ELEMENTS);
    CHECK_OK(gg_virtual_create(&(gg_virtual_options){.size = p->size,
                                                     .network = {.latency = 0.0001, .bandwidth = p->bandwidth},
                                                     .compute_rate = 1,
                                                     .deaths = p->death,
                                                     .death_count = p->deaths,
                                                     .detect = 0.002},
                               &it->cluster));
    if (!CHECK_OK(gg_virtual_run(it->cluster, run_training, it)))
        fprintf(stderr, "  way %d, %d ranks, death of %d in step %d after %d\n", p->way, p->size, p->death[0].rank,
                (int)p->death[0].step, (int)p->death[0].after_messages);
    for (int r = 0; r < p->size; ++r)
        CHECK_INT(it->returned[r], gg_virtual_dead(it->cluster, r, NULL) ? GG_ERROR_CANCELLED : GG_OK);
    gg_virtual_destroy(it->cluster);
    gg_arena_layout_destroy(&it->layout);
}

/* ---- what holds ---- */

/* Without gradients each element stays between the first ones, and chunks stay even. */
static void check_mixed_whole(const plan *p, const training *it) {
    float low = first_weight(0), high = low;
    for (int r = 0; r < p->size; ++r) {
        low = fminf(low, first_weight(r));
        high = fmaxf(high, first_weight(r));
    }
    for (int r = 0; r < p->size; ++r) {
        if (it->returned[r] != GG_OK) continue;
        for (int i = 0; i < ELEMENTS; ++i) {
            if (p->way != EDGES) CHECK(it->weights[r][i] >= low - 1e-5f && it->weights[r][i] <= high + 1e-5f);
            if (p->way != SLICES && i % CHUNK != 0) CHECK(it->weights[r][i] == it->weights[r][i - 1]);
        }
    }
}

/* Element i's mean over all ranks but `without`, and the greatest distance of a rank from the mean of all. */
static double mean_of(const training *it, int without, int i) {
    double sum = 0;
    for (int r = 0; r < it->size; ++r) sum += r == without ? 0 : (double)it->weights[r][i];
    return sum / (without < 0 ? it->size : it->size - 1);
}

static double distance_of(const training *it, int i) {
    double most = 0;
    for (int r = 0; r < it->size; ++r) most = fmax(most, fabs((double)it->weights[r][i] - mean_of(it, -1, i)));
    return most;
}

/* The broken step moves the mean of the survivors by at most D/(p-1). before: the state at its begin. */
static void check_mean(const training *before, const training *it, int dead) {
    for (int i = 0; i < ELEMENTS; ++i) {
        const double moved = fabs(mean_of(it, dead, i) - mean_of(before, dead, i));
        const double bound = distance_of(before, i) / (it->size - 1);
        if (!CHECK(moved <= bound * 1.00001 + 1e-5)) {
            fprintf(stderr, "  way %d, element %d: %g, bound %g\n", it->way, i, moved, bound);
            return;
        }
    }
}

static training before, broken, again;

/* One death in one step, after each number of messages. */
/* With slices an update is whole when all of them have been sent. */
static int64_t last_whole(way w, int64_t step) {
    const int64_t whole = w == SLICES ? step - (SLICE_COUNT - 1) : step;
    return whole < -1 ? -1 : whole;
}

static void test_one_death(way w, int size, double bandwidth, int jump) {
    plan p = {.way = w, .size = size, .steps = 2, .bandwidth = bandwidth};
    const int dead = size - 1, step = 2;
    play(&p, &before);
    p.steps = step + 1;
    play(&p, &broken);
    const int messages = (int)(broken.sent[dead] - before.sent[dead]);
    if (!is_random(w)) check_mixed_whole(&p, &broken);
    p.deaths = 1;
    for (int after = 0; after <= messages + 1; after += jump) {
        p.death[0] = (gg_virtual_death){dead, step, after};
        p.steps = step + 1;
        p.learns = false;
        play(&p, &broken);
        check_mixed_whole(&p, &broken);
        if (!sends_gradients(w) && !is_random(w) && w != QUASI && w != ALONE) {
            check_mean(&before, &broken, dead);
            int64_t last = -1;
            for (int r = 0; r < dead; ++r)
                if (broken.received[r][dead] > last) last = broken.received[r][dead];
            /* A limited link may still hold messages at the death. */
            if (bandwidth == 0 && w != PUSH_SUM_TABLE && w != EDGES)
                CHECK_INT(last, last_whole(w, after >= messages ? step : step - 1));
            CHECK(last <= step);
        }
        /* Then the survivors train on. */
        p.steps = step + 4;
        p.learns = true;
        play(&p, &broken);
        play(&p, &again);
        CHECK(memcmp(broken.hash, again.hash, sizeof again.hash) == 0);
        for (int r = 0; r < dead; ++r) CHECK(isfinite(broken.weights[r][0]) && broken.received[r][dead] <= step);
    }
}

static void test_two_deaths(way w, int size) {
    for (int after = 0; after < 9; after += 4) {
        const plan p = {.way = w,
                        .size = size,
                        .steps = 6,
                        .deaths = 2,
                        .death = {{1, 2, after}, {0, after == 4 ? 3 : 2, 8 - after}},
                        .learns = after == 4};
        play(&p, &broken);
        if (!p.learns) check_mixed_whole(&p, &broken);
        play(&p, &again);
        CHECK(memcmp(broken.hash, again.hash, sizeof again.hash) == 0);
    }
}

int main(void) {
    gg_cpu_register();
    const int64_t memory = gg_memory_live_bytes();
    for (int w = 0; w < WAYS; ++w) {
        const int sizes[] = {2, 3, 5, 8};
        for (int i = 0; i < 4; ++i) test_one_death((way)w, w == PUSH_SUM_TABLE ? 4 : sizes[i], 0, sizes[i] < 8 ? 1 : 3);
        test_one_death((way)w, w == PUSH_SUM_TABLE ? 4 : 3, 1e6, 2); /* a chunk takes a quarter of a millisecond */
        test_two_deaths((way)w, w == PUSH_SUM_TABLE ? 4 : 3);
        if (w != PUSH_SUM_TABLE) test_two_deaths((way)w, 5);
        CHECK_INT(gg_memory_live_bytes(), memory);
    }
    return check_report();
}
