/* Epochs that continue on other numbers of ranks: each sample is read once, in equally many steps on all ranks. */
#include <string.h>

#include "base/memory.h"
#include "check.h"
#include "data/loader.h"

enum { MAX = 60, MAX_RANKS = 6, MAX_PARTS = 5, CASES = 2000 };

static void gather(gg_device *device, const gg_gather_args *args) {
    (void)device;
    for (int64_t i = 0; i < args->n; ++i) ((float *)args->out)[i] = ((const float *)args->rows)[args->index[i]];
}

static const gg_backend backend = {.name = "test", .gather = gather};
static gg_device device = {.table = &backend, .threads = 1};
static uint32_t state = 11;

static int64_t draw(int64_t below) {
    state = state * 1664525u + 1013904223u;
    return (int64_t)(state >> 8) % below;
}

/* Samples are their own numbers. */
static gg_status make_set(int64_t count, gg_dataset *out) {
    *out = (gg_dataset){.count = count, .inputs = 1, .targets = 1};
    out->field[0] = (gg_field){.dtype = GG_FLOAT32, .scale = 1, .shape = {.dims = 1, .size = {1}}};
    out->field[1] = (gg_field){.dtype = GG_INT32, .scale = 1};
    GG_TRY(gg_storage_create((size_t)count * sizeof(float), "samples", &out->memory[0]));
    GG_TRY(gg_storage_create((size_t)count * sizeof(int32_t), "targets", &out->memory[1]));
    for (int64_t i = 0; i < count; ++i) {
        ((float *)gg_storage_data(out->memory[0]))[i] = (float)i;
        ((int32_t *)gg_storage_data(out->memory[1]))[i] = (int32_t)i;
    }
    return GG_OK;
}

typedef struct run {
    gg_dataset set;
    gg_loader_options options;
    gg_position at;
    gg_division division[MAX_PARTS];
    int64_t read[MAX_PARTS][MAX_RANKS], done[MAX_RANKS];
    int seen[MAX];
} run;

static gg_status make_loader(const run *r, int rank, gg_loader **out) {
    gg_loader_options options = r->options;
    options.rank = rank;
    GG_TRY(gg_loader_create(&r->set, &options, out));
    CHECK_OK(gg_loader_check_position(*out, &r->at));
    return gg_loader_resume(*out, &r->at);
}

static void read_steps(run *r, gg_loader *loader, int rank, int64_t end) {
    int32_t last = -1;
    for (int64_t step = r->at.next; step < end; ++step) {
        int32_t numbers[MAX];
        float samples[MAX];
        gg_batch batch = {.target = {numbers}};
        batch.input[0] = (gg_batch_input){.format = {.dtype = GG_FLOAT32, .layout = GG_LAYOUT_PLAIN}, .data = samples};
        const int64_t n = gg_loader_batch(loader, rank, step);
        if (!CHECK(n >= 1 && n <= r->options.batch)) return;
        CHECK_OK(gg_loader_read(loader, &device, step, &batch));
        for (int64_t i = 0; i < n; ++i) {
            ++r->seen[numbers[i]];
            CHECK(r->options.shuffle || numbers[i] >= last); /* in the set's order */
            last = numbers[i];
        }
    }
}

/* A part of the epoch on `ranks` ranks; returns whether it was the epoch's end. */
static bool read_part(run *r, int ranks, bool last) {
    gg_loader *loader[MAX_RANKS];
    int64_t end = 0, steps = 0;
    r->options.sharding.size = ranks;
    r->at.done = r->done;
    memset(r->done, 0, sizeof r->done);
    for (int rank = 0; rank < ranks; ++rank) {
        if (!CHECK_OK(make_loader(r, rank, &loader[rank]))) return true;
        if (rank == 0) steps = gg_loader_steps(loader[rank]);
        CHECK_INT(gg_loader_steps(loader[rank]), steps);
    }
    end = last ? steps : r->at.next + draw(steps - r->at.next + 1);
    for (int rank = 0; rank < ranks; ++rank) read_steps(r, loader[rank], rank, end);
    gg_division *now = &r->division[r->at.divisions];
    *now = (gg_division){.ranks = ranks, .read = r->read[r->at.divisions]};
    gg_loader_read_by(loader[0], end, r->read[r->at.divisions]);
    for (int rank = 0; rank < ranks; ++rank) gg_loader_destroy(loader[rank]);
    ++r->at.divisions;
    r->at.next = r->at.begun = end;
    return end == steps;
}

