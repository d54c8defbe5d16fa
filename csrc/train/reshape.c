/* A replica that goes on, in the middle of an epoch, with another strategy or a network whose units have changed. */
#include <string.h>

#include "base/memory.h"
#include "comm/collective.h"
#include "train/replica_private.h"

/* What a rank trains with, whole arenas in memory of their own. */
typedef struct whole_state {
    int64_t step, push_sum_since;
    int trained; /* the first ranks, which have trained it */
    int arenas;
    gg_arena arena[GG_MOST_ARENAS]; /* `data` is this struct's, NULL for gradients */
    float *consensus;               /* NULL: it is the weights */
} whole_state;

static void whole_free(whole_state *whole) {
    for (int i = 0; i < whole->arenas; ++i) gg_free(whole->arena[i].data);
    gg_free(whole->consensus);
}

/* The elements of the old network become those of the new one; `data` is overwritten. */
static gg_status map_to(const gg_reshape *how, gg_arena_kind kind, float *data, float **out) {
    const size_t count = gg_graph_arena_count(how->graph);
    GG_TRY(gg_calloc(count, sizeof **out, "an arena of the new network", out));
    return how->map(how->context, kind, data, *out);
}

/* A copy of `data`, an arena, or host memory that the device shares, as the new network has it. */
static gg_status read_copy(const gg_replica *r, const gg_reshape *how, gg_arena_kind kind, const float *data,
                           float **out) {
    gg_status status = GG_OK;
    const size_t bytes = gg_graph_arena_count(r->options.graph) * sizeof *data;
    float *copy = NULL;
    GG_TRY_CLEANUP(gg_alloc(bytes, "an arena", &copy));
    GG_TRY_CLEANUP(gg_device_read(r->device, copy, data, bytes));
    if (how->graph != NULL) GG_TRY_CLEANUP(map_to(how, kind, copy, out));
    if (how->graph != NULL) goto cleanup;
    *out = copy;
    copy = NULL;
cleanup:
    gg_free(copy);
    return status;
}

/* What is partitioned is gathered: every rank then has all of it. Another network's is made of the old arenas where
 * they lie: they are not needed any more. Collective. */
static gg_status read_arena(gg_replica *r, const gg_reshape *how, int arena, float **out) {
    gg_status status = GG_OK;
    const gg_arena *from = &gg_replica_state(r)->arena[arena];
    float *whole = NULL;
    const bool partitioned = gg_exchange_is_partitioned(r->exchange, arena);
    const bool in_place = how->graph != NULL && !gg_device_is_separate(r->device);
    if (!partitioned && in_place) GG_TRY_CLEANUP(map_to(how, from->kind, from->data, out));
    if (!partitioned && !in_place) GG_TRY_CLEANUP(read_copy(r, how, from->kind, from->data, out));
    if (!partitioned) goto cleanup;
    GG_TRY_CLEANUP(gg_alloc(gg_replica_state(r)->count * sizeof *whole, from->name, &whole));
    GG_TRY_CLEANUP(gg_exchange_gather(r->exchange, arena, whole));
    if (how->graph != NULL) GG_TRY_CLEANUP(map_to(how, from->kind, whole, out));
    if (how->graph != NULL) goto cleanup;
    *out = whole;
    whole = NULL;
cleanup:
    gg_free(whole);
    return status;
}

static bool same_partners(const gg_schedule_options *a, const gg_schedule_options *b) {
    if (a->topology != b->topology || a->rotate != b->rotate || a->permutations != b->permutations) return false;
    if (a->topology != GG_TOPOLOGY_TABLE) return true;
    return a->rows == b->rows && a->columns == b->columns &&
           memcmp(a->table, b->table, (size_t)(a->rows * a->columns) * sizeof *a->table) == 0;
}

/* Whether push-sum's scalars of the one are those of the other. */
static bool mixes_alike(const gg_replica *r, const gg_strategy_options *b) {
    const gg_strategy_options *a = &r->options.strategy;
    return a->kind == b->kind && a->push_sum == b->push_sum && a->slices == b->slices &&
           a->hierarchical == b->hierarchical && a->ranks_per_node == b->ranks_per_node &&
           same_partners(&a->schedule, &b->schedule);
}

