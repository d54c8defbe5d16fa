#include "ops/arena_layout.h"

#include <float.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

const char *gg_family_name(gg_family family) {
    static const char *const names[GG_FAMILY_COUNT] = {
        [GG_FAMILY_OTHER] = "other",
        [GG_FAMILY_CONV] = "conv",
        [GG_FAMILY_LINEAR] = "linear",
        [GG_FAMILY_RECURRENT] = "recurrent",
    };
    return names[family];
}

const char *const gg_role_names[GG_ROLE_COUNT] = {"weight", "bias", "scale", "shift", "statistic"};

const char *gg_role_name(gg_role role) { return gg_role_names[role]; }

/* The most elements of a parameter, so that no sum of sizes overflows. */
#define MAX_ELEMENTS ((double)((int64_t)1 << 48))

static gg_status check_parameter(const gg_parameter *it, const gg_layer_place *layer) {
    char shape[GG_SHAPE_TEXT];
    double elements = 1;
    if ((int)it->role < 0 || it->role >= GG_ROLE_COUNT || (int)it->family < 0 || it->family >= GG_FAMILY_COUNT)
        return gg_fail(GG_ERROR_ARGUMENT, "parameter '%s': role %d, family %d; allowed are 0 to %d and 0 to %d",
                       it->name, (int)it->role, (int)it->family, GG_ROLE_COUNT - 1, GG_FAMILY_COUNT - 1);
    if (!(it->lr_factor >= 0 && it->lr_factor <= FLT_MAX && it->decay_factor >= 0 && it->decay_factor <= FLT_MAX))
        return gg_fail(
            GG_ERROR_ARGUMENT,
            "parameter '%s': factors %g of the learning rate and %g of the weight decay; must be finite and at "
            "least 0",
            it->name, (double)it->lr_factor, (double)it->decay_factor);
    if (!(it->momentum_factor >= 0 && it->momentum_factor <= 1))
        return gg_fail(GG_ERROR_ARGUMENT, "parameter '%s': factor %g of the momentum; must be 0 to 1", it->name,
                       (double)it->momentum_factor);
    if (it->shape.dims < 0 || it->shape.dims > GG_MAX_DIMS)
        return gg_fail(GG_ERROR_SHAPE, "parameter '%s': %d axes; allowed are 0 to %d", it->name, it->shape.dims,
                       GG_MAX_DIMS);
    for (int i = 0; i < it->shape.dims; i++) elements *= (double)it->shape.size[i];
    for (int i = 0; i < it->shape.dims; i++) {
        if (it->shape.size[i] < 1 || elements > MAX_ELEMENTS)
            return gg_fail(GG_ERROR_SHAPE, "parameter '%s': shape %s; wanted 1 to 2^48 elements", it->name,
                           gg_shape_text(&it->shape, shape));
    }
    if (layer->partitionable && (layer->parameters == 0 && (it->role != GG_ROLE_WEIGHT || it->shape.dims != 2)))
        return gg_fail(
            GG_ERROR_ARGUMENT,
            "parameter '%s': shape %s, role %s; the first one of the partitionable layer '%s' must be a weight of "
            "shape (outputs, inputs)",
            it->name, gg_shape_text(&it->shape, shape), gg_role_name(it->role), layer->name);
    return GG_OK;
}

/* Names are compared sorted: a caller's list may be long. */
static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static gg_status check_names(const char **name, int count, const char *what) {
    for (int i = 0; i < count; i++) {
        if (name[i] == NULL || name[i][0] == 0)
            return gg_fail(GG_ERROR_ARGUMENT, "%s %d has no name; each one needs one", what, i);
    }
    qsort(name, (size_t)count, sizeof *name, compare_names);
    for (int i = 1; i < count; i++) {
        if (strcmp(name[i - 1], name[i]) == 0)
            return gg_fail(GG_ERROR_ARGUMENT, "%s '%s' is there twice; names must differ", what, name[i]);
    }
    return GG_OK;
}

