#include "train/batches.h"

#include <string.h>

#include "base/memory.h"
#include "comm/collective.h"

static bool batches_trains(const gg_batches *b) { return b->transport->rank < b->workers; }

/* A rank that only serves has the sharding of rank 0. */
static int shard_rank(const gg_batches *b) { return batches_trains(b) ? b->transport->rank : 0; }

static gg_status batches_at(const gg_batches *b, const char *what, gg_status status) {
    return gg_error_prefix(status, "step %lld, %s: ", (long long)*b->step, what);
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
    return gg_transport_attend(transport, "the samples that its source reads", step_is_read,
                               &(wanted_step){.loader = loader, .step = step});
}

gg_status gg_batches_read(gg_batches *b, gg_plan *plan, int64_t t, gg_plan_batch *out) {
    const int64_t n = gg_loader_batch(b->loader, shard_rank(b), t);
    if (b->ring != NULL) GG_TRY(batches_at(b, "shuffle", gg_sample_ring_finish(b->ring)));
    GG_TRY(gg_batches_wait(b->transport, b->loader, t));
    GG_TRY(batches_at(b, "samples",
                      gg_uploads_read(b->uploads, b->loader, b->device, &b->set, t, n, plan, &b->batch, out)));
    if (b->ring != NULL) GG_TRY(batches_at(b, "shuffle", gg_sample_ring_begin(b->ring)));
    ++b->exchanges;
    return GG_OK;
}

static void forget_divisions(gg_batches *b) {
    for (int k = 0; k < b->divisions; ++k) gg_free((int64_t *)b->division[k].read);
    gg_free(b->division);
    b->division = NULL;
    b->divisions = 0;
}

static void forget_parts(gg_batches *b) {
    for (int k = 0; k < b->parts; ++k) {
        gg_loader_destroy(b->part[k].loader);
        gg_free(b->part[k].member);
    }
    gg_free(b->part);
    b->part = NULL;
    b->parts = 0;
}

