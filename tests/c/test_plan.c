/* The plan: any graph, on any mix of tables and layouts, gives what a plain float64 walk over the graph gives. */
#include "plan_problem.h"

/* Trains, evaluates and predicts on these tables and compares with the reference; twice, as a step must leave no trace.
 */
static bool compare(const problem *p, const tables *t, bool dropout, double tolerance) {
    long failed = check_failed;
    const uint64_t step = 11;
    gg_plan *plan = NULL, *still = NULL;
    gg_loss_sums sums[GG_MAX_FIELDS];
    const gg_plan_batch batch = batch_of(p);
    size_t arena = gg_graph_arena_count(p->graph);
    answer train = reference(p, true, 2, step), plain = reference(p, false, 2, step);
    CHECK(dropout || train.loss[0] == plain.loss[0]);
    if (CHECK_OK(make(p, t->device, t->fallback, t->choose, true, &plan))) {
        fill_input(plan, p);
        for (int again = 0; again < 2; again++) {
            for (size_t i = 0; i < arena; i++) p->gradients[i] = 0;
            CHECK_OK(gg_plan_train(plan, p->weights, p->gradients, &batch, step, NULL, sums, NULL));
            check_sums(p, sums, &train, true, tolerance);
            CHECK_NEAR(gg_heads_total_loss(p->head, gg_graph_heads(p->graph), sums, p->batch), total(p, &train),
                       4 * tolerance * (double)p->batch);
            CHECK_NEAR(distance(p->gradients, train.gradient, arena), 0, tolerance);
        }
        CHECK_OK(gg_plan_evaluate(plan, p->weights, 0, &batch, sums));
        check_sums(p, sums, &plain, true, tolerance);
    }
    if (CHECK_OK(make(p, t->device, t->fallback, t->choose, false, &still))) {
        fill_input(still, p);
        CHECK_OK(gg_plan_evaluate(still, p->weights, 0, &batch, sums));
        check_sums(p, sums, &plain, false, tolerance);
        check_outputs(p, still, &plain, tolerance);
        /* A table may take another layout for training, as may dropout as the input's first reader; or another table is
         * the faster one. */
        bool alike = !dropout && t->device != onednn && !t->choose;
        CHECK(!alike || plan == NULL || gg_plan_bytes(still) - gg_plan_prepared_bytes(still) <= gg_plan_bytes(plan));
    }
    gg_plan_destroy(plan);
    gg_plan_destroy(still);
    answer_free(&train);
    answer_free(&plain);
    if (check_failed != failed) fprintf(stderr, "  on tables %s, batch %lld\n", t->name, (long long)p->batch);
    return check_failed == failed;
}

/* No reorder leads from the lanes table to the channels one, unless the plain table's are there too. */
static gg_device mixed_device;
static gg_backend mixed_table;

static gg_status mixed_reorder(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    (void)device;
    if (fake_create_reorder(&fake_plain, desc, out) == GG_OK) return GG_OK;
    return fake_create_reorder(&fake_channels, desc, out);
}

/* Convolutions in channels, poolings in lanes, the rest plain: a reorder at almost every edge, some by way of PLAIN. */
static void make_mixed(void) {
    mixed_table = fake_plain_table;
    mixed_table.name = "mixed";
    mixed_table.create[GG_OP_CONV2D] = fake_create_channels;
    mixed_table.create[GG_OP_MAX_POOL2D] = fake_create_lanes;
    mixed_table.create[GG_OP_AVG_POOL2D] = fake_create_lanes;
    mixed_table.create[GG_OP_CONCAT] = fake_create_lanes;
    mixed_table.create[GG_OP_TANH] = fake_create_lanes;
    mixed_table.create[GG_OP_REORDER] = mixed_reorder;
    mixed_device = (gg_device){.table = &mixed_table, .threads = 1};
}

