/* Division of samples among ranks, and a rank's shard in memory of its own. */
#ifndef GG_DATA_SHARD_H
#define GG_DATA_SHARD_H

#include "data/dataset.h"

/* Contiguous parts whose sizes differ by at most one: rank r holds [begin, end). */
void gg_shard(int64_t count, int rank, int size, int64_t *begin, int64_t *end);

typedef enum gg_shard_kind {
    /* The set is cut into rounds of `size` consecutive samples. Every rank has one sample of each round, rotated by a
     * number drawn from (seed, GG_RANDOM_SHARD, round). In a shorter last round the first ranks have one each. Samples
     * that are sorted, by class or by time, are divided evenly, and a period in their order meets no period of a rank,
     * which a plain stride would have. One rank has all in the set's order. */
    GG_SHARD_INTERLEAVED = 0,
    GG_SHARD_CONTIGUOUS, /* gg_shard */
    GG_SHARD_OWN,        /* every rank brings its own samples: each has a set of its own */
    GG_SHARD_COUNT
} gg_shard_kind;

/* Pure: every rank can compute every rank's samples. A rank's slots are in the order of the set. */
typedef struct gg_sharding {
    gg_shard_kind kind;
    int size; /* ranks */
    uint64_t seed;
    int64_t count;         /* samples of all ranks */
    const int64_t *counts; /* OWN: samples of each rank; else NULL. Owned by the caller */
} gg_sharding;

int64_t gg_sharding_slots(const gg_sharding *sharding, int rank); /* samples of the rank */
/* The number of the sample in a slot: its row in the set. With OWN the ranks' sets are numbered one after another. */
int64_t gg_sharding_id(const gg_sharding *sharding, int rank, int64_t slot);
/* The sample in the slot after `exchanges` exchanges of `rows` slots around the ring (comm/sample_ring.h). Not with
 * OWN. */
int64_t gg_sharding_moved_id(const gg_sharding *sharding, int rank, int64_t slot, int64_t rows, int64_t exchanges);

/* A rank's shard in memory of its own: rows can be replaced, and the caller's set stays unchanged. A slot holds one
 * sample with its target. Samples change, the number of slots does not. One rank, one thread. */
typedef struct gg_shard_copy {
    gg_dataset set; /* its count is the number of slots; the storages are the copy's own */
    int32_t *id;    /* one a slot: the source's row that it holds */
    bool in_flight; /* some slots are being replaced and must not be read; set by their writer */
} gg_shard_copy;

/* Sets the ids of `rank`'s shard and leaves the rows unfilled. The set is in memory; not with OWN. */
gg_status gg_shard_copy_create(const gg_dataset *source, const gg_sharding *sharding, int rank, gg_shard_copy **out);
void gg_shard_copy_destroy(gg_shard_copy *copy);                        /* NULL is a no-op */
void gg_shard_copy_fill(gg_shard_copy *copy, const gg_dataset *source); /* the row of every slot, by its id */
/* Number of slots whose fields or weight differ in a bit from the source's row; *first receives the id in the first.
 */
int64_t gg_shard_copy_altered(const gg_shard_copy *copy, const gg_dataset *source, int32_t *first);
/* Bytes of a slot in a message: its fields, its weight if the set has weights, its id. */
size_t gg_shard_copy_slot_bytes(const gg_shard_copy *copy);
/* Copies n <= ring slots, from `first` modulo `ring`, to a message of n * slot_bytes, and back. */
void gg_shard_copy_pack(const gg_shard_copy *copy, int64_t first, int64_t n, int64_t ring, void *message);
void gg_shard_copy_unpack(gg_shard_copy *copy, int64_t first, int64_t n, int64_t ring, const void *message);

#endif
