/* _core.Exchange: its life, its properties, and the type, which joins the methods of the exchange_*.c. */
#include "python/exchange.h"

#include <string.h>

PyTypeObject *gg_py_exchange_type;

/* ---- creation ---- */

static void py_exchange_clear(gg_py_exchange *x) {
    gg_peers *peers = x->peers;
    const bool here = x->team == NULL || gg_py_team_is_here(x->team);
    x->peers = NULL;
    if (!here) peers = NULL; /* a forked process can neither use nor free them */
    Py_BEGIN_ALLOW_THREADS;
    for (int i = 0; x->steps != NULL && here && i < x->ranks; ++i) gg_steps_destroy(x->steps[i]);
    gg_peers_destroy(peers);
    Py_END_ALLOW_THREADS;
    Py_CLEAR(x->team);
    gg_py_option_memory_clear(&x->strategy);
    Py_CLEAR(x->schedule);
    Py_CLEAR(x->held);
    PyMem_Free(x->steps);
    PyMem_Free(x->rank_busy);
    PyMem_Free(x->thread);
}

gg_py_exchange *gg_py_exchange_open(gg_py_team *team, PyObject *optimizer, PyObject *strategy,
                                    gg_exchange_options *options) {
    PyTypeObject *type = (PyTypeObject *)gg_py_exchange_type;
    const size_t local = (size_t)gg_team_most_local(team->team);
    if (optimizer == NULL || strategy == NULL)
        return (gg_py_exchange *)PyErr_Format(PyExc_TypeError, "optimizer and strategy must be given");
    gg_py_exchange *x = (gg_py_exchange *)type->tp_alloc(type, 0);
    if (x == NULL) return NULL;
    x->team = (gg_py_team *)Py_NewRef(team);
    x->rank_busy = PyMem_Calloc(local, sizeof *x->rank_busy);
    x->thread = PyMem_Calloc(local, sizeof *x->thread);
    if (x->rank_busy == NULL || x->thread == NULL) {
        PyErr_NoMemory();
        goto failed;
    }
    if (gg_py_optimizer(optimizer, &options->optimizer) < 0 ||
        gg_py_strategy_options(strategy, &options->strategy, &x->strategy) < 0)
        goto failed;
    x->schedule = Py_XNewRef(PyDict_GetItemString(optimizer, "schedule"));
    const gg_status status = gg_isa_select(NULL, &options->devices.device.isa);
    if (status == GG_OK) return x;
    gg_py_raise(status);
failed:
    Py_DECREF(x);
    return NULL;
}

/* The lists of a layout, while they are read; names are borrowed from the Python objects. */
typedef struct layout_lists {
    gg_layer_place *layer;
    gg_parameter *parameter;
    int layers, parameters;
} layout_lists;

static int read_parameter(PyObject *item, int layer, gg_parameter *out) {
    static const char *roles[GG_ROLE_COUNT], *families[GG_FAMILY_COUNT];
    const char *name, *role, *family;
    PyObject *shape;
    out->momentum_factor = 1;
    for (int i = 0; i < GG_ROLE_COUNT; ++i) roles[i] = gg_role_name((gg_role)i);
    for (int i = 0; i < GG_FAMILY_COUNT; ++i) families[i] = gg_family_name((gg_family)i);
    if (!PyArg_ParseTuple(
            item, "sOssff|f;a parameter must be (name, shape, role, family, lr factor, decay factor, momentum factor)",
            &name, &shape, &role, &family, &out->lr_factor, &out->decay_factor, &out->momentum_factor))
        return -1;
    const Py_ssize_t axes = PySequence_Size(shape);
    if (axes < 0 || (axes > 0 && gg_py_shape(shape, name, &out->shape) < 0)) return -1; /* no axes: one number */
    const int which = gg_py_choice("role", role, roles, GG_ROLE_COUNT);
    const int what = gg_py_choice("family", family, families, GG_FAMILY_COUNT);
    if (which < 0 || what < 0) return -1;
    out->name = name;
    out->role = (gg_role)which;
    out->family = (gg_family)what;
    out->layer = layer;
    return 0;
}

