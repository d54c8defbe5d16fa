/* Memory, queues and the thread of the strict device. */
#define _GNU_SOURCE
#include "strict/strict.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/random.h"

static gg_strict *strict_of(gg_device *device) { return (gg_strict *)device; }

static void record_failure(gg_strict *device, gg_mark work, gg_status status, const char *message) {
    pthread_mutex_lock(&device->mutex);
    if (device->failure == GG_OK) {
        device->failure = status;
        device->failed = work;
        (void)snprintf(device->message, sizeof device->message, "%s", message);
    }
    pthread_mutex_unlock(&device->mutex);
}

/* ---- where things lie ---- */

static const gg_strict_block *block_with(const gg_strict_block *block, int blocks, const void *pointer) {
    const char *at = pointer;
    for (int i = 0; i < blocks; ++i)
        if (at >= block[i].host && at < block[i].host + block[i].bytes) return &block[i];
    return NULL;
}

/* NULL: neither the device's memory nor shared. */
static void *strict_address(const gg_strict *device, const void *pointer) {
    const gg_strict_block *block = block_with(device->block, device->blocks, pointer);
    if (block == NULL) block = block_with(device->shared, device->shares, pointer);
    return block != NULL ? block->work + ((const char *)pointer - block->host) : NULL;
}

void *gg_strict_out(gg_strict *device, void *pointer) {
    void *at = pointer != NULL ? strict_address(device, pointer) : NULL;
    if (pointer != NULL && at == NULL) device->invalid = true;
    return at;
}

const void *gg_strict_in(gg_strict *device, const void *pointer) {
    const void *at = pointer != NULL ? strict_address(device, pointer) : NULL;
    if (pointer != NULL && at == NULL) device->invalid = true;
    return at;
}

static gg_status add_block(gg_strict_block **list, int *count, int *room, gg_strict_block block) {
    gg_strict_block *grown = NULL;
    if (*count == *room) {
        GG_TRY(gg_calloc((size_t)*room * 2 + 16, sizeof *grown, "list of memory", &grown));
        if (*count > 0) memcpy(grown, *list, (size_t)*count * sizeof *grown);
        gg_free(*list);
        *list = grown;
        *room = *room * 2 + 16;
    }
    (*list)[(*count)++] = block;
    return GG_OK;
}

static void remove_block(gg_strict_block *list, int *count, const void *host) {
    for (int i = 0; i < *count; ++i) {
        if (list[i].host != host) continue;
        list[i] = list[--*count];
        return;
    }
}

/* ---- the thread ---- */

/* For how many microseconds the next record is left, unless the host waits: mostly not at all. */
static long delay_drawn(gg_strict *device) {
    const gg_random_key key = {
        .seed = device->seed, .purpose = GG_RANDOM_TEST, .step = (uint64_t)(device->drawn >> 20)};
    uint32_t word[4];
    gg_random_block(&key, (uint32_t)(device->drawn++ & 0xfffff), word);
    if (word[0] % 2 == 0) return 0;
    return word[0] % 16 == 1 ? 500 : (long)(word[1] % 30);
}

static bool is_runnable(const gg_strict *device, int queue) {
    const gg_strict_queue *it = &device->queue[queue];
    if (it->done == it->given) return false;
    const gg_strict_work *work = &it->work[it->done % GG_STRICT_MAX_WORKS];
    return work->run != NULL || device->queue[work->behind.queue].done >= work->behind.number;
}

/* The queue whose next record is done next; -1: none has one. Holding the mutex. */
static int choose_queue(gg_strict *device) {
    int runnable[GG_QUEUE_COUNT], count = 0;
    for (int i = 0; i < GG_QUEUE_COUNT; ++i)
        if (is_runnable(device, i)) runnable[count++] = i;
    if (count == 0) return -1;
    return runnable[count == 1 ? 0 : delay_drawn(device) % count];
}

static void wait_a_little(gg_strict *device, long microseconds) {
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += microseconds * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (device->waiting == 0 && !device->closing)
        if (pthread_cond_timedwait(&device->given, &device->mutex, &until) == ETIMEDOUT) return;
}