/* All that the rank goes on with, as the new network has it. Settled. Collective. */
static gg_status whole_read(gg_replica *r, const gg_reshape *how, whole_state *out) {
    const gg_state *state = gg_replica_state(r);
    const float *consensus = NULL;
    out->step = state->step;
    out->push_sum_since = how->strategy == NULL || mixes_alike(r, how->strategy) ? state->push_sum_since : state->step;
    out->trained = gg_exchange_workers(r->exchange);
    GG_TRY(gg_replica_consensus(r, &consensus));
    if (consensus != gg_state_weights(state)) GG_TRY(read_copy(r, how, GG_ARENA_WEIGHT, consensus, &out->consensus));
    for (int i = 0; i < state->arenas; ++i) {
        gg_arena *arena = &out->arena[out->arenas++];
        *arena = state->arena[i];
        arena->data = NULL;
        if (arena->kind != GG_ARENA_GRADIENT) GG_TRY(read_arena(r, how, i, &arena->data));
    }
    return GG_OK;
}

/* An arena that there was not before begins at zero, outer weights as the consensus. Collective. */
static gg_status whole_load(gg_replica *r, const whole_state *whole) {
    gg_status status = GG_OK;
    float *zeros = NULL;
    GG_TRY_CLEANUP(gg_calloc(gg_replica_state(r)->count, sizeof *zeros, "an arena of zeros", &zeros));
    const float *model = whole->consensus != NULL ? whole->consensus : whole->arena[GG_WEIGHTS].data;
    gg_replica_set_consensus(r, model);
    for (int i = 0; i < gg_replica_state(r)->arenas; ++i) {
        const gg_arena *arena = &gg_replica_state(r)->arena[i];
        const float *data = arena->kind == GG_ARENA_OUTER ? model : zeros;
        if (arena->kind == GG_ARENA_GRADIENT) continue;
        for (int old = 0; old < whole->arenas; ++old)
            if (strcmp(whole->arena[old].name, arena->name) == 0) data = whole->arena[old].data;
        const float *consensus = arena->kind == GG_ARENA_WEIGHT ? model : NULL;
        GG_TRY_CLEANUP(gg_replica_resume(r, i, data, consensus, whole->trained));
    }
    gg_replica_state(r)->step = whole->step;
    gg_replica_state(r)->push_sum_since = whole->push_sum_since;
cleanup:
    gg_free(zeros);
    return status;
}

/* ---- state that layers carry ---- */

/* The rows of every node, as the new network has them, as many as before. `from` is the state of the old one, in which
 * the old replica's nodes lie behind one another. */
static gg_status map_carried(gg_replica *r, const gg_reshape *how, const gg_graph *former, const float *from,
                             int64_t rows) {
    gg_status status = GG_OK;
    float *mapped = NULL;
    if (rows == 0) goto cleanup;
    GG_TRY_CLEANUP(gg_replica_reserve_carried(r, rows));
    GG_TRY_CLEANUP(gg_alloc((size_t)(rows * r->carried_numbers) * sizeof *mapped, "carried state", &mapped));
    for (int node = 0; node < gg_graph_nodes(former) && how->carried != NULL; ++node) {
        const int64_t before = gg_graph_node_carried(former, node), after = gg_graph_node_carried(how->graph, node);
        for (int64_t row = 0; row < rows && after > 0; ++row)
            how->carried(how->context, node, from + row * before, mapped + row * after);
        if (after > 0) GG_TRY_CLEANUP(gg_replica_write_carried(r, node, rows, mapped));
        from += rows * before;
    }
cleanup:
    gg_free(mapped);
    return status;
}

/* ---- the data ---- */

/* Whether the samples are divided among the ranks, or move, in another way. */
static bool divides_otherwise(const gg_replica *r, const gg_strategy_options *strategy) {
    return strategy->shuffle_samples != r->data.shuffle_samples ||
           gg_strategy_workers(strategy, r->options.transport->size) != r->data.workers;
}

