#include "data/loader.h"

#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "data/prefetch.h"

struct gg_loader {
    gg_dataset set;
    gg_loader_options options;
    int64_t *counts; /* of the sharding; NULL: none */
    int64_t first;   /* of a range: its first sample */
    bool range;
    int64_t count; /* of this rank in this epoch: its shard, or its share of `left` */
    int64_t whole; /* steps of an epoch that is read from its beginning in batches of this size */
    int64_t epoch;
    int64_t steps;  /* of this epoch */
    int64_t begun;  /* the first of them that reads batches of this size */
    int64_t *done;  /* samples of each rank that the steps before it have read */
    uint32_t *left; /* the samples that divisions have left, for all ranks; NULL: the epoch began on these */
    int64_t left_count;
    uint32_t *order;       /* its samples in this epoch's order: numbers in the set, or slots of the copy */
    uint32_t *rows;        /* where these lie, if the set has rows of its own and there is no copy; else NULL */
    gg_prefetch *prefetch; /* NULL: all fields are in memory */
    int64_t expected;      /* the step that the prefetch reads for next; -1: it does not read */
};

enum { WHOLE = -1 }; /* in place of the samples that divisions have left */

static int64_t share_of(const gg_sharding *sharding, int64_t left, int rank) {
    return left == WHOLE ? gg_sharding_slots(sharding, rank) : gg_division_share(left, sharding->size, rank);
}

/* The least and the most samples that a rank has, without those that it has read; done NULL: none. */
static void find_extremes(const gg_sharding *sharding, int64_t left, const int64_t *done, int64_t *smallest,
                          int64_t *largest) {
    *smallest = INT64_MAX;
    *largest = 0;
    for (int rank = 0; rank < sharding->size; ++rank) {
        int64_t slots = share_of(sharding, left, rank) - (done != NULL ? done[rank] : 0);
        if (slots < *smallest) *smallest = slots;
        if (slots > *largest) *largest = slots;
    }
}

static gg_status check_own(const gg_dataset *set, const gg_loader_options *options) {
    const gg_sharding *sharding = &options->sharding;
    int64_t all = 0;
    for (int rank = 0; rank < sharding->size; ++rank) {
        if (sharding->counts[rank] < 1)
            return gg_fail(GG_ERROR_ARGUMENT, "rank %d brings %" PRId64 " samples; every rank needs at least one", rank,
                           sharding->counts[rank]);
        all += sharding->counts[rank];
    }
    if (all != sharding->count || all > INT32_MAX)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "%" PRId64 " samples of all ranks; allowed are 1 to %d, here their sum %" PRId64,
                       sharding->count, INT32_MAX, all);
    if (set->count != sharding->counts[options->rank])
        return gg_fail(GG_ERROR_ARGUMENT, "rank %d has a set of %" PRId64 " samples; %" PRId64 " were announced",
                       options->rank, set->count, sharding->counts[options->rank]);
    return GG_OK;
}

gg_status gg_loader_check_batch(const gg_sharding *sharding, bool full, int64_t batch) {
    int64_t smallest, largest;
    find_extremes(sharding, WHOLE, NULL, &smallest, &largest);
    int64_t most = sharding->kind == GG_SHARD_OWN && !full ? largest : smallest;
    if (batch < 1 || batch > most)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "batch=%" PRId64 ": %" PRId64 " samples on %d ranks allow 1 to %" PRId64 " (the %s shard)",
                       batch, sharding->count, sharding->size, most, most == smallest ? "smallest" : "largest");
    return GG_OK;
}

