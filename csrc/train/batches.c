#include "train/batches.h"

#include "base/memory.h"
#include "comm/collective.h"

static bool batches_trains(const gg_batches *b) { return b->transport->rank < b->workers; }

static gg_status batches_at(const gg_batches *b, const char *what, gg_status status) {
    return gg_error_prefix(status, "step %lld, %s: ", (long long)*b->step, what);
}

void gg_batches_into(gg_plan *plan, gg_batch *batch) {
    for (int i = 0; i < gg_plan_inputs(plan); ++i)
        batch->input[i] = (gg_batch_input){.format = gg_plan_input_format(plan, i), .data = gg_plan_input(plan, i)};
}

typedef struct wanted_step {
    gg_loader *loader;
    int64_t step;
} wanted_step;

static bool step_is_read(void *context, double seconds) {
    const wanted_step *wanted = context;
    return gg_loader_ready(wanted->loader, wanted->step, seconds);
}

gg_status gg_batches_wait(gg_transport *transport, gg_loader *loader, int64_t step) {
    return gg_transport_attend(transport, step_is_read, &(wanted_step){.loader = loader, .step = step});
}

gg_status gg_batches_read(gg_batches *b, gg_plan *plan, int64_t t) {
    gg_status status = GG_OK;
    if (b->ring != NULL) GG_TRY(batches_at(b, "shuffle", gg_sample_ring_finish(b->ring)));
    gg_batches_into(plan, &b->batch);
    GG_TRY(gg_batches_wait(b->transport, b->loader, t));
    GG_TRY(batches_at(b, "samples", gg_loader_read(b->loader, b->device, t, &b->batch)));
    if (b->ring != NULL) GG_TRY(batches_at(b, "shuffle", gg_sample_ring_begin(b->ring)));
    ++b->exchanges;
cleanup:
    return status;
}

void gg_batches_clear(gg_batches *b) {
    gg_loader_destroy(b->loader);
    gg_sample_ring_destroy(b->ring);
    gg_shard_copy_destroy(b->shard);
    gg_dataset_release(&b->set);
    gg_batch_free(&b->batch);
    gg_free(b->shard_counts);
    b->loader = NULL;
    b->ring = NULL;
    b->shard = NULL;
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

void gg_batches_show_step(gg_batches *b, const int64_t *step) {
    b->step = step;
    if (b->ring != NULL) gg_sample_ring_show(b->ring, b->trace, step);
}

gg_status gg_batches_begin(gg_batches *b, const gg_dataset *set, const gg_data_options *data) {
    gg_status status = GG_OK;
    gg_transport *transport = b->transport;
    /* A rank that only serves has the sharding of rank 0. */
    gg_loader_options options = {.rank = batches_trains(b) ? transport->rank : 0,
                                 .batch = data->batch,
                                 .shuffle = data->shuffle,
                                 .drop_last = data->drop_last,
                                 .seed = b->seed};
    /* Where the samples are not in memory they are read where the exchange would have brought them. */
    bool moving = b->shuffle_samples && transport->size > 1, ring = moving && set->source == NULL;

    gg_batches_clear(b);
    /* Pieces of sequences that go on in each other lie in one shard. */
    const gg_shard_kind kind = set->streams && data->shard == GG_SHARD_INTERLEAVED ? GG_SHARD_CONTIGUOUS : data->shard;
    b->sharding = (gg_sharding){.kind = kind, .size = b->workers, .seed = b->seed, .count = set->count};
    if (data->shard == GG_SHARD_OWN) GG_TRY(share_counts(b, set->count));
    options.sharding = b->sharding;
    if (ring) GG_TRY(gg_shard_copy_create(set, &b->sharding, options.rank, &b->shard));
    options.copy = b->shard;
    options.moving = moving && !ring;
    GG_TRY(gg_loader_create(set, &options, &b->loader));
    if (ring) {
        GG_TRY(gg_sample_ring_create(transport, b->shard, &b->sharding, data->batch, &b->ring));
        gg_sample_ring_show(b->ring, b->trace, b->step);
    }
    gg_dataset_retain(set);
    b->set = *set;
    b->options = *data;
    b->most = data->batch;
    b->epoch = b->next = 0;
    /* The loader has checked that the batch is no larger than a shard. */
    GG_TRY(gg_batch_alloc(set, data->batch, &b->batch));
cleanup:
    if (status != GG_OK) { /* no rank trains with incomplete data; collective resources are freed with the other ones */
        gg_loader_destroy(b->loader);
        b->loader = NULL;
    }
    return status;
}

gg_status gg_batches_seek(gg_batches *b, int64_t epoch, int64_t next) {
    gg_status status = GG_OK;
    gg_loader_seek(b->loader, epoch, next);
    b->epoch = epoch;
    b->next = next;
    b->exchanges = epoch * gg_loader_steps(b->loader) + next; /* one begins with each batch that is read */
    if (b->ring != NULL) GG_TRY(gg_sample_ring_seek(b->ring, &b->set, b->exchanges));
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

/* Whether samples move without messages: all ranks can read all of them. */
static bool batches_move(const gg_batches *b) {
    return b->shuffle_samples && b->ring == NULL && b->transport->size > 1;
}

int64_t gg_batches_sample_id(const gg_batches *b, int64_t slot) {
    if (b->shard != NULL) return b->shard->id[slot];
    if (batches_move(b)) return gg_sharding_moved_id(&b->sharding, b->transport->rank, slot, b->most, b->exchanges);
    return gg_sharding_id(&b->sharding, b->transport->rank, slot);
}

gg_status gg_batches_audit(gg_batches *b, gg_sample_audit *out) {
    gg_status status = GG_OK;
    const int64_t slots = batches_trains(b) ? gg_sharding_slots(&b->sharding, b->transport->rank) : 0;
    int32_t *ids = NULL;
    GG_TRY(gg_alloc((size_t)slots * sizeof *ids, "ids of samples", &ids));
    for (int64_t slot = 0; slot < slots; ++slot) ids[slot] = (int32_t)gg_batches_sample_id(b, slot);
    GG_TRY(gg_sample_audit_run(b->transport, &b->sharding, ids, b->shard, &b->set, out));
cleanup:
    gg_free(ids);
    return status;
}
