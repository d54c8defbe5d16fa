/* Which convolutions are measured: those that have several algorithms where their images lie. Of all others measuring
 * would find one candidate, keep no time of it, and look for it again in the next run.
 *
 * twins: amx */
#include "apoptosis_networks.h"
#include "nn/choose.h"
#include "nn/measure.h"

enum { BATCH = 16, HEIGHT = 14, WIDTH = 13 };

/* Channels in and out, window, stride, padding; whether there are several where images lie in blocks of sixteen
 * channels, and where they lie BATCH_LAST. */
typedef struct convolution {
    int64_t in, out, kernel, stride, padding;
    bool blocks, batch_last;
} convolution;

static const convolution cases[] = {
    {32, 32, 3, 1, 1, true, true},   /* Winograd's, and split products */
    {32, 32, 3, 2, 1, true, false},  /* split products alone, which are of blocks */
    {32, 48, 1, 1, 0, true, false},  /* likewise */
    {32, 48, 1, 2, 0, true, false},  /* likewise */
    {8, 32, 1, 1, 0, false, false},  /* half of a block */
    {32, 32, 3, 3, 1, false, false}, /* a stride that they do not have */
    {32, 32, 3, 1, 3, false, false}, /* padding as wide as the window */
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
                             .window = windowed(GG_LAYER_CONV2D, "", 0, c->kernel, c->stride, c->padding).window,
                             .groups = 1}};
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
        /* Winograd's alone, where products of bfloat16 are computed in float32; all where its own instructions are as
         * wide as those of float32; none with AMX. */
        op.desc.dtype = GG_BFLOAT16;
        const bool vectors = native->isa >= GG_ISA_AVX512 && strcmp(gg_cpu_bfloat16(), "amx") != 0;
        const bool widened = gg_choose_direct(&options, &op.desc) == GG_ALGORITHM_WIDENED;
        CHECK_INT(widened, vectors && !gg_cpu_bfloat16_is_fast());
        CHECK_INT(gg_choose_has_algorithms(&options, &op), vectors && (c->batch_last || !widened));
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
    test_layouts(native);
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
