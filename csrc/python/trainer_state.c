/* _core.Trainer: weights, gradients and the optimiser's state, out and in. */
#include "python/trainer.h"

static const char *const arena_names[GG_ARENA_COUNT] = {"weights", "gradients", "momentum", "second_moment"};

/* All elements of an arena, zeros; NULL with an exception. Freed by PyMem_Free. */
static float *new_arena(const gg_py_trainer *t) {
    float *arena = PyMem_Calloc(gg_graph_arena_count(t->graph->graph) + 1, sizeof *arena);
    if (arena == NULL) PyErr_NoMemory();
    return arena;
}

static PyObject *py_trainer_show(PyObject *self, PyObject *args, PyObject *kwargs, gg_arena which) {
    static char *names[] = {"rank", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    int rank = 0;
    gg_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|i", names, &rank)) return NULL;
    gg_replica *replica = gg_py_trainer_replica(t, rank);
    if (replica == NULL) return NULL;
    PyObject *dict = NULL;
    float *whole = new_arena(t);
    if (whole == NULL || !gg_py_trainer_enter(t)) goto cleanup;
    Py_BEGIN_ALLOW_THREADS;
    status = gg_trainer_gather(t->trainer, which, rank, whole);
    Py_END_ALLOW_THREADS;
    t->busy = false;
    if (status != GG_OK) gg_py_raise(status);
    else if (gg_state_arena(gg_replica_state(replica), which) == NULL) dict = PyDict_New();
    else dict = gg_py_arena_dict(t->graph->graph, whole);
cleanup:
    PyMem_Free(whole);
    return dict;
}

static PyObject *py_trainer_weights(PyObject *self, PyObject *args, PyObject *kwargs) {
    return py_trainer_show(self, args, kwargs, GG_ARENA_WEIGHT);
}
static PyObject *py_trainer_gradients(PyObject *self, PyObject *args, PyObject *kwargs) {
    return py_trainer_show(self, args, kwargs, GG_ARENA_GRADIENT);
}
static PyObject *py_trainer_momentum(PyObject *self, PyObject *args, PyObject *kwargs) {
    return py_trainer_show(self, args, kwargs, GG_ARENA_MOMENTUM);
}

static PyObject *second_moment(PyObject *self, PyObject *args, PyObject *kwargs) {
    return py_trainer_show(self, args, kwargs, GG_ARENA_SQUARE);
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

static PyObject *py_trainer_load(PyObject *self, PyObject *args, PyObject *kwargs, gg_arena which) {
    const char *argument = arena_names[which];
    char *names[] = {(char *)argument, "rank", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *dict, *rank_object = Py_None;
    int local = gg_team_local(t->team->team), first = 0, count = local;
    gg_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O", names, &dict, &rank_object)) return NULL;
    if (rank_object != Py_None) {
        first = (int)PyLong_AsLong(rank_object);
        count = 1;
        if (PyErr_Occurred() || gg_py_trainer_replica(t, first) == NULL) return NULL;
    }
    GG_PY_CALL(t, gg_trainer_settle(t->trainer));
    int failed = 0;
    float *whole = new_arena(t);
    if (whole == NULL) return NULL;
    if (gg_state_arena(gg_replica_state(gg_trainer_replica(t->trainer, first)), which) != NULL) {
        failed = gg_py_arena_load(t->graph->graph, dict, argument, whole);
        for (int i = 0; !failed && i < count; ++i) {
            gg_replica *replica = gg_trainer_replica(t->trainer, first + i);
            gg_replica_load(replica, which, whole);
            if (which == GG_ARENA_WEIGHT && rank_object == Py_None) gg_replica_set_consensus(replica, whole);
        }
    } else if (!PyDict_Check(dict) || PyDict_Size(dict) != 0) {
        PyErr_Format(PyExc_ValueError, "%s: given, but the optimizer keeps none", argument);
        failed = -1;
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

static PyObject *load_weights(PyObject *self, PyObject *args, PyObject *kwargs) {
    return py_trainer_load(self, args, kwargs, GG_ARENA_WEIGHT);
}

static PyObject *load_momentum(PyObject *self, PyObject *args, PyObject *kwargs) {
    return py_trainer_load(self, args, kwargs, GG_ARENA_MOMENTUM);
}

static PyObject *load_second_moment(PyObject *self, PyObject *args, PyObject *kwargs) {
    return py_trainer_load(self, args, kwargs, GG_ARENA_SQUARE);
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
    {"weights", GG_PY_KEYWORDS(py_trainer_weights), "Copies of a local rank's weights, by name."},
    {"consensus_weights", consensus_weights, METH_NOARGS,
     "The mean of the replicas, or the strategy's own model, by name."},
    {"load_consensus", load_consensus, METH_O,
     "load_consensus($self, weights, /)\n--\n\nSets the strategy's own model, where it keeps one."},
    {"gradients", GG_PY_KEYWORDS(py_trainer_gradients), "Copies of a local rank's last gradients."},
    {"momentum", GG_PY_KEYWORDS(py_trainer_momentum), "Copies of a local rank's momentum, or Adam's first moment."},
    {"second_moment", GG_PY_KEYWORDS(second_moment), "Copies of a local rank's second moment (Adam)."},
    {"load_weights", GG_PY_KEYWORDS(load_weights), "Sets the weights of one local rank or of all."},
    {"load_momentum", GG_PY_KEYWORDS(load_momentum), "Sets the momentum of one local rank or of all."},
    {"load_second_moment", GG_PY_KEYWORDS(load_second_moment), "Sets the second moment of one local rank or of all."},
    {NULL, NULL, 0, NULL}};
