/* _core.Dataset: a data set from NumPy arrays, without a copy, and from a source. */
#include <string.h>

#include "python/python.h"

PyTypeObject *gg_py_dataset_type;

/* Any thread may release the last reference to a storage. */
static void drop_array(void *array) {
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF((PyObject *)array);
    PyGILState_Release(state);
}

/* Shows an array's memory to the core; the storage holds a reference to the array. */
static int py_dataset_wrap(PyArrayObject *array, gg_storage **out) {
    gg_status status = gg_storage_wrap(PyArray_DATA(array), (size_t)PyArray_NBYTES(array), array, drop_array, out);
    if (status != GG_OK) {
        gg_py_raise(status);
        return -1;
    }
    Py_INCREF(array);
    return 0;
}

/* ---- fields ---- */

/* Checks a number of samples, which all fields, weights and rows share; *known is -1 before the first. */
static int same_count(int64_t *known, Py_ssize_t found, const char *argument) {
    if (*known < 0) *known = found;
    if (*known == found) return 0;
    PyErr_Format(PyExc_ValueError, "%s: %zd entries for %lld samples", argument, found, (long long)*known);
    return -1;
}

/* An array of one of the element types that a field may have, C-contiguous: the types of `allowed`, ended by -1. */
static PyArrayObject *field_array(PyObject *object, const int *allowed, const char *argument) {
    int type = allowed[0];
    for (int i = 0; allowed[i] >= 0; ++i) {
        if (!PyArray_Check(object) || PyArray_TYPE((PyArrayObject *)object) != allowed[i]) type = allowed[i];
        else return gg_py_array(object, allowed[i], argument);
    }
    return gg_py_array(object, type, argument); /* raises the exception */
}

static gg_dtype dtype_of(int type) { return type == NPY_UINT8 ? GG_UINT8 : type == NPY_INT32 ? GG_INT32 : GG_FLOAT32; }

static bool is_shape(PyArrayObject *array, const gg_shape *shape) {
    if (PyArray_NDIM(array) != shape->dims) return false;
    for (int i = 0; i < shape->dims; ++i)
        if (PyArray_DIM(array, i) != shape->size[i]) return false;
    return true;
}

/* Number of runs of a sample for which a scale or shift has its own number; 1 if one number covers all. -1 with an
 * exception. */
static int64_t count_runs(PyObject *object, const gg_shape *shape, const char *argument) {
    if (object == NULL || !PyArray_Check(object) || PyArray_NDIM((PyArrayObject *)object) == 0) return 1;
    PyArrayObject *array = (PyArrayObject *)object;
    if ((PyArray_NDIM(array) == 1 && PyArray_SIZE(array) == shape->size[0]) || is_shape(array, shape))
        return PyArray_SIZE(array);
    PyErr_Format(PyExc_ValueError,
                 "%s: an array of %zd numbers; allowed: one number, one a channel, %lld of them, or one for each value "
                 "in the shape of a sample",
                 argument, PyArray_SIZE(array), (long long)shape->size[0]);
    return -1;
}

/* Fills a number for each of `runs` runs from `known` numbers, a divisor of runs. */
static int numbers_of_runs(PyObject *object, int64_t known, int64_t runs, const char *argument, float *out) {
    if (object == NULL) return 0;
    if (!PyArray_Check(object) || PyArray_NDIM((PyArrayObject *)object) == 0) {
        const double one = PyFloat_AsDouble(object);
        if (one == -1.0 && PyErr_Occurred()) return -1;
        for (int64_t i = 0; i < runs; ++i) out[i] = (float)one;
        return 0;
    }
    PyArrayObject *array = gg_py_array(object, NPY_FLOAT32, argument);
    if (array == NULL) return -1;
    const float *numbers = PyArray_DATA(array);
    for (int64_t i = 0; i < runs; ++i) out[i] = numbers[i / (runs / known)];
    Py_DECREF(array);
    return 0;
}

static int field_scales(gg_field *field, PyObject *scale, PyObject *shift) {
    gg_storage *scales = NULL;
    gg_storage_release(field->scales); /* set by the field's own description */
    field->scales = NULL;
    field->scale = 1.0f;
    for (int i = 0; i < field->shape.dims; ++i)
        if (field->shape.size[i] < 1) return 0; /* gg_dataset_check refuses such a shape */
    if (field->shape.dims < 1 || (scale == NULL && shift == NULL)) return 0;
    const int64_t a = count_runs(scale, &field->shape, "scale"), b = count_runs(shift, &field->shape, "shift");
    if (a < 0 || b < 0) return -1;
    const int64_t runs = a > b ? a : b;
    gg_status status = gg_storage_create(2 * (size_t)runs * sizeof(float), "scales", &scales);
    if (status != GG_OK) {
        gg_py_raise(status);
        return -1;
    }
    float *numbers = gg_storage_data(scales);
    for (int64_t i = 0; i < runs; ++i) numbers[i] = 1.0f;
    memset(numbers + runs, 0, (size_t)runs * sizeof *numbers);
    int result = numbers_of_runs(scale, a, runs, "scale", numbers);
    if (result == 0) result = numbers_of_runs(shift, b, runs, "shift", numbers + runs);
    field->scale = numbers[0];
    field->shift = numbers[runs];
    field->runs = runs;
    if (result == 0 && (a > 1 || b > 1)) field->scales = scales;
    else gg_storage_release(scales);
    return result;
}

