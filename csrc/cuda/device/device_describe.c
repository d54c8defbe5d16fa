/* The available devices, and their description. */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "cuda/device/device_private.h"

/* Min driver version that the runtime needs. */
enum { MIN_DRIVER = 13000 };

/* The first process that used the runtime, or 0. Its state does not survive a fork, and the runtime's errors do not
 * mention this. */
static atomic_long first_process;

static gg_status check_process(void) {
    const long own = (long)getpid();
    long first = 0;
    if (!atomic_compare_exchange_strong(&first_process, &first, own) && first != own)
        return gg_fail(GG_ERROR_UNSUPPORTED,
                       "this process was forked from one that has used CUDA, so it cannot use a GPU; start it anew (of "
                       "multiprocessing: the start method \"spawn\")");
    return GG_OK;
}

gg_status gg_cuda_count_devices(const gg_cuda_api *api, int *out) {
    int driver = 0, count = 0;
    *out = 0;
    if (api->cudaDriverGetVersion(&driver) != GG_CUDA_SUCCESS) driver = 0;
    if (driver == 0)
        return gg_fail(
            GG_ERROR_UNSUPPORTED,
            "there is no NVIDIA driver here (libcuda.so.1 was not found): a device \"cuda\" needs an NVIDIA GPU "
            "and its driver, version 580 or newer");
    if (driver < MIN_DRIVER)
        return gg_fail(
            GG_ERROR_UNSUPPORTED,
            "the NVIDIA driver is too old: it supports CUDA %d.%d, and %d.%d is needed; install driver 580 or newer",
            driver / 1000, driver % 1000 / 10, MIN_DRIVER / 1000, MIN_DRIVER % 1000 / 10);
    GG_TRY(check_process());
    const int error = api->cudaGetDeviceCount(&count);
    if (error != GG_CUDA_SUCCESS) (void)api->cudaGetLastError();
    if (error == GG_CUDA_ERROR_NO_DEVICE || (error == GG_CUDA_SUCCESS && count == 0))
        return gg_fail(GG_ERROR_UNSUPPORTED,
                       "the NVIDIA driver shows no GPU to this process (CUDA_VISIBLE_DEVICES may hide all of them)");
    if (error != GG_CUDA_SUCCESS) GG_TRY(gg_cuda_fail(api, error, "cudaGetDeviceCount"));
    *out = count;
    return GG_OK;
}

gg_status gg_cuda_device_count(int *out) {
    const gg_cuda_api *api = NULL;
    *out = 0;
    GG_TRY(gg_cuda_api_get(0, &api));
    return gg_cuda_count_devices(api, out);
}

static void add_line(char **at, size_t *room, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void add_line(char **at, size_t *room, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int written = vsnprintf(*at, *room, format, arguments);
    va_end(arguments);
    const size_t used = written < 0 ? 0 : (size_t)written < *room ? (size_t)written : *room - 1;
    *at += used;
    *room -= used;
}

static void describe_device(const gg_cuda_api *api, int number, int count, char **at, size_t *room) {
    int major = 0, minor = 0, processors = 0;
    size_t bytes = 0;
    char name[256] = "unknown";
    (void)api->device_facts(number, name, sizeof name, &bytes);
    (void)api->cudaDeviceGetAttribute(&major, GG_CUDA_ATTRIBUTE_MAJOR, number);
    (void)api->cudaDeviceGetAttribute(&minor, GG_CUDA_ATTRIBUTE_MINOR, number);
    (void)api->cudaDeviceGetAttribute(&processors, GG_CUDA_ATTRIBUTE_PROCESSORS, number);
    add_line(at, room, "cuda:%d: %s, %.1f GiB, compute capability %d.%d, %d multiprocessors", number, name,
             (double)bytes / (1 << 30), major, minor, processors);
    bool first = true;
    for (int peer = 0; peer < count; ++peer) {
        int can = 0;
        if (peer == number || api->cudaDeviceCanAccessPeer(&can, number, peer) != GG_CUDA_SUCCESS || !can) continue;
        add_line(at, room, first ? ", peer access to %d" : ", %d", peer);
        first = false;
    }
    add_line(at, room, "\n");
}

void gg_cuda_describe(char *text, size_t room) {
    const gg_cuda_api *api = NULL;
    int count = 0, version = 0;
    if (room == 0) return;
    text[0] = 0;
    if (gg_cuda_api_get(0, &api) != GG_OK) {
        add_line(&text, &room, "runtime: %s\n", gg_error_message());
        return;
    }
    if (api->cudaRuntimeGetVersion(&version) == GG_CUDA_SUCCESS)
        add_line(&text, &room, "runtime: CUDA %d.%d\n", version / 1000, version % 1000 / 10);
    if (api->cudaDriverGetVersion(&version) == GG_CUDA_SUCCESS && version > 0)
        add_line(&text, &room, "driver: supports CUDA %d.%d\n", version / 1000, version % 1000 / 10);
    else add_line(&text, &room, "driver: none\n");
    if (gg_cuda_api_get(1, &api) == GG_OK) {
        const int dnn = (int)api->cudnnGetVersion(), blas = (int)api->cublasLtGetVersion();
        add_line(&text, &room, "cudnn: %d.%d.%d\n", dnn / 10000, dnn % 10000 / 100, dnn % 100);
        add_line(&text, &room, "cublaslt: %d.%d.%d\n", blas / 10000, blas % 10000 / 100, blas % 100);
    } else add_line(&text, &room, "libraries: %s\n", gg_error_message());
    if (gg_cuda_device_count(&count) != GG_OK) add_line(&text, &room, "devices: none: %s\n", gg_error_message());
    for (int i = 0; i < count; ++i) describe_device(api, i, count, &text, &room);
}
