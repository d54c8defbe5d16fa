/* The layout of arenas: parameters by name, shape and role, joined to layers in forward order.
 *
 * Optimisers, strategies and compression see nothing else of a network. A finished graph owns a layout
 * (gg_graph_layout); a caller's list makes one for arrays without a graph. Constant after creation; any thread may read
 * it. */
#ifndef GG_OPS_ARENA_LAYOUT_H
#define GG_OPS_ARENA_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "ops/tensor.h"

/* Families of layers, for options by family: windows over a sample (CONV), products with whole vectors (LINEAR),
 * products repeated in time (RECURRENT), anything else. */
typedef enum gg_family {
    GG_FAMILY_OTHER = 0,
    GG_FAMILY_CONV,
    GG_FAMILY_LINEAR,
    GG_FAMILY_RECURRENT,
    GG_FAMILY_COUNT
} gg_family;

/* "other", "conv", "linear" or "recurrent"; family < GG_FAMILY_COUNT. */
const char *gg_family_name(gg_family family);

/* Purpose of a parameter. Optimisers treat roles differently (exchange/optim/optim.h). */
typedef enum gg_role {
    GG_ROLE_WEIGHT = 0, /* multiplies inputs */
    GG_ROLE_BIAS,       /* is added to outputs */
    GG_ROLE_SCALE,      /* of a normalisation */
    GG_ROLE_SHIFT,      /* of a normalisation */
    GG_ROLE_STATISTIC,  /* not trained: a running mean over batches. Its layer's backward pass writes the value to
                           subtract as its gradient */
    GG_ROLE_COUNT
} gg_role;

extern const char *const gg_role_names[GG_ROLE_COUNT]; /* "weight", ... */
const char *gg_role_name(gg_role role);                /* "weight"; role < GG_ROLE_COUNT */

/* One tensor of a layer. Its place in an arena is in float32 elements. */
typedef struct gg_parameter {
    const char *name; /* "conv1.weight", unique */
    gg_role role;
    gg_family family;
    float lr_factor, decay_factor; /* multiply the optimiser's learning rate and weight decay */
    float momentum_factor;         /* multiplies SGD's and LARS's momentum; 0 to 1 */
    gg_shape shape;
    int layer;
    size_t offset, count; /* set by gg_arena_layout_create: place and number of elements; padding follows */
} gg_parameter;

/* The slice of every arena that belongs to one layer: begins and ends at multiples of GG_LANES elements;
 * the padding behind each parameter is zero in every arena, always. */
typedef struct gg_slice {
    size_t offset, count;
} gg_slice;

/* A layer: a run of parameters that become ready together. */
typedef struct gg_layer_place {
    const char *name; /* unique */
    /* The first parameter is a weight (outputs, inputs) that multiplies each sample once, and the layer's caller can
     * offer its inputs and errors as vectors. Strategies may exchange these in place of the gradient. */
    bool partitionable;
    int first_parameter, parameters; /* set by gg_arena_layout_create */
    gg_slice slice;                  /* set by gg_arena_layout_create */
} gg_layer_place;

typedef struct gg_arena_layout {
    size_t count; /* elements of an arena, padding included */
    int parameters, layers;
    gg_parameter *parameter; /* a layer's are adjacent; layers in forward order */
    gg_layer_place *layer;
    char *names; /* memory of all names */
} gg_arena_layout;

/* Places the parameters one after another; copies the lists and their names. Every layer has at least one parameter;
 * parameters are listed by layer, in the order of layers. GG_ERROR_ARGUMENT: empty or repeated names, layers in another
 * order, factors below 0 or not finite, a partitionable layer whose first parameter is no matrix. GG_ERROR_SHAPE: a
 * shape without elements. Errors name the parameter. */
gg_status gg_arena_layout_create(const gg_layer_place *layer, int layers, const gg_parameter *parameter, int parameters,
                                 gg_arena_layout *out);
/* Frees the lists; accepts a zeroed layout. */
void gg_arena_layout_destroy(gg_arena_layout *layout);

static inline const gg_slice *gg_arena_layout_slice(const gg_arena_layout *layout, int layer) {
    return &layout->layer[layer].slice;
}

#endif
