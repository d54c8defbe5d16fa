/* Private to device*.c: entries of the memory table, and functions that these files share. */
#ifndef GG_CUDA_DEVICE_DEVICE_PRIVATE_H
#define GG_CUDA_DEVICE_DEVICE_PRIVATE_H

#include "cuda/device/device.h"

/* device_failures.c */
gg_mark gg_cuda_memory_report(gg_device *head);
gg_status gg_cuda_memory_check(gg_device *head, gg_mark report);
void gg_cuda_forget_bad_numbers(gg_cuda_device *device); /* resets all to none */

/* device_marks.c */
gg_mark gg_cuda_memory_mark(gg_device *head, gg_queue queue);
bool gg_cuda_memory_reached(gg_device *head, gg_mark mark);
void gg_cuda_memory_wait(gg_device *head, gg_mark mark);
void gg_cuda_memory_follow(gg_device *head, gg_queue queue, gg_mark mark);
void gg_cuda_wait_for_all_work(gg_cuda_device *device);

/* device_times.c */
int64_t gg_cuda_memory_time(gg_device *head, gg_queue queue);
double gg_cuda_memory_read_time(gg_device *head, int64_t number);
void gg_cuda_forget_times(gg_cuda_device *device);

/* device_memory.c */
gg_status gg_cuda_memory_alloc(gg_device *head, size_t bytes, const char *what, void **out);
void gg_cuda_memory_free(gg_device *head, void *at);
gg_status gg_cuda_memory_alloc_host(gg_device *head, size_t bytes, const char *what, void **out);
void gg_cuda_memory_free_host(gg_device *head, void *at);
void gg_cuda_memory_zero(gg_device *head, gg_queue queue, void *at, size_t bytes);

/* device_shared.c */
gg_status gg_cuda_memory_share(gg_device *head, void *at, size_t bytes);
void gg_cuda_memory_unshare(gg_device *head, void *at);
void gg_cuda_memory_copy(gg_device *head, gg_queue queue, void *to, const void *from, size_t bytes);

/* device_graph.c */
gg_status gg_cuda_memory_capture_begin(gg_device *head);
gg_status gg_cuda_memory_capture_end(gg_device *head, gg_device_graph **out);
void gg_cuda_memory_replay(gg_device *head, gg_device_graph *graph);
void gg_cuda_memory_destroy_graph(gg_device *head, gg_device_graph *graph);

/* device_describe.c. Fails with a message if there is no driver, no device, or an outdated driver. */
gg_status gg_cuda_count_devices(const gg_cuda_api *api, int *out);

#endif
