/* Ranks that die while others sum gradients: a survivor has made the step, to the bit, or has changed nothing. */
#define _GNU_SOURCE /* memfd_create */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/memory.h"
#include "check.h"
#include "comm/net/net.h"
#include "comm/team.h"
#include "comm/view_pages.h"
#include "cpu/cpu_backend.h"
#include "exchange/exchange.h"

enum { MAX = 8, LAYERS = 3, CHUNK = 64, ELEMENTS = 128 + 192 + 256, STEPS = 3 };

typedef enum way { DENSE, NARROW, LAYERS_DENSE, LAYERS_PACKED, PACKED, OWN_MOMENTUM, WAYS } way;

static bool packs(way w) { return w >= LAYERS_PACKED; }

static gg_strategy_options options_of(way w) {
    const bool layers = w == LAYERS_DENSE || w == LAYERS_PACKED || w == OWN_MOMENTUM;
    gg_strategy_options o = gg_strategy_options_of(layers ? GG_STRATEGY_LAYERWISE_ALLREDUCE : GG_STRATEGY_ALLREDUCE);
    if (layers) o.bucket_bytes = 1;
    if (layers) o.chunk_bytes = CHUNK * sizeof(float);
    if (w == NARROW) o.wire = GG_BFLOAT16;
    if (!packs(w)) return o;
    o.compression = (gg_compression){.active = true, .values = GG_FLOAT32, .local_momentum = w == OWN_MOMENTUM};
    for (int f = 0; f < GG_FAMILY_COUNT; ++f) o.compression.bin[f] = 8, o.compression.factor[f] = 2;
    return o;
}

typedef struct training {
    way way;
    int size;
    gg_virtual *cluster;
    gg_arena_layout layout;
    uint64_t hash[MAX][STEPS + 1]; /* of all arenas but gradients, after each step */
    uint64_t left[MAX];            /* at the end */
    int made[MAX];                 /* steps */
} training;

static uint64_t hash_of(gg_exchange *x) {
    uint64_t hash = 14695981039346656037u;
    gg_exchange_complete_residue(x);
    for (int i = 0; i < gg_exchange_state(x)->arenas; ++i) {
        const unsigned char *byte = (const unsigned char *)gg_exchange_state(x)->arena[i].data;
        for (size_t k = 0; i != GG_GRADIENTS && k < ELEMENTS * sizeof(float); ++k)
            hash = (hash ^ byte[k]) * 1099511628211u;
    }
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
            gg_state_gradients(state)[i] = (float)((i * 7 + (size_t)rank * 3 + (size_t)state->step) % 11) / 8;
        GG_TRY(gg_transport_compute(t, 0.0005));
        GG_TRY(gg_exchange_ready(x, layer));
        GG_TRY(gg_exchange_poll(x));
    }
    GG_TRY(gg_exchange_end(x));
    state->step++;
    return GG_OK;
}

static gg_status train(void *context, int rank) {
    gg_status status = GG_OK;
    training *it = context;
    gg_transport *t = gg_virtual_transport(it->cluster, rank);
    gg_exchange *x = NULL;
    gg_optimizer optimizer = gg_optimizer_of(it->way == OWN_MOMENTUM ? &gg_optimizer_sgd : &gg_optimizer_adam);
    optimizer.rate.lr = 0.05;
    if (it->way == OWN_MOMENTUM) optimizer.sgd.momentum = 0.5f;
    t->mortal = true;
    GG_TRY_CLEANUP(gg_exchange_create(&(gg_exchange_options){.layout = &it->layout,
                                                             .transport = t,
                                                             .devices = {.device = {.threads = 1}, .backend = "native"},
                                                             .optimizer = optimizer,
                                                             .strategy = options_of(it->way),
                                                             .seed = 3},
                                      &x));
    CHECK(gg_exchange_breaks(x));
    it->hash[rank][0] = hash_of(x);
    while (status == GG_OK && it->made[rank] < STEPS) {
        status = one_step(it, x, t, rank);
        if (status == GG_OK) it->hash[rank][++it->made[rank]] = hash_of(x);
    }
    if (status != GG_OK && status != GG_ERROR_PEER) goto cleanup;
    if (status == GG_OK) {
        GG_TRY_CLEANUP(gg_exchange_settle(x));
    } else {
        gg_exchange_break(x);
        gg_exchange_mended(x, false);
    }
    it->left[rank] = hash_of(x);
    status = GG_OK;
cleanup:
    gg_exchange_destroy(x);
    return status;
}

static void play(way w, int size, const gg_virtual_death *death, int deaths, training *it) {
    *it = (training){.way = w, .size = size};
    gg_parameter parameter[LAYERS] = {{.name = "a.w", .shape = {2, {8, 16}}, .layer = 0},
                                      {.name = "b.w", .shape = {2, {12, 16}}, .layer = 1},
                                      {.name = "c.w", .shape = {2, {16, 16}}, .layer = 2}};
    const gg_layer_place layer[LAYERS] = {{.name = "a"}, {.name = "b"}, {.name = "c"}};
    for (int i = 0; i < LAYERS; ++i) parameter[i].lr_factor = parameter[i].momentum_factor = 1;
    CHECK_OK(gg_arena_layout_create(layer, LAYERS, parameter, LAYERS, &it->layout));
    CHECK_INT(it->layout.count, ELEMENTS);
    CHECK_OK(gg_virtual_create(&(gg_virtual_options){.size = size,
                                                     .network = {.latency = 0.0001, .bandwidth = w == NARROW ? 1e6 : 0},
                                                     .compute_rate = 1,
                                                     .deaths = death,
                                                     .death_count = deaths,
                                                     .detect = 0.002},
                               &it->cluster));
    CHECK_OK(gg_virtual_run(it->cluster, train, it));
}

