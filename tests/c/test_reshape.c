/* Replicas that go on with a smaller network: its training is that of a network which had this size from the start. */
#include "train/replica.h"

#include <string.h>

#include "base/memory.h"
#include "check.h"
#include "comm/team.h"
#include "cpu/cpu_backend.h"
#include "replica_case.h"
#include "train/shrink.h"

enum { RANKS = 3, INPUTS = 5, UNITS = 4, LEFT = 3, CLASSES = 3, STEPS = 4 };

static const int stays[LEFT] = {0, 2, 3};

typedef struct setup {
    gg_team *team;
    gg_graph *before, *after;
    gg_strategy_options strategy;
    gg_optimizer optimizer;
    gg_replica *shrunk[RANKS], *born[RANKS];
} setup;

static void add_linear(gg_graph *graph, const char *name, int64_t outputs, int input, int *node) {
    gg_layer_desc desc = {.kind = GG_LAYER_LINEAR, .outputs = outputs, .bias = true};
    strcpy(desc.name, name);
    CHECK_OK(gg_graph_add(graph, &desc, NULL, 1, &input, node));
}

static gg_graph *network_of(int units, int classes) {
    gg_graph *graph = NULL;
    int node = 0;
    gg_layer_desc input = {.kind = GG_LAYER_INPUT, .name = "input"};
    CHECK_OK(gg_graph_create(&graph));
    CHECK_OK(gg_graph_add(graph, &input, &(gg_shape){.dims = 1, .size = {INPUTS}}, 0, NULL, &node));
    add_linear(graph, "first", units, node, &node);
    add_linear(graph, "second", classes, node, &node);
    CHECK_OK(gg_graph_finish(graph, 1, &(gg_head){.node = node}));
    return graph;
}

static gg_graph *network(int units) { return network_of(units, CLASSES); }

/* Rows of the first layer's parameters and columns of the second one's weight. */
static gg_status select_units(const void *context, gg_arena_kind kind, float *before, float *after) {
    const setup *s = context;
    (void)kind;
    for (int p = 0; p < gg_graph_parameters(s->before); ++p) {
        const size_t from = gg_graph_parameter(s->before, p)->offset, to = gg_graph_parameter(s->after, p)->offset;
        for (int unit = 0; unit < LEFT; ++unit) {
            if (p == 0)
                memcpy(after + to + unit * INPUTS, before + from + stays[unit] * INPUTS, INPUTS * sizeof *after);
            if (p == 1) after[to + (size_t)unit] = before[from + (size_t)stays[unit]];
            for (int row = 0; p == 2 && row < CLASSES; ++row)
                after[to + (size_t)(row * LEFT + unit)] = before[from + (size_t)(row * UNITS + stays[unit])];
        }
        if (p == 3) memcpy(after + to, before + from, CLASSES * sizeof *after);
    }
    return GG_OK;
}

static gg_status make_replica(const setup *s, const gg_graph *graph, int rank, gg_replica **out) {
    const gg_exchange_options options = case_options(gg_team_transport(s->team, rank), s->optimizer, s->strategy);
    return open_replica(graph, &options, out);
}

static gg_status train(gg_replica *replica, int rank, int first) {
    for (int step = first; step < first + STEPS; ++step) {
        float samples[2 * INPUTS];
        int32_t targets[2] = {rank, (rank + step) % CLASSES};
        const gg_given given = {.n = 2, .input = {samples}, .target = {targets}};
        double loss = 0;
        for (int i = 0; i < 2 * INPUTS; ++i) samples[i] = (float)((7 * i + 3 * rank + 5 * step) % 11) - 5;
        GG_TRY(gg_replica_step(replica, &given, NULL, &loss));
    }
    return gg_replica_settle(replica);
}

