#include "ops/device.h"

#include <string.h>

#include "ops/backend.h"

static const gg_memory_table *memory_of(const gg_device *device) { return device->table->memory; }

bool gg_device_is_separate(const gg_device *device) { return memory_of(device) != NULL; }

gg_status(gg_device_alloc)(gg_device *device, size_t bytes, const char *what, void *out) {
    void *block = NULL;
    gg_status status = GG_OK;
    if (memory_of(device) == NULL) GG_TRY_CLEANUP(gg_calloc(1, bytes, what, &block));
    else if (bytes > 0) GG_TRY_CLEANUP(memory_of(device)->alloc(device, bytes, what, &block));
cleanup:
    memcpy(out, &block, sizeof block);
    return status;
}

void gg_device_free(gg_device *device, void *block) {
    if (block == NULL) return;
    if (memory_of(device) == NULL) gg_free(block);
    else memory_of(device)->free(device, block);
    device->freed++;
}

/* ---- host memory that the device shares ---- */

static gg_status make_room_for_shared(gg_device *device) {
    struct gg_shared_block *more = NULL;
    const int room = device->shared_room > 0 ? 2 * device->shared_room : 64;
    if (device->shared_blocks < device->shared_room) return GG_OK;
    GG_TRY(gg_alloc((size_t)room * sizeof *more, "list of shared memory", &more));
    if (device->shared_blocks > 0) memcpy(more, device->shared, (size_t)device->shared_blocks * sizeof *more);
    gg_free(device->shared);
    device->shared = more;
    device->shared_room = room;
    return GG_OK;
}

/* There is room. */
static void note_shared(gg_device *device, const void *block, size_t bytes, bool own) {
    device->shared[device->shared_blocks++] = (struct gg_shared_block){block, bytes, own};
}

static const struct gg_shared_block *find_shared(const gg_device *device, const void *at) {
    for (int i = 0; i < device->shared_blocks; ++i) {
        const struct gg_shared_block *block = &device->shared[i];
        if ((uintptr_t)at - (uintptr_t)block->begin < block->bytes) return block;
    }
    return NULL;
}

/* NULL: no block. Without one the list is freed. */
static void forget_shared(gg_device *device, const void *block) {
    if (device->shared == NULL) return;
    for (int i = 0; i < device->shared_blocks; ++i) {
        if (device->shared[i].begin != block) continue;
        device->shared[i] = device->shared[--device->shared_blocks];
        break;
    }
    if (device->shared_blocks > 0) return;
    gg_free(device->shared);
    device->shared = NULL;
    device->shared_room = 0;
}

bool gg_device_shares(const gg_device *device, const void *at) { return find_shared(device, at) != NULL; }

void gg_device_send_own(gg_device *device) { device->own_messages = true; }

bool gg_device_owns_message(const gg_device *device, const void *at) {
    const struct gg_shared_block *block = device->own_messages ? find_shared(device, at) : NULL;
    return block != NULL && block->own;
}

void *gg_device_address(gg_device *device, void *at) {
    if (!gg_device_owns_message(device, at) || memory_of(device)->address == NULL) return at;
    return memory_of(device)->address(device, at);
}

gg_status(gg_device_alloc_host)(gg_device *device, size_t bytes, const char *what, void *out) {
    void *block = NULL;
    gg_status status = GG_OK;
    if (memory_of(device) == NULL) {
        GG_TRY_CLEANUP(gg_calloc(1, bytes, what, &block));
    } else if (bytes > 0) {
        GG_TRY_CLEANUP(make_room_for_shared(device));
        GG_TRY_CLEANUP(memory_of(device)->alloc_host(device, bytes, what, &block));
        note_shared(device, block, bytes, false);
    }
cleanup:
    if (status != GG_OK) forget_shared(device, NULL);
    memcpy(out, &block, sizeof block);
    return status;
}

gg_status(gg_device_alloc_message)(gg_device *device, size_t bytes, const char *what, void *out) {
    void *block = NULL;
    gg_status status = GG_OK;
    if (!device->own_messages) {
        GG_TRY_CLEANUP(gg_device_alloc_host(device, bytes, what, &block));
    } else if (bytes > 0) {
        GG_TRY_CLEANUP(make_room_for_shared(device));
        GG_TRY_CLEANUP(gg_device_alloc(device, bytes, what, &block));
        note_shared(device, block, bytes, true);
    }
cleanup:
    if (status != GG_OK) forget_shared(device, NULL);
    memcpy(out, &block, sizeof block);
    return status;
}

gg_status(gg_device_alloc_landing)(gg_device *device, size_t bytes, const char *what, void *out) {
    void *block = NULL;
    gg_status status = GG_OK;
    if (gg_device_is_separate(device)) GG_TRY_CLEANUP(gg_device_alloc_message(device, bytes, what, &block));
    else GG_TRY_CLEANUP(gg_alloc(bytes, what, &block));
cleanup:
    memcpy(out, &block, sizeof block);
    return status;
}