/* The item of a dict, borrowed. NULL without an exception if it is missing or None. */
static PyObject *item(PyObject *dict, const char *key) {
    PyObject *found = PyDict_GetItemString(dict, key);
    return found == Py_None ? NULL : found;
}

static int field_number(PyObject *dict, const char *key, int64_t *out) {
    PyObject *found = item(dict, key);
    if (found == NULL) return 0;
    *out = PyLong_AsLongLong(found);
    return *out == -1 && PyErr_Occurred() ? -1 : 0;
}

static const int input_types[] = {NPY_UINT8, NPY_INT32, NPY_FLOAT32, -1}, target_types[] = {NPY_INT32, NPY_FLOAT32, -1};

/* The field's array, whose first axis counts samples. */
static int field_from_array(gg_dataset *set, int f, PyObject *object, bool input, int64_t *count) {
    gg_field *field = &set->field[f];
    const char *argument = input ? "samples" : "targets";
    PyArrayObject *array = field_array(object, input ? input_types : target_types, argument);
    if (array == NULL) return -1;
    const int dims = PyArray_NDIM(array);
    int result = -1;
    if (dims < (input ? 2 : 1) || dims - 1 > GG_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "%s: has %d axes; the first counts samples, and %d to %d more are allowed",
                     argument, dims, input ? 1 : 0, GG_MAX_DIMS);
        goto cleanup;
    }
    field->dtype = dtype_of(PyArray_TYPE(array));
    field->shape.dims = dims - 1;
    for (int i = 1; i < dims; ++i) field->shape.size[i - 1] = PyArray_DIM(array, i);
    if (same_count(count, PyArray_DIM(array, 0), argument) < 0) goto cleanup;
    result = py_dataset_wrap(array, &set->memory[f]);
cleanup:
    Py_DECREF(array);
    return result;
}

/* The type and the shape of a field that the source reads. */
static int field_from_description(gg_field *field, PyObject *dict, bool input) {
    PyObject *shape = item(dict, "shape"), *dtype = item(dict, "dtype");
    PyArray_Descr *descr = NULL;
    const int *allowed = input ? input_types : target_types;
    if (shape == NULL || dtype == NULL) {
        PyErr_SetString(PyExc_TypeError, "a field wants 'array', or 'shape' and 'dtype' where a source reads it");
        return -1;
    }
    if (PySequence_Check(shape) && PySequence_Size(shape) == 0) field->shape.dims = 0;
    else if (gg_py_shape(shape, "shape", &field->shape) < 0) return -1;
    if (!PyArray_DescrConverter(dtype, &descr)) return -1;
    while (*allowed >= 0 && *allowed != descr->type_num) ++allowed;
    if (*allowed < 0)
        PyErr_Format(PyExc_TypeError, "a field's dtype is %S; allowed are uint8 (inputs), int32, float32", descr);
    field->dtype = dtype_of(descr->type_num);
    Py_DECREF(descr);
    return *allowed < 0 ? -1 : 0;
}

/* Makes a field from an array, or from a dict with array, or shape and dtype, and scale, shift, tokens, classes,
 * ignored. */
static int field_make(gg_dataset *set, int f, PyObject *object, bool input, int64_t *count) {
    gg_field *field = &set->field[f];
    PyObject *array = PyDict_Check(object) ? item(object, "array") : object;
    int64_t ignored = INT64_MIN;
    *field = (gg_field){.scale = 1.0f};
    if ((array != NULL ? field_from_array(set, f, array, input, count) : field_from_description(field, object, input)) <
        0)
        return -1;
    if (!PyDict_Check(object)) return 0;
    if (field_number(object, "classes", &field->classes) < 0 || field_number(object, "ignored", &ignored) < 0)
        return -1;
    field->ignores = ignored != INT64_MIN;
    if (field->ignores) field->ignored = (int32_t)ignored;
    if (!input) return 0;
    PyObject *tokens = item(object, "tokens");
    if (tokens != NULL) field->tokens = PyObject_IsTrue(tokens) == 1;
    return field_scales(field, item(object, "scale"), item(object, "shift"));
}