/* The reference's gradients against central differences in double precision (weights moved in float32). */
static void test_reference(void) {
    for (uint32_t seed = 1; seed <= 12; seed++) {
        problem p = problem_of(random_graph(seed, false), 2, (gg_loss_kind)(seed % 3), seed);
        answer base = reference(&p, true, 0, 0);
        for (int i = 0; i < gg_graph_parameters(p.graph); i++) {
            const gg_parameter *parameter = gg_graph_parameter(p.graph, i);
            float *w = p.weights + parameter->offset + (parameter->count * 2) / 3, before = *w;
            *w = before + 1e-3f;
            answer up = reference(&p, true, 0, 0);
            double high = (double)*w;
            *w = before - 1e-3f;
            answer down = reference(&p, true, 0, 0);
            double slope = (total(&p, &up) - total(&p, &down)) / (high - (double)*w) / (double)p.batch;
            *w = before;
            CHECK_NEAR(base.gradient[w - p.weights], slope, 2e-5 + 1e-3 * fabs(slope));
            answer_free(&up);
            answer_free(&down);
        }
        answer_free(&base);
        problem_free(&p);
    }
}

static void test_random_graphs(void) {
    static const int64_t batches[] = {1, 2, 5, 16, 17};
    tables mixed = {"mixed", &mixed_device, &fake_plain, false}, own = {"native", native, NULL, false};
    tables dnn = {"onednn and native", onednn, native, false}, chosen = {"the faster of both", onednn, native, true};
    for (uint32_t seed = 1; seed <= 300; seed++) {
        bool good = true, dropout = seed % 3 == 0;
        problem p = problem_of(random_graph(seed, dropout), batches[seed % 5], (gg_loss_kind)(seed % 3), seed);
        for (int t = 0; t < FAKES - 1; t++) good &= compare(&p, &fakes[t], dropout, 2e-4);
        good &= compare(&p, &mixed, dropout, 2e-4);
        if (!dropout) good &= compare(&p, &own, false, 2e-4); /* its masks are not the reference's */
        if (!dropout && onednn) good &= compare(&p, &dnn, false, 2e-4) && compare(&p, &chosen, false, 2e-4);
        problem_free(&p);
        if (!good) fprintf(stderr, "  random graph %u\n", seed);
    }
}

static void test_named_graphs(void) {
    tables mixed = {"mixed", &mixed_device, &fake_plain, false}, own = {"native", native, NULL, false};
    tables dnn = {"onednn and native", onednn, native, false}, chosen = {"the faster of both", onednn, native, true};
    tables both = {"plain and native", &fake_plain, native, true};
    for (int which = 0; which < 6; which++) {
        problem p = problem_of(named_graph(which), 5, GG_LOSS_CROSS_ENTROPY, 3);
        bool good = true;
        for (int t = 0; t < FAKES - 1; t++) good &= compare(&p, &fakes[t], false, 1e-4);
        good &= compare(&p, &mixed, false, 1e-4);
        good &= compare(&p, &own, false, 1e-4) && compare(&p, &both, false, 1e-4);
        if (onednn) good &= compare(&p, &dnn, false, 1e-4) && compare(&p, &chosen, false, 1e-4);
        if (!good) fprintf(stderr, "  named graph %d\n", which);
        problem_free(&p);
    }
}

/* What the plan made of the nodes: fusion, views, tables. */
static void test_choices(void) {
    gg_graph *graph = start(image);
    int conv = add1(graph, window(GG_LAYER_CONV2D, 4, 3, 1, 1), 0), relu = kind(graph, GG_LAYER_RELU, conv);
    int other = add1(graph, window(GG_LAYER_CONV2D, 2, 3, 1, 1), relu);
    int both = join(graph, GG_LAYER_CONCAT, 2, (int[]){relu, other}), flat = kind(graph, GG_LAYER_FLATTEN, both);
    int end = linear(graph, 3, flat);
    CHECK_OK(finish(graph, end));
    problem p = problem_of(graph, 9, GG_LOSS_CROSS_ENTROPY, 1);
    gg_plan *plan = NULL;
    CHECK_OK(make(&p, &fake_lanes, &fake_plain, false, true, &plan));
    CHECK_INT(gg_plan_input_format(plan, 0).layout, GG_LAYOUT_BATCH_LAST);
    CHECK_TEXT(gg_plan_node_backend(plan, 0), "");
    CHECK_TEXT(gg_plan_node_backend(plan, conv), "fake-lanes");
    CHECK_TEXT(gg_plan_node_backend(plan, relu), "");
    CHECK_TEXT(gg_plan_node_backend(plan, both), "");
    CHECK_TEXT(gg_plan_node_backend(plan, flat), "");
    CHECK_TEXT(gg_plan_node_backend(plan, end), "fake-lanes");
    gg_plan_destroy(plan);
    CHECK_OK(make(&p, &fake_plain, NULL, false, true, &plan));
    CHECK_INT(gg_plan_input_format(plan, 0).layout, GG_LAYOUT_PLAIN);
    CHECK_TEXT(gg_plan_node_backend(plan, both), "fake-plain");
    gg_plan_destroy(plan);
    CHECK_OK(make(&p, &fake_channels, &fake_plain, false, true, &plan));
    CHECK_INT(gg_plan_input_format(plan, 0).layout, GG_LAYOUT_PLAIN);
    CHECK_TEXT(gg_plan_node_backend(plan, conv), "fake-channels");
    CHECK_TEXT(gg_plan_node_backend(plan, relu), "fake-plain"); /* the first table comes before fusion */
    gg_plan_destroy(plan);
    problem_free(&p);
}

