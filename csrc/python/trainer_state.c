/* _core.Trainer: its arenas, weights, gradients and the optimiser's moments, out and in. */
#include <string.h>

#include "python/trainer.h"

static const gg_arena_layout *layout_of(const gg_py_trainer *t) { return gg_graph_layout(t->graph->graph); }

/* The place of an arena in the states of all local ranks; -1 with an exception. */
static int arena_place(const gg_py_trainer *t, const char *name) {
    if (!gg_py_trainer_is_free(t)) return -1;
    return gg_py_arena_place(gg_replica_state(gg_trainer_replica(t->trainer, 0)), name);
}

static PyObject *py_trainer_arenas(PyObject *self, PyObject *unused) {
    const gg_py_trainer *t = (const gg_py_trainer *)self;
    (void)unused;
    if (!gg_py_trainer_is_free(t)) return NULL;
    return gg_py_arena_kinds(gg_replica_state(gg_trainer_replica(t->trainer, 0)));
}

static PyObject *check_arena(PyObject *self, PyObject *name) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    const char *text = PyUnicode_AsUTF8(name);
    int place;
    if (text == NULL || gg_py_trainer_replica(t, 0) == NULL || (place = arena_place(t, text)) < 0) return NULL;
    if (!gg_py_trainer_enter(t)) return NULL;
    const gg_status status = gg_replica_check_arena(gg_trainer_replica(t->trainer, 0), place);
    t->busy = false;
    if (status != GG_OK) return gg_py_raise(status);
    Py_RETURN_NONE;
}

static PyObject *py_trainer_arena(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"name", "rank", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    const char *name;
    int rank = 0, place;
    gg_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|i", names, &name, &rank)) return NULL;
    if (gg_py_trainer_replica(t, rank) == NULL || (place = arena_place(t, name)) < 0) return NULL;
    PyObject *dict = NULL;
    float *whole = gg_py_arena_new(layout_of(t));
    if (whole == NULL || !gg_py_trainer_enter(t)) goto cleanup;
    Py_BEGIN_ALLOW_THREADS;
    status = gg_trainer_gather(t->trainer, place, rank, whole);
    Py_END_ALLOW_THREADS;
    t->busy = false;
    dict = status == GG_OK ? gg_py_arena_dict(layout_of(t), whole, NULL) : gg_py_raise(status);
cleanup:
    PyMem_Free(whole);
    return dict;
}

static PyObject *consensus_weights(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    float *mean = gg_py_arena_new(layout_of(t));
    PyObject *dict = NULL;
    gg_status status;
    (void)unused;
    if (mean == NULL) return NULL;
    if (gg_py_trainer_enter(t)) {
        Py_BEGIN_ALLOW_THREADS;
        status = gg_trainer_consensus(t->trainer, mean);
        Py_END_ALLOW_THREADS;
        t->busy = false;
        dict = status == GG_OK ? gg_py_arena_dict(layout_of(t), mean, NULL) : gg_py_raise(status);
    }
    PyMem_Free(mean);
    return dict;
}

static PyObject *adopt_consensus(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    gg_status status;
    (void)unused;
    if (!gg_py_trainer_enter(t)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = gg_trainer_adopt_consensus(t->trainer);
    Py_END_ALLOW_THREADS;
    t->busy = false;
    return status == GG_OK ? Py_NewRef(Py_None) : gg_py_raise(status);
}

static PyObject *load_arena(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"name", "arrays", "rank", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *dict, *rank_object = Py_None;
    const char *name;
    int local = gg_team_local(t->team->team), first = 0, count = local, place;
    gg_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO|O", names, &name, &dict, &rank_object)) return NULL;
    if (rank_object != Py_None) {
        first = (int)PyLong_AsLong(rank_object);
        count = 1;
        if (PyErr_Occurred() || gg_py_trainer_replica(t, first) == NULL) return NULL;
    }
    if ((place = arena_place(t, name)) < 0) return NULL;
    GG_PY_CALL(t, gg_trainer_settle(t->trainer));
    float *whole = gg_py_arena_of(layout_of(t), dict, name);
    if (whole == NULL) return NULL;
    for (int i = 0; i < count; ++i) {
        gg_replica *replica = gg_trainer_replica(t->trainer, first + i);
        gg_replica_load(replica, place, whole);
        if (place == GG_WEIGHTS && rank_object == Py_None) gg_replica_set_consensus(replica, whole);
    }
    PyMem_Free(whole);
    Py_RETURN_NONE;
}

static PyObject *resume_arena(PyObject *self, PyObject *args) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *result = NULL;
    gg_py_resume r;
    gg_status status;
    if (!gg_py_trainer_is_free(t)) return NULL;
    const gg_state *state = gg_replica_state(gg_trainer_replica(t->trainer, 0));
    if (gg_py_resume_read(&r, args, state, layout_of(t), t->team->team) < 0 || !gg_py_trainer_enter(t)) goto cleanup;
    Py_BEGIN_ALLOW_THREADS;
    status = gg_trainer_resume(t->trainer, r.arena, (const float *const *)r.whole, r.consensus, r.trained);
    Py_END_ALLOW_THREADS;
    t->busy = false;
    result = status == GG_OK ? Py_NewRef(Py_None) : gg_py_raise(status);
cleanup:
    gg_py_resume_free(&r);
    return result;
}

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
        if (array == NULL || status != GG_OK || PyDict_SetItemString(dict, name, (PyObject *)array) < 0) Py_CLEAR(dict);
        Py_XDECREF(array);
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