void gg_batches_clear(gg_batches *b) {
    forget_divisions(b);
    forget_parts(b);
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

/* Exchanges the ranks' numbers of samples. */
static gg_status share_counts(gg_batches *b, int64_t own) {
    gg_transport *transport = b->transport;
    if (b->workers < transport->size)
        return gg_fail(GG_ERROR_ARGUMENT, "sharded: allowed only where all ranks train, here %d of %d do", b->workers,
                       transport->size);
    if (b->shuffle_samples)
        return gg_fail(GG_ERROR_ARGUMENT, "sharded: not allowed with shuffle_samples, which needs the whole set on "
                                          "every rank");
    GG_TRY(gg_alloc((size_t)transport->size * sizeof *b->shard_counts, "samples of each rank", &b->shard_counts));
    GG_TRY(batches_at(b, "samples of each rank", gg_allgather(transport, &own, sizeof own, b->shard_counts)));
    b->sharding.counts = b->shard_counts;
    b->sharding.count = 0;
    for (int rank = 0; rank < transport->size; ++rank) b->sharding.count += b->shard_counts[rank];
    return GG_OK;
}

/* The ranks that have samples, and which; b->options say how. */
static gg_status divide(gg_batches *b) {
    const gg_dataset *set = &b->set;
    const gg_shard_kind wanted = b->options.shard;
    /* Pieces of one sequence, which follow each other, lie in one shard. */
    const gg_shard_kind kind = set->streams && wanted == GG_SHARD_INTERLEAVED ? GG_SHARD_CONTIGUOUS : wanted;
    b->sharding = (gg_sharding){.kind = kind, .size = b->workers, .seed = b->seed, .count = set->count};
    if (wanted == GG_SHARD_OWN) GG_TRY(share_counts(b, set->count));
    return GG_OK;
}

/* True if messages move samples. Samples of a source are not moved: each rank reads those that messages would have
 * brought to it. */
static bool has_ring(const gg_batches *b) {
    return b->shuffle_samples && b->transport->size > 1 && b->set.source == NULL;
}

/* Makes all that depends on the batch size: the loader, the exchange of samples and the memory of a batch. */
static gg_status make_loader(gg_batches *b) {
    gg_loader *loader = NULL;
    const gg_data_options *data = &b->options;
    const bool ring = has_ring(b);
    const gg_loader_options options = {
        .sharding = b->sharding,
        .rank = shard_rank(b),
        .batch = data->batch,
        .shuffle = data->shuffle,
        .drop_last = data->drop_last,
        .seed = b->seed,
        .copy = b->shard,
        .moving = b->shuffle_samples && b->transport->size > 1 && !ring,
    };
    GG_TRY(gg_loader_create(&b->set, &options, &loader));
    gg_loader_destroy(b->loader);
    b->loader = loader;
    gg_sample_ring_destroy(b->ring);
    b->ring = NULL;
    if (ring) {
        GG_TRY(gg_sample_ring_create(b->transport, b->shard, &b->sharding, data->batch, &b->ring));
        gg_sample_ring_show(b->ring, b->trace, b->step);
    }
    /* The loader has checked that the batch is no larger than a shard. */
    gg_batch_free(&b->batch);
    return gg_batch_alloc(&b->set, data->batch, &b->batch);
}

/* Frees the loader, because no rank trains with incomplete data. Memory that all ranks free together is freed with the
 * others'. */
static void forget_loader(gg_batches *b) {
    gg_loader_destroy(b->loader);
    b->loader = NULL;
}

gg_status gg_batches_begin(gg_batches *b, const gg_dataset *set, const gg_data_options *data) {
    gg_status status = GG_OK;
    gg_batches_clear(b);
    gg_dataset_retain(set);
    b->set = *set;
    b->options = *data;
    b->epoch = b->next = 0;
    GG_TRY_CLEANUP(divide(b));
    if (has_ring(b)) GG_TRY_CLEANUP(gg_shard_copy_create(set, &b->sharding, shard_rank(b), &b->shard));
    GG_TRY_CLEANUP(make_loader(b));
cleanup:
    if (status != GG_OK) forget_loader(b);
    return status;
}

/* The exchanges of samples that have been made before the batch that comes next. */
static gg_status seek_samples(gg_batches *b) {
    b->exchanges = gg_loader_exchanges(b->loader, b->next); /* each read batch begins one */
    if (b->ring != NULL) GG_TRY(gg_sample_ring_seek(b->ring, &b->set, b->exchanges));
    return GG_OK;
}

gg_status gg_batches_seek(gg_batches *b, int64_t epoch, int64_t next) {
    forget_divisions(b);
    forget_parts(b);
    gg_loader_seek(b->loader, epoch, next);
    b->epoch = epoch;
    b->next = next;
    return seek_samples(b);
}

/* The divisions may refer to those of `b`. */
static gg_status copy_divisions(gg_batches *b, const gg_position *at) {
    gg_status status = GG_OK;
    gg_batches copy = {0}; /* of its fields only the divisions are used */
    GG_TRY_CLEANUP(gg_calloc((size_t)at->divisions, sizeof *copy.division, "divisions of an epoch", &copy.division));
    for (; copy.divisions < at->divisions; ++copy.divisions) {
        const gg_division *from = &at->division[copy.divisions];
        int64_t *read;
        GG_TRY_CLEANUP(gg_alloc((size_t)from->ranks * sizeof *read, "samples read", &read));
        memcpy(read, from->read, (size_t)from->ranks * sizeof *read);
        copy.division[copy.divisions] = (gg_division){.ranks = from->ranks, .read = read};
    }
    forget_divisions(b);
    b->division = copy.division;
    b->divisions = copy.divisions;
    copy = (gg_batches){0};
cleanup:
    forget_divisions(&copy);
    return status;
}

gg_status gg_batches_resume(gg_batches *b, const gg_position *at) {
    gg_position own = *at;
    GG_TRY(copy_divisions(b, at)); /* those of `at` may have been b's */
    own.division = b->division;
    GG_TRY(gg_loader_resume(b->loader, &own));
    b->epoch = at->epoch;
    b->next = at->next;
    return seek_samples(b);
}

bool gg_batches_in_an_epoch(const gg_batches *b) {
    return b->loader != NULL && b->next > 0 && b->next < gg_loader_steps(b->loader);
}

gg_status gg_batches_check(const gg_batches *b, int workers, int64_t batch) {
    gg_sharding sharding = b->sharding;
    if (sharding.kind != GG_SHARD_OWN) sharding.size = workers;
    if (b->set.streams && gg_batches_in_an_epoch(b) && batch != b->options.batch)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "batch=%lld within an epoch: not with pieces of sequences, whose rows go on from one "
                       "batch to the next (%lld of them); allowed: between epochs",
                       (long long)batch, (long long)b->options.batch);
    return gg_loader_check_batch(&sharding, b->options.drop_last, batch);
}

