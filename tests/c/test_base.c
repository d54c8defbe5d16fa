/* Status, memory, random numbers, CPU, clock, threads, trace, tensors, storages. */
#define _GNU_SOURCE
#include <omp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/available.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/random.h"
#include "base/trace.h"
#include "check.h"
#include "ops/backend.h"
#include "ops/tensor.h"

#define THREADS 4

/* ------------------------------------------------------------------------------------------- available */

static char fake_root[] = "/tmp/gg-available-XXXXXX";

/* Writes a file below the fake root, and the folders on its way. */
static void put(const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s%s", fake_root, name);
    for (char *at = path + strlen(fake_root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        (void)mkdir(path, 0700);
        *at = '/';
    }
    FILE *file = fopen(path, "w");
    if (!CHECK(file != NULL)) return;
    fputs(text, file);
    fclose(file);
}

static void test_available(void) {
    char text[GG_BYTES_TEXT], command[64];
    if (!CHECK(mkdtemp(fake_root) != NULL)) return;
    CHECK(gg_memory_available(fake_root) == SIZE_MAX);
    put("/proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:    4000 kB\nSwapTotal: 7 kB\n");
    CHECK_INT(gg_memory_available(fake_root), 4000 * 1024);
    put("/proc/self/cgroup", "0::/a/b\n");
    CHECK_INT(gg_memory_available(fake_root), 4000 * 1024);
    put("/sys/fs/cgroup/a/b/memory.max", "max\n");
    put("/sys/fs/cgroup/a/b/memory.current", "5000\n");
    CHECK_INT(gg_memory_available(fake_root), 4000 * 1024);
    put("/sys/fs/cgroup/a/memory.max", "1000000\n"); /* that of a group above holds too */
    put("/sys/fs/cgroup/a/memory.current", "300000\n");
    CHECK_INT(gg_memory_available(fake_root), 700000);
    put("/sys/fs/cgroup/a/memory.stat", "anon 3\ninactive_file 100000\n");
    CHECK_INT(gg_memory_available(fake_root), 800000);
    put("/sys/fs/cgroup/a/memory.current", "2000000\n");
    CHECK_INT(gg_memory_available(fake_root), 0);
    put("/proc/self/cgroup", "4:cpu,memory:/\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "600000\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n");
    CHECK_INT(gg_memory_available(fake_root), 599000);
    CHECK(gg_memory_available(NULL) > 0);
    CHECK_OK(gg_memory_check(1, "a byte", ""));
    if (gg_memory_available(NULL) < SIZE_MAX)
        CHECK_FAILS(gg_memory_check(SIZE_MAX, "batch_size: 7", "less is less"), GG_ERROR_MEMORY,
                    "batch_size: 7 needs 16.0 EiB");
    CHECK_TEXT(gg_bytes_text(1023, text), "1023 bytes");
    CHECK_TEXT(gg_bytes_text(3u << 19, text), "1.5 MiB");
    snprintf(command, sizeof command, "rm -r %s", fake_root);
    CHECK_INT(system(command), 0);
}

/* ---------------------------------------------------------------------------------------------- status */

static gg_status leave_early(int at, int *reached) {
    *reached = 0;
    GG_TRY(at == 0 ? gg_fail(GG_ERROR_STATE, "first") : GG_OK);
    *reached = 1;
    GG_TRY(at == 1 ? gg_fail(GG_ERROR_COMM, "second") : GG_OK);
    *reached = 2;
    return GG_OK;
}

static void *fail_in_thread(void *argument) {
    bool *good = argument;
    *good = strcmp(gg_error_message(), "") == 0;
    (void)gg_fail(GG_ERROR_COMM, "of the thread");
    *good = *good && strcmp(gg_error_message(), "of the thread") == 0;
    return NULL;
}

static void test_status(void) {
    int reached;
    CHECK_TEXT(gg_error_message(), "");
    CHECK_FAILS(gg_fail(GG_ERROR_SHAPE, "%s has %d", "x", 3), GG_ERROR_SHAPE, "x has 3");
    CHECK_INT(gg_error_prefix(GG_ERROR_SHAPE, "layer '%s': ", "conv1"), GG_ERROR_SHAPE);
    CHECK_TEXT(gg_error_message(), "layer 'conv1': x has 3");
    CHECK_INT(gg_error_prefix(GG_OK, "no: "), GG_OK);
    CHECK_TEXT(gg_error_message(), "layer 'conv1': x has 3");
    (void)gg_fail(GG_ERROR_COMM, "rank 2: %s", gg_error_message());
    CHECK_TEXT(gg_error_message(), "rank 2: layer 'conv1': x has 3");
    (void)gg_error_prefix(GG_ERROR_COMM, "%s; ", gg_error_message());
    CHECK_TEXT(gg_error_message(), "rank 2: layer 'conv1': x has 3; rank 2: layer 'conv1': x has 3");

    char text[3000];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    (void)gg_fail(GG_ERROR_STATE, "%s", text);
    CHECK_INT(strlen(gg_error_message()), 1023);
    (void)gg_error_prefix(GG_ERROR_STATE, "b");
    CHECK_INT(strlen(gg_error_message()), 1023);
    CHECK(strncmp(gg_error_message(), "baaa", 4) == 0);
    (void)gg_error_prefix(GG_ERROR_STATE, "%s", text);
    CHECK_INT(strlen(gg_error_message()), 1023);

    CHECK_INT(leave_early(0, &reached), GG_ERROR_STATE);
    CHECK_INT(reached, 0);
    CHECK_INT(leave_early(1, &reached), GG_ERROR_COMM);
    CHECK_INT(reached, 1);
    CHECK_TEXT(gg_error_message(), "second");
    CHECK_INT(leave_early(2, &reached), GG_OK);
    CHECK_INT(reached, 2);
    CHECK_TEXT(gg_error_message(), "second");

    bool good = false;
    pthread_t thread;
    CHECK_INT(pthread_create(&thread, NULL, fail_in_thread, &good), 0);
    pthread_join(thread, NULL);
    CHECK(good);
    CHECK_TEXT(gg_error_message(), "second");

    for (int i = 0; i < GG_STATUS_COUNT; ++i)
        for (int j = 0; j < i; ++j) CHECK(strcmp(gg_status_name((gg_status)i), gg_status_name((gg_status)j)) != 0);
    CHECK_TEXT(gg_status_name(GG_ERROR_ARGUMENT), "argument");
    CHECK_TEXT(gg_status_name((gg_status)99), "unknown");
}

/* ---------------------------------------------------------------------------------------------- memory */

static void *allocate_in_thread(void *argument) {
    size_t *seed = argument;
    void *blocks[16] = {0};
    for (size_t i = 0; i < 3000; ++i) {
        size_t at = i % 16;
        gg_free(blocks[at]);
        if (gg_alloc(1 + (*seed * 7919 + i * 104729) % 5000, "a test", &blocks[at]) != GG_OK) return argument;
        *(unsigned char *)blocks[at] = 1;
    }
    for (size_t at = 0; at < 16; ++at) gg_free(blocks[at]);
    return NULL;
}

static void test_memory(void) {
    void *block = &block;
    int64_t live = gg_memory_live_bytes(), made = gg_memory_allocations();
    CHECK_OK(gg_alloc(0, "nothing", &block));
    CHECK(block == NULL);
    gg_free(NULL);
    CHECK_INT(gg_memory_allocations(), made);

    const size_t sizes[] = {1, 63, 64, 65, 4096, ((size_t)2 << 20) - 1, (size_t)2 << 20, ((size_t)5 << 20) + 3};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        if (!CHECK_OK(gg_alloc(sizes[i], "a block", &block))) continue;
        CHECK_INT((uintptr_t)block % GG_ALIGNMENT, 0);
        if (sizes[i] >= (size_t)2 << 20) CHECK_INT((uintptr_t)block % ((size_t)2 << 20), GG_ALIGNMENT);
        memset(block, 0xAB, sizes[i]);
        CHECK_INT(gg_memory_live_bytes() - live, sizes[i]);
        gg_free(block);
        CHECK_INT(gg_memory_live_bytes(), live);
        if (!CHECK_OK(gg_calloc(sizes[i], 1, "a block", &block))) continue;
        size_t sum = 0;
        for (size_t j = 0; j < sizes[i]; ++j) sum += ((unsigned char *)block)[j];
        CHECK_INT(sum, 0);
        gg_free(block);
    }
    CHECK_INT(gg_memory_allocations() - made, 16);

    block = &block;
    CHECK_FAILS(gg_alloc(SIZE_MAX - 10, "the moon", &block), GG_ERROR_MEMORY, "the moon");
    CHECK(block == NULL);
    CHECK_FAILS(gg_calloc(SIZE_MAX / 4, 8, "the sun", &block), GG_ERROR_MEMORY, "the sun");
    CHECK(block == NULL);
    CHECK_INT(gg_memory_live_bytes(), live);
    CHECK_INT(gg_memory_allocations() - made, 16);

    char *text;
    CHECK_OK(gg_strdup("gossip", &text));
    CHECK_TEXT(text, "gossip");
    CHECK_INT(gg_memory_live_bytes() - live, 7);
    gg_free(text);

    made = gg_memory_allocations();
    pthread_t threads[THREADS];
    size_t seeds[THREADS];
    for (size_t i = 0; i < THREADS; ++i) {
        seeds[i] = i;
        CHECK_INT(pthread_create(&threads[i], NULL, allocate_in_thread, &seeds[i]), 0);
    }
    for (size_t i = 0; i < THREADS; ++i) {
        void *failed = &seeds;
        pthread_join(threads[i], &failed);
        CHECK(failed == NULL);
    }
    CHECK_INT(gg_memory_live_bytes(), live);
    CHECK_INT(gg_memory_allocations() - made, THREADS * 3000);
}

/* ---------------------------------------------------------------------------------------------- random */

static void check_block(gg_random_key key, uint32_t index, const uint32_t wanted[4]) {
    uint32_t word[4];
    gg_random_block(&key, index, word);
    for (int i = 0; i < 4; ++i) CHECK_INT(word[i], wanted[i]);
}

static void test_philox(void) {
    /* The known answers of Random123 (kat_vectors, philox4x32-10), in terms of the key's fields. */
    check_block((gg_random_key){0}, 0, (const uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
    check_block((gg_random_key){.seed = UINT64_MAX, .purpose = 0xff, .rank = UINT32_MAX, .step = UINT64_MAX},
                UINT32_MAX, (const uint32_t[]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
    check_block(
        (gg_random_key){.seed = 0x299f31d0a4093822, .purpose = 0x13, .rank = 0x03707344, .step = 0x00198a2e85a308d3},
        0x243f6a88, (const uint32_t[]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});

    /* Any field changed gives other words. */
    const gg_random_key base = {.seed = 7, .purpose = GG_RANDOM_TEST, .rank = 3, .step = 11};
    gg_random_key keys[8] = {base, base, base, base, base, base, base, base};
    keys[1].seed ^= 1;
    keys[2].seed ^= (uint64_t)1 << 63;
    keys[3].purpose = GG_RANDOM_SHUFFLE;
    keys[4].rank = 4;
    keys[5].step = 12;
    keys[6].step ^= (uint64_t)1 << 40;
    uint32_t words[9][4];
    for (int i = 0; i < 8; ++i) gg_random_block(&keys[i], i == 7, words[i]);
    for (int i = 0; i < 8; ++i)
        for (int j = 0; j < i; ++j) CHECK(memcmp(words[i], words[j], sizeof words[i]) != 0);
    gg_random_block(&base, 0, words[8]);
    CHECK(memcmp(words[8], words[0], sizeof words[0]) == 0);
}

#define DRAWS 200000

static void test_distributions(void) {
    static float values[DRAWS], again[DRAWS];
    const gg_random_key key = {.seed = 1, .purpose = GG_RANDOM_TEST};

    gg_random_uniform(&key, DRAWS, -2, 6, values);
    double sum = 0, square = 0;
    long bucket[16] = {0};
    bool inside = true;
    for (int i = 0; i < DRAWS; ++i) {
        inside = inside && values[i] >= -2 && values[i] < 6;
        sum += values[i];
        square += ((double)values[i] - 2) * ((double)values[i] - 2);
        if (inside) ++bucket[(int)((values[i] + 2) * 2)];
    }
    CHECK(inside);
    /* Five standard errors of the mean; the variance is 64/12. */
    CHECK_NEAR(sum / DRAWS, 2, 5 * sqrt(64.0 / 12 / DRAWS));
    CHECK_NEAR(square / DRAWS, 64.0 / 12, 5 * sqrt((4096.0 / 80 - 4096.0 / 144) / DRAWS));
    double chi = 0;
    for (int i = 0; i < 16; ++i) {
        double off = (double)bucket[i] - DRAWS / 16.0;
        chi += off * off / (DRAWS / 16.0);
    }
    CHECK(chi < 45); /* 15 degrees of freedom: exceeded once in 10^4 */

    /* A prefix does not depend on the length. */
    for (size_t n = 0; n < 10; ++n) {
        memset(again, 0, sizeof *again * 12);
        gg_random_uniform(&key, n, -2, 6, again);
        CHECK(memcmp(again, values, n * sizeof *again) == 0);
        CHECK(again[n] == 0);
    }

    /* The upper end is never drawn, even where the interval holds two numbers only. */
    gg_random_uniform(&key, 1000, 1, nextafterf(1, 2), values);
    bool low_only = true;
    for (int i = 0; i < 1000; ++i) low_only = low_only && values[i] == 1;
    CHECK(low_only);
    gg_random_uniform(&key, 10, 3, 3, values);
    CHECK(values[0] == 3 && values[9] == 3);
    gg_random_uniform(&key, 1000, -3e38f, 3e38f, values);
    bool finite = true;
    for (int i = 0; i < 1000; ++i) finite = finite && isfinite(values[i]);
    CHECK(finite);

    gg_random_normal(&key, DRAWS, 3, 2, values);
    double moment[5] = {0};
    for (int i = 0; i < DRAWS; ++i) {
        double z = ((double)values[i] - 3) / 2, power = 1;
        for (int m = 1; m <= 4; ++m) moment[m] += (power *= z) / DRAWS;
    }
    CHECK_NEAR(moment[1], 0, 5 * sqrt(1.0 / DRAWS));
    CHECK_NEAR(moment[2], 1, 5 * sqrt(2.0 / DRAWS));
    CHECK_NEAR(moment[3], 0, 5 * sqrt(15.0 / DRAWS));
    CHECK_NEAR(moment[4], 3, 5 * sqrt(96.0 / DRAWS));
    for (size_t n = 0; n < 10; ++n) {
        memset(again, 0, sizeof *again * 12);
        gg_random_normal(&key, n, 3, 2, again);
        CHECK(memcmp(again, values, n * sizeof *again) == 0);
        CHECK(again[n] == 0);
    }
}

static void test_permutation(void) {
    uint32_t order[1000], seen[1000];
    gg_random_key key = {.seed = 5, .purpose = GG_RANDOM_TEST};
    for (uint32_t n = 0; n <= 1000; n += n < 20 ? 1 : 49) {
        memset(seen, 0, sizeof seen);
        order[0] = 77;
        gg_random_permutation(&key, n, order);
        bool good = n != 0 || order[0] == 77;
        for (uint32_t i = 0; i < n; ++i) good = good && order[i] < n && seen[order[i]]++ == 0;
        CHECK(good);
    }
    /* All 24 orders of four come equally often. */
    long times[256] = {0};
    for (key.step = 0; key.step < 24000; ++key.step) {
        gg_random_permutation(&key, 4, order);
        ++times[order[0] | order[1] << 2 | order[2] << 4 | order[3] << 6];
    }
    double chi = 0;
    int orders = 0;
    for (int i = 0; i < 256; ++i)
        if (times[i]) {
            ++orders;
            chi += (double)(times[i] - 1000) * (double)(times[i] - 1000) / 1000;
        }
    CHECK_INT(orders, 24);
    CHECK(chi < 58); /* 23 degrees of freedom: exceeded once in 10^4 */
}

/* ---------------------------------------------------------------------------------------------- cpu, clock
 */

static void test_cpu(void) {
    gg_isa isa = GG_ISA_COUNT, best = GG_ISA_COUNT;
    CHECK(gg_cpu_supports(GG_ISA_SCALAR));
    CHECK(!gg_cpu_supports(GG_ISA_COUNT));
    CHECK(!gg_cpu_supports(GG_ISA_AMX) || gg_cpu_supports(GG_ISA_AVX512));
    unsetenv("GOSSIPGRAD_ISA");
    CHECK_OK(gg_isa_select(NULL, &best));
    CHECK(gg_cpu_supports(best));
    for (int i = (int)best + 1; i < GG_ISA_COUNT; ++i) CHECK(!gg_cpu_supports((gg_isa)i));
    CHECK(gg_isa_not_built() == GG_ISA_SCALAR || (gg_isa_not_built() > best && gg_isa_not_built() <= GG_ISA_AVX512));
    for (int i = 0; i < GG_ISA_COUNT; ++i) {
        const char *name = gg_isa_name((gg_isa)i);
        setenv("GOSSIPGRAD_ISA", name, 1);
        if (gg_cpu_supports((gg_isa)i)) {
            CHECK_OK(gg_isa_select(name, &isa));
            CHECK_INT(isa, i);
            isa = GG_ISA_COUNT;
            CHECK_OK(gg_isa_select(NULL, &isa));
            CHECK_INT(isa, i);
        } else {
            CHECK_FAILS(gg_isa_select(name, &isa), GG_ERROR_UNSUPPORTED, name);
            CHECK_FAILS(gg_isa_select(NULL, &isa), GG_ERROR_UNSUPPORTED, "GOSSIPGRAD_ISA='");
            CHECK(strstr(gg_error_message(), "scalar") != NULL);
            CHECK(strstr(gg_error_message(), gg_cpu_name()) || strstr(gg_error_message(), "GOSSIPGRAD_ISAS=all"));
        }
    }
    setenv("GOSSIPGRAD_ISA", "sse9", 1);
    CHECK_FAILS(gg_isa_select(NULL, &isa), GG_ERROR_ARGUMENT,
                "GOSSIPGRAD_ISA='sse9': allowed are scalar, neon, avx2, avx512f, avx512, amx");
    CHECK_OK(gg_isa_select("scalar", &isa)); /* the argument beats the environment */
    CHECK_INT(isa, GG_ISA_SCALAR);
    CHECK_FAILS(gg_isa_select("AVX2", &isa), GG_ERROR_ARGUMENT, "isa='AVX2'");
    CHECK_FAILS(gg_isa_select("", &isa), GG_ERROR_ARGUMENT, "isa=''");
    setenv("GOSSIPGRAD_ISA", "", 1);
    CHECK_OK(gg_isa_select(NULL, &isa));
    CHECK_INT(isa, best);
    unsetenv("GOSSIPGRAD_ISA");
    for (const char *const *text = (const char *const[]){"0", "1", "", NULL}; *text != NULL; ++text) {
        setenv("GOSSIPGRAD_PAIRED", *text, 1);
        CHECK_OK(gg_cpu_check_paired());
    }
    setenv("GOSSIPGRAD_PAIRED", "yes", 1);
    CHECK_FAILS(gg_cpu_check_paired(), GG_ERROR_ARGUMENT, "GOSSIPGRAD_PAIRED='yes': allowed are 0 and 1");
    unsetenv("GOSSIPGRAD_PAIRED");
    CHECK_OK(gg_cpu_check_paired());
    CHECK_TEXT(gg_isa_name((gg_isa)-1), "unknown");
    CHECK(gg_cpu_name()[0] != '\0' && gg_cpu_name()[0] != ' ');
    CHECK(gg_cpu_count() >= 1);
    CHECK(gg_cpu_second_cache() >= 1 << 14 && gg_cpu_second_cache() <= 1 << 30);
}

static void test_clock(void) {
    double begin = gg_clock_now();
    gg_clock_sleep(0);
    gg_clock_sleep(-1);
    gg_clock_sleep(NAN);
    double middle = gg_clock_now();
    CHECK(middle >= begin);
    gg_clock_sleep(0.02);
    CHECK(gg_clock_now() - middle >= 0.0199);
}

/* ---------------------------------------------------------------------------------------------- threads */

typedef struct parts {
    int calls[16], threads[16];
} parts;

static void note_part(void *context, int thread, int threads) {
    parts *p = context;
    ++p->calls[thread];
    p->threads[thread] = threads;
}

static void test_parallel(void) {
    for (int threads = -1; threads <= 9; ++threads) {
        parts p = {0};
        gg_parallel_run(threads, note_part, &p);
        int wanted = threads < 1 ? 1 : threads;
        for (int i = 0; i < 16; ++i) {
            CHECK_INT(p.calls[i], i < wanted);
            if (i < wanted) CHECK_INT(p.threads[i], wanted);
        }
    }
    const size_t grains[] = {1, 2, 16, 1000};
    for (size_t n = 0; n < 130; ++n)
        for (size_t g = 0; g < 4; ++g)
            for (int threads = 1; threads < 10; ++threads) {
                size_t expected = 0, smallest = SIZE_MAX, largest = 0;
                bool good = true;
                for (int i = 0; i < threads; ++i) {
                    size_t begin, end;
                    gg_parallel_split(n, grains[g], i, threads, &begin, &end);
                    good = good && begin == expected && end >= begin && (begin % grains[g] == 0 || begin == n);
                    size_t part = (end - begin + grains[g] - 1) / grains[g];
                    smallest = part < smallest ? part : smallest;
                    largest = part > largest ? part : largest;
                    expected = end;
                }
                CHECK(good && expected == n && largest - smallest <= 1);
            }
}

/* ---------------------------------------------------------------------------------------------- trace */

static void test_trace(void) {
    gg_trace *trace = NULL;
    CHECK_FAILS(gg_trace_create(0, &trace), GG_ERROR_ARGUMENT, "capacity 0");
    CHECK(trace == NULL);
    gg_trace_add(NULL, &(gg_trace_span){.step = 1});
    CHECK_INT(gg_trace_count(NULL), 0);
    gg_trace_destroy(NULL);
    for (size_t capacity = 1; capacity < 6; ++capacity) {
        if (!CHECK_OK(gg_trace_create(capacity, &trace))) return;
        int64_t made = gg_memory_allocations();
        for (int64_t step = 0; step < 20; ++step) {
            CHECK_INT(gg_trace_count(trace), (size_t)step < capacity ? step : (int64_t)capacity);
            gg_trace_add(trace, &(gg_trace_span){.step = step, .name = "x", .lane = GG_LANE_DATA});
            size_t count = gg_trace_count(trace);
            for (size_t i = 0; i < count; ++i)
                CHECK_INT(gg_trace_get(trace, i)->step, step + 1 - (int64_t)count + (int64_t)i);
            CHECK(gg_trace_get(trace, count) == NULL);
        }
        CHECK_INT(gg_memory_allocations(), made);
        gg_trace_destroy(trace);
    }
}

/* ---------------------------------------------------------------------------------------------- tensors */

static void *share_in_thread(void *argument) {
    for (int i = 0; i < 5000; ++i) {
        gg_storage_retain(argument);
        gg_storage_release(argument);
    }
    gg_storage_release(argument);
    return NULL;
}

static void count_drop(void *owner) { ++*(int *)owner; }

static void test_tensor(void) {
    const gg_shape image = {.dims = 3, .size = {3, 5, 7}}, flat = {.dims = 1, .size = {10}};
    gg_shape other = image;
    char text[GG_SHAPE_TEXT];
    CHECK_INT(gg_shape_count(&image), 105);
    CHECK_INT(gg_shape_count(&flat), 10);
    CHECK(gg_shape_equal(&image, &other));
    other.size[4] = 9; /* beyond dims: no part of the shape */
    CHECK(gg_shape_equal(&image, &other));
    other.size[2] = 8;
    CHECK(!gg_shape_equal(&image, &other));
    CHECK(!gg_shape_equal(&image, &flat));
    CHECK_TEXT(gg_shape_text(&image, text), "(3, 5, 7)");
    CHECK_TEXT(gg_shape_text(&flat, text), "(10,)");
    other = (gg_shape){.dims = 5, .size = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX}};
    CHECK(strlen(gg_shape_text(&other, text)) < GG_SHAPE_TEXT);

    CHECK_INT(gg_lanes_padded(0), 0);
    CHECK_INT(gg_lanes_padded(1), GG_LANES);
    CHECK_INT(gg_lanes_padded(GG_LANES), GG_LANES);
    CHECK_INT(gg_lanes_padded(GG_LANES + 1), 2 * GG_LANES);
    CHECK_INT(gg_format_bytes((gg_format){GG_FLOAT32, GG_LAYOUT_PLAIN}, &image, 2), 2 * 105 * 4);
    CHECK_INT(gg_format_bytes((gg_format){GG_BFLOAT16, GG_LAYOUT_NHWC}, &image, 2), 2 * 105 * 2);
    CHECK_INT(gg_format_bytes((gg_format){GG_FLOAT32, GG_LAYOUT_CHANNELS16}, &image, 2), 2 * 16 * 35 * 4);
    CHECK_INT(gg_format_bytes((gg_format){GG_FLOAT32, GG_LAYOUT_CHANNELS8}, &image, 2), 2 * 8 * 35 * 4);
    CHECK_INT(gg_format_bytes((gg_format){GG_FLOAT32, GG_LAYOUT_BATCH_LAST}, &image, 17), 32 * 105 * 4);
    CHECK_INT(gg_dtype_size(GG_UINT8) + gg_dtype_size(GG_INT32) + gg_dtype_size(GG_DTYPE_COUNT), 5);
    CHECK_TEXT(gg_dtype_name(GG_BFLOAT16), "bfloat16");
    CHECK_TEXT(gg_dtype_name(GG_DTYPE_COUNT), "unknown");
    CHECK_TEXT(gg_layout_name(GG_LAYOUT_BATCH_LAST), "batch_last");
    for (int i = 0; i < GG_OP_COUNT; ++i) CHECK(strcmp(gg_op_kind_name((gg_op_kind)i), "unknown") != 0);
    CHECK_TEXT(gg_op_kind_name(GG_OP_COUNT), "unknown");
    gg_op_destroy(NULL);
}

static void test_storage(void) {
    int64_t live = gg_memory_live_bytes();
    gg_storage *storage = NULL;
    gg_storage_release(NULL);
    if (!CHECK_OK(gg_storage_create(1000, "a storage", &storage))) return;
    CHECK_INT(gg_storage_bytes(storage), 1000);
    CHECK_INT((uintptr_t)gg_storage_data(storage) % GG_ALIGNMENT, 0);
    CHECK_INT(((char *)gg_storage_data(storage))[999], 0);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; ++i) {
        gg_storage_retain(storage);
        CHECK_INT(pthread_create(&threads[i], NULL, share_in_thread, storage), 0);
    }
    gg_storage_release(storage); /* the last of the threads frees */
    for (int i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
    CHECK_INT(gg_memory_live_bytes(), live);

    int dropped = 0;
    char memory[8];
    if (!CHECK_OK(gg_storage_wrap(memory, sizeof memory, &dropped, count_drop, &storage))) return;
    CHECK(gg_storage_data(storage) == memory);
    gg_storage_retain(storage);
    gg_storage_release(storage);
    CHECK_INT(dropped, 0);
    gg_storage_release(storage);
    CHECK_INT(dropped, 1);
    CHECK_OK(gg_storage_wrap(memory, sizeof memory, NULL, NULL, &storage));
    gg_storage_release(storage);
    CHECK_OK(gg_storage_create(0, "nothing", &storage));
    CHECK(gg_storage_data(storage) == NULL);
    gg_storage_release(storage);
    CHECK_FAILS(gg_storage_create(SIZE_MAX - 1000, "too much", &storage), GG_ERROR_MEMORY, "too much");
    CHECK(storage == NULL);
    CHECK_INT(gg_memory_live_bytes(), live);
}

typedef struct products {
    float of[6];
} products;

static void multiply_tiny(void *context, int thread, int threads) {
    volatile float tiny = 1e-40f; /* denormal */
    (void)threads;
    ((products *)context)->of[thread] = tiny * 4.0f;
}

/* Threads that worked before, and threads that are started in between, flush while the caller computes and no longer.
 */
static void test_denormals(void) {
    const gg_float_mode own = gg_cpu_float_mode();
    const bool flushes = gg_cpu_compute_mode() != own;
    for (int again = 0; again < 4; ++again) {
        products p[4] = {0};
        gg_parallel_run(again + 1, multiply_tiny, &p[0]);
        gg_cpu_set_float_mode(own); /* without the flags that the products have raised */
        const gg_float_mode former = gg_parallel_enter();
        CHECK(former == own && (gg_cpu_float_mode() == gg_cpu_compute_mode()));
        gg_parallel_run(2, multiply_tiny, &p[1]);
        gg_parallel_run(4, multiply_tiny, &p[2]);
        gg_parallel_leave(former);
        CHECK(gg_cpu_float_mode() == own);
        gg_parallel_run(4, multiply_tiny, &p[3]);
        for (int i = 0; i < 4; ++i) {
            CHECK((p[0].of[i] != 0) == (i < again + 1));
            CHECK((p[1].of[i] != 0) == (!flushes && i < 2));
            CHECK((p[2].of[i] != 0) == !flushes);
            CHECK(p[3].of[i] != 0);
        }
    }
}

/* A worker that is started after a smaller region has the caller's former mode at the end, not the compute mode. */
static void test_modes_of_late_workers(void) {
    static const int threads[] = {4, 2, 4, 6};
    const gg_float_mode own = gg_cpu_float_mode();
    const bool flushes = gg_cpu_compute_mode() != own;
    products after = {0};
    const gg_float_mode former = gg_parallel_enter();
    for (int k = 0; k < 4; ++k) {
        products p = {0};
        gg_parallel_run(threads[k], multiply_tiny, &p);
        for (int i = 0; i < threads[k]; ++i) CHECK((p.of[i] != 0) == !flushes);
    }
    gg_parallel_leave(former);
    gg_parallel_run(6, multiply_tiny, &after);
    for (int i = 0; i < 6; ++i) CHECK(after.of[i] != 0);
}

/* Libraries that the caller uses beside the core go by the same number of threads. */
static void test_threads_of_libraries(void) {
    omp_set_num_threads(3);
    for (int again = 0; again < 2; ++again) {
        const gg_float_mode former = gg_parallel_enter();
        CHECK_INT(omp_get_max_threads(), 3);
        gg_parallel_set_threads(2);
        gg_parallel_set_threads(1);
        CHECK_INT(omp_get_max_threads(), 1);
        gg_parallel_leave(former);
        CHECK_INT(omp_get_max_threads(), 3);
    }
    gg_parallel_leave(gg_parallel_enter()); /* without another number in between */
    CHECK_INT(omp_get_max_threads(), 3);
}

int main(void) {
    test_status();
    test_available();
    test_memory();
    test_philox();
    test_distributions();
    test_permutation();
    test_cpu();
    test_clock();
    test_parallel();
    test_denormals();
    test_modes_of_late_workers();
    test_threads_of_libraries();
    test_trace();
    test_tensor();
    test_storage();
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
