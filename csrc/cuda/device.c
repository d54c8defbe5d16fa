#include "cuda/device.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"

/* What the kernels are compiled for (setup.py) and what the runtime needs. */
enum { LEAST_CAPABILITY = 80, LEAST_DRIVER = 13000 };
/* Bytes of scratch for sums. */
enum { LEAST_REDUCTION = 1 << 20 };

struct gg_cuda_block {
    gg_cuda_block *next;
    void *at;
    size_t bytes;
};

/* ------------------------------------------------------------------------------------------------ failures */

void gg_cuda_enter(gg_cuda_device *device) {
    if (device->several) gg_cuda_note(device, device->api->cudaSetDevice(device->number), "cudaSetDevice");
}

void gg_cuda_note(gg_cuda_device *device, int error, const char *call) {
    if (error == GG_CUDA_SUCCESS || device->failed != GG_OK) return;
    device->failed = error == GG_CUDA_ERROR_MEMORY_ALLOCATION ? GG_ERROR_MEMORY : GG_ERROR_BACKEND;
    snprintf(device->failure, sizeof device->failure,
             "work on the GPU %d failed, and what was computed since is worthless: %s: %s (%s)", device->number, call,
             device->api->cudaGetErrorString(error), device->api->cudaGetErrorName(error));
}

void gg_cuda_refuse(gg_cuda_device *device, const char *why) {
    if (device->failed != GG_OK) return;
    device->failed = GG_ERROR_UNSUPPORTED;
    snprintf(device->failure, sizeof device->failure, "the GPU %d: %s", device->number, why);
}

void gg_cuda_launched(gg_cuda_device *device, const char *kernel) {
    const int error = device->api->cudaGetLastError();
    if (error != GG_CUDA_SUCCESS) gg_cuda_note(device, error, kernel);
}

/* No bad numbers have been seen. */
static void forget_bad_numbers(gg_cuda_device *device) {
    memset(device->results->bad, 0xff, sizeof device->results->bad);
    gg_cuda_note(
        device,
        device->api->cudaMemsetAsync(device->bad, 0xff, GG_CUDA_BAD_COUNT * sizeof(uint32_t), gg_cuda_compute(device)),
        "cudaMemsetAsync");
}

uint32_t *gg_cuda_bad(gg_cuda_device *device, gg_cuda_bad_kind kind) { return device->bad + kind; }

void gg_cuda_report_bad(gg_cuda_device *device, gg_cuda_bad_kind kind, int64_t positions, int64_t allowed) {
    device->bad_positions[kind] = positions;
    device->bad_numbers[kind] = allowed;
    gg_cuda_note(device,
                 device->api->cudaMemcpyAsync(&device->results->bad[kind], device->bad + kind, sizeof(uint32_t),
                                              GG_CUDA_MEMCPY_DEFAULT, gg_cuda_compute(device)),
                 "cudaMemcpyAsync");
}

/* What was reported is forgotten: the next batch may be right. */
static gg_status check_numbers(gg_cuda_device *device) {
    uint32_t bad[GG_CUDA_BAD_COUNT];
    gg_status status = GG_OK;
    memcpy(bad, device->results->bad, sizeof bad);
    const uint32_t token = bad[GG_CUDA_BAD_TOKEN], sample = bad[GG_CUDA_BAD_LENGTH];
    if (token == UINT32_MAX && sample == UINT32_MAX) goto cleanup;
    gg_cuda_note(device, device->api->cudaStreamSynchronize(gg_cuda_compute(device)), "cudaStreamSynchronize");
    forget_bad_numbers(device);
    if (token != UINT32_MAX)
        GG_FAIL(GG_ERROR_ARGUMENT,
                "the token at position %lld of sample %lld of the batch is no row of the table; "
                "allowed: 0 to %lld",
                (long long)token % device->bad_positions[GG_CUDA_BAD_TOKEN],
                (long long)token / device->bad_positions[GG_CUDA_BAD_TOKEN],
                (long long)device->bad_numbers[GG_CUDA_BAD_TOKEN] - 1);
    GG_FAIL(GG_ERROR_ARGUMENT, "the length of sample %lld of the batch is not allowed; allowed: 1 to %lld",
            (long long)sample, (long long)device->bad_numbers[GG_CUDA_BAD_LENGTH]);
cleanup:
    return status;
}

