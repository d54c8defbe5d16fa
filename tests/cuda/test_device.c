/* Memory, queues and marks of the device "cuda" on the stand-in, which GOSSIPGRAD_CUDA_LIBRARY names. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "base/memory.h"
#include "cuda/cuda_api.h"
#include "loaded_standin.h"

static void (*standin_memory)(size_t bytes);
static void (*standin_devices)(int count);

static gg_device *open_device(int number) {
    gg_device *device = NULL;
    CHECK_OK(library->backend->open(&(gg_device_options){.threads = 1, .number = number}, &device));
    if (device == NULL) exit(1);
    device->table = library->backend; /* as gg_devices_open does, if the table has not */
    return device;
}

/* Nothing is wrong, and nothing is left. */
static void is_clean(int line) {
    char text[1 << 12] = "";
    const int wrong = standin_violations(text, sizeof text);
    if (!check_count(wrong == 0, __FILE__, line)) fprintf(stderr, "violations: %s\n", text);
    const int left = standin_leaks(text, sizeof text);
    if (!check_count(left == 0, __FILE__, line)) fprintf(stderr, "left: %s\n", text);
    standin_begin(0);
}

static void test_memory(uint64_t seed) {
    standin_begin(seed);
    gg_device *device = open_device(0);
    const int64_t before = gg_memory_live_bytes();
    float host[300], *block = NULL, *shared = NULL, plain[300];
    CHECK(gg_device_is_separate(device));
    CHECK_OK(gg_device_alloc(device, sizeof host, "a block", &block));
    CHECK_OK(gg_device_alloc_host(device, sizeof host, "a shared block", &shared));
    CHECK(((uintptr_t)block | (uintptr_t)shared) % 64 == 0);
    CHECK_INT(gg_memory_live_bytes() > before + 2 * (int64_t)sizeof host - 1, 1);
    CHECK_OK(gg_device_read(device, plain, block, sizeof plain)); /* any host memory, on both sides of pages */
    for (int i = 0; i < 300; ++i) CHECK(plain[i] == 0 && shared[i] == 0);
    for (int i = 0; i < 300; ++i) host[i] = (float)(i + 1);
    CHECK_OK(gg_device_write(device, block, host, sizeof host));
    memset(host, 0, sizeof host);
    gg_device_copy(device, GG_QUEUE_COMPUTE, shared, block, sizeof host);
    gg_device_zero(device, GG_QUEUE_COMPUTE, block, 100 * sizeof(float));
    const gg_mark zeroed = gg_device_mark(device, GG_QUEUE_COMPUTE);
    while (!gg_device_reached(device, zeroed)) {
    }
    CHECK_NEAR(shared[299], 300, 0);
    CHECK_OK(gg_device_read(device, plain, block, sizeof plain));
    CHECK(plain[99] == 0 && plain[100] == 101);

    /* Between two queues, in order by a mark, many times, with more marks than are held at once. */
    float *second = NULL;
    CHECK_OK(gg_device_alloc(device, sizeof host, "a second block", &second));
    for (int turn = 0; turn < 40; ++turn) {
        for (int i = 0; i < 60; ++i) gg_device_mark(device, GG_QUEUE_COPY);
        gg_device_wait(device, gg_device_mark(device, GG_QUEUE_COPY));
        for (int i = 0; i < 300; ++i) shared[i] = (float)turn;
        gg_device_copy(device, GG_QUEUE_COPY, block, shared, sizeof host);
        gg_device_follow(device, GG_QUEUE_COMPUTE, gg_device_mark(device, GG_QUEUE_COPY));
        gg_device_copy(device, GG_QUEUE_COMPUTE, second, block, sizeof host);
        gg_device_follow(device, GG_QUEUE_COPY, gg_device_mark(device, GG_QUEUE_COMPUTE));
        gg_device_copy(device, GG_QUEUE_COPY, shared, second, sizeof host);
        gg_device_wait(device, gg_device_mark(device, GG_QUEUE_COPY));
        CHECK(shared[0] == (float)turn && shared[299] == (float)turn);
    }
    gg_device_copy(device, GG_QUEUE_COPY, shared, second, sizeof host);
    const gg_mark oldest = gg_device_mark(device, GG_QUEUE_COPY);
    for (int i = 0; i < 1100; ++i) gg_device_mark(device, GG_QUEUE_COPY);
    CHECK(gg_device_reached(device, oldest)); /* had to be waited for */
    CHECK(gg_device_reached(device, (gg_mark){0}));
    CHECK_OK(gg_device_check(device));
    /* What is freed is no longer in use: freeing waits. */
    for (int i = 0; i < 20; ++i) gg_device_copy(device, GG_QUEUE_COPY, shared, second, sizeof host);
    gg_device_free_host(device, shared);
    gg_device_free(device, second);
    gg_device_free(device, block);
    gg_device_free(device, NULL);
    CHECK_INT(gg_memory_live_bytes(), before);
    library->backend->close(device);
    is_clean(__LINE__);
}

