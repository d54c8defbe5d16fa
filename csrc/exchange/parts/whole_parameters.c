#include "exchange/parts/whole_parameters.h"

#include "base/memory.h"
#include "exchange/parts/common.h"

static size_t whole_lanes(size_t count) { return (count + GG_LANES - 1) / GG_LANES * GG_LANES; }

gg_status gg_whole_create(gg_whole_parameters *whole, int tag) {
    const gg_strategy_env *env = &whole->owner->env;
    for (int i = 0; i < whole->segments; ++i) whole->count += whole->segment[i].count;
    whole->count = whole_lanes(whole->count);
    if (whole->count == 0) return GG_OK;
    GG_TRY(gg_message_alloc(env->transport, whole->count * sizeof *whole->values, "whole parameters", &whole->values));
    GG_TRY(gg_allreduce_create(whole->group, env->device, whole->count, tag, NULL, GG_COLLECTIVES_OWN, &whole->sum));
    gg_strategy_watch(whole->owner, whole->sum);
    return GG_OK;
}

void gg_whole_destroy(gg_whole_parameters *whole) {
    if (whole->owner == NULL) return;
    gg_allreduce_destroy(whole->sum);
    gg_message_free(whole->owner->env.transport, whole->values);
}

/* Sends a residue that was loaded with a parameter that travels whole, from its place in the summing memory. Such a
 * residue stems, for example, from a removed unit that has gone into biases. */
static gg_status send_loaded(gg_whole_parameters *whole, const gg_segment *one, float scale, float *at) {
    gg_status status = GG_OK;
    gg_device *device = whole->owner->env.device;
    const size_t bytes = one->count * sizeof *at;
    float *residue = NULL;
    bool any = false;
    GG_TRY_CLEANUP(gg_alloc(bytes, "residue of a parameter that travels whole", &residue));
    GG_TRY_CLEANUP(gg_device_read(device, residue, whole->residue + one->offset, bytes));
    for (size_t i = 0; i < one->count; ++i) any |= residue[i] != 0;
    for (size_t i = 0; i < one->count && any; ++i) at[i] += residue[i] / scale;
    gg_device_zero(device, GG_QUEUE_COMPUTE, whole->residue + one->offset, any ? bytes : 0);
cleanup:
    gg_free(residue);
    return status;
}

/* Copies the values to the summing memory. scale: this rank's share in the sum. */
static gg_status copy_values(gg_whole_parameters *whole, gg_whole_source *source, void *context, float scale) {
    gg_device *device = whole->owner->env.device;
    float *at = whole->values;
    for (int i = 0; i < whole->segments; ++i) {
        const gg_segment *one = &whole->segment[i];
        const float *from = source(context, one->offset, whole_lanes(one->count));
        gg_device_copy(device, GG_QUEUE_COMPUTE, at, from, one->count * sizeof *at);
        if (scale > 0 && whole->loads != whole->owner->loads) GG_TRY(send_loaded(whole, one, scale, at));
        at += one->count;
    }
    if (scale > 0) whole->loads = whole->owner->loads;
    return GG_OK;
}

static void apply_values(const gg_whole_parameters *whole, float scale) {
    gg_device *device = whole->owner->env.device;
    float *at = whole->values;
    for (int i = 0; i < whole->segments; ++i) {
        const gg_segment *one = &whole->segment[i];
        device->table->add_elements(device, &(gg_elements_args){.n = one->count,
                                                                .dtype = GG_FLOAT32,
                                                                .values = at,
                                                                .factor = scale,
                                                                .at = whole->applied + one->offset});
        at += one->count;
    }
}

gg_status gg_whole_start(gg_whole_parameters *whole, gg_whole_source *source, void *context, const float *share,
                         gg_compression_counts *counts, size_t *bytes) {
    if (whole->sum == NULL) return GG_OK;
    const float scale = share[whole->group->rank];
    GG_TRY(copy_values(whole, source, context, scale));
    gg_compression_count_dense(whole->segment, whole->segments, counts);
    if (whole->applied != NULL) apply_values(whole, scale);
    *bytes += whole->count * sizeof *whole->values;
    return gg_allreduce_start(whole->sum, whole->values, share);
}

static void copy_back(const gg_whole_parameters *whole, float *data) {
    const float *at = whole->values;
    for (int i = 0; i < whole->segments; ++i) {
        const gg_segment *one = &whole->segment[i];
        gg_device_copy(whole->owner->env.device, GG_QUEUE_COMPUTE, data + one->offset, at, one->count * sizeof *at);
        at += one->count;
    }
}

gg_status gg_whole_advance(gg_whole_parameters *whole, float *data, bool wait, bool *done) {
    *done = true;
    if (whole->sum == NULL) return GG_OK;
    if (wait) GG_TRY(gg_allreduce_wait(whole->sum));
    else GG_TRY(gg_allreduce_poll(whole->sum, done));
    if (*done) copy_back(whole, data);
    return GG_OK;
}

gg_status gg_whole_finish(gg_whole_parameters *whole) {
    return whole->sum == NULL ? GG_OK : gg_allreduce_finish(whole->sum);
}

void gg_whole_cancel(gg_whole_parameters *whole) { gg_allreduce_cancel(whole->sum); }