static gg_status memory_check(gg_device *head) {
    gg_cuda_device *device = gg_cuda_of(head);
    gg_status status = GG_OK;
    if (device->failed != GG_OK) GG_FAIL(device->failed, "%s", device->failure);
    GG_TRY(check_numbers(device));
cleanup:
    return status;
}

/* ------------------------------------------------------------------------------------------------ marks */

static gg_mark memory_mark(gg_device *head, gg_queue queue) {
    gg_cuda_device *device = gg_cuda_of(head);
    gg_cuda_queue *q = &device->queue[queue];
    gg_cuda_enter(device);
    const int64_t number = q->made + 1;
    const gg_cuda_event event = q->event[number % GG_CUDA_MARKS];
    const int64_t oldest = number - GG_CUDA_MARKS;
    if (oldest > q->done) {
        gg_cuda_note(device, device->api->cudaEventSynchronize(event), "cudaEventSynchronize");
        q->done = oldest;
    }
    gg_cuda_note(device, device->api->cudaEventRecord(event, q->stream), "cudaEventRecord");
    q->made = number;
    return (gg_mark){.number = number, .queue = queue};
}

static bool memory_reached(gg_device *head, gg_mark mark) {
    gg_cuda_device *device = gg_cuda_of(head);
    gg_cuda_queue *q = &device->queue[mark.queue];
    if (mark.number <= q->done) return true;
    gg_cuda_enter(device);
    const int error = device->api->cudaEventQuery(q->event[mark.number % GG_CUDA_MARKS]);
    if (error == GG_CUDA_ERROR_NOT_READY) return false;
    gg_cuda_note(device, error, "cudaEventQuery"); /* after a failure nothing is waited for */
    q->done = mark.number;
    return true;
}

static void memory_wait(gg_device *head, gg_mark mark) {
    gg_cuda_device *device = gg_cuda_of(head);
    gg_cuda_queue *q = &device->queue[mark.queue];
    if (mark.number <= q->done) return;
    gg_cuda_enter(device);
    gg_cuda_note(device, device->api->cudaEventSynchronize(q->event[mark.number % GG_CUDA_MARKS]),
                 "cudaEventSynchronize");
    q->done = mark.number;
}

static void memory_follow(gg_device *head, gg_queue queue, gg_mark mark) {
    gg_cuda_device *device = gg_cuda_of(head);
    gg_cuda_queue *q = &device->queue[mark.queue];
    if (mark.number <= q->done || mark.queue == queue) return;
    gg_cuda_enter(device);
    gg_cuda_note(
        device, device->api->cudaStreamWaitEvent(device->queue[queue].stream, q->event[mark.number % GG_CUDA_MARKS], 0),
        "cudaStreamWaitEvent");
}

static void wait_for_all_work(gg_cuda_device *device) {
    gg_cuda_enter(device);
    for (int i = 0; i < GG_QUEUE_COUNT; ++i) {
        gg_cuda_queue *q = &device->queue[i];
        if (q->stream == NULL) continue;
        gg_cuda_note(device, device->api->cudaStreamSynchronize(q->stream), "cudaStreamSynchronize");
        q->done = q->made;
    }
}

/* ------------------------------------------------------------------------------------------------ memory */

static void count_block(gg_cuda_device *device, gg_cuda_block *block, void *at, size_t bytes) {
    *block = (gg_cuda_block){.next = device->blocks, .at = at, .bytes = bytes};
    device->blocks = block;
    gg_memory_count((int64_t)bytes, 1);
}

static void forget_block(gg_cuda_device *device, const void *at) {
    gg_cuda_block **link = &device->blocks;
    while (*link != NULL && (*link)->at != at) link = &(*link)->next;
    gg_cuda_block *block = *link;
    if (block == NULL) return;
    *link = block->next;
    gg_memory_count(-(int64_t)block->bytes, 0);
    gg_free(block);
}

