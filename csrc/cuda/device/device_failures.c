/* Failures since the device was opened, including those reported by kernels. */
#include <stdio.h>
#include <string.h>

#include "cuda/device/device_private.h"

void gg_cuda_enter(gg_cuda_device *device) {
    if (device->several) gg_cuda_note(device, device->api->cudaSetDevice(device->number), "cudaSetDevice");
}

void gg_cuda_note(gg_cuda_device *device, int error, const char *call) {
    if (error == GG_CUDA_SUCCESS || device->failed != GG_OK) return;
    device->failed = error == GG_CUDA_ERROR_MEMORY_ALLOCATION ? GG_ERROR_MEMORY : GG_ERROR_BACKEND;
    snprintf(device->failure, sizeof device->failure,
             "work on the GPU %d failed, and what was computed since is worthless: %s: %s (%s)", device->number, call,
             device->api->cudaGetErrorString(error), device->api->cudaGetErrorName(error));
}

void gg_cuda_refuse(gg_cuda_device *device, const char *why) {
    if (device->failed != GG_OK) return;
    device->failed = GG_ERROR_UNSUPPORTED;
    snprintf(device->failure, sizeof device->failure, "the GPU %d: %s", device->number, why);
}

void gg_cuda_launched(gg_cuda_device *device, const char *kernel) {
    const int error = device->api->cudaGetLastError();
    if (error != GG_CUDA_SUCCESS) gg_cuda_note(device, error, kernel);
}

/* Resets all bad numbers to none. */
void gg_cuda_forget_bad_numbers(gg_cuda_device *device) {
    memset(device->results->bad, 0xff, sizeof device->results->bad);
    gg_cuda_note(
        device,
        device->api->cudaMemsetAsync(device->bad, 0xff, GG_CUDA_BAD_COUNT * sizeof(uint32_t), gg_cuda_compute(device)),
        "cudaMemsetAsync");
}

uint32_t *gg_cuda_bad(gg_cuda_device *device, gg_cuda_bad_kind kind) { return device->bad + kind; }

void gg_cuda_explain_bad(gg_cuda_device *device, gg_cuda_bad_kind kind, int64_t positions, int64_t allowed) {
    device->bad_positions[kind] = positions;
    device->bad_numbers[kind] = allowed;
}

/* Copies to the host the findings of kernels up to here. */
gg_mark gg_cuda_memory_report(gg_device *head) {
    gg_cuda_device *device = gg_cuda_of(head);
    const int64_t at = device->reports++ % GG_MAX_REPORTS;
    gg_cuda_enter(device);
    gg_cuda_note(device,
                 device->api->cudaMemcpyAsync(device->results->bad[at], device->bad, sizeof device->results->bad[at],
                                              GG_CUDA_MEMCPY_DEFAULT, gg_cuda_compute(device)),
                 "cudaMemcpyAsync");
    const gg_mark mark = gg_cuda_memory_mark(head, GG_QUEUE_COMPUTE);
    device->report[at] = mark.number;
    return mark;
}

/* A reported finding is cleared: the next batch may be right. */
static gg_status check_numbers(gg_cuda_device *device, gg_mark report) {
    uint32_t bad[GG_CUDA_BAD_COUNT] = {UINT32_MAX, UINT32_MAX};
    for (int i = 0; i < GG_MAX_REPORTS; ++i)
        if (device->report[i] == report.number) memcpy(bad, device->results->bad[i], sizeof bad);
    const uint32_t token = bad[GG_CUDA_BAD_TOKEN], sample = bad[GG_CUDA_BAD_LENGTH];
    if (token == UINT32_MAX && sample == UINT32_MAX) return GG_OK;
    gg_cuda_note(device, device->api->cudaStreamSynchronize(gg_cuda_compute(device)), "cudaStreamSynchronize");
    gg_cuda_forget_bad_numbers(device);
    if (token != UINT32_MAX)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "the token at position %lld of sample %lld of the batch is no row of the table; "
                       "allowed: 0 to %lld",
                       (long long)token % device->bad_positions[GG_CUDA_BAD_TOKEN],
                       (long long)token / device->bad_positions[GG_CUDA_BAD_TOKEN],
                       (long long)device->bad_numbers[GG_CUDA_BAD_TOKEN] - 1);
    return gg_fail(GG_ERROR_ARGUMENT, "the length of sample %lld of the batch is not allowed; allowed: 1 to %lld",
                   (long long)sample, (long long)device->bad_numbers[GG_CUDA_BAD_LENGTH]);
}

gg_status gg_cuda_memory_check(gg_device *head, gg_mark report) {
    gg_cuda_device *device = gg_cuda_of(head);
    if (device->failed != GG_OK) return gg_fail(device->failed, "%s", device->failure);
    if (report.number > 0) GG_TRY(check_numbers(device, report));
    return GG_OK;
}