static int count_parameters(PyObject *layers) {
    int count = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(layers); ++i) {
        const char *name;
        PyObject *list;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(layers, i), "sO!;a layer must be (name, list of parameters)", &name,
                              &PyList_Type, &list))
            return -1;
        count += (int)PyList_GET_SIZE(list);
    }
    return count;
}

static int read_layers(PyObject *layers, layout_lists *out) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(layers); ++i) {
        PyObject *list;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(layers, i), "sO", &out->layer[i].name, &list)) return -1;
        for (Py_ssize_t k = 0; k < PyList_GET_SIZE(list); ++k)
            if (read_parameter(PyList_GET_ITEM(list, k), (int)i, &out->parameter[out->parameters++]) < 0) return -1;
    }
    return 0;
}

static int make_layout(PyObject *layers, gg_arena_layout *out) {
    layout_lists lists = {0};
    int result = -1;
    const int parameters = count_parameters(layers);
    if (parameters < 0) return -1;
    lists.layers = (int)PyList_GET_SIZE(layers);
    lists.layer = PyMem_Calloc((size_t)lists.layers + 1, sizeof *lists.layer);
    lists.parameter = PyMem_Calloc((size_t)parameters + 1, sizeof *lists.parameter);
    if (lists.layer == NULL || lists.parameter == NULL) {
        PyErr_NoMemory();
        goto cleanup;
    }
    if (read_layers(layers, &lists) < 0) goto cleanup;
    const gg_status status = gg_arena_layout_create(lists.layer, lists.layers, lists.parameter, lists.parameters, out);
    if (status != GG_OK) gg_py_raise(status);
    else result = 0;
cleanup:
    PyMem_Free(lists.layer);
    PyMem_Free(lists.parameter);
    return result;
}

/* Makes the peers, and the steps of each local rank; -1 with an exception. */
static int make_peers(gg_py_exchange *x, const gg_exchange_options *options, const double *step_seconds) {
    const int local = gg_team_local(x->team->team), rank = gg_team_rank(x->team->team);
    x->steps = PyMem_Calloc((size_t)local, sizeof *x->steps);
    x->ranks = local;
    if (x->steps == NULL) PyErr_NoMemory();
    if (x->steps == NULL) return -1;
    gg_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = gg_peers_create(options, step_seconds, x->team->team, &x->peers);
    for (int i = 0; status == GG_OK && i < local; ++i) {
        const double seconds = step_seconds != NULL ? step_seconds[rank + i] : 0;
        status = gg_steps_create(gg_peers_exchange(x->peers, i), seconds, &x->steps[i]);
    }
    Py_END_ALLOW_THREADS;
    if (status == GG_OK) return 0;
    gg_py_raise(status);
    return -1;
}

/* Makes an exchange whole or not at all, and none becomes another one: methods need not check. */
static PyObject *py_exchange_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"team",    "layers", "optimizer",    "strategy", "seed",
                            "threads", "trace",  "compute_time", NULL};
    PyObject *team, *layers, *optimizer = NULL, *strategy = NULL, *compute_time = Py_None;
    gg_py_exchange *x = NULL;
    gg_arena_layout layout = {0};
    double *step_seconds = NULL;
    unsigned long long seed = 0;
    long long trace = 0;
    int result = -1;
    gg_exchange_options options = {.devices = {.device = {.threads = 1}, .backend = "native"}};
    (void)type;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!|$O!O!KiLO:Exchange", names, gg_py_team_type, &team,
                                     &PyList_Type, &layers, &PyDict_Type, &optimizer, &PyDict_Type, &strategy, &seed,
                                     &options.devices.device.threads, &trace, &compute_time))
        return NULL;
    if (gg_py_team_check_process((gg_py_team *)team) < 0 || gg_py_team_check_collectives((gg_py_team *)team) < 0)
        return NULL;
    if (make_layout(layers, &layout) < 0) return NULL;
    if (layout.layers < 1) {
        PyErr_SetString(PyExc_ValueError, "layers: none; there must be at least one parameter");
        goto cleanup;
    }
    if ((x = gg_py_exchange_open((gg_py_team *)team, optimizer, strategy, &options)) == NULL) goto cleanup;
    if (gg_py_compute_time(compute_time, gg_team_size(x->team->team), &step_seconds) < 0) goto cleanup;
    options.layout = &layout;
    options.seed = seed;
    options.trace = trace > 0 ? (size_t)trace : 0;
    result = make_peers(x, &options, step_seconds);
