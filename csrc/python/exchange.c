/* _core.Exchange: its life, its properties, and the type, which joins the methods of the exchange_*.c. */
#include "python/exchange.h"

#include <string.h>

PyTypeObject *gg_py_exchange_type;

/* ---- creation ---- */

static void py_exchange_clear(gg_py_exchange *x) {
    gg_peers *peers = x->peers;
    x->peers = NULL;
    if (x->team != NULL && !gg_py_team_is_here(x->team))
        peers = NULL; /* a forked process can neither use nor free it */
    Py_BEGIN_ALLOW_THREADS;
    gg_peers_destroy(peers);
    Py_END_ALLOW_THREADS;
    gg_arena_layout_destroy(&x->layout);
    Py_CLEAR(x->team);
    gg_py_option_memory_clear(&x->strategy);
    Py_CLEAR(x->schedule);
    PyMem_Free(x->rank_busy);
    PyMem_Free(x->thread);
    x->rank_busy = NULL;
    x->thread = NULL;
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

static int py_exchange_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"team",    "layers", "optimizer",    "strategy", "seed",
                            "threads", "trace",  "compute_time", NULL};
    gg_py_exchange *x = (gg_py_exchange *)self;
    PyObject *team, *layers, *optimizer = NULL, *strategy = NULL, *compute_time = Py_None;
    double *step_seconds = NULL;
    unsigned long long seed = 0;
    long long trace = 0;
    gg_peers_options options = {.threads = 1};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!|$O!O!KiLO:Exchange", names, gg_py_team_type, &team,
                                     &PyList_Type, &layers, &PyDict_Type, &optimizer, &PyDict_Type, &strategy, &seed,
                                     &options.threads, &trace, &compute_time))
        return -1;
    if (optimizer == NULL || strategy == NULL) {
        PyErr_SetString(PyExc_TypeError, "Exchange: optimizer and strategy must be given");
        return -1;
    }
    if (x->peers != NULL) { /* arrays in its memory may be in use */
        PyErr_SetString(PyExc_RuntimeError, "this exchange was initialised before; create a new one");
        return -1;
    }
    py_exchange_clear(x); /* of an initialisation that failed */
    if (make_layout(layers, &x->layout) < 0 || gg_py_optimizer(optimizer, &options.optimizer) < 0 ||
        gg_py_strategy_options(strategy, &options.strategy, &x->strategy) < 0)
        return -1;
    x->team = (gg_py_team *)Py_NewRef(team);
    x->schedule = Py_XNewRef(PyDict_GetItemString(optimizer, "schedule"));
    const size_t local = (size_t)gg_team_local(x->team->team);
    x->rank_busy = PyMem_Calloc(local, sizeof *x->rank_busy);
    x->thread = PyMem_Calloc(local, sizeof *x->thread);
    if (x->rank_busy == NULL || x->thread == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (gg_py_team_check_process(x->team) < 0 || gg_py_team_check_collectives(x->team) < 0) return -1;
    if (gg_py_compute_time(compute_time, gg_team_size(x->team->team), &step_seconds) < 0) return -1;
    options.layout = &x->layout;
    options.seed = seed;
    options.trace = trace > 0 ? (size_t)trace : 0;
    options.step_seconds = step_seconds;
    gg_status status = gg_isa_select(NULL, &options.isa);
    if (status == GG_OK) {
        Py_BEGIN_ALLOW_THREADS;
        status = gg_peers_create(&options, x->team->team, &x->peers);
        Py_END_ALLOW_THREADS;
    }
    PyMem_Free(step_seconds);
    if (status != GG_OK) {
        gg_py_raise(status);
        return -1;
    }
    return 0;
}