static gg_status check_options(const gg_dataset *set, const gg_loader_options *options) {
    const gg_sharding *sharding = &options->sharding;
    if (sharding->size < 1) return gg_fail(GG_ERROR_ARGUMENT, "loader: %d ranks; at least 1 is needed", sharding->size);
    if (options->rank < 0 || options->rank >= sharding->size)
        return gg_fail(GG_ERROR_ARGUMENT, "loader: rank %d; allowed are 0 to %d", options->rank, sharding->size - 1);
    if (sharding->kind == GG_SHARD_OWN) {
        GG_TRY(check_own(set, options));
    } else if (set->count != sharding->count || set->count < sharding->size) {
        return gg_fail(GG_ERROR_ARGUMENT, "%" PRId64 " samples for %d ranks: every rank needs at least one", set->count,
                       sharding->size);
    }
    GG_TRY(gg_loader_check_batch(sharding, options->drop_last, options->batch));
    if (options->moving && sharding->kind == GG_SHARD_OWN)
        return gg_fail(GG_ERROR_ARGUMENT, "samples move among the ranks only where all ranks have the whole set");
    if (set->streams && (options->moving || options->copy != NULL))
        return gg_fail(GG_ERROR_ARGUMENT,
                       "shuffle_samples: pieces of sequences stay in their order and on their rank, where "
                       "the state is that they go on from; not allowed with such data");
    if (set->source != NULL && set->source->ordered && options->moving)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "shuffle_samples: not allowed with samples that can only be read one after the "
                       "other");
    return GG_OK;
}

/* ---- which samples ---- */

int64_t gg_loader_steps(const gg_loader *loader) { return loader->steps; }

int64_t gg_loader_exchanges(const gg_loader *loader, int64_t step) { return loader->epoch * loader->whole + step; }

static int64_t left_count(const gg_loader *loader) { return loader->left != NULL ? loader->left_count : WHOLE; }

/* Samples of a rank in this epoch. A range is one rank's. */
static int64_t shard_of(const gg_loader *loader, int rank) {
    return loader->range ? loader->count : share_of(&loader->options.sharding, left_count(loader), rank);
}

/* Where step t of `steps` starts that share fewer samples than full batches want. Batches of streams do not grow. */
static int64_t even_begin(const gg_loader *loader, int64_t left, int64_t steps, int64_t t) {
    if (!loader->set.streams || left < steps) return t * left / steps;
    return t * (left / steps) + (t < left % steps ? t : left % steps);
}

/* Where step t starts in the order of a rank, for begun <= t <= steps. */
static int64_t batch_begin(const gg_loader *loader, int rank, int64_t step) {
    const int64_t done = loader->done[rank], left = shard_of(loader, rank) - done;
    const int64_t steps = loader->steps - loader->begun, t = step - loader->begun;
    const int64_t begin = t * loader->options.batch;
    if (loader->options.drop_last) return done + begin;
    if (left < (steps - 1) * loader->options.batch) return done + even_begin(loader, left, steps, t);
    if (t >= steps) return done + left;
    /* A shard that the full batches use up leaves nothing for the last step: that one then starts a sample earlier. */
    return done + (begin < left ? begin : left - 1);
}

int64_t gg_loader_batch(const gg_loader *loader, int rank, int64_t step) {
    const gg_sharding *sharding = &loader->options.sharding;
    if (rank < 0 || rank >= sharding->size || step < loader->begun || step >= loader->steps) return 0;
    if (loader->options.drop_last) return loader->options.batch;
    int64_t n = batch_begin(loader, rank, step + 1) - batch_begin(loader, rank, step);
    /* Batches of one have no sample to move: the smaller shards then see a sample more than once. */
    return n > 0 ? n : 1;
}

void gg_loader_done(const gg_loader *loader, int64_t step, int64_t *done) {
    for (int rank = 0; rank < loader->options.sharding.size; ++rank) done[rank] = batch_begin(loader, rank, step);
}

int64_t gg_loader_rank_read_by(const gg_loader *loader, int rank, int64_t step) {
    const int64_t all = shard_of(loader, rank), ones = loader->done[rank] + step - loader->begun;
    const bool last = loader->options.batch == 1 && !loader->options.drop_last && ones >= all;
    return last ? all : batch_begin(loader, rank, step);
}

void gg_loader_read_by(const gg_loader *loader, int64_t step, int64_t *read) {
    for (int rank = 0; rank < loader->options.sharding.size; ++rank)
        read[rank] = gg_loader_rank_read_by(loader, rank, step);
}

