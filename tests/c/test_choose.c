/* Which table a plan asks first, and which convolutions are measured: those that have several algorithms where their
 * images lie. Of all others measuring would find one candidate, keep no time of it, and look for it again in the next
 * run. What depends on a CPU's instructions for bfloat16 is checked for every kind of CPU, on any.
 *
 * twins: amx */
#include "apoptosis_networks.h"
#include "nn/choose.h"
#include "nn/measure.h"

/* A CPU: its instructions for bfloat16, and whether they are faster than those of float32. */
typedef struct cpu_kind {
    const char *bfloat16;
    bool fast;
} cpu_kind;

static const cpu_kind cpu_kinds[] = {
    {"", false},            /* without AVX-512, or without its products of bfloat16 */
    {"avx512_bf16", false}, /* Intel's */
    {"avx512_bf16", true},  /* AMD's */
    {"amx", true},
};

static cpu_kind cpu;

const char *__wrap_gg_cpu_bfloat16(void);
bool __wrap_gg_cpu_bfloat16_is_fast(void);

const char *__wrap_gg_cpu_bfloat16(void) { return cpu.bfloat16; }
bool __wrap_gg_cpu_bfloat16_is_fast(void) { return cpu.fast; }

/* The order of the tables is the options', if the plan may choose. */
static void test_order(gg_device *native) {
    const gg_backend other_table = {.name = "blocks"};
    gg_device other = {.table = &other_table, .threads = 1}, *order[2];
    const gg_table_choice told[] = {{16, false}, {64, true}, {16, true}};
    gg_plan_options options = {.batch = 64, .device = &other, .fallback = native, .table_choice = told};
    CHECK_INT(gg_choose_devices(&options, order), 2);
    CHECK(order[0] == &other && order[1] == native);
    CHECK(gg_choose_told_table(&options) == NULL);
    options.table_choices = 2;
    CHECK(gg_choose_told_table(&options) == &told[1]);
    CHECK_INT(gg_choose_devices(&options, order), 2);
    CHECK(order[0] == &other); /* as the backend was named */
    options.choose = true;
    CHECK_INT(gg_choose_devices(&options, order), 2);
    CHECK(order[0] == native && order[1] == &other);
    options.batch = 16;
    CHECK_INT(gg_choose_devices(&options, order), 2);
    CHECK(order[0] == &other);
    options.table_choices = 3; /* the last one counts */
    CHECK_INT(gg_choose_devices(&options, order), 2);
    CHECK(order[0] == native);
    options.fallback = options.device;
    CHECK_INT(gg_choose_devices(&options, order), 1);
    options.fallback = NULL;
    CHECK_INT(gg_choose_devices(&options, order), 1);
    CHECK(order[0] == &other);
}

enum { BATCH = 16, HEIGHT = 14, WIDTH = 13 };

/* Channels in and out, window, stride, padding; whether there are several where images lie in blocks of sixteen
 * channels, and where they lie BATCH_LAST; whether images may be turned in bfloat16. */
typedef struct convolution {
    int64_t in, out, kernel, stride, padding;
    bool blocks, batch_last, turned;
} convolution;

static const convolution cases[] = {
    {32, 32, 3, 1, 1, true, true, false},   /* Winograd's, and split products */
    {32, 32, 3, 2, 1, true, false, false},  /* split products alone, which are of blocks */
    {32, 48, 1, 1, 0, true, false, false},  /* likewise */
    {32, 48, 1, 2, 0, true, false, false},  /* likewise */
    {8, 32, 1, 1, 0, false, false, true},   /* half of a block */
    {32, 32, 3, 3, 1, false, false, false}, /* a stride that they do not have */
    {32, 32, 3, 1, 3, false, false, false}, /* padding as wide as the window */
};

