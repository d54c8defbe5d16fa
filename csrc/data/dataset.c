#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "data/data.h"

/* Row numbers are 32 bits wide, and a permutation has fewer than 2^31 elements. */
#define MAX_SAMPLES ((int64_t)INT32_MAX)

static gg_status check_storage(const char *what, const gg_storage *storage, gg_dtype dtype, int64_t count,
                               int64_t values) {
    gg_status status = GG_OK;
    size_t size = gg_dtype_size(dtype);
    if (!storage) GG_FAIL(GG_ERROR_ARGUMENT, "data set: no %s", what);
    size_t bytes = gg_storage_bytes(storage);
    /* By division, since a product of arbitrary numbers may overflow. */
    size_t row = (size_t)values * size;
    if (bytes % row != 0 || bytes / row != (size_t)count)
        GG_FAIL(GG_ERROR_SHAPE,
                "data set: %s have %zu bytes, but %" PRId64 " samples of %" PRId64
                " %s values are wanted (%zu bytes each)",
                what, bytes, count, values, gg_dtype_name(dtype), size);
    if ((uintptr_t)gg_storage_data(storage) % size != 0)
        GG_FAIL(GG_ERROR_ARGUMENT, "data set: the memory of the %s is not aligned to %s (%zu bytes)", what,
                gg_dtype_name(dtype), size);
cleanup:
    return status;
}

static gg_status check_rows(const gg_dataset *set) {
    gg_status status = GG_OK;
    GG_TRY(check_storage("rows", set->rows, GG_INT32, set->count, 1)); /* as wide as uint32 */
    for (int64_t i = 0; i < set->count; ++i)
        if (gg_dataset_row(set, i) >= set->stored)
            GG_FAIL(GG_ERROR_ARGUMENT, "data set: sample %" PRId64 " is row %" PRId64 "; allowed are 0 to %" PRId64, i,
                    gg_dataset_row(set, i), set->stored - 1);
cleanup:
    return status;
}

int64_t gg_dataset_row(const gg_dataset *set, int64_t i) {
    return set->rows != NULL ? (int64_t)((const uint32_t *)gg_storage_data(set->rows))[i] : i;
}

gg_status gg_dataset_check(const gg_dataset *set) {
    gg_status status = GG_OK;
    int64_t values = 1;
    if (set->dtype != GG_UINT8 && set->dtype != GG_FLOAT32)
        GG_FAIL(GG_ERROR_TYPE, "data set: samples are %s; allowed are uint8, float32", gg_dtype_name(set->dtype));
    if (set->target_dtype != GG_INT32 && set->target_dtype != GG_FLOAT32)
        GG_FAIL(GG_ERROR_TYPE, "data set: targets are %s; allowed are int32, float32",
                gg_dtype_name(set->target_dtype));
    if (set->count < 1 || set->count > MAX_SAMPLES)
        GG_FAIL(GG_ERROR_ARGUMENT, "data set: %" PRId64 " samples; allowed are 1 to %" PRId64, set->count, MAX_SAMPLES);
    if (set->shape.dims < 1 || set->shape.dims > GG_MAX_DIMS)
        GG_FAIL(GG_ERROR_SHAPE, "data set: a sample has %d dimensions; allowed are 1 to %d", set->shape.dims,
                GG_MAX_DIMS);
    for (int i = 0; i < set->shape.dims; ++i) {
        int64_t size = set->shape.size[i];
        if (size < 1 || size > INT64_MAX / 8 / values) {
            char text[GG_SHAPE_TEXT];
            GG_FAIL(GG_ERROR_SHAPE, "data set: a sample has the shape %s; every size must be at least 1%s",
                    gg_shape_text(&set->shape, text), size < 1 ? "" : " and the product must fit in memory");
        }
        values *= size;
    }
    if (set->target_values < 1 || set->target_values > INT64_MAX / 8 ||
        (set->target_dtype == GG_INT32 && set->target_values != 1))
        GG_FAIL(GG_ERROR_SHAPE, "data set: %" PRId64 " target values a sample; %s", set->target_values,
                set->target_dtype == GG_INT32 ? "int32 targets are one class a sample" : "at least 1 is needed");
    if (!isfinite(set->scale) || !isfinite(set->shift))
        GG_FAIL(GG_ERROR_ARGUMENT, "data set: scale=%g, shift=%g: must be finite", (double)set->scale,
                (double)set->shift);
    GG_TRY(check_storage("samples", set->samples, set->dtype, set->rows ? set->stored : set->count, values));
    if (set->rows != NULL) GG_TRY(check_rows(set));
    GG_TRY(check_storage("targets", set->targets, set->target_dtype, set->count, set->target_values));
    if (set->sample_weights != NULL)
        GG_TRY(check_storage("sample weights", set->sample_weights, GG_FLOAT32, set->count, 1));
cleanup:
    return status;
}

gg_status gg_dataset_check_classes(const gg_dataset *set, int64_t classes) {
    gg_status status = GG_OK;
    if (set->target_dtype != GG_INT32)
        GG_FAIL(GG_ERROR_TYPE, "data set: targets are %s, but classes (int32) are needed",
                gg_dtype_name(set->target_dtype));
    const int32_t *target = gg_storage_data(set->targets);
    for (int64_t i = 0; i < set->count; ++i)
        if (target[i] < 0 || target[i] >= classes)
            GG_FAIL(GG_ERROR_ARGUMENT, "data set: sample %" PRId64 " has class %" PRId32 "; allowed are 0 to %" PRId64,
                    i, target[i], classes - 1);
cleanup:
    return status;
}

void gg_dataset_retain(const gg_dataset *set) {
    if (set->samples) gg_storage_retain(set->samples);
    if (set->targets) gg_storage_retain(set->targets);
    if (set->sample_weights) gg_storage_retain(set->sample_weights);
    if (set->rows) gg_storage_retain(set->rows);
}

void gg_dataset_release(gg_dataset *set) {
    gg_storage_release(set->samples);
    gg_storage_release(set->targets);
    gg_storage_release(set->sample_weights);
    gg_storage_release(set->rows);
    memset(set, 0, sizeof *set);
}
