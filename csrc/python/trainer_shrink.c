/* _core.ShrinkPlan, and the methods of _core.Trainer that replace its network. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "python/trainer.h"
#include "train/shrink.h"

typedef struct py_shrink_plan {
    PyObject_HEAD gg_shrink_plan *plan;
    gg_py_graph *graph; /* the plan's network */
} py_shrink_plan;

static PyTypeObject *shrink_plan_type;

static void shrink_plan_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    gg_shrink_plan_destroy(((py_shrink_plan *)self)->plan);
    Py_XDECREF(((py_shrink_plan *)self)->graph);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- its attributes ---- */

static PyObject *get_accepted(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(gg_shrink_plan_accepted(((py_shrink_plan *)self)->plan));
}

static PyObject *get_loss(PyObject *self, void *after) {
    const double loss = gg_shrink_plan_loss(((py_shrink_plan *)self)->plan, after != NULL);
    return isnan(loss) ? Py_NewRef(Py_None) : PyFloat_FromDouble(loss);
}

static PyObject *get_hash(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(gg_shrink_plan_hash(((py_shrink_plan *)self)->plan));
}

static PyObject *get_plan_parameters(PyObject *self, void *unused) {
    const gg_graph *graph = gg_shrink_plan_graph(((py_shrink_plan *)self)->plan);
    size_t numbers = 0;
    (void)unused;
    for (int i = 0; i < gg_graph_parameters(graph); ++i)
        if (gg_graph_parameter(graph, i)->role != GG_ROLE_STATISTIC) numbers += gg_graph_parameter(graph, i)->count;
    return PyLong_FromSize_t(numbers);
}

static const char *first_layer_of_group(const gg_graph *graph, const gg_unit_group *group) {
    return gg_graph_node(graph, group->producer[0].node)->desc.name;
}

/* dict[name] += [indices of the outputs of the group's first layer that leave]; -1 with an exception. */
static int add_left(PyObject *dict, const py_shrink_plan *p, const gg_unit_group *group, const bool *leaves) {
    const gg_graph *graph = p->graph->graph;
    const gg_unit_axis *axis = gg_units_produced(gg_shrink_plan_units(p->plan), group->producer[0].node);
    PyObject *list = PyDict_GetItemString(dict, first_layer_of_group(graph, group)); /* borrowed */
    for (int64_t i = 0; i < axis->count; ++i) {
        const int unit = axis->unit[i];
        if (unit < group->first || unit >= group->first + group->units || !leaves[unit]) continue;
        if (list == NULL) {
            list = PyList_New(0);
            if (list == NULL || PyDict_SetItemString(dict, first_layer_of_group(graph, group), list) < 0) return -1;
            Py_DECREF(list);
        }
        PyObject *index = PyLong_FromLongLong((long long)i);
        const int added = index != NULL ? PyList_Append(list, index) : -1;
        Py_XDECREF(index);
        if (added < 0) return -1;
    }
    return list == NULL ? 0 : PyList_Sort(list);
}

static PyObject *get_left(PyObject *self, void *unused) {
    const py_shrink_plan *p = (py_shrink_plan *)self;
    const gg_units *units = gg_shrink_plan_units(p->plan);
    bool *leaves = PyMem_Calloc((size_t)units->units + 1, sizeof *leaves);
    PyObject *dict = PyDict_New();
    (void)unused;
    if (leaves == NULL) PyErr_NoMemory();
    if (leaves == NULL || dict == NULL) goto cleanup;
    (void)gg_shrink_plan_leaves(p->plan, leaves);
    for (int g = 0; g < units->groups; ++g)
        if (add_left(dict, p, &units->group[g], leaves) < 0) goto cleanup;
    PyMem_Free(leaves);
    return dict;
cleanup:
    PyMem_Free(leaves);
    Py_XDECREF(dict);
    return NULL;
}

