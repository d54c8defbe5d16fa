/* Learning rates, options of optimisers, and updates by groups of parameters. */
#include <stdlib.h>

#include "base/memory.h"
#include "check.h"
#include "cpu/cpu_backend.h"
#include "exchange/optim/updater.h"
#include "nn/graph.h"

static void test_rate(void) {
    gg_rate rate = {.lr = 0.1};
    CHECK_OK(gg_rate_check(&rate));
    CHECK_NEAR(gg_rate_at(&rate, 0), 0.1, 0);
    CHECK_NEAR(gg_rate_at(&rate, 1000000), 0.1, 0);

    rate.warmup = 4;
    rate.warmup_start = 0.2;
    CHECK_NEAR(gg_rate_at(&rate, 0), 0.02, 1e-17);
    CHECK_NEAR(gg_rate_at(&rate, 1), 0.04, 1e-17);
    CHECK_NEAR(gg_rate_at(&rate, 3), 0.08, 1e-16);
    CHECK_NEAR(gg_rate_at(&rate, 4), 0.1, 0);

    rate.kind = GG_SCHEDULE_STEP;
    rate.gamma = 0.5;
    rate.every = 3;
    CHECK_OK(gg_rate_check(&rate));
    const double steps[] = {0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025};
    for (int t = 0; t < 7; ++t) CHECK_NEAR(gg_rate_at(&rate, 4 + t), steps[t], 1e-17);
    CHECK_NEAR(gg_rate_at(&rate, 1), 0.04, 1e-17);

    rate.kind = GG_SCHEDULE_COSINE;
    rate.total = 6;
    rate.final = 0.01;
    CHECK_OK(gg_rate_check(&rate));
    CHECK_NEAR(gg_rate_at(&rate, 4), 0.1, 0);
    CHECK_NEAR(gg_rate_at(&rate, 4 + 2), 0.01 + 0.09 * 0.75, 1e-16);
    CHECK_NEAR(gg_rate_at(&rate, 4 + 3), 0.055, 1e-16);
    CHECK_NEAR(gg_rate_at(&rate, 4 + 6), 0.01, 0);
    CHECK_NEAR(gg_rate_at(&rate, 4 + 600), 0.01, 0);

    rate.kind = GG_SCHEDULE_POLYNOMIAL;
    rate.power = 2;
    CHECK_OK(gg_rate_check(&rate));
    CHECK_NEAR(gg_rate_at(&rate, 4), 0.1, 0);
    CHECK_NEAR(gg_rate_at(&rate, 4 + 3), 0.01 + 0.09 * 0.25, 1e-16);
    CHECK_NEAR(gg_rate_at(&rate, 4 + 6), 0.01, 0);
    CHECK_NEAR(gg_rate_at(&rate, 4 + 7), 0.01, 0);

#define BREAK(schedule, change, text)                                                                                  \
    do {                                                                                                               \
        gg_rate bad = rate;                                                                                            \
        bad.kind = schedule;                                                                                           \
        change;                                                                                                        \
        CHECK_FAILS(gg_rate_check(&bad), GG_ERROR_ARGUMENT, text);                                                     \
    } while (0)
    BREAK(GG_SCHEDULE_COUNT, (void)bad, "schedule=");
    BREAK(GG_SCHEDULE_CONSTANT, bad.lr = -0.5, "lr=-0.5: must be finite and at least 0");
    BREAK(GG_SCHEDULE_CONSTANT, bad.lr = NAN, "lr=nan");
    BREAK(GG_SCHEDULE_CONSTANT, bad.lr = INFINITY, "lr=inf");
    BREAK(GG_SCHEDULE_CONSTANT, bad.lr = 1e300, "lr=1e+300");
    BREAK(GG_SCHEDULE_CONSTANT, bad.warmup = -1, "warmup=-1");
    BREAK(GG_SCHEDULE_CONSTANT, bad.warmup_start = 1.5, "warmup_start=1.5");
    BREAK(GG_SCHEDULE_CONSTANT, bad.warmup_start = NAN, "warmup_start=nan");
    BREAK(GG_SCHEDULE_STEP, bad.gamma = 0, "gamma=0");
    BREAK(GG_SCHEDULE_STEP, bad.gamma = 1.01, "gamma=1.01");
    BREAK(GG_SCHEDULE_STEP, bad.every = 0, "every=0");
    BREAK(GG_SCHEDULE_COSINE, bad.total = 0, "total=0");
    BREAK(GG_SCHEDULE_COSINE, bad.final = -1, "final=-1");
    BREAK(GG_SCHEDULE_POLYNOMIAL, bad.total = 0, "total=0");
    BREAK(GG_SCHEDULE_POLYNOMIAL, bad.power = 0, "power=0");
    BREAK(GG_SCHEDULE_POLYNOMIAL, bad.power = INFINITY, "power=inf");
#undef BREAK
    /* What a schedule does not use is not looked at. */
    rate = (gg_rate){.lr = 0.1, .gamma = -1, .power = NAN, .final = NAN, .every = -1, .total = -1};
    CHECK_OK(gg_rate_check(&rate));
}