static void *strict_thread(void *context) {
    gg_strict *device = context;
    const gg_float_mode former = gg_parallel_enter();
    pthread_mutex_lock(&device->mutex);
    for (;;) {
        const int chosen = choose_queue(device);
        if (chosen < 0) {
            if (device->closing) break;
            pthread_cond_wait(&device->given, &device->mutex);
            continue;
        }
        const long delay = delay_drawn(device);
        if (delay > 0 && device->waiting == 0) wait_a_little(device, delay);
        gg_strict_queue *queue = &device->queue[chosen];
        gg_strict_work *work = &queue->work[queue->done % GG_STRICT_MAX_WORKS];
        pthread_mutex_unlock(&device->mutex);
        const gg_status status = work->run != NULL ? work->run(device, work) : GG_OK;
        if (status != GG_OK)
            record_failure(device, (gg_mark){.number = queue->done + 1, .queue = (gg_queue)chosen}, status,
                           gg_error_message());
        pthread_mutex_lock(&device->mutex);
        queue->done++;
        pthread_cond_broadcast(&device->done);
    }
    pthread_mutex_unlock(&device->mutex);
    gg_parallel_leave(former);
    return NULL;
}

/* ---- giving work, and waiting ---- */

/* Waits until `number` records of a queue are done. Holding the mutex. */
static void wait_until(gg_strict *device, gg_queue queue, int64_t number) {
    if (device->queue[queue].done >= number) return;
    device->waiting++;
    pthread_cond_broadcast(&device->given);
    while (device->queue[queue].done < number) pthread_cond_wait(&device->done, &device->mutex);
    device->waiting--;
}

/* Of the work that comes next. */
static void fail_next(gg_strict *device, gg_status status, const char *message) {
    const int64_t next = device->queue[GG_QUEUE_COMPUTE].given + 1;
    record_failure(device, (gg_mark){.number = next, .queue = GG_QUEUE_COMPUTE}, status, message);
}

static void refuse_in_capture(gg_strict *device, const char *what) {
    char message[256];
    if (device->capture == NULL) return;
    (void)snprintf(message, sizeof message, "strict device: %s while work is captured", what);
    fail_next(device, GG_ERROR_BACKEND, message);
}

static gg_status make_room(gg_device_graph *graph) {
    gg_strict_work *grown = NULL;
    const int room = 2 * graph->room + 16;
    if (graph->works < graph->room) return GG_OK;
    GG_TRY(gg_alloc((size_t)room * sizeof *grown, "captured work", &grown));
    if (graph->works > 0) memcpy(grown, graph->work, (size_t)graph->works * sizeof *grown);
    gg_free(graph->work);
    graph->work = grown;
    graph->room = room;
    return GG_OK;
}

static gg_strict_work *captured_work(gg_strict *device) {
    gg_device_graph *graph = device->capture;
    const gg_status status = graph->full ? GG_OK : make_room(graph);
    if (status != GG_OK) {
        fail_next(device, status, gg_error_message());
        graph->full = true;
    }
    return graph->full ? &device->spare : &graph->work[graph->works];
}

/* The record that comes next. */
static gg_strict_work *next_work(gg_strict *device, gg_queue queue) {
    gg_strict_queue *it = &device->queue[queue];
    if (device->capture != NULL && queue == GG_QUEUE_COMPUTE) return captured_work(device);
    return &it->work[it->given % GG_STRICT_MAX_WORKS];
}

gg_strict_work *gg_strict_work_new(gg_strict *device, gg_queue queue) {
    pthread_mutex_lock(&device->mutex);
    wait_until(device, queue, device->queue[queue].given + 1 - GG_STRICT_MAX_WORKS);
    pthread_mutex_unlock(&device->mutex);
    device->invalid = device->too_many = false;
    return next_work(device, queue);
}

static gg_status run_nothing(gg_strict *device, gg_strict_work *work) {
    (void)device, (void)work;
    return GG_OK;
}

