#include <float.h>

#include "optim/optim.h"

gg_status gg_optimizer_check(const gg_optimizer *optimizer) {
    gg_status status = GG_OK;
    GG_TRY(gg_rate_check(&optimizer->rate));
    /* Written as what must hold: NaN fails too. */
    if (!(optimizer->momentum >= 0 && optimizer->momentum < 1))
        GG_TRY(gg_fail(GG_ERROR_ARGUMENT, "momentum=%g: must be at least 0 and below 1", (double)optimizer->momentum));
    if (!(optimizer->weight_decay >= 0 && optimizer->weight_decay <= FLT_MAX))
        GG_TRY(gg_fail(GG_ERROR_ARGUMENT, "weight_decay=%g: must be finite and at least 0", (double)optimizer->weight_decay));
    if (optimizer->nesterov && !(optimizer->momentum > 0))
        GG_TRY(
            gg_fail(GG_ERROR_ARGUMENT, "nesterov=True with momentum=%g: momentum must be above 0", (double)optimizer->momentum));
cleanup:
    return status;
}

void gg_optimizer_fill(const gg_optimizer *optimizer, int64_t step, gg_sgd_args *args) {
    args->lr = (float)gg_rate_at(&optimizer->rate, step);
    args->mu = optimizer->momentum;
    args->weight_decay = optimizer->weight_decay;
    args->nesterov = optimizer->nesterov;
}

float *gg_state_arena(const gg_state *state, gg_arena which) {
    float *const arenas[GG_ARENA_COUNT] = {
        [GG_ARENA_WEIGHT] = state->weight, [GG_ARENA_GRADIENT] = state->gradient, [GG_ARENA_MOMENTUM] = state->momentum};
    return arenas[which];
}

int64_t gg_state_optimizer_bytes(const gg_state *state, bool whole) {
    size_t bytes = 0;
    for (int i = GG_ARENA_MOMENTUM; i < GG_ARENA_COUNT; ++i)
        if (gg_state_arena(state, (gg_arena)i) != NULL) bytes += (whole ? state->count : state->kept) * sizeof(float);
    return (int64_t)bytes;
}
