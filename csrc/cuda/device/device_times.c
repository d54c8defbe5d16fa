/* Times at which queues reach a point, for traces: timed events, reused in turn. */
#include <math.h>
#include <time.h>

#include "cuda/device/device_private.h"

/* An older event makes a new base necessary: differences are float. */
#define LONG_MILLISECONDS 10000.0f
#define BASE_TRIES 8

static double seconds_now(void) {
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Makes all events, and the base, whose time is the host's when it is reached. */
static void make_times(gg_cuda_device *device) {
    const gg_cuda_api *api = device->api;
    gg_cuda_event *const last = &device->time[GG_MAX_TIMES];
    for (gg_cuda_event *event = device->time; event <= last; ++event)
        gg_cuda_note(device, api->cudaEventCreateWithFlags(event, 0), "cudaEventCreateWithFlags");
    gg_cuda_note(device, api->cudaStreamSynchronize(gg_cuda_compute(device)), "cudaStreamSynchronize");
    /* The host sometimes sees the event late: takes the most precise of a few measurements. */
    double shortest = INFINITY;
    for (int i = 0; i < BASE_TRIES; ++i) {
        gg_cuda_event event = device->time[i];
        const double before = seconds_now();
        gg_cuda_note(device, api->cudaEventRecord(event, gg_cuda_compute(device)), "cudaEventRecord");
        gg_cuda_note(device, api->cudaEventSynchronize(event), "cudaEventSynchronize");
        const double after = seconds_now();
        if (after - before >= shortest) continue;
        shortest = after - before;
        device->base_seconds = (before + after) / 2;
        device->time[i] = *last;
        *last = event;
    }
}

int64_t gg_cuda_memory_time(gg_device *head, gg_queue queue) {
    gg_cuda_device *device = gg_cuda_of(head);
    gg_cuda_enter(device);
    if (device->times == 0) make_times(device);
    const int64_t number = ++device->times;
    gg_cuda_note(device, device->api->cudaEventRecord(device->time[number % GG_MAX_TIMES], device->queue[queue].stream),
                 "cudaEventRecord");
    return number;
}

double gg_cuda_memory_read_time(gg_device *head, int64_t number) {
    gg_cuda_device *device = gg_cuda_of(head);
    gg_cuda_event *event = &device->time[number % GG_MAX_TIMES], *base = &device->time[GG_MAX_TIMES];
    float milliseconds = 0;
    gg_cuda_enter(device);
    gg_cuda_note(device, device->api->cudaEventSynchronize(*event), "cudaEventSynchronize");
    gg_cuda_note(device, device->api->cudaEventElapsedTime(&milliseconds, *base, *event), "cudaEventElapsedTime");
    const double seconds = device->base_seconds + 1e-3 * (double)milliseconds;
    if (milliseconds > LONG_MILLISECONDS) {
        const gg_cuda_event former = *base;
        *base = *event;
        *event = former;
        device->base_seconds = seconds;
    }
    return seconds;
}

void gg_cuda_forget_times(gg_cuda_device *device) {
    for (int i = 0; i <= GG_MAX_TIMES; ++i)
        if (device->time[i] != NULL) (void)device->api->cudaEventDestroy(device->time[i]);
}