int64_t gg_loader_begun(const gg_loader *loader) { return loader->begun; }
const int64_t *gg_loader_read_before(const gg_loader *loader) { return loader->done; }

static bool is_shuffled(const gg_loader *loader) {
    const bool ordered = loader->set.streams || (loader->set.source != NULL && loader->set.source->ordered);
    return loader->options.shuffle && !ordered;
}

/* Slots 0 to n-1, permuted where the order is shuffled. */
static void order_slots(gg_loader *loader, int64_t epoch, int rank, uint32_t n) {
    gg_division_order(loader->options.seed, rank, epoch, is_shuffled(loader), n, loader->order);
}

/* Numbers of the samples in slots 0 to n-1. With OWN a slot is a sample of the rank's own set. */
static int64_t id_of_slot(const gg_loader *loader, int64_t slot) {
    const gg_sharding *sharding = &loader->options.sharding;
    if (loader->range) return loader->first + slot;
    return sharding->kind == GG_SHARD_OWN ? slot : gg_sharding_id(sharding, loader->options.rank, slot);
}

/* All ranks visit their slots in one order. The one slot more of a larger shard comes last but one: whatever the batch,
 * no common slot then changes its step. */
static void order_common(gg_loader *loader, int64_t epoch) {
    uint32_t common = (uint32_t)(loader->options.sharding.count / loader->options.sharding.size);
    order_slots(loader, epoch, 0, common);
    if (loader->count == common) return;
    loader->order[common] = loader->order[common - 1];
    loader->order[common - 1] = common;
}

/* Where the batch of a step lies in the order. Batches of one may read the last slot twice; where samples move it then
 * holds another one, which lies behind all others. */
static int64_t batch_place(const gg_loader *loader, int64_t step) {
    const int rank = loader->options.rank;
    const int64_t begin = batch_begin(loader, rank, step);
    const bool again =
        loader->options.moving && loader->options.batch == 1 && begin - loader->done[rank] < step - loader->begun;
    return again ? loader->count : begin;
}

/* Slots become the samples that they hold in the step in which they are read. */
static void order_moved(gg_loader *loader) {
    const gg_loader_options *o = &loader->options;
    loader->order[loader->count] = loader->order[loader->count - 1];
    for (int64_t t = loader->begun; t < loader->steps; ++t) {
        const int64_t begin = batch_place(loader, t), n = gg_loader_batch(loader, o->rank, t);
        for (int64_t i = begin; i < begin + n; ++i)
            loader->order[i] = (uint32_t)gg_sharding_moved_id(&o->sharding, o->rank, loader->order[i], o->batch,
                                                              gg_loader_exchanges(loader, t));
    }
}

/* Row b has a run of slots, one for each batch that is larger than b; runs lie behind one another in the shard. With
 * one row the order is the slots' order; some slots may be read again. */
static void order_streams(gg_loader *loader) {
    const int rank = loader->options.rank;
    const int64_t rows = gg_loader_batch(loader, rank, 0);
    int64_t slot = 0;
    for (int64_t b = 0; b < rows && rows > 1; ++b)
        for (int64_t t = 0; t < loader->steps && gg_loader_batch(loader, rank, t) > b; ++t, ++slot)
            loader->order[batch_begin(loader, rank, t) + b] = (uint32_t)id_of_slot(loader, slot);
    for (int64_t i = 0; i < loader->count && rows == 1; ++i) loader->order[i] = (uint32_t)id_of_slot(loader, i);
}

static void order_epoch(gg_loader *loader, int64_t epoch) {
    loader->epoch = epoch;
    if (loader->left != NULL)
        for (int64_t i = 0; i < loader->count; ++i)
            loader->order[i] = loader->left[i * loader->options.sharding.size + loader->options.rank];
    else if (loader->set.streams) order_streams(loader);
    else if (loader->options.copy != NULL || loader->options.moving) order_common(loader, epoch);
    else {
        order_slots(loader, epoch, loader->options.rank, (uint32_t)loader->count);
        for (int64_t i = 0; i < loader->count; ++i) loader->order[i] = (uint32_t)id_of_slot(loader, loader->order[i]);
    }
    if (loader->options.moving) order_moved(loader);
    const int64_t count = loader->count + loader->options.moving;
    for (int64_t i = 0; loader->rows != NULL && i < count; ++i)
        loader->rows[i] = (uint32_t)gg_dataset_row(&loader->set, loader->order[i]);
}

