/* What the runs of a plan leave behind: memory that activations and plans share, weights that are prepared once, and
 * what is called on the way. */
#include "plan_problem.h"

/* Activations share memory: beside the prepared weights, a long chain takes no more than a short one without training,
 * and less than twice with. */
static void test_memory(void) {
    size_t bytes[2][2];
    for (int size = 0; size < 2; size++) {
        gg_graph *graph = start((gg_shape){3, {4, 16, 16}});
        int at = 0;
        for (int i = 0; i < (size ? 24 : 6); i++)
            at = kind(graph, GG_LAYER_TANH, add1(graph, window(GG_LAYER_CONV2D, 4, 3, 1, 1), at));
        CHECK_OK(finish(graph, linear(graph, 2, kind(graph, GG_LAYER_FLATTEN, at))));
        problem p = problem_of(graph, 4, GG_LOSS_CROSS_ENTROPY, 1);
        for (int training = 0; training < 2; training++) {
            gg_plan *plan = NULL;
            CHECK_OK(make(&p, &fake_plain, NULL, false, training, &plan));
            bytes[size][training] = gg_plan_bytes(plan) - gg_plan_prepared_bytes(plan);
            gg_plan_destroy(plan);
        }
        problem_free(&p);
    }
    size_t one = 4 * 16 * 16 * 4 * sizeof(float);
    CHECK_INT(bytes[0][0], bytes[1][0]);
    CHECK(bytes[0][0] < 3 * one + 4096); /* the input, and two in turn */
    /* tanh in place of the convolution: one activation a pair, the input, and two gradients at most */
    CHECK(bytes[1][1] < 27 * one + 4096);
}

typedef struct journal {
    int need[16], ready[16], needs, readies, polls, fail_at;
} journal;

static gg_status log_need(void *context, int number) {
    journal *it = context;
    it->need[it->needs++ % 16] = number;
    return GG_OK;
}

static gg_status log_ready(void *context, int number) {
    journal *it = context;
    it->ready[it->readies++ % 16] = number;
    return GG_OK;
}

static gg_status log_poll(void *context) {
    journal *it = context;
    if (++it->polls == it->fail_at) return gg_fail(GG_ERROR_CANCELLED, "enough");
    return GG_OK;
}

/* Every pass that is run has seconds if the plan was timed, moves its operands, and says who computes it. */
static void check_profile(const gg_plan *plan, const gg_graph *graph, bool timed) {
    for (int s = 0; s < gg_plan_steps(plan); s++) {
        const gg_step_profile step = gg_plan_step_profile(plan, s);
        CHECK(step.nodes >= 1 && step.node[0] < gg_graph_nodes(graph) && step.pass[GG_PASS_FORWARD].products == 1);
        for (int pass = 0; pass < GG_PASS_COUNT; pass++) {
            const gg_pass_profile *one = &step.pass[pass];
            if (one->products == 0) continue;
            CHECK((one->seconds > 0) == timed && one->bytes > 0 && one->backend != NULL);
        }
    }
    CHECK((gg_plan_loss_seconds(plan) > 0) == timed);
}

static void test_hooks(void) {
    problem p = problem_of(named_graph(1), 3, GG_LOSS_CROSS_ENTROPY, 3);
    const gg_plan_batch batch = batch_of(&p);
    for (int t = 0; t < 3; t++) {
        gg_plan *plan = NULL;
        journal seen = {0};
        gg_plan_hooks hooks = {.context = &seen, .need = log_need, .ready = log_ready, .poll = log_poll};
        int layers = gg_graph_layers(p.graph);
        CHECK_OK(make(&p, fakes[t].device, fakes[t].fallback, false, true, &plan));
        fill_input(plan, &p);
        CHECK_OK(gg_plan_train(plan, p.weights, p.gradients, &batch, 1, &hooks, NULL, NULL));
        CHECK_INT(seen.needs, layers);
        CHECK_INT(seen.readies, layers);
        for (int i = 0; i < layers; i++) {
            CHECK_INT(seen.need[i], i);
            CHECK_INT(seen.ready[i], layers - 1 - i);
        }
        CHECK(seen.polls > 2 * layers);
        seen.fail_at = seen.polls + 3;
        CHECK_FAILS(gg_plan_train(plan, p.weights, p.gradients, &batch, 1, &hooks, NULL, NULL), GG_ERROR_CANCELLED,
                    "enough");
        hooks = (gg_plan_hooks){0};
        CHECK_OK(gg_plan_train(plan, p.weights, p.gradients, &batch, 1, &hooks, NULL, NULL));

        int64_t made = gg_memory_allocations();
        gg_plan_set_timing(plan, true);
        for (int i = 0; i < 3; i++) CHECK_OK(gg_plan_train(plan, p.weights, p.gradients, &batch, 1, NULL, NULL, NULL));
        CHECK_INT(gg_memory_allocations(), made);
        check_profile(plan, p.graph, true);
        gg_plan_set_timing(plan, true);
        check_profile(plan, p.graph, false);
        gg_plan_destroy(plan);
    }
    problem_free(&p);
}

