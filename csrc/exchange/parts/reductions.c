#include "exchange/parts/reductions.h"

#include "base/memory.h"
#include "exchange/parts/common.h"

gg_status gg_reductions_create(gg_strategy *owner, const gg_strategy_options *options, const gg_buckets *buckets,
                               const gg_reduction_run *run, gg_reductions *out) {
    *out = (gg_reductions){.owner = owner, .buckets = buckets};
    GG_TRY(gg_buckets_check_tags(buckets, GG_TAG_LIMIT - run->tag));
    GG_TRY(gg_calloc((size_t)buckets->chunk_count, sizeof *out->of_chunk, "reductions", &out->of_chunk));
    for (int i = 0; i < buckets->chunk_count; ++i) {
        gg_reduction_run own = *run;
        own.offset = buckets->chunk[i].offset;
        own.count = buckets->chunk[i].count;
        own.tag = run->tag + i;
        GG_TRY(gg_reduction_create(owner, options, &own, &out->of_chunk[i]));
        out->takes = out->takes || out->of_chunk[i]->takes;
    }
    return GG_OK;
}

void gg_reductions_destroy(gg_reductions *reductions) {
    if (reductions->of_chunk == NULL) return;
    for (int i = reductions->buckets->chunk_count - 1; i >= 0; --i) gg_reduction_destroy(reductions->of_chunk[i]);
    gg_free(reductions->of_chunk);
}

void gg_reductions_complete(const gg_reductions *reductions) {
    for (int i = 0; i < reductions->buckets->chunk_count; ++i) gg_reduction_complete(reductions->of_chunk[i]);
}

void gg_reductions_cancel(const gg_reductions *reductions) {
    for (int i = 0; i < reductions->buckets->chunk_count; ++i) gg_reduction_cancel(reductions->of_chunk[i]);
}

gg_status gg_reductions_at(const gg_reductions *reductions, int chunk, gg_status status) {
    const gg_bucket *bucket = &reductions->buckets->bucket[gg_buckets_of_chunk(reductions->buckets, chunk)];
    return gg_strategy_at(reductions->owner, bucket->first_layer, bucket->last_layer, status);
}

/* Only packed reductions take anything, and each of these is a whole bucket. */
static int chunk_of_layer(const gg_reductions *reductions, int layer) {
    const gg_buckets *buckets = reductions->buckets;
    return buckets->bucket[buckets->bucket_of_layer[layer]].first_chunk;
}

static gg_reduction *of_layer(const gg_reductions *reductions, int layer) {
    return reductions->of_chunk[chunk_of_layer(reductions, layer)];
}

static void update_piece(void *context, size_t offset, size_t count, const float *sum, gg_lines filled) {
    const gg_strategy *owner = context;
    const gg_strategy_env *env = &owner->env;
    gg_updater_apply(env->updater, env->device, env->state,
                     &(gg_update){.step = owner->step,
                                  .offset = offset,
                                  .count = count,
                                  .owned_offset = offset,
                                  .gradient = sum,
                                  .filled = filled});
}

gg_status gg_reductions_start(gg_reductions *reductions, int chunk, const float *share) {
    float *gradients = gg_state_gradients(reductions->owner->env.state) + reductions->buckets->chunk[chunk].offset;
    return gg_reduction_start(reductions->of_chunk[chunk], gradients, share);
}

gg_status gg_reductions_finish(const gg_reductions *reductions, int chunk) {
    const gg_status status = gg_reduction_finish(reductions->of_chunk[chunk]);
    return gg_reductions_at(reductions, chunk, status == GG_ERROR_PEER ? GG_OK : status);
}

gg_status gg_reductions_update(gg_reductions *reductions, int chunk) {
    return gg_reduction_deliver(reductions->of_chunk[chunk], update_piece, reductions->owner);
}

gg_status gg_reductions_input(const gg_reductions *reductions, int layer, const gg_vectors *input, bool *taken) {
    return gg_strategy_at(reductions->owner, layer, layer,
                          gg_reduction_input(of_layer(reductions, layer), layer, input, taken));
}

gg_status gg_reductions_error(const gg_reductions *reductions, int layer, const gg_vectors *error) {
    return gg_strategy_at(reductions->owner, layer, layer,
                          gg_reduction_error(of_layer(reductions, layer), layer, error));
}