void gg_strict_give(gg_strict *device, gg_queue queue, const char *what) {
    char message[256];
    gg_strict_queue *it = &device->queue[queue];
    if (device->invalid) {
        if (device->too_many)
            (void)snprintf(message, sizeof message, "strict device: %s has more sources than %d", what,
                           GG_STRICT_MAX_SOURCES);
        else
            (void)snprintf(message, sizeof message,
                           "strict device: %s has an address that is neither in its memory nor in host memory that it "
                           "shares",
                           what);
        record_failure(device, (gg_mark){.number = it->given + 1, .queue = queue}, GG_ERROR_BACKEND, message);
        next_work(device, queue)->run = run_nothing;
    }
    if (device->capture != NULL && queue == GG_QUEUE_COMPUTE) {
        if (!device->capture->full) device->capture->works++;
        return;
    }
    pthread_mutex_lock(&device->mutex);
    it->given++;
    pthread_cond_broadcast(&device->given);
    pthread_mutex_unlock(&device->mutex);
}

void gg_strict_wait_all(gg_strict *device, gg_queue queue) {
    refuse_in_capture(device, "the host waits");
    pthread_mutex_lock(&device->mutex);
    wait_until(device, queue, device->queue[queue].given);
    pthread_mutex_unlock(&device->mutex);
}

static void wait_for_everything(gg_strict *device) {
    for (int i = 0; i < GG_QUEUE_COUNT; ++i) gg_strict_wait_all(device, (gg_queue)i);
}

/* ---- the memory table ---- */

static void *map_file(int file, size_t bytes, int access) {
    void *at = mmap(NULL, bytes, access, MAP_SHARED, file, 0);
    return at != MAP_FAILED ? at : NULL;
}

static size_t in_pages(size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

static void unmap_block(gg_strict_block *block) {
    if (block->host != NULL) (void)munmap(block->host, block->bytes);
    if (block->work != NULL) (void)munmap(block->work, block->bytes);
}

static gg_status strict_alloc(gg_device *head, size_t bytes, const char *what, void **out) {
    gg_status status = GG_OK;
    gg_strict *device = strict_of(head);
    gg_strict_block block = {.bytes = in_pages(bytes)};
    refuse_in_capture(device, "memory is allocated");
    const int file = memfd_create("gossipgrad-strict-device", MFD_CLOEXEC);
    *out = NULL;
    if (file >= 0 && ftruncate(file, (off_t)block.bytes) == 0) {
        block.host = map_file(file, block.bytes, PROT_NONE);
        block.work = map_file(file, block.bytes, PROT_READ | PROT_WRITE);
    }
    if (block.host == NULL || block.work == NULL)
        GG_FAIL_CLEANUP(GG_ERROR_MEMORY, "no memory for %s: %zu bytes wanted on the strict device", what, bytes);
    GG_TRY_CLEANUP(add_block(&device->block, &device->blocks, &device->block_room, block));
    gg_memory_count((int64_t)block.bytes, 1);
    *out = block.host;
    block = (gg_strict_block){0};
cleanup:
    if (file >= 0) (void)close(file);
    unmap_block(&block);
    return status;
}

static void strict_free(gg_device *head, void *at) {
    gg_strict *device = strict_of(head);
    const gg_strict_block *found = block_with(device->block, device->blocks, at);
    if (found == NULL) return;
    gg_strict_block block = *found;
    wait_for_everything(device);
    remove_block(device->block, &device->blocks, at);
    gg_memory_count(-(int64_t)block.bytes, 0);
    unmap_block(&block);
}

static gg_status strict_share(gg_device *head, void *at, size_t bytes) {
    gg_strict *device = strict_of(head);
    const gg_strict_block block = {.host = at, .work = at, .bytes = bytes};
    refuse_in_capture(device, "memory is shared");
    return add_block(&device->shared, &device->shares, &device->share_room, block);
}

static void strict_unshare(gg_device *head, void *at) {
    gg_strict *device = strict_of(head);
    wait_for_everything(device);
    remove_block(device->shared, &device->shares, at);
}

static gg_status strict_alloc_host(gg_device *head, size_t bytes, const char *what, void **out) {
    gg_status status = GG_OK;
    void *made = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, bytes, what, &made));
    GG_TRY_CLEANUP(strict_share(head, made, bytes));
    *out = made;
    made = NULL;
cleanup:
    gg_free(made);
    return status;
}

static void strict_free_host(gg_device *head, void *at) {
    strict_unshare(head, at);
    gg_free(at);
}

