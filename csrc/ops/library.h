/* Backends in libraries of their own, loaded when a device is opened.
 *
 * Such a library is built with the core, from its headers, but does not see the core's symbols (a Python module has
 * none). The core passes a table of services, over which the library defines these names. Its one export is
 * gg_backend_library_open. A library stays loaded until the process ends. There are two: that of the room cuda/, and
 * one that $GOSSIPGRAD_DEVICE_LIBRARY names, as tests do. */
#ifndef GG_OPS_LIBRARY_H
#define GG_OPS_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"
#include "ops/registry.h"

/* Raised with each change of a function or enumeration that core and library share. */
enum { GG_LIBRARY_INTERFACE = 2 };

/* The interface, and sizes of shared structs: they differ if core and library are of different builds.
 */
enum { GG_LIBRARY_SIZES = 10 };
#define GG_LIBRARY_SIZES_OF                                                                                            \
    {                                                                                                                  \
        GG_LIBRARY_INTERFACE, GG_ALGORITHM_COUNT, sizeof(gg_backend), sizeof(gg_memory_table),                         \
            sizeof(gg_device_options), sizeof(gg_op_desc), sizeof(gg_op_args), sizeof(gg_op), sizeof(gg_loss_args),    \
            sizeof(gg_update_args)                                                                                     \
    }

/* The core's side. Any thread may call these. */
typedef struct gg_library_services {
    size_t sizes[GG_LIBRARY_SIZES];
    gg_status (*fail)(gg_status status, const char *text);   /* gg_fail with a finished text */
    gg_status (*prefix)(gg_status status, const char *text); /* gg_error_prefix */
    const char *(*message)(void);                            /* gg_error_message */
    gg_status (*alloc)(size_t bytes, const char *what, void *out);
    gg_status (*calloc)(size_t count, size_t size, const char *what, void *out);
    void (*free)(void *block);
    void (*count)(int64_t bytes, int64_t allocations); /* gg_memory_count */
    int64_t (*live_bytes)(void);
    gg_status (*open_devices)(const char *name, const gg_devices_options *options, gg_devices *out);
    void (*close_devices)(gg_devices *devices);
    gg_float_mode (*enter)(void); /* gg_parallel_enter */
    void (*leave)(gg_float_mode former);
} gg_library_services;

/* The library's side. */
typedef struct gg_backend_library {
    size_t sizes[GG_LIBRARY_SIZES];
    const gg_backend *backend;
    /* Number of devices that can be opened. If *out is 0, the status says why. */
    gg_status (*devices)(int *out);
    /* Writes lines "name: value" on devices, driver and libraries, NUL-terminated and truncated to `room` bytes; works
     * without any device. CUDA's only. */
    void (*describe)(char *text, size_t room);
    /* As that of gg_device_kind; CUDA's library has none. */
    gg_status (*open)(const gg_devices_options *options, gg_devices *out);
} gg_backend_library;

/* The export. The services outlive the library. */
typedef const gg_backend_library *gg_backend_library_open_function(const gg_library_services *services);
#define GG_BACKEND_LIBRARY_OPEN "gg_backend_library_open"

/* The library of the room cuda/, and the variable that names a replacement. */
#define GG_CUDA_LIBRARY "_cuda.so"
#define GG_CUDA_LIBRARY_VARIABLE "GOSSIPGRAD_CUDA_LIBRARY"
/* The variable that names a library of another kind of devices: "/path/of/strict.so" is that of "strict". */
#define GG_DEVICE_LIBRARY_VARIABLE "GOSSIPGRAD_DEVICE_LIBRARY"

/* Loads the library `file` beside the core, or the library that the environment's `variable` names. A second load
 * returns the first result. GG_ERROR_UNSUPPORTED: missing, not loadable, or of another build. Any thread. */
gg_status gg_backend_library_load(const char *file, const char *variable, const gg_backend_library **out);

/* Adds the kind "cuda" to the registry, and that of $GOSSIPGRAD_DEVICE_LIBRARY, if it is set. Opening a device loads
 * its library. */
void gg_libraries_register(void);

#endif
