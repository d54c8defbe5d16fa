/* A state's values for trainers and exchanges: arenas by the parameters' names, the tuning, the trace. */
#include <math.h>
#include <string.h>

#include "python/python.h"

/* ---- arenas ---- */

int gg_py_arena_place(const gg_state *state, const char *name) {
    const int place = gg_state_find(state, name);
    if (place >= 0) return place;
    PyObject *allowed = PyUnicode_FromString("");
    for (int i = 0; i < state->arenas && allowed != NULL; ++i)
        Py_XSETREF(allowed, PyUnicode_FromFormat("%U%s'%s'", allowed, i > 0 ? ", " : "", state->arena[i].name));
    if (allowed != NULL) PyErr_Format(PyExc_ValueError, "arena: '%s'; allowed: %U", name, allowed);
    Py_XDECREF(allowed);
    return -1;
}

PyObject *gg_py_arena_kinds(const gg_state *state) {
    static const char *const kinds[GG_ARENA_KINDS] = {"weight", "gradient", "moment",      "residue",
                                                      "copy",   "outer",    "outer moment"};
    PyObject *dict = PyDict_New();
    for (int i = 0; i < state->arenas && dict != NULL; ++i) {
        dict = gg_py_put(dict, state->arena[i].name, PyUnicode_FromString(kinds[state->arena[i].kind]));
    }
    return dict;
}

float *gg_py_arena_new(const gg_arena_layout *layout) {
    float *arena = PyMem_Calloc(layout->count + 1, sizeof *arena);
    if (arena == NULL) PyErr_NoMemory();
    return arena;
}

/* A copy of a parameter's numbers, or a view of them; NULL with an exception. */
static PyArrayObject *array_of(const gg_parameter *p, float *numbers, PyObject *owner) {
    npy_intp sizes[GG_MAX_DIMS];
    for (int d = 0; d < p->shape.dims; ++d) sizes[d] = (npy_intp)p->shape.size[d];
    if (owner == NULL) {
        PyArrayObject *copy = gg_py_new_array(p->shape.dims, sizes, NPY_FLOAT32);
        if (copy != NULL) memcpy(PyArray_DATA(copy), numbers, p->count * sizeof(float));
        return copy;
    }
    PyArrayObject *view = (PyArrayObject *)PyArray_SimpleNewFromData(p->shape.dims, sizes, NPY_FLOAT32, numbers);
    if (view != NULL && PyArray_SetBaseObject(view, Py_NewRef(owner)) < 0) Py_CLEAR(view);
    return view;
}

PyObject *gg_py_arena_dict(const gg_arena_layout *layout, float *arena, PyObject *owner) {
    PyObject *dict = PyDict_New();
    for (int i = 0; dict != NULL && i < layout->parameters; ++i) {
        const gg_parameter *p = &layout->parameter[i];
        dict = gg_py_put(dict, p->name, (PyObject *)array_of(p, arena + p->offset, owner));
    }
    return dict;
}

/* The array that the dict holds for a parameter, of the right type and shape; NULL with an exception. */
static PyArrayObject *parameter_array(PyObject *dict, const gg_parameter *p, const char *argument) {
    char want[GG_SHAPE_TEXT];
    PyObject *item = PyDict_GetItemString(dict, p->name);
    if (item == NULL) {
        PyErr_Format(PyExc_ValueError, "%s: '%s' is missing; shape %s", argument, p->name,
                     gg_shape_text(&p->shape, want));
        return NULL;
    }
    PyArrayObject *array = gg_py_array(item, NPY_FLOAT32, p->name);
    if (array == NULL) return NULL;
    bool fits = PyArray_NDIM(array) == p->shape.dims;
    for (int d = 0; fits && d < p->shape.dims; ++d) fits = PyArray_DIM(array, d) == p->shape.size[d];
    if (!fits) {
        PyObject *shape = PyObject_GetAttrString((PyObject *)array, "shape");
        PyErr_Format(PyExc_ValueError, "%s: '%s' has shape %S; the network's is %s", argument, p->name, shape,
                     gg_shape_text(&p->shape, want));
        Py_XDECREF(shape);
        Py_CLEAR(array);
    }
    return array;
}

