#define _GNU_SOURCE
#include "cuda/cuda_api.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const gg_cuda_api *used;

static char dnn_path[PATH_MAX], blas_path[PATH_MAX];

const char *gg_cuda_api_dnn_path(void) { return dnn_path; }
const char *gg_cuda_api_blas_path(void) { return blas_path; }

gg_status gg_cuda_fail(const gg_cuda_api *api, int error, const char *call) {
    const gg_status status = error == GG_CUDA_ERROR_MEMORY_ALLOCATION ? GG_ERROR_MEMORY : GG_ERROR_BACKEND;
    return gg_fail(status, "CUDA: %s failed: %s (%s)", call, api->cudaGetErrorString(error),
                   api->cudaGetErrorName(error));
}

gg_status gg_cudnn_status(int error) {
    const bool broken = error >= GG_CUDNN_MIN_BROKEN && error <= GG_CUDNN_MAX_BROKEN;
    if (error == GG_CUDNN_SUCCESS) return GG_OK;
    if (error == GG_CUDNN_NO_HOST_MEMORY || error == GG_CUDNN_NO_DEVICE_MEMORY) return GG_ERROR_MEMORY;
    if (error < GG_CUDNN_MIN_REFUSAL || error > GG_CUDNN_MAX_REFUSAL || broken) return GG_ERROR_BACKEND;
    return GG_ERROR_UNSUPPORTED;
}

gg_status gg_cudnn_fail(const gg_cuda_api *api, int error, const char *call) {
    return gg_fail(gg_cudnn_status(error), "cuDNN: %s failed: %s", call, api->cudnnGetErrorString(error));
}

gg_status gg_cublas_fail(const gg_cuda_api *api, int error, const char *call) {
    const gg_status status = error == GG_CUBLAS_NOT_SUPPORTED ? GG_ERROR_UNSUPPORTED
                             : error == GG_CUBLAS_NO_MEMORY   ? GG_ERROR_MEMORY
                                                              : GG_ERROR_BACKEND;
    return gg_fail(status, "cuBLASLt: %s failed: %s", call, api->cublasLtGetStatusString(error));
}

void gg_cuda_api_use(const gg_cuda_api *api) { used = api; }

#ifdef GG_CUDA_STANDIN

gg_status gg_cuda_api_get(int libraries, const gg_cuda_api **out) {
    (void)libraries;
    *out = used;
    return used != NULL ? GG_OK : gg_fail(GG_ERROR_UNSUPPORTED, "no functions of CUDA have been given");
}

#else

typedef struct searched_library {
    const char *file, *title, *wheel;
    char *path; /* out: PATH_MAX */
} searched_library;

static void *open_in_folder(const char *folder, size_t length, const char *below, const char *file) {
    char path[PATH_MAX];
    const int written = snprintf(path, sizeof path, "%.*s%s/%s", (int)length, folder, below, file);
    return length == 0 || written < 0 || (size_t)written >= sizeof path ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* Searches the folders of a list separated by colons. */
static void *open_in_folders(const char *folders, const char *below, const char *file) {
    void *handle = NULL;
    while (folders != NULL && handle == NULL) {
        const char *end = strchrnul(folders, ':');
        handle = open_in_folder(folders, (size_t)(end - folders), below, file);
        folders = *end == ':' ? end + 1 : NULL;
    }
    return handle;
}

static gg_status open_library(const searched_library *library, void **out) {
    /* A second copy of a library that the process has loaded already would mix with the first. */
    void *handle = dlopen(library->file, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (handle == NULL) handle = open_in_folders(getenv("GOSSIPGRAD_CUDA_PATH"), "", library->file);
    if (handle == NULL) handle = open_in_folders(getenv("CUDA_HOME"), "/lib64", library->file);
    if (handle == NULL) handle = dlopen(library->file, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) handle = open_in_folders("/usr/local/cuda", "/lib64", library->file);
    if (handle == NULL)
        return gg_fail(
            GG_ERROR_UNSUPPORTED,
            "%s (%s) cannot be loaded: install it with pip install 'gossipgrad[cuda]' or pip install %s, or name "
            "its folder in GOSSIPGRAD_CUDA_PATH (%s)",
            library->title, library->file, library->wheel, dlerror());
    *out = handle;
    return GG_OK;
}

static gg_status find_symbol(void *handle, const char *name, const searched_library *library, void *out) {
    void *symbol = dlsym(handle, name);
    memcpy(out, &symbol, sizeof symbol);
    return symbol != NULL ? GG_OK
                          : gg_fail(GG_ERROR_UNSUPPORTED, "%s (%s) has no function %s: pip install -U %s",
                                    library->title, library->path, name, library->wheel);
}

static void note_path(void *function, char *path) {
    Dl_info info;
    if (dladdr(function, &info) != 0 && info.dli_fname != NULL) snprintf(path, PATH_MAX, "%s", info.dli_fname);
}

static gg_status load_dnn(gg_cuda_api *api) {
    const searched_library library = {"libcudnn.so.9", "cuDNN 9", "nvidia-cudnn-cu13", dnn_path};
    void *handle = NULL, *function = NULL;
    GG_TRY(open_library(&library, &handle));
    GG_TRY(find_symbol(handle, "cudnnGetVersion", &library, &function));
    note_path(function, dnn_path);
#define FIND(result, name, arguments) GG_TRY(find_symbol(handle, #name, &library, &api->name));
    GG_CUDNN_FUNCTIONS(FIND)
    GG_CUDNN_RNN_FUNCTIONS(FIND)
    const size_t version = api->cudnnGetVersion();
    if (version < 90000 || version >= 100000)
        return gg_fail(GG_ERROR_UNSUPPORTED,
                       "cuDNN (%s) says that its version is %zu; 9.x is needed: pip install -U %s", dnn_path, version,
                       library.wheel);
    return GG_OK;
}

static gg_status load_blas(gg_cuda_api *api) {
    const searched_library library = {"libcublasLt.so.13", "cuBLASLt 13", "nvidia-cublas", blas_path};
    void *handle = NULL, *function = NULL;
    GG_TRY(open_library(&library, &handle));
    GG_TRY(find_symbol(handle, "cublasLtGetVersion", &library, &function));
    note_path(function, blas_path);
    GG_CUBLAS_FUNCTIONS(FIND)
#undef FIND
    const size_t version = api->cublasLtGetVersion();
    if (version < 130000 || version >= 140000)
        return gg_fail(
            GG_ERROR_UNSUPPORTED,
            "cuBLASLt (%s) says that its version is %zu; 13.x is needed: pip install -U 'nvidia-cublas>=13,<14'",
            blas_path, version);
    return GG_OK;
}

gg_status gg_cuda_api_get(int libraries, const gg_cuda_api **out) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static gg_cuda_api real;
    static int has_runtime, has_libraries;
    gg_status status = GG_OK;
    pthread_mutex_lock(&lock);
    *out = used;
    if (used != NULL) goto cleanup;
    if (!has_runtime) gg_cuda_runtime_fill(&real);
    has_runtime = 1;
    if (libraries && !has_libraries) {
        GG_TRY_CLEANUP(load_blas(&real)); /* cuDNN needs it */
        GG_TRY_CLEANUP(load_dnn(&real));
        has_libraries = 1;
    }
    *out = &real;
cleanup:
    pthread_mutex_unlock(&lock);
    return status;
}

#endif