/* Of gradients of variance 1 around 0 the wanted second moment has the mean 1/ranks. */
static void test_mean_of_ranks(const gg_optimizer *adam, gg_group group) {
    const double beta = adam->adam.beta1;
    const gg_mixing mixings[] = {{2, 1}, {3, 1}, {8, 1}, {8, 3}, {4, 0}, {18, 0}};
    gg_update_args args;
    for (size_t i = 0; i < sizeof mixings / sizeof *mixings; ++i) {
        group.mixing = mixings[i];
        gg_optimizer_rule(adam, &group, 19, &args);
        CHECK(args.rule == GG_UPDATE_ADAM_MEAN && args.mean_share == 0);
        CHECK_NEAR(args.square_share / 0.001, 1.0, 1e-7);
        for (int64_t step = 60; step < 1000; step += 300) {
            double noise = 0; /* of the momentum, which is not corrected for its start */
            for (int j = 0; j <= step; ++j) {
                const double left = group.mixing.period > 0 ? exp2(-(double)j / group.mixing.period) : 1;
                noise += pow((1 - beta) * pow(beta, j), 2) * fmax(left, 1.0 / group.mixing.ranks);
            }
            gg_optimizer_rule(adam, &group, step, &args);
            CHECK_NEAR((args.square_share + args.mean_share * noise) / 0.001, 1.0 / group.mixing.ranks, 1e-5);
        }
    }
    group.mixing = (gg_mixing){.ranks = 64}; /* the momentum itself has more noise than their mean */
    gg_optimizer_rule(adam, &group, 1000, &args);
    CHECK(args.square_share == 0);
    CHECK_NEAR(args.mean_share / 0.001, 1.0, 1e-6);
    group.mixing = (gg_mixing){.ranks = 1};
    gg_optimizer_rule(adam, &group, 1000, &args);
    CHECK_INT(args.rule, GG_UPDATE_ADAM);
}

