/* run_kernel: the kernels on arenas. */
#include <string.h>

#include "base/parallel.h"
#include "operations/operations.h"

#define MAX_ARRAYS 8
#define MAX_NUMBERS 13
#define OUTS 4

static PyObject *array_copy(const float *data, Py_ssize_t n) {
    PyArrayObject *array = gg_py_new_array(1, (npy_intp[]){n}, NPY_FLOAT32);
    if (array != NULL) memcpy(PyArray_DATA(array), data, (size_t)n * sizeof(float));
    return (PyObject *)array;
}

/* The numbers of a bfloat16 array as float32. */
static PyObject *widened_copy(const uint16_t *data, Py_ssize_t n) {
    PyArrayObject *array = gg_py_new_array(1, (npy_intp[]){n}, NPY_FLOAT32);
    for (Py_ssize_t i = 0; array != NULL && i < n; ++i) {
        const uint32_t bits = (uint32_t)data[i] << 16;
        memcpy((float *)PyArray_DATA(array) + i, &bits, sizeof bits);
    }
    return (PyObject *)array;
}

/* Likewise, of either type. */
static PyObject *wire_copy(gg_dtype wire, const void *data, Py_ssize_t n) {
    return wire == GG_BFLOAT16 ? widened_copy(data, n) : array_copy(data, n);
}

/* Rounds the float32 of a buffer to bfloat16, in place, as what came from a partner. */
static const void *as_wire(gg_device *device, gg_dtype wire, float *buffer, size_t n) {
    if (wire == GG_BFLOAT16 && buffer != NULL) device->table->narrow(device, n, buffer, (uint16_t *)buffer);
    return buffer;
}

/* arrays: gradient, weight, momentum, second moment, and what was received for those three. numbers: rule, bfloat16
 * wire?, the fields from grad_scale to eps, and
 * mean_share. Gives what the arrays and the copies are then. */
static PyObject *update_kernel(gg_device *device, Py_ssize_t n, float *const *in, const double *number,
                               float *const *outs) {
    const gg_dtype wire = number[1] != 0 ? GG_BFLOAT16 : GG_FLOAT32;
    const size_t size = (size_t)n;
    const gg_update_args args = {.n = size,
                                 .rule = (gg_update_rule)number[0],
                                 .wire = wire,
                                 .grad = in[0],
                                 .weight = in[1],
                                 .momentum = in[2],
                                 .square = in[3],
                                 .weight_after = as_wire(device, wire, in[4], size),
                                 .momentum_before = as_wire(device, wire, in[5], size),
                                 .square_before = as_wire(device, wire, in[6], size),
                                 .weight_copy = outs[0],
                                 .momentum_copy = in[2] ? outs[1] : NULL,
                                 .square_copy = in[3] ? outs[2] : NULL,
                                 .grad_scale = (float)number[2],
                                 .lr = (float)number[3],
                                 .mu = (float)number[4],
                                 .weight_decay = (float)number[5],
                                 .d_share = (float)number[6],
                                 .beta2 = (float)number[7],
                                 .square_share = (float)number[8],
                                 .weight_factor = (float)number[9],
                                 .root_scale = (float)number[10],
                                 .eps = (float)number[11],
                                 .mean_share = (float)number[12]};
    if (in[0] == NULL || in[1] == NULL || (GG_UPDATE_MOMENTS(args.rule) > 0 && in[2] == NULL) ||
        (GG_UPDATE_MOMENTS(args.rule) > 1 && in[3] == NULL))
        return PyErr_Format(PyExc_ValueError, "update: an array that the rule needs is None");
    device->table->update(device, 1, &args);
    return Py_BuildValue("NNNNNN", array_copy(in[1], n), in[2] ? array_copy(in[2], n) : Py_NewRef(Py_None),
                         in[3] ? array_copy(in[3], n) : Py_NewRef(Py_None), wire_copy(wire, outs[0], n),
                         in[2] ? wire_copy(wire, outs[1], n) : Py_NewRef(Py_None),
                         in[3] ? wire_copy(wire, outs[2], n) : Py_NewRef(Py_None));
}

/* Runs one kernel over buffers of n elements. mix: base, received, sent; the numbers are the share and whether bfloat16
 * travels. */
