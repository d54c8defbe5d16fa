/* A death breaks the step of an all-reduce, and the only rank that has made it dies while it lends its state: the
 * record of the epoch has each sample once. */
#include "base/memory.h"
#include "check.h"
#include "comm/team.h"
#include "comm/virtual/virtual_private.h"
#include "cpu/cpu_backend.h"
#include "exchange/exchange.h"
#include "one_layer.h"
#include "replica_case.h"
#include "train/trainer.h"

enum { COUNT = 61, BATCH = 3, WIDTH = 64, MOST = 5, TAG_BROADCAST = 2 /* comm/collective.c */ };

typedef struct view { /* begins as comm/subgroup.c's */
    gg_transport transport;
    gg_transport *whole;
} view;

static bool armed;
static int fired;

/* The donor of a mend is the first to broadcast. */
static gg_status send(gg_transport *t, const void *data, size_t bytes, int peer, int tag, gg_request *request) {
    if (armed && tag == TAG_BROADCAST) {
        armed = false;
        fired++;
        gg_rank_of(t)->dying = true;
    }
    return gg_virtual_table.send(t, data, bytes, peer, tag, request);
}

static gg_transport *whole_of(gg_team *team, int local) { return ((view *)gg_team_transport(team, local))->whole; }

/* True if one living rank has made a step that the others have not. */
static bool one_is_ahead(gg_team *team, const gg_trainer *t) {
    int64_t most = 0;
    int ahead = 0, living = 0;
    for (int i = 0; i < gg_team_local(team); ++i) {
        const int64_t step = gg_exchange_state(gg_replica_exchange(gg_trainer_replica(t, i)))->step;
        if (gg_rank_of(whole_of(team, i))->dead) continue;
        if (step > most) ahead = 0, most = step;
        ahead += step == most;
        ++living;
    }
    return ahead == 1 && living > 1;
}

static void make_set(gg_dataset *out) {
    *out = (gg_dataset){.count = COUNT, .inputs = 1, .targets = 1};
    out->field[0] = (gg_field){.dtype = GG_FLOAT32, .scale = 1, .shape = {.dims = 1, .size = {WIDTH}}};
    out->field[1] = (gg_field){.dtype = GG_INT32, .scale = 1};
    CHECK_OK(gg_storage_create(COUNT * WIDTH * sizeof(float), "samples", &out->memory[0]));
    CHECK_OK(gg_storage_create(COUNT * sizeof(int32_t), "targets", &out->memory[1]));
    for (int i = 0; i < COUNT * WIDTH; ++i) ((float *)gg_storage_data(out->memory[0]))[i] = (float)(i % 7);
    for (int i = 0; i < COUNT; ++i) ((int32_t *)gg_storage_data(out->memory[1]))[i] = i % WIDTH;
}

static void test_epoch(int size, int after, const gg_graph *graph, const gg_dataset *set) {
    static gg_transport_table dies;
    const gg_virtual_death death = {.rank = size - 1, .step = 1, .after_messages = after};
    const gg_optimizer sgd = {.type = &gg_optimizer_sgd, .rate = {.lr = 0.01}};
    const gg_exchange_options exchange = case_options(NULL, sgd, gg_strategy_options_of(GG_STRATEGY_ALLREDUCE));
    const gg_dataset *sets[MOST] = {set, set, set, set, set};
    gg_team *team = NULL;
    gg_peers *peers = NULL;
    gg_trainer *t = NULL;
    gg_view_change change;
    gg_epoch_summary all;
    const gg_virtual_options options = {.size = size,
                                        .network = {.latency = 1e-4},
                                        .compute_rate = 1,
                                        .deaths = &death,
                                        .death_count = 1,
                                        .detect = 1e-3};
    CHECK_OK(gg_team_create_virtual(&options, &team));
    dies = gg_virtual_table;
    dies.send = send;
    for (int i = 0; i < size; ++i) whole_of(team, i)->table = &dies;
    CHECK_OK(
        gg_trainer_create(&(gg_replica_options){.graph = graph, .head = {{.weight = 1}}}, &exchange, team, &peers, &t));
    CHECK_OK(gg_trainer_begin(t, sets, &(gg_data_options){.batch = BATCH}));
    CHECK_OK(gg_trainer_epoch(t, &(gg_position){.epoch = 0}));
    bool good = true;
    while (good && gg_replica_next(gg_trainer_replica(t, 0)) < gg_replica_epoch_steps(gg_trainer_replica(t, 0))) {
        good = CHECK_OK(gg_trainer_run(t, COUNT, NULL, NULL));
        armed = one_is_ahead(team, t);
        good = good && CHECK_OK(gg_trainer_change_view(t, &change));
        armed = false;
    }
    if (good && CHECK_OK(gg_trainer_end_epoch(t, &all)) && !CHECK_INT(all.sum.samples, COUNT))
        fprintf(stderr, "  %d ranks, after %d messages\n", size, after);
    gg_trainer_destroy(t);
    gg_peers_destroy(peers);
    gg_team_release(team);
}

int main(void) {
    gg_dataset set;
    gg_graph *graph = one_layer(WIDTH);
    gg_cpu_register();
    make_set(&set);
    for (int size = 3; size <= MOST; ++size)
        for (int after = 0; after <= 2 * size; ++after) test_epoch(size, after, graph, &set);
    CHECK(fired > 0);
    gg_dataset_release(&set);
    gg_graph_destroy(graph);
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
