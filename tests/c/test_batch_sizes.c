/* Epochs that go on in batches of another size: each sample is read once, by all ranks in the same number of steps. */
#include <string.h>

#include "base/memory.h"
#include "check.h"
#include "data/loader.h"

enum { MAX = 60, MAX_RANKS = 5, MAX_PARTS = 8, CASES = 3000 };

static void gather(gg_device *device, const gg_gather_args *args) {
    (void)device;
    for (int64_t i = 0; i < args->n; ++i) ((float *)args->out)[i] = ((const float *)args->rows)[args->index[i]];
}

static const gg_backend backend = {.name = "test", .gather = gather};
static gg_device device = {.table = &backend, .threads = 1};
static uint32_t state = 7;

static int64_t draw(int64_t below) {
    state = state * 1664525u + 1013904223u;
    return (int64_t)(state >> 8) % below;
}

typedef struct part {
    int64_t begun, batch;
    int64_t done[MAX_RANKS];
} part;

typedef struct epoch {
    gg_sharding sharding;
    int64_t counts[MAX_RANKS];
    bool moving, drop_last, shuffle;
    int64_t number;
    int parts;
    part part[MAX_PARTS];
    int seen[MAX_RANKS * MAX]; /* by the number of the sample in all sets */
    bool repeats;              /* some rank had fewer samples left than steps */
} epoch;

/* Samples are their own numbers. */
static gg_status make_set(int64_t count, int64_t first, gg_dataset *out) {
    *out = (gg_dataset){.count = count, .inputs = 1, .targets = 1};
    out->field[0] = (gg_field){.dtype = GG_FLOAT32, .scale = 1, .shape = {.dims = 1, .size = {1}}};
    out->field[1] = (gg_field){.dtype = GG_INT32, .scale = 1};
    GG_TRY(gg_storage_create((size_t)count * sizeof(float), "samples", &out->memory[0]));
    GG_TRY(gg_storage_create((size_t)count * sizeof(int32_t), "targets", &out->memory[1]));
    for (int64_t i = 0; i < count; ++i) {
        ((float *)gg_storage_data(out->memory[0]))[i] = (float)(first + i);
        ((int32_t *)gg_storage_data(out->memory[1]))[i] = (int32_t)(first + i);
    }
    return GG_OK;
}

static void read_step(gg_loader *loader, int rank, int64_t step, int32_t *numbers) {
    float samples[MAX];
    gg_batch batch = {.target = {numbers}};
    batch.input[0] = (gg_batch_input){.format = {.dtype = GG_FLOAT32, .layout = GG_LAYOUT_PLAIN}, .data = samples};
    CHECK_OK(gg_loader_read(loader, &device, step, &batch));
    for (int64_t i = 0; i < gg_loader_batch(loader, rank, step); ++i) CHECK(samples[i] == (float)numbers[i]);
}

static gg_status make_loader(const epoch *e, int rank, int64_t batch, const gg_dataset *set, gg_loader **out) {
    const gg_loader_options options = {.sharding = e->sharding,
                                       .rank = rank,
                                       .batch = batch,
                                       .shuffle = e->shuffle,
                                       .drop_last = e->drop_last,
                                       .moving = e->moving,
                                       .seed = 3};
    return gg_loader_create(set, &options, out);
}

static gg_status check(const gg_loader *loader, int64_t step, int64_t begun, const int64_t *done) {
    return gg_loader_check_position(loader, &(gg_position){.next = step, .begun = begun, .done = done});
}