static PyObject *kernel(gg_device *device, const char *name, Py_ssize_t n, Py_ssize_t count, float *const *buffer,
                        const double *number, float *const *outs) {
    const gg_backend *table = device->table;
    const float *const *in = (const float *const *)buffer;
    float *out = outs[0];
    size_t size = (size_t)n;
    if (strcmp(name, "update") == 0) return update_kernel(device, n, buffer, number, outs);
    if (strcmp(name, "mix") == 0) {
        const gg_dtype wire = number[1] != 0 ? GG_BFLOAT16 : GG_FLOAT32;
        table->mix(device, size, wire, (float)number[0], in[0], as_wire(device, wire, buffer[1], size), in[2], out);
        return array_copy(out, n);
    }
    if (strcmp(name, "narrow") == 0) {
        uint16_t *narrow = (uint16_t *)outs[1];
        table->narrow(device, size, in[0], narrow);
        table->widen(device, size, narrow, out);
        return array_copy(out, n);
    }
    if (strcmp(name, "narrow_difference") == 0) {
        const uint16_t *narrow = as_wire(device, GG_BFLOAT16, buffer[1], size);
        table->narrow_difference(device, size, in[0], narrow, (uint16_t *)outs[1]);
        memcpy(out, in[0], size * sizeof(float));
        table->widen_add(device, size, (const uint16_t *)outs[1], out);
        return Py_BuildValue("NN", widened_copy((const uint16_t *)outs[1], n), array_copy(out, n));
    }
    if (strcmp(name, "weighted_sum") == 0 || strcmp(name, "narrow_sum") == 0) {
        float scale[MAX_ARRAYS];
        for (Py_ssize_t i = 0; i < count; ++i) scale[i] = (float)number[i];
        if (*name == 'w') return table->weighted_sum(device, size, (int)count, in, scale, out), array_copy(out, n);
        for (Py_ssize_t i = 0; i < count; ++i) as_wire(device, GG_BFLOAT16, buffer[i], size);
        uint16_t *rounded = (uint16_t *)outs[1];
        PyObject *sum = NULL;
        table->narrow_sum(device, size, (int)count, (const uint16_t *const *)in, scale, out, NULL);
        sum = array_copy(out, n);
        table->narrow_sum(device, size, (int)count, (const uint16_t *const *)in, scale, out, rounded);
        return Py_BuildValue("NNN", sum, array_copy(out, n), widened_copy(rounded, n));
    }
    if (strcmp(name, "sum_squares") == 0) return PyFloat_FromDouble(table->sum_squares(device, size, in[0], in[1]));
    if (strcmp(name, "all_finite") == 0) return PyBool_FromLong(table->all_finite(device, size, in[0]));
    return PyErr_Format(PyExc_ValueError,
                        "name: '%s'; allowed are update, mix, narrow, narrow_difference, weighted_sum, narrow_sum, "
                        "sum_squares, all_finite",
                        name);
}

PyObject *gg_test_run_kernel(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"isa", "name", "arrays", "numbers", NULL};
    const char *isa_name, *name;
    PyObject *arrays, *numbers, *result = NULL;
    double number[MAX_NUMBERS] = {0};
    gg_test_guarded buffer[MAX_ARRAYS + OUTS] = {0};
    float *data[MAX_ARRAYS] = {NULL}, *outs[OUTS] = {NULL};
    Py_ssize_t n = 0;
    gg_device *device = NULL;
    gg_isa isa;
    gg_status status = GG_OK;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "zsO!O!:run_kernel", names, &isa_name, &name, &PyList_Type, &arrays,
                                     &PyList_Type, &numbers))
        return NULL;
    if (gg_test_isa_of(isa_name, &isa) < 0) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(arrays);
    if (count > MAX_ARRAYS || PyList_GET_SIZE(numbers) > MAX_NUMBERS)
        return PyErr_Format(PyExc_ValueError, "arrays: at most %d; numbers: at most %d", MAX_ARRAYS, MAX_NUMBERS);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(numbers); ++i) number[i] = PyFloat_AsDouble(PyList_GET_ITEM(numbers, i));
    if (PyErr_Occurred()) return NULL;
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject *item = PyList_GET_ITEM(arrays, i);
        if (item == Py_None) continue;
        PyArrayObject *array = gg_py_array(item, NPY_FLOAT32, "arrays");
        if (array == NULL) goto cleanup;
        if (n == 0) n = PyArray_SIZE(array);
        if (PyArray_SIZE(array) != n || n % GG_LANES != 0)
            PyErr_Format(PyExc_ValueError, "arrays: sizes must be equal and multiples of %d", GG_LANES);
        else if ((status = gg_test_guarded_copy(&buffer[i], PyArray_DATA(array), (size_t)n * sizeof(float))) != GG_OK)
            gg_py_raise(status);
        Py_DECREF(array);
        if (PyErr_Occurred()) goto cleanup;
        data[i] = buffer[i].data;
    }
    status = gg_backend_native.open(&(gg_device_options){.threads = 1, .isa = isa}, &device);
    for (int i = 0; status == GG_OK && i < OUTS; ++i) {
        status = gg_test_guarded_make(&buffer[MAX_ARRAYS + i], (size_t)n * sizeof(float));
        outs[i] = buffer[MAX_ARRAYS + i].data;
    }
    if (status != GG_OK) {
        gg_py_raise(status);
        goto cleanup;
    }
    const gg_float_mode former = gg_parallel_enter();
    result = kernel(device, name, n, count, data, number, outs);
    gg_parallel_leave(former);
    for (int i = 0; result != NULL && i < MAX_ARRAYS + OUTS; ++i)
        if ((status = gg_test_guarded_check(&buffer[i], name)) != GG_OK) {
            Py_CLEAR(result);
            gg_py_raise(status);
        }
cleanup:
    if (device != NULL) device->table->close(device);
    for (int i = 0; i < MAX_ARRAYS + OUTS; ++i) gg_test_guarded_free(&buffer[i]);
    return result;
}