static void test_layouts(gg_device *native) {
    const gg_plan_options options = {.batch = BATCH, .device = native};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        const convolution *c = &cases[i];
        const int64_t size[2] = {(HEIGHT + 2 * c->padding - c->kernel) / c->stride + 1,
                                 (WIDTH + 2 * c->padding - c->kernel) / c->stride + 1};
        gg_op op = {.desc = {.kind = GG_OP_CONV2D,
                             .batch = BATCH,
                             .inputs = 1,
                             .input = {{3, {c->in, HEIGHT, WIDTH}}},
                             .output = {3, {c->out, size[0], size[1]}},
                             .conv = windowed(GG_LAYER_CONV2D, "", 0, c->kernel, c->stride, c->padding).conv}};
        for (int layout = 0; layout < GG_LAYOUT_COUNT; ++layout) {
            const bool blocks = layout == GG_LAYOUT_CHANNELS16, last = layout == GG_LAYOUT_BATCH_LAST;
            op.input[0].layout = op.output.layout = (gg_layout)layout;
            CHECK_INT(gg_choose_has_algorithms(&options, &op), blocks ? c->blocks : last ? c->batch_last : false);
        }
        op.input[0].layout = GG_LAYOUT_PLAIN;
        op.output.layout = GG_LAYOUT_CHANNELS16;
        CHECK(!gg_choose_has_algorithms(&options, &op));
        op.input[0].layout = GG_LAYOUT_CHANNELS16;
        op.output.layout = GG_LAYOUT_CHANNELS16;
        /* Winograd's and turned images alone, where products of bfloat16 are computed in float32; all where its own
         * instructions are as wide as those of float32; none with AMX. */
        op.desc.dtype = GG_BFLOAT16;
        CHECK_INT(native->isa, GG_ISA_AMX);
        const bool vectors = strcmp(cpu.bfloat16, "amx") != 0;
        const bool widened = gg_choose_direct(&options, &op.desc) == GG_ALGORITHM_WIDENED;
        CHECK_INT(widened, vectors && !cpu.fast);
        CHECK_INT(gg_choose_has_algorithms(&options, &op), vectors && (c->batch_last || c->turned || !widened));
        const gg_device narrow = {.table = native->table, .threads = 1, .isa = GG_ISA_AVX2};
        const gg_plan_options without = {.batch = BATCH, .device = (gg_device *)(uintptr_t)&narrow};
        CHECK(!gg_choose_has_algorithms(&without, &op));
    }
}

/* A first convolution in bfloat16 on AMX: its weights' gradient has kernels of its own, so training alone may choose.
 */
static void test_few_channels(gg_device *native) {
    const gg_device amx = {.table = native->table, .threads = 1, .isa = GG_ISA_AMX};
    const gg_format nhwc = {GG_BFLOAT16, GG_LAYOUT_NHWC};
    gg_op op = {.desc = {.kind = GG_OP_CONV2D,
                         .batch = BATCH,
                         .inputs = 1,
                         .input = {{3, {3, HEIGHT, WIDTH}}},
                         .output = {3, {20, HEIGHT, WIDTH}},
                         .dtype = GG_BFLOAT16,
                         .conv = windowed(GG_LAYER_CONV2D, "", 0, 3, 1, 1).conv},
                .input = {nhwc},
                .output = nhwc};
    const gg_device other = {.table = native->table, .threads = 1, .isa = GG_ISA_AVX512};
    gg_plan_options options = {.batch = BATCH, .device = (gg_device *)(uintptr_t)&amx, .training = true}, without;
    gg_algorithm chosen[GG_PASS_COUNT];
    const gg_algorithm direct = gg_choose_direct(&options, &op.desc);
    CHECK(gg_choose_has_algorithms(&options, &op));
    gg_choose_by_cost(&options, &op.desc, chosen);
    CHECK(chosen[GG_PASS_WEIGHTS] == GG_ALGORITHM_TILED);
    CHECK(chosen[GG_PASS_FORWARD] != GG_ALGORITHM_TILED && chosen[GG_PASS_DATA] != GG_ALGORITHM_TILED);
    options.conv_algorithm = GG_CONV_DIRECT;
    gg_choose_by_cost(&options, &op.desc, chosen);
    CHECK(chosen[GG_PASS_WEIGHTS] == direct);
    options.conv_algorithm = GG_CONV_AUTO;

    /* All else is as without AMX. */
    without = options;
    without.device = (gg_device *)(uintptr_t)&other;
    options.training = false;
    CHECK_INT(gg_choose_has_algorithms(&options, &op), gg_choose_has_algorithms(&without, &op));
    options.training = true;
    op.desc.input[0].size[0] = GG_CONV_FEW_CHANNELS + 1;
    CHECK_INT(gg_choose_has_algorithms(&options, &op), gg_choose_has_algorithms(&without, &op));
    gg_choose_by_cost(&options, &op.desc, chosen);
    CHECK(chosen[GG_PASS_WEIGHTS] != GG_ALGORITHM_TILED);
    op.desc.input[0].size[0] = 3;
    op.output.layout = GG_LAYOUT_CHANNELS16;
    CHECK_INT(gg_choose_has_algorithms(&options, &op), gg_choose_has_algorithms(&without, &op));
}

/* In bfloat16, in vector registers: where channels leave vectors partly empty and samples do not, images may be turned,
 * however they lie before and behind the convolution. */