/* Blocks of host memory that devices share: with pages in common, by several devices, of any address. */
static void test_shared_blocks(uint64_t seed) {
    standin_begin(seed);
    gg_device *device[2] = {open_device(0), open_device(0)};
    char *memory = aligned_alloc(4096, 5 * 4096), *block = NULL;
    static const size_t begins[3] = {100, 4000, 9000}, sizes[3] = {3000, 4500, 11000};
    CHECK_OK(gg_device_alloc(device[0], 16384, "a block", &block));
    for (int turn = 0; turn < 2; ++turn) {
        for (int i = 0; i < 3; ++i) {
            const int one = (i + turn) % 3;
            CHECK_OK(gg_device_share(device[0], memory + begins[one], sizes[one]));
            CHECK_OK(gg_device_share(device[1], memory + begins[one], sizes[one]));
        }
        for (int i = 0; i < 3; ++i) {
            memset(memory + begins[i], i + 1, sizes[i]);
            gg_device_copy(device[0], GG_QUEUE_COMPUTE, block, memory + begins[i], sizes[i]);
            gg_device_finish(device[0]);
            memset(memory + begins[i], 9, sizes[i]);
            gg_device_copy(device[0], GG_QUEUE_COMPUTE, memory + begins[i], block, sizes[i]);
            gg_device_finish(device[0]);
            CHECK(memory[begins[i]] == i + 1 && memory[begins[i] + sizes[i] - 1] == i + 1);
            gg_device_zero(device[0], GG_QUEUE_COMPUTE, memory + begins[i], sizes[i]);
            gg_device_unshare(device[0], memory + begins[i]);
            CHECK(memory[begins[i]] == 0 && memory[begins[i] + sizes[i] - 1] == 0);
        }
        for (int i = 2; i >= 0; --i) gg_device_unshare(device[1], memory + begins[i]);
    }
    CHECK_OK(gg_device_check(device[0]));
    gg_device_free(device[0], block);
    for (int i = 0; i < 2; ++i) library->backend->close(device[i]);
    free(memory);
    is_clean(__LINE__);
}

static void test_failures(void) {
    gg_device *device = NULL;
    int count = 0;
    float *block = NULL, host[4] = {0};
    const gg_device_options options = {.threads = 1};
    standin_devices(0);
    CHECK_FAILS(library->backend->open(&options, &device), GG_ERROR_UNSUPPORTED, "driver");
    CHECK_FAILS(library->devices(&count), GG_ERROR_UNSUPPORTED, "driver");
    standin_devices(2);
    CHECK_FAILS(library->backend->open(&(gg_device_options){.threads = 1, .number = 2}, &device), GG_ERROR_ARGUMENT,
                "no GPU 2");
    CHECK_OK(library->devices(&count));
    CHECK_INT(count, 2);
    /* Two devices by one thread: each call makes its own the current one. */
    gg_device *both[2] = {open_device(0), open_device(1)};
    for (int i = 0; i < 2; ++i) {
        float *of[2] = {NULL, NULL};
        for (int j = 0; j < 2; ++j) CHECK_OK(gg_device_alloc(both[j], 16, "a block", &of[j]));
        for (int j = 0; j < 2; ++j) CHECK_OK(gg_device_write(both[j], of[j], host, 16));
        for (int j = 0; j < 2; ++j) gg_device_free(both[j], of[j]);
    }
    for (int i = 0; i < 2; ++i) library->backend->close(both[i]);
    standin_devices(1);
    is_clean(__LINE__);

    /* Each call of opening fails once, and nothing is left. */
    static const char *const calls[] = {"cudaDriverGetVersion",
                                        "cudaGetDeviceCount",
                                        "cudaDeviceGetAttribute",
                                        "cudaStreamCreateWithFlags",
                                        "cublasLtCreate",
                                        "cudaEventCreateWithFlags",
                                        "cudnnCreate",
                                        "cudnnSetStream"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; ++i) {
        standin_plant(calls[i], 1, strncmp(calls[i], "cuda", 4) == 0 ? 1 : 2000, false, false);
        device = NULL;
        CHECK(library->backend->open(&options, &device) != GG_OK && device == NULL);
        is_clean(__LINE__);
    }

    device = open_device(0);
    standin_memory(1 << 22);
    CHECK_FAILS(gg_device_alloc(device, 1 << 23, "activations", &block), GG_ERROR_MEMORY, "activations");
    CHECK(block == NULL);
    CHECK_OK(gg_device_alloc(device, 1 << 14, "activations", &block));
    standin_memory((size_t)8 << 30);
    standin_plant("cudaHostAlloc", 1, GG_CUDA_ERROR_MEMORY_ALLOCATION, false, false);
    void *pinned = NULL;
    CHECK_FAILS(gg_device_alloc_host(device, 64, "staging", &pinned), GG_ERROR_MEMORY, "staging");
    standin_plant("cudaHostRegister", 1, GG_CUDA_ERROR_MEMORY_ALLOCATION, false, false);
    CHECK_FAILS(gg_device_share(device, host, sizeof host), GG_ERROR_MEMORY, "pinned");
    CHECK_OK(gg_device_check(device));
    /* What another library of this process has pinned is shared as it is, and stays pinned. */
    standin_plant("cudaHostRegister", 1, GG_CUDA_ERROR_ALREADY_REGISTERED, false, false);
    CHECK_OK(gg_device_share(device, host, sizeof host));
    const long unpinned = standin_count("cudaHostUnregister");
    gg_device_unshare(device, host);
    CHECK_INT(standin_count("cudaHostUnregister"), unpinned);
    CHECK_OK(gg_device_check(device));
    /* The device is lost in the middle of work: nothing hangs, and everything says so. */
    standin_plant("cudaMemsetAsync", 1, 719, true, true);
    gg_device_zero(device, GG_QUEUE_COMPUTE, block, 64);
    gg_device_finish(device);
    CHECK_FAILS(gg_device_check(device), GG_ERROR_BACKEND, "cudaErrorLaunchFailure");
    CHECK_FAILS(gg_device_read(device, host, block, 16), GG_ERROR_BACKEND, "GPU 0 failed");
    const gg_mark after = gg_device_mark(device, GG_QUEUE_COMPUTE);
    gg_device_wait(device, after);
    CHECK(gg_device_reached(device, after));
    standin_begin(0); /* only the stand-in can be found again */
    gg_device_free(device, block);
    library->backend->close(device);
    is_clean(__LINE__);
}

