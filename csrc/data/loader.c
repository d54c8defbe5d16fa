#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "data/data.h"

struct gg_loader {
    gg_dataset set;
    gg_loader_options options;
    int64_t begin, count; /* the rank's shard */
    int64_t steps;
    uint32_t *order; /* its samples in this epoch's order: row numbers of the whole set, or slots of the copy */
};

static gg_status check_options(const gg_dataset *set, const gg_loader_options *options) {
    int64_t batch = options->batch;
    if (options->size < 1) return gg_fail(GG_ERROR_ARGUMENT, "loader: %d ranks; at least 1 is needed", options->size);
    if (options->rank < 0 || options->rank >= options->size)
        return gg_fail(GG_ERROR_ARGUMENT, "loader: rank %d; allowed are 0 to %d", options->rank, options->size - 1);
    int64_t smallest = set->count / options->size;
    if (smallest < 1)
        return gg_fail(GG_ERROR_ARGUMENT, "%" PRId64 " samples for %d ranks: every rank needs at least one", set->count,
                       options->size);
    if (batch < 1 || batch > smallest)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "batch=%" PRId64 ": %" PRId64 " samples on %d ranks allow 1 to %" PRId64 " (the smallest shard)",
                       batch, set->count, options->size, smallest);
    return GG_OK;
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

    int64_t end, largest;
    gg_shard(set->count, 0, options->size, &loader->begin, &end);
    largest = end - loader->begin; /* no shard is larger than that of rank 0 */
    gg_shard(set->count, options->rank, options->size, &loader->begin, &end);
    loader->count = end - loader->begin;
    loader->steps = (largest + options->batch - 1) / options->batch;
    GG_TRY(gg_alloc((size_t)loader->count * sizeof *loader->order, "the order of the samples", &block));
    loader->order = block;
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
    gg_free(loader);
}

int64_t gg_loader_steps(const gg_loader *loader) { return loader->steps; }

/* 0 to n-1, or a permutation of them, each with `begin` added. */
static void fill_order(gg_loader *loader, int64_t epoch, int rank, uint32_t begin, uint32_t n) {
    const gg_random_key key = {
        .seed = loader->options.seed,
        .purpose = GG_RANDOM_SHUFFLE,
        .rank = (uint32_t)rank,
        .step = (uint64_t)epoch,
    };
    if (loader->options.shuffle) gg_random_permutation(&key, n, loader->order);
    for (uint32_t i = 0; i < n; ++i) loader->order[i] = begin + (loader->options.shuffle ? loader->order[i] : i);
}

void gg_loader_epoch(gg_loader *loader, int64_t epoch) {
    uint32_t count = (uint32_t)loader->count;
    if (loader->options.copy == NULL) {
        fill_order(loader, epoch, loader->options.rank, (uint32_t)loader->begin, count);
        return;
    }
    uint32_t common = (uint32_t)(loader->set.count / loader->options.size);
    fill_order(loader, epoch, 0, 0, common);
    if (count == common) return;
    /* The one slot more of a larger shard comes last but one: whatever the batch, no common slot then changes its step.
     */
    loader->order[common] = loader->order[common - 1];
    loader->order[common - 1] = common;
}

/* Where step t starts in a shard of `count` samples, for 0 <= t <= steps. */
static int64_t batch_begin(const gg_loader *loader, int64_t count, int64_t step) {
    int64_t begin = step * loader->options.batch;
    if (step >= loader->steps) return count;
    /* Shards differ by one at most, so a shard that the full batches use up leaves nothing for the last step
     * alone: that one then starts a sample earlier. */
    return begin < count ? begin : count - 1;
}

int64_t gg_loader_batch(const gg_loader *loader, int rank, int64_t step) {
    int64_t begin, end;
    if (rank < 0 || rank >= loader->options.size || step < 0 || step >= loader->steps) return 0;
    gg_shard(loader->set.count, rank, loader->options.size, &begin, &end);
    int64_t n = batch_begin(loader, end - begin, step + 1) - batch_begin(loader, end - begin, step);
    /* Batches of one cannot give a sample away: the smaller shards then see their last sample twice. */
    return n > 0 ? n : 1;
}

gg_status gg_loader_read(gg_loader *loader, gg_device *device, int64_t step, gg_layout layout, float *samples,
                         void *targets) {
    const gg_shard_copy *copy = loader->options.copy;
    const gg_dataset *set = copy ? &copy->set : &loader->set;
    int64_t n = gg_loader_batch(loader, loader->options.rank, step);
    if (copy != NULL && copy->in_flight)
        return gg_fail(GG_ERROR_STATE, "step %" PRId64 " of the epoch: samples are being replaced and cannot be read",
                       step);
    if (n == 0) return GG_OK;
    const uint32_t *index = loader->order + batch_begin(loader, loader->count, step);
    const gg_gather_args args = {
        .dtype = set->dtype,
        .rows = gg_storage_data(set->samples),
        .values = gg_shape_count(&set->shape),
        .index = index,
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
    return GG_OK;
}