static void check_algorithms(const problem *p, gg_device *device, gg_device *fallback, int node,
                             const gg_algorithm wanted[GG_PASS_COUNT], bool exactly) {
    gg_plan *plan = NULL;
    if (!CHECK_OK(make(p, device, fallback, true, true, &plan))) return;
    for (int pass = 0; pass < GG_PASS_COUNT; pass++) {
        const char *backend = "";
        gg_algorithm algorithm = GG_ALGORITHM_COUNT;
        CHECK(gg_plan_node_algorithm(plan, node, (gg_pass)pass, &backend, &algorithm));
        if (exactly) CHECK_TEXT(gg_algorithm_name(algorithm), gg_algorithm_name(wanted[pass]));
        if (algorithm != GG_ALGORITHM_DIRECT) CHECK_TEXT(backend, "native");
    }
    gg_plan_destroy(plan);
}

/* Each pass of a convolution by any algorithm gives the same results, whichever the others have. */
static void test_algorithms(void) {
    gg_graph *graph = start((gg_shape){3, {5, 9, 7}});
    const int before = add1(graph, window(GG_LAYER_CONV2D, 18, 3, 1, 1), 0);
    const int first = add1(graph, window(GG_LAYER_CONV2D, 17, 3, 1, 1), before);
    int at = kind(graph, GG_LAYER_RELU, first);
    CHECK_OK(finish(graph, linear(graph, 3, kind(graph, GG_LAYER_FLATTEN, at))));
    problem p = problem_of(graph, 3, GG_LOSS_CROSS_ENTROPY, 1);
    const tables both[2] = {{"native", native, NULL, false}, {"onednn first", onednn, native, false}};
    conv_algorithm = GG_CONV_AUTO;
    conv_choices = 1;
    memset(conv_choice, 0, sizeof conv_choice);
    conv_choice[0].key = (gg_conv_key){.batch = 3,
                                       .input = {18, 9, 7},
                                       .output = 17,
                                       .padding = {1, 1},
                                       .bias = true,
                                       .relu = true,
                                       .kernel = {3, 3},
                                       .stride = {1, 1},
                                       .dilation = {1, 1},
                                       .groups = 1};
    for (int mix = 0; mix < 27; mix++) {
        const gg_algorithm wanted[GG_PASS_COUNT] = {(gg_algorithm)(mix % 3), (gg_algorithm)(mix / 3 % 3),
                                                    (gg_algorithm)(mix / 9)};
        memcpy(conv_choice[0].algorithm, wanted, sizeof wanted);
        for (int t = 0; t < (onednn != NULL ? 2 : 1); t++) {
            compare(&p, &both[t], false, 1e-4);
            check_algorithms(&p, both[t].device, both[t].fallback, first, wanted, t == 0);
        }
    }
    conv_choices = 0;
    conv_algorithm = GG_CONV_WINOGRAD;
    const gg_algorithm winograd[GG_PASS_COUNT] = {GG_ALGORITHM_WINOGRAD4, GG_ALGORITHM_WINOGRAD4,
                                                  GG_ALGORITHM_WINOGRAD4};
    check_algorithms(&p, native, NULL, first, winograd, true);
    compare(&p, &both[0], false, 1e-4);
    conv_algorithm = GG_CONV_DIRECT;
    const gg_algorithm direct[GG_PASS_COUNT] = {GG_ALGORITHM_DIRECT};
    check_algorithms(&p, native, NULL, first, direct, true);
    problem_free(&p);
}

static gg_status refuse(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    (void)device, (void)desc, (void)out;
    return gg_fail(GG_ERROR_UNSUPPORTED, "a pity");
}

