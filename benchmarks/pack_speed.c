/* Times a copy of floats, gg_pack, gg_unpack_add and gg_unpack_pieces of as many, in turns; started by
 * benchmarks/pack_speed.py. What is sent of modes STRICT and SAFE leaves the residue at the next gg_pack, as in an
 * all-reduce.
 *
 *     pack_speed ISA ELEMENTS BIN MODE BFLOAT16 ROUNDS
 *
 * prints one JSON line: the seconds of each round, and of the elements which share was sent. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "base/random.h"
#include "cpu/cpu_backend.h"
#include "exchange/codec/packed.h"

/* Gradients of steps that follow each other. */
#define GRADIENTS 3
#define WARM_STEPS 30

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* About normal: the sum of four uniform numbers. */
static void fill(float *x, float *scratch, size_t n, uint32_t number) {
    memset(x, 0, n * sizeof *x);
    for (uint32_t k = 0; k < 4; ++k) {
        const gg_random_key key = {7, GG_RANDOM_TEST, number, k};
        gg_random_uniform(&key, n, -1, 1, scratch);
        for (size_t i = 0; i < n; ++i) x[i] += scratch[i];
    }
}

/* Whoever reads the sum, in cache. */
static void read_nothing(void *context, size_t offset, size_t count, const float *sum, gg_lines filled) {
    (void)context, (void)offset, (void)count, (void)sum, (void)filled;
}

static void print_seconds(const char *name, const double *seconds, int rounds) {
    printf("\"%s\": [", name);
    for (int r = 0; r < rounds; ++r) printf("%s%.9f", r > 0 ? ", " : "", seconds[r]);
    printf("], ");
}

int main(int arguments, char **argument) {
    gg_status status = GG_OK;
    gg_device *device = NULL;
    float *gradient[GRADIENTS] = {NULL}, *residue = NULL, *out = NULL, *copy = NULL;
    void *message = NULL;
    gg_pack_room *room = NULL;
    gg_pack_pieces *pieces = NULL;
    gg_pack_marks *marks = NULL;
    gg_pack_sizes sizes = {0};
    double *seconds = NULL;
    gg_isa isa;
    if (arguments != 7) return 2;
    const size_t n = strtoull(argument[2], NULL, 10);
    const int rounds = atoi(argument[6]);
    const gg_compression options = {.active = true,
                                    .factor = {2},
                                    .mode = (gg_compression_mode)atoi(argument[4]),
                                    .values = atoi(argument[5]) ? GG_BFLOAT16 : GG_FLOAT32};
    const gg_segment segment = {.count = n, .bin = atoi(argument[3]), .name = "weight"};
    gg_compression_counts counts = {0};
    GG_TRY_CLEANUP(gg_isa_select(argument[1], &isa));
    GG_TRY_CLEANUP(gg_backend_native.open(&(gg_device_options){.threads = 1, .isa = isa}, &device));
    GG_TRY_CLEANUP(gg_alloc(n * sizeof(float), "residue", &residue));
    GG_TRY_CLEANUP(gg_alloc(n * sizeof(float), "out", &out));
    GG_TRY_CLEANUP(gg_alloc(n * sizeof(float), "copy", &copy));
    GG_TRY_CLEANUP(gg_alloc(gg_packed_capacity(&segment, 1, &options), "message", &message));
    gg_pack_sizes_add(&sizes, device, &segment, 1);
    GG_TRY_CLEANUP(gg_pack_room_create(device, &sizes, &room));
    GG_TRY_CLEANUP(gg_pack_pieces_create(device, &segment, 1, 1, &pieces));
    if (options.mode != GG_COMPRESSION_EXACT) GG_TRY_CLEANUP(gg_pack_marks_create(&segment, 1, &marks));
    GG_TRY_CLEANUP(gg_calloc((size_t)rounds * 4, sizeof *seconds, "seconds", &seconds));
    for (uint32_t g = 0; g < GRADIENTS; ++g) {
        GG_TRY_CLEANUP(gg_alloc(n * sizeof(float), "gradient", &gradient[g]));
        fill(gradient[g], out, n, g);
    }
    memset(residue, 0, n * sizeof(float));
    memset(out, 0, n * sizeof(float));
    memset(copy, 0, n * sizeof(float));
    const gg_packing packing = {.compression = &options,
                                .device = device,
                                .segment = &segment,
                                .segments = 1,
                                .room = room,
                                .counts = &counts,
                                .marks = marks};
    const size_t inner = n < 4000000 ? 4000000 / n : 1; /* a round is not shorter than the clock sees */
    int step = 0;
    size_t bytes = 0;
    gg_parallel_enter();
    for (; step < WARM_STEPS; ++step) {
        GG_TRY_CLEANUP(gg_pack(&packing, 0.5f, gradient[step % GRADIENTS], residue, message, &bytes));
        GG_TRY_CLEANUP(gg_unpack_add(&packing, message, bytes, 1, out));
    }
    counts = (gg_compression_counts){0};
    for (int r = 0; r < rounds; ++r) {
        double *own = seconds + r;
        for (size_t k = 0; k < inner; ++k, ++step) {
            const float *g = gradient[step % GRADIENTS];
            const double begin = cpu_seconds();
            memcpy(copy, out, n * sizeof(float));
            const double copied = cpu_seconds();
            GG_TRY_CLEANUP(gg_pack(&packing, 0.5f, g, residue, message, &bytes));
            const double packed = cpu_seconds();
            GG_TRY_CLEANUP(gg_unpack_add(&packing, message, bytes, 1, out));
            const double unpacked = cpu_seconds();
            GG_TRY_CLEANUP(gg_packed_check(&packing, message, bytes));
            gg_unpack_pieces(&packing, pieces, (const void *const[]){message}, 1, read_nothing, NULL);
            const double read = cpu_seconds();
            own[0] += (copied - begin) / (double)inner;
            own[rounds] += (packed - copied) / (double)inner;
            own[2 * rounds] += (unpacked - packed) / (double)inner;
            own[3 * rounds] += (read - unpacked) / (double)inner;
        }
    }
    printf("{\"isa\": \"%s\", ", gg_isa_name(isa));
    print_seconds("copy", seconds, rounds);
    print_seconds("pack", seconds + rounds, rounds);
    print_seconds("unpack", seconds + 2 * rounds, rounds);
    print_seconds("pieces", seconds + 3 * rounds, rounds);
    printf("\"sent\": %.6f}\n", (double)counts.elements_sent / (double)counts.elements);
cleanup:
    if (status != GG_OK) fprintf(stderr, "%s\n", gg_error_message());
    for (int g = 0; g < GRADIENTS; ++g) gg_free(gradient[g]);
    gg_free(residue);
    gg_free(out);
    gg_free(copy);
    gg_free(message);
    gg_pack_room_destroy(room);
    gg_pack_pieces_destroy(pieces);
    gg_pack_marks_destroy(marks);
    gg_free(seconds);
    if (device != NULL) device->table->close(device);
    return status == GG_OK ? 0 : 1;
}
