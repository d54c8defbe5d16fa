#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "data/data.h"

struct gg_loader {
    gg_dataset set;
    gg_loader_options options;
    int64_t *counts; /* of the sharding; NULL: none */
    int64_t count;   /* of the rank's shard */
    int64_t steps;
    uint32_t *order; /* its samples in this epoch's order: numbers in the set, or slots of the copy */
    uint32_t *rows;  /* where these lie, if the set has rows of its own and there is no copy; else NULL */
};

/* The least and the most samples that a rank has. */
static void find_extremes(const gg_sharding *sharding, int64_t *smallest, int64_t *largest) {
    *smallest = INT64_MAX;
    *largest = 0;
    for (int rank = 0; rank < sharding->size; ++rank) {
        int64_t slots = gg_sharding_slots(sharding, rank);
        if (slots < *smallest) *smallest = slots;
        if (slots > *largest) *largest = slots;
    }
}

static gg_status check_own(const gg_dataset *set, const gg_loader_options *options) {
    gg_status status = GG_OK;
    const gg_sharding *sharding = &options->sharding;
    int64_t all = 0;
    for (int rank = 0; rank < sharding->size; ++rank) {
        if (sharding->counts[rank] < 1)
            GG_FAIL(GG_ERROR_ARGUMENT, "rank %d brings %" PRId64 " samples; every rank needs at least one", rank,
                    sharding->counts[rank]);
        all += sharding->counts[rank];
    }
    if (all != sharding->count || all > INT32_MAX)
        GG_FAIL(GG_ERROR_ARGUMENT, "%" PRId64 " samples of all ranks; allowed are 1 to %d, here their sum %" PRId64,
                sharding->count, INT32_MAX, all);
    if (set->count != sharding->counts[options->rank])
        GG_FAIL(GG_ERROR_ARGUMENT, "rank %d has a set of %" PRId64 " samples; %" PRId64 " were announced",
                options->rank, set->count, sharding->counts[options->rank]);
cleanup:
    return status;
}

static gg_status check_options(const gg_dataset *set, const gg_loader_options *options) {
    gg_status status = GG_OK;
    const gg_sharding *sharding = &options->sharding;
    int64_t batch = options->batch, smallest, largest;
    if (sharding->size < 1) GG_FAIL(GG_ERROR_ARGUMENT, "loader: %d ranks; at least 1 is needed", sharding->size);
    if (options->rank < 0 || options->rank >= sharding->size)
        GG_FAIL(GG_ERROR_ARGUMENT, "loader: rank %d; allowed are 0 to %d", options->rank, sharding->size - 1);
    bool own = sharding->kind == GG_SHARD_OWN;
    if (own) {
        GG_TRY(check_own(set, options));
    } else if (set->count != sharding->count || set->count < sharding->size) {
        GG_FAIL(GG_ERROR_ARGUMENT, "%" PRId64 " samples for %d ranks: every rank needs at least one", set->count,
                sharding->size);
    }
    find_extremes(sharding, &smallest, &largest);
    int64_t most = own ? largest : smallest;
    if (batch < 1 || batch > most)
        GG_FAIL(GG_ERROR_ARGUMENT,
                "batch=%" PRId64 ": %" PRId64 " samples on %d ranks allow 1 to %" PRId64 " (the %s shard)", batch,
                sharding->count, sharding->size, most, own ? "largest" : "smallest");
cleanup:
    return status;
}

gg_status gg_loader_create(const gg_dataset *set, const gg_loader_options *options, gg_loader **out) {
    gg_status status = GG_OK;
    gg_loader *loader = NULL;
    void *block;
    *out = NULL;
    GG_TRY(gg_dataset_check(set));
    GG_TRY(check_options(set, options));
    GG_TRY(gg_calloc(1, sizeof *loader, "a loader", &block));
    loader = block;
    gg_dataset_retain(set);
    loader->set = *set;
    loader->options = *options;

    gg_sharding *sharding = &loader->options.sharding;
    int64_t smallest, largest;
    if (sharding->counts != NULL) {
        size_t bytes = (size_t)sharding->size * sizeof *sharding->counts;
        GG_TRY(gg_alloc(bytes, "samples of each rank", &block));
        loader->counts = memcpy(block, sharding->counts, bytes);
        sharding->counts = loader->counts;
    }
    find_extremes(sharding, &smallest, &largest);
    loader->count = gg_sharding_slots(sharding, options->rank);
    loader->steps = (largest + options->batch - 1) / options->batch;
    GG_TRY(gg_alloc((size_t)loader->count * sizeof *loader->order, "the order of the samples", &block));
    loader->order = block;
    if (set->rows != NULL && options->copy == NULL)
        GG_TRY(gg_alloc((size_t)loader->count * sizeof *loader->rows, "the places of the samples", &loader->rows));
    gg_loader_epoch(loader, 0);
    *out = loader;
    loader = NULL;
cleanup:
    gg_loader_destroy(loader);
    return status;
}