/* The changed size of a layer. NULL if unchanged, or with an exception. */
static PyObject *new_size(const gg_layer_desc *before, const gg_layer_desc *after) {
    if (after->outputs != before->outputs) return PyLong_FromLongLong((long long)after->outputs);
    switch (after->kind) {
    case GG_LAYER_ATTENTION:
    case GG_LAYER_MULTI_HEAD:
        if (after->attention.heads == before->attention.heads) return NULL;
        return PyLong_FromLongLong((long long)after->attention.heads);
    case GG_LAYER_PAD:
        if (memcmp(&after->pad, &before->pad, sizeof after->pad) == 0) return NULL;
        return Py_BuildValue("LL", (long long)after->pad.zeros[0], (long long)after->pad.zeros[1]);
    case GG_LAYER_SLICE:
        if (memcmp(&after->range, &before->range, sizeof after->range) == 0) return NULL;
        return Py_BuildValue("LL", (long long)after->range.begin, (long long)after->range.end);
    default: return NULL;
    }
}

static PyObject *get_outputs(PyObject *self, void *unused) {
    const py_shrink_plan *p = (py_shrink_plan *)self;
    const gg_graph *before = p->graph->graph, *after = gg_shrink_plan_graph(p->plan);
    PyObject *dict = PyDict_New();
    (void)unused;
    for (int i = 0; dict != NULL && i < gg_graph_nodes(before); ++i) {
        const gg_layer_desc *desc = &gg_graph_node(after, i)->desc;
        PyObject *size = new_size(&gg_graph_node(before, i)->desc, desc);
        if (size == NULL && !PyErr_Occurred()) continue;
        dict = gg_py_put(dict, desc->name, size);
    }
    return dict;
}

/* Sums a number of the groups by their first layer. */
static PyObject *sums_by_layer(PyObject *self, double (*of)(const gg_shrink_plan *plan, int group)) {
    const py_shrink_plan *p = (py_shrink_plan *)self;
    const gg_units *units = gg_shrink_plan_units(p->plan);
    PyObject *dict = PyDict_New();
    for (int g = 0; dict != NULL && g < units->groups; ++g) {
        const char *name = first_layer_of_group(p->graph->graph, &units->group[g]);
        PyObject *others = PyDict_GetItemString(dict, name); /* borrowed */
        if (units->group[g].fixed[0] != '\0' || units->group[g].single[0] != '\0') continue;
        dict =
            gg_py_put(dict, name, PyFloat_FromDouble(of(p->plan, g) + (others != NULL ? PyFloat_AsDouble(others) : 0)));
    }
    return dict;
}

static PyObject *get_bound(PyObject *self, void *unused) {
    (void)unused;
    return sums_by_layer(self, gg_shrink_plan_bound);
}

static PyObject *get_share(PyObject *self, void *unused) {
    (void)unused;
    return sums_by_layer(self, gg_shrink_plan_share);
}

