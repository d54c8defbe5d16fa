#include "exchange/parts/reductions.h"

#include "base/memory.h"
#include "exchange/parts/common.h"

/* The sum started last; all or part of it may be left to a later step. */
typedef struct gg_summed {
    const gg_strategy *owner;
    int64_t step; /* of the gradients */
    bool left;    /* all of it */
} gg_summed;

gg_status gg_reductions_create(gg_strategy *owner, const gg_strategy_options *options, const gg_buckets *buckets,
                               const gg_reduction_run *run, gg_reductions *out) {
    *out = (gg_reductions){.owner = owner, .buckets = buckets};
    GG_TRY(gg_buckets_check_tags(buckets, GG_TAG_LIMIT - run->tag));
    GG_TRY(gg_calloc((size_t)buckets->chunk_count, sizeof *out->of_chunk, "reductions", &out->of_chunk));
    GG_TRY(gg_calloc((size_t)buckets->chunk_count, sizeof *out->summed, "reductions", &out->summed));
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
    gg_free(reductions->summed);
}

void gg_reductions_complete(const gg_reductions *reductions) {
    for (int i = 0; i < reductions->buckets->chunk_count; ++i) gg_reduction_complete(reductions->of_chunk[i]);
}

/* step: of the gradients that are summed. */
static gg_status at_step(const gg_reductions *reductions, int chunk, int64_t step, gg_status status) {
    const gg_bucket *bucket = &reductions->buckets->bucket[gg_buckets_of_chunk(reductions->buckets, chunk)];
    return gg_strategy_at_step(reductions->owner, step, bucket->first_layer, bucket->last_layer, status);
}

gg_status gg_reductions_at(const gg_reductions *reductions, int chunk, gg_status status) {
    return at_step(reductions, chunk, reductions->owner->step, status);
}

/* Only packed reductions take or leave anything, and each of these is a whole bucket. */
static int chunk_of_layer(const gg_reductions *reductions, int layer) {
    const gg_buckets *buckets = reductions->buckets;
    return buckets->bucket[buckets->bucket_of_layer[layer]].first_chunk;
}

static gg_reduction *of_layer(const gg_reductions *reductions, int layer) {
    return reductions->of_chunk[chunk_of_layer(reductions, layer)];
}

static void update_piece(void *context, size_t offset, size_t count, const float *sum, gg_lines filled) {
    const gg_summed *summed = context;
    const gg_strategy_env *env = &summed->owner->env;
    gg_updater_apply(env->updater, env->device, env->state,
                     &(gg_update){.step = summed->step,
                                  .offset = offset,
                                  .count = count,
                                  .owned_offset = offset,
                                  .gradient = sum,
                                  .filled = filled});
}

gg_status gg_reductions_start(gg_reductions *reductions, int chunk, const float *share) {
    gg_strategy *owner = reductions->owner;
    float *gradients = gg_state_gradients(owner->env.state) + reductions->buckets->chunk[chunk].offset;
    /* This delivers rows that the sum before has left, whose step must still be there. */
    const gg_status status = gg_reduction_start(reductions->of_chunk[chunk], gradients, share);
    if (status == GG_OK) reductions->summed[chunk] = (gg_summed){.owner = owner, .step = owner->step};
    return status;
}

gg_status gg_reductions_finish(const gg_reductions *reductions, int chunk) {
    return at_step(reductions, chunk, reductions->summed[chunk].step, gg_reduction_finish(reductions->of_chunk[chunk]));
}

gg_status gg_reductions_update(gg_reductions *reductions, int chunk) {
    return gg_reduction_deliver(reductions->of_chunk[chunk], update_piece, &reductions->summed[chunk]);
}

gg_status gg_reductions_leave(gg_reductions *reductions, int chunk, bool *left) {
    gg_status status = GG_OK;
    gg_reduction *reduction = reductions->of_chunk[chunk];
    bool summed;
    *left = false;
    if (!gg_reduction_is_asked(reduction)) goto cleanup;
    GG_TRY_CLEANUP(gg_reduction_poll(reduction, &summed));
    *left = gg_reduction_can_wait(reduction);
    if (!*left) goto cleanup;
    reductions->summed[chunk].left = true;
    ++reductions->left;
cleanup:
    return gg_reductions_at(reductions, chunk, status);
}

static gg_status need_chunk(gg_reductions *reductions, int chunk) {
    gg_status status = GG_OK;
    gg_summed *summed = &reductions->summed[chunk];
    if (!summed->left) goto cleanup;
    summed->left = false;
    --reductions->left;
    GG_TRY_CLEANUP(gg_reduction_wait(reductions->of_chunk[chunk]));
    GG_TRY_CLEANUP(gg_reduction_deliver(reductions->of_chunk[chunk], update_piece, summed));
cleanup:
    return at_step(reductions, chunk, summed->step, status);
}

gg_status gg_reductions_need(gg_reductions *reductions, int layer, gg_weight_rows *rows) {
    GG_TRY(need_chunk(reductions, chunk_of_layer(reductions, layer)));
    gg_reduction_need(of_layer(reductions, layer), layer, rows);
    return GG_OK;
}

gg_status gg_reductions_need_all(gg_reductions *reductions) {
    for (int i = 0; i < reductions->buckets->chunk_count; ++i) GG_TRY(need_chunk(reductions, i));
    return GG_OK;
}

void gg_reductions_settle(const gg_reductions *reductions) {
    for (int i = 0; i < reductions->buckets->chunk_count; ++i)
        gg_reduction_need(reductions->of_chunk[i], GG_ALL_LAYERS, NULL);
    gg_reductions_complete(reductions);
}

gg_status gg_reductions_input(const gg_reductions *reductions, int layer, const gg_vectors *input, bool *taken) {
    return gg_strategy_at(reductions->owner, layer, layer,
                          gg_reduction_input(of_layer(reductions, layer), layer, input, taken));
}

gg_status gg_reductions_error(const gg_reductions *reductions, int layer, const gg_vectors *error) {
    return gg_strategy_at(reductions->owner, layer, layer,
                          gg_reduction_error(of_layer(reductions, layer), layer, error));
}
