/* A GPU that a rank has opened: its queues, marks and handles. */
#ifndef GG_CUDA_DEVICE_H
#define GG_CUDA_DEVICE_H

#include "backend/backend.h"
#include "cuda/cuda_api.h"

#define GG_CUDA_NAME "cuda" /* of the table, and of the backend in every operation */

/* Marks of a queue that may be outstanding: making one more waits for the oldest. */
#define GG_CUDA_MARKS 1024

typedef struct gg_cuda_queue {
    gg_cuda_stream stream;
    gg_cuda_event event[GG_CUDA_MARKS]; /* mark i has event i % GG_CUDA_MARKS */
    int64_t made, done;                 /* marks 1..made have been made, 1..done are known to be reached */
} gg_cuda_queue;

typedef struct gg_cuda_block gg_cuda_block;

typedef struct gg_cuda_device {
    gg_device head;
    const gg_cuda_api *api;
    int number;
    bool fast, several; /* several: this machine has more than one GPU */
    gg_cuda_queue queue[GG_QUEUE_COUNT];
    gg_cudnn_handle dnn; /* on the stream of GG_QUEUE_COMPUTE */
    gg_cublas_handle blas;
    gg_cuda_block *blocks; /* all allocations, for the counts */
    /* Host memory that the device shares: results of kernels that the host waits for. */
    double *number_result;
    uint32_t *flag_result;
    void *reduction;  /* scratch of the kernels that give such results */
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
/* After launches of own kernels: the same with what the launch left. */
void gg_cuda_launched(gg_cuda_device *device, const char *kernel);

/* For gg_backend_library. */
gg_status gg_cuda_device_count(int *out);
void gg_cuda_describe(char *text, size_t room);

#endif