cleanup:
    if (result < 0) Py_CLEAR(x);
    gg_arena_layout_destroy(&layout);
    PyMem_Free(step_seconds);
    return (PyObject *)x;
}

static void py_exchange_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    py_exchange_clear((gg_py_exchange *)self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- properties ---- */

static gg_exchange *first_of(PyObject *self) { return gg_peers_exchange(((gg_py_exchange *)self)->peers, 0); }

/* Step counters equal in the states of all local ranks, by their offsets in gg_state. */
#define STEP ((void *)offsetof(gg_state, step))
#define PUSH_SUM_SINCE ((void *)offsetof(gg_state, push_sum_since))

static PyObject *exchange_get_step(PyObject *self, void *place) {
    return PyLong_FromLongLong(*(int64_t *)((char *)gg_exchange_state(first_of(self)) + (uintptr_t)place));
}

static int exchange_set_step(PyObject *self, PyObject *value, void *place) {
    const gg_py_exchange *x = (gg_py_exchange *)self;
    int64_t step;
    if (gg_py_step(value, place == STEP ? "step" : "push_sum_since", &step) < 0) return -1;
    for (int i = 0; i < gg_team_local(x->team->team); ++i)
        *(int64_t *)((char *)gg_exchange_state(gg_peers_exchange(x->peers, i)) + (uintptr_t)place) = step;
    if (place == STEP) gg_peers_forget_received(x->peers);
    if (place == STEP) gg_team_view_stands(x->team->team, step);
    return 0;
}

static PyObject *exchange_get_since(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLongLong(gg_exchange_asked(first_of(self))->optimizer.moments_since);
}

static int exchange_set_since(PyObject *self, PyObject *value, void *unused) {
    int64_t step;
    (void)unused;
    if (gg_py_step(value, "moments_since", &step) < 0) return -1;
    gg_peers_set_moments_since(((gg_py_exchange *)self)->peers, step);
    return 0;
}

static PyObject *exchange_get_workers(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(gg_exchange_workers(first_of(self)));
}

static PyGetSetDef properties[] = {
    {"step", exchange_get_step, exchange_set_step, "Steps done; of a virtual cluster, by its rank 0.", STEP},
    {"moments_since", exchange_get_since, exchange_set_since, NULL, NULL},
    {"push_sum_since", exchange_get_step, exchange_set_step, "The step in which push-sum's scalars were 1.",
     PUSH_SUM_SINCE},
    {"workers", exchange_get_workers, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL}};

#define MAX_METHODS 44
static PyMethodDef methods[MAX_METHODS + 1];

static PyType_Slot slots[] = {
    {Py_tp_doc, "Arrays of a caller, and what trains and exchanges them: of each rank of this process."},
    {Py_tp_new, py_exchange_new},
    {Py_tp_dealloc, py_exchange_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, NULL}};

static PyType_Spec spec = {"gossipgrad._core.Exchange", sizeof(gg_py_exchange), 0, Py_TPFLAGS_DEFAULT, slots};

int gg_py_add_exchange(PyObject *module) {
    static PyMethodDef *const groups[] = {gg_py_exchange_steps, gg_py_exchange_state, gg_py_exchange_view};
    PyMethodDef *next = methods, *last = methods + MAX_METHODS; /* the last one ends the table */
    for (size_t i = 0; i < sizeof groups / sizeof *groups; ++i)
        for (const PyMethodDef *m = groups[i]; m->ml_name != NULL && next < last; ++m) *next++ = *m;
    if (next == last) {
        PyErr_SetString(PyExc_SystemError, "Exchange: more methods than its table has room for");
        return -1;
    }
    gg_py_exchange_type = gg_py_add_type(module, &spec);
    return gg_py_exchange_type ? 0 : -1;
}
