#include "exchange/parts/common.h"

#include <string.h>

#include "base/memory.h"
#include "comm/collective.h"
#include "exchange/parts/partition.h"

const char *const gg_wire_names[2] = {[GG_FLOAT32] = "float32", [GG_BFLOAT16] = "bfloat16"};
const char *const gg_collectives_names[GG_COLLECTIVES_COUNT] = {"own", "mpi"};

gg_status gg_strategy_check_sizes(const gg_strategy_options *options, int ranks) {
    (void)ranks;
    if (options->bucket_bytes == 0 || options->chunk_bytes == 0)
        return gg_fail(GG_ERROR_ARGUMENT, "%s: 0; must be at least 1",
                       options->bucket_bytes == 0 ? "bucket_bytes" : "chunk_bytes");
    return GG_OK;
}

/* ---- the state ---- */

static size_t arena_elements(const gg_state *state, const gg_arena *arena) {
    return arena->kind == GG_ARENA_MOMENT ? state->owned : state->count;
}

static void list_arenas(gg_state *state, const gg_optimizer *optimizer, unsigned shared) {
    const char *moment[GG_MAX_MOMENTS];
    const int moments = gg_optimizer_moments(optimizer, moment);
    state->arenas = GG_MOMENTS + moments;
    state->arena[GG_WEIGHTS] = (gg_arena){.name = "weight", .kind = GG_ARENA_WEIGHT};
    state->arena[GG_GRADIENTS] = (gg_arena){.name = "gradient", .kind = GG_ARENA_GRADIENT};
    for (int i = 0; i < moments; ++i)
        state->arena[GG_MOMENTS + i] = (gg_arena){.name = moment[i], .kind = GG_ARENA_MOMENT};
    if (shared & GG_WITH_RESIDUE)
        state->arena[state->arenas++] = (gg_arena){.name = "residue", .kind = GG_ARENA_RESIDUE};
    if (shared & GG_WITH_BASE) state->arena[state->arenas++] = (gg_arena){.name = "base", .kind = GG_ARENA_RESIDUE};
    if (shared & GG_WITH_OUTER) {
        state->arena[state->arenas++] = (gg_arena){.name = "outer", .kind = GG_ARENA_OUTER};
        state->arena[state->arenas++] = (gg_arena){.name = "outer_momentum", .kind = GG_ARENA_OUTER_MOMENT};
    }
    for (int i = 0; i < state->arenas; ++i)
        if (shared & 1u << state->arena[i].kind) state->arena[i].memory = GG_MEMORY_MESSAGE;
    if (shared & GG_BORROWED_GRADIENT) state->arena[GG_GRADIENTS].memory = GG_MEMORY_BORROWED;
}

unsigned gg_residue_wanted(const gg_strategy_options *options, const gg_strategy_env *env) {
    const bool sends = options->compression.active && env->transport->size > 1;
    return sends && gg_compression_packs(env->layout, &options->compression) ? GG_WITH_RESIDUE : 0;
}

gg_status gg_strategy_accumulate(const gg_strategy_options *options, const gg_strategy_env *env, bool *accumulates) {
    const gg_optimizer *optimizer = env->updater->optimizer;
    *accumulates = options->compression.local_momentum && gg_residue_wanted(options, env) != 0;
    if (!options->compression.local_momentum) return GG_OK;
    const gg_optimizer_type *type = optimizer->type;
    if (type->accumulate == NULL || (type->accumulates != NULL && !type->accumulates(optimizer)))
        return gg_fail(
            GG_ERROR_ARGUMENT,
            "local_momentum=True: allowed only with Adam, or with SGD, momentum above 0, and nesterov=False");
    if (optimizer->clip_norm > 0)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "local_momentum=True with clip_norm=%g: what is summed has momentum already; allowed "
                       "is clip_norm=None",
                       optimizer->clip_norm);
    env->updater->accumulated = *accumulates;
    return GG_OK;
}

/* Gives an arena the memory that it had before; false if there is none that fits. */
static bool take_kept(gg_state *state, int place) {
    if (place >= GG_MOMENTS) return false;
    gg_arena *arena = &state->arena[place], *kept = &state->kept[place];
    if (kept->data == NULL || arena->memory == GG_MEMORY_BORROWED) return false;
    if (arena->memory == GG_MEMORY_MESSAGE && kept->memory != GG_MEMORY_MESSAGE) return false;
    arena->data = kept->data;
    arena->memory = kept->memory;
    kept->data = NULL;
    return true;
}