static void test_turned(gg_device *native) {
    static const struct {
        int64_t batch, in, out;
        bool turned;
    } shapes[] = {{16, 1, 20, true},   {16, 20, 50, true},  {15, 20, 50, true},  {17, 20, 50, false},
                  {4, 20, 50, false},  {16, 16, 32, false}, {16, 3, 64, false},  {16, 17, 64, true},
                  {16, 4, 16, false},  {16, 5, 16, true},   {16, 96, 90, false}, {32, 24, 100, true},
                  {64, 30, 30, false}, {64, 28, 28, true}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; ++i) {
        const gg_device vectors = {.table = native->table, .threads = 1, .isa = GG_ISA_AVX512};
        const gg_plan_options options = {.batch = shapes[i].batch, .device = (gg_device *)(uintptr_t)&vectors};
        gg_op op = {.desc = {.kind = GG_OP_CONV2D,
                             .batch = shapes[i].batch,
                             .inputs = 1,
                             .input = {{3, {shapes[i].in, HEIGHT, WIDTH}}},
                             .output = {3, {shapes[i].out, HEIGHT, WIDTH}},
                             .dtype = GG_BFLOAT16,
                             .conv = windowed(GG_LAYER_CONV2D, "", 0, 1, 1, 0).conv},
                    .input = {{GG_BFLOAT16, GG_LAYOUT_PLAIN}},
                    .output = {GG_BFLOAT16, GG_LAYOUT_CHANNELS16}};
        const bool usable = strcmp(cpu.bfloat16, "amx") != 0;
        CHECK_INT(gg_conv_has_form(&op.desc, GG_LAYOUT_PLAIN, GG_ALGORITHM_TURNED), shapes[i].turned);
        CHECK_INT(gg_choose_has_algorithms(&options, &op), shapes[i].turned && usable);
        CHECK(!gg_conv_has_form(&op.desc, GG_LAYOUT_BATCH_LAST, GG_ALGORITHM_TURNED));
        CHECK(!gg_conv_has_form(&op.desc, GG_LAYOUT_PLAIN, GG_ALGORITHM_TURNED4)); /* of 1 x 1 */
        op.desc.conv.groups = 2;
        CHECK(!gg_conv_has_form(&op.desc, GG_LAYOUT_PLAIN, GG_ALGORITHM_TURNED));
        op.desc.conv.groups = 1;
        op.desc.dtype = GG_FLOAT32;
        CHECK(!gg_choose_has_algorithms(&options, &op));
    }
}

static gg_graph *with_convolution(const convolution *c) {
    gg_graph *graph = NULL;
    const gg_layer_desc input = {.kind = GG_LAYER_INPUT, .name = "x"};
    int node = 0;
    CHECK_OK(gg_graph_create(&graph));
    CHECK_OK(gg_graph_add(graph, &input, &(gg_shape){3, {3, HEIGHT, WIDTH}}, 0, NULL, &node));
    node = add_layer(graph, windowed(GG_LAYER_CONV2D, "first", c->in, 3, 1, 1), node);
    node = add_layer(graph, windowed(GG_LAYER_CONV2D, "second", c->out, c->kernel, c->stride, c->padding), node);
    CHECK_OK(gg_graph_finish(graph, 1, &(gg_head){.node = node}));
    return graph;
}

/* Each convolution that is asked for has times of several algorithms. keys: how many are asked for; -1: any number,
 * since the layouts are a library's choice. */
static void check_measured(const convolution *c, const gg_plan_options *options, int wanted) {
    gg_graph *graph = with_convolution(c);
    gg_conv_key *key = NULL;
    gg_conv_timing *timing = NULL;
    int keys = 0, timings = 0;
    CHECK_OK(gg_measured_convolutions(graph, options, &key, &keys));
    if (wanted >= 0) CHECK_INT(keys, wanted);
    CHECK_OK(gg_measure_algorithms(graph, options, key, keys, 1e9, &timing, &timings));
    for (int i = 0; i < keys; ++i) {
        int found = 0;
        for (int t = 0; t < timings; ++t) found += memcmp(&timing[t].key, &key[i], sizeof *key) == 0;
        CHECK(found >= 2);
    }
    gg_free(key);
    gg_free(timing);
    gg_graph_destroy(graph);
}

int main(void) {
    const gg_device_options how = {.threads = 1, .isa = GG_ISA_AMX};
    gg_device *native = NULL, *onednn = NULL;
    CHECK_OK(gg_backend_native.open(&how, &native));
    if (gg_cpu_onednn() != NULL) CHECK_OK(gg_cpu_onednn()->open(&how, &onednn));
    test_order(native);
    for (size_t i = 0; i < sizeof cpu_kinds / sizeof *cpu_kinds; ++i) {
        const long failed = check_failed;
        cpu = cpu_kinds[i];
        test_layouts(native);
        test_turned(native);
        test_few_channels(native);
        if (check_failed > failed)
            fprintf(stderr, "  on a CPU whose bfloat16 is '%s'%s\n", cpu.bfloat16, cpu.fast ? ", fast" : "");
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        gg_plan_options options = {.batch = BATCH, .device = native, .fallback = native};
        check_measured(&cases[i], &options, 1 + cases[i].batch_last); /* the first one has Winograd's */
        options.device = onednn;
        if (onednn != NULL) check_measured(&cases[i], &options, -1);
    }
    if (onednn != NULL) onednn->table->close(onednn);
    if (native != NULL) native->table->close(native);
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
