/* Devices: how one is opened, where its memory is, and when its work is done.
 *
 * The CPU's tables compute in the host's memory, and what they are told to do is done when the call returns. Their
 * gg_memory_table is NULL, and the functions here are then plain ones of the host. A device with memory of its own does
 * its work later, in the order of its queues. For code that works with any device these rules hold:
 *
 * - Arenas, activations and whatever else kernels read and write lie in memory of gg_device_alloc. The host never reads
 *   or writes it; it calls gg_device_copy, gg_device_zero, gg_device_read and gg_device_write.
 * - Messages, and what the host prepares for kernels or reads of them, lie in host memory that the device shares:
 *   of gg_device_alloc_host, or any for which gg_device_share has been called. Kernels may read and write it. The
 *   host may write it when no work that has been given to the device uses it any more, and read it when the work that
 *   writes it is done: both are asked by a mark.
 * - Messages that the host never touches lie in memory of gg_device_alloc_message: host memory as well, or the device's
 *   own, where what moves them reads and writes that (comm/device_order.h).
 * - All entries of gg_backend that work on arrays only give work to GG_QUEUE_COMPUTE, but those that return a value,
 *   which wait for it. Structs and arrays of pointers that are passed to them are read before the call returns.
 * - What is freed is no longer used by work that was given before: freeing waits.
 * - Work can be captured once and given again as a whole, at the cost of one call: gg_device_capture_begin.
 *
 * A device belongs to one rank and is called by one thread at a time. */
#ifndef GG_OPS_DEVICE_H
#define GG_OPS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "base/status.h"

/* A device's working context: threads and kernels chosen. Used by one rank. */
typedef struct gg_device gg_device;

/* What to open. Fields that a table has no use for are ignored. */
typedef struct gg_device_options {
    int threads; /* CPU: at least 1 */
    gg_isa isa;  /* CPU */
    int number;  /* which of several devices of a kind, from 0 on */
    bool fast;   /* GPU: products may use TF32 and algorithms that are not deterministic */
} gg_device_options;

/* Work of one queue is done in its order; that of different queues in any order, unless gg_device_follow says more. */
typedef enum gg_queue { GG_QUEUE_COMPUTE = 0, GG_QUEUE_COPY, GG_QUEUE_COUNT } gg_queue;

/* All work that a queue had been given when the mark was made. Zero-initialised: none, which is done. Marks are
 * numbers: they are copied freely, cost no memory and are never released. */
typedef struct gg_mark {
    int64_t number;
    gg_queue queue;
} gg_mark;

/* Work that has been captured. */
typedef struct gg_device_graph gg_device_graph;

/* Of a device with memory of its own; every entry is filled, unless it says what NULL is. Allocations are counted as
 * those of base/memory.h, whose messages they give. */
typedef struct gg_memory_table {
    gg_status (*alloc)(gg_device *device, size_t bytes, const char *what, void **out);
    void (*free)(gg_device *device, void *block);
    gg_status (*alloc_host)(gg_device *device, size_t bytes, const char *what, void **out);
    void (*free_host)(gg_device *device, void *block);
    gg_status (*share)(gg_device *device, void *block, size_t bytes);
    void (*unshare)(gg_device *device, void *block);
    void (*copy)(gg_device *device, gg_queue queue, void *to, const void *from, size_t bytes);
    void (*zero)(gg_device *device, gg_queue queue, void *at, size_t bytes);
    gg_mark (*mark)(gg_device *device, gg_queue queue);
    bool (*reached)(gg_device *device, gg_mark mark);
    void (*wait)(gg_device *device, gg_mark mark);
    void (*follow)(gg_device *device, gg_queue queue, gg_mark mark);
    /* Both NULL: the device has no times of its own. */
    int64_t (*time)(gg_device *device, gg_queue queue);
    double (*read_time)(gg_device *device, int64_t time);
    gg_mark (*report)(gg_device *device);
    gg_status (*check)(gg_device *device, gg_mark report);
    /* Where a library that reads and writes the device's memory by itself finds it; NULL: at its own address. */
    void *(*address)(gg_device *device, void *at);
    /* Capturing; NULL: not offered. */
    gg_status (*capture_begin)(gg_device *device);
    gg_status (*capture_end)(gg_device *device, gg_device_graph **out);
    void (*replay)(gg_device *device, gg_device_graph *graph);
    void (*destroy_graph)(gg_device *device, gg_device_graph *graph);
} gg_memory_table;

/* Whether the device has memory of its own and does its work later. */
bool gg_device_is_separate(const gg_device *device);

/* Zeroed memory of the device, aligned to 64 bytes. bytes = 0 gives NULL; `what` names the block in the error
 * (GG_ERROR_MEMORY). */
gg_status gg_device_alloc(gg_device *device, size_t bytes, const char *what, void *out);
#define gg_device_alloc(device, bytes, what, out) gg_device_alloc(device, bytes, what, GG_POINTER_OUT(out))
void gg_device_free(gg_device *device, void *block); /* waits for all work; NULL is fine */
/* Zeroed host memory that the device shares, aligned to 64 bytes. */
gg_status gg_device_alloc_host(gg_device *device, size_t bytes, const char *what, void *out);
#define gg_device_alloc_host(device, bytes, what, out) gg_device_alloc_host(device, bytes, what, GG_POINTER_OUT(out))
/* The same for messages to land in, not cleared where the device is not separate: there messages may be read where
 * their sender has them, and pages that are never touched use no physical memory. */