gg_status gg_batches_rebatch(gg_batches *b, int64_t batch) {
    gg_status status = GG_OK;
    const bool within = gg_batches_in_an_epoch(b), begins = b->next == 0;
    int64_t *done = NULL;
    GG_TRY_CLEANUP(gg_calloc((size_t)b->sharding.size, sizeof *done, "samples read", &done));
    gg_loader_done(b->loader, b->next, done);
    b->options.batch = batch;
    GG_TRY_CLEANUP(make_loader(b));
    if (within) {
        const gg_position at = {b->epoch, b->next, b->next, done, b->divisions, b->division};
        GG_TRY_CLEANUP(gg_batches_resume(b, &at));
    }
    if (!within) GG_TRY_CLEANUP(gg_batches_seek(b, b->epoch, begins ? 0 : gg_loader_steps(b->loader)));
cleanup:
    if (status != GG_OK) forget_loader(b);
    gg_free(done);
    return status;
}

gg_status gg_batches_check_regroup(const gg_batches *b) {
    const char *stays = b->loader == NULL                  ? NULL
                        : b->set.streams                   ? "pieces of sequences"
                        : b->options.shard == GG_SHARD_OWN ? "a set of each rank's own (sharded)"
                        : b->shuffle_samples               ? "samples that move between ranks (shuffle_samples)"
                                                           : NULL;
    if (stays == NULL) return GG_OK;
    return gg_fail(GG_ERROR_ARGUMENT, "ranks that may die: not with %s, since no other rank has them", stays);
}

/* The loader becomes that of a former part. */
static gg_status keep_part(gg_batches *b, int ranks, const gg_redealt *how) {
    gg_status status = GG_OK;
    int *member = NULL;
    gg_former_part *part = NULL;
    GG_TRY_CLEANUP(gg_alloc((size_t)ranks * sizeof *member, "members of a view", &member));
    GG_TRY_CLEANUP(gg_calloc((size_t)b->parts + 1, sizeof *part, "parts of an epoch", &part));
    memcpy(member, how->former, (size_t)ranks * sizeof *member);
    for (int k = 0; k < b->parts; ++k) part[k] = b->part[k];
    part[b->parts] = (gg_former_part){b->loader, member, b->divisions};
    gg_loader_rest(b->loader);
    b->loader = NULL;
    gg_free(b->part);
    b->part = part;
    b->parts++;
    part = NULL;
    member = NULL;
cleanup:
    gg_free(part);
    gg_free(member);
    return status;
}

int64_t gg_batches_recall(const gg_batches *b, int part, int identity, int64_t step, int64_t *recall) {
    const gg_former_part *p = &b->part[part];
    const gg_division *division = &b->division[p->division];
    const int64_t begun = gg_loader_begun(p->loader);
    int rank = 0;
    while (rank < division->ranks && p->member[rank] != identity) ++rank;
    if (rank == division->ranks) return 0;
    const int64_t kept = gg_loader_rank_read_by(p->loader, rank, step > begun ? step : begun);
    recall[0] = -1 - p->division;
    recall[1] = rank;
    recall[2] = kept;
    return kept < division->read[rank] ? division->read[rank] - kept : 0;
}

