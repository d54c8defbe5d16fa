/* _core.Trainer: its life, its properties, and the type, which joins the methods of the trainer_*.c. */
#include <string.h>

#include "nn/cost.h"
#include "python/trainer.h"

PyTypeObject *gg_py_trainer_type;

static void py_trainer_clear(gg_py_trainer *t) {
    gg_trainer *trainer = t->trainer;
    t->trainer = NULL;
    if (t->team != NULL && !gg_py_team_is_here(t->team))
        trainer = NULL; /* a forked process can neither use nor free it */
    GG_PY_WITHOUT_GIL(gg_trainer_destroy(trainer));
    Py_CLEAR(t->graph);
    Py_CLEAR(t->exchange);
    Py_CLEAR(t->team);
    Py_CLEAR(t->losses);
    Py_CLEAR(t->device);
}

/* A head's loss from a name, or from a dict with the fields of gg_head_options and gg_loss_options: loss, weight,
 * target, label_smoothing, ignore_index, class_weight (float32, one a class; held in t->losses). */
static int read_head_options(gg_py_trainer *t, PyObject *object, gg_head_options *out) {
    static const char *const fields[] = {"loss", "weight", "target", "label_smoothing", "ignore_index", "class_weight"};
    PyObject *item[6] = {object};
    memset(out, 0, sizeof *out);
    out->weight = 1;
    for (int i = 0; PyDict_Check(object) && i < 6; ++i) item[i] = PyDict_GetItemString(object, fields[i]);
    const char *name = item[0] != NULL ? PyUnicode_AsUTF8(item[0]) : NULL;
    if (name == NULL && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "loss: must be a name, or a dict with one");
    if (name == NULL) return -1;
    const int kind = gg_py_choice("loss", name, gg_py_loss_names, GG_LOSS_COUNT);
    if (kind < 0) return -1;
    out->loss.kind = (gg_loss_kind)kind;
    if (item[1] != NULL) out->weight = (float)PyFloat_AsDouble(item[1]);
    if (item[2] != NULL) out->target = (int)PyLong_AsLong(item[2]);
    if (item[3] != NULL) out->loss.label_smoothing = (float)PyFloat_AsDouble(item[3]);
    if (item[4] != NULL && item[4] != Py_None) {
        out->loss.ignores = true;
        out->loss.ignore_index = (int32_t)PyLong_AsLong(item[4]);
    }
    if (PyErr_Occurred()) return -1;
    if (item[5] == NULL || item[5] == Py_None) return 0;
    PyArrayObject *weights = gg_py_array(item[5], NPY_FLOAT32, "class_weight");
    if (weights == NULL) return -1;
    out->loss.class_weights = PyArray_DATA(weights);
    const int held = PyList_Append(t->losses, (PyObject *)weights);
    Py_DECREF(weights);
    return held;
}

/* True if there is a weight for each class of a head. */
static bool fits_classes(const gg_py_trainer *t, const gg_graph *graph, int head, Py_ssize_t held) {
    const gg_shape *output = &gg_graph_node(graph, gg_graph_head(graph, head)->node)->shape;
    const int64_t classes = output->size[output->dims - 1];
    if (t->head[head].loss.class_weights == NULL ||
        PyArray_SIZE((PyArrayObject *)PyList_GET_ITEM(t->losses, held)) == classes)
        return true;
    PyErr_Format(PyExc_ValueError, "class_weights: %zd of them, but the output has %lld classes; allowed: one a class",
                 PyArray_SIZE((PyArrayObject *)PyList_GET_ITEM(t->losses, held)), (long long)classes);
    return false;
}

/* The heads' losses: a name, which all of them have, or a list with one for each. */
static int read_heads(gg_py_trainer *t, const gg_graph *graph, PyObject *loss) {
    const int heads = gg_graph_heads(graph);
    t->losses = PyList_New(0);
    if (t->losses == NULL) return -1;
    if (PyList_Check(loss) && PyList_GET_SIZE(loss) != heads) {
        PyErr_Format(PyExc_ValueError, "loss: %zd of them for %d outputs", PyList_GET_SIZE(loss), heads);
        return -1;
    }
    for (int i = 0; i < heads; ++i) {
        if (read_head_options(t, PyList_Check(loss) ? PyList_GET_ITEM(loss, i) : loss, &t->head[i]) < 0) return -1;
        if (!fits_classes(t, graph, i, PyList_GET_SIZE(t->losses) - 1)) return -1;
    }
    return 0;
}

