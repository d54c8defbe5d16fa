/* A GPU opened by a rank: its queues, marks and handles. */
#ifndef GG_CUDA_DEVICE_DEVICE_H
#define GG_CUDA_DEVICE_DEVICE_H

#include "cuda/cuda_api.h"
#include "ops/backend.h"

#define GG_CUDA_NAME "cuda" /* name of the table, and of the backend in every operation */

/* Max outstanding marks of a queue; making another waits for the oldest. */
#define GG_CUDA_MARKS 1024

typedef struct gg_cuda_queue {
    gg_cuda_stream stream;
    gg_cuda_event event[GG_CUDA_MARKS]; /* mark i has event i % GG_CUDA_MARKS */
    int64_t made, done;                 /* marks 1..made have been made, 1..done are known to be reached */
} gg_cuda_queue;

typedef struct gg_cuda_block gg_cuda_block;

/* Invalid numbers reported by kernels; the CPU checks them in advance. */
typedef enum gg_cuda_bad_kind { GG_CUDA_BAD_TOKEN = 0, GG_CUDA_BAD_LENGTH, GG_CUDA_BAD_COUNT } gg_cuda_bad_kind;

/* Results in host memory that the device shares. */
typedef struct gg_cuda_results {
    double sum;
    int32_t flag;
    uint32_t bad[GG_MAX_REPORTS][GG_CUDA_BAD_COUNT]; /* for each report */
} gg_cuda_results;

typedef struct gg_cuda_device {
    gg_device head;
    const gg_cuda_api *api;
    int number;
    bool fast, several; /* several: this machine has more than one GPU */
    gg_cuda_queue queue[GG_QUEUE_COUNT];
    gg_cuda_event time[GG_MAX_TIMES + 1]; /* timed; time i has event i % GG_MAX_TIMES; the last event is the base */
    int64_t times;                        /* requested so far; the first request makes the events */
    double base_seconds;                  /* the base's time on the host's clock */
    gg_cudnn_handle dnn;                  /* on the stream of GG_QUEUE_COMPUTE */
    gg_cublas_handle blas;
    gg_cuda_block *blocks; /* all allocations, for the counters */
    gg_cuda_results *results;
    int64_t report[GG_MAX_REPORTS]; /* numbers of their marks; report i is at index i % GG_MAX_REPORTS */
    int64_t reports;                /* number of reports made */
    uint32_t *bad;                  /* device memory: the first bad number of each kind; UINT32_MAX means none */
    void *reduction;                /* device memory: scratch of kernels that sum or choose */
    size_t reduced;                 /* bytes of reduction */
    int64_t bad_positions[GG_CUDA_BAD_COUNT],
        bad_numbers[GG_CUDA_BAD_COUNT]; /* for messages: from the last operation that registered each kind */
    gg_status failed;                   /* first failure of work that was submitted or done later */
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

/* Makes the device current in the calling thread. Must precede calls of the runtime. */
void gg_cuda_enter(gg_cuda_device *device);
/* Stores the first failure for gg_device_check, after calls that cannot report one. */
void gg_cuda_note(gg_cuda_device *device, int error, const char *call);
/* Stores a failure for work that this code itself does not support. */
void gg_cuda_refuse(gg_cuda_device *device, const char *why);
/* Stores the failure of a launch; called after launches of own kernels. */
void gg_cuda_launched(gg_cuda_device *device, const char *kernel);

/* gg_cuda_bad: where a kernel stores the place of the first bad number. The next gg_device_report copies it to the
 * host. gg_cuda_explain_bad: values for the message. positions: numbers of a sample. */
uint32_t *gg_cuda_bad(gg_cuda_device *device, gg_cuda_bad_kind kind);
void gg_cuda_explain_bad(gg_cuda_device *device, gg_cuda_bad_kind kind, int64_t positions, int64_t allowed);
/* Scratch of at least `bytes`, for one kernel of GG_QUEUE_COMPUTE after another. NULL means that the GPU has no memory
 * for it; gg_device_check then reports it. */
void *gg_cuda_reduction(gg_cuda_device *device, size_t bytes);

/* Entries of gg_backend_library. */
gg_status gg_cuda_device_count(int *out);
void gg_cuda_describe(char *text, size_t room);

#endif
