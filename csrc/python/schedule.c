/* Partner schedules, as tests and plots see them. */
#include "python/python.h"

int gg_py_topology(PyObject *topology, gg_schedule_options *out, PyArrayObject **table) {
    *table = NULL;
    if (PyUnicode_Check(topology)) {
        const char *name = PyUnicode_AsUTF8(topology);
        int choice = name ? gg_py_choice("topology", name, gg_py_topology_names, GG_TOPOLOGY_TABLE) : -1;
        if (choice < 0) return -1;
        out->topology = (gg_topology)choice;
        return 0;
    }
    PyArrayObject *array = gg_py_array(topology, NPY_INT64, "topology");
    if (array == NULL) return -1;
    if (PyArray_NDIM(array) != 2) {
        PyErr_Format(PyExc_ValueError, "topology: an array of %d dimensions; must have 2, steps and ranks",
                     PyArray_NDIM(array));
        Py_DECREF(array);
        return -1;
    }
    out->topology = GG_TOPOLOGY_TABLE;
    out->table = PyArray_DATA(array);
    out->rows = PyArray_DIM(array, 0);
    out->columns = PyArray_DIM(array, 1);
    *table = array;
    return 0;
}

/* The first arguments of all functions here; step and rank only if the function has them. */
typedef struct arguments {
    gg_schedule schedule;
    PyArrayObject *table;
    long long step;
    int rank;
} arguments;

static void arguments_free(arguments *a) {
    gg_schedule_destroy(&a->schedule);
    Py_XDECREF(a->table);
}

/* False with an exception. */
static bool py_schedule_parse(PyObject *args, PyObject *kwargs, bool of_rank, arguments *out) {
    static char *whole_names[] = {"topology", "size", "rotate", "seed", "permutations", NULL};
    static char *rank_names[] = {"topology", "size", "step", "rank", "rotate", "seed", "permutations", NULL};
    gg_schedule_options options = {0};
    PyObject *topology;
    int size, rotate = 1, parsed;
    unsigned long long seed = 0;
    *out = (arguments){0};
    if (of_rank)
        parsed = PyArg_ParseTupleAndKeywords(args, kwargs, "OiLi|pKi", rank_names, &topology, &size, &out->step,
                                             &out->rank, &rotate, &seed, &options.permutations);
    else
        parsed = PyArg_ParseTupleAndKeywords(args, kwargs, "Oi|pKi", whole_names, &topology, &size, &rotate, &seed,
                                             &options.permutations);
    if (!parsed || gg_py_topology(topology, &options, &out->table) < 0) return false;
    options.rotate = rotate != 0;
    gg_status status = gg_schedule_create(&options, size, seed, &out->schedule);
    if (status != GG_OK) gg_py_raise(status);
    else if (of_rank && (out->rank < 0 || out->rank >= size || out->step < 0))
        PyErr_Format(PyExc_ValueError, "rank: %d of %d ranks at step %lld", out->rank, size, out->step);
    if (!PyErr_Occurred()) return true;
    arguments_free(out);
    return false;
}

static PyObject *py_schedule_partners(PyObject *module, PyObject *args, PyObject *kwargs) {
    arguments a;
    int send_to, receive_from;
    (void)module;
    if (!py_schedule_parse(args, kwargs, true, &a)) return NULL;
    gg_schedule_at(&a.schedule, a.step, a.rank, &send_to, &receive_from);
    arguments_free(&a);
    return Py_BuildValue("ii", send_to, receive_from);
}

/* A list of tuples. */
static PyObject *py_schedule_groups(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"size", "most", "turn", "seed", NULL};
    int size, most;
    long long turn;
    unsigned long long seed = 0;
    gg_groups groups;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iiL|K", names, &size, &most, &turn, &seed)) return NULL;
    if (turn < 0) return PyErr_Format(PyExc_ValueError, "turn: %lld; must be at least 0", turn);
    const gg_status status = gg_groups_create(size, most, seed, &groups);
    PyObject *list = status == GG_OK ? PyList_New(0) : gg_py_raise(status);
    int *member = list != NULL ? PyMem_Calloc((size_t)most, sizeof *member) : NULL;
    if (list != NULL && member == NULL) PyErr_NoMemory();
    for (int rank = 0; member != NULL && rank < size && !PyErr_Occurred(); ++rank) {
        const int count = gg_groups_at(&groups, turn, rank, member);
        if (member[0] != rank) continue; /* in the group of an earlier rank */
        PyObject *group = PyTuple_New(count);
        for (int i = 0; group != NULL && i < count; ++i) PyTuple_SET_ITEM(group, i, PyLong_FromLong(member[i]));
        if (group != NULL) PyList_Append(list, group);
        Py_XDECREF(group);
    }
    PyMem_Free(member);
    gg_groups_destroy(&groups);
    if (PyErr_Occurred()) Py_CLEAR(list);
    return list;
}

static PyObject *steps_or_none(int64_t steps) { return steps < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(steps); }

static PyObject *py_schedule_schedule(PyObject *module, PyObject *args, PyObject *kwargs) {
    arguments a;
    int64_t diffusion = 0, meeting = 0;
    (void)module;
    if (!py_schedule_parse(args, kwargs, false, &a)) return NULL;
    long long stages = a.schedule.stages;
    gg_status status = gg_schedule_diffusion(&a.schedule, &diffusion);
    if (status == GG_OK) status = gg_schedule_meeting(&a.schedule, &meeting);
    arguments_free(&a);
    if (status != GG_OK) return gg_py_raise(status);
    return Py_BuildValue("{sLsNsN}", "stages", stages, "diffusion_steps", steps_or_none(diffusion), "meeting_steps",
                         steps_or_none(meeting));
}

static PyObject *push_sum_scalar(PyObject *module, PyObject *args, PyObject *kwargs) {
    arguments a;
    (void)module;
    if (!py_schedule_parse(args, kwargs, true, &a)) return NULL;
    size_t size = (size_t)a.schedule.size;
    double *scalar = PyMem_Calloc(size * 2, sizeof *scalar), *after = scalar + size;
    for (size_t r = 0; scalar != NULL && r < size; ++r) scalar[r] = 1;
    for (int64_t step = 0; scalar != NULL && step < a.step; ++step) {
        gg_schedule_push(&a.schedule, step, scalar, after);
        memcpy(scalar, after, size * sizeof *scalar);
    }
    PyObject *result = scalar != NULL ? PyFloat_FromDouble(scalar[a.rank]) : PyErr_NoMemory();
    PyMem_Free(scalar);
    arguments_free(&a);
    return result;
}

static PyMethodDef functions[] = {{"partners", GG_PY_KEYWORDS(py_schedule_partners), NULL},
                                  {"groups", GG_PY_KEYWORDS(py_schedule_groups), NULL},
                                  {"schedule", GG_PY_KEYWORDS(py_schedule_schedule), NULL},
                                  {"push_sum_scalar", GG_PY_KEYWORDS(push_sum_scalar), NULL},
                                  {NULL, NULL, 0, NULL}};

int gg_py_add_schedule(PyObject *module) { return PyModule_AddFunctions(module, functions); }