/* The same set, divided as the strategy wants it; the epoch before has ended, or this one has not begun. batch 0: as
 * before. */
static gg_status divide_samples(gg_replica *r, int64_t batch) {
    gg_status status = GG_OK;
    const bool there = r->data.loader != NULL, begins = r->data.next == 0;
    const int64_t epoch = r->data.epoch;
    gg_data_options options = r->data.options;
    gg_dataset set = r->data.set;
    if (there) gg_dataset_retain(&set);
    gg_batches_clear(&r->data);
    r->data.workers = gg_exchange_workers(r->exchange);
    r->data.shuffle_samples = r->options.strategy.shuffle_samples;
    if (!there) goto cleanup;
    if (batch != 0) options.batch = batch;
    GG_TRY_CLEANUP(gg_batches_begin(&r->data, &set, &options));
    GG_TRY_CLEANUP(gg_batches_seek(&r->data, epoch, begins ? 0 : gg_loader_steps(r->data.loader)));
    GG_TRY_CLEANUP(gg_replica_plan_epoch(r));
cleanup:
    if (there) gg_dataset_release(&set);
    return status;
}

/* ---- what compression has not sent ---- */

static bool has_unsent(const gg_replica *r) {
    const gg_state *state = gg_exchange_state(r->exchange);
    for (int i = 0; i < state->arenas; ++i)
        if (state->arena[i].kind == GG_ARENA_RESIDUE || state->arena[i].kind == GG_ARENA_COPY) return true;
    return false;
}

/* Whether residues, bases and copies of the one are those of the other: of the same quantity, for the same partners, of
 * the same parameters. */
static bool sends_alike(const gg_replica *r, const gg_strategy_options *b) {
    const gg_strategy_options *a = &r->options.strategy;
    return a->kind == b->kind && a->synchronous == b->synchronous && a->hierarchical == b->hierarchical &&
           a->ranks_per_node == b->ranks_per_node && same_partners(&a->schedule, &b->schedule) &&
           gg_compression_leaves_the_same(gg_graph_layout(r->options.graph), &a->compression, &b->compression);
}

/* ---- the whole ---- */

gg_status gg_replica_check_reshape(const gg_replica *r, const gg_reshape *how) {
    const int ranks = r->options.transport->size;
    if (how->graph != NULL && how->map == NULL)
        return gg_fail(GG_ERROR_ARGUMENT, "reshape: another network needs a map from the old arenas to the new ones");
    if (how->graph != NULL && !gg_graph_is_alike(r->options.graph, how->graph))
        return gg_fail(GG_ERROR_ARGUMENT,
                       "reshape: the other network has other inputs, outputs or layers; allowed is one that "
                       "differs in the sizes of layers in between");
    if (how->batch != 0 && r->data.loader == NULL)
        return gg_fail(GG_ERROR_STATE, "reshape: batch=%lld, but there is no data to train on yet",
                       (long long)how->batch);
    const int workers = how->strategy != NULL ? gg_strategy_workers(how->strategy, ranks) : r->data.workers;
    if (r->data.loader != NULL && (how->batch != 0 || workers != r->data.workers))
        GG_TRY(gg_batches_check(&r->data, workers, how->batch != 0 ? how->batch : r->data.options.batch));
    if (how->strategy == NULL) return GG_OK;
    const gg_strategy_options *strategy = how->strategy;
    GG_TRY(gg_strategy_check_open(strategy, ranks));
    if (has_unsent(r) && !sends_alike(r, strategy))
        return gg_fail(
            GG_ERROR_ARGUMENT,
            "reshape: what %s has compressed and not sent yet would mean something else, or be lost, with %s as it "
            "is wanted; allowed with compression: the same strategy, partners and compressed parameters",
            gg_strategy_name(r->options.strategy.kind), gg_strategy_name(strategy->kind));
    if (r->data.loader != NULL && r->data.options.shard == GG_SHARD_OWN && divides_otherwise(r, strategy))
        return gg_fail(GG_ERROR_ARGUMENT, "reshape: every rank has brought samples of its own: all ranks train, and "
                                          "shuffle_samples is not allowed");
    if (gg_batches_in_an_epoch(&r->data) && divides_otherwise(r, strategy))
        return gg_fail(
            GG_ERROR_ARGUMENT,
            "reshape: after step %lld of an epoch's %lld the ranks that train (%d, wanted %d) and shuffle_samples "
            "(%s, wanted %s) stay as they are; between epochs they may change",
            (long long)r->data.next, (long long)gg_loader_steps(r->data.loader), gg_exchange_workers(r->exchange),
            gg_strategy_workers(strategy, ranks), r->data.shuffle_samples ? "true" : "false",
            strategy->shuffle_samples ? "true" : "false");
    return GG_OK;
}