static void test_optimizer(void) {
    gg_optimizer optimizer = {.type = &gg_optimizer_sgd,
                              .rate = {.lr = 0.5, .kind = GG_SCHEDULE_STEP, .gamma = 0.5, .every = 2},
                              .weight_decay = 1e-4f,
                              .sgd = {.momentum = 0.9f, .nesterov = true}};
    CHECK_OK(gg_optimizer_check(&optimizer));
    const gg_group plain = {.lr_factor = 1, .decay_factor = 1, .momentum_factor = 1, .clip = 1, .ratio = 1},
                   caffe = {.lr_factor = 2, .decay_factor = 0.5f, .momentum_factor = 1, .clip = 1, .ratio = 1};
    const gg_group statistic = {.statistic = true};
    gg_update_args args = {.lr = -1, .weight_decay = -1};
    gg_optimizer_rule(&optimizer, &plain, 2, &args);
    CHECK_NEAR(args.lr, 0.25, 0);
    CHECK_NEAR(args.mu, 0.9f, 0);
    CHECK_NEAR(args.weight_decay, 1e-4f, 0);
    CHECK_NEAR(args.grad_scale, 1, 0);
    CHECK_INT(args.rule, GG_UPDATE_NESTEROV);
    gg_optimizer_rule(&optimizer, &caffe, 2, &args);
    CHECK(args.lr == 0.5f && args.weight_decay == 0.5e-4f);
    gg_optimizer_rule(&optimizer, &statistic, 2, &args);
    CHECK(args.lr == 1 && args.weight_decay == 0 && args.rule == GG_UPDATE_PLAIN);
    const char *names[GG_MAX_MOMENTS];
    CHECK_INT(gg_optimizer_moments(&optimizer, names), 1);

    gg_optimizer adam = gg_optimizer_of(&gg_optimizer_adam);
    adam.rate.lr = 0.5;
    adam.weight_decay = 0.1f;
    CHECK_OK(gg_optimizer_check(&adam));
    CHECK_INT(gg_optimizer_moments(&adam, names), 2);
    gg_optimizer_rule(&adam, &plain, 0, &args);
    CHECK_INT(args.rule, GG_UPDATE_ADAM);
    CHECK_NEAR(args.lr, 5.0, 1e-6);                   /* 0.5 / (1 - 0.9) */
    CHECK_NEAR(args.root_scale, 31.6227766, 1e-5);    /* 1 / sqrt(1 - 0.999) */
    CHECK_NEAR(args.square_share / 0.001, 1.0, 1e-7); /* not 1 - 0.999f */
    CHECK(args.weight_decay == 0.1f && args.weight_factor == 1.0f);
    test_mean_of_ranks(&adam, plain);
    adam.adam.decoupled = true;
    gg_optimizer_rule(&adam, &plain, 0, &args);
    CHECK(args.weight_decay == 0.0f && args.weight_factor == 0.95f);
    gg_optimizer_rule(&adam, &caffe, 0, &args);
    CHECK_NEAR(args.lr, 10.0, 1e-5);
    CHECK(args.weight_decay == 0.0f && args.weight_factor == 0.95f); /* twice the rate, half the decay */

#define BREAK(change, text)                                                                                            \
    do {                                                                                                               \
        gg_optimizer bad = optimizer;                                                                                  \
        change;                                                                                                        \
        CHECK_FAILS(gg_optimizer_check(&bad), GG_ERROR_ARGUMENT, text);                                                \
    } while (0)
    BREAK(bad.rate.lr = -1, "lr=-1");
    BREAK(bad.sgd.momentum = 1, "momentum=1: must be at least 0 and below 1");
    BREAK(bad.sgd.momentum = -0.5f, "momentum=-0.5");
    BREAK(bad.sgd.momentum = NAN, "momentum=nan");
    BREAK(bad.weight_decay = -1, "weight_decay=-1");
    BREAK(bad.weight_decay = INFINITY, "weight_decay=inf");
    BREAK(bad.sgd.momentum = 0, "nesterov=True with momentum=0");
    optimizer = adam;
    BREAK(bad.adam.beta1 = 1, "beta1=1: must be at least 0 and below 1");
    BREAK(bad.adam.beta2 = -0.5, "beta2=-0.5");
    BREAK(bad.adam.beta2 = NAN, "beta2=nan");
    BREAK(bad.adam.beta2 = 1 - 1e-12, "beta2=1"); /* 1 in float32 */
    BREAK(bad.adam.eps = 0, "eps=0: must be finite and at least");
#undef BREAK
}

/* Two linear layers: weight 3x20 and bias 3 in 64 + 16 elements, then weight 2x3 and bias 2 in 16 + 16. */
static gg_graph *two_layers(gg_factors lr, gg_factors decay) {
    gg_graph *graph = NULL;
    int node = 0;
    const gg_shape input = {1, {20}};
    CHECK_OK(gg_graph_create(&graph));
    CHECK_OK(gg_graph_add(graph, &(gg_layer_desc){.kind = GG_LAYER_INPUT, .name = "x"}, &input, 0, NULL, &node));
    for (int i = 0; i < 2; ++i) {
        gg_layer_desc desc = {.kind = GG_LAYER_LINEAR, .outputs = 3 - i, .bias = true};
        desc.name[0] = (char)('a' + i);
        CHECK_OK(gg_graph_add(graph, &desc, NULL, 1, (int[]){i}, &node));
        CHECK_OK(gg_graph_set_factors(graph, node, lr, decay));
    }
    CHECK_OK(gg_graph_finish(graph, 1, &(gg_head){.node = node}));
    CHECK_FAILS(gg_graph_set_factors(graph, node, lr, decay), GG_ERROR_STATE, "finished");
    return graph;
}