/* ---- creation ---- */

/* The rows of a step, for the prefetch. */
static int64_t rows_of_step(void *context, int64_t step, const uint32_t **rows) {
    const gg_loader *loader = context;
    *rows = (loader->rows != NULL ? loader->rows : loader->order) + batch_place(loader, step);
    return gg_loader_batch(loader, loader->options.rank, step);
}

/* Steps of an epoch whose batches are of this size from step `begun` on, after done[r] samples of each rank r; NULL
 * means none. */
static int64_t steps_from(const gg_loader *loader, int64_t left, int64_t begun, const int64_t *done) {
    const gg_loader_options *o = &loader->options;
    int64_t smallest = loader->count, largest = loader->count;
    if (!loader->range) find_extremes(&o->sharding, left, done, &smallest, &largest);
    return begun + (o->drop_last ? smallest / o->batch : (largest + o->batch - 1) / o->batch);
}

static void begin_at(gg_loader *loader, int64_t begun, const int64_t *done) {
    loader->steps = steps_from(loader, left_count(loader), begun, done);
    loader->begun = begun;
    loader->count = shard_of(loader, loader->options.rank);
    for (int rank = 0; rank < loader->options.sharding.size; ++rank) loader->done[rank] = done != NULL ? done[rank] : 0;
}

/* Allocates the order of loader->count samples and its readers; the set and the options are there. */
static gg_status make_order(gg_loader *loader) {
    const gg_dataset *set = &loader->set;
    const size_t count = (size_t)loader->count + loader->options.moving; /* batch_place */
    bool reads = false;
    GG_TRY(gg_calloc((size_t)loader->options.sharding.size, sizeof *loader->done, "samples read", &loader->done));
    begin_at(loader, 0, NULL);
    loader->whole = loader->steps;
    GG_TRY(gg_alloc(count * sizeof *loader->order, "the order of the samples", &loader->order));
    if (set->rows != NULL && loader->options.copy == NULL)
        GG_TRY(gg_alloc(count * sizeof *loader->rows, "the places of the samples", &loader->rows));
    for (int f = 0; f < gg_dataset_fields(set); ++f) reads = reads || set->memory[f] == NULL;
    if (reads) GG_TRY(gg_prefetch_create(set, loader->options.batch, rows_of_step, loader, &loader->prefetch));
    loader->expected = -1;
    order_epoch(loader, 0);
    return GG_OK;
}

static gg_status loader_make(const gg_dataset *set, const gg_loader_options *options, gg_loader **out) {
    GG_TRY(gg_calloc(1, sizeof **out, "a loader", out));
    gg_dataset_retain(set);
    (*out)->set = *set;
    (*out)->options = *options;
    return GG_OK;
}

gg_status gg_loader_create(const gg_dataset *set, const gg_loader_options *options, gg_loader **out) {
    gg_status status = GG_OK;
    gg_loader *loader = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(gg_dataset_check(set));
    GG_TRY_CLEANUP(check_options(set, options));
    GG_TRY_CLEANUP(loader_make(set, options, &loader));

    gg_sharding *sharding = &loader->options.sharding;
    if (sharding->counts != NULL) {
        size_t bytes = (size_t)sharding->size * sizeof *sharding->counts;
        GG_TRY_CLEANUP(gg_alloc(bytes, "samples of each rank", &loader->counts));
        memcpy(loader->counts, sharding->counts, bytes);
        sharding->counts = loader->counts;
    }
    loader->count = gg_sharding_slots(sharding, options->rank);
    GG_TRY_CLEANUP(make_order(loader));
    *out = loader;
    loader = NULL;
cleanup:
    gg_loader_destroy(loader);
    return status;
}