static PyGetSetDef plan_properties[] = {{"accepted", get_accepted, NULL, NULL, NULL},
                                        {"left", get_left, NULL, NULL, NULL},
                                        {"outputs", get_outputs, NULL, NULL, NULL},
                                        {"bound", get_bound, NULL, NULL, NULL},
                                        {"share", get_share, NULL, NULL, NULL},
                                        {"loss_before", get_loss, NULL, NULL, NULL},
                                        {"loss_after", get_loss, NULL, NULL, (void *)&shrink_plan_type},
                                        {"parameters", get_plan_parameters, NULL, NULL, NULL},
                                        {"hash", get_hash, NULL, NULL, NULL},
                                        {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot plan_slots[] = {{Py_tp_doc, "What would leave a network, and what that changes."},
                                   {Py_tp_dealloc, shrink_plan_dealloc},
                                   {Py_tp_getset, plan_properties},
                                   {0, NULL}};

static PyType_Spec plan_spec = {"gossipgrad._core.ShrinkPlan", sizeof(py_shrink_plan), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, plan_slots};

int gg_py_add_shrink(PyObject *module) {
    shrink_plan_type = gg_py_add_type(module, &plan_spec);
    return shrink_plan_type != NULL ? 0 : -1;
}

/* ---- planning ---- */

/* True if a layer produces units of a group. */
static bool produces(const gg_graph *graph, const gg_unit_group *group, const char *layer) {
    for (int p = 0; p < group->producers; ++p)
        if (strcmp(gg_graph_node(graph, group->producer[p].node)->desc.name, layer) == 0) return true;
    return false;
}

/* Sets the budget of a layer's groups. -1 with an exception if it has none, or if all units must stay. */
static int set_budget(const gg_graph *graph, const gg_units *units, const char *layer, double share, double *budget,
                      bool *groups) {
    const char *reason = "it is no layer that has units";
    bool set = false;
    for (int g = 0; g < units->groups; ++g) {
        const gg_unit_group *group = &units->group[g];
        if (!produces(graph, group, layer)) continue;
        if (group->fixed[0] != '\0' || group->single[0] != '\0') {
            reason = group->fixed[0] != '\0' ? group->fixed : group->single;
            continue;
        }
        budget[g] = groups[g] && budget[g] < share ? budget[g] : share;
        set = groups[g] = true;
    }
    if (!set) PyErr_Format(PyExc_ValueError, "budgets: '%s' cannot shrink: %s", layer, reason);
    return set ? 0 : -1;
}

static int py_int_of(PyObject *object) {
    const long number = PyLong_AsLong(object);
    return number > INT_MAX ? INT_MAX : number < INT_MIN ? INT_MIN : (int)number;
}

/* Min units of each group that stay: a number, or a dict of numbers by layers (the largest of a group's, else 1). -1
 * with an exception. */
static int read_least(const gg_graph *graph, const gg_units *units, PyObject *object, int *least) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    const bool by_layer = object != NULL && PyDict_Check(object);
    const int all = object == NULL || by_layer ? 1 : py_int_of(object);
    for (int g = 0; g < units->groups; ++g) least[g] = all;
    while (by_layer && PyDict_Next(object, &at, &key, &value)) {
        const char *layer = PyUnicode_AsUTF8(key);
        const int number = py_int_of(value);
        if (PyErr_Occurred()) return -1;
        for (int g = 0; g < units->groups; ++g) /* A number below 1 is left to the check that refuses it. */
            if (produces(graph, &units->group[g], layer) && least[g] >= 1 && (number > least[g] || number < 1))
                least[g] = number;
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int read_budgets(const gg_graph *graph, const gg_units *units, PyObject *dict, double *budget, bool *groups) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(dict, &at, &key, &value)) {
        const char *layer = PyUnicode_AsUTF8(key);
        const double share = PyFloat_AsDouble(value);
        if (PyErr_Occurred()) return -1;
        if (set_budget(graph, units, layer, share, budget, groups) < 0) return -1;
    }
    return 0;
}

static PyObject *py_trainer_plan_shrink(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"budgets", "least", "probe", "batch", "epsilon", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *budgets, *least_object = NULL, *probe = Py_None;
    long long batch = 64;
    gg_units *units = NULL;
    double *budget = NULL;
    bool *groups = NULL;
    int *least = NULL;
    py_shrink_plan *made = NULL;
    bool done;
    gg_shrink shrink = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|$OOLd:plan_shrink", names, &PyDict_Type, &budgets, &least_object,
                                     &probe, &batch, &shrink.epsilon))
        return NULL;
    if (probe != Py_None && !PyObject_TypeCheck(probe, gg_py_dataset_type)) {
        PyErr_SetString(PyExc_TypeError, "probe: must be a Dataset or None");
        return NULL;
    }
    gg_status status = gg_units_find(t->graph->graph, &units);
    if (status != GG_OK) return gg_py_raise(status);
    budget = PyMem_Calloc((size_t)units->groups + 1, sizeof *budget);
    groups = PyMem_Calloc((size_t)units->groups + 1, sizeof *groups);
    least = PyMem_Calloc((size_t)units->groups + 1, sizeof *least);
    if (budget == NULL || groups == NULL || least == NULL) {
        PyErr_NoMemory();
        goto cleanup;
    }
    if (read_least(t->graph->graph, units, least_object, least) < 0 ||
        read_budgets(t->graph->graph, units, budgets, budget, groups) < 0)
        goto cleanup;
    shrink.least = least;
    shrink.budget = budget;
    shrink.groups = groups;
    shrink.probe = probe != Py_None ? &((gg_py_dataset *)probe)->set : NULL;
    shrink.batch = (int64_t)batch;
    made = PyObject_New(py_shrink_plan, shrink_plan_type);
    if (made == NULL) goto cleanup;
    made->plan = NULL;
    made->graph = (gg_py_graph *)Py_NewRef(t->graph);
    GG_PY_RUN(t, gg_py_trainer_enter(t), done, gg_trainer_plan_shrink(t->trainer, &shrink, &made->plan));
    if (!done) Py_CLEAR(made);
