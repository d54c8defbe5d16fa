/* A plan that a device captures and replays has the CPU's bits, whatever changes between two runs: the pass, arenas,
 * state, weights of samples, freed memory. */
#include "base/memory.h"
#include "base/random.h"
#include "check.h"
#include "cpu/cpu_backend.h"
#include "nn/plan.h"
#include "strict/strict.h"

enum {
    BATCH = 5,
    ROWS = 6,
    LENGTH = 3,
    WORDS = 7,
    HIDDEN = 4,
    CLASSES = 3,
    STATE = 4 * ROWS * HIDDEN,
    RUNS = 3000,
    CASES = 2
};

static gg_graph *make_graph(void) {
    gg_graph *graph = NULL;
    int node = 0;
    gg_layer_desc input = {.kind = GG_LAYER_INPUT, .name = "tokens", .dtype = GG_INT32};
    gg_layer_desc behind[] = {
        {.kind = GG_LAYER_EMBEDDING, .name = "table", .outputs = 3, .embedding.numbers = WORDS},
        {.kind = GG_LAYER_LSTM,
         .name = "rnn",
         .outputs = HIDDEN,
         .lstm = {.layers = 1, .stateful = true},
         .bias = true},
        {.kind = GG_LAYER_LSTM,
         .name = "rnn2",
         .outputs = HIDDEN,
         .lstm = {.layers = 1, .stateful = true},
         .bias = true},
        {.kind = GG_LAYER_RESHAPE, .name = "image", .reshape = {.dims = 3, .size = {1, LENGTH, HIDDEN}}},
        {.kind = GG_LAYER_CONV2D,
         .name = "conv",
         .outputs = 2,
         .conv = {.groups = 1, .window = {.kernel = {2, 2}, .stride = {1, 1}, .dilation = {1, 1}}}},
        {.kind = GG_LAYER_DROPOUT, .name = "dropout", .probability = 0.4f},
        {.kind = GG_LAYER_FLATTEN, .name = "flat"},
        {.kind = GG_LAYER_LINEAR, .name = "last", .outputs = CLASSES, .bias = true},
    };
    CHECK_OK(gg_graph_create(&graph));
    CHECK_OK(gg_graph_add(graph, &input, &(gg_shape){.dims = 1, .size = {LENGTH}}, 0, NULL, &node));
    for (int i = 0; i < 8; ++i) CHECK_OK(gg_graph_add(graph, &behind[i], NULL, 1, (int[]){node}, &node));
    CHECK_OK(gg_graph_finish(graph, 1, &(gg_head){.node = node}));
    return graph;
}

/* What one device has; all arrays are its memory, but for the sums. */
typedef struct side {
    gg_device *device;
    gg_plan *train, *evaluate;
    float *weights[CASES], *gradients[CASES], *carried[CASES], *sample_weights, *spare;
    int32_t *tokens, *targets;
    gg_loss_sums *sums;
    size_t count; /* of an arena */
} side;

static void *on_device(const side *it, size_t bytes, const void *values) {
    void *at = NULL;
    CHECK_OK(gg_device_alloc(it->device, bytes, "numbers", &at));
    if (values != NULL) CHECK_OK(gg_device_write(it->device, at, values, bytes));
    return at;
}

static side open_side(const gg_backend *table, const gg_graph *graph) {
    side it = {.count = (size_t)gg_graph_arena_count(graph)};
    const gg_device_options how = {.threads = 1, .isa = GG_ISA_SCALAR, .number = 3};
    const float weights[BATCH] = {1, 0.5f, 2, 0, 1};
    const int32_t tokens[BATCH * LENGTH] = {1, 2, 3, 4, 5, 6, 0, 0, 1, 3, 3, 3, 2, 6, 4},
                                 targets[BATCH] = {0, 2, 1, 1, 2};
    float *start = NULL;
    CHECK_OK(table->open(&how, &it.device));
    gg_plan_options options = {.batch = BATCH, .training = true, .device = it.device, .fallback = it.device, .seed = 5};
    options.graphs = true;
    options.head[0].weight = 1;
    CHECK_OK(gg_plan_create(graph, &options, &it.train));
    options.training = false;
    CHECK_OK(gg_plan_create(graph, &options, &it.evaluate));
    CHECK_OK(gg_calloc(it.count, sizeof *start, "weights", &start));
    for (int i = 0; i < CASES; ++i) {
        gg_graph_initialise(graph, (uint64_t)i + 1, start);
        it.weights[i] = on_device(&it, it.count * sizeof(float), start);
        it.gradients[i] = on_device(&it, it.count * sizeof(float), NULL);
        it.carried[i] = on_device(&it, (size_t)(STATE) * sizeof(float), NULL);
    }
    gg_free(start);
    it.sample_weights = on_device(&it, sizeof weights, weights);
    it.tokens = on_device(&it, sizeof tokens, tokens);
    it.targets = on_device(&it, sizeof targets, targets);
    it.spare = on_device(&it, 64, NULL);
    CHECK_OK(gg_device_alloc_host(it.device, sizeof *it.sums, "sums", &it.sums));
    if (!gg_device_is_separate(it.device)) {
        memcpy(gg_plan_input(it.train, 0), tokens, sizeof tokens);
        memcpy(gg_plan_input(it.evaluate, 0), tokens, sizeof tokens);
    }
    return it;
}