static void test_updater(void) {
    enum { COUNT = 112, AT = 16, END = 96 };
    const gg_optimizer plain = {
        .type = &gg_optimizer_sgd, .rate = {.lr = 0.5}, .weight_decay = 0.25f, .sgd = {.momentum = 0.5f}};
    gg_graph *graph = two_layers((gg_factors){1, 2}, (gg_factors){1, 0}),
             *alike = two_layers((gg_factors){1, 1}, (gg_factors){1, 1});
    gg_updater updater = {0}, one = {0};
    gg_device *native = NULL;
    static _Alignas(64) float weight[COUNT], momentum[COUNT], gradient[COUNT], owned[COUNT];
    static _Alignas(64) uint16_t received[COUNT], copy[COUNT];
    const gg_state state = {.count = COUNT, .arenas = 3, .arena = {{.data = weight}, {0}, {.data = momentum}}};
    CHECK_OK(gg_backend_native.open(&(gg_device_options){.threads = 1, .isa = GG_ISA_SCALAR}, &native));
    CHECK_INT(gg_graph_arena_count(graph), COUNT);
    CHECK_OK(gg_updater_create(gg_graph_layout(graph), &plain, &updater));
    CHECK_INT(updater.groups, 4);
    CHECK(updater.group[3].begin == 96 && updater.group[3].end == COUNT && updater.group[1].begin == 64);
    CHECK(gg_updater_group(&updater, 63) == &updater.group[0] && gg_updater_group(&updater, 64) == &updater.group[1]);
    CHECK_OK(gg_updater_create(gg_graph_layout(alike), &plain, &one));
    CHECK_INT(one.groups, 1);
    gg_updater_destroy(&one);
    gg_optimizer excluded = plain;
    excluded.no_decay = 1u << GG_ROLE_BIAS;
    CHECK_OK(gg_updater_create(gg_graph_layout(alike), &excluded, &one));
    CHECK(one.groups == 4 && one.group[1].decay_factor == 0 && one.group[2].decay_factor == 1);
    gg_updater_destroy(&one);

    /* A run that begins and ends within parameters, with received and copied values of two bytes: received is 3 where
     * the weight is 1. Every value is exact in bfloat16. */
    for (int i = 0; i < COUNT; ++i) weight[i] = 1, gradient[i] = 2, momentum[i] = 0, received[i] = 0x4040, copy[i] = 0;
    gg_updater_apply(&updater, native, &state,
                     &(gg_update){.offset = AT,
                                  .count = END - AT,
                                  .owned_offset = AT,
                                  .gradient = gradient + AT,
                                  .wire = GG_BFLOAT16,
                                  .received = {received + AT},
                                  .copy = {copy + AT}});
    for (int i = 0; i < COUNT; ++i) {
        const bool inside = i >= AT && i < END, bias = i >= 64 && i < 80;
        const float velocity = bias ? 2 : 2.25f, want = inside ? 1 - (bias ? 1.0f : 0.5f) * velocity + 1 : 1;
        uint32_t copied = (uint32_t)copy[i] << 16;
        float value;
        memcpy(&value, &copied, sizeof value);
        CHECK_NEAR(weight[i], want, 0);
        CHECK_NEAR(momentum[i], inside ? velocity : 0, 0);
        CHECK_NEAR(value, inside ? want : 0, 0);
    }
    /* Moments of own slices only. */
    const gg_state slices = {.count = COUNT, .arenas = 3, .arena = {{.data = weight}, {0}, {.data = owned}}};
    gg_updater_apply(&updater, native, &slices,
                     &(gg_update){.offset = 64, .count = 32, .owned_offset = 16, .gradient = gradient});
    CHECK(owned[15] == 0 && owned[16] == 2 && owned[31] == 2 && owned[32] > 2 && owned[48] == 0);
    gg_updater_destroy(&updater);
    native->table->close(native);
    gg_graph_destroy(graph);
    gg_graph_destroy(alike);
}

int main(void) {
    test_rate();
    test_optimizer();
    test_updater();
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
