/* Sources of samples that are Python objects: object.read(rows, epoch, samples, targets). Called by the threads that
 * read ahead, which hold the GIL for that call alone. An exception is stored until the rank that needs the batch raises
 * the failure (gg_py_raise). */
#include <pthread.h>
#include <string.h>

#include "base/memory.h"
#include "python/python.h"

typedef struct py_source {
    gg_source head;
    PyObject *read;       /* the bound method */
    pthread_mutex_t turn; /* of the threads of virtual ranks, if ordered; never waited for with the GIL held */
    int inputs, fields;
    struct {
        int type, dims;
        npy_intp size[GG_MAX_DIMS];
    } field[GG_SET_FIELDS];
} py_source;

/* ---- reading ---- */

/* The memory of field f as an array; a new reference. */
static PyObject *array_of(const py_source *source, int f, int64_t n, void *memory) {
    npy_intp sizes[GG_MAX_DIMS + 1] = {(npy_intp)n};
    if (memory == NULL) Py_RETURN_NONE;
    memcpy(sizes + 1, source->field[f].size, sizeof source->field[f].size);
    return PyArray_SimpleNewFromData(source->field[f].dims + 1, sizes, source->field[f].type, memory);
}

/* One array, or None; of several fields a tuple of them. */
static PyObject *arrays_of(const py_source *source, int first, int fields, int64_t n, void *const *out) {
    if (fields == 0) Py_RETURN_NONE;
    if (fields == 1) return array_of(source, first, n, out[first]);
    PyObject *tuple = PyTuple_New(fields);
    for (int i = 0; tuple != NULL && i < fields; ++i) {
        PyObject *array = array_of(source, first + i, n, out[first + i]);
        if (array == NULL) Py_CLEAR(tuple);
        else PyTuple_SET_ITEM(tuple, i, array);
    }
    return tuple;
}

static gg_status py_source_read(gg_source *head, const uint32_t *rows, int64_t n, int64_t epoch, void *const *out) {
    py_source *source = (py_source *)head;
    PyObject *inputs = NULL, *targets = NULL, *result = NULL;
    gg_status status = GG_OK;
    if (head->ordered) pthread_mutex_lock(&source->turn);
    PyGILState_STATE gil = PyGILState_Ensure();
    npy_intp count = (npy_intp)n;
    PyArrayObject *numbers = gg_py_new_array(1, &count, NPY_INT64);
    if (numbers != NULL) {
        for (int64_t i = 0; i < n; ++i) ((int64_t *)PyArray_DATA(numbers))[i] = rows[i];
        inputs = arrays_of(source, 0, source->inputs, n, out);
        targets = arrays_of(source, source->inputs, source->fields - source->inputs, n, out);
    }
    if (inputs != NULL && targets != NULL)
        result = PyObject_CallFunction(source->read, "OLOO", numbers, (long long)epoch, inputs, targets);
    if (result != NULL && result != Py_None) {
        PyErr_Format(PyExc_TypeError,
                     "read of a source gave a %s; allowed: None, after samples and targets have been filled",
                     Py_TYPE(result)->tp_name);
        Py_CLEAR(result);
    }
    if (result == NULL) status = gg_py_store_exception();
    Py_XDECREF(numbers);
    Py_XDECREF(inputs);
    Py_XDECREF(targets);
    Py_XDECREF(result);
    PyGILState_Release(gil);
    if (head->ordered) pthread_mutex_unlock(&source->turn);
    return status;
}

static void py_source_destroy(gg_source *head) {
    PyGILState_STATE gil = PyGILState_Ensure();
    Py_CLEAR(((py_source *)head)->read);
    PyGILState_Release(gil);
    pthread_mutex_destroy(&((py_source *)head)->turn);
    gg_free(head);
}

static const gg_source_table table = {.read = py_source_read, .destroy = py_source_destroy};

/* ---- creation ---- */

/* An integer attribute of at least 1; `otherwise` if it is missing. -1 with an exception. */
static int attribute(PyObject *object, const char *name, int otherwise) {
    PyObject *value = PyObject_GetAttrString(object, name);
    if (value == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
        PyErr_Clear();
        return otherwise;
    }
    const long number = PyLong_AsLong(value);
    Py_DECREF(value);
    if (number == -1 && PyErr_Occurred()) return -1;
    if (number >= 1 && number <= 1024) return (int)number;
    PyErr_Format(PyExc_ValueError, "source: %s is %ld; allowed are 1 to 1024", name, number);
    return -1;
}

static int has_flag(PyObject *object, const char *name) {
    PyObject *value = PyObject_GetAttrString(object, name);
    if (value == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
        PyErr_Clear();
        return 0;
    }
    const int result = PyObject_IsTrue(value);
    Py_DECREF(value);
    return result;
}

static void describe_fields(py_source *source, const gg_dataset *set) {
    static const int types[GG_DTYPE_COUNT] = {
        [GG_FLOAT32] = NPY_FLOAT32, [GG_UINT8] = NPY_UINT8, [GG_INT32] = NPY_INT32};
    source->inputs = set->inputs;
    source->fields = gg_dataset_fields(set);
    for (int f = 0; f < source->fields; ++f) {
        const gg_shape *shape = &set->field[f].shape;
        source->field[f].type = types[set->field[f].dtype];
        source->field[f].dims = shape->dims;
        for (int d = 0; d < shape->dims; ++d) source->field[f].size[d] = (npy_intp)shape->size[d];
    }
}

int gg_py_source(PyObject *object, const gg_dataset *set, gg_source **out) {
    /* One after the other: an attribute must not be asked for while an exception is set. */
    const int ordered = has_flag(object, "ordered");
    const int readers = ordered < 0 ? -1 : attribute(object, "readers", 1);
    const int ahead = readers < 0 ? -1 : attribute(object, "ahead", 2);
    if (ahead < 0) return -1;
    PyObject *read = PyObject_GetAttrString(object, "read");
    if (read == NULL) return -1;
    py_source *made = NULL;
    gg_status status = gg_calloc(1, sizeof *made, "a source", &made);
    if (status != GG_OK) {
        Py_DECREF(read);
        gg_py_raise(status);
        return -1;
    }
    gg_source_init(&made->head, &table);
    pthread_mutex_init(&made->turn, NULL);
    made->head.ordered = ordered != 0;
    made->head.readers = readers;
    made->head.ahead = ahead;
    made->read = read;
    describe_fields(made, set);
    *out = &made->head;
    return 0;
}