/* Gives the state of the large network, selected by hand, to a replica of the small one, and then shrinks the large. */
static gg_status shrink(void *context, int rank) {
    gg_status status = GG_OK;
    setup *s = context;
    float *whole = NULL, *selected = NULL;
    gg_replica *large, *born;
    GG_TRY_CLEANUP(make_replica(s, s->before, rank, &s->shrunk[rank]));
    large = s->shrunk[rank];
    GG_TRY_CLEANUP(train(large, rank, 0));
    GG_TRY_CLEANUP(gg_alloc(gg_graph_arena_count(s->before) * sizeof(float), "an arena", &whole));
    GG_TRY_CLEANUP(make_replica(s, s->after, rank, &s->born[rank]));
    born = s->born[rank];
    for (int i = 0; i < gg_exchange_state(gg_replica_exchange(large))->arenas; ++i) {
        GG_TRY_CLEANUP(gg_exchange_gather(gg_replica_exchange(large), i, whole));
        GG_TRY_CLEANUP(gg_calloc(gg_graph_arena_count(s->after), sizeof(float), "an arena", &selected));
        GG_TRY_CLEANUP(select_units(s, GG_ARENA_WEIGHT, whole, selected));
        if (gg_exchange_state(gg_replica_exchange(large))->arena[i].kind != GG_ARENA_GRADIENT)
            gg_exchange_load(gg_replica_exchange(born), i, selected);
        gg_free(selected);
        selected = NULL;
    }
    gg_exchange_state(gg_replica_exchange(born))->step = STEPS;
    const gg_reshape how = {.graph = s->after, .map = select_units, .context = s};
    GG_TRY_CLEANUP(gg_replica_check_reshape(large, &how));
    gg_transport *const transport = gg_team_transport(s->team, rank);
    const int64_t epoch = transport->epoch;
    GG_TRY_CLEANUP(gg_replica_reshape(large, &how));
    CHECK_INT(transport->epoch, epoch + 1); /* a message of before would be refused from here on */
    GG_TRY_CLEANUP(train(born, rank, STEPS));
    GG_TRY_CLEANUP(train(large, rank, STEPS));
cleanup:
    gg_free(whole);
    gg_free(selected);
    return status;
}

static void test_shrinking(gg_strategy_kind kind, const char *adam) {
    setup s = {.strategy = {.kind = kind, .bucket_bytes = 1, .chunk_bytes = 1 << 20}};
    if (kind == GG_STRATEGY_OVERLAPPED_AVERAGING) s.strategy.overlapped.overlap = true;
    s.optimizer = (gg_optimizer){.type = &gg_optimizer_sgd, .rate = {.lr = 0.01}, .sgd = {.momentum = 0.9f}};
    if (adam != NULL)
        s.optimizer = (gg_optimizer){
            .type = &gg_optimizer_adam, .rate = {.lr = 0.01}, .adam = {.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f}};
    CHECK_OK(gg_team_create_virtual(&(gg_virtual_options){.size = RANKS, .compute_rate = 1}, &s.team));
    s.before = network(UNITS);
    s.after = network(LEFT);
    CHECK_OK(gg_team_run(s.team, shrink, &s));
    for (int rank = 0; rank < RANKS; ++rank) {
        const gg_state *a = gg_exchange_state(gg_replica_exchange(s.shrunk[rank])),
                       *b = gg_exchange_state(gg_replica_exchange(s.born[rank]));
        CHECK_INT(a->count, gg_graph_arena_count(s.after));
        CHECK_INT(a->step, 2 * STEPS);
        CHECK_INT(b->step, 2 * STEPS);
        for (int i = 0; i < a->arenas; ++i) {
            const size_t count = a->arena[i].kind == GG_ARENA_MOMENT ? a->owned : a->count;
            CHECK(memcmp(a->arena[i].data, b->arena[i].data, count * sizeof(float)) == 0);
        }
    }
    for (int rank = 0; rank < RANKS; ++rank) close_replica(s.shrunk[rank]);
    for (int rank = 0; rank < RANKS; ++rank) close_replica(s.born[rank]);
    gg_graph_destroy(s.before);
    gg_graph_destroy(s.after);
    gg_team_release(s.team);
}

