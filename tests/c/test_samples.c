/* The shuffle of samples among the ranks: where they are, that none is lost, that epochs see each once. */
#include <stdlib.h>

#include "base/memory.h"
#include "check.h"
#include "comm/sample_ring.h"
#include "comm/virtual/virtual.h"
#include "data/loader.h"

#define MAX 64
#define RANKS 8
#define VALUES 3
#define TARGETS 2
#define EPOCHS 4

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        if (!CHECK_OK(call)) return GG_ERROR_STATE;                                                                    \
    } while (0)

static void gather(gg_device *device, const gg_gather_args *args) {
    (void)device;
    for (int64_t i = 0; i < args->n; ++i)
        for (int64_t v = 0; v < args->values; ++v) {
            int64_t at = args->index[i] * args->values + v;
            ((float *)args->out)[i * args->values + v] =
                args->dtype == GG_UINT8 ? ((const uint8_t *)args->rows)[at] : ((const float *)args->rows)[at];
        }
}

static const gg_backend backend = {.name = "test", .gather = gather};
static gg_device device = {.table = &backend, .threads = 1};

/* A batch of one input and one target. */
static gg_status read_into(gg_loader *loader, int64_t step, gg_layout layout, float *samples, void *targets,
                           float *weights) {
    const gg_batch batch = {
        .input[0] = {.format.layout = layout, .data = samples}, .target[0] = targets, .sample_weights = weights};
    return gg_loader_read(loader, &device, step, &batch);
}

/* Every value of a sample and of its target tells which one it is. */
static float value_of(int64_t id, int64_t v) { return (float)((7 * id + v) % 256); }
static float target_of(int64_t id, int64_t v) { return (float)(100 * id + v); }
static float weight_of(int64_t id) { return (float)(3 * id + 1); }

static gg_status make_set(int64_t count, gg_dtype dtype, gg_dtype target_dtype, gg_dataset *out) {
    gg_status status = GG_OK;
    gg_dataset set = {.inputs = 1, .targets = 1, .count = count};
    set.field[0] = (gg_field){.dtype = dtype, .scale = 1};
    set.field[1] = (gg_field){.dtype = target_dtype};
    set.field[0].shape = (gg_shape){.dims = 1, .size = {VALUES}};
    if (target_dtype != GG_INT32) set.field[1].shape = (gg_shape){.dims = 1, .size = {TARGETS}};
    GG_TRY_CLEANUP(gg_storage_create((size_t)(count * VALUES) * gg_dtype_size(dtype), "samples", &set.memory[0]));
    GG_TRY_CLEANUP(gg_storage_create((size_t)(count * gg_field_values(&set.field[1])) * 4, "targets", &set.memory[1]));
    if (dtype == GG_UINT8)
        GG_TRY_CLEANUP(gg_storage_create((size_t)count * sizeof(float), "weights", &set.sample_weights));
    for (int64_t i = 0; i < count; ++i) {
        if (set.sample_weights != NULL) ((float *)gg_storage_data(set.sample_weights))[i] = weight_of(i);
        for (int64_t v = 0; v < VALUES; ++v) {
            if (dtype == GG_UINT8)
                ((uint8_t *)gg_storage_data(set.memory[0]))[i * VALUES + v] = (uint8_t)value_of(i, v);
            else ((float *)gg_storage_data(set.memory[0]))[i * VALUES + v] = value_of(i, v);
        }
        if (target_dtype == GG_INT32) ((int32_t *)gg_storage_data(set.memory[1]))[i] = (int32_t)i;
        else
            for (int64_t v = 0; v < TARGETS; ++v)
                ((float *)gg_storage_data(set.memory[1]))[i * TARGETS + v] = target_of(i, v);
    }
    *out = set;
    memset(&set, 0, sizeof set);
cleanup:
    gg_dataset_release(&set);
    return status;
}

/* ---- by hand ---- */

