#include "train/batches.h"

#include "base/memory.h"
#include "comm/collective.h"

static bool batches_trains(const gg_batches *b) { return b->transport->rank < b->workers; }

static gg_status batches_at(const gg_batches *b, const char *what, gg_status status) {
    return gg_error_prefix(status, "step %lld, %s: ", (long long)*b->step, what);
}

void gg_batches_read_rows(gg_device *device, gg_plan *plan, gg_dtype dtype, const void *rows, int64_t values,
                          const uint32_t *index, int64_t n, float scale, float shift) {
    device->table->gather(device, &(gg_gather_args){.dtype = dtype,
                                                    .rows = rows,
                                                    .values = values,
                                                    .index = index,
                                                    .n = n,
                                                    .scale = scale,
                                                    .shift = shift,
                                                    .layout = gg_plan_input_format(plan, 0).layout,
                                                    .out = gg_plan_input(plan, 0)});
}

gg_status gg_batches_read(gg_batches *b, gg_plan *plan, int64_t t) {
    gg_status status = GG_OK;
    if (b->ring != NULL) GG_TRY(batches_at(b, "shuffle", gg_sample_ring_finish(b->ring)));
    GG_TRY(gg_loader_read(b->loader, b->device, t, gg_plan_input_format(plan, 0).layout, gg_plan_input(plan, 0),
                          b->targets, b->sample_weights));
    if (b->ring != NULL) GG_TRY(batches_at(b, "shuffle", gg_sample_ring_begin(b->ring)));
cleanup:
    return status;
}

void gg_batches_clear(gg_batches *b) {
    gg_loader_destroy(b->loader);
    gg_sample_ring_destroy(b->ring);
    gg_shard_copy_destroy(b->shard);
    gg_dataset_release(&b->set);
    gg_free(b->targets);
    gg_free(b->sample_weights);
    gg_free(b->shard_counts);
    b->loader = NULL;
    b->ring = NULL;
    b->shard = NULL;
    b->targets = NULL;
    b->sample_weights = NULL;
    b->shard_counts = NULL;
}

/* All ranks exchange how many samples each of them has. */
static gg_status share_counts(gg_batches *b, int64_t own) {
    gg_status status = GG_OK;
    gg_transport *transport = b->transport;
    if (b->workers < transport->size)
        GG_FAIL(GG_ERROR_ARGUMENT, "sharded: allowed only where all ranks train, here %d of %d do", b->workers,
                transport->size);
    if (b->shuffle_samples)
        GG_FAIL(GG_ERROR_ARGUMENT, "sharded: not allowed with shuffle_samples, which needs the whole set on "
                                   "every rank");
    GG_TRY(gg_alloc((size_t)transport->size * sizeof *b->shard_counts, "samples of each rank", &b->shard_counts));
    GG_TRY(batches_at(b, "samples of each rank", gg_allgather(transport, &own, sizeof own, b->shard_counts)));
    b->sharding.counts = b->shard_counts;
    b->sharding.count = 0;
    for (int rank = 0; rank < transport->size; ++rank) b->sharding.count += b->shard_counts[rank];
cleanup:
    return status;
}

gg_status gg_batches_begin(gg_batches *b, const gg_dataset *set, const gg_data_options *data) {
    gg_status status = GG_OK;
    gg_transport *transport = b->transport;
    /* A rank that only serves has the sharding of rank 0. */
    gg_loader_options options = {.rank = batches_trains(b) ? transport->rank : 0,
                                 .batch = data->batch,
                                 .shuffle = data->shuffle,
                                 .seed = b->seed};
    bool ring = b->shuffle_samples && transport->size > 1;

    gg_batches_clear(b);
    b->sharding = (gg_sharding){.kind = data->shard, .size = b->workers, .seed = b->seed, .count = set->count};
    if (data->shard == GG_SHARD_OWN) GG_TRY(share_counts(b, set->count));
    options.sharding = b->sharding;
    if (ring) GG_TRY(gg_shard_copy_create(set, &b->sharding, options.rank, &b->shard));
    options.copy = b->shard;
    GG_TRY(gg_loader_create(set, &options, &b->loader));
    if (ring) {
        GG_TRY(gg_sample_ring_create(transport, b->shard, &b->sharding, data->batch, &b->ring));
        gg_sample_ring_show(b->ring, b->trace, b->step);
    }
    gg_dataset_retain(set);
    b->set = *set;
    /* The loader has checked that the batch is no larger than a shard. */
    const size_t target_bytes = (size_t)set->target_values * gg_dtype_size(set->target_dtype);
    GG_TRY(gg_alloc((size_t)data->batch * target_bytes, "targets of a batch", &b->targets));
    if (set->sample_weights != NULL)
        GG_TRY(gg_alloc((size_t)data->batch * sizeof(float), "weights of a batch", &b->sample_weights));
cleanup:
    if (status != GG_OK) { /* no rank trains with incomplete data; collective resources are freed with the other ones */
        gg_loader_destroy(b->loader);
        b->loader = NULL;
    }
    return status;
}

gg_status gg_batches_epoch(gg_batches *b, int64_t epoch) {
    gg_status status = GG_OK;
    gg_loader_epoch(b->loader, epoch);
    if (b->ring != NULL) GG_TRY(gg_sample_ring_seek(b->ring, &b->set, epoch * gg_loader_steps(b->loader)));
cleanup:
    return status;
}

gg_status gg_batches_poll(gg_batches *b) {
    return b->ring == NULL ? GG_OK : batches_at(b, "shuffle", gg_sample_ring_poll(b->ring));
}

gg_status gg_batches_settle(gg_batches *b) {
    return b->ring == NULL ? GG_OK : batches_at(b, "shuffle", gg_sample_ring_settle(b->ring));
}

bool gg_batches_is_idle(const gg_batches *b) { return b->ring == NULL || gg_sample_ring_is_idle(b->ring); }
