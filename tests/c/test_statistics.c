/* What the strategies do with statistics, parameters that are not trained: on a graph whose biases are made statistics,
 * driven without a network. Each rank shows "batches" of its own; a statistic's gradient is
 * momentum * (running - batch), and a weight's is noise. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "check.h"
#include "comm/team.h"
#include "cpu/cpu_backend.h"
#include "exchange/strategy.h"
#include "nn/graph.h"

enum { RANKS = 4, STEPS = 24, LAYERS = 3, WIDTH = 21 };
#define MOMENTUM 0.1f

typedef struct setup {
    gg_team *team;
    gg_graph *graph;
    gg_strategy_options options;
    gg_optimizer optimizer;
    float *weights[RANKS], *moments[RANKS]; /* after settling; the first moment, NULL: none */
    float *model;                           /* of rank 0, where the strategy has one */
} setup;

static gg_graph *layers_with_statistics(void) {
    gg_graph *graph = NULL;
    int node = 0;
    CHECK_OK(gg_graph_create(&graph));
    CHECK_OK(gg_graph_add(graph, &(gg_layer_desc){.kind = GG_LAYER_INPUT, .name = "x"}, &(gg_shape){1, {WIDTH}}, 0,
                          NULL, &node));
    for (int i = 0; i < LAYERS; ++i) {
        gg_layer_desc desc = {.kind = GG_LAYER_LINEAR, .outputs = WIDTH, .bias = true};
        desc.name[0] = (char)('a' + i);
        CHECK_OK(gg_graph_add(graph, &desc, NULL, 1, &node, &node));
    }
    CHECK_OK(gg_graph_finish(graph, 1, &(gg_head){.node = node}));
    for (int i = 1; i < gg_graph_parameters(graph); i += 2)
        ((gg_parameter *)gg_graph_parameter(graph, i))->role = GG_ROLE_STATISTIC;
    return graph;
}

/* What a batch of a rank shows, 1 to 3; element by element the same way. */
static float batch_of(int rank, int step, size_t at) { return 2 + sinf((float)(rank * 7 + step * 3) + (float)at); }

static void write_gradients(const gg_graph *graph, gg_state *state, int rank, int step) {
    const gg_random_key key = {.seed = 3, .purpose = GG_RANDOM_TEST, .rank = (uint32_t)rank, .step = (uint64_t)step};
    for (int i = 0; i < gg_graph_parameters(graph); ++i) {
        const gg_parameter *p = gg_graph_parameter(graph, i);
        float *gradient = gg_state_gradients(state) + p->offset;
        const float *weight = gg_state_weights(state) + p->offset;
        if (p->role != GG_ROLE_STATISTIC) gg_random_uniform(&key, p->count, -1, 1, gradient);
        else
            for (size_t k = 0; k < p->count; ++k)
                gradient[k] = MOMENTUM * (weight[k] - batch_of(rank, step, p->offset + k));
    }
}

static gg_status train_rank(void *context, int rank) {
    gg_status status = GG_OK;
    setup *s = context;
    gg_transport *transport = gg_team_transport(s->team, rank);
    gg_device *device = NULL;
    gg_updater updater = {0};
    gg_strategy *strategy = NULL;
    const size_t count = gg_graph_arena_count(s->graph);
    gg_state state = {.count = count, .owned = count};
    const float share[RANKS] = {0.25f, 0.25f, 0.25f, 0.25f};
    const int64_t batch[RANKS] = {1, 1, 1, 1};
    GG_TRY_CLEANUP(gg_backend_native.open(&(gg_device_options){.threads = 1, .isa = GG_ISA_SCALAR}, &device));
    GG_TRY_CLEANUP(gg_updater_create(gg_graph_layout(s->graph), &s->optimizer, &updater));
    GG_TRY_CLEANUP(gg_strategy_create(&s->options,
                                      &(gg_strategy_env){.transport = transport,
                                                         .device = device,
                                                         .updater = &updater,
                                                         .state = &state,
                                                         .layout = gg_graph_layout(s->graph),
                                                         .seed = 5},
                                      &strategy));
    for (size_t i = 0; i < count; ++i) gg_state_weights(&state)[i] = 0;
    for (int i = 0; i < gg_graph_parameters(s->graph); ++i) {
        const gg_parameter *p = gg_graph_parameter(s->graph, i);
        for (size_t k = 0; k < p->count; ++k) gg_state_weights(&state)[p->offset + k] = 1; /* as a running variance */
    }
    if (strategy->model != NULL) strategy->model->write(strategy, gg_state_weights(&state));
    for (int step = 0; step < STEPS; ++step) {
        strategy->step = state.step = step;
        strategy->share = share;
        strategy->batch = batch;
        GG_TRY_CLEANUP(strategy->table->begin(strategy));
        if (rank < gg_strategy_workers(&s->options, RANKS)) {
            for (int layer = 0; layer < LAYERS; ++layer) GG_TRY_CLEANUP(strategy->table->need(strategy, layer));
            GG_TRY_CLEANUP(gg_transport_compute(transport, 1));
            write_gradients(s->graph, &state, rank, step);
            for (int layer = LAYERS - 1; layer >= 0; --layer) {
                GG_TRY_CLEANUP(strategy->table->ready(strategy, layer));
                GG_TRY_CLEANUP(strategy->table->poll(strategy));
            }
        }
        GG_TRY_CLEANUP(strategy->table->end(strategy));
    }
    GG_TRY_CLEANUP(strategy->table->settle(strategy));
    GG_TRY_CLEANUP(gg_strategy_gather(strategy, GG_WEIGHTS, s->weights[rank]));
    if (gg_state_moments(&state) > 0) GG_TRY_CLEANUP(gg_strategy_gather(strategy, GG_MOMENTS, s->moments[rank]));
    if (strategy->model != NULL && strategy->model->read != NULL)
        GG_TRY_CLEANUP(strategy->model->read(strategy, s->model));
cleanup:
    gg_strategy_destroy(strategy);
    gg_updater_destroy(&updater);
    if (device != NULL) device->table->close(device);
    return status;
}