static gg_status memory_alloc(gg_device *head, size_t bytes, const char *what, void **out) {
    gg_cuda_device *device = gg_cuda_of(head);
    const gg_cuda_api *api = device->api;
    gg_cuda_block *block = NULL;
    void *at = NULL;
    gg_status status = GG_OK;
    *out = NULL;
    GG_TRY(gg_calloc(1, sizeof *block, "a block on the GPU", &block));
    gg_cuda_enter(device);
    const int error = api->cudaMalloc(&at, bytes);
    if (error == GG_CUDA_ERROR_MEMORY_ALLOCATION) {
        size_t free_bytes = 0, all_bytes = 0;
        (void)api->cudaGetLastError();
        (void)api->cudaMemGetInfo(&free_bytes, &all_bytes);
        GG_FAIL(GG_ERROR_MEMORY,
                "no memory for %s on the GPU %d: %zu bytes wanted, %zu of %zu bytes are free (a smaller batch_size "
                "needs less)",
                what, device->number, bytes, free_bytes, all_bytes);
    }
    if (error != GG_CUDA_SUCCESS) GG_TRY(gg_cuda_fail(api, error, "cudaMalloc"));
    GG_CUDA_TRY(api, cudaMemsetAsync, (at, 0, bytes, gg_cuda_compute(device)));
    GG_CUDA_TRY(api, cudaStreamSynchronize, (gg_cuda_compute(device)));
    count_block(device, block, at, bytes);
    *out = at;
    block = NULL;
    at = NULL;
cleanup:
    if (at != NULL) (void)api->cudaFree(at);
    gg_free(block);
    return status;
}

static void memory_free(gg_device *head, void *at) {
    gg_cuda_device *device = gg_cuda_of(head);
    wait_for_all_work(device);
    gg_cuda_note(device, device->api->cudaFree(at), "cudaFree");
    forget_block(device, at);
}

static gg_status memory_alloc_host(gg_device *head, size_t bytes, const char *what, void **out) {
    gg_cuda_device *device = gg_cuda_of(head);
    const gg_cuda_api *api = device->api;
    gg_cuda_block *block = NULL;
    void *at = NULL;
    gg_status status = GG_OK;
    *out = NULL;
    GG_TRY(gg_calloc(1, sizeof *block, "a block that the GPU shares", &block));
    gg_cuda_enter(device);
    const int error = api->cudaHostAlloc(&at, bytes, GG_CUDA_HOST_PORTABLE | GG_CUDA_HOST_MAPPED);
    if (error == GG_CUDA_ERROR_MEMORY_ALLOCATION) {
        (void)api->cudaGetLastError();
        GG_FAIL(GG_ERROR_MEMORY,
                "no pinned memory for %s: %zu bytes wanted (the limit of locked memory, ulimit -l, may be too low)",
                what, bytes);
    }
    if (error != GG_CUDA_SUCCESS) GG_TRY(gg_cuda_fail(api, error, "cudaHostAlloc"));
    memset(at, 0, bytes);
    count_block(device, block, at, bytes);
    *out = at;
    block = NULL;
cleanup:
    gg_free(block);
    return status;
}

static void memory_free_host(gg_device *head, void *at) {
    gg_cuda_device *device = gg_cuda_of(head);
    wait_for_all_work(device);
    gg_cuda_note(device, device->api->cudaFreeHost(at), "cudaFreeHost");
    forget_block(device, at);
}

static void memory_zero(gg_device *head, gg_queue queue, void *at, size_t bytes) {
    gg_cuda_device *device = gg_cuda_of(head);
    gg_cuda_enter(device);
    gg_cuda_note(device, device->api->cudaMemsetAsync(at, 0, bytes, device->queue[queue].stream), "cudaMemsetAsync");
}

void *gg_cuda_reduction(gg_cuda_device *device, size_t bytes) {
    void *larger = NULL;
    if (bytes <= device->reduced) return device->reduction;
    if (memory_alloc(&device->head, bytes, "sums", &larger) != GG_OK) {
        gg_cuda_note(device, GG_CUDA_ERROR_MEMORY_ALLOCATION, "cudaMalloc");
        return NULL;
    }
    if (device->reduction != NULL) memory_free(&device->head, device->reduction);
    device->reduction = larger;
    device->reduced = bytes;
    return larger;
}

/* ------------------------------------------------------------------------------------------------ shared blocks
 *
 * The driver maps whole pages, and refuses a page that it has mapped already. Blocks of one process may have pages in
 * common, and several devices may share one block: so all of the process's mapped pages are known here. A mapping is
 * undone when no block is left that has a page of it. */