gg_status gg_loader_create_range(const gg_dataset *set, int64_t begin, int64_t end, int64_t batch, gg_loader **out) {
    gg_status status = GG_OK;
    gg_loader *loader = NULL;
    const int64_t count = end - begin;
    *out = NULL;
    GG_TRY_CLEANUP(gg_dataset_check(set));
    if (begin < 0 || count < 1 || end > set->count || batch < 1)
        GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT,
                        "samples %" PRId64 " to %" PRId64 " of %" PRId64 " in batches of %" PRId64
                        ": at least one sample and a batch of 1 are needed",
                        begin, end, set->count, batch);
    if (batch > count) batch = count;
    GG_TRY_CLEANUP(loader_make(
        set, &(gg_loader_options){.batch = batch, .sharding = {.kind = GG_SHARD_CONTIGUOUS, .size = 1, .count = count}},
        &loader));
    loader->range = true;
    loader->first = begin;
    loader->count = count;
    GG_TRY_CLEANUP(make_order(loader));
    *out = loader;
    loader = NULL;
cleanup:
    gg_loader_destroy(loader);
    return status;
}

void gg_loader_destroy(gg_loader *loader) {
    if (!loader) return;
    gg_prefetch_destroy(loader->prefetch); /* before what its threads read */
    gg_dataset_release(&loader->set);
    gg_free(loader->order);
    gg_free(loader->rows);
    gg_free(loader->counts);
    gg_free(loader->done);
    gg_free(loader->left);
    gg_free(loader);
}

void gg_loader_rest(gg_loader *loader) {
    gg_prefetch_destroy(loader->prefetch);
    gg_free(loader->order);
    gg_free(loader->rows);
    loader->prefetch = NULL;
    loader->order = loader->rows = NULL;
}

/* ---- reading ---- */

/* The prefetch reads from this step on. */
static void read_ahead(gg_loader *loader, int64_t step) {
    if (loader->prefetch == NULL || loader->expected == step) return;
    gg_prefetch_start(loader->prefetch, step, loader->steps, loader->range ? GG_EPOCH_EVALUATION : loader->epoch);
    loader->expected = step;
}

/* Orders the epoch and starts to read. `left` must be set. */
static void loader_place(gg_loader *loader, const gg_position *at) {
    begin_at(loader, at->begun, at->done);
    order_epoch(loader, at->epoch);
    if (at->next < loader->steps) read_ahead(loader, at->next);
}

static void stop_reading(gg_loader *loader) {
    if (loader->prefetch != NULL) gg_prefetch_stop(loader->prefetch); /* its threads read where batches begin */
    loader->expected = -1;
    gg_free(loader->left);
    loader->left = NULL;
}

void gg_loader_seek(gg_loader *loader, int64_t epoch, int64_t step) {
    stop_reading(loader);
    loader_place(loader, &(gg_position){.epoch = epoch, .next = step});
}

static gg_divided_epoch divided_epoch(const gg_loader *loader, const gg_position *at) {
    return (gg_divided_epoch){
        .sharding = &loader->options.sharding,
        .seed = loader->options.seed,
        .epoch = at->epoch,
        .shuffle = is_shuffled(loader),
        .divisions = at->divisions,
        .division = at->division,
    };
}

gg_status gg_loader_resume(gg_loader *loader, const gg_position *at) {
    const gg_divided_epoch epoch = divided_epoch(loader, at);
    const int ranks = loader->options.sharding.size;
    stop_reading(loader);
    if (at->divisions > 0) {
        GG_TRY(gg_division_count(&epoch, ranks, &loader->left_count));
        GG_TRY(gg_alloc((size_t)(loader->left_count + 1) * sizeof *loader->left, "samples left", &loader->left));
        GG_TRY(gg_division_list(&epoch, ranks, loader->left));
    }
    loader_place(loader, at);
    return GG_OK;
}