/* Bounds. The mean over the ranks, or the centre, is within `mean` of the running mean over all ranks' batches. All
 * ranks are within `spread` of it. Moments are 0. */
typedef struct expected {
    const char *name;
    gg_strategy_options options;
    double mean, spread;
} expected;

static void test_strategy(const expected *e, const gg_optimizer *optimizer) {
    setup s = {.options = e->options, .optimizer = *optimizer};
    if (s.options.bucket_bytes == 0) s.options.bucket_bytes = 600, s.options.chunk_bytes = 640;
    CHECK_OK(gg_team_create_virtual(&(gg_virtual_options){.size = RANKS, .compute_rate = 1}, &s.team));
    s.graph = layers_with_statistics();
    const size_t count = gg_graph_arena_count(s.graph);
    for (int r = 0; r < RANKS; ++r) {
        CHECK_OK(gg_calloc(count, sizeof(float), "weights", &s.weights[r]));
        CHECK_OK(gg_calloc(count, sizeof(float), "moments", &s.moments[r]));
    }
    CHECK_OK(gg_calloc(count, sizeof(float), "model", &s.model));
    CHECK_OK(gg_team_run(s.team, train_rank, &s));
    const bool centre = s.model[0] != 0;
    double off = 0, spread = 0, lowest = 1, trained = 0, moment = 0;
    for (int i = 0; i < gg_graph_parameters(s.graph); ++i) {
        const gg_parameter *p = gg_graph_parameter(s.graph, i);
        for (size_t at = p->offset; at < p->offset + p->count; ++at) {
            double wanted = 1, mean = 0;
            for (int step = 0; step < STEPS; ++step) {
                double shown = 0;
                for (int r = 0; r < RANKS; ++r) shown += (double)batch_of(r, step, at) / RANKS;
                wanted += (double)MOMENTUM * (shown - wanted);
            }
            for (int r = 0; r < RANKS; ++r) mean += (double)s.weights[r][at] / RANKS;
            if (centre) mean = (double)s.model[at];
            if (p->role != GG_ROLE_STATISTIC) {
                trained = fmax(trained, fabs(mean - 1));
                continue;
            }
            off = fmax(off, fabs(mean - wanted));
            for (int r = 0; r < RANKS; ++r) {
                spread = fmax(spread, fabs((double)s.weights[r][at] - mean));
                lowest = fmin(lowest, (double)s.weights[r][at]);
                moment = fmax(moment, fabs((double)s.moments[r][at]));
            }
        }
    }
    if (!(off <= e->mean && spread <= e->spread))
        fprintf(stderr, "%s: mean off by %g, spread %g\n", e->name, off, spread);
    CHECK(off <= e->mean);
    CHECK(spread <= e->spread);
    CHECK(lowest > 0.5 && trained > 0.01);
    CHECK_NEAR(moment, 0, 0);
    for (int r = 0; r < RANKS; ++r) {
        gg_free(s.weights[r]);
        gg_free(s.moments[r]);
    }
    gg_free(s.model);
    gg_graph_destroy(s.graph);
    gg_team_release(s.team);
}

