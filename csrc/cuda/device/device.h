/* A GPU that a rank has opened: its queues, marks and handles. */
#ifndef GG_CUDA_DEVICE_DEVICE_H
#define GG_CUDA_DEVICE_DEVICE_H

#include "cuda/cuda_api.h"
#include "ops/backend.h"

#define GG_CUDA_NAME "cuda" /* of the table, and of the backend in every operation */

/* Marks of a queue that may be outstanding: making one more waits for the oldest. */
#define GG_CUDA_MARKS 1024

typedef struct gg_cuda_queue {
    gg_cuda_stream stream;
    gg_cuda_event event[GG_CUDA_MARKS]; /* mark i has event i % GG_CUDA_MARKS */
    int64_t made, done;                 /* marks 1..made have been made, 1..done are known to be reached */
} gg_cuda_queue;

typedef struct gg_cuda_block gg_cuda_block;

/* What a kernel reports of the numbers that it was given, where the CPU checks them before. */
typedef enum gg_cuda_bad_kind { GG_CUDA_BAD_TOKEN = 0, GG_CUDA_BAD_LENGTH, GG_CUDA_BAD_COUNT } gg_cuda_bad_kind;

/* Host memory that the device shares. */
typedef struct gg_cuda_results {
    double sum;
    int32_t flag;
    uint32_t bad[GG_MOST_REPORTS][GG_CUDA_BAD_COUNT]; /* of each report */
} gg_cuda_results;

typedef struct gg_cuda_device {
    gg_device head;
    const gg_cuda_api *api;
    int number;
    bool fast, several; /* several: this machine has more than one GPU */
    gg_cuda_queue queue[GG_QUEUE_COUNT];
    gg_cuda_event time[GG_MOST_TIMES + 1]; /* timed; time i has event i % GG_MOST_TIMES; the last: the base of all */
    int64_t times;                         /* that have been asked for; the events are made with the first */
    double base_seconds;                   /* the base's, on the host's clock */
    gg_cudnn_handle dnn;                   /* on the stream of GG_QUEUE_COMPUTE */
    gg_cublas_handle blas;
    gg_cuda_block *blocks; /* all allocations, for the counts */
    gg_cuda_results *results;
    int64_t report[GG_MOST_REPORTS]; /* the numbers of their marks: report i is at i modulo so many, */
    int64_t reports;                 /* of so many that have been made */
    uint32_t *bad;                   /* of the device: the first bad number of each kind; UINT32_MAX: none */
    void *reduction;                 /* of the device: scratch of kernels that sum or choose */
    size_t reduced;                  /* its bytes */
    int64_t bad_positions[GG_CUDA_BAD_COUNT], bad_numbers[GG_CUDA_BAD_COUNT]; /* of the operation of each kind that
                                                                                reported last, for the message */
    gg_status failed; /* the first failure of work that was given or done late */
    char failure[512];
} gg_cuda_device;

extern const gg_memory_table gg_cuda_memory;
extern const gg_backend gg_backend_cuda;

gg_status gg_cuda_device_open(const gg_device_options *options, gg_device **out);
void gg_cuda_device_close(gg_device *device);

static inline gg_cuda_device *gg_cuda_of(gg_device *device) { return (gg_cuda_device *)device; }
static inline gg_cuda_stream gg_cuda_compute(const gg_cuda_device *device) {
    return device->queue[GG_QUEUE_COMPUTE].stream;
}

/* Before calls of the runtime: makes the device the calling thread's current one. */
void gg_cuda_enter(gg_cuda_device *device);
/* After calls that cannot report a failure: remembers the first one for gg_device_check. */
void gg_cuda_note(gg_cuda_device *device, int error, const char *call);
/* The same for work that the room itself cannot do. */
void gg_cuda_refuse(gg_cuda_device *device, const char *why);
/* After launches of own kernels: the same with what the launch left. */
void gg_cuda_launched(gg_cuda_device *device, const char *kernel);

/* Where a kernel says the place of the first bad number, which the next gg_device_report brings to the host; and what
 * the message wants. positions: numbers of a sample. */
uint32_t *gg_cuda_bad(gg_cuda_device *device, gg_cuda_bad_kind kind);
void gg_cuda_explain_bad(gg_cuda_device *device, gg_cuda_bad_kind kind, int64_t positions, int64_t allowed);
/* Scratch of at least so many bytes, for one kernel after another of GG_QUEUE_COMPUTE; NULL where the GPU has no memory
 * for it, which is remembered for gg_device_check. */
void *gg_cuda_reduction(gg_cuda_device *device, size_t bytes);

/* For gg_backend_library. */
gg_status gg_cuda_device_count(int *out);
void gg_cuda_describe(char *text, size_t room);

#endif
