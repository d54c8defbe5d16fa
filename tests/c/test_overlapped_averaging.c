/* Where updates need norms of all gradients OverlappedAveraging counts what it waits for the other ranks' sums, and not
 * the pass over its own slices. One rank, whose clock stands but for that pass. */
#include "base/memory.h"
#include "check.h"
#include "comm/local.h"
#include "cpu/cpu_backend.h"
#include "exchange/strategy.h"
#include "one_layer.h"

enum { WIDTH = 40 };

static double clock_seconds; /* one for each sum of squares */

static double clock_now(gg_transport *transport) {
    (void)transport;
    return clock_seconds;
}

static double slow_squares(gg_device *device, size_t count, const float *a, const float *b) {
    clock_seconds += 1;
    return gg_backend_native.sum_squares(device, count, a, b);
}

static void test_norms_are_no_wait(void) {
    gg_graph *graph = one_layer(WIDTH);
    gg_transport *transport = NULL;
    gg_device *device = NULL;
    gg_updater updater = {0};
    gg_strategy *strategy = NULL;
    const gg_optimizer optimizer = {.type = &gg_optimizer_sgd, .rate = {.lr = 0.5}, .clip_norm = 1};
    const size_t count = gg_graph_arena_count(graph);
    gg_state state = {.count = count, .owned = count};
    const float share[] = {1};
    const int64_t batch[] = {1};
    const gg_strategy_options options = {
        .kind = GG_STRATEGY_OVERLAPPED_AVERAGING, .bucket_bytes = 1, .chunk_bytes = 640};
    CHECK_OK(gg_local_transport_create(&transport));
    gg_transport_table table = *transport->table;
    table.now = clock_now;
    transport->table = &table;
    CHECK_OK(gg_backend_native.open(&(gg_device_options){.threads = 1, .isa = GG_ISA_SCALAR}, &device));
    gg_backend backend = *device->table;
    backend.sum_squares = slow_squares;
    device->table = &backend;
    CHECK_OK(gg_updater_create(gg_graph_layout(graph), &optimizer, &updater));
    CHECK_OK(gg_strategy_create(&options,
                                &(gg_strategy_env){.transport = transport,
                                                   .device = device,
                                                   .updater = &updater,
                                                   .state = &state,
                                                   .layout = gg_graph_layout(graph)},
                                &strategy));
    for (size_t i = 0; i < count; ++i) gg_state_gradients(&state)[i] = 1;
    strategy->share = share;
    strategy->batch = batch;
    CHECK_OK(strategy->table->begin(strategy));
    CHECK_OK(strategy->table->need(strategy, 0));
    CHECK_OK(strategy->table->ready(strategy, 0));
    CHECK_OK(strategy->table->end(strategy));
    CHECK_OK(strategy->table->settle(strategy));
    CHECK(clock_seconds > 0 && gg_state_weights(&state)[0] < 0);
    CHECK(strategy->exposed_seconds == 0);
    gg_strategy_destroy(strategy);
    gg_updater_destroy(&updater);
    device->table->close(device);
    gg_transport_destroy(transport);
    gg_graph_destroy(graph);
}

int main(void) {
    const int64_t before = gg_memory_live_bytes();
    test_norms_are_no_wait();
    CHECK_INT(gg_memory_live_bytes(), before);
    return check_report();
}
