#include "exchange/parts/kept.h"

gg_status gg_kept_create(const gg_strategy *strategy, bool local_momentum, gg_kept *out) {
    const gg_strategy_env *env = &strategy->env;
    const gg_state *state = env->state;
    *out = (gg_kept){0};
    if (!env->mortal || gg_state_residue(state) == NULL) return GG_OK;
    for (int i = 0; i < state->arenas; ++i) {
        const gg_arena_kind kind = state->arena[i].kind;
        if (kind != GG_ARENA_RESIDUE && !(kind == GG_ARENA_MOMENT && local_momentum)) continue;
        GG_TRY(gg_device_alloc(env->device, state->count * sizeof(float), "copy for a broken step", &out->copy[i]));
    }
    return GG_OK;
}

void gg_kept_destroy(const gg_strategy_env *env, gg_kept *kept) {
    for (int i = 0; i < GG_MAX_ARENAS; ++i)
        if (kept->copy[i] != NULL) gg_device_free(env->device, kept->copy[i]);
    *kept = (gg_kept){0};
}

void gg_kept_take(gg_strategy *strategy, gg_kept *kept) {
    const gg_strategy_env *env = &strategy->env;
    kept->taken = false;
    for (int i = 0; i < env->state->arenas; ++i) {
        if (kept->copy[i] == NULL) continue;
        if (!kept->taken && strategy->complete_residue != NULL) strategy->complete_residue(strategy);
        gg_device_copy(env->device, GG_QUEUE_COMPUTE, kept->copy[i], env->state->arena[i].data,
                       env->state->count * sizeof(float));
        kept->taken = true;
    }
}

void gg_kept_restore(const gg_strategy *strategy, gg_kept *kept) {
    const gg_strategy_env *env = &strategy->env;
    for (int i = 0; kept->taken && i < env->state->arenas; ++i)
        if (kept->copy[i] != NULL)
            gg_device_copy(env->device, GG_QUEUE_COMPUTE, env->state->arena[i].data, kept->copy[i],
                           env->state->count * sizeof(float));
    gg_device_finish(env->device);
    kept->taken = false;
}