typedef struct shared_pages {
    struct shared_pages *next;
    uintptr_t begin, end;
    int users;
} shared_pages;

static pthread_rwlock_t shared_lock = PTHREAD_RWLOCK_INITIALIZER;
static shared_pages *shared_first;

/* A block whose share is to be undone: its size is not known then. */
typedef struct shared_block {
    struct shared_block *next;
    uintptr_t at, begin, end;
} shared_block;

static shared_block *shared_blocks;

static void release_pages(gg_cuda_device *device, uintptr_t begin, uintptr_t end) {
    for (shared_pages **link = &shared_first; *link != NULL;) {
        shared_pages *pages = *link;
        if (pages->begin < end && begin < pages->end && --pages->users == 0) {
            gg_cuda_note(device, device->api->cudaHostUnregister((void *)pages->begin), "cudaHostUnregister");
            *link = pages->next;
            gg_free(pages);
        } else link = &pages->next;
    }
}

/* The first mapped pages at or behind `at`. */
static const shared_pages *pages_from(uintptr_t at) {
    const shared_pages *found = NULL;
    for (const shared_pages *p = shared_first; p != NULL; p = p->next)
        if (p->end > at && (found == NULL || p->begin < found->begin)) found = p;
    return found;
}

static gg_status map_pages(gg_cuda_device *device, uintptr_t begin, uintptr_t end) {
    const gg_cuda_api *api = device->api;
    shared_pages *pages = NULL;
    gg_status status = GG_OK;
    GG_TRY(gg_calloc(1, sizeof *pages, "shared pages", &pages));
    const int error = api->cudaHostRegister((void *)begin, end - begin, GG_CUDA_HOST_PORTABLE | GG_CUDA_HOST_MAPPED);
    if (error != GG_CUDA_SUCCESS) (void)api->cudaGetLastError();
    if (error == GG_CUDA_ERROR_MEMORY_ALLOCATION)
        GG_FAIL(GG_ERROR_MEMORY,
                "%zu bytes of host memory cannot be pinned for the GPU %d (the limit of locked memory, ulimit -l, may "
                "be too low)",
                (size_t)(end - begin), device->number);
    if (error != GG_CUDA_SUCCESS) GG_TRY(gg_cuda_fail(api, error, "cudaHostRegister"));
    *pages = (shared_pages){.next = shared_first, .begin = begin, .end = end};
    shared_first = pages;
    pages = NULL;
cleanup:
    gg_free(pages);
    return status;
}

static gg_status memory_share(gg_device *head, void *at, size_t bytes) {
    gg_cuda_device *device = gg_cuda_of(head);
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)at;
    const uintptr_t begin = start / page * page, end = (start + bytes + page - 1) / page * page;
    shared_block *block = NULL;
    uintptr_t mapped = begin;
    gg_status status = GG_OK;
    gg_cuda_enter(device);
    pthread_rwlock_wrlock(&shared_lock);
    GG_TRY(gg_calloc(1, sizeof *block, "a shared block", &block));
    while (mapped < end) {
        const shared_pages *next = pages_from(mapped);
        const uintptr_t until = next == NULL || next->begin >= end ? end : next->begin;
        if (until > mapped) GG_TRY(map_pages(device, mapped, until));
        mapped = until < end ? next->end : end;
    }
    for (shared_pages *p = shared_first; p != NULL; p = p->next) p->users += p->begin < end && begin < p->end;
    *block = (shared_block){.next = shared_blocks, .at = start, .begin = begin, .end = end};
    shared_blocks = block;
    block = NULL;
cleanup:
    if (status != GG_OK)
        for (shared_pages **link = &shared_first; *link != NULL;) {
            shared_pages *pages = *link;
            if (pages->users == 0) {
                (void)device->api->cudaHostUnregister((void *)pages->begin);
                *link = pages->next;
                gg_free(pages);
            } else link = &pages->next;
        }
    gg_free(block);
    pthread_rwlock_unlock(&shared_lock);
    return status;
}

static void memory_unshare(gg_device *head, void *at) {
    gg_cuda_device *device = gg_cuda_of(head);
    wait_for_all_work(device);
    pthread_rwlock_wrlock(&shared_lock);
    shared_block **link = &shared_blocks;
    while (*link != NULL && (*link)->at != (uintptr_t)at) link = &(*link)->next;
    shared_block *block = *link;
    if (block != NULL) {
        *link = block->next;
        release_pages(device, block->begin, block->end);
        gg_free(block);
    }
    pthread_rwlock_unlock(&shared_lock);
}