static gg_status check_divisions(const gg_loader *loader, const gg_position *at, int64_t *left) {
    const gg_loader_options *o = &loader->options;
    const char *cannot = loader->set.streams                ? "pieces of sequences"
                         : o->sharding.kind == GG_SHARD_OWN ? "a set of each rank's own (sharded)"
                         : o->copy != NULL || o->moving     ? "samples that move between ranks (shuffle_samples)"
                                                            : NULL;
    const gg_divided_epoch epoch = divided_epoch(loader, at);
    *left = WHOLE;
    if (at->divisions == 0) return GG_OK;
    if (cannot != NULL)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "an epoch that began on %d ranks goes on on %d: not with %s; allowed: between epochs",
                       at->division[at->divisions - 1].ranks, o->sharding.size, cannot);
    return gg_division_count(&epoch, o->sharding.size, left);
}

gg_status gg_loader_check_position(const gg_loader *loader, const gg_position *at) {
    const gg_sharding *sharding = &loader->options.sharding;
    const int64_t step = at->next, begun = at->done != NULL ? at->begun : 0;
    const int64_t *done = at->done;
    int64_t smallest, largest, left;
    GG_TRY(check_divisions(loader, at, &left));
    if (begun != 0 && loader->set.streams)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "batches of another size from step %" PRId64
                       " of the epoch on: not with pieces of sequences, whose rows go on from one batch to "
                       "the next; allowed: between epochs",
                       begun);
    if (begun < 0 || begun > sharding->count)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "batches of another size from step %" PRId64 " of the epoch on; allowed: 0 to %" PRId64
                       ", the number of samples",
                       begun, sharding->count);
    for (int rank = 0; done != NULL && rank < sharding->size; ++rank) {
        const int64_t most = begun > 0 ? share_of(sharding, left, rank) : 0;
        if (done[rank] < 0 || done[rank] > most)
            return gg_fail(GG_ERROR_ARGUMENT,
                           "rank %d: %" PRId64 " samples read before step %" PRId64
                           " of the epoch; allowed: 0 to %" PRId64,
                           rank, done[rank], begun, most);
    }
    find_extremes(sharding, left, done, &smallest, &largest);
    if (smallest < 1 && largest > 0 && !loader->options.drop_last)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "a rank has read all of its samples before step %" PRId64
                       " of the epoch, and another has %" PRId64 " left; allowed: at least one on every rank",
                       begun, largest);
    const int64_t steps = steps_from(loader, left, begun, done);
    if (step < begun || step > steps)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "step: %" PRId64 "; allowed in an epoch of %" PRId64 " steps are %" PRId64 " to %" PRId64, step,
                       steps, begun, steps);
    return GG_OK;
}

/* The samples of one batch: their numbers in the set or the copy, and the rows at which inputs lie. */
typedef struct chosen {
    const gg_dataset *set;
    const uint32_t *numbers, *rows;
    int64_t n;
    void *const *read; /* of each field, in place of memory; NULL: all are in memory */
} chosen;

static void copy_input(const gg_gather_args *args, size_t bytes, const gg_batch_input *to) {
    for (int64_t i = 0; i < args->n; ++i) {
        const size_t row = args->index != NULL ? args->index[i] : (size_t)i;
        memcpy((char *)to->data + (size_t)i * bytes, (const char *)args->rows + row * bytes, bytes);
    }
    *to->gather = *args;
    to->gather->rows = to->data;
    to->gather->index = NULL;
}

static void read_input(gg_device *device, const chosen *c, int f, const gg_batch_input *to) {
    const gg_field *field = &c->set->field[f];
    const bool in_memory = c->set->memory[f] != NULL;
    if (to->data == NULL) return; /* the plan does not read it */
    const float *scales = field->scales != NULL ? gg_storage_data(field->scales) : NULL;
    const gg_gather_args args = {
        .dtype = field->dtype,
        .rows = in_memory ? gg_storage_data(c->set->memory[f]) : c->read[f],
        .values = gg_field_values(field),
        .index = in_memory ? c->rows : NULL,
        .n = c->n,
        .scale = field->scale,
        .shift = field->shift,
        .runs = scales != NULL ? field->runs : 0,
        .scales = scales,
        .wanted = to->format.dtype,
        .layout = to->format.layout,
        .out = to->data,
    };
    if (to->gather == NULL) device->table->gather(device, &args);
    else copy_input(&args, gg_field_bytes(field), to);
}