/* Ranks are threads that have a device each. */
static void *one_rank(void *unused) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
        gg_device *device = open_device(0);
        float *block = NULL, *shared = NULL;
        CHECK_OK(gg_device_alloc(device, 4096, "a block", &block));
        CHECK_OK(gg_device_alloc_host(device, 4096, "a shared block", &shared));
        for (int i = 0; i < 20; ++i) {
            shared[0] = (float)i;
            gg_device_copy(device, GG_QUEUE_COMPUTE, block, shared, 4096);
            gg_device_copy(device, GG_QUEUE_COMPUTE, shared + 512, block, 2048);
            gg_device_finish(device);
            CHECK(shared[512] == (float)i);
        }
        gg_device_free(device, block);
        gg_device_free_host(device, shared);
        library->backend->close(device);
    }
    return unused;
}

static void test_ranks(void) {
    pthread_t thread[3];
    standin_begin(11);
    for (int i = 0; i < 3; ++i) CHECK(pthread_create(&thread[i], NULL, one_rank, NULL) == 0);
    for (int i = 0; i < 3; ++i) CHECK(pthread_join(thread[i], NULL) == 0);
    is_clean(__LINE__);
}

/* Scratch that grows is freed where it was: captured work that has its address is worthless, which is told. */
static void test_growing_scratch(void) {
    enum { SAMPLES = 70000 };
    standin_begin(0);
    gg_device *device = open_device(0);
    void *prediction = NULL, *targets = NULL, *result = NULL;
    CHECK_OK(gg_device_alloc(device, SAMPLES * sizeof(float), "prediction", &prediction));
    CHECK_OK(gg_device_alloc(device, SAMPLES * sizeof(float), "targets", &targets));
    CHECK_OK(gg_device_alloc(device, sizeof(gg_loss_result), "result", &result));
    gg_loss_args args = {.loss = {.kind = GG_LOSS_MEAN_SQUARED_ERROR},
                         .layout = GG_LAYOUT_PLAIN,
                         .batch = 4,
                         .positions = 1,
                         .features = 1,
                         .prediction = prediction,
                         .targets = targets,
                         .result = result};
    const int64_t freed = gg_device_freed(device);
    device->table->loss(device, &args);
    CHECK(gg_device_freed(device) == freed);
    args.batch = SAMPLES;
    device->table->loss(device, &args);
    CHECK(gg_device_freed(device) == freed + 1);
    CHECK_OK(gg_device_check(device));
    gg_device_free(device, prediction);
    gg_device_free(device, targets);
    gg_device_free(device, result);
    device->table->close(device);
    is_clean(__LINE__);
}

int main(void) {
    void *handle = load_standin();
    if (handle == NULL) return CHECK_RESULT;
    find(handle, "gg_standin_memory", &standin_memory);
    find(handle, "gg_standin_devices", &standin_devices);
    char text[1024];
    library->describe(text, sizeof text);
    CHECK(strstr(text, "cuda:0: stand-in 0") != NULL);
    for (uint64_t seed = 0; seed < 4; ++seed) {
        test_memory(seed);
        test_shared_blocks(seed);
    }
    test_failures();
    test_ranks();
    test_growing_scratch();
    return CHECK_RESULT;
}
