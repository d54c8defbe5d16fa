/* The stand-in inside the library of GPUs that a test program loads as a process of the package does: its functions,
 * by name, and the library. For one source file a program. */
#ifndef LOADED_STANDIN_H
#define LOADED_STANDIN_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "ops/library.h"

static void (*standin_begin)(uint64_t seed);
static void (*standin_plant)(const char *function, int nth, int code, bool lost, bool late);
static long (*standin_count)(const char *what);
static int (*standin_violations)(char *text, size_t bytes);
static int (*standin_leaks)(char *text, size_t bytes);

static const gg_backend_library *library;

/* Stores the address of `name` in `function`, a pointer to a pointer to a function; ends the program without it. */
static void find(void *handle, const char *name, void *function) {
    void *found = dlsym(handle, name);
    if (!CHECK(found != NULL)) exit(1);
    memcpy(function, &found, sizeof found);
}

/* Fills what is above. Gives the handle, for functions that are one program's; NULL: there is no library. */
static void *load_standin(void) {
    void *handle = dlopen(getenv("GOSSIPGRAD_CUDA_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) fprintf(stderr, "%s\n", dlerror());
    if (!CHECK(handle != NULL)) return NULL;
    find(handle, "gg_standin_begin", &standin_begin);
    find(handle, "gg_standin_plant", &standin_plant);
    find(handle, "gg_standin_count", &standin_count);
    find(handle, "gg_standin_violations", &standin_violations);
    find(handle, "gg_standin_leaks", &standin_leaks);
    CHECK_OK(gg_backend_library_load("_cuda.so", "GOSSIPGRAD_CUDA_LIBRARY", &library));
    return library == NULL ? NULL : handle;
}

#endif
