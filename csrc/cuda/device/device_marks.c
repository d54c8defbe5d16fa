/* Marks of queues: events, reused in turn. */
#include "cuda/device/device_private.h"

gg_mark gg_cuda_memory_mark(gg_device *head, gg_queue queue) {
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

bool gg_cuda_memory_reached(gg_device *head, gg_mark mark) {
    gg_cuda_device *device = gg_cuda_of(head);
    gg_cuda_queue *q = &device->queue[mark.queue];
    if (mark.number <= q->done) return true;
    gg_cuda_enter(device);
    const int error = device->api->cudaEventQuery(q->event[mark.number % GG_CUDA_MARKS]);
    if (error == GG_CUDA_ERROR_NOT_READY) {
        (void)device->api->cudaGetLastError(); /* otherwise the next launch would seem to have failed */
        return false;
    }
    gg_cuda_note(device, error, "cudaEventQuery"); /* after a failure nothing is waited for */
    q->done = mark.number;
    return true;
}

void gg_cuda_memory_wait(gg_device *head, gg_mark mark) {
    gg_cuda_device *device = gg_cuda_of(head);
    gg_cuda_queue *q = &device->queue[mark.queue];
    if (mark.number <= q->done) return;
    gg_cuda_enter(device);
    gg_cuda_note(device, device->api->cudaEventSynchronize(q->event[mark.number % GG_CUDA_MARKS]),
                 "cudaEventSynchronize");
    q->done = mark.number;
}

void gg_cuda_memory_follow(gg_device *head, gg_queue queue, gg_mark mark) {
    gg_cuda_device *device = gg_cuda_of(head);
    gg_cuda_queue *q = &device->queue[mark.queue];
    if (mark.number <= q->done || mark.queue == queue) return;
    gg_cuda_enter(device);
    gg_cuda_note(
        device, device->api->cudaStreamWaitEvent(device->queue[queue].stream, q->event[mark.number % GG_CUDA_MARKS], 0),
        "cudaStreamWaitEvent");
}

void gg_cuda_wait_for_all_work(gg_cuda_device *device) {
    gg_cuda_enter(device);
    for (int i = 0; i < GG_QUEUE_COUNT; ++i) {
        gg_cuda_queue *q = &device->queue[i];
        if (q->stream == NULL) continue;
        gg_cuda_note(device, device->api->cudaStreamSynchronize(q->stream), "cudaStreamSynchronize");
        q->done = q->made;
    }
}
