/* Training state of one rank: a list of named arenas with one layout (ops/arena_layout.h), zeroed at creation. */
#ifndef GG_EXCHANGE_OPTIM_STATE_H
#define GG_EXCHANGE_OPTIM_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum gg_arena_kind {
    GG_ARENA_WEIGHT = 0, /* parameters and statistics, read by the forward pass */
    GG_ARENA_GRADIENT,   /* written by the backward pass */
    GG_ARENA_MOMENT,     /* the optimiser's memory from step to step; a rank may own only a part */
    GG_ARENA_RESIDUE,    /* unsent values and other private memory of compression; whole, never exchanged or averaged */
    GG_ARENA_COPY,       /* values of their weights that a rank and a partner share; whole, private like RESIDUE */
    GG_ARENA_OUTER,      /* weights after the last outer step of a strategy that has some; whole */
    GG_ARENA_OUTER_MOMENT, /* momentum of outer steps; whole */
    GG_ARENA_KINDS
} gg_arena_kind;

/* Memory of an arena: private, message memory that partners read, or memory owned by the strategy. */
typedef enum gg_arena_memory { GG_MEMORY_PRIVATE = 0, GG_MEMORY_MESSAGE, GG_MEMORY_BORROWED } gg_arena_memory;

typedef struct gg_arena {
    const char *name; /* "weight", "gradient", "momentum": in checkpoints; constant */
    gg_arena_kind kind;
    gg_arena_memory memory;
    float *data; /* `count` elements; `owned` for moments */
} gg_arena;

/* Places of the arenas that every state has; moments start at GG_MOMENTS, then come all others. */
enum {
    GG_WEIGHTS = 0,
    GG_GRADIENTS,
    GG_MOMENTS,
    GG_MAX_MOMENTS = 2,
    GG_MAX_EDGES = 32,
    GG_MAX_ARENAS = 8 + GG_MAX_EDGES
};

/* A whole parameter, without padding behind it, whose gradient lies in a caller's memory. */
typedef struct gg_lent {
    size_t offset, count; /* in the arenas */
    const float *gradient;
} gg_lent;

/* Gradients that are computed where they are read. */
typedef struct gg_gradient_source {
    void *context;
    /* Returns the gradient from element `offset` of the arenas on; *count: its elements, whole lanes, at least one, max
     * `most`. Valid up to the next call. NULL means that the gradient of *count elements is in the arena. The runs of a
     * parameter are requested in order. */
    const float *(*run)(void *context, size_t offset, size_t most, size_t *count);
} gg_gradient_source;

/* The strategy owns the arenas, which are current after its settle. An arena's data may move after each step. */
typedef struct gg_state {
    size_t count; /* elements of each arena */
    size_t owned; /* elements of each arena of moments: `count`, or fewer if every rank owns only a part */
    int arenas;
    gg_arena arena[GG_MAX_ARENAS];
    int64_t step;           /* updates done */
    bool missed;            /* a death has kept this rank from an outer step that others may have made */
    int64_t push_sum_since; /* before this step all ranks' push-sum scalars are 1; at most `step` */
    /* Memory of weights and gradients for the next list of arenas (gg_exchange_keep_arenas); data NULL means none. */
    gg_arena kept[GG_MOMENTS];
    bool keeps;
    /* While a layer becomes ready: gradients that gg_updater_apply reads instead of the arena, in the order of the
     * arenas; else 0. */
    const gg_lent *lent;
    int lents;
    /* Source of gradients that are not lent, for gg_updater_apply; run NULL means that all are in the arena. */
    gg_gradient_source source;
} gg_state;

static inline float *gg_state_weights(const gg_state *state) { return state->arena[GG_WEIGHTS].data; }
static inline float *gg_state_gradients(const gg_state *state) { return state->arena[GG_GRADIENTS].data; }

/* Number of moments; moment i, or NULL if there are fewer. */
int gg_state_moments(const gg_state *state);
static inline float *gg_state_moment(const gg_state *state, int i) { return state->arena[GG_MOMENTS + i].data; }

/* The residue's arena, the first of its kind; NULL means that nothing is compressed. */
float *gg_state_residue(const gg_state *state);

/* Place of the arena of this name; -1 means none. */
int gg_state_find(const gg_state *state, const char *name);
/* Bytes of the moments that this rank owns; with `whole`, of all elements. */
int64_t gg_state_moment_bytes(const gg_state *state, bool whole);

#endif