static gg_status break_down(gg_op *op, const gg_op_args *args) {
    (void)op, (void)args;
    return gg_fail(GG_ERROR_BACKEND, "smoke");
}

static const gg_op_class broken_class = {
    .forward = fake_forward, .backward_data = break_down, .compile = fake_compile, .destroy = fake_destroy};

static gg_status create_broken(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = fake_create_plain(device, desc, out);
    if (status == GG_OK) (*out)->type = &broken_class;
    return status;
}

static void test_refusals(void) {
    problem p = problem_of(named_graph(0), 3, GG_LOSS_CROSS_ENTROPY, 3);
    gg_plan *plan = NULL;
    gg_backend table = fake_plain_table;
    gg_device device = {.table = &table, .threads = 1};
    float *out = NULL;
    gg_plan_batch batch = batch_of(&p);

    p.batch = 0;
    CHECK_FAILS(make(&p, &fake_plain, NULL, false, true, &plan), GG_ERROR_ARGUMENT, "batch must be 1 to");
    CHECK(plan == NULL);
    p.batch = 3;
    CHECK_FAILS(make(&p, NULL, NULL, false, true, &plan), GG_ERROR_ARGUMENT, "needs a device");
    p.head[0].loss.kind = GG_LOSS_COUNT;
    CHECK_FAILS(make(&p, &fake_plain, NULL, false, true, &plan), GG_ERROR_ARGUMENT, "unknown loss");
    p.head[0].loss.kind = GG_LOSS_CROSS_ENTROPY;
    p.head[0].loss.label_smoothing = 1;
    CHECK_FAILS(make(&p, &fake_plain, NULL, false, true, &plan), GG_ERROR_ARGUMENT, "label_smoothing must be at least");
    p.head[0].loss.label_smoothing = 0;
    p.head[0].weight = -1;
    CHECK_FAILS(make(&p, &fake_plain, NULL, false, true, &plan), GG_ERROR_ARGUMENT,
                "weight of a loss must be at least");
    p.head[0].weight = 1;
    p.head[0].target = GG_MAX_FIELDS;
    CHECK_FAILS(make(&p, &fake_plain, NULL, false, true, &plan), GG_ERROR_ARGUMENT, "numbered 0 to 7, got 8");
    p.head[0].target = 0;
    CHECK_FAILS(make(&p, &fake_lanes, NULL, false, true, &plan), GG_ERROR_UNSUPPORTED, "neither table offers a loss");
    CHECK_FAILS(make(&p, &fake_channels, &fake_lanes, false, true, &plan), GG_ERROR_UNSUPPORTED, "neither table");
    table.create[GG_OP_ADD] = NULL;
    CHECK_FAILS(make(&p, &device, NULL, false, true, &plan), GG_ERROR_UNSUPPORTED,
                "(add): table 'fake-plain' has no operation add");
    table.create[GG_OP_ADD] = refuse;
    CHECK_FAILS(make(&p, &device, &device, false, true, &plan), GG_ERROR_UNSUPPORTED, "(add): a pity");
    CHECK_OK(make(&p, &device, &fake_plain, false, true, &plan));
    gg_plan_destroy(plan);
    table.create[GG_OP_ADD] = create_broken;
    CHECK_OK(make(&p, &device, NULL, false, true, &plan));
    CHECK_FAILS(gg_plan_train(plan, p.weights, p.gradients, &batch, 1, NULL, NULL, NULL), GG_ERROR_BACKEND,
                "(add), backward: smoke");
    gg_plan_destroy(plan);
    table = fake_plain_table;
    table.create[GG_OP_CONV2D] = fake_create_lanes;
    table.create[GG_OP_REORDER] = refuse;
    CHECK_FAILS(make(&p, &device, NULL, false, true, &plan), GG_ERROR_UNSUPPORTED,
                "from float32 batch_last to float32 plain: a pity");

    CHECK_OK(make(&p, &fake_plain, NULL, false, false, &plan));
    CHECK_FAILS(gg_plan_train(plan, p.weights, p.gradients, &batch, 1, NULL, NULL, NULL), GG_ERROR_STATE,
                "not made for");
    CHECK_FAILS(gg_plan_evaluate(plan, p.weights, 0, &(gg_plan_batch){0}, NULL), GG_ERROR_ARGUMENT, "no targets");
    CHECK_FAILS(gg_plan_evaluate(plan, NULL, 0, &batch, NULL), GG_ERROR_ARGUMENT, "no weights");
    CHECK_FAILS(gg_plan_predict(plan, p.weights, 0, &(gg_plan_batch){0}, 4, &out), GG_ERROR_ARGUMENT,
                "0 to the plan's batch of 3, got 4");
    gg_plan_destroy(plan);
    problem_free(&p);

    /* An image as the output: good for predicting and for a squared error, not for classes. */
    gg_graph *graph = start(image);
    CHECK_OK(finish(graph, add1(graph, window(GG_LAYER_CONV2D, 2, 3, 1, 1), 0)));
    p = problem_of(graph, 2, GG_LOSS_MEAN_SQUARED_ERROR, 1);
    compare(&p, &fakes[0], false, 1e-5);
    compare(&p, &fakes[1], false, 1e-5);
    compare(&p, &fakes[2], false, 1e-5);
    p.head[0].loss.kind = GG_LOSS_CROSS_ENTROPY;
    CHECK_FAILS(make(&p, &fake_plain, NULL, false, true, &plan), GG_ERROR_SHAPE,
                "at least 2 of them, got (2, 5, 4) from 'n");
    CHECK_OK(make(&p, &fake_plain, NULL, false, false, &plan));
    batch = batch_of(&p);
    CHECK_FAILS(gg_plan_evaluate(plan, p.weights, 0, &batch, NULL), GG_ERROR_SHAPE, "cross-entropy");
    gg_plan_destroy(plan);
    problem_free(&p);

    CHECK_OK(gg_graph_create(&graph));
    p = (problem){.graph = graph, .batch = 1};
    CHECK_FAILS(make(&p, &fake_plain, NULL, false, true, &plan), GG_ERROR_STATE, "finished graph");
    problem_free(&p);
}

