/* The batches of an epoch of one rank. */
#ifndef GG_DATA_LOADER_H
#define GG_DATA_LOADER_H

#include "data/batch.h"
#include "data/shard.h"

/* How the data are given to the ranks. */
typedef struct gg_data_options {
    gg_shard_kind shard; /* OWN: the set is this rank's own part; else all ranks have the same one */
    int64_t batch;       /* samples a rank and step */
    bool shuffle;
    bool drop_last; /* full batches alone */
} gg_data_options;

/* The batches of one rank. In epoch e the rank's samples are visited in an order that depends on (seed, rank, e) alone.
 * Every rank makes the same number of steps, ceil(largest shard / batch), every sample is seen exactly once an epoch,
 * and no batch is empty: batches are full but for the last; a rank that would have nothing left for the last step moves
 * one sample from its last full batch to it (with batches of one it has none to move and sees its last sample a second
 * time). A rank that has too few samples for that, which happens with OWN alone, divides them evenly among the steps;
 * with fewer samples than steps it repeats each as evenly as can be, in batches of one.
 *
 * With `drop_last` all batches are full, and every rank makes as many steps as the smallest shard has full batches.
 * What is left over in an epoch's order is not read; with `shuffle` these are other samples in each epoch.
 *
 * From a shard copy, all ranks visit their slots in one common order, which does not depend on the rank: slot i, for
 * every i that all ranks have, is read by all of them in the same step. Samples may then move between slots of the same
 * number, in any number and at any time between two steps, and are still seen exactly once an epoch, by the rank that
 * holds them in that step. With `moving` the same samples are read from the set itself, where no message needs to carry
 * them: those that a shard copy would hold, had sample_ring.h moved them by a batch a step.
 *
 * What a source reads, threads of its own read ahead of the network (prefetch.h), in the same order.
 *
 * An epoch may go on in batches of another size (gg_loader_resume): what each rank has not read yet is then read as a
 * whole epoch of these samples would be.
 *
 * Streams: of a set whose samples go on where the one before ends, each rank cuts its shard into `batch` runs. Row b of
 * batch t is sample t of run b: it goes on where row b of batch t - 1 ended. Batches are as large as those of other
 * sets; the first runs are longer by a sample where the last batch is smaller. No batch is larger than the one before
 * it, so that its rows go on. Nothing is shuffled. */
typedef struct gg_loader gg_loader;

typedef struct gg_loader_options {
    gg_sharding sharding; /* its counts are copied */
    int rank;
    int64_t batch; /* samples a rank and step; at most the smallest shard; with OWN, unless drop_last, the largest */
    bool shuffle;  /* false: in the set's order */
    bool drop_last;
    uint64_t seed;
    const gg_shard_copy *copy; /* of this rank; outlives the loader. NULL: the rows are read from the set */
    bool moving;               /* without a copy, and not with OWN */
} gg_loader_options;

/* GG_ERROR_ARGUMENT where a batch is too large, or no batch; full: all batches are to be. */
gg_status gg_loader_check_batch(const gg_sharding *sharding, bool full, int64_t batch);
/* Retains the set. Errors: a rank without a sample; a batch that is too large: both name the numbers. */
gg_status gg_loader_create(const gg_dataset *set, const gg_loader_options *options, gg_loader **out);
/* Batches of samples [begin, end) in their order, for evaluation: a last one is as small as it must be; a source is
 * asked for them as GG_EPOCH_EVALUATION. */
gg_status gg_loader_create_range(const gg_dataset *set, int64_t begin, int64_t end, int64_t batch, gg_loader **out);
void gg_loader_destroy(gg_loader *loader);
int64_t gg_loader_steps(const gg_loader *loader); /* of this epoch */
/* Orders the samples for epoch e = 0, 1, ..., and begins to read them ahead, from step `step` on. Where the loader was
 * before makes no difference. Allocates nothing. */
void gg_loader_seek(gg_loader *loader, int64_t epoch, int64_t step);
/* The same in an epoch whose steps before `begun` had batches of other sizes. done: so many samples of each rank, the
 * first ones of its order, have been read in them, and the others are read from step `begun` on as a whole epoch of
 * these would be: by the same rules of last batches, as many steps on every rank. Checked. */
void gg_loader_resume(gg_loader *loader, int64_t epoch, int64_t step, int64_t begun, const int64_t *done);
/* GG_ERROR_ARGUMENT where gg_loader_resume, or with done NULL gg_loader_seek, cannot go on there: streams; numbers that
 * are not of such an epoch. */
gg_status gg_loader_check_position(const gg_loader *loader, int64_t step, int64_t begun, const int64_t *done);
int64_t gg_loader_begun(const gg_loader *loader); /* the first step of this epoch with batches of this size */
const int64_t *gg_loader_read_before(const gg_loader *loader); /* samples of each rank that steps before it have read */
/* Samples of each rank that the steps before `step`, from gg_loader_begun to gg_loader_steps, have read. */
void gg_loader_done(const gg_loader *loader, int64_t step, int64_t *done);
/* Where samples move: the exchanges of a batch that have been made when step t is read. */
int64_t gg_loader_exchanges(const gg_loader *loader, int64_t step);
/* Samples of rank `rank` (any rank, pure) in step t of this epoch; 0 before gg_loader_begun. */
int64_t gg_loader_batch(const gg_loader *loader, int rank, int64_t step);
/* The number in the set of sample i of the batch of step t, which is at or behind gg_loader_begun. */
int64_t gg_loader_number(const gg_loader *loader, int64_t step, int64_t i);
/* Whether step t can be read without waiting for its source, after waiting for at most so many seconds. Begins to read
 * ahead. */
bool gg_loader_ready(gg_loader *loader, int64_t step, double seconds);
/* Writes batch t of the epoch into the memory that the batch names, and waits for its source where there is one.
 * GG_ERROR_STATE while slots are being replaced; the failure of a source. */
gg_status gg_loader_read(gg_loader *loader, gg_device *device, int64_t step, const gg_batch *batch);
/* Memory for targets and weights of at most n samples, and the inputs' places empty; freed by gg_batch_free, which may
 * be called for any zeroed batch. */
gg_status gg_batch_alloc(const gg_dataset *set, int64_t n, gg_batch *out);
void gg_batch_free(gg_batch *batch);

#endif
