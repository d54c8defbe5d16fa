/* Backends in libraries of their own, which are loaded when a device is asked for.
 *
 * Such a library is built with the core, from the same headers, but it does not see the core's symbols (a Python module
 * has none): what it needs of the core is given to it as a table of services, over which it defines the same names.
 * Its one export is gg_backend_library_open. A library stays loaded until the process ends. */
#ifndef GG_OPS_LIBRARY_H
#define GG_OPS_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

#include "ops/registry.h"

/* Raised where a function of the tables or an enumeration changes that core and library share. */
enum { GG_LIBRARY_INTERFACE = 1 };

/* The interface, and sizes of the structs that core and library share: they differ where the two are not of one build.
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
} gg_library_services;

/* The library's side. */
typedef struct gg_backend_library {
    size_t sizes[GG_LIBRARY_SIZES];
    const gg_backend *backend;
    /* How many devices can be opened; *out is 0 and the status says why where there are none. */
    gg_status (*devices)(int *out);
    /* Lines "name: value" on the devices, the driver and the libraries it uses, NUL-terminated and truncated to `room`
     * bytes; also where no device can be opened. */
    void (*describe)(char *text, size_t room);
} gg_backend_library;

/* The export. The services outlive the library. */
typedef const gg_backend_library *gg_backend_library_open_function(const gg_library_services *services);
#define GG_BACKEND_LIBRARY_OPEN "gg_backend_library_open"

/* The library of the room cuda/, and the variable that names another one in its place. */
#define GG_CUDA_LIBRARY "_cuda.so"
#define GG_CUDA_LIBRARY_VARIABLE "GOSSIPGRAD_CUDA_LIBRARY"

/* Loads the library `file`, which lies beside the core's own, or the one that the environment's `variable` names.
 * Loading it a second time gives the same. GG_ERROR_UNSUPPORTED: it is not there, cannot be loaded, or is of another
 * build. Any thread. */
gg_status gg_backend_library_load(const char *file, const char *variable, const gg_backend_library **out);

/* Adds the kind "cuda" to the registry; its library is loaded when a device of it is asked for. */
void gg_cuda_register(void);

#endif