/* A graph without parameters, or of the input alone, still runs. */
static void test_trivial(void) {
    for (int nodes = 0; nodes < 3; nodes++) {
        gg_graph *graph = start((gg_shape){1, {3}});
        int at = 0;
        if (nodes == 1) at = kind(graph, GG_LAYER_FLATTEN, at);
        if (nodes == 2) at = join(graph, GG_LAYER_CONCAT, 2, (int[]){at, kind(graph, GG_LAYER_TANH, at)});
        CHECK_OK(finish(graph, at));
        problem p = problem_of(graph, 2, GG_LOSS_CROSS_ENTROPY, 1);
        for (int t = 0; t < FAKES - 1; t++) compare(&p, &fakes[t], false, 1e-5);
        problem_free(&p);
    }
}

/* Each dropout layer has its own stream; without training it is not there at all. */
static void test_dropout(void) {
    gg_graph *graph = start((gg_shape){1, {8}});
    gg_layer_desc desc = layer(GG_LAYER_DROPOUT);
    int at = linear(graph, 8, 0), first;
    desc.probability = 0.5f;
    first = at = add1(graph, desc, at);
    at = linear(graph, 3, at);
    snprintf(desc.name, sizeof desc.name, "second");
    at = add1(graph, desc, at);
    CHECK_OK(finish(graph, at));
    problem p = problem_of(graph, 4, GG_LOSS_CROSS_ENTROPY, 1);
    for (int t = 0; t < FAKES - 1; t++) compare(&p, &fakes[t], true, 1e-5);
    gg_plan *plan = NULL;
    fake_seeds = 0;
    CHECK_OK(make(&p, &fake_plain, NULL, false, true, &plan));
    CHECK_INT(fake_seeds, 2);
    CHECK(fake_seed[0] != fake_seed[1]);
    CHECK_TEXT(gg_plan_node_backend(plan, first), "fake-plain");
    gg_plan_destroy(plan);
    CHECK_OK(make(&p, &fake_plain, NULL, false, false, &plan));
    CHECK_INT(fake_seeds, 2);
    CHECK_TEXT(gg_plan_node_backend(plan, first), "");
    gg_plan_destroy(plan);
    problem_free(&p);
}

int main(void) {
    make_mixed();
    open_devices();
    test_reference();
    test_named_graphs();
    test_random_graphs();
    test_choices();
    test_algorithms();
    test_refusals();
    test_trivial();
    test_dropout();
    close_devices();
    CHECK_INT(gg_memory_live_bytes(), 0);
    return check_report();
}
