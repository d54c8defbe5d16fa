/* Packed messages that arrive wrong give an error that names rank and layers, or other numbers; nothing else, whatever
 * the bytes. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "check.h"
#include "comm/team.h"
#include "corrupting.h"
#include "cpu/cpu_backend.h"
#include "replica_case.h"

enum { RANKS = 3, INPUTS = 5, OUTPUTS = 4, CLASSES = 3, STEPS = 3, BAD = 0, SENDER = 1 };

typedef struct setup {
    gg_team *team;
    gg_graph *graph;
    gg_strategy_options strategy;
    corruption corruption;
    gg_transport *corrupting;
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
    add_linear(graph, "first", OUTPUTS, node, &node);
    add_linear(graph, "second", CLASSES, node, &node);
    CHECK_OK(gg_graph_finish(graph, 1, &(gg_head){.node = node}));
    return graph;
}

static gg_status create(void *context, int rank) {
    setup *s = context;
    gg_transport *transport = gg_team_transport(s->team, rank);
    if (rank == BAD) {
        GG_TRY(corrupting_create(transport, &s->corruption, &s->corrupting));
        transport = s->corrupting;
    }
    const gg_optimizer sgd = {.type = &gg_optimizer_sgd, .rate = {.lr = 0.01}, .sgd = {.momentum = 0.9f}};
    const gg_exchange_options options = case_options(transport, sgd, s->strategy);
    return open_replica(s->graph, &options, &s->replica[rank]);
}

static gg_status train(void *context, int rank) {
    gg_replica *replica = ((setup *)context)->replica[rank];
    float samples[2 * INPUTS];
    int32_t targets[2] = {0, rank % CLASSES};
    const gg_given given = {.n = 2, .input = {samples}, .target = {targets}};
    double loss = 0;
    for (int step = 0; step < STEPS; ++step) {
        for (int i = 0; i < 2 * INPUTS; ++i) samples[i] = (float)((i * 7 + step * 3 + rank) % 11 - 5);
        GG_TRY(gg_replica_step(replica, &given, NULL, &loss));
    }
    return gg_replica_settle(replica);
}

/* Of one training: *text is what was said, NULL: it came to its end. Returns how many messages were changed. */
static int run(gg_strategy_options strategy, corruption c, char text[static 512]) {
    setup s = {.strategy = strategy, .corruption = c, .graph = two_layers()};
    CHECK_OK(gg_team_create_virtual(&(gg_virtual_options){.size = RANKS, .compute_rate = 1}, &s.team));
    CHECK_OK(gg_team_run(s.team, create, &s));
    const gg_status status = gg_team_run(s.team, train, &s);
    CHECK(status == GG_OK || status == GG_ERROR_COMM);
    text[0] = '\0';
    if (status != GG_OK) snprintf(text, 512, "%s", gg_error_message());
    for (int rank = 0; rank < RANKS; ++rank) close_replica(s.replica[rank]);
    corrupting_destroy(s.corrupting);
    gg_graph_destroy(s.graph);
    gg_team_release(s.team);
    return s.corruption.corrupted;
}

static gg_strategy_options compressed(gg_strategy_kind kind, gg_compression_selection selection,
                                      gg_compression_mode mode) {
    gg_strategy_options options = {.kind = kind, .bucket_bytes = 1, .chunk_bytes = 1 << 20};
    if (kind == GG_STRATEGY_PERIODIC_ALLREDUCE) options.periodic.period = 1;
    options.compression = (gg_compression){
        .active = true, .mode = mode, .values = GG_FLOAT32, .dense_roles = 1u << GG_ROLE_BIAS, .selection = selection};
    for (int family = 0; family < GG_FAMILY_COUNT; ++family) options.compression.bin[family] = 5;
    for (int family = 0; family < GG_FAMILY_COUNT; ++family) options.compression.factor[family] = 2;
    return options;
}

/* Around a centre on `servers` servers, the last ranks, or without any. */
static gg_strategy_options centred(gg_strategy_kind kind, int servers, gg_compression_mode mode) {
    gg_strategy_options options = compressed(kind, GG_SELECTION_LOCAL, mode);
    options.centre.period = 1;
    options.centre.synchronous = servers == 0;
    options.centre.servers = servers > 0 ? servers : 1;
    return options;
}