/* How many bytes from `at` on, of so many, lie on the same side of all borders of mapped pages: a copy of the runtime
 * may neither begin in mapped memory and end in other memory, nor go from one mapping to the next. */
static size_t bytes_of_one_mapping(const void *at, size_t bytes) {
    const uintptr_t begin = (uintptr_t)at;
    uintptr_t end = begin + bytes;
    for (const shared_pages *p = shared_first; p != NULL; p = p->next) {
        if (begin < p->begin && p->begin < end) end = p->begin;
        if (begin < p->end && p->end < end && p->begin <= begin) end = p->end;
    }
    return end - begin;
}

static void memory_copy(gg_device *head, gg_queue queue, void *to, const void *from, size_t bytes) {
    gg_cuda_device *device = gg_cuda_of(head);
    gg_cuda_enter(device);
    pthread_rwlock_rdlock(&shared_lock);
    for (size_t done = 0, piece; done < bytes; done += piece) {
        const char *source = (const char *)from + done;
        char *target = (char *)to + done;
        piece = bytes_of_one_mapping(target, bytes_of_one_mapping(source, bytes - done));
        gg_cuda_note(
            device,
            device->api->cudaMemcpyAsync(target, source, piece, GG_CUDA_MEMCPY_DEFAULT, device->queue[queue].stream),
            "cudaMemcpyAsync");
    }
    pthread_rwlock_unlock(&shared_lock);
}

const gg_memory_table gg_cuda_memory = {
    .alloc = memory_alloc,
    .free = memory_free,
    .alloc_host = memory_alloc_host,
    .free_host = memory_free_host,
    .share = memory_share,
    .unshare = memory_unshare,
    .copy = memory_copy,
    .zero = memory_zero,
    .mark = memory_mark,
    .reached = memory_reached,
    .wait = memory_wait,
    .follow = memory_follow,
    .check = memory_check,
};

/* ------------------------------------------------------------------------------------------------ opening */

static gg_status count_devices(const gg_cuda_api *api, int *out) {
    gg_status status = GG_OK;
    int driver = 0, count = 0;
    *out = 0;
    if (api->cudaDriverGetVersion(&driver) != GG_CUDA_SUCCESS) driver = 0;
    if (driver == 0)
        GG_FAIL(GG_ERROR_UNSUPPORTED,
                "there is no NVIDIA driver here (libcuda.so.1 was not found): a device \"cuda\" needs an NVIDIA GPU "
                "and its driver, version 580 or newer");
    if (driver < LEAST_DRIVER)
        GG_FAIL(
            GG_ERROR_UNSUPPORTED,
            "the NVIDIA driver is too old: it supports CUDA %d.%d, and %d.%d is needed; install driver 580 or newer",
            driver / 1000, driver % 1000 / 10, LEAST_DRIVER / 1000, LEAST_DRIVER % 1000 / 10);
    const int error = api->cudaGetDeviceCount(&count);
    if (error != GG_CUDA_SUCCESS) (void)api->cudaGetLastError();
    if (error == GG_CUDA_ERROR_NO_DEVICE || (error == GG_CUDA_SUCCESS && count == 0))
        GG_FAIL(GG_ERROR_UNSUPPORTED,
                "the NVIDIA driver shows no GPU to this process (CUDA_VISIBLE_DEVICES may hide all of them)");
    if (error != GG_CUDA_SUCCESS) GG_TRY(gg_cuda_fail(api, error, "cudaGetDeviceCount"));
    *out = count;
cleanup:
    return status;
}

gg_status gg_cuda_device_count(int *out) {
    const gg_cuda_api *api = NULL;
    gg_status status = GG_OK;
    *out = 0;
    GG_TRY(gg_cuda_api_get(0, &api));
    GG_TRY(count_devices(api, out));
cleanup:
    return status;
}