/* The batches of the new strategy, network or size, and their plans. */
static gg_status prepare_data(gg_replica *r, const gg_reshape *how) {
    const bool divides = divides_otherwise(r, &r->options.strategy);
    const bool rebatches = r->data.loader != NULL && how->batch != 0 && how->batch != r->data.options.batch;
    if (divides) GG_TRY(divide_samples(r, how->batch));
    else if (rebatches) GG_TRY(gg_batches_rebatch(&r->data, how->batch));
    if (r->data.loader != NULL && (how->graph != NULL || rebatches)) GG_TRY(gg_replica_plan_epoch(r));
    return GG_OK;
}

/* The exchange of another strategy or network. */
static gg_status rebuild(gg_replica *r, const gg_reshape *how) {
    gg_status status = GG_OK;
    whole_state whole = {0};
    const gg_graph *former = r->options.graph;
    float *carried = NULL;
    int64_t rows = 0;
    GG_TRY_CLEANUP(whole_read(r, how, &whole));
    const bool has_mean = gg_exchange_has_mean(r->exchange);
    gg_message_recycle(r->options.transport, true);
    gg_replica_dismantle(r);
    /* No message of the new strategy meets a receive of the old one. */
    GG_TRY_CLEANUP(gg_replica_at(r, "rebuilding", gg_barrier(r->options.transport)));
    gg_transport_set_epoch(r->options.transport, r->options.transport->epoch + 1);
    if (how->graph != NULL) {
        gg_plans_clear(&r->plans);
        r->options.graph = r->plans.graph = how->graph;
        rows = r->carried_rows;
        GG_TRY_CLEANUP(gg_alloc((size_t)(rows * r->carried_numbers) * sizeof *carried, "carried state", &carried));
        GG_TRY_CLEANUP(
            gg_device_read(r->device, carried, r->carried, (size_t)(rows * r->carried_numbers) * sizeof *carried));
        gg_device_free(r->device, r->carried);
        r->carried = NULL;
        r->carried_rows = 0;
    }
    if (how->strategy != NULL) r->options.strategy = *how->strategy;
    r->options.step_seconds = how->step_seconds;
    r->options.link = how->link;
    GG_TRY_CLEANUP(gg_replica_assemble(r));
    if (has_mean) GG_TRY_CLEANUP(gg_exchange_prepare_mean(r->exchange)); /* in the memory of the old one */
    GG_TRY_CLEANUP(whole_load(r, &whole));
    if (how->graph != NULL) GG_TRY_CLEANUP(map_carried(r, how, former, carried, rows));
cleanup:
    gg_message_recycle(r->options.transport, false);
    gg_free(carried);
    whole_free(&whole);
    return status;
}

gg_status gg_replica_reshape(gg_replica *r, const gg_reshape *how) {
    gg_status status = GG_OK;
    gg_progress_counts counts;
    const bool batch_alone = how->batch != 0 && how->strategy == NULL && how->graph == NULL;
    GG_TRY_CLEANUP(gg_replica_end_epoch(r)); /* what is in flight belongs to the steps that were made */
    gg_replica_counts(r, &counts);           /* without the messages of the rebuilding */
    if (!batch_alone) GG_TRY_CLEANUP(rebuild(r, how));
    GG_TRY_CLEANUP(prepare_data(r, how));
    gg_replica_set_counts(r, &counts);
cleanup:
    if (status != GG_OK) {
        r->failed = true;
        gg_replica_dismantle(r);
    }
    return status;
}