gg_status gg_device_alloc_landing(gg_device *device, size_t bytes, const char *what, void *out);
#define gg_device_alloc_landing(device, bytes, what, out)                                                              \
    gg_device_alloc_landing(device, bytes, what, GG_POINTER_OUT(out))
/* Zeroed memory, aligned to 64 bytes, for messages that only work of the device and a transport touch: host memory that
 * the device shares, or memory of the device after gg_device_send_own. gg_device_free_host frees it. */
gg_status gg_device_alloc_message(gg_device *device, size_t bytes, const char *what, void *out);
#define gg_device_alloc_message(device, bytes, what, out)                                                              \
    gg_device_alloc_message(device, bytes, what, GG_POINTER_OUT(out))
void gg_device_free_host(gg_device *device, void *block); /* waits for all work; NULL is fine */
/* What moves messages reads and writes memory of the device, which must be separate: from here on
 * gg_device_alloc_message and gg_device_alloc_landing give such. */
void gg_device_send_own(gg_device *device);
bool gg_device_sends_own(const gg_device *device);
/* Whether `at` lies in memory of the device of gg_device_alloc_message. Never waits. */
bool gg_device_owns_message(const gg_device *device, const void *at);
/* Where a transport finds memory of the device; host memory: `at`. */
void *gg_device_address(gg_device *device, void *at);
/* The device shares a block of other host memory, until gg_device_unshare, which waits for all work. Several devices
 * may share one block. */
gg_status gg_device_share(gg_device *device, void *block, size_t bytes);
void gg_device_unshare(gg_device *device, void *block);
/* Whether `at` lies in host memory that a separate device shares, or in memory of gg_device_alloc_message: its work may
 * read or write it. Never waits. */
bool gg_device_shares(const gg_device *device, const void *at);

/* Between memory of the device, and host memory that it shares, in any direction. Blocks do not overlap. */
void gg_device_copy(gg_device *device, gg_queue queue, void *to, const void *from, size_t bytes);
void gg_device_zero(gg_device *device, gg_queue queue, void *at, size_t bytes);
/* From and to any host memory, behind all work that GG_QUEUE_COMPUTE has been given: when it returns, the host may
 * read, or write again, its own side. */
gg_status gg_device_read(gg_device *device, void *host, const void *from, size_t bytes);
gg_status gg_device_write(gg_device *device, void *to, const void *host, size_t bytes);

gg_mark gg_device_mark(gg_device *device, gg_queue queue);
bool gg_device_reached(gg_device *device, gg_mark mark); /* never waits */
void gg_device_wait(gg_device *device, gg_mark mark);
/* What `queue` is given from here on begins when the mark, of another queue, is reached. The host does not wait. */
void gg_device_follow(gg_device *device, gg_queue queue, gg_mark mark);
/* For traces: asks when `queue` gets here; 0: the device has no such times. Of the last GG_MOST_TIMES each can be read,
 * once: it waits, and gives seconds of gg_clock_now. */
#define GG_MOST_TIMES 64
int64_t gg_device_time(gg_device *device, gg_queue queue);
double gg_device_read_time(gg_device *device, int64_t time);
/* Waits for everything that the device has been given. */
void gg_device_finish(gg_device *device);
/* The first failure of work that was done late, after which its results are worthless, as far as it is known; GG_OK:
 * none so far. What kernels find wrong in the numbers that they read is known by a report alone. */
gg_status gg_device_check(gg_device *device);
/* A mark of GG_QUEUE_COMPUTE behind which the device says how the work before it went; and, once it is reached, what it
 * says: the first failure of that work. A failure that a device cannot tell the place of may belong to later work. Of
 * so many reports each can be read. */
#define GG_MOST_REPORTS 16
gg_mark gg_device_report(gg_device *device);
gg_status gg_device_check_report(gg_device *device, gg_mark report);

/* What GG_QUEUE_COMPUTE is given between capture_begin and capture_end is not done, but becomes a graph; replaying it
 * gives the device all of that work, with the same arguments, in one call. Meanwhile only operations are run, only
 * entries of gg_backend called that return no value, and gg_device_copy and gg_device_zero on memory of the device or
 * host memory that it shares: no memory is allocated or freed, no mark is made or asked for. What is captured while
 * something of this fails, or is not allowed, gives an error in capture_end, and the device is as before. A graph is
 * worthless when memory that it uses has been freed: gg_device_freed. */
bool gg_device_captures(const gg_device *device); /* whether the device offers it */
gg_status gg_device_capture_begin(gg_device *device);
gg_status gg_device_capture_end(gg_device *device, gg_device_graph **out); /* *out is NULL after a failure */
void gg_device_replay(gg_device *device, gg_device_graph *graph);
void gg_device_destroy_graph(gg_device *device, gg_device_graph *graph); /* waits for all work; NULL is fine */
/* How many blocks have been freed or are shared no more: where this changes, addresses may mean other memory. */
int64_t gg_device_freed(const gg_device *device);

#endif