gg_status gg_state_create(const gg_strategy_env *env, unsigned shared) {
    gg_state *state = env->state;
    list_arenas(state, env->updater->optimizer, shared);
    for (int i = 0; i < state->arenas; ++i) {
        gg_arena *arena = &state->arena[i];
        const size_t bytes = arena_elements(state, arena) * sizeof(float);
        if (take_kept(state, i)) continue;
        if (arena->memory == GG_MEMORY_MESSAGE)
            GG_TRY(gg_message_alloc_device(env->transport, bytes, arena->name, &arena->data));
        else if (arena->memory == GG_MEMORY_PRIVATE)
            GG_TRY(gg_device_alloc(env->device, bytes, arena->name, &arena->data));
    }
    return GG_OK;
}

static void free_arena(const gg_strategy_env *env, gg_arena *arena) {
    if (arena->data == NULL) return;
    if (arena->memory == GG_MEMORY_MESSAGE) gg_message_free(env->transport, arena->data);
    else if (arena->memory == GG_MEMORY_PRIVATE) gg_device_free(env->device, arena->data);
    arena->data = NULL;
}

void gg_state_free_kept(const gg_strategy_env *env) {
    for (int i = 0; i < GG_MOMENTS; ++i) free_arena(env, &env->state->kept[i]);
}

void gg_state_destroy(const gg_strategy_env *env) {
    gg_state *state = env->state;
    for (int i = state->arenas - 1; i >= 0; --i) {
        gg_arena *arena = &state->arena[i];
        if (state->keeps && i < GG_MOMENTS && arena->data != NULL && arena->memory != GG_MEMORY_BORROWED) {
            state->kept[i] = *arena;
            arena->data = NULL;
        }
        free_arena(env, arena);
    }
}

/* ---- the state, whole ---- */

/* Packs a rank's slices of a whole arena, one after the other. Either side may be host memory, which must not be
 * touched before the device is done. */
static void pack_owned(const gg_partition *partition, gg_device *device, int rank, const float *arena, float *owned) {
    for (int i = 0; i < partition->chunks; ++i) {
        const gg_part *part = gg_partition_part(partition, rank, i);
        gg_device_copy(device, GG_QUEUE_COMPUTE, owned + part->owned_offset, arena + part->offset,
                       part->count * sizeof(float));
    }
}

/* The other way, on the host. */
static void unpack_owned(const gg_partition *partition, int rank, const float *owned, float *arena) {
    for (int i = 0; i < partition->chunks; ++i) {
        const gg_part *part = gg_partition_part(partition, rank, i);
        memcpy(arena + part->offset, owned + part->owned_offset, part->count * sizeof(float));
    }
}

static size_t owned_count(const gg_partition *partition, int rank) {
    if (partition->chunks == 0) return 0;
    const gg_part *last = gg_partition_part(partition, rank, partition->chunks - 1);
    return last->owned_offset + last->count;
}

gg_status gg_strategy_gather(gg_strategy *strategy, int arena, float *whole) {
    gg_status status = GG_OK;
    const gg_partition *partition = strategy->partition;
    const gg_state *state = strategy->env.state;
    const gg_arena *from = &state->arena[arena];
    gg_transport *transport = strategy->env.transport;
    gg_device *device = strategy->env.device;
    float *slices = NULL;
    if (partition == NULL || from->kind == GG_ARENA_WEIGHT || from->kind >= GG_ARENA_RESIDUE) {
        if (whole != NULL) GG_TRY_CLEANUP(gg_device_read(device, whole, from->data, state->count * sizeof(float)));
        goto cleanup;
    }
    GG_TRY_CLEANUP(gg_alloc(partition->most * sizeof(float), "slices of one rank", &slices));
    for (int rank = 0; rank < partition->ranks; ++rank) {
        size_t bytes = owned_count(partition, rank) * sizeof(float);
        if (rank == transport->rank && from->kind == GG_ARENA_GRADIENT) {
            pack_owned(partition, device, rank, from->data, slices);
            gg_device_finish(device);
            GG_TRY_CLEANUP(gg_device_check(device));
        } else if (rank == transport->rank) {
            GG_TRY_CLEANUP(gg_device_read(device, slices, from->data, bytes));
        }
        GG_TRY_CLEANUP(gg_broadcast(transport, slices, bytes, rank));
        if (whole != NULL) unpack_owned(partition, rank, slices, whole);
    }
cleanup:
    gg_free(slices);
    return status;
}

void gg_strategy_load(gg_strategy *strategy, int arena, const float *whole) {
    const gg_state *state = strategy->env.state;
    const gg_arena *to = &state->arena[arena];
    gg_device *device = strategy->env.device;
    if (strategy->partition == NULL || to->kind != GG_ARENA_MOMENT)
        gg_device_copy(device, GG_QUEUE_COMPUTE, to->data, whole, state->count * sizeof(float));
    else pack_owned(strategy->partition, device, strategy->env.transport->rank, whole, to->data);
    gg_device_finish(device); /* the next use of the device reports a failure */
    strategy->loads++;
    if (strategy->loaded != NULL) strategy->loaded(strategy, arena);
}

