/* _core.Trainer: the time of each part of the network, the trace, memory. */
#include "python/trainer.h"

static PyObject *node_backends(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    const gg_plan *plan = gg_replica_plan(gg_trainer_replica(t->trainer, 0));
    (void)unused;
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && plan != NULL && i < gg_graph_nodes(t->graph->graph); ++i) {
        PyObject *name = PyUnicode_FromString(gg_plan_node_backend(plan, i));
        if (name == NULL || PyList_Append(list, name) < 0) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

static PyObject *algorithms_of(const gg_plan *plan, int node) {
    PyObject *made = PyDict_New();
    for (int pass = 0; made != NULL && pass < GG_PASS_COUNT; ++pass) {
        const char *backend = NULL;
        gg_algorithm algorithm = GG_ALGORITHM_DIRECT;
        if (!gg_plan_node_algorithm(plan, node, (gg_pass)pass, &backend, &algorithm)) continue;
        PyObject *pair = Py_BuildValue("(ss)", backend, gg_algorithm_name(algorithm));
        if (pair == NULL || PyDict_SetItemString(made, gg_pass_name((gg_pass)pass), pair) < 0) Py_CLEAR(made);
        Py_XDECREF(pair);
    }
    if (made == NULL || PyDict_GET_SIZE(made) > 0) return made;
    Py_DECREF(made);
    return Py_NewRef(Py_None);
}

static PyObject *node_algorithms(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    const gg_plan *plan = gg_replica_plan(gg_trainer_replica(t->trainer, 0));
    (void)unused;
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && plan != NULL && i < gg_graph_nodes(t->graph->graph); ++i) {
        PyObject *each = algorithms_of(plan, i);
        if (each == NULL || PyList_Append(list, each) < 0) Py_CLEAR(list);
        Py_XDECREF(each);
    }
    return list;
}

static PyObject *partitioned_fc(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    const bool *partitioned = gg_replica_fc_partitioned(gg_trainer_replica(t->trainer, 0));
    (void)unused;
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && partitioned != NULL && i < gg_graph_layers(t->graph->graph); ++i) {
        if (!partitioned[i]) continue;
        PyObject *name = PyUnicode_FromString(gg_graph_layer_name(t->graph->graph, i));
        if (name == NULL || PyList_Append(list, name) < 0) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

bool gg_py_trainer_has_family(const gg_py_trainer *t, gg_family family) {
    int layers = gg_graph_layers(t->graph->graph), layer = 0;
    while (layer < layers && gg_graph_family(t->graph->graph, layer) != family) ++layer;
    return layer < layers;
}

static PyObject *compressed_families(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    bool compresses = gg_replica_compresses(gg_trainer_replica(t->trainer, 0));
    (void)unused;
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && compresses && i < GG_FAMILY_COUNT; ++i) {
        if (!gg_py_trainer_has_family(t, i)) continue;
        PyObject *name = PyUnicode_FromString(gg_family_name(i));
        if (name == NULL || PyList_Append(list, name) < 0) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

static PyObject *set_timing(PyObject *self, PyObject *argument) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    gg_plan *plan = gg_replica_plan(gg_trainer_replica(t->trainer, 0));
    int on = PyObject_IsTrue(argument);
    if (on < 0) return NULL;
    if (plan != NULL) gg_plan_set_timing(plan, on);
    Py_RETURN_NONE;
}

static PyObject *node_seconds(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    const gg_plan *plan = gg_replica_plan(gg_trainer_replica(t->trainer, 0));
    (void)unused;
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && plan != NULL && i < gg_graph_nodes(t->graph->graph); ++i) {
        double forward = 0, backward = 0;
        gg_plan_node_seconds(plan, i, &forward, &backward);
        PyObject *pair = Py_BuildValue("dd", forward, backward);
        if (pair == NULL || PyList_Append(list, pair) < 0) Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    return list;
}

static PyObject *py_trainer_spans(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"rank", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    int rank = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|i:spans", names, &rank)) return NULL;
    gg_replica *replica = gg_py_trainer_replica(t, rank);
    if (replica == NULL) return NULL;
    return gg_py_spans(gg_replica_trace(replica), gg_replica_clock_offset(replica));
}

static PyObject *spans_lost(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"rank", NULL};
    int rank = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|i:spans_lost", names, &rank)) return NULL;
    gg_replica *replica = gg_py_trainer_replica((gg_py_trainer *)self, rank);
    return replica ? PyLong_FromSize_t(gg_trace_lost(gg_replica_trace(replica))) : NULL;
}

static PyObject *py_trainer_bytes(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    size_t total = 0;
    (void)unused;
    for (int i = 0; i < gg_team_local(t->team->team); ++i) total += gg_replica_bytes(gg_trainer_replica(t->trainer, i));
    return PyLong_FromSize_t(total);
}

static PyObject *py_trainer_tuning(PyObject *self, PyObject *unused) {
    (void)unused;
    return gg_py_tuning(gg_replica_tuning(gg_trainer_replica(((gg_py_trainer *)self)->trainer, 0)));
}

PyMethodDef gg_py_trainer_measures[] = {
    {"node_algorithms", node_algorithms, METH_NOARGS,
     "Of each node that is a convolution {pass: (table, algorithm)}, else None; after the first step."},
    {"node_backends", node_backends, METH_NOARGS, "Which table computes each node, after the first step."},
    {"partitioned_fc", partitioned_fc, METH_NOARGS,
     "Names of the layers whose inputs and errors were exchanged in some step so far."},
    {"compressed_families", compressed_families, METH_NOARGS,
     "Families of the network's layers, if the strategy compresses; else none."},
    {"node_seconds", node_seconds, METH_NOARGS, "Forward and backward seconds of each node since timing was set."},
    {"set_timing", set_timing, METH_O, "set_timing($self, on, /)\n--\n\nTimes each node from now on, or stops."},
    {"spans", GG_PY_KEYWORDS(py_trainer_spans), "The trace of a local rank, on rank 0's clock."},
    {"spans_lost", GG_PY_KEYWORDS(spans_lost), "Spans of a local rank that newer ones have overwritten."},
    {"bytes", py_trainer_bytes, METH_NOARGS, "Memory of plans and arenas."},
    {"tuning", py_trainer_tuning, METH_NOARGS, "What messages cost, and the buckets and chunks that were made for it."},
    {NULL, NULL, 0, NULL}};
