/* What one rank trains: a list of arenas with names, laid out alike (ops/arena_layout.h), zeroed at creation. */
#ifndef GG_EXCHANGE_OPTIM_STATE_H
#define GG_EXCHANGE_OPTIM_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the forward pass reads, parameters and statistics; what the backward pass writes; what the optimiser remembers
 * from step to step, of which a rank may own only a part; what compression has not sent yet, and whatever else is each
 * rank's own for it: whole, never exchanged and never averaged; the weights after the last outer step of a strategy
 * that has some, and the momentum of these steps: whole. */
typedef enum gg_arena_kind {
    GG_ARENA_WEIGHT = 0,
    GG_ARENA_GRADIENT,
    GG_ARENA_MOMENT,
    GG_ARENA_RESIDUE,
    GG_ARENA_COPY, /* what a rank and a partner have in common of their weights; whole, as a residue */
    GG_ARENA_OUTER,
    GG_ARENA_OUTER_MOMENT,
    GG_ARENA_KINDS
} gg_arena_kind;

/* Where an arena lies: in private memory, in message memory, where partners read it, or in memory that its strategy
 * owns. */
typedef enum gg_arena_memory { GG_MEMORY_PRIVATE = 0, GG_MEMORY_MESSAGE, GG_MEMORY_BORROWED } gg_arena_memory;

typedef struct gg_arena {
    const char *name; /* "weight", "gradient", "momentum": in checkpoints; constant */
    gg_arena_kind kind;
    gg_arena_memory memory;
    float *data; /* `count` elements, of moments `owned` */
} gg_arena;

/* The places of the arenas that every state has; moments follow from GG_MOMENTS on, then what else there is. */
enum {
    GG_WEIGHTS = 0,
    GG_GRADIENTS,
    GG_MOMENTS,
    GG_MOST_MOMENTS = 2,
    GG_MOST_EDGES = 32,
    GG_MOST_ARENAS = 8 + GG_MOST_EDGES
};

/* A whole parameter, without padding behind it, whose gradient lies in memory of a caller. */
typedef struct gg_lent {
    size_t offset, count; /* in the arenas */
    const float *gradient;
} gg_lent;

/* Gradients that are computed where they are read. */
typedef struct gg_gradient_source {
    void *context;
    /* The gradient from element `offset` of the arenas on, and in *count how much of it: whole lanes, `most` at most,
     * at least one. Valid up to the next call. NULL: that of *count elements is in the arena. The runs of a parameter
     * are asked for one behind the other. */
    const float *(*run)(void *context, size_t offset, size_t most, size_t *count);
} gg_gradient_source;

/* The strategy owns the arenas. They have the current values after its settle. The data of an arena may be at another
 * address after each step. */
typedef struct gg_state {
    size_t count; /* elements of each arena */
    size_t owned; /* elements of each arena of moments: `count`, or fewer where every rank owns only a part */
    int arenas;
    gg_arena arena[GG_MOST_ARENAS];
    int64_t step;           /* updates done */
    int64_t push_sum_since; /* before this step all ranks' scalars of push-sum are 1; at most `step` */
    /* While a layer becomes ready: where gg_updater_apply reads these parameters' gradients instead of the arena, in
     * the order of the arenas; else 0. */
    const gg_lent *lent;
    int lents;
    /* Whom gg_updater_apply asks for gradients where none are lent; run NULL: all are in the arena. */
    gg_gradient_source source;
} gg_state;

static inline float *gg_state_weights(const gg_state *state) { return state->arena[GG_WEIGHTS].data; }
static inline float *gg_state_gradients(const gg_state *state) { return state->arena[GG_GRADIENTS].data; }

/* How many moments it has; and moment i of them, NULL where it has fewer. */
int gg_state_moments(const gg_state *state);
static inline float *gg_state_moment(const gg_state *state, int i) { return state->arena[GG_MOMENTS + i].data; }

/* The arena of the residue, the first of its kind; NULL: nothing is compressed. */
float *gg_state_residue(const gg_state *state);

/* The place of the arena of this name; -1: there is none. */
int gg_state_find(const gg_state *state, const char *name);
/* Bytes of the moments that this rank owns; with `whole`, of those of all elements. */
int64_t gg_state_moment_bytes(const gg_state *state, bool whole);

#endif