/* One rank's epoch; rank 0 draws where the parts begin, which the others follow. */
static void read_epoch(epoch *e, int rank, const int64_t *batches, int64_t *steps_of_all) {
    gg_dataset set = {0};
    gg_loader *loader = NULL, *again = NULL;
    const bool own = e->sharding.kind == GG_SHARD_OWN;
    int64_t before = 0, done[MAX_RANKS];
    for (int r = 0; own && r < rank; ++r) before += e->counts[r];
    if (!CHECK_OK(make_set(own ? e->counts[rank] : e->sharding.count, before, &set))) return;
    int64_t step = 0;
    for (int p = 0; p < e->parts; ++p) {
        part *now = &e->part[p];
        if (!CHECK_OK(make_loader(e, rank, batches[p], &set, &again))) break;
        if (p == 0) {
            gg_loader_seek(again, e->number, 0);
        } else {
            gg_loader_done(loader, step, done);
            const gg_position at = {.epoch = e->number, .next = step, .begun = step, .done = done};
            CHECK_OK(gg_loader_check_position(again, &at));
            CHECK_OK(gg_loader_resume(again, &at));
            if (rank == 0) memcpy(now->done, done, sizeof done);
            CHECK(memcmp(now->done, done, (size_t)e->sharding.size * sizeof *done) == 0); /* all ranks know it */
        }
        gg_loader_destroy(loader);
        loader = again;
        const int64_t steps = gg_loader_steps(loader);
        int64_t largest = 0;
        for (int r = 0; r < e->sharding.size; ++r) {
            const int64_t left = gg_sharding_slots(&e->sharding, r) - gg_loader_read_before(loader)[r];
            largest = left > largest ? left : largest;
            e->repeats = e->repeats || left < steps - step;
        }
        if (!e->drop_last) CHECK_INT(steps - step, (largest + batches[p] - 1) / batches[p]);
        if (rank == 0) {
            now->batch = batches[p];
            now->begun = step;
            steps_of_all[p] = p == e->parts - 1 || steps == step ? steps : step + draw(steps - step);
        }
        for (; step < steps_of_all[p]; ++step) {
            int32_t numbers[MAX], resumed[MAX];
            const int64_t n = gg_loader_batch(loader, rank, step);
            if (!CHECK(n >= 1 && n <= batches[p])) continue;
            if (e->drop_last) CHECK_INT(n, batches[p]);
            read_step(loader, rank, step, numbers);
            for (int64_t i = 0; i < n; ++i) ++e->seen[numbers[i]];
            if (step % 3 != 1) continue;
            /* A loader that begins here reads the same. */
            if (!CHECK_OK(make_loader(e, rank, batches[p], &set, &again))) continue;
            const gg_position at = {.epoch = e->number, .next = step, .begun = now->begun, .done = now->done};
            CHECK_OK(gg_loader_check_position(again, &at));
            CHECK_OK(gg_loader_resume(again, &at));
            CHECK_INT(gg_loader_steps(again), gg_loader_steps(loader));
            CHECK_INT(gg_loader_batch(again, rank, step), n);
            read_step(again, rank, step, resumed);
            CHECK(memcmp(numbers, resumed, (size_t)n * sizeof *numbers) == 0);
            gg_loader_destroy(again);
        }
    }
    CHECK_INT(gg_loader_steps(loader), steps_of_all[e->parts - 1]); /* on every rank */
    gg_loader_destroy(loader);
    gg_dataset_release(&set);
}