static void test_places(void) {
    /* 7 samples on 3 ranks: 0 1 2 | 3 4 | 5 6; slots 0 and 1 move, one in each exchange, 2 stays. */
    static const int64_t wanted[][7] = {{0, 1, 2, 3, 4, 5, 6},
                                        {3, 1, 2, 5, 4, 0, 6},
                                        {3, 4, 2, 5, 6, 0, 1},
                                        {5, 4, 2, 0, 6, 3, 1},
                                        {5, 6, 2, 0, 1, 3, 4}};
    const gg_sharding sharding = {.kind = GG_SHARD_CONTIGUOUS, .size = 3, .count = 7};
    for (int64_t exchanges = 0; exchanges < 5; ++exchanges)
        for (int64_t place = 0; place < 7; ++place) {
            int rank = place < 3 ? 0 : place < 5 ? 1 : 2;
            int64_t slot = place - (rank == 0 ? 0 : rank == 1 ? 3 : 5);
            CHECK_INT(gg_sharding_moved_id(&sharding, rank, slot, 1, exchanges), wanted[exchanges][place]);
        }
}

static void test_messages(void) {
    gg_dataset set = {0};
    gg_shard_copy *copy = NULL;
    char message[4 * (VALUES * 4 + TARGETS * 4 + 4)];
    int32_t first = -1;
    if (!CHECK_OK(make_set(11, GG_FLOAT32, GG_FLOAT32, &set))) return;
    const gg_sharding sharding = {.kind = GG_SHARD_CONTIGUOUS, .size = 2, .count = 11};
    if (CHECK_OK(gg_shard_copy_create(&set, &sharding, 1, &copy))) { /* samples 6 to 10 */
        gg_shard_copy_fill(copy, &set);
        CHECK_INT(gg_shard_copy_slot_bytes(copy), sizeof message / 4);
        CHECK_INT(gg_shard_copy_altered(copy, &set, &first), 0);
        gg_shard_copy_pack(copy, 3, 4, 5, message); /* slots 3 4 0 1 */
        gg_shard_copy_unpack(copy, 1, 4, 5, message);
        static const int32_t wanted[] = {6, 9, 10, 6, 7};
        for (int i = 0; i < 5; ++i) CHECK_INT(copy->id[i], wanted[i]);
        CHECK_INT(gg_shard_copy_altered(copy, &set, &first), 0);
        ((float *)gg_storage_data(copy->set.memory[1]))[2 * TARGETS] += 1;
        copy->id[4] = 99;
        CHECK_INT(gg_shard_copy_altered(copy, &set, &first), 2);
        CHECK_INT(first, 10);
    }
    gg_shard_copy_destroy(copy);
    gg_dataset_release(&set);
}

/* ---- epochs ---- */

typedef struct setup {
    gg_virtual *cluster;
    gg_dataset set;
    gg_sharding sharding;
    int64_t batch;
    bool shuffle, audits;
    int seen[EPOCHS][MAX];
} setup;

/* Reads a batch, checks what is in it, counts it. */
static gg_status read(setup *s, gg_loader *loader, int rank, int64_t step, int *seen) {
    float samples[MAX * VALUES], weights[MAX];
    union {
        int32_t id[MAX];
        float value[MAX * TARGETS];
    } targets;
    gg_status status = read_into(loader, step, GG_LAYOUT_PLAIN, samples, &targets, weights);
    bool same = true;
    if (status != GG_OK) return status;
    for (int64_t i = 0; i < gg_loader_batch(loader, rank, step); ++i) {
        bool classes = s->set.field[1].dtype == GG_INT32;
        int64_t id = classes ? targets.id[i] : (int64_t)targets.value[i * TARGETS] / 100;
        if (!CHECK(id >= 0 && id < s->set.count)) return GG_ERROR_STATE;
        for (int64_t v = 0; v < VALUES; ++v) same = same && samples[i * VALUES + v] == value_of(id, v);
        for (int64_t v = 0; v < TARGETS && !classes; ++v)
            same = same && targets.value[i * TARGETS + v] == target_of(id, v);
        same = same && (s->set.sample_weights == NULL || weights[i] == weight_of(id));
        seen[id]++;
    }
    CHECK(same);
    return GG_OK;
}

