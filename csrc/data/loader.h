/* The batches of an epoch of one rank. */
#ifndef GG_DATA_LOADER_H
#define GG_DATA_LOADER_H

#include "data/batch.h"
#include "data/division.h"
#include "data/shard.h"

/* Division of the data among ranks and steps. */
typedef struct gg_data_options {
    gg_shard_kind shard; /* OWN: the set is this rank's part; otherwise all ranks have one set */
    int64_t batch;       /* samples a rank and step */
    bool shuffle;
    bool drop_last; /* full batches only */
} gg_data_options;

/* The batches of one rank. In epoch e its samples are visited in an order that depends on (seed, rank, e) alone. Every
 * rank makes ceil(largest shard / batch) steps, sees each of its samples once an epoch, and has no empty batch:
 *
 * - All batches but the last are full.
 * - A rank with no sample left for the last step moves one from its last full batch. With batches of one it sees its
 *   last sample a second time instead.
 * - A rank with too few samples for that (OWN only) divides them evenly among the steps. With fewer samples than steps
 *   it repeats each as evenly as possible, in batches of one.
 *
 * With `drop_last` all batches are full, and every rank makes one step for each full batch of the smallest shard. The
 * remaining samples of an epoch's order are not read; with `shuffle` they differ from epoch to epoch.
 *
 * With a shard copy all ranks visit slots in one common order: if all ranks have slot i, they read it in the same step.
 * Samples may then move between slots of equal number at any time between two steps. Each is still seen once an epoch,
 * by the rank that holds it in that step. With `moving` the loader reads these samples from the set, without messages:
 * those that a shard copy would hold if sample_ring.h moved a batch a step.
 *
 * Prefetch threads read a source's fields ahead of the network (prefetch.h), in this order.
 *
 * An epoch may continue with another batch size (gg_loader_resume). The samples that each rank has not read yet are
 * then read like a whole epoch.
 *
 * An epoch may have begun on another number of ranks: gg_position's divisions, division.h. Not with OWN, copies, moving
 * samples or streams.
 *
 * Streams: each rank cuts its shard into `batch` runs. Row b of batch t is sample t of run b, which continues row b of
 * batch t - 1. Batches are as large as those of other sets. If the last batch is smaller, the first runs are longer by
 * a sample. No batch is larger than the previous one, so its rows continue. Nothing is shuffled. */
typedef struct gg_loader gg_loader;

/* A position of training in an epoch. */
typedef struct gg_position {
    int64_t epoch;
    int64_t next;        /* the next step, 0 to the epoch's steps */
    int64_t begun;       /* the first step on these ranks with batches of the current size */
    const int64_t *done; /* samples of each training rank's order read by steps before `begun`; NULL means that begun is
                          * 0. After divisions: by steps on these ranks */
    int divisions;       /* 0: the epoch began on these ranks */
    const gg_division *division;
} gg_position;

typedef struct gg_loader_options {
    gg_sharding sharding; /* its counts are copied */
    int rank;
    int64_t batch; /* samples a rank and step; at most the smallest shard, with OWN and no drop_last the largest */
    bool shuffle;  /* false: in the set's order */
    bool drop_last;
    uint64_t seed;
    const gg_shard_copy *copy; /* of this rank; outlives the loader. NULL means that rows are read from the set */
    bool moving;               /* only without `copy`, and not with OWN */
} gg_loader_options;

/* GG_ERROR_ARGUMENT if `batch` is below 1 or too large; `full`: all batches must be full. */
gg_status gg_loader_check_batch(const gg_sharding *sharding, bool full, int64_t batch);
/* Retains the set. Errors, which name the numbers: a rank without a sample; a batch that is too large. */
gg_status gg_loader_create(const gg_dataset *set, const gg_loader_options *options, gg_loader **out);
/* Batches of samples [begin, end) in order, for evaluation. The last may be smaller. A source reads them as epoch
 * GG_EPOCH_EVALUATION. */
gg_status gg_loader_create_range(const gg_dataset *set, int64_t begin, int64_t end, int64_t batch, gg_loader **out);
void gg_loader_destroy(gg_loader *loader);
/* It reads no more: memory and threads for that end. Questions about its epoch are still answered. */
void gg_loader_rest(gg_loader *loader);
int64_t gg_loader_steps(const gg_loader *loader); /* of this epoch */
/* Orders the samples for epoch e = 0, 1, ..., and starts to read ahead from step `step`. The loader's former position
 * makes no difference. Allocates nothing. */
void gg_loader_seek(gg_loader *loader, int64_t epoch, int64_t step);
/* Like gg_loader_seek, in an epoch whose steps before `begun` had other batch sizes or ranks. Those steps read the
 * first done[r] samples of rank r's order. From step `begun` on the rest is read like a whole epoch, with the rules of
 * last batches, in equally many steps on every rank. The position must have been checked. Allocates with divisions
 * only. */
gg_status gg_loader_resume(gg_loader *loader, const gg_position *at);
/* GG_ERROR_ARGUMENT if gg_loader_resume cannot continue there: streams; numbers that fit no such epoch. */
gg_status gg_loader_check_position(const gg_loader *loader, const gg_position *at);
int64_t gg_loader_begun(const gg_loader *loader); /* the first step of this epoch with batches of this size */
const int64_t *
gg_loader_read_before(const gg_loader *loader); /* samples of each rank read by steps before gg_loader_begun */
/* Samples of each rank that the steps before `step`, from gg_loader_begun to gg_loader_steps, have read. */
void gg_loader_done(const gg_loader *loader, int64_t step, int64_t *done);
/* Samples of each rank read before `step`, for a division. With batches of one, gg_loader_done leaves a rank its last
 * sample to read again; this counts the sample as read. */
void gg_loader_read_by(const gg_loader *loader, int64_t step, int64_t *read);
int64_t gg_loader_rank_read_by(const gg_loader *loader, int rank, int64_t step); /* gg_loader_read_by of one rank */
/* If samples move: exchanges of a batch made before step t is read. */
int64_t gg_loader_exchanges(const gg_loader *loader, int64_t step);
/* Samples of rank `rank` (any rank, pure) in step t of this epoch; 0 before gg_loader_begun. */
int64_t gg_loader_batch(const gg_loader *loader, int rank, int64_t step);
/* The number in the set of sample i of step t's batch; t is at least gg_loader_begun. */
int64_t gg_loader_number(const gg_loader *loader, int64_t step, int64_t i);
/* Waits at most `seconds`; true if step t can then be read without waiting for its source. Starts to read ahead. */
bool gg_loader_ready(gg_loader *loader, int64_t step, double seconds);
/* Writes batch t of the epoch into the memory that `batch` names; waits for a source. GG_ERROR_STATE while slots are
 * being replaced; a source's failure. */
gg_status gg_loader_read(gg_loader *loader, gg_device *device, int64_t step, const gg_batch *batch);
/* Allocates targets and weights for at most n samples, without inputs. gg_batch_free frees them and accepts any zeroed
 * batch. */
gg_status gg_batch_alloc(const gg_dataset *set, int64_t n, gg_batch *out);
void gg_batch_free(gg_batch *batch);

#endif
