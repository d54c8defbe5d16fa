/* A weight whose rows are made current where they are read: what is left is not delivered before, is delivered once,
 * and has the bits of an update at the end of the step. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "check.h"
#include "comm/team.h"
#include "cpu/cpu_backend.h"
#include "exchange/exchange.h"
#include "one_layer.h"

enum { RANKS = 3, WIDTH = 261, COUNT = WIDTH * WIDTH, STEPS = 5, FIRST_LEFT = 2, WARMUP = 1 };

/* How the weights of a step are asked for. */
typedef enum asking { AT_ONCE, BY_ROWS, ROWS_THEN_WHOLE, ROWS_THEN_SETTLED, ASKINGS } asking;

typedef struct setup {
    gg_team *team;
    gg_graph *graph;
    gg_strategy_kind kind;
    gg_optimizer optimizer;
    asking how;
    gg_exchange *exchange[RANKS];
    float weights[RANKS][COUNT];
    int left; /* of rank 0: steps that made rows */
} setup;

static gg_status create(void *context, int rank) {
    setup *s = context;
    gg_strategy_options options = {.kind = s->kind, .bucket_bytes = 1, .chunk_bytes = 1 << 20};
    options.compression = (gg_compression){.active = true, .mode = GG_COMPRESSION_STRICT, .warmup = WARMUP};
    for (int family = 0; family < GG_FAMILY_COUNT; ++family) options.compression.bin[family] = 50;
    for (int family = 0; family < GG_FAMILY_COUNT; ++family) options.compression.factor[family] = 2;
    return gg_exchange_create(&(gg_exchange_options){.layout = gg_graph_layout(s->graph),
                                                     .transport = gg_team_transport(s->team, rank),
                                                     .devices = {.device = {.threads = 1}, .backend = "native"},
                                                     .optimizer = s->optimizer,
                                                     .strategy = options},
                              &s->exchange[rank]);
}

/* Makes the rows one by one: each changes when its turn has come, and not before. */
static void make_each(const gg_weight_rows *rows, int used, const float *weights) {
    static float before[COUNT];
    bool changes = false;
    memcpy(before, weights, sizeof before);
    CHECK(rows->used == used && rows->used_next[0] == weights);
    for (int row = 0; row < WIDTH; ++row) {
        const size_t end = (size_t)(row + 1) * WIDTH, behind = (end + GG_LANES - 1) / GG_LANES * GG_LANES;
        rows->make(rows->context, end);
        changes |= memcmp(before + row * WIDTH, weights + row * WIDTH, WIDTH * sizeof(float)) != 0;
        if (behind < COUNT) CHECK(memcmp(before + behind, weights + behind, (COUNT - behind) * sizeof(float)) == 0);
    }
    CHECK(changes);
}

static gg_status need(setup *s, gg_exchange *x, int rank, int step) {
    gg_weight_rows rows = {.make = NULL};
    const char *names[GG_MAX_MOMENTS];
    const int moments = gg_optimizer_moments(&s->optimizer, names);
    const float *weights = gg_state_weights(gg_exchange_state(x));
    if (s->how == AT_ONCE || (s->how == ROWS_THEN_WHOLE && step % 2 == 1)) GG_TRY(gg_exchange_need(x, 0));
    else GG_TRY(gg_exchange_need_rows(x, 0, &rows));
    CHECK((rows.make != NULL) == (s->how == BY_ROWS && step >= FIRST_LEFT));
    if (rows.make != NULL && rank == 0) ++s->left;
    if (rows.make != NULL) make_each(&rows, 1 + moments, weights);
    return GG_OK;
}

/* From -1 to 1, and seldom as large: of a bin few elements are chosen. */
static float drawn(uint32_t i) {
    const float even = (float)((i * 2654435761u) >> 8) / (1 << 23) - 1;
    return even * even * even * even * even;
}

/* The rate changes from step to step, so that an update with another step's shows. */
static gg_status train(void *context, int rank) {
    setup *s = context;
    gg_exchange *x = s->exchange[rank];
    gg_state *state = gg_exchange_state(x);
    for (int i = 0; i < COUNT; ++i) gg_state_weights(state)[i] = (float)(i % 7 - 3);
    for (int step = 0; step < STEPS; ++step, ++state->step) {
        GG_TRY(gg_exchange_begin(x, NULL));
        GG_TRY(need(s, x, rank, step));
        for (int i = 0; i < COUNT; ++i)
            gg_state_gradients(state)[i] = drawn((uint32_t)(i + COUNT * (RANKS * step + rank)));
        GG_TRY(gg_exchange_ready(x, 0));
        GG_TRY(gg_exchange_end(x));
        if (s->how == ROWS_THEN_SETTLED) GG_TRY(gg_exchange_settle(x));
    }
    GG_TRY(gg_exchange_settle(x));
    memcpy(s->weights[rank], gg_state_weights(state), sizeof s->weights[rank]);
    return GG_OK;
}

static void run(setup *s) {
    s->graph = one_layer(WIDTH);
    CHECK_OK(gg_team_create_virtual(&(gg_virtual_options){.size = RANKS, .compute_rate = 1}, &s->team));
    CHECK_OK(gg_team_run(s->team, create, s));
    CHECK_OK(gg_team_run(s->team, train, s));
    for (int rank = 0; rank < RANKS; ++rank) {
        gg_exchange_destroy(s->exchange[rank]);
        CHECK(memcmp(s->weights[rank], s->weights[0], sizeof s->weights[0]) == 0);
    }
    gg_graph_destroy(s->graph);
    gg_team_release(s->team);
}

static void test_strategy(gg_strategy_kind kind, gg_optimizer optimizer) {
    static setup s[ASKINGS];
    for (int how = 0; how < ASKINGS; ++how) {
        s[how] = (setup){.kind = kind, .optimizer = optimizer, .how = (asking)how};
        run(&s[how]);
        CHECK(memcmp(s[how].weights, s[0].weights, sizeof s[0].weights) == 0);
        CHECK_INT(s[how].left, how == BY_ROWS ? STEPS - FIRST_LEFT : 0);
    }
}

int main(void) {
    gg_cpu_register();
    const int64_t before = gg_memory_live_bytes();
    const gg_rate rate = {.kind = GG_SCHEDULE_STEP, .lr = 0.5, .gamma = 0.5, .every = 1};
    const gg_optimizer momentum = {
        .type = &gg_optimizer_sgd, .rate = rate, .sgd = {.momentum = 0.9f}, .weight_decay = 0.01f};
    const gg_optimizer adam = {.type = &gg_optimizer_adam,
                               .rate = rate,
                               .adam = {.beta1 = 0.9, .beta2 = 0.99f, .eps = 1e-6f, .decoupled = true}};
    test_strategy(GG_STRATEGY_ALLREDUCE, (gg_optimizer){.type = &gg_optimizer_sgd, .rate = rate});
    test_strategy(GG_STRATEGY_ALLREDUCE, momentum);
    test_strategy(GG_STRATEGY_ALLREDUCE, adam);
    test_strategy(GG_STRATEGY_LAYERWISE_ALLREDUCE, momentum);
    CHECK_INT(gg_memory_live_bytes(), before);
    return check_report();
}