void gg_device_free_host(gg_device *device, void *block) {
    if (block == NULL) return;
    if (memory_of(device) == NULL) {
        gg_free(block);
    } else {
        if (gg_device_owns_message(device, block)) gg_device_free(device, block);
        else memory_of(device)->free_host(device, block);
        forget_shared(device, block);
    }
    device->freed++;
}

gg_status gg_device_share(gg_device *device, void *block, size_t bytes) {
    gg_status status = GG_OK;
    if (memory_of(device) == NULL || bytes == 0) goto cleanup;
    GG_TRY_CLEANUP(make_room_for_shared(device));
    GG_TRY_CLEANUP(memory_of(device)->share(device, block, bytes));
    note_shared(device, block, bytes, false);
cleanup:
    if (status != GG_OK) forget_shared(device, NULL);
    return status;
}

void gg_device_unshare(gg_device *device, void *block) {
    if (memory_of(device) == NULL || block == NULL) return;
    memory_of(device)->unshare(device, block);
    forget_shared(device, block);
    device->freed++;
}

void gg_device_copy(gg_device *device, gg_queue queue, void *to, const void *from, size_t bytes) {
    if (bytes == 0) return;
    if (memory_of(device) == NULL) memcpy(to, from, bytes);
    else memory_of(device)->copy(device, queue, to, from, bytes);
}

void gg_device_zero(gg_device *device, gg_queue queue, void *at, size_t bytes) {
    if (bytes == 0) return;
    if (memory_of(device) == NULL) memset(at, 0, bytes);
    else memory_of(device)->zero(device, queue, at, bytes);
}

static gg_status finish_and_report(gg_device *device) {
    const gg_mark report = gg_device_report(device);
    gg_device_finish(device);
    return gg_device_check_report(device, report);
}

gg_status gg_device_read(gg_device *device, void *host, const void *from, size_t bytes) {
    gg_device_copy(device, GG_QUEUE_COMPUTE, host, from, bytes);
    return finish_and_report(device);
}

gg_status gg_device_write(gg_device *device, void *to, const void *host, size_t bytes) {
    gg_device_copy(device, GG_QUEUE_COMPUTE, to, host, bytes);
    return finish_and_report(device);
}

gg_mark gg_device_mark(gg_device *device, gg_queue queue) {
    return memory_of(device) == NULL ? (gg_mark){0} : memory_of(device)->mark(device, queue);
}

bool gg_device_reached(gg_device *device, gg_mark mark) {
    return mark.number == 0 || memory_of(device)->reached(device, mark);
}

void gg_device_wait(gg_device *device, gg_mark mark) {
    if (mark.number != 0) memory_of(device)->wait(device, mark);
}

void gg_device_follow(gg_device *device, gg_queue queue, gg_mark mark) {
    if (mark.number != 0) memory_of(device)->follow(device, queue, mark);
}

int64_t gg_device_time(gg_device *device, gg_queue queue) {
    const gg_memory_table *memory = memory_of(device);
    return memory == NULL || memory->time == NULL ? 0 : memory->time(device, queue);
}

double gg_device_read_time(gg_device *device, int64_t time) { return memory_of(device)->read_time(device, time); }

void gg_device_finish(gg_device *device) {
    for (int queue = 0; queue < GG_QUEUE_COUNT; ++queue)
        gg_device_wait(device, gg_device_mark(device, (gg_queue)queue));
}

gg_status gg_device_check(gg_device *device) {
    return memory_of(device) == NULL ? GG_OK : memory_of(device)->check(device, (gg_mark){0});
}

gg_mark gg_device_report(gg_device *device) {
    return memory_of(device) == NULL ? (gg_mark){0} : memory_of(device)->report(device);
}

gg_status gg_device_check_report(gg_device *device, gg_mark report) {
    return memory_of(device) == NULL ? GG_OK : memory_of(device)->check(device, report);
}

/* ---- capturing ---- */

bool gg_device_captures(const gg_device *device) {
    return memory_of(device) != NULL && memory_of(device)->capture_begin != NULL;
}

gg_status gg_device_capture_begin(gg_device *device) { return memory_of(device)->capture_begin(device); }

gg_status gg_device_capture_end(gg_device *device, gg_device_graph **out) {
    *out = NULL;
    return memory_of(device)->capture_end(device, out);
}

void gg_device_replay(gg_device *device, gg_device_graph *graph) { memory_of(device)->replay(device, graph); }

void gg_device_destroy_graph(gg_device *device, gg_device_graph *graph) {
    if (graph != NULL) memory_of(device)->destroy_graph(device, graph);
}

int64_t gg_device_freed(const gg_device *device) { return device->freed; }
