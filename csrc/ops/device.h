/* Devices: opening, memory, and completion of work.
 *
 * CPU tables compute in host memory and finish before the call returns. Their gg_memory_table is NULL, and these
 * functions are plain host operations. A device with memory of its own works later, in the order of its queues. Rules
 * for code that works with any device:
 *
 * - Arenas, activations and other arrays of kernels lie in memory of gg_device_alloc. The host never reads or writes
 *   that memory, but calls gg_device_copy, gg_device_zero, gg_device_read and gg_device_write.
 * - Messages, and arrays that the host exchanges with kernels, lie in shared host memory: of gg_device_alloc_host, or
 *   registered by gg_device_share. Kernels may read and write it. The host may write it after all work that uses it,
 *   and read it after the work that writes it; a mark tells.
 * - Messages that the host never touches lie in memory of gg_device_alloc_message: host memory, or device memory if
 *   the transport reads and writes it (comm/device_order.h).
 * - Entries of gg_backend that work on arrays give work to GG_QUEUE_COMPUTE and return; entries that return a value
 *   wait for it. Structs and arrays of pointers passed to them are read before the call returns.
 * - Freeing waits for earlier work.
 * - Work can be captured once and replayed by one call: gg_device_capture_begin.
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

/* Options of opening. A table ignores fields that it does not use. */
typedef struct gg_device_options {
    int threads; /* CPU: at least 1 */
    gg_isa isa;  /* CPU */
    int number;  /* index among devices of a kind, from 0 */
    bool fast;   /* GPU: products may use TF32 and algorithms that are not deterministic */
} gg_device_options;

/* Work of one queue is done in order. Work of different queues has no order but gg_device_follow's. */
typedef enum gg_queue { GG_QUEUE_COMPUTE = 0, GG_QUEUE_COPY, GG_QUEUE_COUNT } gg_queue;

/* All work given to a queue before the mark was made. Zero means no work, which is done. Marks are numbers: copy them
 * freely, never release them. */
typedef struct gg_mark {
    int64_t number;
    gg_queue queue;
} gg_mark;

/* Captured work. */
typedef struct gg_device_graph gg_device_graph;

/* Functions of a device with memory of its own. Every entry is filled unless its comment allows NULL. Allocations are
 * counted, and fail with messages, like base/memory.h's. */
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
    /* Both NULL means that the device has no times of its own. */
    int64_t (*time)(gg_device *device, gg_queue queue);
    double (*read_time)(gg_device *device, int64_t time);
    gg_mark (*report)(gg_device *device);
    gg_status (*check)(gg_device *device, gg_mark report);
    /* Address of device memory for a library that reads and writes it; NULL means the same address. */
    void *(*address)(gg_device *device, void *at);
    /* Capturing; NULL means not offered. */
    gg_status (*capture_begin)(gg_device *device);
    gg_status (*capture_end)(gg_device *device, gg_device_graph **out);
    void (*replay)(gg_device *device, gg_device_graph *graph);
    void (*destroy_graph)(gg_device *device, gg_device_graph *graph);
} gg_memory_table;

/* True if the device has memory of its own and works later. */
bool gg_device_is_separate(const gg_device *device);

/* Zeroed memory of the device, aligned to 64 bytes. bytes = 0 gives NULL; `what` names the block in the error
 * (GG_ERROR_MEMORY). */
gg_status gg_device_alloc(gg_device *device, size_t bytes, const char *what, void *out);
#define gg_device_alloc(device, bytes, what, out) gg_device_alloc(device, bytes, what, GG_POINTER_OUT(out))
void gg_device_free(gg_device *device, void *block); /* waits for all work; NULL is a no-op */
/* Zeroed host memory that the device shares, aligned to 64 bytes. */
gg_status gg_device_alloc_host(gg_device *device, size_t bytes, const char *what, void *out);
#define gg_device_alloc_host(device, bytes, what, out) gg_device_alloc_host(device, bytes, what, GG_POINTER_OUT(out))
/* Host memory for messages to land in. Without a separate device it is not cleared: messages may be read in their
 * sender's memory, and untouched pages use no physical memory. */
gg_status gg_device_alloc_landing(gg_device *device, size_t bytes, const char *what, void *out);
#define gg_device_alloc_landing(device, bytes, what, out)                                                              \
    gg_device_alloc_landing(device, bytes, what, GG_POINTER_OUT(out))
