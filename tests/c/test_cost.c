/* The cost model: predictions of every kind of CPU are finite, grow with the work, and order what is clear. */
#include <math.h>

#include "check.h"
#include "nn/cost.h"

static const char *const names[] = {"zen4", "avx512", "avx2", "scalar"};
enum { MODELS = sizeof names / sizeof *names };

static gg_op_desc convolution(int64_t batch, int64_t in, int64_t out, int64_t size, int64_t kernel) {
    const int64_t half = kernel / 2;
    return (gg_op_desc){.kind = GG_OP_CONV2D,
                        .batch = batch,
                        .inputs = 1,
                        .input = {{3, {in, size, size}}},
                        .output = {3, {out, size, size}},
                        .conv = {{{kernel, kernel}, {1, 1}, {half, half}, {1, 1}, false, false}, 1},
                        .training = true,
                        .input_grad = true};
}

static double seconds(const gg_cost_model *model, const gg_op_desc *desc, gg_layout layout, gg_algorithm algorithm,
                      gg_pass pass) {
    const gg_cost_query query = {.desc = desc,
                                 .native = gg_cost_is_native(algorithm, layout),
                                 .input = layout,
                                 .output = layout,
                                 .algorithm = algorithm,
                                 .pass = pass,
                                 .isa = GG_ISA_AVX512};
    return gg_cost_seconds(model, &query);
}

static void test_names(void) {
    for (int i = 0; i < MODELS; i++) {
        const gg_cost_model *model = gg_cost_model_named(names[i]);
        CHECK(model != NULL && strcmp(gg_cost_model_name(model), names[i]) == 0);
    }
    CHECK(gg_cost_model_named("zen") == NULL);
    for (int isa = 0; isa < GG_ISA_COUNT; isa++) CHECK(gg_cost_model_of((gg_isa)isa) != NULL);
    CHECK(strcmp(gg_cost_model_name(gg_cost_model_of(GG_ISA_AVX2)), "avx2") == 0);
    CHECK(strcmp(gg_cost_model_name(gg_cost_model_of(GG_ISA_AMX)), "avx512") == 0);
}

/* More samples, channels or pixels take no less time, in every pass and layout, by every algorithm. */
static void test_growth(const gg_cost_model *model) {
    static const gg_algorithm algorithms[] = {GG_ALGORITHM_DIRECT, GG_ALGORITHM_WINOGRAD2, GG_ALGORITHM_WINOGRAD4,
                                              GG_ALGORITHM_WINOGRAD6};
    static const gg_layout layouts[] = {GG_LAYOUT_BATCH_LAST, GG_LAYOUT_CHANNELS16};
    const gg_op_desc small = convolution(16, 32, 32, 14, 3),
                     more[] = {convolution(32, 32, 32, 14, 3), convolution(16, 64, 32, 14, 3),
                               convolution(16, 32, 64, 14, 3), convolution(16, 32, 32, 28, 3)};
    for (int layout = 0; layout < 2; layout++)
        for (int a = 0; a < 4; a++)
            for (int pass = 0; pass < GG_PASS_COUNT; pass++) {
                const double least = seconds(model, &small, layouts[layout], algorithms[a], (gg_pass)pass);
                CHECK(least > 0);
                for (int i = 0; i < 4; i++)
                    CHECK(seconds(model, &more[i], layouts[layout], algorithms[a], (gg_pass)pass) >= least);
            }
}

/* What was clear in all measurements. */
static void test_clear(const gg_cost_model *model) {
    const gg_op_desc large = convolution(32, 128, 128, 28, 3), pixel = convolution(32, 16, 16, 1, 3);
    const gg_op_desc one = convolution(1, 64, 64, 56, 1), many = convolution(64, 20, 50, 12, 1);
    for (int pass = 0; pass < GG_PASS_COUNT; pass++) {
        const gg_layout last = GG_LAYOUT_BATCH_LAST;
        CHECK(seconds(model, &large, last, GG_ALGORITHM_WINOGRAD4, (gg_pass)pass) <
              seconds(model, &large, last, GG_ALGORITHM_DIRECT, (gg_pass)pass));
        /* Of a tile of 16 or 36 one element is used. */
        CHECK(seconds(model, &pixel, last, GG_ALGORITHM_WINOGRAD6, (gg_pass)pass) >
              seconds(model, &pixel, last, GG_ALGORITHM_DIRECT, (gg_pass)pass));
        /* A sample that is padded to sixteen, and channels that are not whole blocks. */
        CHECK(seconds(model, &one, last, GG_ALGORITHM_DIRECT, (gg_pass)pass) >
              seconds(model, &one, GG_LAYOUT_CHANNELS16, GG_ALGORITHM_DIRECT, (gg_pass)pass));
        CHECK(seconds(model, &many, last, GG_ALGORITHM_DIRECT, (gg_pass)pass) <
              seconds(model, &many, GG_LAYOUT_CHANNELS16, GG_ALGORITHM_DIRECT, (gg_pass)pass));
    }
}

/* Every operation that a plan may have: an unknown algorithm of a convolution alone is never chosen. */
static void test_everything(const gg_cost_model *model) {
    const gg_op_desc conv = convolution(8, 16, 16, 8, 3);
    gg_op_desc desc = {.batch = 8, .inputs = 1, .input = {{2, {16, 64}}}, .output = {2, {16, 64}}};
    for (int kind = 0; kind < GG_OP_COUNT; kind++) {
        if (kind == GG_OP_CONV2D) continue;
        desc.kind = (gg_op_kind)kind;
        desc.lstm.layers = 1;
        for (int layout = 0; layout < GG_LAYOUT_COUNT; layout++)
            for (int pass = 0; pass < GG_PASS_COUNT; pass++) {
                const double found = seconds(model, &desc, (gg_layout)layout, GG_ALGORITHM_DIRECT, (gg_pass)pass);
                CHECK(found >= 0 && found < 1);
            }
    }
    CHECK(seconds(model, &conv, GG_LAYOUT_CHANNELS16, GG_ALGORITHM_CUDNN0, GG_PASS_FORWARD) == INFINITY);
}

int main(void) {
    test_names();
    for (int i = 0; i < MODELS; i++) {
        const gg_cost_model *model = gg_cost_model_named(names[i]);
        test_growth(model);
        if (strcmp(names[i], "scalar") != 0) test_clear(model);
        test_everything(model);
    }
    return CHECK_RESULT;
}
