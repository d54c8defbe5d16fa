/* _core.Trainer: its arenas, weights, gradients and the optimiser's moments, out and in. */
#include "python/trainer.h"

/* Room for all elements of an arena, zeros; NULL with an exception. Freed by PyMem_Free. */
static float *new_arena(const gg_py_trainer *t) {
    float *arena = PyMem_Calloc(gg_graph_arena_count(t->graph->graph) + 1, sizeof *arena);
    if (arena == NULL) PyErr_NoMemory();
    return arena;
}

/* The place of an arena in the states of all local ranks; -1 with an exception. */
static int arena_place(const gg_py_trainer *t, const char *name) {
    const gg_state *state = gg_replica_state(gg_trainer_replica(t->trainer, 0));
    const int place = gg_state_find(state, name);
    if (place >= 0) return place;
    PyObject *allowed = PyUnicode_FromString("");
    for (int i = 0; i < state->arenas && allowed != NULL; ++i)
        Py_XSETREF(allowed, PyUnicode_FromFormat("%U%s'%s'", allowed, i > 0 ? ", " : "", state->arena[i].name));
    if (allowed != NULL) PyErr_Format(PyExc_ValueError, "arena: '%s'; allowed: %U", name, allowed);
    Py_XDECREF(allowed);
    return -1;
}

static PyObject *py_trainer_arenas(PyObject *self, PyObject *unused) {
    static const char *const kinds[GG_ARENA_KINDS] = {"weight", "gradient", "moment"};
    const gg_state *state = gg_replica_state(gg_trainer_replica(((gg_py_trainer *)self)->trainer, 0));
    PyObject *dict = PyDict_New();
    (void)unused;
    for (int i = 0; i < state->arenas && dict != NULL; ++i) {
        PyObject *kind = PyUnicode_FromString(kinds[state->arena[i].kind]);
        if (kind == NULL || PyDict_SetItemString(dict, state->arena[i].name, kind) < 0) Py_CLEAR(dict);
        Py_XDECREF(kind);
    }
    return dict;
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
    float *whole = new_arena(t);
    if (whole == NULL || !gg_py_trainer_enter(t)) goto cleanup;
    Py_BEGIN_ALLOW_THREADS;
    status = gg_trainer_gather(t->trainer, place, rank, whole);
    Py_END_ALLOW_THREADS;
    t->busy = false;
    dict = status == GG_OK ? gg_py_arena_dict(t->graph->graph, whole) : gg_py_raise(status);
cleanup:
    PyMem_Free(whole);
    return dict;
}

static PyObject *consensus_weights(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    float *mean = new_arena(t);
    PyObject *dict = NULL;
    gg_status status;
    (void)unused;
    if (mean == NULL) return NULL;
    if (gg_py_trainer_enter(t)) {
        Py_BEGIN_ALLOW_THREADS;
        status = gg_trainer_consensus(t->trainer, mean);
        Py_END_ALLOW_THREADS;
        t->busy = false;
        dict = status == GG_OK ? gg_py_arena_dict(t->graph->graph, mean) : gg_py_raise(status);
    }
    PyMem_Free(mean);
    return dict;
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
    float *whole = new_arena(t);
    if (whole == NULL) return NULL;
    int failed = gg_py_arena_load(t->graph->graph, dict, name, whole);
    for (int i = 0; !failed && i < count; ++i) {
        gg_replica *replica = gg_trainer_replica(t->trainer, first + i);
        gg_replica_load(replica, place, whole);
        if (place == GG_WEIGHTS && rank_object == Py_None) gg_replica_set_consensus(replica, whole);
    }
    PyMem_Free(whole);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

static PyObject *load_consensus(PyObject *self, PyObject *dict) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    gg_status status;
    GG_PY_CALL(t, gg_trainer_settle(t->trainer));
    float *whole = new_arena(t);
    if (whole == NULL) return NULL;
    int failed = gg_py_arena_load(t->graph->graph, dict, "weights", whole);
    for (int i = 0; !failed && i < gg_team_local(t->team->team); ++i)
        gg_replica_set_consensus(gg_trainer_replica(t->trainer, i), whole);
    PyMem_Free(whole);
    if (failed) return NULL;
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
    gg_rate rate = {.lr = 0.01, .gamma = 0.1, .power = 1.0};
    if (!PyDict_Check(schedule)) {
        PyErr_SetString(PyExc_TypeError, "schedule: must be a dict");
        return NULL;
    }
    if (!gg_py_trainer_is_free(t) || gg_py_team_check_collectives(t->team) < 0 || gg_py_rate(schedule, &rate) < 0)
        return NULL;
    gg_status status = gg_rate_check(&rate);
    if (status != GG_OK) return gg_py_raise(status);
    for (int i = 0; i < gg_team_local(t->team->team); ++i)
        gg_replica_set_rate(gg_trainer_replica(t->trainer, i), &rate);
    Py_XSETREF(t->schedule, Py_NewRef(schedule));
    Py_RETURN_NONE;
}

PyMethodDef gg_py_trainer_state[] = {
    {"set_schedule", py_trainer_set_schedule, METH_O,
     "set_schedule($self, schedule, /)\n--\n\nThe learning rates from here on, of every local rank."},
    {"consensus_distance", consensus_distance, METH_NOARGS, "Mean over ranks of |w_r - w_mean| / |w_mean|."},
    {"arenas", py_trainer_arenas, METH_NOARGS,
     "What a rank trains with: by name \"weight\", \"gradient\" or \"moment\"."},
    {"arena", GG_PY_KEYWORDS(py_trainer_arena), "Copies of a local rank's arena, by the parameters' names."},
    {"load_arena", GG_PY_KEYWORDS(load_arena), "Sets an arena of one local rank or of all."},
    {"consensus_weights", consensus_weights, METH_NOARGS,
     "The mean of the replicas, or the strategy's own model, by name."},
    {"load_consensus", load_consensus, METH_O,
     "load_consensus($self, weights, /)\n--\n\nSets the strategy's own model, if it has one."},
    {NULL, NULL, 0, NULL}};