static void check_epoch(void) {
    const int64_t count = MAX_RANKS + draw(MAX - MAX_RANKS + 1);
    const gg_shard_kind kind = draw(2) ? GG_SHARD_INTERLEAVED : GG_SHARD_CONTIGUOUS;
    run r = {.options = {.sharding = {.kind = kind, .seed = 8, .count = count}, .seed = 3}};
    const int parts = 1 + (int)draw(4);
    int64_t repeats = 0;
    if (!CHECK_OK(make_set(count, &r.set))) return;
    r.options.shuffle = draw(2);
    r.options.drop_last = draw(4) == 0;
    r.at = (gg_position){.epoch = draw(4), .division = r.division};
    for (int part = 0; part < parts; ++part) {
        const int ranks = 1 + (int)draw(MAX_RANKS);
        r.options.batch = 1 + draw(count / ranks);
        if (read_part(&r, ranks, part == parts - 1)) break;
        repeats += MAX_RANKS; /* fewer samples than ranks, and batches of one: the last samples of a part repeat */
    }
    int64_t all = 0, most = 0;
    for (int64_t i = 0; i < count; ++i) {
        all += r.seen[i];
        most = r.seen[i] > most ? r.seen[i] : most;
        CHECK(r.options.drop_last || r.seen[i] >= 1);
    }
    if (r.options.batch > 1 && r.at.divisions == 1) CHECK(most <= 1);
    CHECK(all - count <= repeats + MAX_RANKS);
    gg_dataset_release(&r.set);
}

/* Reads `stop` steps on p ranks, and the rest on q. */
static void check_rest(int p, int q, int64_t batch, int64_t stop, bool shuffle) {
    run r = {.options = {.sharding = {.seed = 8, .count = MAX - 1}, .seed = 3, .batch = batch, .shuffle = shuffle}};
    gg_loader *loader[MAX_RANKS];
    r.at = (gg_position){.epoch = 1, .division = r.division, .done = r.done};
    if (!CHECK_OK(make_set(MAX - 1, &r.set))) return;
    r.options.sharding.size = p;
    for (int rank = 0; rank < p; ++rank) {
        if (!CHECK_OK(make_loader(&r, rank, &loader[rank]))) return;
        read_steps(&r, loader[rank], rank, stop);
    }
    r.division[0] = (gg_division){.ranks = p, .read = r.read[0]};
    gg_loader_read_by(loader[0], stop, r.read[0]);
    for (int rank = 0; rank < p; ++rank) gg_loader_destroy(loader[rank]);
    r.at.divisions = 1;
    r.at.next = r.at.begun = stop;
    read_part(&r, q, true);
    for (int i = 0; i < MAX - 1; ++i) CHECK_INT(r.seen[i], 1);
    gg_dataset_release(&r.set);
}

/* Where enough samples are left for every rank, nothing repeats. */
static void check_exactly_once(void) {
    for (int p = 1; p <= MAX_RANKS; ++p)
        for (int q = 1; q <= MAX_RANKS; ++q)
            for (int64_t stop = 0; stop <= 2; ++stop)
                for (int shuffle = 0; shuffle < 2; ++shuffle) check_rest(p, q, 3, stop, shuffle);
    /* Before the last step of batches of one, the smaller shards have been read. */
    for (int p = 2; p <= MAX_RANKS; ++p) check_rest(p, 1, 1, (MAX - 2) / p, true);
}

/* A part of `steps` steps. */
static void read_steps_of_all(run *r, int ranks, int64_t steps) {
    const int64_t end = r->at.next + steps;
    gg_loader *loader = NULL;
    r->options.sharding.size = ranks;
    memset(r->done, 0, sizeof r->done);
    for (int rank = 0; rank < ranks; ++rank) {
        gg_loader_destroy(loader);
        if (!CHECK_OK(make_loader(r, rank, &loader))) return;
        read_steps(r, loader, rank, end);
    }
    r->division[r->at.divisions] = (gg_division){.ranks = ranks, .read = r->read[r->at.divisions]};
    gg_loader_rest(loader);
    gg_loader_read_by(loader, end, r->read[r->at.divisions++]);
    gg_loader_destroy(loader);
    r->at.next = r->at.begun = end;
}

