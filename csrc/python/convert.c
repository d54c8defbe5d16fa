/* Between Python's values and the core's: errors, names, shapes, arrays, arenas, shared memory. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "python/python.h"

const char *const gg_py_loss_names[GG_LOSS_COUNT] = {"cross_entropy", "binary_cross_entropy", "mean_squared_error"};
const char *const gg_py_layout_names[GG_LAYOUT_COUNT] = {"plain", "channels16", "channels8", "nhwc", "batch_last"};
const char *const gg_py_topology_names[GG_TOPOLOGY_TABLE] = {"dissemination", "cube", "ring", "exponential", "random"};

PyTypeObject *gg_py_add_type(PyObject *module, PyType_Spec *spec) {
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (type != NULL && PyModule_AddType(module, type) < 0) Py_CLEAR(type);
    return type;
}

PyObject *gg_py_append(PyObject *list, PyObject *value) {
    if (list == NULL || value == NULL || PyList_Append(list, value) < 0) Py_CLEAR(list);
    Py_XDECREF(value);
    return list;
}

PyObject *gg_py_put(PyObject *dict, const char *key, PyObject *value) {
    if (dict == NULL || value == NULL || PyDict_SetItemString(dict, key, value) < 0) Py_CLEAR(dict);
    Py_XDECREF(value);
    return dict;
}

PyObject *gg_py_integers(const int64_t *numbers, int count) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < count; ++i) list = gg_py_append(list, PyLong_FromLongLong(numbers[i]));
    return list;
}

PyObject *gg_py_ranks(const int *ranks, int count) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < count; ++i) list = gg_py_append(list, PyLong_FromLong(ranks[i]));
    return list;
}

PyObject *gg_py_view(int64_t number, int64_t step, const int *member, int members) {
    PyObject *dict = Py_BuildValue("{sLsL}", "view", (long long)number, "step", (long long)step);
    return gg_py_put(dict, "ranks", gg_py_ranks(member, members));
}

PyObject *gg_py_text(const char *text) { return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace"); }

PyObject *gg_py_raise(gg_status status) {
    PyObject *type = PyExc_RuntimeError;
    if (status == GG_ERROR_SOURCE && gg_py_raise_stored(gg_error_message())) return NULL;
    switch (status) {
    case GG_ERROR_ARGUMENT:
    case GG_ERROR_SHAPE: type = PyExc_ValueError; break;
    case GG_ERROR_TYPE: type = PyExc_TypeError; break;
    case GG_ERROR_MEMORY: type = PyExc_MemoryError; break;
    case GG_ERROR_UNSUPPORTED: type = PyExc_NotImplementedError; break;
    case GG_ERROR_COMM: type = gg_py_communication_error; break;
    case GG_ERROR_PEER: type = gg_py_peer_error; break;
    case GG_ERROR_CANCELLED: type = gg_py_cancelled; break;
    case GG_ERROR_NUMERIC: type = PyExc_FloatingPointError; break;
    default: break;
    }
    PyObject *text = gg_py_text(gg_error_message());
    if (text != NULL) PyErr_SetObject(type, text);
    Py_XDECREF(text);
    return NULL;
}

PyObject *gg_py_done(gg_status status) { return status == GG_OK ? Py_NewRef(Py_None) : gg_py_raise(status); }

void *gg_py_map(int descriptor, size_t bytes, bool sizes) {
    if (sizes && ftruncate(descriptor, (off_t)bytes) != 0) return PyErr_SetFromErrno(PyExc_OSError);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    return memory != MAP_FAILED ? memory : PyErr_SetFromErrno(PyExc_OSError);
}

int gg_py_step(PyObject *value, const char *name, int64_t *out) {
    if (value == NULL) {
        PyErr_Format(PyExc_AttributeError, "%s cannot be deleted", name);
        return -1;
    }
    const long long step = PyLong_AsLongLong(value);
    if (step == -1 && PyErr_Occurred()) return -1;
    if (step < 0) {
        PyErr_Format(PyExc_ValueError, "%s: %lld; must be at least 0", name, step);
        return -1;
    }
    *out = step;
    return 0;
}

int gg_py_choice(const char *argument, const char *value, const char *const *names, int n) {
    char allowed[512] = "";
    for (int i = 0; i < n; ++i) {
        if (strcmp(value, names[i]) == 0) return i;
        size_t used = strlen(allowed);
        PyOS_snprintf(allowed + used, sizeof allowed - used, "%s%s", i ? ", " : "", names[i]);
    }
    PyErr_Format(PyExc_ValueError, "%s: '%s'; allowed are %s", argument, value, allowed);
    return -1;
}

int gg_py_shape(PyObject *sequence, const char *argument, gg_shape *out) {
    PyObject *fast = PySequence_Fast(sequence, "a shape must be a sequence of sizes");
    int result = -1;
    if (fast == NULL) return -1;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(fast);
    if (n < 1 || n > GG_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "%s: has %zd sizes; 1 to %d are allowed", argument, n, GG_MAX_DIMS);
        goto cleanup;
    }
    out->dims = (int)n;
    for (Py_ssize_t i = 0; i < n; ++i) {
        out->size[i] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(fast, i));
        if (out->size[i] == -1 && PyErr_Occurred()) goto cleanup;
        if (out->size[i] < 1) {
            PyErr_Format(PyExc_ValueError, "%s: size %zd is %lld; must be at least 1", argument, i,
                         (long long)out->size[i]);
            goto cleanup;
        }
    }
    result = 0;
cleanup:
    Py_DECREF(fast);
    return result;
}

PyObject *gg_py_shape_tuple(const gg_shape *shape) {
    PyObject *tuple = PyTuple_New(shape->dims);
    for (int i = 0; tuple != NULL && i < shape->dims; ++i) {
        PyObject *size = PyLong_FromLongLong(shape->size[i]);
        if (size == NULL) Py_CLEAR(tuple);
        else PyTuple_SET_ITEM(tuple, i, size);
    }
    return tuple;
}

PyArrayObject *gg_py_array(PyObject *object, int type, const char *argument) {
    if (!PyArray_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s: must be a NumPy array, not %s", argument, Py_TYPE(object)->tp_name);
        return NULL;
    }
    if (PyArray_TYPE((PyArrayObject *)object) != type) {
        PyArray_Descr *wanted = PyArray_DescrFromType(type);
        PyErr_Format(PyExc_TypeError, "%s: has dtype %S; must be %S", argument, PyArray_DESCR((PyArrayObject *)object),
                     wanted);
        Py_XDECREF(wanted);
        return NULL;
    }
    return (PyArrayObject *)PyArray_FROM_OF(object, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_NOTSWAPPED);
}

PyArrayObject *gg_py_new_array(int dims, const npy_intp *sizes, int type) {
    return (PyArrayObject *)PyArray_SimpleNew(dims, sizes, type);
}

static int py_convert_number(PyObject *dict, const char *name, double *out) {
    PyObject *item = PyDict_GetItemString(dict, name);
    if (item == NULL) return 0;
    double value = PyFloat_AsDouble(item);
    if (value == -1.0 && PyErr_Occurred()) return -1;
    *out = value;
    return 0;
}

static int py_convert_whole(PyObject *dict, const char *name, int64_t *out) {
    PyObject *item = PyDict_GetItemString(dict, name);
    if (item == NULL) return 0;
    long long value = PyLong_AsLongLong(item);
    if (value == -1 && PyErr_Occurred()) return -1;
    *out = value;
    return 0;
}

static int py_convert_rate_table(PyObject *dict, gg_rate *out) {
    PyObject *values = PyDict_GetItemString(dict, "values");
    if (values == NULL || !PyArray_Check(values) || PyArray_TYPE((PyArrayObject *)values) != NPY_FLOAT64 ||
        PyArray_NDIM((PyArrayObject *)values) != 1 || !PyArray_ISCARRAY_RO((PyArrayObject *)values)) {
        PyErr_SetString(PyExc_TypeError, "values: must be a C-contiguous array of float64 with one axis");
        return -1;
    }
    out->table = PyArray_DATA((PyArrayObject *)values);
    out->count = PyArray_SIZE((PyArrayObject *)values);
    return 0;
}

int gg_py_rate(PyObject *dict, gg_rate *out) {
    static const char *const kinds[GG_SCHEDULE_COUNT] = {"constant", "step", "cosine", "polynomial", "table"};
    PyObject *kind = PyDict_GetItemString(dict, "kind");
    if (kind != NULL) {
        const char *text = PyUnicode_AsUTF8(kind);
        int choice = text ? gg_py_choice("schedule", text, kinds, GG_SCHEDULE_COUNT) : -1;
        if (choice < 0) return -1;
        out->kind = (gg_schedule_kind)choice;
    }
    if (py_convert_number(dict, "lr", &out->lr) < 0 || py_convert_number(dict, "final", &out->final) < 0 ||
        py_convert_number(dict, "gamma", &out->gamma) < 0 || py_convert_number(dict, "power", &out->power) < 0 ||
        py_convert_number(dict, "warmup_start", &out->warmup_start) < 0)
        return -1;
    if (py_convert_whole(dict, "every", &out->every) < 0 || py_convert_whole(dict, "total", &out->total) < 0 ||
        py_convert_whole(dict, "warmup", &out->warmup) < 0 || py_convert_whole(dict, "first", &out->first) < 0)
        return -1;
    return out->kind == GG_SCHEDULE_TABLE ? py_convert_rate_table(dict, out) : 0;
}

int gg_py_schedule(PyObject *schedule, gg_rate *out) {
    *out = (gg_rate){.lr = 0.01, .gamma = 0.1, .power = 1.0};
    if (!PyDict_Check(schedule)) {
        PyErr_SetString(PyExc_TypeError, "schedule: must be a dict");
        return -1;
    }
    if (gg_py_rate(schedule, out) < 0) return -1;
    const gg_status status = gg_rate_check(out);
    if (status != GG_OK) (void)gg_py_raise(status);
    return status == GG_OK ? 0 : -1;
}