cleanup:
    gg_units_destroy(units);
    PyMem_Free(budget);
    PyMem_Free(groups);
    PyMem_Free(least);
    return (PyObject *)made;
}

/* ---- another network ---- */

/* Gives the graph of a changed network to the trainer. After a failure in which some ranks may still refer to it, it
 * lives as long as the trainer. */
static PyObject *changed_graph(gg_py_trainer *t, PyObject *graph, bool done) {
    if (!done) {
        if (!gg_py_exchange_is_whole(t->exchange)) gg_py_exchange_hold(t->exchange, graph);
        return NULL;
    }
    Py_XSETREF(t->graph, (gg_py_graph *)Py_NewRef(graph));
    Py_RETURN_NONE;
}

static bool is_finished_graph(PyObject *graph) {
    if (((gg_py_graph *)graph)->finished) return true;
    PyErr_SetString(PyExc_RuntimeError, "the graph is not finished yet");
    return false;
}

static PyObject *py_trainer_apply_shrink(PyObject *self, PyObject *args) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *plan, *graph;
    bool done;
    if (!PyArg_ParseTuple(args, "O!O!:apply_shrink", shrink_plan_type, &plan, gg_py_graph_type, &graph)) return NULL;
    if (!is_finished_graph(graph)) return NULL;
    GG_PY_RUN(t, gg_py_trainer_enter(t), done,
              gg_trainer_apply_shrink(t->trainer, ((py_shrink_plan *)plan)->plan, ((gg_py_graph *)graph)->graph));
    return changed_graph(t, graph, done);
}

static PyObject *py_trainer_restore_graph(PyObject *self, PyObject *graph) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    bool done;
    if (!PyObject_TypeCheck(graph, gg_py_graph_type)) {
        PyErr_SetString(PyExc_TypeError, "restore_graph: must be a Graph");
        return NULL;
    }
    if (!is_finished_graph(graph)) return NULL;
    GG_PY_RUN(t, gg_py_trainer_enter(t), done, gg_trainer_restore_graph(t->trainer, ((gg_py_graph *)graph)->graph));
    return changed_graph(t, graph, done);
}

PyMethodDef gg_py_trainer_shrinks[] = {
    {"plan_shrink", GG_PY_KEYWORDS(py_trainer_plan_shrink), NULL},
    {"apply_shrink", py_trainer_apply_shrink, METH_VARARGS, "apply_shrink($self, plan, graph, /)\n--\n\n"},
    {"restore_graph", py_trainer_restore_graph, METH_O, "restore_graph($self, graph, /)\n--\n\n"},
    {NULL, NULL, 0, NULL}};