static gg_status train(setup *s, int rank, gg_shard_copy *shard, gg_loader *loader, gg_sample_ring *ring) {
    gg_transport *transport = gg_virtual_transport(s->cluster, rank);
    int64_t steps = gg_loader_steps(loader), bytes, messages;
    gg_sample_audit audit;
    MUST(gg_sample_ring_seek(ring, &s->set, 0));
    for (int64_t exchange = 0; exchange < EPOCHS * steps; ++exchange) {
        int64_t epoch = exchange / steps, step = exchange % steps;
        if (step == 0) gg_loader_seek(loader, epoch, 0);
        MUST(gg_sample_ring_finish(ring));
        MUST(read(s, loader, rank, step, s->seen[epoch]));
        MUST(gg_sample_ring_begin(ring));
        CHECK_FAILS(read_into(loader, step, GG_LAYOUT_PLAIN, NULL, NULL, NULL), GG_ERROR_STATE, "being replaced");
        CHECK_FAILS(gg_sample_ring_begin(ring), GG_ERROR_STATE, "not finished");
        MUST(gg_transport_compute(transport, 1e-6 * (rank + 1)));
        for (int poll = 0; poll < 3; ++poll) {
            MUST(gg_progress(transport));
            MUST(gg_sample_ring_poll(ring));
        }
        if (!s->audits) continue;
        MUST(gg_sample_ring_settle(ring));
        MUST(gg_sample_audit_run(transport, &s->sharding, shard->id, shard, &s->set, &audit));
        CHECK(audit.missing == 0 && audit.duplicate == 0 && audit.altered == 0);
        CHECK_INT(audit.samples, s->set.count);
    }
    MUST(gg_sample_ring_settle(ring));
    gg_sample_ring_sent(ring, &bytes, &messages);
    CHECK_INT(messages, EPOCHS * steps);
    CHECK_INT(bytes, EPOCHS * steps * s->batch * (int64_t)gg_shard_copy_slot_bytes(shard));
    /* Going back and forth is the same as having come there. */
    int32_t moved[MAX], first;
    memcpy(moved, shard->id, (size_t)shard->set.count * sizeof *moved);
    MUST(gg_sample_ring_seek(ring, &s->set, 3));
    CHECK_INT(shard->id[0], gg_sharding_moved_id(&s->sharding, rank, 0, s->batch, 3));
    MUST(gg_sample_ring_seek(ring, &s->set, EPOCHS * steps));
    CHECK(memcmp(moved, shard->id, (size_t)shard->set.count * sizeof *moved) == 0);
    CHECK_INT(gg_shard_copy_altered(shard, &s->set, &first), 0);
    return GG_OK;
}

static gg_status run(void *context, int rank) {
    setup *s = context;
    gg_transport *transport = gg_virtual_transport(s->cluster, rank);
    gg_loader_options options = {
        .sharding = s->sharding, .rank = rank, .batch = s->batch, .shuffle = s->shuffle, .seed = 5};
    gg_shard_copy *shard = NULL;
    gg_loader *loader = NULL;
    gg_sample_ring *ring = NULL;
    MUST(gg_shard_copy_create(&s->set, &s->sharding, rank, &shard));
    options.copy = shard;
    MUST(gg_loader_create(&s->set, &options, &loader));
    MUST(gg_sample_ring_create(transport, shard, &s->sharding, s->batch, &ring));
    gg_status status = train(s, rank, shard, loader, ring);
    gg_sample_ring_destroy(ring);
    gg_loader_destroy(loader);
    gg_shard_copy_destroy(shard);
    return status;
}

static void check_epochs(const setup *s, int size) {
    for (int epoch = 0; epoch < EPOCHS; ++epoch) {
        /* With batches of one the smaller shards see a sample twice, as they do when nothing moves. */
        int again = s->batch == 1 && s->set.count % size != 0 ? size - (int)(s->set.count % size) : 0;
        for (int64_t id = 0; id < s->set.count; ++id) {
            CHECK(s->seen[epoch][id] == 1 || (s->seen[epoch][id] == 2 && again > 0));
            again -= s->seen[epoch][id] - 1;
        }
        CHECK_INT(again, 0);
    }
}

