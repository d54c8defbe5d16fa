/* In-memory data sets, the shard of a rank, and the batches of an epoch. Knows of ranks only (rank, size). */
#ifndef GG_DATA_DATA_H
#define GG_DATA_DATA_H

#include "backend/backend.h"

/* A set in memory; each owner of a copy of this struct retains the storages (gg_dataset_retain/release). */
typedef struct gg_dataset {
    gg_storage *samples, *targets;
    gg_storage *sample_weights; /* float32, one a sample: what its loss counts; NULL: all 1 */
    gg_storage *rows; /* uint32, one a sample: its place among the `stored` samples; NULL: they are all, in their order.
                         Targets and weights are in the order of the set */
    int64_t stored;   /* with rows */
    gg_dtype dtype;   /* of samples: GG_UINT8 or GG_FLOAT32, row-major (count, shape) */
    gg_shape shape;   /* of one sample */
    int64_t count;
    gg_dtype target_dtype; /* GG_INT32: one class a sample; GG_FLOAT32: target_values numbers a sample */
    int64_t target_values;
    float scale, shift; /* what the network sees is scale*element + shift */
} gg_dataset;

/* GG_ERROR_ARGUMENT or GG_ERROR_SHAPE where sizes of the storages do not fit the counts. */
gg_status gg_dataset_check(const gg_dataset *set);
/* Checks that class targets are in 0..classes-1; names the first sample that is not. */
gg_status gg_dataset_check_classes(const gg_dataset *set, int64_t classes);
/* The place of a sample in `samples`. */
int64_t gg_dataset_row(const gg_dataset *set, int64_t i);
void gg_dataset_retain(const gg_dataset *set);
void gg_dataset_release(gg_dataset *set); /* zeroes it */

/* Contiguous parts whose sizes differ by at most one: rank r holds [begin, end). */
void gg_shard(int64_t count, int rank, int size, int64_t *begin, int64_t *end);

typedef enum gg_shard_kind {
    /* The set is cut into rounds of `size` consecutive samples. Of each round every rank has one, rotated by a number
     * that is drawn from (seed, GG_RANDOM_SHARD, round); of a last, shorter round the first ranks have one each.
     * Samples that are sorted, by class or by time, are divided evenly, and a period in their order meets no period
     * of a rank, which a plain stride would have. One rank has all in the set's order. */
    GG_SHARD_INTERLEAVED = 0,
    GG_SHARD_CONTIGUOUS, /* gg_shard */
    GG_SHARD_OWN,        /* every rank brings its own samples: each has a set of its own */
    GG_SHARD_COUNT
} gg_shard_kind;

/* Which rank has which samples. Pure: every rank can compute every rank's. In each kind a rank's slots are in the order
 * of the set. */
typedef struct gg_sharding {
    gg_shard_kind kind;
    int size; /* ranks */
    uint64_t seed;
    int64_t count;         /* samples of all ranks */
    const int64_t *counts; /* OWN: samples of each rank; else NULL. Owned by the caller */
} gg_sharding;

int64_t gg_sharding_slots(const gg_sharding *sharding, int rank); /* how many samples the rank has */
/* The number of the sample in a slot of the rank: its row in the set; with OWN the sets count one after another. */
int64_t gg_sharding_id(const gg_sharding *sharding, int rank, int64_t slot);

/* A rank's shard in memory of its own, so that rows can be replaced while the caller's set stays as it is. A slot is
 * the place of one sample with its target; which sample it holds changes, the number of slots does not. One rank, one
 * thread. */
typedef struct gg_shard_copy {
    gg_dataset set; /* its count is the number of slots; the storages are the copy's own */
    int32_t *id;    /* of each slot: the row of the source that it holds */
    bool in_flight; /* some slots are being replaced and must not be read; set by the sample ring */
} gg_shard_copy;

/* The ids are those of rank `rank`'s shard, the rows are not filled yet. Not with OWN. */
gg_status gg_shard_copy_create(const gg_dataset *source, const gg_sharding *sharding, int rank, gg_shard_copy **out);
void gg_shard_copy_destroy(gg_shard_copy *copy);                        /* NULL is fine */
void gg_shard_copy_fill(gg_shard_copy *copy, const gg_dataset *source); /* the row of every slot, by its id */
/* Slots whose sample, target or weight is not bit for bit the source's of that id; *first: the id in the first of them.
 */
int64_t gg_shard_copy_altered(const gg_shard_copy *copy, const gg_dataset *source, int32_t *first);
/* Bytes of a slot in a message: sample, target, weight if the set has weights, and id. */
size_t gg_shard_copy_slot_bytes(const gg_shard_copy *copy);
/* n <= ring slots from `first` on, going on at slot 0 after slot ring - 1, to a message of n * slot_bytes, and back. */
void gg_shard_copy_pack(const gg_shard_copy *copy, int64_t first, int64_t n, int64_t ring, void *message);
void gg_shard_copy_unpack(gg_shard_copy *copy, int64_t first, int64_t n, int64_t ring, const void *message);

/* How the data are given to the ranks. */
typedef struct gg_data_options {
    gg_shard_kind shard; /* OWN: the set is this rank's own part; else all ranks have the same one */
    int64_t batch;       /* samples a rank and step */
    bool shuffle;
} gg_data_options;

/* The batches of one rank. In epoch e the rank's samples are visited in an order that depends on (seed, rank, e) alone.
 * Every rank makes the same number of steps, ceil(largest shard / batch), every sample is seen exactly once an epoch,
 * and no batch is empty: batches are full but for the last; a rank that would have nothing left for the last step moves
 * one sample from its last full batch to it (with batches of one it has none to move and sees its last sample a second
 * time). A rank that has too few samples for that, which happens with OWN alone, divides them evenly among the steps;
 * with fewer samples than steps it repeats each as evenly as can be, in batches of one.
 *
 * From a shard copy, all ranks visit their slots in one common order, which does not depend on the rank: slot i, for
 * every i that all ranks have, is read by all of them in the same step. Samples may then move between slots of the same
 * number, in any number and at any time between two steps, and are still seen exactly once an epoch, by the rank that
 * holds them in that step. */
typedef struct gg_loader gg_loader;

typedef struct gg_loader_options {
    gg_sharding sharding; /* its counts are copied */
    int rank;
    int64_t batch; /* samples a rank and step; at most the smallest shard; with OWN the largest */
    bool shuffle;  /* false: in the set's order */
    uint64_t seed;
    const gg_shard_copy *copy; /* of this rank; outlives the loader. NULL: the rows are read from the set */
} gg_loader_options;

/* Retains the set. Errors: a rank without a sample; a batch that is too large: both name the numbers. */
gg_status gg_loader_create(const gg_dataset *set, const gg_loader_options *options, gg_loader **out);
void gg_loader_destroy(gg_loader *loader);
int64_t gg_loader_steps(const gg_loader *loader); /* of an epoch */
/* Orders the samples for epoch e = 0, 1, ... Allocates nothing. */
void gg_loader_epoch(gg_loader *loader, int64_t epoch);
/* Samples of rank `rank` (any rank, pure) in step t of an epoch. */
int64_t gg_loader_batch(const gg_loader *loader, int rank, int64_t step);
/* Writes batch t of the epoch: samples as float32 in this layout, targets and weights as gg_loss_args wants them; where
 * the set has no weights, `sample_weights` is not touched. GG_ERROR_STATE while slots are being replaced. */
gg_status gg_loader_read(gg_loader *loader, gg_device *device, int64_t step, gg_layout layout, float *samples,
                         void *targets, float *sample_weights);

#endif