int main(void) {
    const double exact = 5e-6, none = 1;
    const expected all[] = {
        {"gossip", {.kind = GG_STRATEGY_GOSSIPGRAD}, exact, 0.2},
        {"gossip, stale", {.kind = GG_STRATEGY_GOSSIPGRAD, .gossip = {.staleness = 1}}, exact, 0.3},
        {"gossip, narrow", {.kind = GG_STRATEGY_GOSSIPGRAD, .wire = GG_BFLOAT16}, exact, 0.2},
        {"gossip, stale, narrow",
         {.kind = GG_STRATEGY_GOSSIPGRAD, .wire = GG_BFLOAT16, .gossip = {.staleness = 1}},
         exact,
         0.3},
        {"gossip, weights", {.kind = GG_STRATEGY_GOSSIPGRAD, .gossip = {.exchange = GG_EXCHANGE_WEIGHTS}}, exact, 0.2},
        {"gossip, push-sum", {.kind = GG_STRATEGY_GOSSIPGRAD, .gossip = {.push_sum = true}}, exact, 0.2},
        {"gossip, gradients",
         {.kind = GG_STRATEGY_GOSSIPGRAD, .gossip = {.exchange = GG_EXCHANGE_GRADIENTS}},
         exact,
         0.6},
        {"hierarchical",
         {.kind = GG_STRATEGY_GOSSIPGRAD, .gossip = {.hierarchical = true, .ranks_per_node = 2}},
         exact,
         0.2},
        {"allreduce", {.kind = GG_STRATEGY_ALLREDUCE}, exact, exact},
        {"allreduce, narrow", {.kind = GG_STRATEGY_ALLREDUCE, .wire = GG_BFLOAT16}, 5e-3, exact},
        {"layerwise", {.kind = GG_STRATEGY_LAYERWISE_ALLREDUCE}, exact, exact},
        {"overlapped", {.kind = GG_STRATEGY_OVERLAPPED_AVERAGING, .overlapped = {.overlap = true}}, exact, exact},
        {"periodic", {.kind = GG_STRATEGY_PERIODIC_ALLREDUCE, .periodic = {.period = 3}}, exact, exact},
        {"periodic, narrow",
         {.kind = GG_STRATEGY_PERIODIC_ALLREDUCE, .wire = GG_BFLOAT16, .periodic = {.period = 3}},
         exact,
         2e-2},
        {"pull",
         {.kind = GG_STRATEGY_PULL_GOSSIP, .random = {.interval = 1, .probability = 1, .push_sum = true}},
         0.3,
         0.4},
        {"push",
         {.kind = GG_STRATEGY_PUSH_GOSSIP, .wire = GG_BFLOAT16, .random = {.interval = 1, .probability = 1}},
         0.3,
         0.4},
        {"elastic",
         {.kind = GG_STRATEGY_ELASTIC_AVERAGING, .centre = {.period = 1, .synchronous = true, .servers = 1}},
         0.3,
         0.5},
        {"elastic servers", {.kind = GG_STRATEGY_ELASTIC_AVERAGING, .centre = {.period = 2, .servers = 2}}, 0.3, 0.5},
        {"server", {.kind = GG_STRATEGY_PARAMETER_SERVER, .centre = {.period = 1, .servers = 1}}, 0.1, 0.3},
        {"server, seldom", {.kind = GG_STRATEGY_PARAMETER_SERVER, .centre = {.period = 12, .servers = 2}}, 0.3, 0.6},
        {"server, narrow",
         {.kind = GG_STRATEGY_PARAMETER_SERVER, .wire = GG_BFLOAT16, .centre = {.period = 2, .servers = 1}},
         0.1,
         0.3},
        {"diloco",
         {.kind = GG_STRATEGY_DILOCO, .outer = {.period = 3, .outer_lr = 0.7, .outer_momentum = 0.9, .fragments = 1}},
         exact,
         exact},
        {"diloco, fragments",
         {.kind = GG_STRATEGY_DILOCO,
          .outer = {.period = 3, .outer_lr = 0.7, .outer_momentum = 0.5, .fragments = 2, .delay = -1}},
         exact,
         none},
        {"noloco",
         {.kind = GG_STRATEGY_NOLOCO,
          .outer = {.period = 1, .outer_lr = 0.7, .outer_momentum = 0.5, .fragments = 1, .group = 2}},
         0.3,
         0.4},
        {"alone", {.kind = GG_STRATEGY_NO_EXCHANGE}, exact, none},
    };
    const gg_optimizer optimizers[] = {
        {.type = &gg_optimizer_sgd, .rate = {.lr = 0.01}, .weight_decay = 0.5f},
        {.type = &gg_optimizer_sgd,
         .rate = {.lr = 0.01},
         .sgd = {.momentum = 0.9f, .nesterov = true},
         .weight_decay = 0.5f},
        {.type = &gg_optimizer_adam,
         .rate = {.lr = 0.01},
         .weight_decay = 0.5f,
         .adam = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8f, .decoupled = true}},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
        for (size_t k = 0; k < sizeof optimizers / sizeof *optimizers; ++k) test_strategy(&all[i], &optimizers[k]);
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