static void test_epochs(void) {
    static const int sizes[] = {2, 3, 5, 8};
    for (int i = 0; i < 4; ++i)
        for (int64_t count = sizes[i]; count <= 5 * sizes[i] + 4 && count <= MAX; ++count)
            for (int64_t batch = 1; batch <= count / sizes[i]; ++batch) {
                int kind = (int)(count + batch) % 4;
                setup s = {.batch = batch, .shuffle = kind != 0, .audits = count % 3 == 0};
                s.sharding =
                    (gg_sharding){.kind = (gg_shard_kind)(count / 2 % 2), .size = sizes[i], .seed = 4, .count = count};
                gg_virtual_options options = {
                    .size = sizes[i], .network.latency = kind < 2 ? 0 : 5e-6, .compute_rate = 1};
                if (!CHECK_OK(
                        make_set(count, kind % 2 ? GG_UINT8 : GG_FLOAT32, kind < 2 ? GG_INT32 : GG_FLOAT32, &s.set)) ||
                    !CHECK_OK(gg_virtual_create(&options, &s.cluster)))
                    return;
                if (CHECK_OK(gg_virtual_run(s.cluster, run, &s))) check_epochs(&s, sizes[i]);
                gg_virtual_destroy(s.cluster);
                gg_dataset_release(&s.set);
            }
}

/* ---- what an audit finds ---- */

static gg_status spoil(void *context, int rank) {
    setup *s = context;
    gg_transport *transport = gg_virtual_transport(s->cluster, rank);
    gg_shard_copy *shard = NULL;
    gg_sample_audit audit;
    gg_sharding sharding = s->sharding;
    MUST(gg_shard_copy_create(&s->set, &sharding, rank, &shard));
    gg_shard_copy_fill(shard, &s->set);
    if (rank == 1) shard->id[2] = 1;                                           /* rank 0 has it, too; 6 is nowhere */
    if (rank == 2) ((uint8_t *)gg_storage_data(shard->set.memory[0]))[1] ^= 1; /* of sample 7 */
    MUST(gg_sample_audit_run(transport, &sharding, shard->id, shard, &s->set, &audit));
    CHECK_INT(audit.samples, 10);
    CHECK_INT(audit.missing, 1);
    CHECK_INT(audit.first_missing, 6);
    CHECK_INT(audit.duplicate, 1);
    CHECK_INT(audit.first_duplicate, 1);
    CHECK_INT(audit.altered, 2);
    CHECK_INT(audit.first_altered, 1);
    for (int holders = 1; holders <= 3; ++holders) { /* the others only serve */
        sharding.size = holders;
        int32_t ids[10];
        for (int64_t slot = 0; rank < holders && slot < gg_sharding_slots(&sharding, rank); ++slot)
            ids[slot] = (int32_t)gg_sharding_id(&sharding, rank, slot);
        MUST(gg_sample_audit_run(transport, &sharding, ids, NULL, &s->set, &audit));
        CHECK(audit.samples == 10 && audit.missing == 0 && audit.duplicate == 0 && audit.first_missing == -1);
    }
    gg_shard_copy_destroy(shard);
    return GG_OK;
}

static void test_audit(void) {
    setup s = {.sharding = {.kind = GG_SHARD_CONTIGUOUS, .size = 3, .count = 10}};
    gg_virtual_options options = {.size = 3, .compute_rate = 1};
    if (!CHECK_OK(make_set(10, GG_UINT8, GG_INT32, &s.set)) || !CHECK_OK(gg_virtual_create(&options, &s.cluster)))
        return;
    CHECK_OK(gg_virtual_run(s.cluster, spoil, &s));
    gg_virtual_destroy(s.cluster);
    gg_dataset_release(&s.set);
}

int main(void) {
    test_places();
    test_messages();
    test_epochs();
    test_audit();
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
