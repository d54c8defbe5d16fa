#include "data/dataset.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Row numbers are 32 bits wide and the permutation takes less than 2^31. */
#define MAX_SAMPLES ((int64_t)INT32_MAX)

const char *gg_dataset_field_name(const gg_dataset *set, int field, char text[GG_FIELD_TEXT]) {
    const bool input = field < set->inputs;
    const int of = input ? set->inputs : set->targets;
    if (of == 1) snprintf(text, GG_FIELD_TEXT, "%s", input ? "samples" : "targets");
    else snprintf(text, GG_FIELD_TEXT, "%s %d", input ? "input" : "target", input ? field : field - set->inputs);
    return text;
}

int64_t gg_field_values(const gg_field *field) { return field->shape.dims == 0 ? 1 : gg_shape_count(&field->shape); }

size_t gg_field_bytes(const gg_field *field) { return (size_t)gg_field_values(field) * gg_dtype_size(field->dtype); }

static gg_status check_storage(const char *what, const gg_storage *storage, gg_dtype dtype, int64_t count,
                               int64_t values) {
    size_t size = gg_dtype_size(dtype);
    if (!storage) return gg_fail(GG_ERROR_ARGUMENT, "data set: no %s", what);
    size_t bytes = gg_storage_bytes(storage);
    /* By division, since a product of arbitrary numbers may overflow. */
    size_t row = (size_t)values * size;
    if (bytes % row != 0 || bytes / row != (size_t)count)
        return gg_fail(GG_ERROR_SHAPE,
                       "data set: %s have %zu bytes, but %" PRId64 " samples of %" PRId64
                       " %s values are wanted (%zu bytes each)",
                       what, bytes, count, values, gg_dtype_name(dtype), size);
    if ((uintptr_t)gg_storage_data(storage) % size != 0)
        return gg_fail(GG_ERROR_ARGUMENT, "data set: the memory of the %s is not aligned to %s (%zu bytes)", what,
                       gg_dtype_name(dtype), size);
    return GG_OK;
}

static gg_status check_rows(const gg_dataset *set) {
    GG_TRY(check_storage("rows", set->rows, GG_INT32, set->count, 1)); /* as wide as uint32 */
    for (int64_t i = 0; i < set->count; ++i)
        if (gg_dataset_row(set, i) >= set->stored)
            return gg_fail(GG_ERROR_ARGUMENT,
                           "data set: sample %" PRId64 " is row %" PRId64 "; allowed are 0 to %" PRId64, i,
                           gg_dataset_row(set, i), set->stored - 1);
    return GG_OK;
}

/* The shape's values, each axis at least 1, so that their bytes can be counted. */
static gg_status check_shape(const gg_field *field, const char *name, bool input) {
    const gg_shape *shape = &field->shape;
    int64_t values = 1;
    if (shape->dims < (input ? 1 : 0) || shape->dims > GG_MAX_DIMS)
        return gg_fail(GG_ERROR_SHAPE, "data set: %s: a sample has %d dimensions; allowed are %d to %d", name,
                       shape->dims, input ? 1 : 0, GG_MAX_DIMS);
    for (int i = 0; i < shape->dims; ++i) {
        int64_t size = shape->size[i];
        if (size < 1 || size > INT64_MAX / 8 / values) {
            char text[GG_SHAPE_TEXT];
            return gg_fail(GG_ERROR_SHAPE, "data set: %s: a sample has the shape %s; every size must be at least 1%s",
                           name, gg_shape_text(shape, text), size < 1 ? "" : " and the product must fit in memory");
        }
        values *= size;
    }
    return GG_OK;
}

