/* The strict device as a library of its own, for the core of the package (ops/library.h): what it calls of the core
 * beside that which cuda/services.c has. */
#include "base/parallel.h"
#include "cuda/services.h"
#include "strict/strict.h"

static const gg_library_services *core;

gg_status gg_devices_open(const char *name, const gg_devices_options *options, gg_devices *out) {
    return core->open_devices(name, options, out);
}

void gg_devices_close(gg_devices *devices) { core->close_devices(devices); }

gg_float_mode gg_parallel_enter(void) { return core->enter(); }

void gg_parallel_leave(gg_float_mode former) { core->leave(former); }

__attribute__((visibility("default"))) gg_backend_library_open_function gg_backend_library_open;

const gg_backend_library *gg_backend_library_open(const gg_library_services *services) {
    static gg_backend_library library = {.sizes = GG_LIBRARY_SIZES_OF, .backend = &gg_backend_strict};
    library.devices = gg_strict_kind.count;
    library.open = gg_strict_kind.open;
    gg_cuda_services_use(core = services);
    return &library;
}
