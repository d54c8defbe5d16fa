/* Replicas that do not keep in step: what waits for what is said, with the step and the layers. And who switches the
 * check of buffers in flight on. */
#include "train/replica.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "check.h"
#include "comm/team.h"
#include "cpu/cpu_backend.h"
#include "replica_case.h"

enum { RANKS = 3, INPUTS = 5, CLASSES = 3 };

typedef struct setup {
    gg_team *team;
    gg_graph *graph;
    gg_strategy_options strategy;
    gg_replica *replica[RANKS];
} setup;

static void add_linear(gg_graph *graph, const char *name, int64_t outputs, int input, int *node) {
    gg_layer_desc desc = {.kind = GG_LAYER_LINEAR, .outputs = outputs, .bias = true};
    strcpy(desc.name, name);
    CHECK_OK(gg_graph_add(graph, &desc, NULL, 1, &input, node));
}

static gg_graph *two_layers(void) {
    gg_graph *graph = NULL;
    int node = 0;
    gg_layer_desc input = {.kind = GG_LAYER_INPUT, .name = "input"};
    CHECK_OK(gg_graph_create(&graph));
    CHECK_OK(gg_graph_add(graph, &input, &(gg_shape){.dims = 1, .size = {INPUTS}}, 0, NULL, &node));
    add_linear(graph, "first", 4, node, &node);
    add_linear(graph, "second", CLASSES, node, &node);
    CHECK_OK(gg_graph_finish(graph, 1, &(gg_head){.node = node}));
    return graph;
}

static gg_status create(void *context, int rank) {
    setup *s = context;
    const gg_optimizer sgd = {.type = &gg_optimizer_sgd, .rate = {.lr = 0.01}, .sgd = {.momentum = 0.9f}};
    const gg_exchange_options options = case_options(gg_team_transport(s->team, rank), sgd, s->strategy);
    return open_replica(s->graph, &options, &s->replica[rank]);
}

/* All ranks but one train; settling then waits for the message that the last one would have sent. */
static gg_status all_but_one(void *context, int rank) {
    gg_replica *replica = ((setup *)context)->replica[rank];
    float samples[2 * INPUTS] = {1, 2, 3};
    int32_t targets[2] = {0, 1};
    const gg_given given = {.n = 2, .input = {samples}, .target = {targets}};
    double loss = 0;
    if (rank == RANKS - 1) return GG_OK;
    for (int step = 0; step < 3; ++step) GG_TRY(gg_replica_step(replica, &given, NULL, &loss));
    return gg_replica_settle(replica);
}

static void test_deadlock(gg_strategy_kind kind, const char *layers) {
    setup s = {.strategy = {.kind = kind, .bucket_bytes = 1, .chunk_bytes = 1 << 20}};
    if (kind == GG_STRATEGY_PERIODIC_ALLREDUCE) s.strategy.periodic.period = 1;
    CHECK_OK(gg_team_create_virtual(&(gg_virtual_options){.size = RANKS, .compute_rate = 1}, &s.team));
    s.graph = two_layers();
    CHECK_OK(gg_team_run(s.team, create, &s));
    CHECK(gg_team_run(s.team, all_but_one, &s) == GG_ERROR_COMM);
    const char *text = gg_error_message();
    if (strstr(text, layers) == NULL) fprintf(stderr, "%s\n", text);
    CHECK(strstr(text, layers) != NULL);
    CHECK(strstr(text, "all ranks wait for messages that nobody will send (1 of 3 have returned)") != NULL);
    CHECK(strstr(text, "bytes from rank 2") != NULL);
    for (int rank = 0; rank < RANKS; ++rank) close_replica(s.replica[rank]);
    gg_graph_destroy(s.graph);
    gg_team_release(s.team);
}

static void test_switch(void) {
    static const struct {
        const char *value;
        bool on;
    } cases[] = {{"", false}, {"0", false}, {"1", true}};
    for (int i = 0; i < 3; ++i) {
        gg_team *team = NULL;
        setenv("GOSSIPGRAD_CHECK_BUFFERS", cases[i].value, 1);
        CHECK_OK(gg_team_create_virtual(&(gg_virtual_options){.size = RANKS, .compute_rate = 1}, &team));
        for (int rank = 0; rank < RANKS; ++rank) CHECK(gg_team_transport(team, rank)->check_buffers == cases[i].on);
        gg_team_release(team);
    }
    unsetenv("GOSSIPGRAD_CHECK_BUFFERS");
}

int main(void) {
    gg_cpu_register();
    test_switch();
    test_deadlock(GG_STRATEGY_GOSSIPGRAD, "step 1, layers 'first' to 'first': ");
    test_deadlock(GG_STRATEGY_ALLREDUCE, "step 0, layers 'first' to 'second': ");
    test_deadlock(GG_STRATEGY_LAYERWISE_ALLREDUCE, "step 0, layers 'second' to 'second': ");
    test_deadlock(GG_STRATEGY_PERIODIC_ALLREDUCE, "step 0, layers 'first' to 'second': ");
    CHECK(gg_memory_live_bytes() == 0);
    return CHECK_RESULT;
}