static PyObject *load_consensus(PyObject *self, PyObject *dict) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    gg_status status;
    GG_PY_CALL(t, gg_trainer_settle(t->trainer));
    float *whole = gg_py_arena_of(layout_of(t), dict, "weights");
    if (whole == NULL) return NULL;
    for (int i = 0; i < gg_team_local(t->team->team); ++i)
        gg_replica_set_consensus(gg_trainer_replica(t->trainer, i), whole);
    PyMem_Free(whole);
    Py_RETURN_NONE;
}

static PyObject *consensus_distance(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    double distance = 0;
    gg_status status;
    (void)unused;
    GG_PY_CALL(t, gg_trainer_distance(t->trainer, &distance));
    return PyFloat_FromDouble(distance);
}

static PyObject *py_trainer_set_schedule(PyObject *self, PyObject *schedule) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    gg_rate rate;
    if (!gg_py_trainer_is_free(t) || gg_py_team_check_collectives(t->team) < 0 || gg_py_schedule(schedule, &rate) < 0)
        return NULL;
    for (int i = 0; i < gg_team_local(t->team->team); ++i)
        gg_replica_set_rate(gg_trainer_replica(t->trainer, i), &rate);
    Py_XSETREF(t->schedule, Py_NewRef(schedule));
    Py_RETURN_NONE;
}

static PyObject *set_moments_since(PyObject *self, PyObject *value) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    const long long step = PyLong_AsLongLong(value);
    if ((step == -1 && PyErr_Occurred()) || !gg_py_trainer_is_free(t)) return NULL;
    if (step < 0) {
        PyErr_Format(PyExc_ValueError, "moments_since: %lld; must be at least 0", step);
        return NULL;
    }
    for (int i = 0; i < gg_team_local(t->team->team); ++i)
        gg_replica_set_moments_since(gg_trainer_replica(t->trainer, i), step);
    Py_RETURN_NONE;
}

/* What the options of a strategy point into is the trainer's from here on, or, where a change to them has failed
 * half-way, lives as long as the trainer. Clears `memory`. */
static void adopt_options(gg_py_trainer *t, gg_py_option_memory *memory, bool adopted) {
    if (adopted) {
        gg_py_option_memory former = t->strategy;
        t->strategy = *memory;
        *memory = former;
    } else if (!gg_trainer_is_whole(t->trainer)) {
        if (memory->table != NULL) gg_py_trainer_hold(t, (PyObject *)memory->table);
        if (memory->packs != NULL) gg_py_trainer_hold(t, memory->packs);
    }
    gg_py_option_memory_clear(memory);
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
    Py_BEGIN_ALLOW_THREADS;
    status = gg_trainer_reshape(t->trainer, &how);
    Py_END_ALLOW_THREADS;
    t->busy = false;
    PyObject *done = status == GG_OK ? Py_NewRef(Py_None) : gg_py_raise(status);
    if (strategy != NULL) adopt_options(t, &memory, status == GG_OK);
    return done;
}

PyMethodDef gg_py_trainer_state[] = {
    {"reshape", GG_PY_KEYWORDS(py_trainer_reshape),
     "Goes on with another strategy or size of batch, with the next batch of the same epoch."},
    {"set_schedule", py_trainer_set_schedule, METH_O,
     "set_schedule($self, schedule, /)\n--\n\nThe learning rates from here on, of every local rank."},
    {"set_moments_since", set_moments_since, METH_O,
     "set_moments_since($self, step, /)\n--\n\nThe optimiser's moments were zero in this step."},
    {"consensus_distance", consensus_distance, METH_NOARGS, "Mean over ranks of |w_r - w_mean| / |w_mean|."},
    {"carried", py_trainer_carried, METH_VARARGS,
     "carried($self, rank=0, /)\n--\n\nState that layers carry from batch to batch: rows by the layers' names."},
    {"load_carried", load_carried, METH_VARARGS,
     "load_carried($self, arrays, rank, /)\n--\n\nSets what carried() gave; {}: to zero."},
    {"arenas", py_trainer_arenas, METH_NOARGS,
     "What a rank trains with: by name \"weight\", \"gradient\", \"moment\", \"residue\", \"copy\", \"outer\" or "
     "\"outer moment\"."},
    {"check_arena", check_arena, METH_O,
     "check_arena($self, name, /)\n--\n\nRuntimeError for the gradients where they are not the last step's sum."},
    {"arena", GG_PY_KEYWORDS(py_trainer_arena), "Copies of a local rank's arena, by the parameters' names."},
    {"resume_arena", resume_arena, METH_VARARGS,
     "resume_arena($self, name, arrays, consensus, trained, /)\n--\n\n"
     "Sets an arena of all local ranks to what they go on from, or to one state if the strategy wants one."},
    {"load_arena", GG_PY_KEYWORDS(load_arena), "Sets an arena of one local rank or of all."},
    {"consensus_weights", consensus_weights, METH_NOARGS,
     "The mean of the replicas, or the strategy's own model, by name."},
    {"adopt_consensus", adopt_consensus, METH_NOARGS, "All replicas become the consensus model."},
    {"load_consensus", load_consensus, METH_O,
     "load_consensus($self, weights, /)\n--\n\nSets the strategy's own model, if it has one."},
    {NULL, NULL, 0, NULL}};
