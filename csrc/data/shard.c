#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "data/data.h"

void gg_shard(int64_t count, int rank, int size, int64_t *begin, int64_t *end) {
    /* The first count mod size ranks hold one sample more. No product of count and rank: it could overflow.
     */
    int64_t each = count / size, more = count % size;
    *begin = rank * each + (rank < more ? rank : more);
    *end = *begin + each + (rank < more);
}

int64_t gg_sharding_slots(const gg_sharding *sharding, int rank) {
    if (sharding->kind == GG_SHARD_OWN) return sharding->counts[rank];
    return sharding->count / sharding->size + (rank < sharding->count % sharding->size);
}

/* How far a round is rotated: the word number `round` of the stream, brought to 0..ranks-1. */
static int64_t shard_rotation(const gg_sharding *sharding, int64_t round, int64_t ranks) {
    const gg_random_key key = {.seed = sharding->seed, .purpose = GG_RANDOM_SHARD};
    uint32_t word[4];
    gg_random_block(&key, (uint32_t)(round / 4), word);
    return (int64_t)((uint64_t)word[round % 4] * (uint64_t)ranks >> 32);
}

int64_t gg_sharding_id(const gg_sharding *sharding, int rank, int64_t slot) {
    int64_t begin = 0, end;
    switch (sharding->kind) {
    case GG_SHARD_INTERLEAVED: {
        int64_t first = slot * sharding->size, left = sharding->count - first;
        int64_t ranks = left < sharding->size ? left : sharding->size;
        return first + (rank + shard_rotation(sharding, slot, ranks)) % ranks;
    }
    case GG_SHARD_OWN:
        for (int before = 0; before < rank; ++before) begin += sharding->counts[before];
        return begin + slot;
    default: gg_shard(sharding->count, rank, sharding->size, &begin, &end); return begin + slot;
    }
}

/* ---- a shard in memory of its own ---- */

static size_t sample_bytes(const gg_dataset *set) {
    return (size_t)gg_shape_count(&set->shape) * gg_dtype_size(set->dtype);
}
static size_t target_bytes(const gg_dataset *set) {
    return (size_t)set->target_values * gg_dtype_size(set->target_dtype);
}

static size_t weight_bytes(const gg_dataset *set) { return set->sample_weights != NULL ? sizeof(float) : 0; }

gg_status gg_shard_copy_create(const gg_dataset *source, const gg_sharding *sharding, int rank, gg_shard_copy **out) {
    gg_status status = GG_OK;
    gg_shard_copy *copy = NULL;
    *out = NULL;
    GG_TRY(gg_dataset_check(source));
    GG_TRY(gg_calloc(1, sizeof *copy, "a shard", &copy));
    copy->set = *source;
    copy->set.samples = copy->set.targets = copy->set.sample_weights = copy->set.rows = NULL;
    copy->set.count = gg_sharding_slots(sharding, rank);
    size_t count = (size_t)copy->set.count;
    GG_TRY(gg_storage_create(count * sample_bytes(source), "a shard's samples", &copy->set.samples));
    GG_TRY(gg_storage_create(count * target_bytes(source), "a shard's targets", &copy->set.targets));
    if (source->sample_weights != NULL)
        GG_TRY(gg_storage_create(count * sizeof(float), "a shard's weights", &copy->set.sample_weights));
    GG_TRY(gg_alloc(count * sizeof *copy->id, "ids of a shard's samples", &copy->id));
    for (int64_t slot = 0; slot < copy->set.count; ++slot)
        copy->id[slot] = (int32_t)gg_sharding_id(sharding, rank, slot);
    *out = copy;
    copy = NULL;
cleanup:
    gg_shard_copy_destroy(copy);
    return status;
}

void gg_shard_copy_destroy(gg_shard_copy *copy) {
    if (copy == NULL) return;
    gg_dataset_release(&copy->set);
    gg_free(copy->id);
    gg_free(copy);
}

static char *sample_of(const gg_dataset *set, int64_t i) {
    return (char *)gg_storage_data(set->samples) + (size_t)gg_dataset_row(set, i) * sample_bytes(set);
}

