/* The extension module `core_operations`: single operations and kernels of a table on plain arrays, for tests.
 *
 * It is linked with the core's archive and the conversions of csrc/python (tests/cbuild.py) and is no part of the
 * package. Every buffer that the core writes or reads stands between guard bytes, and what an operation must write is
 * filled with NaN before. The functions that take Python objects hold the GIL. */
#ifndef OPERATIONS_OPERATIONS_H
#define OPERATIONS_OPERATIONS_H

#include "cpu/cpu_backend.h"
#include "python/python.h"

/* `bytes` bytes at `data` with guard bytes on both sides; all zero: none. A device with memory of its own has a copy of
 * all of it. */
typedef struct gg_test_guarded {
    unsigned char *block;
    void *data;
    size_t bytes;
    gg_device *device;
    unsigned char *there;
} gg_test_guarded;

gg_status gg_test_guarded_make(gg_test_guarded *g, size_t bytes);
/* Makes one with a copy of `data`; does nothing where `data` is NULL. */
gg_status gg_test_guarded_copy(gg_test_guarded *g, const void *data, size_t bytes);
/* Where the device has what is in `data` now: there, or in a copy that is made of it. `at` is a pointer. */
gg_status gg_test_guarded_send(gg_test_guarded *g, gg_device *device, void *at);
/* What the device has in its copy comes back, guards and all. */
gg_status gg_test_guarded_fetch(gg_test_guarded *g);
/* GG_ERROR_BACKEND naming the buffer if a guard byte has changed. */
gg_status gg_test_guarded_check(const gg_test_guarded *g, const char *what);
void gg_test_guarded_free(gg_test_guarded *g);

/* The table under test, and the native one for what it lacks. */
typedef struct gg_test_devices {
    gg_device *wanted, *native;
} gg_test_devices;

/* backend: "native", "onednn", "cuda", "cuda-fast". Close them after a failure, too. */
gg_status gg_test_devices_open(const char *backend, gg_isa isa, int threads, gg_test_devices *out);
void gg_test_devices_close(gg_test_devices *d);

/* GG_ERROR_UNSUPPORTED where the table lacks the operation. */
gg_status gg_test_op_create(gg_device *device, const gg_op_desc *desc, gg_op **out);

/* An error where a padding lane of activations is not finite, or one of gradients (zeros) is not zero. */
gg_status gg_test_padding_check(const gg_shape *shape, int64_t batch, gg_format format, const void *data, bool zeros,
                                const char *what);

extern const gg_format gg_test_plain;
/* Copies a batch from one format to another, one of them plain. */
gg_status gg_test_convert(gg_test_devices *d, const gg_shape *shape, int64_t batch, gg_format from, gg_format to,
                          const void *in, void *out);

/* The instruction set of this name; NULL: the best of this CPU. -1 with an exception. */
int gg_test_isa_of(const char *name, gg_isa *out);

PyObject *gg_test_run_op(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *gg_test_run_loss(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *gg_test_run_kernel(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *gg_test_pack(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *gg_test_pack_marked(PyObject *module, PyObject *args);
PyObject *gg_test_unpack(PyObject *module, PyObject *args);
PyObject *gg_test_choice(PyObject *module, PyObject *args);

#endif
