#include "backend/library.h"
#include "cuda/device.h"
#include "cuda/services.h"

const gg_backend gg_backend_cuda = {
    .name = GG_CUDA_NAME,
    .open = gg_cuda_device_open,
    .close = gg_cuda_device_close,
    .memory = &gg_cuda_memory,
};

/* The library's one symbol. */
__attribute__((visibility("default"))) gg_backend_library_open_function gg_backend_library_open;

const gg_backend_library *gg_backend_library_open(const gg_library_services *services) {
    static const gg_backend_library library = {
        .sizes = GG_LIBRARY_SIZES_OF,
        .backend = &gg_backend_cuda,
        .devices = gg_cuda_device_count,
        .describe = gg_cuda_describe,
    };
    gg_cuda_services_use(services);
    return &library;
}