static void close_side(side *it) {
    gg_plan_destroy(it->train);
    gg_plan_destroy(it->evaluate);
    for (int i = 0; i < CASES; ++i) {
        gg_device_free(it->device, it->weights[i]);
        gg_device_free(it->device, it->gradients[i]);
        gg_device_free(it->device, it->carried[i]);
    }
    gg_device_free(it->device, it->sample_weights);
    gg_device_free(it->device, it->tokens);
    gg_device_free(it->device, it->targets);
    gg_device_free(it->device, it->spare);
    gg_device_free_host(it->device, it->sums);
    it->device->table->close(it->device);
}

/* What is run, and with what. */
typedef struct choice {
    int what; /* 0: trains; 1: evaluates; 2: predicts */
    int weights, gradients, carried;
    int64_t rows;
    bool weighted, begins, versions, renews;
} choice;

/* Every few runs one thing changes, so that work is captured and replayed, and what was captured before it nearly fits.
 */
static void change(choice *c, int turn) {
    uint32_t word[4];
    gg_random_key key = {.seed = 1, .purpose = GG_RANDOM_TEST, .step = (uint64_t)turn};
    gg_random_block(&key, 0, word);
    c->begins = word[0] & 1;
    c->renews = false;
    if (turn % 3 != 0) return;
    switch (word[1] % 8) {
    case 0: c->what = (int)(word[2] % 3); break;
    case 1: c->weights = 1 - c->weights; break;
    case 2: c->gradients = 1 - c->gradients; break;
    case 3: c->carried = (c->carried + 1) % (CASES + 1); break;
    case 4: c->rows = c->rows == ROWS ? BATCH : ROWS; break;
    case 5: c->weighted = !c->weighted; break;
    case 6: c->versions = !c->versions; break;
    default: c->renews = true;
    }
}

/* Memory that is freed and comes back at the same address may be another. */
static void renew(side *it, int which) {
    float *before = NULL;
    const size_t bytes = it->count * sizeof *before;
    CHECK_OK(gg_calloc(it->count, sizeof *before, "weights", &before));
    CHECK_OK(gg_device_read(it->device, before, it->weights[which], bytes));
    gg_device_free(it->device, it->weights[which]);
    it->weights[which] = on_device(it, bytes, before);
    gg_free(before);
}

/* Everything that a run gives, one number behind the other. */
static int run_once(side *it, const choice *c, int turn, float *out) {
    const uint64_t version = c->versions ? 1 + (uint64_t)c->weights : 0;
    const bool begins[BATCH] = {true, false, true};
    const gg_gather_args input = {
        .dtype = GG_INT32, .rows = it->tokens, .values = LENGTH, .n = BATCH, .wanted = GG_INT32, .out = NULL};
    gg_plan_batch batch = {.input = gg_device_is_separate(it->device) ? &input : NULL,
                           .target = {it->targets},
                           .sample_weights = c->weighted ? it->sample_weights : NULL,
                           .carried = c->carried < CASES ? it->carried[c->carried] : NULL,
                           .carried_rows = c->carried < CASES ? c->rows : 0,
                           .begins = c->begins ? begins : NULL};
    gg_mark report = {0};
    float *from = it->gradients[c->gradients];
    size_t n = it->count;
    *it->sums = (gg_loss_sums){0};
    if (c->renews) renew(it, c->weights);
    if (c->what == 0) {
        CHECK_OK(
            gg_plan_train(it->train, it->weights[c->weights], from, &batch, (uint64_t)turn, NULL, it->sums, &report));
        gg_device_wait(it->device, report);
        CHECK_OK(gg_device_check_report(it->device, report));
    } else if (c->what == 1) {
        CHECK_OK(gg_plan_evaluate(it->evaluate, it->weights[c->weights], version, &batch, it->sums));
    } else {
        CHECK_OK(gg_plan_predict(it->evaluate, it->weights[c->weights], version, &batch, BATCH, &(float *){out}));
        return BATCH * CLASSES;
    }
    out[0] = (float)it->sums->loss_sum;
    out[1] = (float)it->sums->divisor;
    CHECK_OK(gg_device_read(it->device, out + 2, from, n * sizeof *out));
    n = (size_t)(STATE);
    for (int i = 0; i < CASES; ++i)
        CHECK_OK(gg_device_read(it->device, out + 2 + it->count + (size_t)i * n, it->carried[i], n * sizeof *out));
    return (int)(2 + it->count + CASES * n);
}

int main(void) {
    gg_cpu_register();
    gg_graph *graph = make_graph();
    side cpu = open_side(&gg_backend_native, graph), device = open_side(&gg_backend_strict, graph);
    float wanted[4096], got[4096];
    int replayed = 0;
    choice c = {.rows = ROWS};
    CHECK(cpu.count < 2000 && gg_plan_prepared_bytes(device.evaluate) > 0);
    for (int turn = 0; turn < RUNS; ++turn) {
        change(&c, turn);
        const int numbers = run_once(&cpu, &c, turn, wanted);
        CHECK_INT(run_once(&device, &c, turn, got), numbers);
        if (!CHECK(memcmp(wanted, got, (size_t)numbers * sizeof *got) == 0)) printf("run %d, kind %d\n", turn, c.what);
        const gg_graphs_report report = gg_plan_graphs_report(c.what == 0 ? device.train : device.evaluate);
        CHECK(report.captures && report.why == NULL && report.pieces == 1);
        CHECK(!c.renews || report.replayed == 0); /* addresses may mean other memory */
        replayed += report.replayed;
    }
    CHECK(replayed > RUNS / 4 && replayed < RUNS);
    close_side(&cpu);
    close_side(&device);
    gg_graph_destroy(graph);
    CHECK(gg_memory_live_bytes() == 0);
    return CHECK_RESULT;
}