static gg_status check_capability(const gg_cuda_api *api, int number) {
    gg_status status = GG_OK;
    int major = 0, minor = 0, unified = 0, host_pointer = 0;
    size_t bytes = 0;
    char name[256] = "";
    GG_CUDA_TRY(api, cudaDeviceGetAttribute, (&major, GG_CUDA_ATTRIBUTE_MAJOR, number));
    GG_CUDA_TRY(api, cudaDeviceGetAttribute, (&minor, GG_CUDA_ATTRIBUTE_MINOR, number));
    GG_CUDA_TRY(api, cudaDeviceGetAttribute, (&unified, GG_CUDA_ATTRIBUTE_UNIFIED_ADDRESSING, number));
    GG_CUDA_TRY(api, cudaDeviceGetAttribute, (&host_pointer, GG_CUDA_ATTRIBUTE_HOST_POINTER, number));
    GG_CUDA_TRY(api, device_facts, (number, name, sizeof name, &bytes));
    if (10 * major + minor < LEAST_CAPABILITY)
        GG_FAIL(GG_ERROR_UNSUPPORTED, "the GPU %d (%s) has compute capability %d.%d; at least %d.%d is needed", number,
                name, major, minor, LEAST_CAPABILITY / 10, LEAST_CAPABILITY % 10);
    if (!unified || !host_pointer)
        GG_FAIL(GG_ERROR_UNSUPPORTED, "the GPU %d (%s) cannot use host memory at the host's addresses", number, name);
cleanup:
    return status;
}

static gg_status open_queue(gg_cuda_device *device, gg_cuda_queue *queue) {
    const gg_cuda_api *api = device->api;
    gg_status status = GG_OK;
    GG_CUDA_TRY(api, cudaStreamCreateWithFlags, (&queue->stream, GG_CUDA_STREAM_NON_BLOCKING));
    for (int i = 0; i < GG_CUDA_MARKS; ++i)
        GG_CUDA_TRY(api, cudaEventCreateWithFlags, (&queue->event[i], GG_CUDA_EVENT_DISABLE_TIMING));
cleanup:
    return status;
}

static void close_queue(gg_cuda_device *device, gg_cuda_queue *queue) {
    for (int i = 0; i < GG_CUDA_MARKS; ++i)
        if (queue->event[i] != NULL) (void)device->api->cudaEventDestroy(queue->event[i]);
    if (queue->stream != NULL) (void)device->api->cudaStreamDestroy(queue->stream);
}

/* Scratch of sums is as large as most of them want, so that a warm step allocates nothing. */
static gg_status open_results(gg_cuda_device *device) {
    void *block = NULL;
    gg_status status = GG_OK;
    GG_TRY(memory_alloc_host(&device->head, sizeof *device->results, "a device's results", &block));
    device->results = block;
    GG_TRY(memory_alloc(&device->head, GG_CUDA_BAD_COUNT * sizeof(uint32_t), "a device's reports", &block));
    device->bad = block;
    if (gg_cuda_reduction(device, LEAST_REDUCTION) == NULL) GG_TRY(memory_check(&device->head));
    forget_bad_numbers(device);
    GG_CUDA_TRY(device->api, cudaStreamSynchronize, (gg_cuda_compute(device)));
cleanup:
    return status;
}

gg_status gg_cuda_device_open(const gg_device_options *options, gg_device **out) {
    const gg_cuda_api *api = NULL;
    gg_cuda_device *device = NULL;
    int count = 0;
    gg_status status = GG_OK;
    *out = NULL;
    /* The driver first: cuDNN prints where there is none. */
    GG_TRY(gg_cuda_api_get(0, &api));
    GG_TRY(count_devices(api, &count));
    if (options->number < 0 || options->number >= count)
        GG_FAIL(GG_ERROR_ARGUMENT, "device: there is no GPU %d here; allowed are \"cuda:0\" to \"cuda:%d\"",
                options->number, count - 1);
    GG_TRY(check_capability(api, options->number));
    GG_TRY(gg_cuda_api_get(1, &api));
    GG_TRY(gg_calloc(1, sizeof *device, "a device", &device));
    device->head.table = &gg_backend_cuda;
    device->head.threads = 1;
    device->api = api;
    device->number = options->number;
    device->fast = options->fast;
    device->several = count > 1;
    GG_CUDA_TRY(api, cudaSetDevice, (options->number));
    for (int i = 0; i < GG_QUEUE_COUNT; ++i) GG_TRY(open_queue(device, &device->queue[i]));
    GG_CUBLAS_TRY(api, cublasLtCreate, (&device->blas));
    GG_CUDNN_TRY(api, cudnnCreate, (&device->dnn));
    GG_CUDNN_TRY(api, cudnnSetStream, (device->dnn, gg_cuda_compute(device)));
    GG_TRY(open_results(device));
    *out = &device->head;
    device = NULL;
cleanup:
    if (device != NULL) gg_cuda_device_close(&device->head);
    return status;
}