/* At most `batch`, and no more than the smallest share: that of more ranks may be smaller. */
static int64_t most_of(const gg_batches *b, int64_t batch) {
    const int64_t most = b->sharding.count / b->sharding.size;
    return most < batch && most > 0 ? most : batch;
}

gg_status gg_batches_regroup(gg_batches *b, int workers, const gg_redealt *how) {
    gg_status status = GG_OK;
    const int former = b->workers, divisions = b->divisions + 1 + how->recalls;
    int64_t *none = NULL;
    gg_division *division = NULL;
    b->workers = workers;
    if (b->loader == NULL) goto cleanup;
    GG_TRY_CLEANUP(gg_calloc((size_t)workers, sizeof *none, "samples read", &none));
    GG_TRY_CLEANUP(gg_calloc((size_t)divisions, sizeof *division, "divisions of an epoch", &division));
    for (int k = 0; k < b->divisions; ++k) division[k] = b->division[k];
    division[b->divisions] = (gg_division){.ranks = former, .read = how->read};
    for (int k = 0; k < how->recalls; ++k)
        division[b->divisions + 1 + k] = (gg_division){.ranks = GG_RECALL, .read = how->recall + k * GG_RECALL};
    if (how->joined) forget_parts(b);
    else GG_TRY_CLEANUP(keep_part(b, former, how));
    b->sharding.size = workers;
    b->options.batch = most_of(b, b->options.batch);
    GG_TRY_CLEANUP(make_loader(b));
    GG_TRY_CLEANUP(gg_batches_resume(b, &(gg_position){.epoch = b->epoch,
                                                       .next = b->next,
                                                       .begun = b->next,
                                                       .done = none,
                                                       .divisions = divisions,
                                                       .division = division}));
cleanup:
    if (status != GG_OK) forget_loader(b);
    gg_free(division);
    gg_free(none);
    return status;
}

gg_status gg_batches_join(gg_batches *b, int workers, int64_t batch, const gg_position *at) {
    gg_status status = GG_OK;
    b->workers = b->sharding.size = workers;
    b->options.batch = batch;
    GG_TRY_CLEANUP(make_loader(b));
    GG_TRY_CLEANUP(gg_loader_check_position(b->loader, at));
    GG_TRY_CLEANUP(gg_batches_resume(b, at));
cleanup:
    if (status != GG_OK) forget_loader(b);
    return status;
}

gg_status gg_batches_poll(gg_batches *b) {
    return b->ring == NULL ? GG_OK : batches_at(b, "shuffle", gg_sample_ring_poll(b->ring));
}

gg_status gg_batches_settle(gg_batches *b) {
    return b->ring == NULL ? GG_OK : batches_at(b, "shuffle", gg_sample_ring_settle(b->ring));
}

bool gg_batches_is_idle(const gg_batches *b) { return b->ring == NULL || gg_sample_ring_is_idle(b->ring); }

/* True if samples move without messages: all ranks can read all of them. */
static bool batches_move(const gg_batches *b) {
    return b->shuffle_samples && b->ring == NULL && b->transport->size > 1;
}

int64_t gg_batches_sample_id(const gg_batches *b, int64_t slot) {
    if (b->shard != NULL) return b->shard->id[slot];
    if (batches_move(b))
        return gg_sharding_moved_id(&b->sharding, b->transport->rank, slot, b->options.batch, b->exchanges);
    return gg_sharding_id(&b->sharding, b->transport->rank, slot);
}

gg_status gg_batches_audit(gg_batches *b, gg_sample_audit *out) {
    gg_status status = GG_OK;
    const int64_t slots = batches_trains(b) ? gg_sharding_slots(&b->sharding, b->transport->rank) : 0;
    int32_t *ids = NULL;
    GG_TRY_CLEANUP(gg_alloc((size_t)slots * sizeof *ids, "ids of samples", &ids));
    for (int64_t slot = 0; slot < slots; ++slot) ids[slot] = (int32_t)gg_batches_sample_id(b, slot);
    GG_TRY_CLEANUP(gg_sample_audit_run(b->transport, &b->sharding, ids, b->shard, &b->set, out));
cleanup:
    gg_free(ids);
    return status;
}