/* ---- shared parts of strategies ---- */

bool gg_strategy_all_zero(gg_strategy *strategy, int arena) {
    const gg_strategy_env *env = &strategy->env;
    return env->device->table->sum_squares(env->device, env->state->count, env->state->arena[arena].data, NULL) == 0;
}

gg_status gg_strategy_nothing(gg_strategy *strategy) {
    (void)strategy;
    return GG_OK;
}

gg_status gg_strategy_no_layer(gg_strategy *strategy, int layer) {
    (void)strategy, (void)layer;
    return GG_OK;
}

gg_status gg_strategy_progress(gg_strategy *strategy) { return gg_progress(strategy->env.transport); }

void gg_strategy_update(gg_strategy *strategy, size_t offset, size_t count, const float *gradient) {
    gg_updater_apply(
        strategy->env.updater, strategy->env.device, strategy->env.state,
        &(gg_update){
            .step = strategy->step, .offset = offset, .count = count, .owned_offset = offset, .gradient = gradient});
}

void gg_strategy_measure(gg_strategy *strategy, const float *gradients) {
    const gg_strategy_env *env = &strategy->env;
    if (!gg_updater_measures(env->updater)) return;
    gg_updater_measure_begin(env->updater);
    gg_updater_measure(env->updater, env->device, 0, env->state->count, gradients, gg_state_weights(env->state));
    gg_updater_measured(env->updater);
}

gg_status gg_strategy_ready_all(gg_strategy *strategy) {
    gg_strategy_measure(strategy, gg_state_gradients(strategy->env.state));
    for (int layer = strategy->env.layout->layers - 1; layer >= 0; --layer) {
        GG_TRY(strategy->table->ready(strategy, layer));
        GG_TRY(strategy->table->poll(strategy));
    }
    return GG_OK;
}

gg_status gg_strategy_update_layer(gg_strategy *strategy, int layer) {
    const gg_slice *slice = gg_arena_layout_slice(strategy->env.layout, layer);
    gg_strategy_update(strategy, slice->offset, slice->count, gg_state_gradients(strategy->env.state) + slice->offset);
    return GG_OK;
}

void gg_strategy_waited(gg_strategy *strategy, double begin) {
    double end = gg_transport_now(strategy->env.transport);
    strategy->exposed_seconds += end - begin;
    if (strategy->env.trace == NULL || end <= begin) return;
    gg_trace_add(
        strategy->env.trace,
        &(gg_trace_span){
            .begin = begin, .end = end, .name = "wait", .step = strategy->step, .lane = GG_LANE_COMPUTE, .index = -1});
}

static void strategy_waited(void *context, double begin) { gg_strategy_waited(context, begin); }

gg_status gg_strategy_reach(gg_strategy *strategy, gg_transport *transport, gg_request *request, bool wait,
                            bool *done) {
    return gg_reach_collective(transport, request, wait, done, strategy_waited, strategy);
}

gg_status gg_strategy_wait(gg_strategy *strategy, gg_request *request) {
    bool done = false;
    return gg_strategy_reach(strategy, strategy->env.transport, request, true, &done);
}

gg_status gg_strategy_wait_layers(gg_strategy *strategy, int first_layer, int last_layer, gg_request *request) {
    const gg_arena_layout *layout = strategy->env.layout;
    const char **layers = strategy->env.transport->waits_for;
    layers[0] = layout->layer[first_layer].name;
    layers[1] = layout->layer[last_layer].name;
    bool done;
    const gg_status status = gg_reach(strategy->env.transport, request, true, &done, strategy_waited, strategy);
    layers[0] = layers[1] = NULL;
    return status;
}

void gg_strategy_watch(gg_strategy *strategy, gg_allreduce *reduction) {
    gg_allreduce_watch(reduction, strategy_waited, strategy);
}

gg_status gg_strategy_at(const gg_strategy *strategy, int first_layer, int last_layer, gg_status status) {
    const gg_arena_layout *layout = strategy->env.layout;
    const long long step = (long long)strategy->step;
    if (status == GG_OK) return status;
    if (layout->layers == 0) return gg_error_prefix(status, "step %lld: ", step);
    return gg_error_prefix(status, "step %lld, layers '%s' to '%s': ", step, layout->layer[first_layer].name,
                           layout->layer[last_layer].name);
}

gg_status gg_strategy_at_all(const gg_strategy *strategy, gg_status status) {
    return gg_strategy_at(strategy, 0, strategy->env.layout->layers - 1, status);
}

void gg_strategy_destroy(gg_strategy *strategy) {
    if (strategy != NULL) strategy->table->destroy(strategy);
}

const char *gg_strategy_needs_none(const gg_strategy_options *options) {
    (void)options;
    return NULL;
}