static void check_epoch(void) {
    epoch e = {.sharding = {.kind = (gg_shard_kind)draw(GG_SHARD_COUNT), .seed = 8}, .number = draw(4)};
    int64_t batches[MAX_PARTS], steps[MAX_PARTS] = {0}, smallest = MAX, largest = 0;
    const bool own = e.sharding.kind == GG_SHARD_OWN;
    bool ones = false;
    e.sharding.size = 1 + (int)draw(MAX_RANKS);
    e.shuffle = draw(3) > 0;
    e.moving = !own && e.sharding.size > 1 && draw(2) > 0;
    e.drop_last = draw(4) == 0;
    e.parts = 1 + (int)draw(MAX_PARTS);
    e.sharding.count = own ? 0 : e.sharding.size + draw(MAX - e.sharding.size);
    for (int r = 0; r < e.sharding.size; ++r) {
        e.counts[r] = draw(2) > 0 ? 1 + draw(MAX) : 30 + draw(3);
        if (own) e.sharding.count += e.counts[r];
    }
    if (own) e.sharding.counts = e.counts;
    for (int r = 0; r < e.sharding.size; ++r) {
        const int64_t slots = gg_sharding_slots(&e.sharding, r);
        smallest = slots < smallest ? slots : smallest;
        largest = slots > largest ? slots : largest;
    }
    const int64_t most = own && !e.drop_last ? largest : smallest;
    for (int p = 0; p < e.parts; ++p) {
        batches[p] = 1 + draw(draw(2) > 0 && most > 6 ? 6 : most);
        ones = ones || batches[p] == 1;
    }
    for (int r = 0; r < e.sharding.size; ++r) read_epoch(&e, r, batches, steps);
    bool once = true;
    for (int64_t i = 0; i < e.sharding.count; ++i) {
        /* Batches of one, and ranks with fewer samples than steps, repeat some; full batches leave some out. */
        const int least = e.drop_last ? 0 : 1;
        once = once && e.seen[i] >= least && (e.seen[i] <= 1 || (!e.drop_last && (ones || e.repeats)));
    }
    CHECK(once);
}

static void test_refusals(void) {
    gg_dataset set = {0};
    gg_loader *loader = NULL;
    if (!CHECK_OK(make_set(20, 0, &set))) return;
    const gg_loader_options options = {
        .sharding = {.kind = GG_SHARD_CONTIGUOUS, .size = 2, .count = 20}, .batch = 3, .shuffle = true};
    if (CHECK_OK(gg_loader_create(&set, &options, &loader))) {
        const int64_t done[] = {5, 5}, many[] = {5, 11}, few[] = {-1, 5}, uneven[] = {10, 9}, all[] = {10, 10};
        CHECK_OK(check(loader, 4, 2, done));
        CHECK_OK(check(loader, 7, 7, all));
        CHECK_FAILS(check(loader, 5, 2, done), GG_ERROR_ARGUMENT, "an epoch of 4 steps are 2 to 4");
        CHECK_FAILS(check(loader, 1, 2, done), GG_ERROR_ARGUMENT, "step: 1; allowed");
        CHECK_FAILS(check(loader, -1, 0, NULL), GG_ERROR_ARGUMENT, "step: -1; allowed");
        CHECK_FAILS(check(loader, 4, INT64_MAX, done), GG_ERROR_ARGUMENT, "allowed: 0 to 20");
        CHECK_FAILS(check(loader, 4, -1, done), GG_ERROR_ARGUMENT, "allowed: 0 to 20");
        CHECK_FAILS(check(loader, 1, 0, done), GG_ERROR_ARGUMENT, "before step 0 of the epoch");
        CHECK_FAILS(check(loader, 2, 2, many), GG_ERROR_ARGUMENT,
                    "rank 1: 11 samples read before "
                    "step 2");
        CHECK_FAILS(check(loader, 2, 2, few), GG_ERROR_ARGUMENT, "rank 0: -1 samples");
        CHECK_FAILS(check(loader, 2, 2, uneven), GG_ERROR_ARGUMENT, "another has 1 left");
    }
    gg_loader_destroy(loader);
    set.streams = true;
    if (CHECK_OK(gg_loader_create(&set, &(gg_loader_options){.sharding = options.sharding, .batch = 3}, &loader))) {
        const int64_t done[] = {3, 3};
        CHECK_OK(check(loader, 1, 0, NULL));
        CHECK_FAILS(check(loader, 1, 1, done), GG_ERROR_ARGUMENT, "not with pieces of sequences");
    }
    gg_loader_destroy(loader);
    gg_dataset_release(&set);
}

int main(void) {
    for (int i = 0; i < CASES; ++i) check_epoch();
    test_refusals();
    CHECK(gg_memory_live_bytes() == 0);
    return CHECK_RESULT;
}
