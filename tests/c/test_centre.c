/* A server's answers are complete when it has settled, even where its transport learns late that they were received:
 * what ends then cancels none. Two ranks; the last one is the server. */
#include "base/memory.h"
#include "check.h"
#include "comm/team.h"
#include "cpu/cpu_backend.h"
#include "exchange/strategy.h"
#include "one_layer.h"

enum { RANKS = 2, SERVER = 1, WIDTH = 40, LATE_TESTS = 20 };

/* The server's transport is late: once settling has begun its answers count as received only when they have been tested
 * so often after the barrier. */
static gg_transport_table table, late_table;
static bool settling, met; /* it settles; it has left the barrier */
static int tests, cancelled;

static bool is_answer(const gg_request *request) {
    return request->state == GG_REQUEST_SENDING && request->tag >= GG_TAG_USER;
}

static gg_status late_test(gg_transport *transport, gg_request *request, bool *done) {
    if (settling && is_answer(request) && tests < LATE_TESTS) {
        tests += met;
        *done = false;
        return GG_OK;
    }
    const bool token = settling && request->tag < GG_TAG_USER && request->state == GG_REQUEST_RECEIVING;
    const gg_status status = table.test(transport, request, done);
    met = met || (token && *done);
    return status;
}

static gg_status late_pause(gg_transport *transport, int round, gg_request *request) {
    return met && request != NULL && is_answer(request) ? GG_OK : table.pause(transport, round, request);
}

static void late_cancel(gg_transport *transport, gg_request *request) {
    cancelled += request->state == GG_REQUEST_SENDING;
    table.cancel(transport, request);
}

typedef struct setup {
    gg_team *team;
    gg_graph *graph;
} setup;

static gg_status train_rank(void *context, int rank) {
    gg_status status = GG_OK;
    setup *s = context;
    gg_transport *transport = gg_team_transport(s->team, rank);
    gg_device *device = NULL;
    gg_updater updater = {0};
    gg_strategy *strategy = NULL;
    const gg_optimizer optimizer = {.type = &gg_optimizer_sgd, .rate = {.lr = 0.5}};
    const size_t count = gg_graph_arena_count(s->graph);
    gg_state state = {.count = count, .owned = count};
    const float share[RANKS] = {0.5f, 0.5f};
    const int64_t batch[RANKS] = {1, 1};
    const gg_strategy_options options = {.kind = GG_STRATEGY_PARAMETER_SERVER,
                                         .centre = {.period = 1, .servers = 1},
                                         .bucket_bytes = 1,
                                         .chunk_bytes = 1 << 20};
    GG_TRY_CLEANUP(gg_backend_native.open(&(gg_device_options){.threads = 1, .isa = GG_ISA_SCALAR}, &device));
    GG_TRY_CLEANUP(gg_updater_create(gg_graph_layout(s->graph), &optimizer, &updater));
    GG_TRY_CLEANUP(gg_strategy_create(&options,
                                      &(gg_strategy_env){.transport = transport,
                                                         .device = device,
                                                         .updater = &updater,
                                                         .state = &state,
                                                         .layout = gg_graph_layout(s->graph)},
                                      &strategy));
    strategy->share = share;
    strategy->batch = batch;
    GG_TRY_CLEANUP(strategy->table->begin(strategy));
    GG_TRY_CLEANUP(strategy->table->need(strategy, 0));
    GG_TRY_CLEANUP(
        gg_transport_compute(transport, rank == SERVER ? 0 : 1)); /* it asks while the server waits in the barrier */
    GG_TRY_CLEANUP(strategy->table->ready(strategy, 0));
    GG_TRY_CLEANUP(strategy->table->end(strategy));
    settling = settling || rank == SERVER;
    GG_TRY_CLEANUP(strategy->table->settle(strategy));
cleanup:
    gg_strategy_destroy(strategy);
    gg_updater_destroy(&updater);
    if (device != NULL) device->table->close(device);
    return status;
}

static void test_late_answers(void) {
    setup s = {.graph = one_layer(WIDTH)};
    CHECK_OK(gg_team_create_virtual(&(gg_virtual_options){.size = RANKS, .compute_rate = 1}, &s.team));
    gg_transport *server = gg_team_transport(s.team, SERVER);
    table = late_table = *server->table;
    late_table.test = late_test;
    late_table.pause = late_pause;
    late_table.cancel = late_cancel;
    server->table = &late_table;
    CHECK_OK(gg_team_run(s.team, train_rank, &s));
    CHECK(met);
    CHECK_INT(tests, LATE_TESTS);
    CHECK_INT(cancelled, 0);
    server->table = &table;
    gg_graph_destroy(s.graph);
    gg_team_release(s.team);
}

int main(void) {
    const int64_t before = gg_memory_live_bytes();
    test_late_answers();
    CHECK_INT(gg_memory_live_bytes(), before);
    return check_report();
}