void gg_loader_destroy(gg_loader *loader) {
    if (!loader) return;
    gg_dataset_release(&loader->set);
    gg_free(loader->order);
    gg_free(loader->rows);
    gg_free(loader->counts);
    gg_free(loader);
}

int64_t gg_loader_steps(const gg_loader *loader) { return loader->steps; }

/* Slots 0 to n-1, permuted where the order is shuffled. */
static void order_slots(gg_loader *loader, int64_t epoch, int rank, uint32_t n) {
    const gg_random_key key = {
        .seed = loader->options.seed,
        .purpose = GG_RANDOM_SHUFFLE,
        .rank = (uint32_t)rank,
        .step = (uint64_t)epoch,
    };
    if (loader->options.shuffle) gg_random_permutation(&key, n, loader->order);
    else
        for (uint32_t i = 0; i < n; ++i) loader->order[i] = i;
}

void gg_loader_epoch(gg_loader *loader, int64_t epoch) {
    const gg_sharding *sharding = &loader->options.sharding;
    uint32_t count = (uint32_t)loader->count;
    if (loader->options.copy == NULL) {
        order_slots(loader, epoch, loader->options.rank, count);
        /* With OWN a slot is a sample of the rank's own set. */
        for (uint32_t i = 0; sharding->kind != GG_SHARD_OWN && i < count; ++i)
            loader->order[i] = (uint32_t)gg_sharding_id(sharding, loader->options.rank, loader->order[i]);
        for (uint32_t i = 0; loader->rows != NULL && i < count; ++i)
            loader->rows[i] = (uint32_t)gg_dataset_row(&loader->set, loader->order[i]);
        return;
    }
    uint32_t common = (uint32_t)(sharding->count / sharding->size);
    order_slots(loader, epoch, 0, common);
    if (count == common) return;
    /* The one slot more of a larger shard comes last but one: whatever the batch, no common slot then changes its step.
     */
    loader->order[common] = loader->order[common - 1];
    loader->order[common - 1] = common;
}

/* Where step t starts in a shard of `count` samples, for 0 <= t <= steps. */
static int64_t batch_begin(const gg_loader *loader, int64_t count, int64_t step) {
    int64_t begin = step * loader->options.batch;
    if (count < (loader->steps - 1) * loader->options.batch) return step * count / loader->steps;
    if (step >= loader->steps) return count;
    /* A shard that the full batches use up leaves nothing for the last step: that one then starts a sample earlier. */
    return begin < count ? begin : count - 1;
}

int64_t gg_loader_batch(const gg_loader *loader, int rank, int64_t step) {
    const gg_sharding *sharding = &loader->options.sharding;
    if (rank < 0 || rank >= sharding->size || step < 0 || step >= loader->steps) return 0;
    int64_t count = gg_sharding_slots(sharding, rank);
    int64_t n = batch_begin(loader, count, step + 1) - batch_begin(loader, count, step);
    /* Batches of one have no sample to move: the smaller shards then see a sample more than once. */
    return n > 0 ? n : 1;
}

gg_status gg_loader_read(gg_loader *loader, gg_device *device, int64_t step, gg_layout layout, float *samples,
                         void *targets, float *sample_weights) {
    gg_status status = GG_OK;
    const gg_shard_copy *copy = loader->options.copy;
    const gg_dataset *set = copy ? &copy->set : &loader->set;
    int64_t n = gg_loader_batch(loader, loader->options.rank, step);
    if (copy != NULL && copy->in_flight)
        GG_FAIL(GG_ERROR_STATE, "step %" PRId64 " of the epoch: samples are being replaced and cannot be read", step);
    if (n == 0) goto cleanup;
    const int64_t begin = batch_begin(loader, loader->count, step);
    const uint32_t *index = loader->order + begin;
    const gg_gather_args args = {
        .dtype = set->dtype,
        .rows = gg_storage_data(set->samples),
        .values = gg_shape_count(&set->shape),
        .index = loader->rows != NULL ? loader->rows + begin : index,
        .n = n,
        .scale = set->scale,
        .shift = set->shift,
        .layout = layout,
        .out = samples,
    };
    device->table->gather(device, &args);

    size_t bytes = (size_t)set->target_values * gg_dtype_size(set->target_dtype);
    const char *from = gg_storage_data(set->targets);
    char *to = targets;
    for (int64_t i = 0; i < n; ++i) memcpy(to + (size_t)i * bytes, from + (size_t)index[i] * bytes, bytes);
    if (set->sample_weights == NULL) goto cleanup;
    const float *weight = gg_storage_data(set->sample_weights);
    for (int64_t i = 0; i < n; ++i) sample_weights[i] = weight[index[i]];
cleanup:
    return status;
}