static gg_status run_copy(gg_strict *device, gg_strict_work *work) {
    (void)device;
    memcpy(work->as.arrays.out[0], work->as.arrays.in[0], work->as.arrays.n);
    return GG_OK;
}

static gg_status run_zero(gg_strict *device, gg_strict_work *work) {
    (void)device;
    memset(work->as.arrays.out[0], 0, work->as.arrays.n);
    return GG_OK;
}

/* Of gg_device_read and gg_device_write one side may be any host memory. */
static const void *copied_address(const gg_strict *device, const void *pointer) {
    const void *at = strict_address(device, pointer);
    return at != NULL ? at : pointer;
}

static void strict_copy(gg_device *head, gg_queue queue, void *to, const void *from, size_t bytes) {
    gg_strict *device = strict_of(head);
    gg_strict_work *work = gg_strict_work_new(device, queue);
    work->run = run_copy;
    work->as.arrays.n = bytes;
    work->as.arrays.in[0] = copied_address(device, from);
    work->as.arrays.out[0] = (void *)(uintptr_t)copied_address(device, to);
    if (device->capture != NULL && (strict_address(device, from) == NULL || strict_address(device, to) == NULL))
        device->invalid = true;
    gg_strict_give(device, queue, "copy");
}

static void strict_zero(gg_device *head, gg_queue queue, void *at, size_t bytes) {
    gg_strict *device = strict_of(head);
    gg_strict_work *work = gg_strict_work_new(device, queue);
    work->run = run_zero;
    work->as.arrays.n = bytes;
    work->as.arrays.out[0] = gg_strict_out(device, at);
    gg_strict_give(device, queue, "zero");
}

static gg_mark strict_mark(gg_device *head, gg_queue queue) {
    refuse_in_capture(strict_of(head), "a mark is made");
    return (gg_mark){.number = strict_of(head)->queue[queue].given, .queue = queue};
}

static bool strict_reached(gg_device *head, gg_mark mark) {
    gg_strict *device = strict_of(head);
    refuse_in_capture(device, "a mark is asked for");
    pthread_mutex_lock(&device->mutex);
    const bool reached = device->queue[mark.queue].done >= mark.number;
    pthread_mutex_unlock(&device->mutex);
    return reached;
}

static void strict_wait(gg_device *head, gg_mark mark) {
    gg_strict *device = strict_of(head);
    refuse_in_capture(device, "the host waits");
    pthread_mutex_lock(&device->mutex);
    wait_until(device, mark.queue, mark.number);
    pthread_mutex_unlock(&device->mutex);
}

static void strict_follow(gg_device *head, gg_queue queue, gg_mark mark) {
    gg_strict *device = strict_of(head);
    refuse_in_capture(device, "a queue waits for a mark");
    gg_strict_work *work = gg_strict_work_new(device, queue);
    work->run = NULL;
    work->behind = mark;
    gg_strict_give(device, queue, "follow");
}

static gg_status run_time(gg_strict *device, gg_strict_work *work) {
    (void)device;
    *(double *)work->as.arrays.out[0] = gg_clock_now();
    return GG_OK;
}

static int64_t strict_time(gg_device *head, gg_queue queue) {
    gg_strict *device = strict_of(head);
    const int64_t number = ++device->times;
    gg_strict_work *work = gg_strict_work_new(device, queue);
    work->run = run_time;
    work->as.arrays.out[0] = &device->time[number % GG_MAX_TIMES];
    gg_strict_give(device, queue, "time");
    device->time_mark[number % GG_MAX_TIMES] = strict_mark(head, queue);
    return number;
}

static double strict_read_time(gg_device *head, int64_t time) {
    gg_strict *device = strict_of(head);
    strict_wait(head, device->time_mark[time % GG_MAX_TIMES]);
    return device->time[time % GG_MAX_TIMES];
}

static gg_mark strict_report(gg_device *head) { return strict_mark(head, GG_QUEUE_COMPUTE); }

static gg_status strict_check(gg_device *head, gg_mark report) {
    char message[sizeof strict_of(head)->message];
    gg_strict *device = strict_of(head);
    pthread_mutex_lock(&device->mutex);
    const bool later =
        report.number != 0 && device->failed.queue == report.queue && device->failed.number > report.number;
    const gg_status failure = later ? GG_OK : device->failure;
    memcpy(message, device->message, sizeof message);
    pthread_mutex_unlock(&device->mutex);
    if (failure != GG_OK) return gg_fail(failure, "%s", message);
    return GG_OK;
}