static void py_exchange_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    py_exchange_clear((gg_py_exchange *)self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- properties ---- */

static gg_exchange *first_of(PyObject *self) {
    const gg_py_exchange *x = (gg_py_exchange *)self;
    return gg_py_exchange_is_initialised(x) ? gg_peers_exchange(x->peers, 0) : NULL;
}

static PyObject *exchange_get_step(PyObject *self, void *unused) {
    gg_exchange *x = first_of(self);
    (void)unused;
    return x != NULL ? PyLong_FromLongLong(gg_exchange_state(x)->step) : NULL;
}

static int exchange_set_step(PyObject *self, PyObject *value, void *unused) {
    const gg_py_exchange *x = (gg_py_exchange *)self;
    int64_t step;
    (void)unused;
    if (first_of(self) == NULL || gg_py_step(value, "step", &step) < 0) return -1;
    for (int i = 0; i < gg_team_local(x->team->team); ++i)
        gg_exchange_state(gg_peers_exchange(x->peers, i))->step = step;
    return 0;
}

static PyObject *exchange_get_push_sum_since(PyObject *self, void *unused) {
    gg_exchange *x = first_of(self);
    (void)unused;
    return x != NULL ? PyLong_FromLongLong(gg_exchange_state(x)->push_sum_since) : NULL;
}

static int exchange_set_push_sum_since(PyObject *self, PyObject *value, void *unused) {
    const gg_py_exchange *x = (gg_py_exchange *)self;
    int64_t step;
    (void)unused;
    if (first_of(self) == NULL || gg_py_step(value, "push_sum_since", &step) < 0) return -1;
    for (int i = 0; i < gg_team_local(x->team->team); ++i)
        gg_exchange_state(gg_peers_exchange(x->peers, i))->push_sum_since = step;
    return 0;
}

static PyObject *exchange_get_since(PyObject *self, void *unused) {
    (void)unused;
    return first_of(self) != NULL ? PyLong_FromLongLong(gg_peers_moments_since(((gg_py_exchange *)self)->peers)) : NULL;
}

static int exchange_set_since(PyObject *self, PyObject *value, void *unused) {
    int64_t step;
    (void)unused;
    if (first_of(self) == NULL || gg_py_step(value, "moments_since", &step) < 0) return -1;
    gg_peers_set_moments_since(((gg_py_exchange *)self)->peers, step);
    return 0;
}

static PyObject *exchange_get_workers(PyObject *self, void *unused) {
    gg_exchange *x = first_of(self);
    (void)unused;
    return x != NULL ? PyLong_FromLong(gg_exchange_workers(x)) : NULL;
}

static PyGetSetDef properties[] = {
    {"step", exchange_get_step, exchange_set_step, "Steps done; of a virtual cluster, by its rank 0.", NULL},
    {"moments_since", exchange_get_since, exchange_set_since, "The step in which the moments were zero.", NULL},
    {"push_sum_since", exchange_get_push_sum_since, exchange_set_push_sum_since,
     "The step in which push-sum's scalars were 1.", NULL},
    {"workers", exchange_get_workers, NULL, "How many ranks of the team train: the first ones.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

#define MOST_METHODS 41
static PyMethodDef methods[MOST_METHODS + 1];

static PyType_Slot slots[] = {
    {Py_tp_doc, "Arrays of a caller, and what trains and exchanges them: of each rank of this process."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, py_exchange_init},
    {Py_tp_dealloc, py_exchange_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, NULL}};

static PyType_Spec spec = {"gossipgrad._core.Exchange", sizeof(gg_py_exchange), 0, Py_TPFLAGS_DEFAULT, slots};

int gg_py_add_exchange(PyObject *module) {
    static PyMethodDef *const groups[] = {gg_py_exchange_steps, gg_py_exchange_state};
    PyMethodDef *next = methods, *last = methods + MOST_METHODS; /* the last one ends the table */
    for (size_t i = 0; i < sizeof groups / sizeof *groups; ++i)
        for (const PyMethodDef *m = groups[i]; m->ml_name != NULL && next < last; ++m) *next++ = *m;
    if (next == last) {
        PyErr_SetString(PyExc_SystemError, "Exchange: more methods than its table has room for");
        return -1;
    }
    gg_py_exchange_type = gg_py_add_type(module, &spec);
    return gg_py_exchange_type ? 0 : -1;
}