static gg_status refused(void *context, int rank) {
    gg_status status = GG_OK;
    setup *s = context;
    GG_TRY_CLEANUP(make_replica(s, s->before, rank, &s->shrunk[rank]));
    gg_graph *other = network_of(UNITS, CLASSES + 1);
    CHECK_FAILS(gg_replica_check_reshape(s->shrunk[rank], &(gg_reshape){.graph = s->after}), GG_ERROR_ARGUMENT,
                "another network needs a map");
    CHECK_FAILS(gg_replica_check_reshape(s->shrunk[rank], &(gg_reshape){.graph = other, .map = select_units}),
                GG_ERROR_ARGUMENT, "the other network has other inputs, outputs or layers");
    gg_graph_destroy(other);
cleanup:
    close_replica(s->shrunk[rank]);
    return status;
}

/* What a rank says of its plan, and what all of them find. */
typedef struct comparison {
    gg_team *team;
    gg_shrink_record own[RANKS];
    gg_status found[RANKS];
    char text[RANKS][256];
} comparison;

static gg_status compare(void *context, int rank) {
    comparison *c = context;
    return gg_shrink_compare(gg_team_transport(c->team, rank), &c->own[rank], &c->found[rank], c->text[rank],
                             sizeof c->text[rank]);
}

static void check_comparison(comparison *c, gg_status found, const char *text) {
    CHECK_OK(gg_team_run(c->team, compare, c));
    for (int rank = 0; rank < RANKS; ++rank) {
        CHECK_INT(c->found[rank], found);
        CHECK(found == GG_OK || strstr(c->text[rank], text) != NULL);
        c->own[rank] = (gg_shrink_record){.hash = 7, .step = 3};
    }
}

/* Every rank ends with the same error, which names the ranks that have another plan. */
static void test_plans_that_differ(void) {
    comparison c = {.own = {{7, 3, 0}, {7, 3, 0}, {7, 3, 0}}};
    CHECK_OK(gg_team_create_virtual(&(gg_virtual_options){.size = RANKS, .compute_rate = 1}, &c.team));
    check_comparison(&c, GG_OK, "");
    c.own[1].hash = 8;
    check_comparison(&c, GG_ERROR_STATE, "ranks differ in what is to leave: rank 1 from rank 0");
    c.own[1].hash = c.own[2].hash = 8;
    check_comparison(&c, GG_ERROR_STATE, "what is to leave: rank 1, 2 from rank 0");
    c.own[2].step = 4;
    check_comparison(&c, GG_ERROR_STATE, "what is to leave: rank 2 from rank 0");
    c.own[0].fault = GG_SHRINK_NOTHING;
    check_comparison(&c, GG_ERROR_ARGUMENT, "the plan on rank 0 says that nothing leaves");
    c.own[1].fault = c.own[2].fault = GG_SHRINK_STALE;
    check_comparison(&c, GG_ERROR_STATE, "the plan on rank 1, 2 is not of the present step");
    gg_team_release(c.team);
}

int main(void) {
    gg_cpu_register();
    test_plans_that_differ();
    test_shrinking(GG_STRATEGY_GOSSIPGRAD, NULL);
    test_shrinking(GG_STRATEGY_ALLREDUCE, NULL);
    test_shrinking(GG_STRATEGY_LAYERWISE_ALLREDUCE, "adam");
    test_shrinking(GG_STRATEGY_OVERLAPPED_AVERAGING, NULL);
    test_shrinking(GG_STRATEGY_OVERLAPPED_AVERAGING, "adam");
    setup s = {.strategy = {.kind = GG_STRATEGY_ALLREDUCE},
               .optimizer = {.type = &gg_optimizer_sgd, .rate = {.lr = 0.01}}};
    CHECK_OK(gg_team_create_virtual(&(gg_virtual_options){.size = RANKS, .compute_rate = 1}, &s.team));
    s.before = network(UNITS);
    s.after = network(LEFT);
    CHECK_OK(gg_team_run(s.team, refused, &s));
    gg_graph_destroy(s.before);
    gg_graph_destroy(s.after);
    gg_team_release(s.team);
    CHECK(gg_memory_live_bytes() == 0);
    return CHECK_RESULT;
}