static gg_status check_scales(const gg_field *field, const char *name) {
    if (!isfinite(field->scale) || !isfinite(field->shift))
        return gg_fail(GG_ERROR_ARGUMENT, "data set: %s: scale=%g, shift=%g: must be finite", name,
                       (double)field->scale, (double)field->shift);
    if (field->scales == NULL) return GG_OK;
    const int64_t runs = field->runs, channels = field->shape.size[0], values = gg_field_values(field);
    if (runs != channels && runs != values)
        return gg_fail(GG_ERROR_SHAPE,
                       "data set: %s: scales of %" PRId64 " runs; must be those of %" PRId64 " channels or of %" PRId64
                       " values",
                       name, runs, channels, values);
    GG_TRY(check_storage("scales", field->scales, GG_FLOAT32, 2 * runs, 1));
    const float *scales = gg_storage_data(field->scales);
    for (int64_t i = 0; i < runs; ++i)
        if (!isfinite(scales[i]) || !isfinite(scales[runs + i]))
            return gg_fail(GG_ERROR_ARGUMENT, "data set: %s: %s %" PRId64 " has scale=%g, shift=%g: must be finite",
                           name, runs == channels ? "channel" : "value", i, (double)scales[i],
                           (double)scales[runs + i]);
    return GG_OK;
}

static gg_status check_field(const gg_dataset *set, int i) {
    const gg_field *field = &set->field[i];
    const bool input = i < set->inputs;
    char name[GG_FIELD_TEXT];
    gg_dataset_field_name(set, i, name);
    if (!(field->dtype == GG_INT32 || field->dtype == GG_FLOAT32 || (input && field->dtype == GG_UINT8)))
        return gg_fail(GG_ERROR_TYPE, "data set: %s are %s; allowed are %sint32, float32", name,
                       gg_dtype_name(field->dtype), input ? "uint8, " : "");
    if (input && field->tokens && field->dtype == GG_FLOAT32)
        return gg_fail(GG_ERROR_TYPE, "data set: %s are float32 as tokens; tokens are int32 or uint8", name);
    GG_TRY(check_shape(field, name, input));
    if (field->classes < 0)
        return gg_fail(GG_ERROR_ARGUMENT, "data set: %s: %" PRId64 " classes; must be at least 0", name,
                       field->classes);
    if (input) GG_TRY(check_scales(field, name));
    if (set->memory[i] == NULL && set->source != NULL) return GG_OK;
    return check_storage(name, set->memory[i], field->dtype, input && set->rows ? set->stored : set->count,
                         gg_field_values(field));
}

int64_t gg_dataset_row(const gg_dataset *set, int64_t i) {
    return set->rows != NULL ? (int64_t)((const uint32_t *)gg_storage_data(set->rows))[i] : i;
}

void *gg_dataset_at(const gg_dataset *set, int field, int64_t i) {
    const int64_t row = field < set->inputs ? gg_dataset_row(set, i) : i;
    return (char *)gg_storage_data(set->memory[field]) + (size_t)row * gg_field_bytes(&set->field[field]);
}

/* A source that can only go on is given no order but its own. */
static gg_status check_order(const gg_dataset *set) {
    for (int64_t i = 1; set->source->ordered && set->rows != NULL && i < set->count; ++i)
        if (gg_dataset_row(set, i) <= gg_dataset_row(set, i - 1))
            return gg_fail(GG_ERROR_ARGUMENT,
                           "data set: sample %" PRId64 " is row %" PRId64 ", after row %" PRId64
                           "; samples that can only be read one after the other stay in their order",
                           i, gg_dataset_row(set, i), gg_dataset_row(set, i - 1));
    return GG_OK;
}

gg_status gg_dataset_check(const gg_dataset *set) {
    if (set->inputs < 1 || set->targets < 0 || set->inputs > GG_MAX_FIELDS || set->targets > GG_MAX_FIELDS)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "data set: %d inputs and %d targets; allowed are 1 to %d inputs, 0 to %d targets", set->inputs,
                       set->targets, GG_MAX_FIELDS, GG_MAX_FIELDS);
    if (set->count < 1 || set->count > MAX_SAMPLES)
        return gg_fail(GG_ERROR_ARGUMENT, "data set: %" PRId64 " samples; allowed are 1 to %" PRId64, set->count,
                       MAX_SAMPLES);
    for (int i = 0; i < gg_dataset_fields(set); ++i) GG_TRY(check_field(set, i));
    if (set->rows != NULL) GG_TRY(check_rows(set));
    if (set->source != NULL) {
        if (set->source->readers < 1 || set->source->ahead < 1 || (set->source->ordered && set->source->readers > 1))
            return gg_fail(GG_ERROR_ARGUMENT,
                           "data set: %d threads read %d batches ahead; at least 1 of each is needed%s",
                           set->source->readers, set->source->ahead,
                           set->source->ordered ? ", and a source that can only go on has one thread" : "");
        GG_TRY(check_order(set));
    }
    if (set->sample_weights != NULL)
        GG_TRY(check_storage("sample weights", set->sample_weights, GG_FLOAT32, set->count, 1));
    return GG_OK;
}