/* Five ranks, then four; two of the dead have read `kept` samples of the first part that count. The rest of them is
 * read a second time, and all others once. */
static void check_recall(int64_t kept, bool shuffle) {
    const int64_t recall[2][GG_RECALL] = {{-1, 1, kept}, {-1, 4, kept}};
    int64_t twice = 0;
    run r = {.options = {.sharding = {.seed = 8, .count = MAX - 1}, .seed = 3, .batch = 3, .shuffle = shuffle}};
    r.at = (gg_position){.epoch = 1, .division = r.division, .done = r.done};
    if (!CHECK_OK(make_set(MAX - 1, &r.set))) return;
    read_steps_of_all(&r, 5, 2);
    read_steps_of_all(&r, 4, 1);
    for (int i = 0; i < 2; ++i) r.division[r.at.divisions++] = (gg_division){.ranks = GG_RECALL, .read = recall[i]};
    read_part(&r, 3, true);
    for (int i = 0; i < MAX - 1; ++i) {
        CHECK(r.seen[i] == 1 || r.seen[i] == 2);
        twice += r.seen[i] == 2;
    }
    CHECK_INT(twice, 2 * (6 - kept));
    gg_dataset_release(&r.set);
}

static void check_refusals(void) {
    gg_dataset set;
    gg_loader *loader;
    int64_t read[] = {4, 3, 3}, many[] = {4, 4, 3}, all[] = {GG_READ_ALL, GG_READ_ALL, GG_READ_ALL}, none[2] = {0};
    gg_division division = {.ranks = 3, .read = read};
    const gg_loader_options options = {
        .sharding = {.size = 2, .count = 10, .seed = 8}, .batch = 2, .shuffle = true, .seed = 3};
    gg_position at = {.next = 4, .begun = 4, .done = none, .divisions = 1, .division = &division};
    if (!CHECK_OK(make_set(10, &set))) return;
    if (CHECK_OK(gg_loader_create(&set, &options, &loader))) {
        CHECK_OK(gg_loader_check_position(loader, &at)); /* nothing is left */
        CHECK_OK(gg_loader_resume(loader, &at));
        CHECK_INT(gg_loader_steps(loader), 4);
        division.read = all;
        CHECK_OK(gg_loader_check_position(loader, &at));
        division.read = many;
        CHECK_FAILS(gg_loader_check_position(loader, &at), GG_ERROR_ARGUMENT,
                    "rank 1: 4 samples read; allowed: 0 to 3");
        many[1] = -1;
        CHECK_FAILS(gg_loader_check_position(loader, &at), GG_ERROR_ARGUMENT, "rank 1: -1 samples read");
        division.ranks = 0;
        CHECK_FAILS(gg_loader_check_position(loader, &at), GG_ERROR_ARGUMENT, "0 ranks; allowed: 1 to 10");
        division.ranks = 11;
        CHECK_FAILS(gg_loader_check_position(loader, &at), GG_ERROR_ARGUMENT, "11 ranks; allowed: 1 to 10");
        gg_loader_seek(loader, 1, 0); /* the next epoch is whole */
        CHECK_INT(gg_loader_steps(loader), 3);
        gg_loader_destroy(loader);
    }
    gg_loader_options moving = options;
    moving.moving = true;
    division = (gg_division){.ranks = 3, .read = read};
    if (CHECK_OK(gg_loader_create(&set, &moving, &loader))) {
        CHECK_FAILS(gg_loader_check_position(loader, &at), GG_ERROR_ARGUMENT,
                    "began on 3 ranks goes on on 2: not with samples that move");
        gg_loader_destroy(loader);
    }
    gg_dataset_release(&set);
}

int main(void) {
    for (int i = 0; i < CASES; ++i) check_epoch();
    check_exactly_once();
    for (int64_t kept = 0; kept <= 6; kept += 2) check_recall(kept, true), check_recall(kept, false);
    check_refusals();
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