static gg_status check_all_names(const gg_arena_layout *layout) {
    gg_status status = GG_OK;
    const char **name = NULL;
    const int most = layout->parameters > layout->layers ? layout->parameters : layout->layers;
    GG_TRY_CLEANUP(gg_calloc((size_t)most + 1, sizeof *name, "names", &name));
    for (int i = 0; i < layout->parameters; i++) name[i] = layout->parameter[i].name;
    GG_TRY_CLEANUP(check_names(name, layout->parameters, "parameter"));
    for (int i = 0; i < layout->layers; i++) name[i] = layout->layer[i].name;
    GG_TRY_CLEANUP(check_names(name, layout->layers, "layer"));
cleanup:
    gg_free(name);
    return status;
}

/* The lists point to the names in memory of their own from here on. */
static gg_status copy_names(gg_arena_layout *layout) {
    size_t bytes = 1;
    for (int i = 0; i < layout->parameters; i++) bytes += strlen(layout->parameter[i].name) + 1;
    for (int i = 0; i < layout->layers; i++) bytes += strlen(layout->layer[i].name) + 1;
    GG_TRY(gg_alloc(bytes, "names", &layout->names));
    char *at = layout->names;
    for (int i = 0; i < layout->parameters + layout->layers; i++) {
        const char **name =
            i < layout->parameters ? &layout->parameter[i].name : &layout->layer[i - layout->parameters].name;
        const size_t length = strlen(*name) + 1;
        memcpy(at, *name, length);
        *name = at;
        at += length;
    }
    return GG_OK;
}

static gg_status place_parameters(gg_arena_layout *layout) {
    int layer = -1;
    for (int i = 0; i < layout->parameters; i++) {
        gg_parameter *it = &layout->parameter[i];
        const bool begins = it->layer == layer + 1 && it->layer < layout->layers;
        if (!begins && (it->layer != layer || layer < 0))
            return gg_fail(GG_ERROR_ARGUMENT,
                           "parameter '%s' is of layer %d; the parameters of layers 0 to %d must stand in "
                           "their order",
                           it->name, it->layer, layout->layers - 1);
        gg_layer_place *place = &layout->layer[it->layer];
        GG_TRY(check_parameter(it, place));
        if (begins) place->first_parameter = i, place->slice.offset = layout->count;
        layer = it->layer;
        it->count = (size_t)gg_shape_count(&it->shape);
        it->offset = layout->count;
        layout->count += (size_t)gg_lanes_padded((int64_t)it->count);
        place->parameters++;
        place->slice.count = layout->count - place->slice.offset;
    }
    if (layer + 1 < layout->layers)
        return gg_fail(GG_ERROR_ARGUMENT, "layer '%s' has no parameter; each one needs one",
                       layout->layer[layer + 1].name);
    return GG_OK;
}

gg_status gg_arena_layout_create(const gg_layer_place *layer, int layers, const gg_parameter *parameter, int parameters,
                                 gg_arena_layout *out) {
    gg_status status = GG_OK;
    gg_arena_layout made = {.parameters = parameters, .layers = layers};
    *out = (gg_arena_layout){0};
    GG_TRY_CLEANUP(
        gg_calloc((size_t)parameters + 1, sizeof *made.parameter, "parameters of a layout", &made.parameter));
    GG_TRY_CLEANUP(gg_calloc((size_t)layers + 1, sizeof *made.layer, "layers of a layout", &made.layer));
    for (int i = 0; i < parameters; i++) made.parameter[i] = parameter[i];
    for (int i = 0; i < layers; i++)
        made.layer[i] = (gg_layer_place){.name = layer[i].name, .partitionable = layer[i].partitionable};
    GG_TRY_CLEANUP(check_all_names(&made));
    GG_TRY_CLEANUP(place_parameters(&made));
    GG_TRY_CLEANUP(copy_names(&made));
    *out = made;
cleanup:
    if (status != GG_OK) gg_arena_layout_destroy(&made);
    return status;
}

void gg_arena_layout_destroy(gg_arena_layout *layout) {
    gg_free(layout->parameter);
    gg_free(layout->layer);
    gg_free(layout->names);
    *layout = (gg_arena_layout){0};
}