/* Fields from one of them, or from a list of them; returns how many there are. */
static int fields_make(gg_dataset *set, int first, PyObject *object, bool input, int64_t *count) {
    if (object == Py_None) return 0;
    if (!PyList_Check(object)) return field_make(set, first, object, input, count) < 0 ? -1 : 1;
    const Py_ssize_t n = PyList_GET_SIZE(object);
    if (n > GG_MAX_FIELDS) {
        PyErr_Format(PyExc_ValueError, "%s: %zd of them; at most %d are allowed", input ? "samples" : "targets", n,
                     GG_MAX_FIELDS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; ++i)
        if (field_make(set, first + (int)i, PyList_GET_ITEM(object, i), input, count) < 0) return -1;
    return (int)n;
}

/* ---- the set ---- */

/* Number of samples of a set with a source. */
static int count_source(gg_dataset *set, PyObject *object) {
    const Py_ssize_t stored = PyObject_Size(object);
    if (stored < 0) return -1;
    if (set->stored >= 0 && set->stored != stored) {
        PyErr_Format(PyExc_ValueError, "source: reads %zd samples, the arrays hold %lld", stored,
                     (long long)set->stored);
        return -1;
    }
    set->stored = stored;
    return 0;
}

static int py_dataset_fill(gg_dataset *set, PyObject *samples, PyObject *targets, PyObject *source,
                           PyArrayObject *weights, PyArrayObject *rows) {
    int64_t answers = rows != NULL ? PyArray_SIZE(rows) : -1;
    set->stored = -1;
    set->inputs = fields_make(set, 0, samples, true, &set->stored);
    if (set->inputs < 0) return -1;
    if (source != NULL && count_source(set, source) < 0) return -1;
    if (rows == NULL) answers = set->stored;
    const int made = fields_make(set, set->inputs, targets, false, &answers);
    if (made < 0) return -1;
    set->targets = made;
    if (source != NULL && gg_py_source(source, set, &set->source) < 0) return -1;
    set->count = answers;
    if (weights != NULL && (PyArray_NDIM(weights) != 1 || PyArray_DIM(weights, 0) != set->count)) {
        PyErr_Format(PyExc_ValueError, "sample_weights: must be of shape (%lld,), one a sample", (long long)set->count);
        return -1;
    }
    if (rows != NULL && py_dataset_wrap(rows, &set->rows) < 0) return -1;
    return weights != NULL ? py_dataset_wrap(weights, &set->sample_weights) : 0;
}

static int py_dataset_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"samples", "targets", "scale",   "shift", "sample_weights",
                            "rows",    "source",  "streams", NULL};
    PyObject *samples, *targets = Py_None, *scale = NULL, *shift = NULL, *weights_object = Py_None,
                       *rows_object = Py_None, *source = Py_None;
    PyArrayObject *weights = NULL, *rows = NULL;
    gg_dataset made = {0};
    int result = -1, streams = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOOOOOp:Dataset", names, &samples, &targets, &scale, &shift,
                                     &weights_object, &rows_object, &source, &streams))
        return -1;
    if (weights_object != Py_None) {
        weights = gg_py_array(weights_object, NPY_FLOAT32, "sample_weights");
        if (weights == NULL) goto cleanup;
    }
    if (rows_object != Py_None) {
        rows = gg_py_array(rows_object, NPY_UINT32, "rows");
        if (rows == NULL) goto cleanup;
    }
    made.streams = streams != 0;
    if (py_dataset_fill(&made, samples, targets, source == Py_None ? NULL : source, weights, rows) < 0) goto cleanup;
    if (scale == Py_None) scale = NULL;
    if (shift == Py_None) shift = NULL;
    if ((scale != NULL || shift != NULL) && field_scales(&made.field[0], scale, shift) < 0) goto cleanup;
    gg_status status = gg_dataset_check(&made);
    if (status != GG_OK) {
        gg_py_raise(status);
        goto cleanup;
    }
    gg_dataset_release(&((gg_py_dataset *)self)->set);
    ((gg_py_dataset *)self)->set = made;
    result = 0;
cleanup:
    if (result < 0) gg_dataset_release(&made);
    Py_XDECREF(weights);
    Py_XDECREF(rows);
    return result;
}

static void py_dataset_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    gg_dataset_release(&((gg_py_dataset *)self)->set);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t py_dataset_length(PyObject *self) { return (Py_ssize_t)((gg_py_dataset *)self)->set.count; }

static PyType_Slot slots[] = {
    {Py_tp_doc, "A set: inputs uint8, float32 or int32 tokens, targets int32 classes or float32, weights float32."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, py_dataset_init},
    {Py_tp_dealloc, py_dataset_dealloc},
    {Py_sq_length, py_dataset_length},
    {0, NULL}};

static PyType_Spec spec = {"gossipgrad._core.Dataset", sizeof(gg_py_dataset), 0, Py_TPFLAGS_DEFAULT, slots};

int gg_py_add_dataset(PyObject *module) {
    gg_py_dataset_type = gg_py_add_type(module, &spec);
    return gg_py_dataset_type ? 0 : -1;
}
