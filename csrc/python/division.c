#include "python/division.h"

int gg_py_numbers(PyObject *list, int64_t **out) {
    const Py_ssize_t count = PyList_GET_SIZE(list);
    *out = PyMem_Calloc((size_t)count + 1, sizeof **out);
    if (*out == NULL) PyErr_NoMemory();
    for (Py_ssize_t i = 0; *out != NULL && i < count; ++i) {
        (*out)[i] = PyLong_AsLongLong(PyList_GET_ITEM(list, i));
        if (PyErr_Occurred()) {
            PyMem_Free(*out);
            *out = NULL;
        }
    }
    return *out != NULL ? 0 : -1;
}

void gg_py_divisions_free(gg_position *at) {
    for (int k = 0; k < at->divisions; ++k) PyMem_Free((int64_t *)at->division[k].read);
    PyMem_Free((gg_division *)at->division);
}

int gg_py_divisions(PyObject *list, gg_position *at) {
    gg_division *division;
    if (!PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "divisions: must be a list of lists of numbers");
        return -1;
    }
    at->division = division = PyMem_Calloc((size_t)PyList_GET_SIZE(list) + 1, sizeof *division);
    if (division == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(list); ++k, ++at->divisions) {
        PyObject *read = PyList_GET_ITEM(list, k);
        int64_t *numbers;
        if (!PyList_Check(read)) {
            PyErr_SetString(PyExc_TypeError, "divisions: must be a list of lists of numbers");
            return -1;
        }
        if (gg_py_numbers(read, &numbers) < 0) return -1;
        division[k] = (gg_division){.ranks = (int)PyList_GET_SIZE(read), .read = numbers};
    }
    return 0;
}

/* Writes the order of `rank`: in the whole epoch, or, after divisions, in the rest. */
static gg_status order_of_rank(const gg_divided_epoch *epoch, int ranks, int rank, uint32_t *list, int64_t *count,
                               int32_t *order) {
    gg_sharding sharding = *epoch->sharding;
    sharding.size = ranks;
    if (epoch->divisions > 0) {
        GG_TRY(gg_division_list(epoch, ranks, list));
        for (int64_t i = 0; i < *count; ++i) order[i] = (int32_t)list[i * ranks + rank];
    } else {
        gg_division_order(epoch->seed, rank, epoch->epoch, epoch->shuffle, (uint32_t)*count, list);
        for (int64_t i = 0; i < *count; ++i) order[i] = (int32_t)gg_sharding_id(&sharding, rank, list[i]);
    }
    return GG_OK;
}

PyObject *gg_py_division(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"count", "rank", "size", "seed", "epoch", "shuffle", "divisions", NULL};
    unsigned long long seed;
    long long count, epoch;
    int rank, size, shuffle;
    PyObject *divisions, *result = NULL;
    PyArrayObject *array = NULL;
    gg_position at = {.divisions = 0};
    int64_t left;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "LiiKLpO:division", names, &count, &rank, &size, &seed, &epoch,
                                     &shuffle, &divisions))
        return NULL;
    if (size < 1 || rank < 0 || rank >= size || count < size || count > INT32_MAX)
        return PyErr_Format(PyExc_ValueError, "rank: %d of %d ranks with %lld samples", rank, size, count);
    uint32_t *list = PyMem_Calloc((size_t)count, sizeof *list);
    if (list == NULL) return PyErr_NoMemory();
    if (gg_py_divisions(divisions, &at) < 0) goto cleanup;
    const gg_sharding sharding = {.kind = GG_SHARD_INTERLEAVED, .seed = seed, .count = count};
    const gg_divided_epoch divided = {&sharding, seed, epoch, shuffle, at.divisions, at.division};
    gg_status status = gg_division_count(&divided, size, &left);
    if (status == GG_OK) {
        int64_t share = gg_division_share(left, size, rank);
        array = gg_py_new_array(1, (npy_intp[]){(npy_intp)share}, NPY_INT32);
        if (array == NULL) goto cleanup;
        status = order_of_rank(&divided, size, rank, list, &share, PyArray_DATA(array));
    }
    if (status == GG_OK) result = Py_BuildValue("NL", array, (long long)left);
    else {
        Py_XDECREF(array);
        gg_py_raise(status);
    }
cleanup:
    gg_py_divisions_free(&at);
    PyMem_Free(list);
    return result;
}