float *gg_py_arena_of(const gg_arena_layout *layout, PyObject *dict, const char *argument) {
    const int n = layout->parameters;
    float *arena = NULL;
    PyObject *arrays = PyList_New(0);
    if (arrays == NULL) return NULL;
    if (!PyDict_Check(dict)) {
        PyErr_Format(PyExc_TypeError, "%s: must be a dict of arrays, not %s", argument, Py_TYPE(dict)->tp_name);
        goto cleanup;
    }
    for (int i = 0; i < n; ++i) {
        PyArrayObject *array = parameter_array(dict, &layout->parameter[i], argument);
        int failed = array == NULL || PyList_Append(arrays, (PyObject *)array) < 0;
        Py_XDECREF(array);
        if (failed) goto cleanup;
    }
    if (PyDict_Size(dict) != n) {
        PyObject *key, *value;
        Py_ssize_t place = 0;
        while (PyDict_Next(dict, &place, &key, &value)) {
            bool known = false;
            for (int i = 0; !known && i < n; ++i)
                known = PyUnicode_Check(key) && PyUnicode_CompareWithASCIIString(key, layout->parameter[i].name) == 0;
            if (known) continue;
            PyErr_Format(PyExc_ValueError, "%s: %R is no parameter of this network", argument, key);
            goto cleanup;
        }
    }
    arena = gg_py_arena_new(layout);
    for (int i = 0; arena != NULL && i < n; ++i) {
        const gg_parameter *p = &layout->parameter[i];
        const void *data = PyArray_DATA((PyArrayObject *)PyList_GET_ITEM(arrays, i));
        memcpy(arena + p->offset, data, p->count * sizeof(float));
    }
cleanup:
    Py_DECREF(arrays);
    return arena;
}

int gg_py_resume_read(gg_py_resume *r, PyObject *args, const gg_state *state, const gg_arena_layout *layout,
                      const gg_team *team) {
    PyObject *list, *consensus;
    const char *name;
    *r = (gg_py_resume){.local = gg_team_local(team)};
    if (!PyArg_ParseTuple(args, "sO!Oi:resume_arena", &name, &PyList_Type, &list, &consensus, &r->trained)) return -1;
    if (PyList_GET_SIZE(list) != r->local || r->trained < 1 || r->trained > gg_team_size(team)) {
        PyErr_Format(PyExc_ValueError, "resume_arena: arrays of %zd ranks, of which %d have trained; here are %d",
                     PyList_GET_SIZE(list), r->trained, r->local);
        return -1;
    }
    if ((r->arena = gg_py_arena_place(state, name)) < 0) return -1;
    if ((r->whole = PyMem_Calloc((size_t)r->local + 1, sizeof *r->whole)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int i = 0; i < r->local; ++i)
        if ((r->whole[i] = gg_py_arena_of(layout, PyList_GET_ITEM(list, i), name)) == NULL) return -1;
    if (consensus != Py_None && (r->consensus = gg_py_arena_of(layout, consensus, "weights")) == NULL) return -1;
    return 0;
}

void gg_py_resume_free(gg_py_resume *r) {
    for (int i = 0; r->whole != NULL && i < r->local; ++i) PyMem_Free(r->whole[i]);
    PyMem_Free(r->whole);
    PyMem_Free(r->consensus);
}

/* ---- clocks and messages ---- */

int gg_py_compute_time(PyObject *sequence, int size, double **out) {
    *out = NULL;
    if (sequence == Py_None) return 0;
    PyObject *items = PySequence_Fast(sequence, "compute_time: must be a sequence of numbers");
    if (items == NULL) return -1;
    if (PySequence_Fast_GET_SIZE(items) != size)
        PyErr_Format(PyExc_ValueError, "compute_time: %zd numbers for %d ranks", PySequence_Fast_GET_SIZE(items), size);
    else if ((*out = PyMem_Calloc((size_t)size, sizeof **out)) == NULL) PyErr_NoMemory();
    for (int i = 0; *out != NULL && i < size; ++i) (*out)[i] = PyFloat_AsDouble(PySequence_Fast_GET_ITEM(items, i));
    Py_DECREF(items);
    if (!PyErr_Occurred()) return 0;
    PyMem_Free(*out);
    *out = NULL;
    return -1;
}

/* A new number; None if it is unknown or infinite. */
static PyObject *number_or_none(bool known, double value) {
    return known && value < INFINITY ? PyFloat_FromDouble(value) : Py_NewRef(Py_None);
}

PyObject *gg_py_tuning(const gg_tuning *tuned) {
    const bool known = tuned->measured;
    if (!tuned->cuts) return PyDict_New();
    return Py_BuildValue("{sNsNsNsnsnsisi}", "latency_seconds", number_or_none(known, tuned->link.latency),
                         "message_seconds", number_or_none(known, tuned->link.message), "bytes_per_second",
                         number_or_none(known, 1 / (tuned->link.byte + tuned->link.read)), "bucket_bytes",
                         (Py_ssize_t)tuned->bucket_bytes, "chunk_bytes", (Py_ssize_t)tuned->chunk_bytes, "buckets",
                         tuned->buckets, "chunks", tuned->chunks);
}

PyObject *gg_py_spans(const gg_trace *trace, double offset) {
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && trace != NULL && i < gg_trace_count(trace); ++i) {
        const gg_trace_span *s = gg_trace_get(trace, i);
        list = gg_py_append(list, Py_BuildValue("ddsLiiiidL", s->begin + offset, s->end + offset, s->name,
                                                (long long)s->step, (int)s->lane, (int)s->index, (int)s->last,
                                                (int)s->peer, s->arrived + offset, (long long)s->bytes));
    }
    return list;
}