static void read_target(const chosen *c, int f, void *to) {
    const size_t bytes = gg_field_bytes(&c->set->field[f]);
    if (c->set->memory[f] == NULL) {
        memcpy(to, c->read[f], (size_t)c->n * bytes);
        return;
    }
    const char *from = gg_storage_data(c->set->memory[f]);
    for (int64_t i = 0; i < c->n; ++i) memcpy((char *)to + (size_t)i * bytes, from + c->numbers[i] * bytes, bytes);
}

int64_t gg_loader_number(const gg_loader *loader, int64_t step, int64_t i) {
    return loader->order[batch_place(loader, step) + i];
}

bool gg_loader_ready(gg_loader *loader, int64_t step, double seconds) {
    if (loader->prefetch == NULL || gg_loader_batch(loader, loader->options.rank, step) == 0) return true;
    read_ahead(loader, step);
    return gg_prefetch_ready(loader->prefetch, step, seconds);
}

gg_status gg_loader_read(gg_loader *loader, gg_device *device, int64_t step, const gg_batch *batch) {
    const gg_shard_copy *copy = loader->options.copy;
    chosen c = {.set = copy ? &copy->set : &loader->set, .n = gg_loader_batch(loader, loader->options.rank, step)};
    if (copy != NULL && copy->in_flight)
        return gg_fail(GG_ERROR_STATE, "step %" PRId64 " of the epoch: samples are being replaced and cannot be read",
                       step);
    if (c.n == 0) return GG_OK;
    const int64_t begin = batch_place(loader, step);
    c.numbers = loader->order + begin;
    c.rows = loader->rows != NULL ? loader->rows + begin : c.numbers;
    if (loader->prefetch != NULL) {
        read_ahead(loader, step);
        loader->expected = -1; /* after a failure it begins anew */
        GG_TRY(gg_prefetch_get(loader->prefetch, step, &c.read));
    }
    for (int i = 0; i < c.set->inputs; ++i) read_input(device, &c, i, &batch->input[i]);
    for (int i = 0; i < c.set->targets; ++i) read_target(&c, c.set->inputs + i, batch->target[i]);
    if (c.set->sample_weights != NULL) {
        const float *weight = gg_storage_data(c.set->sample_weights);
        for (int64_t i = 0; i < c.n; ++i) batch->sample_weights[i] = weight[c.numbers[i]];
    }
    for (int64_t i = 0; batch->begins != NULL && i < c.n; ++i) batch->begins[i] = step == 0 || !c.set->streams;
    if (loader->prefetch != NULL) {
        gg_prefetch_done(loader->prefetch, step);
        loader->expected = step + 1;
    }
    return GG_OK;
}

gg_status gg_batch_alloc(const gg_dataset *set, int64_t n, gg_batch *out) {
    gg_status status = GG_OK;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < set->targets; ++i)
        GG_TRY_CLEANUP(
            gg_alloc((size_t)n * gg_field_bytes(gg_dataset_target(set, i)), "targets of a batch", &out->target[i]));
    if (set->sample_weights != NULL)
        GG_TRY_CLEANUP(gg_alloc((size_t)n * sizeof(float), "weights of a batch", &out->sample_weights));
    GG_TRY_CLEANUP(gg_alloc((size_t)n * sizeof(bool), "beginnings of a batch", &out->begins));
cleanup:
    if (status != GG_OK) gg_batch_free(out);
    return status;
}

void gg_batch_free(gg_batch *batch) {
    for (int i = 0; i < GG_MAX_FIELDS; ++i) gg_free(batch->target[i]);
    gg_free(batch->sample_weights);
    gg_free(batch->begins);
    memset(batch, 0, sizeof *batch);
}