static void stop(training *it) {
    gg_virtual_destroy(it->cluster);
    gg_arena_layout_destroy(&it->layout);
}

static training whole, broken;

/* made[k]: survivors have made k steps. */
static void check_survivors(int *made) {
    int most = 0;
    for (int r = 0; r < broken.size; ++r)
        if (!gg_virtual_dead(broken.cluster, r, NULL) && broken.made[r] > most) most = broken.made[r];
    for (int r = 0; r < broken.size; ++r) {
        const int steps = broken.made[r];
        if (gg_virtual_dead(broken.cluster, r, NULL)) continue;
        CHECK(steps >= most - 1);
        if (!CHECK(broken.left[r] == whole.hash[r][steps]))
            fprintf(stderr, "  way %d, rank %d of %d, after step %d\n", broken.way, r, broken.size, steps);
        made[steps]++;
    }
}

static void test_deaths(way w, int size, int deaths) {
    int made[STEPS + 1] = {0}, mixed = 0;
    play(w, size, NULL, 0, &whole);
    for (int r = 0; r < size; ++r) CHECK_INT(whole.made[r], STEPS);
    stop(&whole);
    for (int after = 0; after < 60; after += size < 5 ? 1 : 7) {
        int now[STEPS + 1] = {0};
        const gg_virtual_death death[2] = {{size - 1, 1, after}, {0, 1, after / 2}};
        play(w, size, death, deaths, &broken);
        check_survivors(now);
        stop(&broken);
        mixed += now[1] > 0 && now[2] > 0;
        for (int k = 0; k <= STEPS; ++k) made[k] += now[k];
    }
    CHECK(made[1] > 0);
    if (w == DENSE && size == 3 && deaths == 1) CHECK(mixed > 0 && made[2] > 0);
}

/* A rank that a death has kept from a step which another has made changes its view where it stands. */
static void test_rank_behind(void) {
    enum { RANKS = 3 };
    const int node[RANKS] = {0}, none[RANKS] = {-1, -1, -1};
    gg_net *net = NULL;
    gg_view_keeper *keeper = NULL;
    gg_views *own = NULL, *other = NULL;
    gg_team *team = NULL;
    gg_phase phase;
    int64_t goal;
    int deaths;
    const int *dead;
    bool stops = false, changes = false;
    void *memory = NULL;
    CHECK_OK(gg_calloc(1, gg_view_pages_bytes(RANKS), "pages", &memory));
    CHECK_OK(gg_view_keeper_create(memory, RANKS, RANKS, 1, &keeper));
    CHECK_OK(gg_view_pages_open(memory, RANKS, 0, &own));
    CHECK_OK(gg_view_pages_open(memory, RANKS, 1, &other));
    CHECK_OK(gg_net_create(&(gg_net_options){.size = RANKS,
                                             .members = 1, /* it does not await the others */
                                             .node_of = node,
                                             .sockets = none,
                                             .memory = memfd_create("node", MFD_CLOEXEC),
                                             .ring_bytes = 4096},
                           &net));
    CHECK_OK(gg_team_create_net(net, NULL, 1, own, &team));
    CHECK_OK(gg_view_keeper_died(keeper, 2));
    gg_team_view_breaks(team, true);
    CHECK_OK(gg_team_view_stops(team, 0, 5, &stops));
    CHECK(stops);
    CHECK_OK(other->table->look(other, 1, 6, &phase, &goal));
    CHECK_OK(gg_view_keeper_poll(keeper, &phase));
    CHECK_INT(phase, GG_PHASE_GOAL);
    CHECK_OK(gg_team_view_changes(team, 5, &changes, &deaths, &dead));
    CHECK(changes && deaths == 1);
    gg_team_view_breaks(team, false); /* by gossip it would train to the goal first */
    CHECK_OK(gg_team_view_changes(team, 5, &changes, &deaths, &dead));
    CHECK(!changes);
    gg_team_release(team);
    gg_net_destroy(net);
    other->table->destroy(other);
    gg_view_keeper_destroy(keeper);
    gg_free(memory);
}

int main(void) {
    gg_cpu_register();
    const int64_t memory = gg_memory_live_bytes();
    for (int w = 0; w < WAYS; ++w) {
        const int sizes[] = {2, 3, 5, 8};
        for (int i = 0; i < 4; ++i) test_deaths((way)w, sizes[i], 1);
        test_deaths((way)w, 3, 2);
        test_deaths((way)w, 5, 2);
        CHECK_INT(gg_memory_live_bytes(), memory);
    }
    test_rank_behind();
    CHECK_INT(gg_memory_live_bytes(), memory);
    return check_report();
}
