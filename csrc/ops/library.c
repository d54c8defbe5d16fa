#define _GNU_SOURCE
#include "ops/library.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/parallel.h"

static gg_status fail_with_text(gg_status status, const char *text) { return gg_fail(status, "%s", text); }

static gg_status prefix_with_text(gg_status status, const char *text) { return gg_error_prefix(status, "%s", text); }

static gg_status alloc_block(size_t bytes, const char *what, void *out) { return (gg_alloc)(bytes, what, out); }

static gg_status calloc_block(size_t count, size_t size, const char *what, void *out) {
    return (gg_calloc)(count, size, what, out);
}

static const gg_library_services services = {
    .sizes = GG_LIBRARY_SIZES_OF,
    .fail = fail_with_text,
    .prefix = prefix_with_text,
    .message = gg_error_message,
    .alloc = alloc_block,
    .calloc = calloc_block,
    .free = gg_free,
    .count = gg_memory_count,
    .live_bytes = gg_memory_live_bytes,
    .open_devices = gg_devices_open,
    .close_devices = gg_devices_close,
    .enter = gg_parallel_enter,
    .leave = gg_parallel_leave,
};

/* The path of `file` beside the library or program that holds this function. */
static gg_status path_beside_core(const char *file, char *path, size_t room) {
    Dl_info info;
    if (dladdr((const void *)&services, &info) == 0 || info.dli_fname == NULL)
        return gg_fail(GG_ERROR_UNSUPPORTED, "cannot find the folder of the core to load '%s' from", file);
    const char *slash = strrchr(info.dli_fname, '/');
    const size_t folder = slash == NULL ? 0 : (size_t)(slash - info.dli_fname) + 1;
    if (folder + strlen(file) + 1 > room)
        return gg_fail(GG_ERROR_UNSUPPORTED, "the path of '%s' is longer than %zu bytes", file, room - 1);
    memcpy(path, info.dli_fname, folder);
    memcpy(path + folder, file, strlen(file) + 1);
    return GG_OK;
}

static gg_status load_library(const char *path, const gg_backend_library **out) {
    gg_status status = GG_OK;
    union {
        void *object;
        gg_backend_library_open_function *function;
    } symbol = {NULL};
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) GG_FAIL_CLEANUP(GG_ERROR_UNSUPPORTED, "cannot load a backend's library: %s", dlerror());
    symbol.object = dlsym(handle, GG_BACKEND_LIBRARY_OPEN);
    if (symbol.object == NULL)
        GG_FAIL_CLEANUP(GG_ERROR_UNSUPPORTED,
                        "'%s' is no library of a backend: it has no function " GG_BACKEND_LIBRARY_OPEN, path);
    const gg_backend_library *library = symbol.function(&services);
    if (library == NULL || memcmp(library->sizes, services.sizes, sizeof services.sizes) != 0)
        GG_FAIL_CLEANUP(
            GG_ERROR_UNSUPPORTED,
            "'%s' was built from other sources than the core: build both again (pip install, or python setup.py "
            "build_ext -i)",
            path);
    *out = library;
    handle = NULL;
cleanup:
    if (handle != NULL) dlclose(handle);
    return status;
}

/* The library that was asked for last is kept. */
static gg_status load_once(const char *path, const gg_backend_library **out) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const gg_backend_library *loaded;
    static char loaded_path[PATH_MAX];
    gg_status status = GG_OK;
    *out = NULL;
    if (strlen(path) >= sizeof loaded_path)
        return gg_fail(GG_ERROR_ARGUMENT, "the path of a library is longer than %zu bytes", sizeof loaded_path - 1);
    pthread_mutex_lock(&lock);
    if (loaded == NULL || strcmp(loaded_path, path) != 0) {
        const gg_backend_library *library = NULL;
        status = load_library(path, &library);
        if (status == GG_OK) {
            loaded = library;
            memcpy(loaded_path, path, strlen(path) + 1);
        }
    }
    *out = status == GG_OK ? loaded : NULL;
    pthread_mutex_unlock(&lock);
    return status;
}

gg_status gg_backend_library_load(const char *file, const char *variable, const gg_backend_library **out) {
    char beside[PATH_MAX];
    const char *path = getenv(variable);
    *out = NULL;
    if (path == NULL || path[0] == '\0') {
        GG_TRY(path_beside_core(file, beside, sizeof beside));
        path = beside;
    }
    if (access(path, F_OK) != 0)
        return gg_fail(
            GG_ERROR_UNSUPPORTED,
            "'%s' is not there: CUDA was not built. It is built with nvcc 13 (the CUDA toolkit) and g++ in the "
            "source tree: GOSSIPGRAD_CUDA=on pip install -e .",
            path);
    return load_once(path, out);
}

/* NULL after a failure. */
static const gg_backend_library *cuda_library(gg_status *status) {
    const gg_backend_library *library = NULL;
    *status = gg_backend_library_load(GG_CUDA_LIBRARY, GG_CUDA_LIBRARY_VARIABLE, &library);
    return library;
}

static gg_status count_cuda(int *out) {
    gg_status status = GG_OK;
    const gg_backend_library *library = cuda_library(&status);
    *out = 0;
    return library != NULL ? library->devices(out) : status;
}

static gg_status open_cuda(const gg_devices_options *options, gg_devices *out) {
    gg_status status = GG_OK;
    const gg_backend_library *library;
    if (strcmp(options->backend, "auto") != 0 && strcmp(options->backend, "cuda") != 0)
        return gg_fail(GG_ERROR_ARGUMENT, "backend: '%s'; device 'cuda' has its own: None", options->backend);
    library = cuda_library(&status);
    if (library == NULL) return status;
    GG_TRY(library->backend->open(&options->device, &out->device));
    out->first = out->device;
    return status;
}

/* $GOSSIPGRAD_DEVICE_LIBRARY when kinds were registered. */
static char named_path[PATH_MAX];

static gg_status count_named(int *out) {
    const gg_backend_library *library = NULL;
    const gg_status status = load_once(named_path, &library);
    *out = 0;
    return library != NULL ? library->devices(out) : status;
}

static gg_status open_named(const gg_devices_options *options, gg_devices *out) {
    const gg_backend_library *library = NULL;
    const gg_status status = load_once(named_path, &library);
    if (library != NULL && library->open == NULL)
        return gg_fail(GG_ERROR_UNSUPPORTED, "'%s' is CUDA's library: " GG_CUDA_LIBRARY_VARIABLE " names it",
                       named_path);
    return library != NULL ? library->open(options, out) : status;
}

void gg_libraries_register(void) {
    static const gg_device_kind cuda = {.name = "cuda", .count = count_cuda, .open = open_cuda};
    static char name[32];
    static const gg_device_kind named = {.name = name, .count = count_named, .open = open_named};
    gg_registry_add(&cuda);
    const char *path = getenv(GG_DEVICE_LIBRARY_VARIABLE), *slash = path != NULL ? strrchr(path, '/') : NULL;
    if (slash == NULL || strlen(path) >= sizeof named_path) return;
    memcpy(named_path, path, strlen(path) + 1);
    snprintf(name, sizeof name, "%.*s", (int)strcspn(slash + 1, "."), slash + 1);
    gg_registry_add(&named);
}
