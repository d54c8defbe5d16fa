#include "exchange/optim/state.h"

#include <string.h>

int gg_state_moments(const gg_state *state) {
    int count = 0;
    for (int i = 0; i < state->arenas; ++i) count += state->arena[i].kind == GG_ARENA_MOMENT;
    return count;
}

float *gg_state_residue(const gg_state *state) {
    for (int i = GG_MOMENTS; i < state->arenas; ++i)
        if (state->arena[i].kind == GG_ARENA_RESIDUE) return state->arena[i].data;
    return NULL;
}

int gg_state_find(const gg_state *state, const char *name) {
    for (int i = 0; i < state->arenas; ++i)
        if (strcmp(state->arena[i].name, name) == 0) return i;
    return -1;
}

int64_t gg_state_moment_bytes(const gg_state *state, bool whole) {
    const size_t count = whole ? state->count : state->owned;
    return (int64_t)(count * sizeof(float)) * gg_state_moments(state);
}