static int py_trainer_make(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"graph",   "team",    "loss",  "optimizer", "strategy",     "seed",
                            "threads", "backend", "trace", "straggler", "compute_time", "conv_algorithm",
                            "dtype",   "device",  "fast",  "graphs",    "costs",        NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *graph, *team, *optimizer = NULL, *strategy = NULL, *compute_time = Py_None;
    double *step_seconds = NULL;
    PyObject *loss = NULL;
    const char *backend = NULL, *conv_algorithm = "auto", *dtype = "float32", *costs = NULL;
    PyObject *device = NULL;
    int fast = 0, graphs = 1;
    unsigned long long seed = 0;
    long long trace = 0;
    gg_replica_options options = {0};
    gg_exchange_options exchange = {.devices = {.device = {.threads = 1}}};
    gg_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!|$OO!O!KizL(ddK)OssUppz:Trainer", names, gg_py_graph_type,
                                     &graph, gg_py_team_type, &team, &loss, &PyDict_Type, &optimizer, &PyDict_Type,
                                     &strategy, &seed, &exchange.devices.device.threads, &backend, &trace,
                                     &options.straggler.probability, &options.straggler.delay, &options.straggler.seed,
                                     &compute_time, &conv_algorithm, &dtype, &device, &fast, &graphs, &costs))
        return -1;
    if (loss == NULL) {
        PyErr_SetString(PyExc_TypeError, "Trainer: loss must be given");
        return -1;
    }
    if (!((gg_py_graph *)graph)->finished) {
        PyErr_SetString(PyExc_RuntimeError, "the graph is not finished yet");
        return -1;
    }
    if (read_heads(t, ((gg_py_graph *)graph)->graph, loss) < 0) return -1;
    t->team = (gg_py_team *)Py_NewRef(team);
    t->exchange = gg_py_exchange_open(t->team, optimizer, strategy, &exchange);
    if (t->exchange == NULL || (exchange.devices.backend = gg_py_backend_choice(backend)) == NULL ||
        gg_py_conv_algorithm(conv_algorithm, &options.conv_algorithm) < 0 ||
        gg_py_dtype(dtype, &exchange.devices.dtype) < 0)
        return -1;
    options.graph = ((gg_py_graph *)graph)->graph;
    memcpy(options.head, t->head, sizeof t->head);
    if (device != NULL && (exchange.device = PyUnicode_AsUTF8(device)) == NULL) return -1;
    exchange.devices.device.fast = fast != 0;
    if (costs != NULL && (options.costs = gg_cost_model_named(costs)) == NULL) {
        PyErr_Format(PyExc_ValueError, "costs: there is no cost model '%s'", costs);
        return -1;
    }
    options.graphs = graphs != 0;
    exchange.seed = seed;
    exchange.trace = trace > 0 ? (size_t)trace : 0;
    if (gg_py_compute_time(compute_time, gg_team_identities(t->team->team), &step_seconds) < 0) return -1;
    options.step_seconds = step_seconds;
    t->graph = (gg_py_graph *)Py_NewRef(graph);
    t->device = Py_XNewRef(device);
    GG_PY_WITHOUT_GIL(status = gg_trainer_create(&options, &exchange, t->team->team, &t->exchange->peers, &t->trainer));
    PyMem_Free(step_seconds);
    if (status != GG_OK) {
        gg_py_raise(status);
        return -1;
    }
    return 0;
}

/* Makes a trainer whole or not at all, and none becomes another one: methods need not check. */
static PyObject *py_trainer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *self = type->tp_alloc(type, 0);
    if (self != NULL && py_trainer_make(self, args, kwargs) < 0) Py_CLEAR(self);
    return self;
}

static void py_trainer_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    py_trainer_clear((gg_py_trainer *)self);
    type->tp_free(self);
    Py_DECREF(type);
}

static gg_exchange *first_of(PyObject *self) { return gg_peers_exchange(((gg_py_trainer *)self)->exchange->peers, 0); }

static PyObject *get_backend(PyObject *self, void *unused) {
    (void)unused;
    return PyUnicode_FromString(gg_exchange_devices(first_of(self))->tables);
}

static PyObject *get_exchange(PyObject *self, void *unused) {
    (void)unused;
    return Py_NewRef(((gg_py_trainer *)self)->exchange);
}

static PyObject *get_graph(PyObject *self, void *unused) {
    (void)unused;
    return Py_NewRef(((gg_py_trainer *)self)->graph);
}

static PyObject *get_isa(PyObject *self, void *unused) {
    (void)unused;
    return PyUnicode_FromString(gg_isa_name(gg_exchange_asked(first_of(self))->devices.device.isa));
}

static PyGetSetDef properties[] = {{"backend", get_backend, NULL, NULL, NULL},
                                   {"exchange", get_exchange, NULL, NULL, NULL},
                                   {"graph", get_graph, NULL, NULL, NULL},
                                   {"isa", get_isa, NULL, NULL, NULL},
                                   {NULL, NULL, NULL, NULL, NULL}};

#define MAX_METHODS 63
static PyMethodDef methods[MAX_METHODS + 1];

static PyType_Slot slots[] = {{Py_tp_doc, "The ranks of this process, each with its plan, state, strategy and loader."},
                              {Py_tp_new, py_trainer_new},
                              {Py_tp_dealloc, py_trainer_dealloc},
                              {Py_tp_methods, methods},
                              {Py_tp_getset, properties},
                              {0, NULL}};

static PyType_Spec spec = {"gossipgrad._core.Trainer", sizeof(gg_py_trainer), 0, Py_TPFLAGS_DEFAULT, slots};

int gg_py_add_trainer(PyObject *module) {
    static PyMethodDef *const groups[] = {gg_py_trainer_epochs, gg_py_trainer_batches, gg_py_trainer_state,
                                          gg_py_trainer_measures, gg_py_trainer_shrinks};
    PyMethodDef *next = methods, *last = methods + MAX_METHODS; /* the last one ends the table */
    for (size_t i = 0; i < sizeof groups / sizeof *groups; ++i)
        for (const PyMethodDef *m = groups[i]; m->ml_name != NULL && next < last; ++m) *next++ = *m;
    if (next == last) {
        PyErr_SetString(PyExc_SystemError, "Trainer: more methods than its table has room for");
        return -1;
    }
    gg_py_trainer_type = gg_py_add_type(module, &spec);
    return gg_py_trainer_type ? 0 : -1;
}