void gg_cuda_device_close(gg_device *head) {
    gg_cuda_device *device = gg_cuda_of(head);
    if (device == NULL) return;
    wait_for_all_work(device);
    if (device->reduction != NULL) memory_free(head, device->reduction);
    if (device->bad != NULL) memory_free(head, device->bad);
    if (device->results != NULL) memory_free_host(head, device->results);
    if (device->dnn != NULL) (void)device->api->cudnnDestroy(device->dnn);
    if (device->blas != NULL) (void)device->api->cublasLtDestroy(device->blas);
    for (int i = 0; i < GG_QUEUE_COUNT; ++i) close_queue(device, &device->queue[i]);
    gg_free(device);
}

/* ------------------------------------------------------------------------------------------------ description */

static void add_line(char **at, size_t *room, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void add_line(char **at, size_t *room, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int written = vsnprintf(*at, *room, format, arguments);
    va_end(arguments);
    const size_t used = written < 0 ? 0 : (size_t)written < *room ? (size_t)written : *room - 1;
    *at += used;
    *room -= used;
}

static void describe_device(const gg_cuda_api *api, int number, int count, char **at, size_t *room) {
    int major = 0, minor = 0, processors = 0;
    size_t bytes = 0;
    char name[256] = "unknown";
    (void)api->device_facts(number, name, sizeof name, &bytes);
    (void)api->cudaDeviceGetAttribute(&major, GG_CUDA_ATTRIBUTE_MAJOR, number);
    (void)api->cudaDeviceGetAttribute(&minor, GG_CUDA_ATTRIBUTE_MINOR, number);
    (void)api->cudaDeviceGetAttribute(&processors, GG_CUDA_ATTRIBUTE_PROCESSORS, number);
    add_line(at, room, "cuda:%d: %s, %.1f GiB, compute capability %d.%d, %d multiprocessors", number, name,
             (double)bytes / (1 << 30), major, minor, processors);
    bool first = true;
    for (int peer = 0; peer < count; ++peer) {
        int can = 0;
        if (peer == number || api->cudaDeviceCanAccessPeer(&can, number, peer) != GG_CUDA_SUCCESS || !can) continue;
        add_line(at, room, first ? ", peer access to %d" : ", %d", peer);
        first = false;
    }
    add_line(at, room, "\n");
}

void gg_cuda_describe(char *text, size_t room) {
    const gg_cuda_api *api = NULL;
    int count = 0, version = 0;
    if (room == 0) return;
    text[0] = 0;
    if (gg_cuda_api_get(0, &api) != GG_OK) {
        add_line(&text, &room, "runtime: %s\n", gg_error_message());
        return;
    }
    if (api->cudaRuntimeGetVersion(&version) == GG_CUDA_SUCCESS)
        add_line(&text, &room, "runtime: CUDA %d.%d\n", version / 1000, version % 1000 / 10);
    if (api->cudaDriverGetVersion(&version) == GG_CUDA_SUCCESS && version > 0)
        add_line(&text, &room, "driver: supports CUDA %d.%d\n", version / 1000, version % 1000 / 10);
    else add_line(&text, &room, "driver: none\n");
    if (gg_cuda_api_get(1, &api) == GG_OK) {
        const int dnn = (int)api->cudnnGetVersion(), blas = (int)api->cublasLtGetVersion();
        add_line(&text, &room, "cudnn: %d.%d.%d\n", dnn / 10000, dnn % 10000 / 100, dnn % 100);
        add_line(&text, &room, "cublaslt: %d.%d.%d\n", blas / 10000, blas % 10000 / 100, blas % 100);
    } else add_line(&text, &room, "libraries: %s\n", gg_error_message());
    if (gg_cuda_device_count(&count) != GG_OK) add_line(&text, &room, "devices: none: %s\n", gg_error_message());
    for (int i = 0; i < count; ++i) describe_device(api, i, count, &text, &room);
}