/* Zeroed memory, aligned to 64 bytes, for messages that only device work and a transport touch: shared host memory, or
 * device memory after gg_device_send_own. gg_device_free_host frees it. */
gg_status gg_device_alloc_message(gg_device *device, size_t bytes, const char *what, void *out);
#define gg_device_alloc_message(device, bytes, what, out)                                                              \
    gg_device_alloc_message(device, bytes, what, GG_POINTER_OUT(out))
void gg_device_free_host(gg_device *device, void *block); /* waits for all work; NULL is a no-op */
/* Declares that the transport reads and writes memory of this separate device. Later gg_device_alloc_message and
 * gg_device_alloc_landing return device memory. */
void gg_device_send_own(gg_device *device);
/* True if `at` lies in device memory of gg_device_alloc_message. Never waits. */
bool gg_device_owns_message(const gg_device *device, const void *at);
/* Address of device memory for a transport; `at` itself for host memory. */
void *gg_device_address(gg_device *device, void *at);
/* Shares a block of other host memory until gg_device_unshare, which waits for all work. Several devices may share one
 * block. */
gg_status gg_device_share(gg_device *device, void *block, size_t bytes);
void gg_device_unshare(gg_device *device, void *block);
/* True if device work may read or write `at`: shared host memory of a separate device, or memory of
 * gg_device_alloc_message. Never waits. */
bool gg_device_shares(const gg_device *device, const void *at);

/* Copies between device memory and shared host memory, in any direction. Blocks do not overlap. */
void gg_device_copy(gg_device *device, gg_queue queue, void *to, const void *from, size_t bytes);
void gg_device_zero(gg_device *device, gg_queue queue, void *at, size_t bytes);
/* Copy to and from any host memory, after all earlier work of GG_QUEUE_COMPUTE. On return the host may use its side
 * again. */
gg_status gg_device_read(gg_device *device, void *host, const void *from, size_t bytes);
gg_status gg_device_write(gg_device *device, void *to, const void *host, size_t bytes);

gg_mark gg_device_mark(gg_device *device, gg_queue queue);
bool gg_device_reached(gg_device *device, gg_mark mark); /* never waits */
void gg_device_wait(gg_device *device, gg_mark mark);
/* Later work of `queue` starts when the mark of another queue is reached. The host does not wait. */
void gg_device_follow(gg_device *device, gg_queue queue, gg_mark mark);
/* For traces: asks when `queue` gets here; 0 means no such times. gg_device_read_time waits and returns seconds of
 * gg_clock_now. Each of the last GG_MAX_TIMES can be read once. */
#define GG_MAX_TIMES 64
int64_t gg_device_time(gg_device *device, gg_queue queue);
double gg_device_read_time(gg_device *device, int64_t time);
/* Waits for all work of the device. */
void gg_device_finish(gg_device *device);
/* The first known failure of late work, after which results are invalid; GG_OK means none so far. Invalid numbers that
 * kernels find are known by a report only. */
gg_status gg_device_check(gg_device *device);
/* gg_device_report returns a mark of GG_QUEUE_COMPUTE. Once it is reached, gg_device_check_report returns the first
 * failure of the work before it. A failure of unknown place may belong to later work. Each of the last GG_MAX_REPORTS
 * reports can be read. */
#define GG_MAX_REPORTS 16
gg_mark gg_device_report(gg_device *device);
gg_status gg_device_check_report(gg_device *device, gg_mark report);

/* Work given to GG_QUEUE_COMPUTE between capture_begin and capture_end is not done but becomes a graph. A replay gives
 * all of it to the device in one call, with equal arguments. Allowed meanwhile: operations; entries of gg_backend that
 * return no value; gg_device_copy and gg_device_zero on device or shared host memory. No memory is allocated or freed,
 * no mark is made or tested. After a failure or a forbidden call capture_end returns an error, and the device is
 * unchanged. A graph is invalid once its memory has been freed: gg_device_freed. */
bool gg_device_captures(const gg_device *device); /* the device offers capturing */
gg_status gg_device_capture_begin(gg_device *device);
gg_status gg_device_capture_end(gg_device *device, gg_device_graph **out); /* *out is NULL after a failure */
void gg_device_replay(gg_device *device, gg_device_graph *graph);
void gg_device_destroy_graph(gg_device *device, gg_device_graph *graph); /* waits for all work; NULL is a no-op */
/* Counts blocks freed or unshared: when it changes, addresses may mean other memory. */
int64_t gg_device_freed(const gg_device *device);

#endif
