/* _core.Trainer: state that layers carry, out and in; another strategy or batch. */
#include <string.h>

#include "python/trainer.h"

static PyObject *py_trainer_carried(PyObject *self, PyObject *args) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    const gg_graph *graph = t->graph->graph;
    int rank = 0;
    if (!PyArg_ParseTuple(args, "|i:carried", &rank) || !gg_py_trainer_is_free(t)) return NULL;
    const gg_replica *replica = gg_py_trainer_replica(t, rank);
    PyObject *dict = replica != NULL ? PyDict_New() : NULL;
    for (int node = 0; dict != NULL && node < gg_graph_nodes(graph); ++node) {
        const int64_t rows = gg_replica_carried_rows(replica, node);
        if (rows == 0) continue;
        const npy_intp sizes[2] = {(npy_intp)rows, (npy_intp)gg_graph_node_carried(graph, node)};
        PyArrayObject *array = gg_py_new_array(2, sizes, NPY_FLOAT32);
        const char *name = gg_graph_node(graph, node)->desc.name;
        const gg_status status = array != NULL ? gg_replica_read_carried(replica, node, PyArray_DATA(array)) : GG_OK;
        if (status != GG_OK) (void)gg_py_raise(status);
        if (status != GG_OK) Py_CLEAR(array);
        dict = gg_py_put(dict, name, (PyObject *)array);
    }
    return dict;
}

/* The array of a node's state, (rows, numbers); NULL with an exception. */
static PyArrayObject *carried_array(const gg_graph *graph, int node, PyObject *dict) {
    const char *name = gg_graph_node(graph, node)->desc.name;
    const long long numbers = (long long)gg_graph_node_carried(graph, node);
    PyObject *object = PyDict_GetItemString(dict, name);
    if (object == NULL) {
        PyErr_Format(PyExc_ValueError, "carried: has nothing for layer '%s'", name);
        return NULL;
    }
    PyArrayObject *array = gg_py_array(object, NPY_FLOAT32, "carried");
    if (array == NULL || (PyArray_NDIM(array) == 2 && PyArray_DIM(array, 1) == numbers)) return array;
    PyErr_Format(PyExc_ValueError, "carried: layer '%s' has %lld numbers of state a sample, (rows, %lld)", name,
                 numbers, numbers);
    Py_DECREF(array);
    return NULL;
}

static PyObject *load_carried(PyObject *self, PyObject *args) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    const gg_graph *graph = t->graph->graph;
    PyObject *dict;
    int rank;
    if (!PyArg_ParseTuple(args, "O!i:load_carried", &PyDict_Type, &dict, &rank) || !gg_py_trainer_is_free(t))
        return NULL;
    gg_replica *replica = gg_py_trainer_replica(t, rank);
    if (replica == NULL) return NULL;
    gg_replica_reset_carried(replica);
    for (int node = 0; PyDict_GET_SIZE(dict) > 0 && node < gg_graph_nodes(graph); ++node) {
        if (gg_graph_node_carried(graph, node) == 0) continue;
        PyArrayObject *array = carried_array(graph, node, dict);
        if (array == NULL) return NULL;
        const gg_status status = gg_replica_write_carried(replica, node, PyArray_DIM(array, 0), PyArray_DATA(array));
        Py_DECREF(array);
        if (status != GG_OK) return gg_py_raise(status);
    }
    Py_RETURN_NONE;
}

static PyObject *py_trainer_reshape(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"strategy", "batch", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *strategy = NULL, *batch = NULL;
    long long samples = 0;
    gg_py_option_memory memory = {0};
    gg_strategy_options options;
    gg_status status;
    memset(&options, 0, sizeof options);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$O!O!:reshape", names, &PyDict_Type, &strategy, &PyLong_Type,
                                     &batch))
        return NULL;
    if (batch != NULL) samples = PyLong_AsLongLong(batch);
    if (batch != NULL && samples < 1) {
        if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "batch: %lld; must be at least 1", samples);
        return NULL;
    }
    if ((strategy != NULL && gg_py_strategy_options(strategy, &options, &memory) < 0) || !gg_py_trainer_enter(t)) {
        gg_py_option_memory_clear(&memory);
        return NULL;
    }
    const gg_reshape how = {.strategy = strategy != NULL ? &options : NULL, .batch = samples};
    GG_PY_WITHOUT_GIL(status = gg_trainer_reshape(t->trainer, &how));
    gg_py_trainer_leave(t);
    PyObject *done = status == GG_OK ? Py_NewRef(Py_None) : gg_py_raise(status);
    if (strategy != NULL) gg_py_exchange_adopt(t->exchange, &memory, status == GG_OK);
    return done;
}

PyMethodDef gg_py_trainer_state[] = {
    {"reshape", GG_PY_KEYWORDS(py_trainer_reshape), NULL},
    {"carried", py_trainer_carried, METH_VARARGS, "carried($self, rank=0, /)\n--\n\n"},
    {"load_carried", load_carried, METH_VARARGS, "load_carried($self, arrays, rank, /)\n--\n\n"},
    {NULL, NULL, 0, NULL}};