static char *target_of(const gg_dataset *set, int64_t i) {
    return (char *)gg_storage_data(set->targets) + (size_t)i * target_bytes(set);
}

/* Only where there are weights. */
static char *shard_weight_of(const gg_dataset *set, int64_t i) {
    return (char *)gg_storage_data(set->sample_weights) + (size_t)i * sizeof(float);
}

void gg_shard_copy_fill(gg_shard_copy *copy, const gg_dataset *source) {
    for (int64_t slot = 0; slot < copy->set.count; ++slot) {
        memcpy(sample_of(&copy->set, slot), sample_of(source, copy->id[slot]), sample_bytes(source));
        memcpy(target_of(&copy->set, slot), target_of(source, copy->id[slot]), target_bytes(source));
        if (source->sample_weights != NULL)
            memcpy(shard_weight_of(&copy->set, slot), shard_weight_of(source, copy->id[slot]), sizeof(float));
    }
}

static bool is_same(const gg_dataset *a, int64_t i, const gg_dataset *b, int64_t j) {
    return memcmp(sample_of(a, i), sample_of(b, j), sample_bytes(b)) == 0 &&
           memcmp(target_of(a, i), target_of(b, j), target_bytes(b)) == 0 &&
           (b->sample_weights == NULL || memcmp(shard_weight_of(a, i), shard_weight_of(b, j), sizeof(float)) == 0);
}

int64_t gg_shard_copy_altered(const gg_shard_copy *copy, const gg_dataset *source, int32_t *first) {
    int64_t altered = 0;
    for (int64_t slot = 0; slot < copy->set.count; ++slot) {
        int32_t id = copy->id[slot];
        if (id >= 0 && id < source->count && is_same(&copy->set, slot, source, id)) continue;
        if (altered++ == 0) *first = id;
    }
    return altered;
}

size_t gg_shard_copy_slot_bytes(const gg_shard_copy *copy) {
    return sample_bytes(&copy->set) + target_bytes(&copy->set) + weight_bytes(&copy->set) + sizeof *copy->id;
}

/* A message is n samples, n targets, n ids, and n weights where there are any; each column is two runs where the slots
 * wrap around. */
enum { MOST_COLUMNS = 4, RUNS = 2 };

typedef struct run {
    char *slots;
    size_t bytes;
} run;

/* Returns how many runs there are. */
static int find_runs(const gg_shard_copy *copy, int64_t first, int64_t n, int64_t ring, run out[MOST_COLUMNS * RUNS]) {
    const gg_dataset *set = &copy->set;
    const bool weighted = set->sample_weights != NULL;
    char *const column[MOST_COLUMNS] = {sample_of(set, 0), target_of(set, 0), (char *)copy->id,
                                        weighted ? shard_weight_of(set, 0) : NULL};
    const size_t bytes[MOST_COLUMNS] = {sample_bytes(set), target_bytes(set), sizeof *copy->id, weight_bytes(set)};
    const int columns = weighted ? MOST_COLUMNS : MOST_COLUMNS - 1;
    size_t head = (size_t)(n < ring - first ? n : ring - first);
    for (int i = 0; i < columns; ++i) {
        out[RUNS * i] = (run){column[i] + (size_t)first * bytes[i], head * bytes[i]};
        out[RUNS * i + 1] = (run){column[i], ((size_t)n - head) * bytes[i]};
    }
    return columns * RUNS;
}

void gg_shard_copy_pack(const gg_shard_copy *copy, int64_t first, int64_t n, int64_t ring, void *message) {
    run runs[MOST_COLUMNS * RUNS];
    char *to = message;
    const int count = find_runs(copy, first, n, ring, runs);
    for (int i = 0; i < count; to += runs[i++].bytes) memcpy(to, runs[i].slots, runs[i].bytes);
}

void gg_shard_copy_unpack(gg_shard_copy *copy, int64_t first, int64_t n, int64_t ring, const void *message) {
    run runs[MOST_COLUMNS * RUNS];
    const char *from = message;
    const int count = find_runs(copy, first, n, ring, runs);
    for (int i = 0; i < count; from += runs[i++].bytes) memcpy(runs[i].slots, from, runs[i].bytes);
}
