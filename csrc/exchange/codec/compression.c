#include "exchange/codec/compression.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

gg_status gg_compression_check(const gg_compression *compression) {
    if (!compression->active) return GG_OK;
    for (int family = 0; family < GG_FAMILY_COUNT; ++family)
        if (compression->bin[family] < 0 || compression->bin[family] > GG_MAX_BIN)
            return gg_fail(GG_ERROR_ARGUMENT, "bin_size: %d for '%s'; allowed are 1 to %d, and 0 for no compression",
                           compression->bin[family], gg_family_name((gg_family)family), GG_MAX_BIN);
    for (int family = 0; family < GG_FAMILY_COUNT; ++family)
        if (!(compression->factor[family] >= 1 && isfinite(compression->factor[family])))
            return gg_fail(GG_ERROR_ARGUMENT, "factor: %g for '%s'; must be finite and at least 1",
                           compression->factor[family], gg_family_name((gg_family)family));
    if ((int)compression->mode < 0 || compression->mode >= GG_COMPRESSION_MODES)
        return gg_fail(GG_ERROR_ARGUMENT, "mode: number %d is none of the %d known", (int)compression->mode,
                       GG_COMPRESSION_MODES);
    if (compression->values != GG_BFLOAT16 && compression->values != GG_FLOAT32)
        return gg_fail(GG_ERROR_ARGUMENT, "values: type %d; allowed are 'bfloat16' and 'float32'",
                       (int)compression->values);
    if ((int)compression->selection < 0 || compression->selection >= GG_SELECTION_COUNT)
        return gg_fail(GG_ERROR_ARGUMENT, "selection: number %d is none of the %d known", (int)compression->selection,
                       GG_SELECTION_COUNT);
    if (compression->warmup < 0)
        return gg_fail(GG_ERROR_ARGUMENT, "warmup: %lld steps; must be at least 0", (long long)compression->warmup);
    return GG_OK;
}

/* True if a list of newline-ended names has this one. */
static bool has_name(const char *names, const char *name) {
    const size_t length = strlen(name);
    for (const char *next; *names != '\0'; names = next) {
        const char *end = strchr(names, '\n');
        next = end != NULL ? end + 1 : names + strlen(names);
        if (end != NULL && (size_t)(end - names) == length && memcmp(names, name, length) == 0) return true;
    }
    return false;
}

/* Elements of a bin of this parameter; 0 means dense. */
static int bin_of(const gg_compression *compression, const gg_parameter *parameter) {
    if (!compression->active || parameter->role == GG_ROLE_STATISTIC) return 0;
    if (compression->dense_roles & 1u << parameter->role) return 0;
    if (compression->packs != NULL ? !has_name(compression->packs, parameter->name)
                                   : parameter->count < compression->dense_below)
        return 0;
    const int bin = compression->bin[parameter->family];
    return parameter->count < (size_t)bin ? (int)parameter->count : bin;
}

bool gg_compression_packs(const gg_arena_layout *layout, const gg_compression *compression) {
    for (int i = 0; i < layout->parameters; ++i) {
        if (bin_of(compression, &layout->parameter[i]) > 0) return true;
    }
    return false;
}

bool gg_compression_leaves_the_same(const gg_arena_layout *layout, const gg_compression *a, const gg_compression *b) {
    bool same = a->active == b->active && a->selection == b->selection && a->local_momentum == b->local_momentum;
    for (int i = 0; same && i < layout->parameters; ++i)
        same = bin_of(a, &layout->parameter[i]) == bin_of(b, &layout->parameter[i]);
    return same;
}

gg_status gg_segments_create(const gg_arena_layout *layout, const gg_compression *compression, gg_segments *out) {
    gg_status status = GG_OK;
    const int parameters = layout->parameters, layers = layout->layers;
    *out = (gg_segments){0};
    GG_TRY_CLEANUP(gg_calloc((size_t)parameters, sizeof *out->segment, "segments", &out->segment));
    GG_TRY_CLEANUP(
        gg_calloc((size_t)layers + 1, sizeof *out->first_of_layer, "segments of layers", &out->first_of_layer));
    for (int layer = 0; layer < layers; ++layer) {
        const gg_layer_place *place = &layout->layer[layer];
        out->first_of_layer[layer] = out->count;
        for (int i = 0; i < place->parameters; ++i) {
            const gg_parameter *parameter = &layout->parameter[place->first_parameter + i];
            out->segment[out->count++] = (gg_segment){.offset = parameter->offset,
                                                      .count = parameter->count,
                                                      .bin = bin_of(compression, parameter),
                                                      .family = parameter->family,
                                                      .layer = layer,
                                                      .name = parameter->name};
        }
    }
    out->first_of_layer[layers] = out->count;
cleanup:
    if (status != GG_OK) gg_segments_destroy(out);
    return status;
}

void gg_segments_destroy(gg_segments *segments) {
    gg_free(segments->first_of_layer);
    gg_free(segments->segment);
    *segments = (gg_segments){0};
}

static void add_times(gg_compression_counts *counts, const gg_compression_counts *other, int64_t times) {
    for (int i = 0; i < GG_FAMILY_COUNT; ++i) {
        counts->dense_bytes[i] += times * other->dense_bytes[i];
        counts->sent_bytes[i] += times * other->sent_bytes[i];
    }
    for (int i = 0; i < GG_COUNTS_HISTOGRAM; ++i) counts->bins_with[i] += times * other->bins_with[i];
    counts->elements_sent += times * other->elements_sent;
    counts->elements += times * other->elements;
}

void gg_compression_counts_add(gg_compression_counts *counts, const gg_compression_counts *more) {
    add_times(counts, more, 1);
}

void gg_compression_counts_subtract(gg_compression_counts *counts, const gg_compression_counts *before) {
    add_times(counts, before, -1);
}