static void *strict_library_address(gg_device *device, void *at) { return strict_address(strict_of(device), at); }

/* ---- capturing ---- */

static gg_status strict_capture_begin(gg_device *head) {
    gg_strict *device = strict_of(head);
    if (device->capture != NULL) return gg_fail(GG_ERROR_BACKEND, "strict device: work is captured already");
    return gg_calloc(1, sizeof *device->capture, "captured work", &device->capture);
}

static gg_status strict_capture_end(gg_device *head, gg_device_graph **out) {
    gg_strict *device = strict_of(head);
    *out = device->capture;
    device->capture = NULL;
    return GG_OK;
}

static void strict_replay(gg_device *head, gg_device_graph *graph) {
    gg_strict *device = strict_of(head);
    refuse_in_capture(device, "a graph is replayed");
    for (int i = 0; i < graph->works; ++i) {
        *gg_strict_work_new(device, GG_QUEUE_COMPUTE) = graph->work[i];
        gg_strict_give(device, GG_QUEUE_COMPUTE, "graph");
    }
}

static void strict_destroy_graph(gg_device *head, gg_device_graph *graph) {
    wait_for_everything(strict_of(head));
    gg_free(graph->work);
    gg_free(graph);
}

const gg_memory_table gg_strict_memory = {
    .alloc = strict_alloc,
    .free = strict_free,
    .alloc_host = strict_alloc_host,
    .free_host = strict_free_host,
    .share = strict_share,
    .unshare = strict_unshare,
    .copy = strict_copy,
    .zero = strict_zero,
    .mark = strict_mark,
    .reached = strict_reached,
    .wait = strict_wait,
    .follow = strict_follow,
    .time = strict_time,
    .read_time = strict_read_time,
    .report = strict_report,
    .check = strict_check,
    .address = strict_library_address,
    .capture_begin = strict_capture_begin,
    .capture_end = strict_capture_end,
    .replay = strict_replay,
    .destroy_graph = strict_destroy_graph,
};

/* ---- opening and closing ---- */

gg_status gg_strict_open(const gg_backend *table, const gg_device_options *options, gg_device **out) {
    gg_status status = GG_OK;
    gg_strict *device = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *device, "strict device", &device));
    (void)pthread_mutex_init(&device->mutex, NULL);
    (void)pthread_cond_init(&device->given, NULL);
    (void)pthread_cond_init(&device->done, NULL);
    device->head = (gg_device){.table = table, .isa = options->isa, .threads = options->threads};
    device->seed = (uint64_t)options->number;
    GG_TRY_CLEANUP(gg_calloc(GG_QUEUE_COUNT, sizeof *device->queue, "queues of the strict device", &device->queue));
    const gg_devices_options native = {.device = *options, .backend = "native", .dtype = GG_FLOAT32};
    GG_TRY_CLEANUP(gg_devices_open("cpu", &native, &device->cpu));
    device->native = device->cpu.device;
    if (pthread_create(&device->thread, NULL, strict_thread, device) != 0)
        GG_FAIL_CLEANUP(GG_ERROR_MEMORY, "no thread for the strict device");
    device->started = true;
    *out = &device->head;
    device = NULL;
cleanup:
    if (device != NULL) gg_strict_close(&device->head);
    return status;
}

void gg_strict_close(gg_device *head) {
    gg_strict *device = strict_of(head);
    if (device == NULL) return;
    pthread_mutex_lock(&device->mutex);
    device->closing = true;
    pthread_cond_broadcast(&device->given);
    pthread_mutex_unlock(&device->mutex);
    if (device->started) (void)pthread_join(device->thread, NULL);
    gg_devices_close(&device->cpu);
    for (int i = 0; i < device->blocks; ++i) unmap_block(&device->block[i]);
    (void)pthread_cond_destroy(&device->given);
    (void)pthread_cond_destroy(&device->done);
    (void)pthread_mutex_destroy(&device->mutex);
    gg_free(device->block);
    gg_free(device->shared);
    gg_free(device->queue);
    gg_free(device);
}
