/* A small device with separate memory, which works when the test calls late_do: this executes the next few pieces of
 * work, in their order. A wait executes the awaited work. Both queues are one. */
#ifndef GG_TESTS_LATE_DEVICE_H
#define GG_TESTS_LATE_DEVICE_H

#include <string.h>

#include "base/memory.h"
#include "ops/backend.h"

enum { LATE_MAX = 4096 };

typedef struct late_work {
    void *to;
    const void *from; /* NULL: zeros */
    size_t bytes;
} late_work;

typedef struct late_device {
    gg_device head;
    late_work work[LATE_MAX];
    int64_t given, done;
    int lag; /* > 0: a mark is separate work, and every `lag`-th look does a piece of it */
    int looks;
    int surge;       /* > 0: the so-manieth look from now on finds all work done */
    int shared;      /* blocks that the device shares */
    bool no_sharing; /* sharing fails */
    bool lost;       /* check fails */
} late_device;

static late_device *late_of(gg_device *device) { return (late_device *)device; }

static void late_give(late_device *d, const late_work *work) {
    if (d->given - d->done == LATE_MAX) abort();
    d->work[d->given++ % LATE_MAX] = *work;
}

static void late_do(late_device *d, int64_t pieces) {
    for (; pieces > 0 && d->done < d->given; --pieces) {
        const late_work *w = &d->work[d->done++ % LATE_MAX];
        if (w->bytes > 0 && w->from == NULL) memset(w->to, 0, w->bytes);
        else if (w->bytes > 0) memcpy(w->to, w->from, w->bytes);
    }
}

static void late_do_all(late_device *d) { late_do(d, d->given - d->done); }

static gg_status late_alloc(gg_device *device, size_t bytes, const char *what, void **out) {
    (void)device;
    return gg_calloc(1, bytes, what, out);
}

static void late_free(gg_device *device, void *block) {
    late_do_all(late_of(device));
    gg_free(block);
}

static gg_status late_share(gg_device *device, void *block, size_t bytes) {
    (void)block, (void)bytes;
    if (late_of(device)->no_sharing) return gg_fail(GG_ERROR_MEMORY, "the device shares no more memory");
    late_of(device)->shared++;
    return GG_OK;
}

static void late_unshare(gg_device *device, void *block) {
    (void)block;
    late_do_all(late_of(device));
    late_of(device)->shared--;
}

static void late_copy(gg_device *device, gg_queue queue, void *to, const void *from, size_t bytes) {
    (void)queue;
    late_give(late_of(device), &(late_work){to, from, bytes});
}

static void late_zero(gg_device *device, gg_queue queue, void *at, size_t bytes) {
    late_copy(device, queue, at, NULL, bytes);
}

static gg_mark late_mark(gg_device *device, gg_queue queue) {
    late_device *d = late_of(device);
    if (d->lag > 0) late_give(d, &(late_work){0});
    return (gg_mark){.number = d->given, .queue = queue};
}

static bool late_reached(gg_device *device, gg_mark mark) {
    late_device *d = late_of(device);
    if (d->lag > 0 && ++d->looks % d->lag == 0) late_do(d, 1);
    if (d->surge > 0 && --d->surge == 0) late_do_all(d);
    return mark.number <= d->done;
}

static void late_wait(gg_device *device, gg_mark mark) {
    late_do(late_of(device), mark.number - late_of(device)->done);
}

static void late_follow(gg_device *device, gg_queue queue, gg_mark mark) { (void)device, (void)queue, (void)mark; }

static gg_mark late_report(gg_device *device) { return late_mark(device, GG_QUEUE_COMPUTE); }

static gg_status late_check(gg_device *device, gg_mark report) {
    (void)report;
    return late_of(device)->lost ? gg_fail(GG_ERROR_BACKEND, "the device is lost") : GG_OK;
}

static const gg_memory_table late_memory = {.alloc = late_alloc,
                                            .free = late_free,
                                            .alloc_host = late_alloc,
                                            .free_host = late_free,
                                            .share = late_share,
                                            .unshare = late_unshare,
                                            .copy = late_copy,
                                            .zero = late_zero,
                                            .mark = late_mark,
                                            .reached = late_reached,
                                            .wait = late_wait,
                                            .follow = late_follow,
                                            .report = late_report,
                                            .check = late_check};

static const gg_backend late_backend = {.name = "late", .memory = &late_memory};

/* Of zeroed memory. */
static inline void late_open(late_device *d) { *d = (late_device){.head.table = &late_backend}; }

#endif
