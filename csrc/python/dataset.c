/* _core.Dataset: NumPy arrays as a data set, without a copy. */
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

static int py_dataset_fill(gg_dataset *set, PyArrayObject *samples, PyArrayObject *targets, PyArrayObject *weights,
                           PyArrayObject *rows) {
    int dims = PyArray_NDIM(samples);
    if (dims < 2 || dims - 1 > GG_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "samples: has %d axes; the first counts samples, and 1 to %d more are allowed",
                     dims, GG_MAX_DIMS);
        return -1;
    }
    set->stored = PyArray_DIM(samples, 0);
    set->count = rows != NULL ? PyArray_SIZE(rows) : set->stored;
    set->shape.dims = dims - 1;
    for (int i = 1; i < dims; ++i) set->shape.size[i - 1] = PyArray_DIM(samples, i);
    set->dtype = PyArray_TYPE(samples) == NPY_UINT8 ? GG_UINT8 : GG_FLOAT32;
    if (PyArray_NDIM(targets) < 1 || PyArray_DIM(targets, 0) != set->count) {
        PyErr_Format(PyExc_ValueError, "targets: %zd entries for %lld samples",
                     PyArray_NDIM(targets) ? PyArray_DIM(targets, 0) : 0, (long long)set->count);
        return -1;
    }
    set->target_dtype = PyArray_TYPE(targets) == NPY_INT32 ? GG_INT32 : GG_FLOAT32;
    set->target_values = 1;
    for (int i = 1; i < PyArray_NDIM(targets); ++i) set->target_values *= PyArray_DIM(targets, i);
    if (weights != NULL && (PyArray_NDIM(weights) != 1 || PyArray_DIM(weights, 0) != set->count)) {
        PyErr_Format(PyExc_ValueError, "sample_weights: must be of shape (%lld,), one a sample", (long long)set->count);
        return -1;
    }
    if (py_dataset_wrap(samples, &set->samples) < 0 || py_dataset_wrap(targets, &set->targets) < 0) return -1;
    if (rows != NULL && py_dataset_wrap(rows, &set->rows) < 0) return -1;
    return weights != NULL ? py_dataset_wrap(weights, &set->sample_weights) : 0;
}

/* The array with one of two element types, C-contiguous. */
static PyArrayObject *py_dataset_either(PyObject *object, int first, int second, const char *argument) {
    bool is_first = PyArray_Check(object) && PyArray_TYPE((PyArrayObject *)object) == first;
    return gg_py_array(object, is_first ? first : second, argument);
}

static int py_dataset_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"samples", "targets", "scale", "shift", "sample_weights", "rows", NULL};
    PyObject *samples_object, *targets_object, *weights_object = Py_None, *rows_object = Py_None;
    PyArrayObject *weights = NULL, *rows = NULL;
    gg_dataset made = {.scale = 1.0f};
    int result = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|ffOO:Dataset", names, &samples_object, &targets_object,
                                     &made.scale, &made.shift, &weights_object, &rows_object))
        return -1;
    PyArrayObject *samples = py_dataset_either(samples_object, NPY_UINT8, NPY_FLOAT32, "samples");
    PyArrayObject *targets = samples ? py_dataset_either(targets_object, NPY_INT32, NPY_FLOAT32, "targets") : NULL;
    if (targets == NULL) goto cleanup;
    if (weights_object != Py_None) {
        weights = gg_py_array(weights_object, NPY_FLOAT32, "sample_weights");
        if (weights == NULL) goto cleanup;
    }
    if (rows_object != Py_None) {
        rows = gg_py_array(rows_object, NPY_UINT32, "rows");
        if (rows == NULL) goto cleanup;
    }
    if (py_dataset_fill(&made, samples, targets, weights, rows) < 0) goto cleanup;
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
    Py_XDECREF(samples);
    Py_XDECREF(targets);
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

static PyObject *get_shape(PyObject *self, void *unused) {
    (void)unused;
    return gg_py_shape_tuple(&((gg_py_dataset *)self)->set.shape);
}

static PyGetSetDef properties[] = {{"shape", get_shape, NULL, "The shape of one sample.", NULL},
                                   {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot slots[] = {
    {Py_tp_doc, "A set in memory: samples uint8 or float32, targets int32 classes or float32 values, weights float32."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, py_dataset_init},
    {Py_tp_dealloc, py_dataset_dealloc},
    {Py_tp_getset, properties},
    {Py_sq_length, py_dataset_length},
    {0, NULL}};

static PyType_Spec spec = {"gossipgrad._core.Dataset", sizeof(gg_py_dataset), 0, Py_TPFLAGS_DEFAULT, slots};

int gg_py_add_dataset(PyObject *module) {
    gg_py_dataset_type = gg_py_add_type(module, &spec);
    return gg_py_dataset_type ? 0 : -1;
}