static bool names_sender_and_layers(const char *text, const char *layers) {
    const bool good = strstr(text, "rank 1: ") != NULL && strstr(text, layers) != NULL && strstr(text, "step ") != NULL;
    if (!good) fprintf(stderr, "%s\n", text);
    return good;
}

/* which: of the messages that the sender sends with this tag, one that is packed. word: what it is. */
static void test_strategy(gg_strategy_options options, int tag, int which, const char *word, const char *layers) {
    char text[512];
    const corruption from = {.peer = SENDER, .tag = tag, .which = which, .least = 16};
    corruption c = from;
    int wrong = 0, cases = 0;
    CHECK_INT(run(options, c, text), 0);
    CHECK_TEXT(text, "");
    /* Fewer bytes come; more come; any byte is another. */
    for (size_t keep = 1; keep < 24; ++keep) {
        c = from, c.kind = CORRUPT_TRUNCATE, c.keep = keep;
        CHECK_INT(run(options, c, text), 1);
        CHECK(names_sender_and_layers(text, layers));
        CHECK(strstr(text, word) != NULL);
    }
    c = from, c.kind = CORRUPT_GROW, c.keep = 3;
    if (run(options, c, text) > 0 && text[0] != '\0') CHECK(names_sender_and_layers(text, layers));
    for (ptrdiff_t at = -20; at < 40; ++at)
        for (int mask = 1; mask < 256; mask = mask * 3 + 1, ++cases) {
            c = from, c.kind = CORRUPT_FLIP, c.at = at, c.mask = (unsigned char)mask;
            CHECK(run(options, c, text) > 0);
            if (text[0] == '\0') continue; /* another element, or another value */
            ++wrong;
            CHECK(names_sender_and_layers(text, layers));
        }
    CHECK(wrong > cases / 4);
}

int main(void) {
    gg_cpu_register();
    const gg_compression_selection local = GG_SELECTION_LOCAL, cyclic = GG_SELECTION_CYCLIC;
    const gg_strategy_kind each = GG_STRATEGY_LAYERWISE_ALLREDUCE;
    const int first = GG_TAG_USER, sum = GG_TAG_ALLREDUCE;
    const char *message = "message of rank 1: ", *one = "layers 'first' to 'first': ",
               *all = "layers 'first' to 'second': ";
    test_strategy(compressed(GG_STRATEGY_ALLREDUCE, local, GG_COMPRESSION_STRICT), first, 1, message, all);
    test_strategy(compressed(each, local, GG_COMPRESSION_EXACT), first, 1, message, one);
    test_strategy(compressed(GG_STRATEGY_PERIODIC_ALLREDUCE, local, GG_COMPRESSION_SAFE), sum, 1, message, all);
    /* The biases and the values of step 0 come first, and the biases of step 1, in which the sender chooses. */
    test_strategy(compressed(each, cyclic, GG_COMPRESSION_EXACT), first, 3, "choice of rank 1: ", one);
    /* Of all ranks' servers the first layer lies on rank 0; of two, on rank 1. */
    const char *answer = "answer of rank 1: ";
    test_strategy(centred(GG_STRATEGY_PARAMETER_SERVER, 3, GG_COMPRESSION_STRICT), first, 1, message, one);
    test_strategy(centred(GG_STRATEGY_PARAMETER_SERVER, 2, GG_COMPRESSION_EXACT), first, 1, answer, one);
    test_strategy(centred(GG_STRATEGY_ELASTIC_AVERAGING, 3, GG_COMPRESSION_EXACT), first, 1, message, one);
    test_strategy(centred(GG_STRATEGY_ELASTIC_AVERAGING, 2, GG_COMPRESSION_SAFE), first, 1, answer, one);
    test_strategy(centred(GG_STRATEGY_ELASTIC_AVERAGING, 0, GG_COMPRESSION_STRICT), sum, 1, message, all);
    gg_strategy_options gossip = compressed(GG_STRATEGY_GOSSIPGRAD, local, GG_COMPRESSION_EXACT);
    gossip.gossip.exchange = GG_EXCHANGE_WEIGHTS;
    test_strategy(gossip, first, 0, message, one); /* all weights */
    test_strategy(gossip, first, 1, message, one);
    CHECK(gg_memory_live_bytes() == 0);
    return CHECK_RESULT;
}