/* The first of n values that is no class of the field; n: all are. */
static int64_t find_wrong_class(const gg_field *field, const void *values, int64_t n) {
    const int32_t *number = values;
    const uint8_t *byte = values;
    for (int64_t i = 0; i < n; ++i) {
        const int64_t value = field->dtype == GG_UINT8 ? byte[i] : number[i];
        if ((value < field->first || value >= field->classes) && !(field->ignores && value == field->ignored)) return i;
    }
    return n;
}

static int64_t find_wrong_number(const float *values, int64_t n) {
    for (int64_t i = 0; i < n; ++i)
        if (!isfinite(values[i])) return i;
    return n;
}

static gg_status fail_class(const gg_field *field, const char *where, int64_t sample, int64_t value) {
    char besides[40] = "";
    if (field->ignores) snprintf(besides, sizeof besides, ", and %" PRId32, field->ignored);
    return gg_fail(GG_ERROR_ARGUMENT,
                   "data set: %s: sample %" PRId64 " has %s %" PRId64 "; allowed are %" PRId64 " to %" PRId64 "%s",
                   where, sample,
                   field->first > 0 ? "number"
                   : field->tokens  ? "token"
                                    : "class",
                   value, field->first, field->classes - 1, besides);
}

static bool has_classes(const gg_field *field) {
    return field->classes > 0 && (field->dtype == GG_INT32 || (field->dtype == GG_UINT8 && field->tokens));
}

static int64_t value_at(const gg_field *field, const void *values, int64_t at) {
    return field->dtype == GG_UINT8 ? ((const uint8_t *)values)[at] : ((const int32_t *)values)[at];
}

gg_status gg_dataset_check_classes(const gg_dataset *set) {
    char name[GG_FIELD_TEXT];
    for (int f = 0; f < gg_dataset_fields(set); ++f) {
        const gg_field *field = &set->field[f];
        if (set->memory[f] == NULL || !has_classes(field)) continue;
        const int64_t each = gg_field_values(field);
        for (int64_t i = 0; i < set->count; ++i) {
            const void *values = gg_dataset_at(set, f, i);
            const int64_t wrong = find_wrong_class(field, values, each);
            if (wrong < each)
                GG_TRY(fail_class(field, gg_dataset_field_name(set, f, name), i, value_at(field, values, wrong)));
        }
    }
    return GG_OK;
}

gg_status gg_field_check_rows(const gg_field *field, const char *name, const void *values, const uint32_t *rows,
                              int64_t n) {
    const int64_t each = gg_field_values(field), all = n * each;
    if (field->dtype == GG_FLOAT32) {
        const int64_t wrong = find_wrong_number(values, all);
        if (wrong < all)
            return gg_fail(GG_ERROR_ARGUMENT, "data set: %s: sample %" PRIu32 " has %g; allowed: finite numbers", name,
                           rows[wrong / each], (double)((const float *)values)[wrong]);
    } else if (has_classes(field)) {
        const int64_t wrong = find_wrong_class(field, values, all);
        if (wrong < all) GG_TRY(fail_class(field, name, rows[wrong / each], value_at(field, values, wrong)));
    }
    return GG_OK;
}

static void retain(gg_storage *storage) {
    if (storage != NULL) gg_storage_retain(storage);
}

void gg_dataset_retain(const gg_dataset *set) {
    for (int i = 0; i < GG_SET_FIELDS; ++i) {
        retain(set->memory[i]);
        retain(set->field[i].scales);
    }
    retain(set->sample_weights);
    retain(set->rows);
    if (set->source != NULL) gg_source_retain(set->source);
}

void gg_dataset_release(gg_dataset *set) {
    for (int i = 0; i < GG_SET_FIELDS; ++i) {
        gg_storage_release(set->memory[i]);
        gg_storage_release(set->field[i].scales);
    }
    gg_storage_release(set->sample_weights);
    gg_storage_release(set->rows);
    gg_source_release(set->source);
    memset(set, 0, sizeof *set);
}
