/* Which rank has which samples, and a rank's shard in memory of its own. Knows of ranks only (rank, size). */
#ifndef GG_DATA_SHARD_H
#define GG_DATA_SHARD_H

#include "data/dataset.h"

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
/* The number of the sample that the slot holds after so many exchanges of `rows` slots around the ring of ranks
 * (comm/sample_ring.h). Not with OWN. */
int64_t gg_sharding_moved_id(const gg_sharding *sharding, int rank, int64_t slot, int64_t rows, int64_t exchanges);

/* A rank's shard in memory of its own, so that rows can be replaced while the caller's set stays as it is. A slot is
 * the place of one sample with its target; which sample it holds changes, the number of slots does not. One rank, one
 * thread. */
typedef struct gg_shard_copy {
    gg_dataset set; /* its count is the number of slots; the storages are the copy's own */
    int32_t *id;    /* of each slot: the row of the source that it holds */
    bool in_flight; /* some slots are being replaced: not to be read; set by whoever replaces them */
} gg_shard_copy;

/* The ids are those of rank `rank`'s shard, the rows are not filled yet. Not with OWN; of a set in memory. */
gg_status gg_shard_copy_create(const gg_dataset *source, const gg_sharding *sharding, int rank, gg_shard_copy **out);
void gg_shard_copy_destroy(gg_shard_copy *copy);                        /* NULL is fine */
void gg_shard_copy_fill(gg_shard_copy *copy, const gg_dataset *source); /* the row of every slot, by its id */
/* Slots of which a field or the weight is not bit for bit the source's of that id; *first: the id in the first of them.
 */
int64_t gg_shard_copy_altered(const gg_shard_copy *copy, const gg_dataset *source, int32_t *first);
/* What a slot takes in a message: its fields, its weight where the set has them, and its id. */
size_t gg_shard_copy_slot_bytes(const gg_shard_copy *copy);
/* n <= ring slots from `first` on, going on at slot 0 after slot ring - 1, to a message of n * slot_bytes, and back. */
void gg_shard_copy_pack(const gg_shard_copy *copy, int64_t first, int64_t n, int64_t ring, void *message);
void gg_shard_copy_unpack(gg_shard_copy *copy, int64_t first, int64_t n, int64_t ring, const void *message);

#endif
