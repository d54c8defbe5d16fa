#include "data/shard.h"

#include <string.h>

#include "base/memory.h"
#include "base/random.h"

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

int64_t gg_sharding_moved_id(const gg_sharding *sharding, int rank, int64_t slot, int64_t rows, int64_t exchanges) {
    int64_t slots = sharding->count / sharding->size;
    /* The slots sent so far are a run from slot 0 on, around the ring: how often it has passed this one. */
    int64_t moves = slot < slots ? (exchanges * rows + slots - 1 - slot) / slots : 0;
    return gg_sharding_id(sharding, (int)((rank + moves) % sharding->size), slot);
}

/* ---- a shard in memory of its own ---- */

gg_status gg_shard_copy_create(const gg_dataset *source, const gg_sharding *sharding, int rank, gg_shard_copy **out) {
    gg_status status = GG_OK;
    gg_shard_copy *copy = NULL;
    char name[GG_FIELD_TEXT];
    *out = NULL;
    GG_TRY_CLEANUP(gg_dataset_check(source));
    if (source->source != NULL) GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "a shard's samples: only of a set in memory");
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *copy, "a shard", &copy));
    copy->set = (gg_dataset){.inputs = source->inputs, .targets = source->targets, .streams = source->streams};
    copy->set.count = gg_sharding_slots(sharding, rank);
    size_t count = (size_t)copy->set.count;
    for (int f = 0; f < gg_dataset_fields(source); ++f) {
        copy->set.field[f] = source->field[f];
        if (source->field[f].scales != NULL) gg_storage_retain(source->field[f].scales);
        GG_TRY_CLEANUP(gg_storage_create(count * gg_field_bytes(&source->field[f]),
                                         gg_dataset_field_name(source, f, name), &copy->set.memory[f]));
    }
    if (source->sample_weights != NULL)
        GG_TRY_CLEANUP(gg_storage_create(count * sizeof(float), "a shard's weights", &copy->set.sample_weights));
    GG_TRY_CLEANUP(gg_alloc(count * sizeof *copy->id, "ids of a shard's samples", &copy->id));
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

/* Only where there are weights. */
static char *shard_weight_of(const gg_dataset *set, int64_t i) {
    return (char *)gg_storage_data(set->sample_weights) + (size_t)i * sizeof(float);
}

void gg_shard_copy_fill(gg_shard_copy *copy, const gg_dataset *source) {
    for (int64_t slot = 0; slot < copy->set.count; ++slot) {
        for (int f = 0; f < gg_dataset_fields(source); ++f)
            memcpy(gg_dataset_at(&copy->set, f, slot), gg_dataset_at(source, f, copy->id[slot]),
                   gg_field_bytes(&source->field[f]));
        if (source->sample_weights != NULL)
            memcpy(shard_weight_of(&copy->set, slot), shard_weight_of(source, copy->id[slot]), sizeof(float));
    }
}

static bool is_same(const gg_dataset *a, int64_t i, const gg_dataset *b, int64_t j) {
    bool same = true;
    for (int f = 0; same && f < gg_dataset_fields(b); ++f)
        same = memcmp(gg_dataset_at(a, f, i), gg_dataset_at(b, f, j), gg_field_bytes(&b->field[f])) == 0;
    return same &&
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

/* A message is n samples of each field, n ids, and n weights where there are any; each column is two runs where the
 * slots wrap around. */
enum { MAX_COLUMNS = GG_SET_FIELDS + 2, RUNS = 2 };

typedef struct column {
    char *slots;
    size_t bytes; /* of a slot */
} column;

/* Returns how many columns there are. */
static int find_columns(const gg_shard_copy *copy, column out[MAX_COLUMNS]) {
    const gg_dataset *set = &copy->set;
    int n = 0;
    for (int f = 0; f < gg_dataset_fields(set); ++f)
        out[n++] = (column){gg_storage_data(set->memory[f]), gg_field_bytes(&set->field[f])};
    out[n++] = (column){(char *)copy->id, sizeof *copy->id};
    if (set->sample_weights != NULL) out[n++] = (column){shard_weight_of(set, 0), sizeof(float)};
    return n;
}

size_t gg_shard_copy_slot_bytes(const gg_shard_copy *copy) {
    column columns[MAX_COLUMNS];
    size_t bytes = 0;
    const int count = find_columns(copy, columns);
    for (int i = 0; i < count; ++i) bytes += columns[i].bytes;
    return bytes;
}

typedef struct run {
    char *slots;
    size_t bytes;
} run;

/* Returns how many runs there are. */
static int find_runs(const gg_shard_copy *copy, int64_t first, int64_t n, int64_t ring, run out[MAX_COLUMNS * RUNS]) {
    column columns[MAX_COLUMNS];
    const int count = find_columns(copy, columns);
    size_t head = (size_t)(n < ring - first ? n : ring - first);
    for (int i = 0; i < count; ++i) {
        const size_t bytes = columns[i].bytes;
        out[RUNS * i] = (run){columns[i].slots + (size_t)first * bytes, head * bytes};
        out[RUNS * i + 1] = (run){columns[i].slots, ((size_t)n - head) * bytes};
    }
    return count * RUNS;
}

void gg_shard_copy_pack(const gg_shard_copy *copy, int64_t first, int64_t n, int64_t ring, void *message) {
    run runs[MAX_COLUMNS * RUNS];
    char *to = message;
    const int count = find_runs(copy, first, n, ring, runs);
    for (int i = 0; i < count; to += runs[i++].bytes) memcpy(to, runs[i].slots, runs[i].bytes);
}

void gg_shard_copy_unpack(gg_shard_copy *copy, int64_t first, int64_t n, int64_t ring, const void *message) {
    run runs[MAX_COLUMNS * RUNS];
    const char *from = message;
    const int count = find_runs(copy, first, n, ring, runs);
    for (int i = 0; i < count; from += runs[i++].bytes) memcpy(runs[i].slots, from, runs[i].bytes);
}