/* The gradients of one step, the same whatever was in the memory before. */
static void check_step(const problem *p, gg_plan *plan, const float *wanted) {
    const gg_plan_batch batch = batch_of(p);
    CHECK_OK(gg_plan_activate(plan));
    fill_input(plan, p);
    CHECK_OK(gg_plan_train(plan, p->weights, p->gradients, &batch, 7, NULL, NULL, NULL));
    CHECK(memcmp(p->gradients, wanted, gg_graph_arena_count(p->graph) * sizeof(float)) == 0);
}

/* Plans that share their memory, of two graphs and batch sizes, in turns. */
static void test_shared_memory(void) {
    for (uint32_t seed = 1; seed <= 24; seed++) {
        gg_device *device = seed % 2 ? fakes[seed % FAKES].device : native;
        problem p[2];
        gg_plan *plan[2] = {NULL};
        float *wanted[2];
        gg_plan_memory memory = {0};
        for (int i = 0; i < 2; i++) {
            gg_graph *graph = random_graph(seed + 50 * (uint32_t)i, true);
            p[i] = problem_of(graph, 3 + 2 * i, GG_LOSS_CROSS_ENTROPY, seed);
            const gg_plan_batch batch = batch_of(&p[i]);
            const size_t bytes = gg_graph_arena_count(p[i].graph) * sizeof(float);
            CHECK_OK(make(&p[i], device, &fake_plain, false, true, &plan[i]));
            fill_input(plan[i], &p[i]);
            memset(p[i].gradients, 0, bytes);
            CHECK_OK(gg_plan_train(plan[i], p[i].weights, p[i].gradients, &batch, 7, NULL, NULL, NULL));
            wanted[i] = malloc(bytes);
            memcpy(wanted[i], p[i].gradients, bytes);
            gg_plan_destroy(plan[i]);
        }
        shared = &memory;
        for (int i = 0; i < 2; i++) CHECK_OK(make(&p[i], device, &fake_plain, false, true, &plan[i]));
        shared = NULL;
        for (int turn = 0; turn < 4; turn++) check_step(&p[turn % 2], plan[turn % 2], wanted[turn % 2]);
        CHECK(memory.bytes >= gg_plan_bytes(plan[0]) && memory.bytes >= gg_plan_bytes(plan[1]));
        CHECK(memory.bytes == gg_plan_bytes(plan[0]) || memory.bytes == gg_plan_bytes(plan[1]));
        const int64_t made = gg_memory_allocations();
        for (int turn = 0; turn < 4; turn++) CHECK_OK(gg_plan_activate(plan[turn % 2]));
        CHECK_INT(gg_memory_allocations(), made);
        memset(memory.block, 0xff, memory.bytes); /* as floats: NaN, also where a plan writes no lane */
        CHECK_OK(gg_plan_activate(plan[0]));
        size_t dirty = 0;
        for (size_t i = 0; i < gg_plan_bytes(plan[0]); i++) dirty += memory.block[i] != 0;
        CHECK_INT(dirty, 0);
        CHECK_OK(gg_plan_activate(plan[1]));
        gg_plan_destroy(plan[1]);
        CHECK(memory.user == NULL);
        check_step(&p[0], plan[0], wanted[0]);
        gg_plan_destroy(plan[0]);
        gg_plan_memory_release(&memory);
        for (int i = 0; i < 2; i++) {
            problem_free(&p[i]);
            free(wanted[i]);
        }
    }
}

