/* Sizes of buckets and chunks by the cost of messages: what is chosen for links that no machine here has. */
#include <stdlib.h>

#include "base/memory.h"
#include "check.h"
#include "exchange/parts/tuning.h"
#include "nn/graph.h"

enum { LAYERS = 12 };

static gg_layer_desc named(gg_layer_kind kind, const char *name) {
    gg_layer_desc desc = gg_layer_desc_of(kind);
    snprintf(desc.name, sizeof desc.name, "%s", name);
    return desc;
}

/* Fully connected layers of this width: width * width weights each, in bytes four times that. */
static gg_graph *chain(int64_t width) {
    gg_graph *graph = NULL;
    gg_shape shape = {.dims = 1, .size = {width}};
    gg_layer_desc input = named(GG_LAYER_INPUT, "input");
    int at = 0;
    CHECK_OK(gg_graph_create(&graph));
    CHECK_OK(gg_graph_add(graph, &input, &shape, 0, NULL, NULL));
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "fc%d", i);
        gg_layer_desc layer = named(GG_LAYER_LINEAR, name);
        layer.outputs = width;
        CHECK_OK(gg_graph_add(graph, &layer, NULL, 1, &at, &at));
    }
    CHECK_OK(gg_graph_finish(graph, 1, &(gg_head){.node = at}));
    return graph;
}

static gg_tuning tuned(const gg_strategy_options *options, int64_t width, double seconds, const gg_link *link) {
    gg_strategy_options own = *options;
    gg_graph *graph = chain(width);
    gg_tuning tuning = {0};
    double forward[LAYERS];
    for (int i = 0; i < LAYERS; i++) forward[i] = seconds / LAYERS;
    CHECK_OK(gg_strategy_tune(&own, gg_graph_layout(graph), 1, 8, forward, 1.0, link, &tuning));
    CHECK(own.bucket_bytes > 0 && own.chunk_bytes > 0);
    if (tuning.cuts) CHECK(own.bucket_bytes == tuning.bucket_bytes && own.chunk_bytes == tuning.chunk_bytes);
    gg_graph_destroy(graph);
    return tuning;
}

static const gg_strategy_options gossip = {.kind = GG_STRATEGY_GOSSIPGRAD, .wire = GG_FLOAT32};

static void test_the_usual(void) {
    const gg_link memory = {.latency = 1e-6, .message = 3e-7, .byte = 1e-14, .read = 5e-11};
    gg_tuning found = tuned(&gossip, 512, 20e-3, &memory);
    CHECK(found.cuts && found.measured && found.link.latency == memory.latency);
    CHECK_INT(found.bucket_bytes, GG_DEFAULT_BUCKET_BYTES);
    CHECK_INT(found.chunk_bytes, GG_DEFAULT_CHUNK_BYTES);
    found = tuned(&gossip, 512, 20e-3, NULL);
    CHECK(found.cuts && !found.measured);
    CHECK_INT(found.bucket_bytes, GG_DEFAULT_BUCKET_BYTES);
}

/* Layers of 64 KiB: what is waiting for others could be under way. */
static void test_slow_links_want_many_buckets(void) {
    const gg_link slow = {.latency = 1e-4, .message = 1e-6, .byte = 1e-8, .read = 1e-10};
    gg_tuning found = tuned(&gossip, 128, 10e-3, &slow);
    CHECK_INT(found.buckets, LAYERS);
    gg_strategy_options late = gossip;
    late.gossip.staleness = 1; /* nobody waits for them: messages are saved */
    CHECK(tuned(&late, 128, 10e-3, &slow).buckets < LAYERS);
}

/* Messages that cost a rank a millisecond each. */
static void test_dear_messages_want_few(void) {
    const gg_link dear = {.latency = 1e-3, .message = 1e-3, .byte = 1e-9, .read = 1e-10};
    CHECK(tuned(&gossip, 512, 10e-3, &dear).chunks <= 3);
    gg_strategy_options fixed = gossip;
    fixed.chunk_bytes = 100000;
    gg_tuning found = tuned(&fixed, 512, 10e-3, &dear);
    CHECK(found.measured);
    CHECK_INT(found.chunk_bytes, 100000);
    fixed.bucket_bytes = 1;
    found = tuned(&fixed, 512, 10e-3, &dear);
    CHECK(!found.measured);
    CHECK_INT(found.buckets, LAYERS);
}

/* 12 layers of 6.4 GB: the default chunks would be more than there are tags. */
static void test_tags_suffice(void) {
    const gg_link link = {.latency = 1e-5, .message = 1e-6, .byte = 1e-10, .read = 1e-10};
    gg_tuning found = tuned(&gossip, 40000, 100.0, &link);
    CHECK(found.chunks > 0 && 4 * found.chunks <= GG_TAG_LIMIT - GG_TAG_USER);
    CHECK(found.chunk_bytes > GG_DEFAULT_CHUNK_BYTES);
}

static void test_who_is_not_tuned(void) {
    const gg_link slow = {.latency = 1e-4, .message = 1e-6, .byte = 1e-8, .read = 1e-10};
    const gg_strategy_kind kinds[] = {GG_STRATEGY_PULL_GOSSIP, GG_STRATEGY_PUSH_GOSSIP, GG_STRATEGY_PARAMETER_SERVER,
                                      GG_STRATEGY_ELASTIC_AVERAGING, GG_STRATEGY_ALLREDUCE};
    CHECK(gg_strategy_tunes(&gossip, 2) && !gg_strategy_tunes(&gossip, 1));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        gg_strategy_options options = {.kind = kinds[i]};
        CHECK(!gg_strategy_tunes(&options, 8));
        CHECK(!tuned(&options, 128, 10e-3, &slow).cuts);
    }
    gg_strategy_options nodes = gossip;
    nodes.gossip.hierarchical = true;
    const gg_tuning usual = tuned(&nodes, 128, 10e-3, &slow);
    CHECK(!gg_strategy_tunes(&nodes, 8) && usual.cuts && !usual.measured);
    CHECK(usual.bucket_bytes == GG_DEFAULT_BUCKET_BYTES && usual.chunk_bytes == GG_DEFAULT_CHUNK_BYTES);
}

int main(void) {
    test_the_usual();
    test_slow_links_want_many_buckets();
    test_dear_messages_want_few();
    test_tags_suffice();
    test_who_is_not_tuned();
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
