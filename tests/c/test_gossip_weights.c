/* When GossipGraD mixes weights: a large layer's chunks that have arrived are mixed while its later ones are updated,
 * before anything polls. Two ranks, driven without a network. */
#include "base/memory.h"
#include "check.h"
#include "comm/team.h"
#include "cpu/cpu_backend.h"
#include "exchange/strategy.h"
#include "one_layer.h"

enum { RANKS = 2, WIDTH = 40 };
#define LR 0.5f

typedef struct setup {
    gg_team *team;
    gg_graph *graph;
    gg_strategy_options options;
    int mixed[RANKS]; /* weights that are the mean of both ranks' when `ready` returns */
    int own[RANKS];   /* and those that are this rank's own */
    int settled[RANKS];
} setup;

static int count_equal(const gg_state *state, float wanted) {
    int count = 0;
    for (size_t i = 0; i < state->count; ++i) count += gg_state_weights(state)[i] == wanted;
    return count;
}

/* Rank 1 computes for a second longer, so that all that rank 0 sends is there when rank 1 updates. */
static gg_status train_rank(void *context, int rank) {
    gg_status status = GG_OK;
    setup *s = context;
    gg_transport *transport = gg_team_transport(s->team, rank);
    gg_device *device = NULL;
    gg_updater updater = {0};
    gg_strategy *strategy = NULL;
    const gg_optimizer optimizer = {.type = &gg_optimizer_sgd, .rate = {.lr = LR}};
    const size_t count = gg_graph_arena_count(s->graph);
    gg_state state = {.count = count, .owned = count};
    const float share[RANKS] = {0.5f, 0.5f}, gradient[RANKS] = {1, 3};
    const int64_t batch[RANKS] = {1, 1};
    GG_TRY_CLEANUP(gg_backend_native.open(&(gg_device_options){.threads = 1, .isa = GG_ISA_SCALAR}, &device));
    GG_TRY_CLEANUP(gg_updater_create(gg_graph_layout(s->graph), &optimizer, &updater));
    GG_TRY_CLEANUP(gg_strategy_create(&s->options,
                                      &(gg_strategy_env){.transport = transport,
                                                         .device = device,
                                                         .updater = &updater,
                                                         .state = &state,
                                                         .layout = gg_graph_layout(s->graph),
                                                         .seed = 5},
                                      &strategy));
    for (size_t i = 0; i < count; ++i) gg_state_weights(&state)[i] = 8;
    for (size_t i = 0; i < count; ++i) gg_state_gradients(&state)[i] = gradient[rank];
    strategy->share = share;
    strategy->batch = batch;
    GG_TRY_CLEANUP(strategy->table->begin(strategy));
    GG_TRY_CLEANUP(strategy->table->need(strategy, 0));
    GG_TRY_CLEANUP(gg_transport_compute(transport, rank));
    GG_TRY_CLEANUP(gg_progress(transport));
    GG_TRY_CLEANUP(strategy->table->ready(strategy, 0));
    s->mixed[rank] = count_equal(&state, 8 - LR * 2);
    s->own[rank] = count_equal(&state, 8 - LR * gradient[rank]);
    GG_TRY_CLEANUP(strategy->table->end(strategy));
    GG_TRY_CLEANUP(strategy->table->settle(strategy));
    s->settled[rank] = count_equal(&state, 8 - LR * 2);
cleanup:
    gg_strategy_destroy(strategy);
    gg_updater_destroy(&updater);
    if (device != NULL) device->table->close(device);
    return status;
}

static void test_ready(int staleness, int64_t chunk_bytes) {
    setup s = {.options = {.kind = GG_STRATEGY_GOSSIPGRAD,
                           .gossip = {.staleness = staleness},
                           .bucket_bytes = 1,
                           .chunk_bytes = (size_t)chunk_bytes}};
    CHECK_OK(gg_team_create_virtual(&(gg_virtual_options){.size = RANKS, .compute_rate = 1}, &s.team));
    s.graph = one_layer(WIDTH);
    const int count = (int)gg_graph_arena_count(s.graph);
    CHECK_OK(gg_team_run(s.team, train_rank, &s));
    CHECK_INT(s.mixed[0], 0);
    CHECK_INT(s.own[0], count);
    CHECK_INT(s.mixed[1], staleness == 0 ? count : 0);
    CHECK_INT(s.own[1], staleness == 0 ? 0 : count);
    for (int r = 0; r < RANKS; ++r) CHECK_INT(s.settled[r], count);
    gg_graph_destroy(s.graph);
    gg_team_release(s.team);
}

int main(void) {
    test_ready(0, 640);
    test_ready(0, WIDTH * WIDTH * 4);
    test_ready(1, 640);
    return check_report();
}
