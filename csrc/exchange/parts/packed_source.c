#include "exchange/parts/packed_source.h"

#include "base/memory.h"

/* Elements that gg_updater_accumulate works on at once on the CPU, in cache. */
#define ACCUMULATED_AT_ONCE ((size_t)2048)

/* Elements packed run by run, or given out in pieces, between two calls in which other messages progress: about 0.2 ms.
 */
#define PROGRESS_EVERY ((size_t)1 << 18)

gg_status gg_packed_source_accumulate(gg_packed_source *s, size_t count) {
    const size_t p = (size_t)s->group->size;
    gg_device *device = s->owner->env.device;
    GG_TRY(gg_calloc(p, sizeof *s->equal_share, "shares", &s->equal_share));
    for (size_t i = 0; i < p; ++i) s->equal_share[i] = 1.0f / (float)p;
    s->room_count = gg_device_is_separate(device) ? count : ACCUMULATED_AT_ONCE;
    return gg_device_alloc(device, s->room_count * sizeof *s->room, "gradients with decay", &s->room);
}

/* True if the arena's elements are used where the packed gradient is read. */
static bool is_used(const gg_packed_source *s, const gg_arena *arena, const float *residue) {
    const bool accumulates = s->equal_share != NULL;
    const gg_optimizer *optimizer = s->owner->env.updater->optimizer;
    if (arena->kind == GG_ARENA_WEIGHT) return accumulates && gg_optimizer_decays_gradients(optimizer);
    if (arena->kind == GG_ARENA_MOMENT) return accumulates;
    return arena->data == residue;
}

/* True if the segment is a linear layer's weight. */
static bool is_weight(const gg_arena_layout *layout, const gg_segment *one) {
    const gg_parameter *weight = gg_factored_weight(layout, one->layer);
    return one->bin > 0 && weight != NULL && weight->offset == one->offset;
}

/* Not with several threads: they would choose from rows in each other's caches. */
gg_status gg_packed_source_factor(gg_packed_source *s, const gg_segment *segment, int segments, const float *residue) {
    gg_status status = GG_OK;
    const gg_strategy_env *env = &s->owner->env;
    gg_factored_wish *wish = NULL;
    int wishes = 0;
    if (env->device->threads > 1) goto cleanup;
    GG_TRY_CLEANUP(gg_calloc((size_t)segments, sizeof *wish, "factors", &wish));
    for (int i = 0; i < segments; ++i) {
        const gg_segment *one = &segment[i];
        if (is_weight(env->layout, one))
            wish[wishes++] = (gg_factored_wish){.layer = one->layer, .run = gg_pack_run((size_t)one->bin)};
    }
    GG_TRY_CLEANUP(gg_factored_create(env->device, env->layout, wish, wishes, &s->factored));
    for (int i = 0; s->factored != NULL && i < env->state->arenas; ++i)
        if (is_used(s, &env->state->arena[i], residue)) gg_factored_uses(s->factored, &env->state->arena[i]);
cleanup:
    gg_free(wish);
    return status;
}

void gg_packed_source_destroy(gg_packed_source *s) {
    gg_factored_destroy(s->factored);
    gg_free(s->equal_share);
    if (s->room != NULL) gg_device_free(s->owner->env.device, s->room);
}

const float *gg_packed_source_begin(gg_packed_source *s, float *gradients, size_t offset, const float *share) {
    s->base = gradients - offset;
    if (s->equal_share == NULL) return share;
    s->own_scale = share[s->group->rank] * (float)s->group->size;
    return s->equal_share;
}

static const float *accumulate(const gg_packed_source *s, size_t offset, size_t count, float *gradient,
                               bool elsewhere) {
    const gg_strategy_env *env = &s->owner->env;
    return gg_updater_accumulate(env->updater, env->device, env->state,
                                 &(gg_accumulation){.step = s->owner->step,
                                                    .ranks = s->group->size,
                                                    .offset = offset,
                                                    .count = count,
                                                    .scale = s->own_scale,
                                                    .gradient = gradient,
                                                    .room = s->room,
                                                    .room_count = s->room_count,
                                                    .elsewhere = elsewhere});
}

void gg_packed_source_progress(gg_packed_source *s, size_t count) {
    s->passed += count;
    if (s->passed < PROGRESS_EVERY || s->progressed != GG_OK) return;
    s->passed = 0;
    s->progressed = gg_progress(s->group);
}

gg_status gg_packed_source_failure(gg_packed_source *s) {
    const gg_status status = s->progressed;
    s->progressed = GG_OK;
    return status;
}

const float *gg_packed_source_prepare(void *context, size_t offset, size_t count) {
    gg_packed_source *s = context;
    gg_packed_source_progress(s, count);
    float *elsewhere = s->factored != NULL ? gg_factored_run(s->factored, offset, count) : NULL;
    float *gradient = elsewhere != NULL ? elsewhere : s->base + offset;
    if (s->equal_share != NULL)
        return accumulate(s, offset, count, gradient, !gg_device_is_separate(s->owner->env.device));
    return elsewhere;
}

const float *gg_packed_source_run(void *context, size_t offset, size_t count) {
    const gg_packed_source *s = context;
    float *gradient = s->base + offset;
    return s->equal_share != NULL ? accumulate(s, offset, count, gradient, true) : gradient;
}

void gg_packed_source_fill(gg_packed_source *s, size_t offset, size_t count) {
    if (s->equal_share != NULL) (void)accumulate(s, offset, count, s->base + offset, false);
}
