/* Data sets, shards and the batches of an epoch. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "check.h"
#include "cpu/cpu_backend.h"
#include "data/loader.h"

/* ---------------------------------------------------------------------------------------------- a small
 * device */

static void gather(gg_device *device, const gg_gather_args *args) {
    (void)device;
    int64_t lanes = args->layout == GG_LAYOUT_BATCH_LAST ? gg_lanes_padded(args->n) : args->n;
    for (int64_t i = 0; i < lanes; ++i)
        for (int64_t v = 0; v < args->values; ++v) {
            float value = 0;
            if (i < args->n) {
                int64_t at = (args->index ? args->index[i] : i) * args->values + v;
                float element =
                    args->dtype == GG_UINT8 ? ((const uint8_t *)args->rows)[at] : ((const float *)args->rows)[at];
                value = args->scale * element + args->shift;
            }
            ((float *)args->out)[args->layout == GG_LAYOUT_BATCH_LAST ? v * lanes + i : i * args->values + v] = value;
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

/* Sample i holds the numbers 10*i and 10*i + 1 (uint8: 2*i mod 256 and 7), and its class or targets tell i.
 */
static gg_status make_set(int64_t count, gg_dtype dtype, gg_dtype target_dtype, gg_dataset *out) {
    gg_status status = GG_OK;
    gg_dataset set = {.inputs = 1, .targets = 1, .count = count};
    set.field[0] = (gg_field){.dtype = dtype, .scale = 1};
    set.field[1] = (gg_field){.dtype = target_dtype};
    set.field[0].shape = (gg_shape){.dims = 1, .size = {2}};
    if (target_dtype != GG_INT32) set.field[1].shape = (gg_shape){.dims = 1, .size = {3}};
    GG_TRY_CLEANUP(gg_storage_create((size_t)count * 2 * gg_dtype_size(dtype), "samples", &set.memory[0]));
    GG_TRY_CLEANUP(gg_storage_create((size_t)(count * gg_field_values(&set.field[1])) * 4, "targets", &set.memory[1]));
    void *samples = gg_storage_data(set.memory[0]), *targets = gg_storage_data(set.memory[1]);
    for (int64_t i = 0; i < count; ++i) {
        if (dtype == GG_UINT8) {
            ((uint8_t *)samples)[2 * i] = (uint8_t)(2 * i);
            ((uint8_t *)samples)[2 * i + 1] = 7;
        } else {
            ((float *)samples)[2 * i] = (float)(10 * i);
            ((float *)samples)[2 * i + 1] = (float)(10 * i + 1);
        }
        if (target_dtype == GG_INT32) ((int32_t *)targets)[i] = (int32_t)i;
        else
            for (int64_t v = 0; v < 3; ++v) ((float *)targets)[3 * i + v] = (float)(100 * i + v);
    }
    *out = set;
    memset(&set, 0, sizeof set);
cleanup:
    gg_dataset_release(&set);
    return status;
}

/* ---------------------------------------------------------------------------------------------- data sets */

static gg_status check_classes(gg_dataset set, int64_t classes) {
    set.field[1].classes = classes;
    return gg_dataset_check_classes(&set);
}

static void test_dataset(void) {
    gg_dataset set = {0}, bad;
    if (!CHECK_OK(make_set(6, GG_FLOAT32, GG_INT32, &set))) return;
    CHECK_OK(gg_dataset_check(&set));
    CHECK_OK(check_classes(set, 6));
    CHECK_FAILS(check_classes(set, 5), GG_ERROR_ARGUMENT, "sample 5 has class 5; allowed are 0 to 4");
    ((int32_t *)gg_storage_data(set.memory[1]))[2] = -3;
    CHECK_FAILS(check_classes(set, 6), GG_ERROR_ARGUMENT, "sample 2 has class -3");

#define BREAK(change, status, text)                                                                                    \
    do {                                                                                                               \
        bad = set;                                                                                                     \
        change;                                                                                                        \
        CHECK_FAILS(gg_dataset_check(&bad), status, text);                                                             \
    } while (0)
    BREAK(bad.memory[0] = NULL, GG_ERROR_ARGUMENT, "no samples");
    BREAK(bad.memory[1] = NULL, GG_ERROR_ARGUMENT, "no targets");
    BREAK(bad.field[0].dtype = GG_BFLOAT16, GG_ERROR_TYPE, "samples are bfloat16");
    BREAK(bad.field[1].dtype = GG_UINT8, GG_ERROR_TYPE, "targets are uint8");
    BREAK(bad.count = 0, GG_ERROR_ARGUMENT, "0 samples");
    BREAK(bad.count = (int64_t)1 << 31, GG_ERROR_ARGUMENT, "2147483648 samples");
    BREAK(bad.count = 5, GG_ERROR_SHAPE, "samples have 48 bytes, but 5 samples of 2 float32 values");
    BREAK(bad.count = 7, GG_ERROR_SHAPE, "samples have 48 bytes");
    BREAK(bad.field[0].dtype = GG_UINT8, GG_ERROR_SHAPE, "samples have 48 bytes");
    BREAK(bad.memory[1] = set.memory[0], GG_ERROR_SHAPE, "targets have 48 bytes");
    BREAK(bad.field[0].shape.dims = 0, GG_ERROR_SHAPE, "0 dimensions");
    BREAK(bad.field[0].shape.dims = 6, GG_ERROR_SHAPE, "6 dimensions");
    BREAK(bad.field[0].shape.size[0] = 0, GG_ERROR_SHAPE, "shape (0,)");
    BREAK((bad.field[0].shape.dims = 2, bad.field[0].shape.size[1] = INT64_MAX / 8), GG_ERROR_SHAPE, "fit in memory");
    BREAK(bad.field[0].shape.size[0] = INT64_MAX / 8, GG_ERROR_SHAPE, "samples have 48 bytes");
    BREAK((bad.field[1].shape.dims = 1, bad.field[1].shape.size[0] = 2), GG_ERROR_SHAPE, "targets have 24 bytes");
    BREAK((bad.field[1].shape.dims = 1, bad.field[1].shape.size[0] = 0), GG_ERROR_SHAPE,
          "targets: a sample has the shape");
    BREAK(bad.inputs = 0, GG_ERROR_ARGUMENT, "0 inputs");
    BREAK(bad.targets = GG_MAX_FIELDS + 1, GG_ERROR_ARGUMENT, "9 targets");
    BREAK(bad.field[1].classes = -1, GG_ERROR_ARGUMENT, "-1 classes");
    BREAK(bad.field[0].tokens = true, GG_ERROR_TYPE, "samples are float32 as tokens");
    BREAK(bad.field[0].scale = NAN, GG_ERROR_ARGUMENT, "scale=nan");
    BREAK(bad.field[0].shift = INFINITY, GG_ERROR_ARGUMENT, "shift=inf");
#undef BREAK

    /* One number more may be ignored; odd memory is refused. */
    bad = set;
    bad.field[1].ignores = true;
    bad.field[1].ignored = -3;
    CHECK_OK(check_classes(bad, 6));
    CHECK_FAILS(check_classes(bad, 2), GG_ERROR_ARGUMENT, "allowed are 0 to 1, and -3");
    char *memory = gg_storage_data(set.memory[0]);
    gg_storage *odd = NULL;
    if (CHECK_OK(gg_storage_wrap(memory + 1, 40, NULL, NULL, &odd))) {
        bad = set;
        bad.memory[0] = odd;
        bad.count = 5;
        CHECK_FAILS(gg_dataset_check(&bad), GG_ERROR_ARGUMENT, "not aligned");
    }
    gg_storage_release(odd);

    gg_dataset copy = set;
    gg_dataset_retain(&copy);
    gg_dataset_release(&set);
    CHECK(set.memory[0] == NULL && set.count == 0);
    CHECK_INT(((float *)gg_storage_data(copy.memory[0]))[2], 10);
    gg_dataset_release(&copy);
    gg_dataset_release(&copy);
}

static void test_shard(void) {
    for (int64_t count = 0; count < 60; ++count)
        for (int size = 1; size < 20; ++size) {
            int64_t expected = 0, smallest = INT64_MAX, largest = 0;
            bool good = true;
            for (int rank = 0; rank < size; ++rank) {
                int64_t begin, end;
                gg_shard(count, rank, size, &begin, &end);
                good = good && begin == expected && end >= begin;
                smallest = end - begin < smallest ? end - begin : smallest;
                largest = end - begin > largest ? end - begin : largest;
                expected = end;
            }
            CHECK(good && expected == count && largest - smallest <= 1);
        }
    int64_t begin, end;
    gg_shard(INT64_MAX, 1 << 24, (1 << 24) + 1, &begin, &end);
    CHECK(end == INT64_MAX && begin < end);
}

/* Whatever the ranks, each sample has one place, a rank's are ascending, and sizes are those of contiguous parts. */
static void test_sharding(void) {
    for (int64_t count = 1; count < 70; ++count)
        for (int size = 1; size < 20; ++size)
            for (int kind = 0; kind < GG_SHARD_OWN; ++kind) {
                gg_sharding sharding = {
                    .kind = (gg_shard_kind)kind, .size = size, .seed = (uint64_t)count, .count = count};
                int seen[70] = {0};
                bool good = true;
                for (int rank = 0; rank < size; ++rank) {
                    int64_t begin, end, last = -1;
                    gg_shard(count, rank, size, &begin, &end);
                    good = good && gg_sharding_slots(&sharding, rank) == end - begin;
                    for (int64_t slot = 0; slot < end - begin; ++slot) {
                        int64_t id = gg_sharding_id(&sharding, rank, slot);
                        good = good && id > last && id < count && seen[id]++ == 0;
                        if (kind == GG_SHARD_CONTIGUOUS) good = good && id == begin + slot;
                        else good = good && id / size == slot;
                        last = id;
                    }
                }
                for (int64_t id = 0; id < count; ++id) good = good && seen[id] == 1;
                CHECK(good);
            }
    const int64_t counts[] = {3, 1, 5};
    gg_sharding own = {.kind = GG_SHARD_OWN, .size = 3, .count = 9, .counts = counts};
    CHECK_INT(gg_sharding_slots(&own, 2), 5);
    CHECK_INT(gg_sharding_id(&own, 0, 2), 2);
    CHECK_INT(gg_sharding_id(&own, 1, 0), 3);
    CHECK_INT(gg_sharding_id(&own, 2, 4), 8);
}

/* Rotations are drawn: over many rounds a rank has every place of a round about as often, also in each second round. */
static void test_rotations(void) {
    enum { SIZE = 5, ROUNDS = 20000 };
    for (int stride = 1; stride <= 3; ++stride) {
        gg_sharding sharding = {.size = SIZE, .seed = 3, .count = (int64_t)SIZE * ROUNDS};
        int found[SIZE] = {0};
        for (int64_t slot = 0; slot < ROUNDS; slot += stride) ++found[gg_sharding_id(&sharding, 1, slot) % SIZE];
        const double wanted = (double)ROUNDS / stride / SIZE;
        for (int i = 0; i < SIZE; ++i) CHECK(found[i] > 0.9 * wanted && found[i] < 1.1 * wanted);
        gg_sharding other = sharding;
        other.seed = 4;
        int same = 0;
        for (int64_t slot = 0; slot < ROUNDS; ++slot)
            same += gg_sharding_id(&sharding, 1, slot) == gg_sharding_id(&other, 1, slot);
        CHECK(same > ROUNDS / SIZE / 2 && same < 2 * ROUNDS / SIZE);
    }
}

/* ---------------------------------------------------------------------------------------------- batches */

#define MAX_COUNT 48
#define MAX_RANKS 9

static int owner_of(const gg_sharding *sharding, int64_t id) {
    for (int rank = 0; rank < sharding->size; ++rank)
        for (int64_t slot = 0; slot < gg_sharding_slots(sharding, rank); ++slot)
            if (gg_sharding_id(sharding, rank, slot) == id) return rank;
    return -1;
}

/* One epoch of all ranks: every sample once, batches as promised. */
static void check_epoch(gg_loader **loaders, const gg_sharding *sharding, int64_t batch) {
    const int64_t count = sharding->count;
    const int size = sharding->size;
    int seen[MAX_COUNT] = {0};
    int64_t largest = (count + size - 1) / size, steps = gg_loader_steps(loaders[0]);
    bool sizes = true, owners = true, contents = true;
    float samples[MAX_COUNT * 2];
    int32_t targets[MAX_COUNT];
    CHECK_INT(steps, (largest + batch - 1) / batch);
    for (int rank = 0; rank < size; ++rank) {
        int64_t begin, end;
        gg_shard(count, rank, size, &begin, &end);
        CHECK_INT(gg_loader_steps(loaders[rank]), steps);
        for (int64_t step = 0; step < steps; ++step) {
            /* By hand: full batches, but for the last; where nothing would be left for it, one moves. */
            int64_t left = end - begin - step * batch, wanted = left < batch ? left : batch;
            if (step == steps - 1 && left == 0) wanted = 1;
            if (step == steps - 2 && left == batch) wanted = batch > 1 ? batch - 1 : 1;
            int64_t n = gg_loader_batch(loaders[rank], rank, step);
            sizes = sizes && n == wanted && n >= 1 && n <= batch;
            for (int other = 0; other < size; ++other)
                sizes = sizes && gg_loader_batch(loaders[other], rank, step) == n;
            CHECK_OK(read_into(loaders[rank], step, GG_LAYOUT_PLAIN, samples, targets, NULL));
            for (int64_t i = 0; i < n; ++i) {
                owners = owners && owner_of(sharding, targets[i]) == rank;
                contents = contents && samples[2 * i] == (float)(10 * targets[i]) &&
                           samples[2 * i + 1] == (float)(10 * targets[i] + 1);
                if (targets[i] >= 0 && targets[i] < count) ++seen[targets[i]];
            }
        }
    }
    CHECK(sizes);
    CHECK(owners);
    CHECK(contents);
    /* With batches of one the smaller shards see their last sample twice. */
    int again = batch == 1 && count % size != 0 ? size - (int)(count % size) : 0;
    bool once = true;
    for (int64_t i = 0; i < count; ++i) {
        once = once && (seen[i] == 1 || (seen[i] == 2 && again > 0));
        again -= seen[i] - 1;
    }
    CHECK_INT(again, 0);
    CHECK(once);
}

static void test_loader(void) {
    for (int64_t count = 1; count <= MAX_COUNT; ++count) {
        gg_dataset set = {0};
        if (!CHECK_OK(make_set(count, GG_FLOAT32, GG_INT32, &set))) return;
        for (int size = 1; size <= MAX_RANKS && size <= count; ++size)
            for (int64_t batch = 1; batch <= count / size; ++batch) {
                gg_loader *loaders[MAX_RANKS] = {0};
                gg_loader_options options = {.batch = batch, .seed = 3};
                options.sharding =
                    (gg_sharding){.kind = (gg_shard_kind)((count + size) % 2), .size = size, .seed = 8, .count = count};
                bool made = true;
                for (int rank = 0; rank < size; ++rank) {
                    options.rank = rank;
                    options.shuffle = (count + batch) % 2 != 0;
                    made = CHECK_OK(gg_loader_create(&set, &options, &loaders[rank])) && made;
                }
                if (made) check_epoch(loaders, &options.sharding, batch); /* without a call of gg_loader_seek */
                for (int rank = 0; made && rank < size; ++rank) gg_loader_seek(loaders[rank], 5, 0);
                if (made) check_epoch(loaders, &options.sharding, batch);
                for (int rank = 0; rank < size; ++rank) gg_loader_destroy(loaders[rank]);
            }
        gg_dataset_release(&set);
    }
}

/* With drop_last every batch of every rank is full, and what is left over is read once at most. */
static void test_full_batches(void) {
    gg_dataset set = {0};
    if (!CHECK_OK(make_set(23, GG_FLOAT32, GG_INT32, &set))) return;
    for (int size = 1; size <= 4; ++size)
        for (int64_t batch = 1; batch <= 23 / size; ++batch) {
            int seen[23] = {0};
            bool full = true, once = true;
            for (int rank = 0; rank < size; ++rank) {
                gg_loader *loader = NULL;
                const gg_loader_options options = {
                    .batch = batch,
                    .seed = 3,
                    .rank = rank,
                    .shuffle = true,
                    .drop_last = true,
                    .moving = size == 3,
                    .sharding = {.kind = GG_SHARD_INTERLEAVED, .size = size, .seed = 8, .count = 23}};
                if (!CHECK_OK(gg_loader_create(&set, &options, &loader))) continue;
                CHECK_INT(gg_loader_steps(loader), 23 / size / batch);
                gg_loader_seek(loader, 2, 0);
                for (int64_t step = 0; step < gg_loader_steps(loader); ++step) {
                    float samples[2 * 23];
                    int32_t targets[23];
                    full = full && gg_loader_batch(loader, rank, step) == batch;
                    CHECK_OK(read_into(loader, step, GG_LAYOUT_PLAIN, samples, targets, NULL));
                    for (int64_t i = 0; i < batch; ++i) once = once && ++seen[targets[i]] == 1;
                }
                gg_loader_destroy(loader);
            }
            CHECK(full);
            CHECK(once);
        }
    gg_dataset_release(&set);
}

static void read_order(gg_loader *loader, int64_t epoch, int32_t *order) {
    float samples[2 * 8];
    gg_loader_seek(loader, epoch, 0);
    for (int64_t step = 0; step < gg_loader_steps(loader); ++step) {
        CHECK_OK(read_into(loader, step, GG_LAYOUT_PLAIN, samples, order, NULL));
        order += gg_loader_batch(loader, 1, step);
    }
}

static void test_order(void) {
    gg_dataset set = {0};
    gg_loader *a = NULL, *b = NULL, *c = NULL, *plain = NULL;
    gg_loader_options options = {.rank = 1, .batch = 8, .shuffle = true, .seed = 9};
    options.sharding = (gg_sharding){.kind = GG_SHARD_CONTIGUOUS, .size = 2, .count = 101};
    if (!CHECK_OK(make_set(101, GG_FLOAT32, GG_INT32, &set))) return;
    bool made = CHECK_OK(gg_loader_create(&set, &options, &a));
    options.batch = 5;
    made = CHECK_OK(gg_loader_create(&set, &options, &b)) && made;
    options.seed = 10;
    made = CHECK_OK(gg_loader_create(&set, &options, &c)) && made;
    options.shuffle = false;
    made = CHECK_OK(gg_loader_create(&set, &options, &plain)) && made;
    gg_dataset_release(&set); /* the loaders keep it */
    if (made) {
        int32_t first[50], second[50], other[50];
        int64_t allocations = gg_memory_allocations();
        read_order(a, 0, first);
        read_order(a, 1, second);
        CHECK(memcmp(first, second, sizeof first) != 0);
        /* The order is a function of seed, rank and epoch: not of what was read before, nor of the batch. */
        read_order(b, 1, other);
        CHECK(memcmp(second, other, sizeof first) == 0);
        read_order(a, 0, other);
        CHECK(memcmp(first, other, sizeof first) == 0);
        read_order(c, 0, other);
        CHECK(memcmp(first, other, sizeof first) != 0);
        read_order(plain, 4, other);
        for (int i = 0; i < 50; ++i) CHECK_INT(other[i], 51 + i);
        CHECK_INT(gg_memory_allocations(), allocations);
        /* Steps and ranks out of range are empty. */
        CHECK_INT(gg_loader_batch(a, 0, -1), 0);
        CHECK_INT(gg_loader_batch(a, 0, gg_loader_steps(a)), 0);
        CHECK_INT(gg_loader_batch(a, 2, 0), 0);
        CHECK_INT(gg_loader_batch(a, -1, 0), 0);
        CHECK_OK(read_into(a, gg_loader_steps(a), GG_LAYOUT_PLAIN, NULL, NULL, NULL));
    }
    gg_loader_destroy(a);
    gg_loader_destroy(b);
    gg_loader_destroy(c);
    gg_loader_destroy(plain);
    gg_loader_destroy(NULL);
}

static void test_read_formats(void) {
    gg_dataset set = {0};
    gg_loader *loader = NULL;
    gg_loader_options options = {
        .sharding = {.kind = GG_SHARD_CONTIGUOUS, .size = 2, .count = 8}, .rank = 1, .batch = 3};
    if (!CHECK_OK(make_set(8, GG_UINT8, GG_FLOAT32, &set))) return;
    set.field[0].scale = 0.5f;
    set.field[0].shift = -1;
    if (CHECK_OK(gg_loader_create(&set, &options, &loader))) {
        float samples[2 * GG_LANES], targets[9];
        CHECK_OK(read_into(loader, 0, GG_LAYOUT_BATCH_LAST, samples, targets, NULL));
        for (int i = 0; i < 3; ++i) {
            CHECK_NEAR(samples[i], 0.5 * (2 * (4 + i)) - 1, 0);
            CHECK_NEAR(samples[GG_LANES + i], 2.5, 0);
            for (int v = 0; v < 3; ++v) CHECK_NEAR(targets[3 * i + v], 100 * (4 + i) + v, 0);
        }
        CHECK_NEAR(samples[3], 0, 0);
        CHECK_OK(read_into(loader, 1, GG_LAYOUT_PLAIN, samples, targets, NULL));
        CHECK_INT(gg_loader_batch(loader, 1, 1), 1);
        CHECK_NEAR(samples[0], 6, 0);
        CHECK_NEAR(targets[2], 702, 0);
    }
    gg_loader_destroy(loader);

    loader = NULL;
    options.batch = 5;
    CHECK_FAILS(gg_loader_create(&set, &options, &loader), GG_ERROR_ARGUMENT, "batch=5: 8 samples on 2 ranks");
    options.batch = 0;
    CHECK_FAILS(gg_loader_create(&set, &options, &loader), GG_ERROR_ARGUMENT, "batch=0");
    options = (gg_loader_options){.sharding = {.size = 9, .count = 8}, .batch = 1};
    CHECK_FAILS(gg_loader_create(&set, &options, &loader), GG_ERROR_ARGUMENT, "8 samples for 9 ranks");
    options = (gg_loader_options){.sharding = {.size = 2, .count = 8}, .rank = 2, .batch = 1};
    CHECK_FAILS(gg_loader_create(&set, &options, &loader), GG_ERROR_ARGUMENT, "rank 2");
    options = (gg_loader_options){.sharding = {.size = 0, .count = 8}, .batch = 1};
    CHECK_FAILS(gg_loader_create(&set, &options, &loader), GG_ERROR_ARGUMENT, "0 ranks");
    set.count = options.sharding.count = 7;
    options.sharding.size = 1;
    CHECK_FAILS(gg_loader_create(&set, &options, &loader), GG_ERROR_SHAPE, "bytes");
    CHECK(loader == NULL);
    gg_dataset_release(&set);
}

/* Every rank's own samples, of any sizes: one number of steps, each sample once an epoch, no rank without a batch. */
static void check_own(const int64_t *counts, int size, int64_t batch) {
    gg_sharding sharding = {.kind = GG_SHARD_OWN, .size = size, .counts = counts};
    int64_t largest = 0;
    for (int rank = 0; rank < size; ++rank) {
        sharding.count += counts[rank];
        largest = counts[rank] > largest ? counts[rank] : largest;
    }
    const int64_t steps = (largest + batch - 1) / batch;
    for (int rank = 0; rank < size; ++rank) {
        gg_dataset set = {0};
        gg_loader *loader = NULL;
        gg_loader_options options = {
            .sharding = sharding, .rank = rank, .batch = batch, .shuffle = batch % 2 == 0, .seed = 2};
        int seen[MAX_COUNT] = {0};
        int64_t least = batch, most = 0;
        if (!CHECK_OK(make_set(counts[rank], GG_FLOAT32, GG_INT32, &set))) return;
        if (CHECK_OK(gg_loader_create(&set, &options, &loader))) {
            CHECK_INT(gg_loader_steps(loader), steps);
            for (int64_t step = 0; step < steps; ++step) {
                float samples[MAX_COUNT * 2];
                int32_t targets[MAX_COUNT];
                int64_t n = gg_loader_batch(loader, rank, step);
                if (!CHECK(n >= 1 && n <= batch)) continue;
                CHECK_OK(read_into(loader, step, GG_LAYOUT_PLAIN, samples, targets, NULL));
                least = n < least ? n : least;
                most = n > most ? n : most;
                for (int64_t i = 0; i < n; ++i)
                    if (CHECK(targets[i] >= 0 && targets[i] < counts[rank])) ++seen[targets[i]];
            }
            int fewest = INT32_MAX, often = 0;
            for (int64_t i = 0; i < counts[rank]; ++i) {
                fewest = seen[i] < fewest ? seen[i] : fewest;
                often = seen[i] > often ? seen[i] : often;
            }
            if (counts[rank] >= steps) CHECK(fewest == 1 && often == 1);
            else CHECK(most == 1 && fewest >= 1 && often - fewest <= 1);
            if (counts[rank] < (steps - 1) * batch) CHECK(most - least <= 1);
        }
        gg_loader_destroy(loader);
        gg_dataset_release(&set);
    }
}

static void test_own(void) {
    static const int64_t counts[][4] = {
        {10, 10, 10, 10}, {11, 10, 10, 10}, {40, 1, 7, 39}, {1, 1, 1, 48}, {5, 48, 24, 2}};
    for (int i = 0; i < 5; ++i)
        for (int size = 1; size <= 4; ++size)
            for (int64_t batch = 1; batch <= counts[i][0]; batch += 1 + batch / 3) check_own(counts[i], size, batch);
    gg_dataset set = {0};
    gg_loader *loader = NULL;
    if (!CHECK_OK(make_set(4, GG_FLOAT32, GG_INT32, &set))) return;
    const int64_t none[] = {4, 0}, more[] = {5, 1}, some[] = {4, 6};
    gg_loader_options options = {.sharding = {.kind = GG_SHARD_OWN, .size = 2, .count = 4, .counts = none}, .batch = 2};
    CHECK_FAILS(gg_loader_create(&set, &options, &loader), GG_ERROR_ARGUMENT, "rank 1 brings 0 samples");
    options.sharding.counts = more;
    CHECK_FAILS(gg_loader_create(&set, &options, &loader), GG_ERROR_ARGUMENT, "their sum 6");
    options.sharding.count = 6;
    CHECK_FAILS(gg_loader_create(&set, &options, &loader), GG_ERROR_ARGUMENT, "5 were announced");
    options.sharding.counts = some;
    options.sharding.count = 10;
    options.batch = 7;
    CHECK_FAILS(gg_loader_create(&set, &options, &loader), GG_ERROR_ARGUMENT, "allow 1 to 6 (the largest shard)");
    options.batch = 5;
    options.drop_last = true;
    CHECK_FAILS(gg_loader_create(&set, &options, &loader), GG_ERROR_ARGUMENT, "(the smallest shard)");
    gg_dataset_release(&set);
}

/* ---------------------------------------------------------------------------------------------- sources */

/* Reads what make_set makes, now and then slowly, and fails at one row. */
typedef struct test_source {
    gg_source head;
    atomic_int reading, most, calls;
    int64_t fails; /* the row; -1: none */
    int64_t epoch; /* of the last call */
} test_source;

static gg_status source_read(gg_source *head, const uint32_t *rows, int64_t n, int64_t epoch, void *const *out) {
    gg_status status = GG_OK;
    test_source *s = (test_source *)head;
    const int reading = atomic_fetch_add(&s->reading, 1) + 1;
    if (reading > atomic_load(&s->most)) atomic_store(&s->most, reading);
    if (atomic_fetch_add(&s->calls, 1) % 3 == 0) gg_clock_sleep(0.001);
    if (s->head.readers == 1) s->epoch = epoch;
    for (int64_t i = 0; i < n; ++i) {
        for (int v = 0; v < 2 && out[0] != NULL; ++v)
            ((float *)out[0])[2 * i + v] = (float)(10 * rows[i] + (uint32_t)v);
        if (out[1] != NULL) ((int32_t *)out[1])[i] = (int32_t)rows[i];
        if (rows[i] == s->fails) GG_FAIL_CLEANUP(GG_ERROR_SOURCE, "sample %d is broken", (int)rows[i]);
    }
cleanup:
    atomic_fetch_sub(&s->reading, 1);
    return status;
}

static int destroyed;
static void source_destroy(gg_source *head) {
    ++destroyed;
    gg_free(head);
}

static const gg_source_table source_table = {.read = source_read, .destroy = source_destroy};

/* The set of make_set. The source reads the samples, and also the targets unless `targets`. */
static test_source *make_source(int64_t count, bool targets, gg_dataset *out) {
    test_source *source = NULL;
    if (!CHECK_OK(gg_calloc(1, sizeof *source, "a source", &source))) return NULL;
    gg_source_init(&source->head, &source_table);
    source->fails = -1;
    if (!CHECK_OK(make_set(count, GG_FLOAT32, GG_INT32, out))) return NULL;
    gg_storage_release(out->memory[0]);
    out->memory[0] = NULL;
    if (!targets) {
        gg_storage_release(out->memory[1]);
        out->memory[1] = NULL;
    }
    out->source = &source->head;
    return source;
}

/* Whatever reads, in however many threads and how far ahead: the batches of memory, and each slot in its turn. */
static void test_source_is_memory(void) {
    for (int kind = 0; kind < 12; ++kind) {
        gg_dataset memory = {0}, set = {0};
        gg_loader *a = NULL, *b = NULL;
        const int64_t count = 41;
        gg_loader_options options = {.rank = kind % 2, .batch = 4, .shuffle = kind % 3 != 0, .seed = 5};
        options.sharding = (gg_sharding){.size = 2, .count = count};
        test_source *source = make_source(count, kind % 2 == 0, &set);
        if (source == NULL || !CHECK_OK(make_set(count, GG_FLOAT32, GG_INT32, &memory))) return;
        source->head.readers = 1 + kind % 4;
        source->head.ahead = 1 + kind / 3;
        if (CHECK_OK(gg_loader_create(&memory, &options, &a)) && CHECK_OK(gg_loader_create(&set, &options, &b))) {
            CHECK_INT(atomic_load(&source->calls), 0); /* nothing is read before an epoch is wanted */
            for (int epoch = 0; epoch < 3; ++epoch) {
                gg_loader_seek(a, epoch, 0);
                gg_loader_seek(b, epoch, 0);
                const int64_t steps = epoch == 1 ? 3 : gg_loader_steps(a); /* an epoch may be left */
                for (int64_t t = 0; t < steps; ++t) {
                    float x[16], other[16];
                    int32_t y[4], tell[4];
                    CHECK_OK(read_into(a, t, GG_LAYOUT_PLAIN, x, y, NULL));
                    while (!gg_loader_ready(b, t, 0.001)) continue;
                    const int64_t allocations = gg_memory_allocations(), n = gg_loader_batch(a, options.rank, t);
                    CHECK_OK(read_into(b, t, GG_LAYOUT_PLAIN, other, tell, NULL));
                    CHECK_INT(gg_memory_allocations(), allocations);
                    CHECK(memcmp(x, other, (size_t)n * 2 * sizeof *x) == 0);
                    CHECK(memcmp(y, tell, (size_t)n * sizeof *y) == 0);
                }
            }
        }
        CHECK(atomic_load(&source->most) <= source->head.readers);
        const int before = destroyed;
        gg_dataset_release(&set);
        gg_loader_destroy(b); /* which may be reading */
        CHECK_INT(destroyed, before + 1);
        gg_loader_destroy(a);
        gg_dataset_release(&memory);
    }
}

/* A failure is that of the step that wants the sample; the loader can be asked again. */
static void test_source_fails(void) {
    for (int readers = 1; readers <= 3; ++readers) {
        gg_dataset set = {0};
        gg_loader *loader = NULL;
        float x[16];
        int32_t y[4];
        test_source *source = make_source(40, false, &set);
        if (source == NULL) return;
        source->head.readers = readers;
        source->head.ahead = 5;
        source->fails = 22;
        gg_loader_options options = {.batch = 4, .sharding = {.size = 1, .count = 40}};
        if (CHECK_OK(gg_loader_create(&set, &options, &loader))) {
            for (int again = 0; again < 2; ++again) {
                for (int64_t t = 0; t < 5; ++t) CHECK_OK(read_into(loader, t, GG_LAYOUT_PLAIN, x, y, NULL));
                CHECK_FAILS(read_into(loader, 5, GG_LAYOUT_PLAIN, x, y, NULL), GG_ERROR_SOURCE, "sample 22 is broken");
                CHECK_OK(read_into(loader, 6, GG_LAYOUT_PLAIN, x, y, NULL));
                CHECK_INT(y[3], 27);
            }
        }
        gg_loader_destroy(loader);
        gg_dataset_release(&set);
    }
}

/* What is read is checked as memory is: classes and NaN, by the number of the sample. */
static void test_source_is_checked(void) {
    gg_dataset set = {0};
    gg_loader *loader = NULL;
    float x[16];
    int32_t y[4];
    if (make_source(40, false, &set) == NULL) return;
    set.field[1].classes = 30;
    CHECK_OK(gg_dataset_check_classes(&set)); /* nothing of it is in memory */
    if (CHECK_OK(gg_loader_create_range(&set, 20, 40, 4, &loader))) {
        for (int64_t t = 0; t < 2; ++t) CHECK_OK(read_into(loader, t, GG_LAYOUT_PLAIN, x, y, NULL));
        CHECK_FAILS(read_into(loader, 2, GG_LAYOUT_PLAIN, x, y, NULL), GG_ERROR_ARGUMENT,
                    "targets: sample 30 has class 30; allowed are 0 to 29");
    }
    CHECK_INT(((test_source *)set.source)->epoch, GG_EPOCH_EVALUATION);
    gg_loader_destroy(loader);
    const float numbers[] = {0, 1, 2, NAN};
    const uint32_t rows[] = {7, 9};
    CHECK_FAILS(gg_field_check_rows(&set.field[0], "samples", numbers, rows, 2), GG_ERROR_ARGUMENT, "sample 9 has nan");
    set.source->readers = 0;
    CHECK_FAILS(gg_dataset_check(&set), GG_ERROR_ARGUMENT, "0 threads read 2 batches ahead");
    gg_dataset_release(&set);
}

/* ---------------------------------------------------------------------------------------------- streams */

static void test_streams(void) {
    gg_dataset set = {0};
    gg_loader *loader = NULL;
    float x[16];
    int32_t y[3];
    bool begins[3];
    if (!CHECK_OK(make_set(23, GG_FLOAT32, GG_INT32, &set))) return;
    set.streams = true;
    gg_loader_options options = {.rank = 1, .batch = 3, .shuffle = true, .sharding = {.kind = GG_SHARD_CONTIGUOUS}};
    options.sharding.size = 2;
    options.sharding.count = 23;
    if (CHECK_OK(gg_loader_create(&set, &options, &loader))) {
        CHECK_INT(gg_loader_steps(loader), 4); /* 12 and 11 samples: here rows of 4, 4 and 3 */
        for (int epoch = 0; epoch < 2; ++epoch) {
            gg_loader_seek(loader, epoch, 0);
            for (int64_t t = 0; t < 4; ++t) {
                const gg_batch batch = {.input[0].data = x, .target[0] = y, .begins = begins};
                const int64_t n = gg_loader_batch(loader, 1, t);
                CHECK_INT(gg_loader_batch(loader, 0, t), 3);
                CHECK_INT(n, t < 3 ? 3 : 2);
                CHECK_OK(gg_loader_read(loader, &device, t, &batch));
                for (int b = 0; b < n; ++b) CHECK_INT(y[b], 12 + 4 * b + t);
                for (int b = 0; b < n; ++b) CHECK_INT(gg_loader_number(loader, t, b), 12 + 4 * b + t);
                for (int b = 0; b < n; ++b) CHECK_INT(begins[b], t == 0);
            }
        }
    }
    gg_loader_destroy(loader);
    loader = NULL;
    options.moving = true;
    CHECK_FAILS(gg_loader_create(&set, &options, &loader), GG_ERROR_ARGUMENT, "pieces of sequences stay");
    set.streams = false;
    options.moving = false;
    if (CHECK_OK(gg_loader_create(&set, &options, &loader))) { /* each sample is a sequence of its own */
        const gg_batch batch = {.input[0].data = x, .target[0] = y, .begins = begins};
        CHECK_OK(gg_loader_read(loader, &device, 1, &batch));
        for (int b = 0; b < 3; ++b) CHECK(begins[b]);
    }
    gg_loader_destroy(loader);
    gg_dataset_release(&set);
}

int main(void) {
    test_dataset();
    test_shard();
    test_sharding();
    test_rotations();
    test_loader();
    test_full_batches();
    test_own();
    test_source_is_memory();
    test_source_fails();
    test_source_is_checked();
    test_streams();
    test_order();
    test_read_formats();
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