/* Evaluates and gives the loss; *prepares: how many operations have prepared their weights. */
static double loss_of(const problem *p, gg_plan *plan, uint64_t version, int *prepares) {
    gg_loss_sums sums[GG_MAX_FIELDS] = {{0}};
    const gg_plan_batch batch = batch_of(p);
    const int before = fake_prepares;
    fill_input(plan, p);
    CHECK_OK(gg_plan_evaluate(plan, p->weights, version, &batch, sums));
    *prepares = fake_prepares - before;
    return sums[0].loss_sum;
}

/* Weights are prepared in each step of training, and in evaluation where they may have changed since the last run. */
static void test_prepared(void) {
    gg_graph *graph = start((gg_shape){3, {2, 5, 4}});
    int at = add1(graph, window(GG_LAYER_CONV2D, 3, 3, 1, 1), 0), prepares;
    at = add1(graph, window(GG_LAYER_CONV2D, 2, 2, 1, 0), at);
    CHECK_OK(finish(graph, linear(graph, 3, kind(graph, GG_LAYER_FLATTEN, at))));
    problem p = problem_of(graph, 2, GG_LOSS_CROSS_ENTROPY, 1);
    const gg_plan_batch batch = batch_of(&p);
    gg_plan_memory memory = {0};
    gg_plan *plan[2] = {NULL}, *training = NULL;
    shared = &memory;
    for (int i = 0; i < 2; i++) CHECK_OK(make(&p, &fake_plain, NULL, false, false, &plan[i]));
    CHECK_OK(make(&p, &fake_plain, NULL, false, true, &training));
    shared = NULL;

    CHECK_OK(gg_plan_activate(plan[0]));
    const double first = loss_of(&p, plan[0], 1, &prepares);
    CHECK_INT(prepares, 2);
    const float weight = p.weights[0];
    p.weights[0] += 3;
    CHECK(loss_of(&p, plan[0], 1, &prepares) == first);
    CHECK_INT(prepares, 0);
    const double second = loss_of(&p, plan[0], 2, &prepares);
    CHECK_INT(prepares, 2);
    CHECK(second != first);
    p.weights[0] = weight;
    CHECK(loss_of(&p, plan[0], 0, &prepares) == first);
    CHECK_INT(prepares, 2);
    p.weights[0] += 3;
    CHECK(loss_of(&p, plan[0], 0, &prepares) == second);
    CHECK_INT(prepares, 2);

    /* Another plan has used the memory. */
    loss_of(&p, plan[0], 5, &prepares);
    CHECK_OK(gg_plan_activate(plan[1]));
    CHECK(loss_of(&p, plan[1], 5, &prepares) == second);
    CHECK_INT(prepares, 2);
    CHECK_OK(gg_plan_activate(plan[0]));
    CHECK(loss_of(&p, plan[0], 5, &prepares) == second);
    CHECK_INT(prepares, 2);

    CHECK_OK(gg_plan_activate(training));
    for (int i = 0; i < 2; i++) {
        const int before = fake_prepares;
        fill_input(training, &p);
        CHECK_OK(gg_plan_train(training, p.weights, p.gradients, &batch, 1, NULL, NULL, NULL));
        CHECK_INT(fake_prepares - before, 4); /* for forward and for backward */
    }
    const size_t bytes = gg_graph_arena_count(graph) * sizeof(float);
    float *wanted = malloc(bytes);
    memcpy(wanted, p.gradients, bytes);
    gg_plan_destroy(training);
    fake_prepared_once = true;
    CHECK_OK(make(&p, &fake_plain, NULL, false, true, &training)); /* once for both passes */
    fake_prepared_once = false;
    const int before = fake_prepares;
    fill_input(training, &p);
    CHECK_OK(gg_plan_train(training, p.weights, p.gradients, &batch, 1, NULL, NULL, NULL));
    CHECK_INT(fake_prepares - before, 2);
    CHECK(memcmp(wanted, p.gradients, bytes) == 0);
    free(wanted);
    for (int i = 0; i < 2; i++) gg_plan_destroy(plan[i]);
    gg_plan_destroy(training);
    gg_plan_memory_release(&memory);
    problem_free(&p);
}

int main(void) {
    open_devices();
    test_memory();
    test_hooks();
    test_shared_memory();
    test_prepared();
    close_devices();
    CHECK_INT(gg_memory_live_bytes(), 0);
    return check_report();
}
