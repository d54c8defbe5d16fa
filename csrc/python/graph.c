/* _core.Graph */
#include <string.h>

#include "apoptosis/units.h"
#include "python/python.h"

PyTypeObject *gg_py_graph_type;

static const char *kind_names[GG_LAYER_COUNT]; /* written when the module is made */
static const char *const init_names[GG_INIT_COUNT] = {"default",    "xavier_uniform", "xavier_normal",
                                                      "he_uniform", "he_normal",      "caffe_xavier",
                                                      "uniform",    "normal",         "constant"};

static PyObject *py_graph_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":Graph", names)) return NULL;
    PyObject *self = type->tp_alloc(type, 0);
    gg_status status = self ? gg_graph_create(&((gg_py_graph *)self)->graph) : GG_OK;
    if (status == GG_OK) return self;
    Py_DECREF(self);
    return gg_py_raise(status);
}

static void py_graph_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    gg_graph_destroy(((gg_py_graph *)self)->graph);
    type->tp_free(self);
    Py_DECREF(type);
}

static int copy_name(const char *name, gg_layer_desc *desc) {
    if (strlen(name) >= sizeof desc->name) {
        PyErr_Format(PyExc_ValueError, "name: '%s' is longer than %zu bytes", name, sizeof desc->name - 1);
        return -1;
    }
    strcpy(desc->name, name);
    return 0;
}

static PyObject *add_input(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"shape", "name", "dtype", NULL};
    static const char *const dtypes[] = {"float32", "int32"};
    PyObject *sizes;
    const char *name = "input", *dtype = "float32";
    gg_layer_desc desc = {.kind = GG_LAYER_INPUT};
    gg_shape shape;
    int node;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|ss:input", names, &sizes, &name, &dtype)) return NULL;
    if (gg_py_shape(sizes, "shape", &shape) < 0 || copy_name(name, &desc) < 0) return NULL;
    int number = gg_py_choice("dtype", dtype, dtypes, 2);
    if (number < 0) return NULL;
    desc.dtype = number == 1 ? GG_INT32 : GG_FLOAT32;
    gg_status status = gg_graph_add(((gg_py_graph *)self)->graph, &desc, &shape, 0, NULL, &node);
    return status == GG_OK ? PyLong_FromLong(node) : gg_py_raise(status);
}

static int read_init(PyObject *value, const char *name, gg_init *out) {
    const char *kind;
    if (!PyTuple_Check(value) || !PyArg_ParseTuple(value, "sf", &kind, &out->value)) {
        if (!PyErr_Occurred()) PyErr_Format(PyExc_TypeError, "%s: must be a tuple (name, value)", name);
        return -1;
    }
    int number = gg_py_choice(name, kind, init_names, GG_INIT_COUNT);
    out->kind = (gg_init_kind)(number < 0 ? 0 : number);
    return number < 0 ? -1 : 0;
}

static int read_option(PyObject *name, PyObject *value, gg_layer_desc *desc) {
    const gg_option *option = gg_layer_options(desc->kind);
    if (PyUnicode_CompareWithASCIIString(name, "weight_init") == 0)
        return read_init(value, "weight_init", &desc->weight_init);
    if (PyUnicode_CompareWithASCIIString(name, "bias_init") == 0)
        return read_init(value, "bias_init", &desc->bias_init);
    while (option->name != NULL && PyUnicode_CompareWithASCIIString(name, option->name) != 0) ++option;
    if (option->name != NULL) return gg_py_option_from(option, value, desc);
    PyErr_Format(PyExc_TypeError, "layer '%s' (%s): unknown option '%U'", desc->name, gg_layer_kind_name(desc->kind),
                 name);
    return -1;
}

static PyObject *add_layer(PyObject *self, PyObject *args, PyObject *options) {
    const char *kind, *name;
    PyObject *inputs, *fast, *key, *value;
    int node, nodes[GG_MAX_INPUTS];
    Py_ssize_t at = 0;
    if (!PyArg_ParseTuple(args, "ssO:layer", &kind, &name, &inputs)) return NULL;
    int kind_number = gg_py_choice("kind", kind, kind_names, GG_LAYER_COUNT);
    if (kind_number < 0) return NULL;
    gg_layer_desc desc = gg_layer_desc_of((gg_layer_kind)kind_number);
    if (copy_name(name, &desc) < 0) return NULL;
    while (options != NULL && PyDict_Next(options, &at, &key, &value))
        if (read_option(key, value, &desc) < 0) return NULL;
    fast = PySequence_Fast(inputs, "inputs must be a sequence of node numbers");
    if (fast == NULL) return NULL;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(fast);
    if (n > GG_MAX_INPUTS)
        PyErr_Format(PyExc_ValueError, "layer '%s': %zd inputs; at most %d are allowed", name, n, GG_MAX_INPUTS);
    for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); ++i)
        nodes[i] = (int)PyLong_AsLong(PySequence_Fast_GET_ITEM(fast, i));
    Py_DECREF(fast);
    if (PyErr_Occurred()) return NULL;
    gg_status status = gg_graph_add(((gg_py_graph *)self)->graph, &desc, NULL, (int)n, nodes, &node);
    return status == GG_OK ? PyLong_FromLong(node) : gg_py_raise(status);
}

static PyObject *set_factors(PyObject *self, PyObject *args) {
    int node;
    gg_factors lr, decay;
    if (!PyArg_ParseTuple(args, "i(ff)(ff):set_factors", &node, &lr.weight, &lr.bias, &decay.weight, &decay.bias))
        return NULL;
    gg_status status = gg_graph_set_factors(((gg_py_graph *)self)->graph, node, lr, decay);
    return gg_py_done(status);
}

/* A head from a node's number, or from a tuple of the number and training_only. -1 with an exception. */
static int read_head(PyObject *object, gg_head *out) {
    PyObject *node = object;
    int only = 0;
    if (PyTuple_Check(object) && !PyArg_ParseTuple(object, "Op", &node, &only)) return -1;
    const long number = PyLong_AsLong(node);
    if (number == -1 && PyErr_Occurred()) return -1;
    *out = (gg_head){.node = (int)number, .training_only = only != 0};
    return 0;
}

static PyObject *py_graph_finish(PyObject *self, PyObject *args) {
    gg_py_graph *g = (gg_py_graph *)self;
    gg_head head[GG_MAX_FIELDS] = {{0}};
    const Py_ssize_t heads = PyTuple_GET_SIZE(args);
    for (Py_ssize_t i = 0; i < heads && i < GG_MAX_FIELDS; ++i)
        if (read_head(PyTuple_GET_ITEM(args, i), &head[i]) < 0) return NULL;
    gg_status status = gg_graph_finish(g->graph, (int)heads, head);
    if (status != GG_OK) return gg_py_raise(status);
    g->finished = true;
    Py_RETURN_NONE;
}

static PyObject *py_graph_shape(PyObject *self, PyObject *argument) {
    const gg_graph *graph = ((gg_py_graph *)self)->graph;
    long node = PyLong_AsLong(argument);
    if (node == -1 && PyErr_Occurred()) return NULL;
    if (node < 0 || node >= gg_graph_nodes(graph))
        return PyErr_Format(PyExc_ValueError, "node: %ld; the graph has nodes 0 to %d", node,
                            gg_graph_nodes(graph) - 1);
    return gg_py_shape_tuple(&gg_graph_node(graph, (int)node)->shape);
}

static bool is_finished(PyObject *self) {
    if (!((gg_py_graph *)self)->finished) PyErr_SetString(PyExc_RuntimeError, "the graph is not finished yet");
    return ((gg_py_graph *)self)->finished;
}

static PyObject *py_graph_nodes(PyObject *self, PyObject *unused) {
    const gg_graph *graph = ((gg_py_graph *)self)->graph;
    (void)unused;
    if (!is_finished(self)) return NULL;
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < gg_graph_nodes(graph); ++i) {
        const gg_node *node = gg_graph_node(graph, i);
        long long parameters = 0;
        for (int p = 0; p < gg_graph_parameters(graph); ++p)
            if (node->layer >= 0 && gg_graph_parameter(graph, p)->layer == node->layer)
                parameters += (long long)gg_graph_parameter(graph, p)->count;
        PyObject *inputs = PyList_New(0);
        for (int k = 0; inputs != NULL && k < node->inputs; ++k) {
            inputs = gg_py_append(inputs, PyLong_FromLong(node->input[k]));
        }
        list = gg_py_append(list, inputs ? Py_BuildValue("{sssssNsNsLsL}", "name", node->desc.name, "kind",
                                                         gg_layer_kind_name(node->desc.kind), "inputs", inputs, "shape",
                                                         gg_py_shape_tuple(&node->shape), "parameters", parameters,
                                                         "macs", (long long)gg_graph_node_macs(graph, i))
                                         : NULL);
    }
    return list;
}

static PyObject *py_graph_parameters(PyObject *self, PyObject *unused) {
    const gg_graph *graph = ((gg_py_graph *)self)->graph;
    (void)unused;
    if (!is_finished(self)) return NULL;
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < gg_graph_parameters(graph); ++i) {
        const gg_parameter *p = gg_graph_parameter(graph, i);
        list = gg_py_append(list, Py_BuildValue("sNs", p->name, gg_py_shape_tuple(&p->shape), gg_role_name(p->role)));
    }
    return list;
}

static PyObject *segments_dict(const gg_graph *graph, const gg_segments *segments) {
    PyObject *dict = PyDict_New();
    for (int i = 0; dict != NULL && i < segments->count; ++i) {
        const gg_segment *one = &segments->segment[i];
        if (one->bin == 0) continue;
        dict = gg_py_put(dict, gg_graph_parameter(graph, i)->name,
                         Py_BuildValue("si", gg_family_name(one->family), one->bin));
    }
    return dict;
}

static PyObject *compressed_parameters(PyObject *self, PyObject *options) {
    const gg_graph *graph = ((gg_py_graph *)self)->graph;
    gg_compression compression;
    gg_segments segments = {0};
    PyObject *packs = NULL, *dict = NULL;
    if (!is_finished(self)) return NULL;
    if (gg_py_compression(options, &compression, &packs) == 0) {
        gg_status status = gg_compression_check(&compression);
        if (status == GG_OK) status = gg_segments_create(gg_graph_layout(graph), &compression, &segments);
        dict = status == GG_OK ? segments_dict(graph, &segments) : gg_py_raise(status);
    }
    gg_segments_destroy(&segments);
    Py_XDECREF(packs);
    return dict;
}

static PyObject *group_dict(const gg_graph *graph, const gg_unit_group *group) {
    PyObject *layers = PyList_New(0), *readers = PyList_New(0);
    for (int i = 0; layers != NULL && readers != NULL && i < group->producers + group->readers; ++i) {
        bool produces = i < group->producers;
        int node = produces ? group->producer[i].node : group->reader[i - group->producers].node;
        PyObject *name = PyUnicode_FromString(gg_graph_node(graph, node)->desc.name);
        if (name == NULL || PyList_Append(produces ? layers : readers, name) < 0) Py_CLEAR(layers);
        Py_XDECREF(name);
    }
    if (layers == NULL || readers == NULL) {
        Py_XDECREF(layers);
        Py_XDECREF(readers);
        return NULL;
    }
    return Py_BuildValue("{sN,sN,si,ss,ss,ss}", "layers", layers, "readers", readers, "units", group->units, "rule",
                         gg_unit_rule_name(group->rule), "fixed", group->fixed, "single", group->single);
}

static PyObject *unit_groups(PyObject *self, PyObject *unused) {
    const gg_graph *graph = ((gg_py_graph *)self)->graph;
    gg_units *units = NULL;
    (void)unused;
    if (!is_finished(self)) return NULL;
    gg_status status = gg_units_find(graph, &units);
    if (status != GG_OK) return gg_py_raise(status);
    PyObject *list = PyList_New(units->groups);
    for (int i = 0; list != NULL && i < units->groups; ++i) {
        PyObject *group = group_dict(graph, &units->group[i]);
        if (group == NULL) Py_CLEAR(list);
        else PyList_SET_ITEM(list, i, group);
    }
    gg_units_destroy(units);
    return list;
}

static PyObject *same_layout(PyObject *self, PyObject *other) {
    if (!PyObject_TypeCheck(other, gg_py_graph_type)) {
        PyErr_SetString(PyExc_TypeError, "same_layout: must be a Graph");
        return NULL;
    }
    if (!is_finished(self) || !is_finished(other)) return NULL;
    return PyBool_FromLong(gg_graph_same_layout(((gg_py_graph *)self)->graph, ((gg_py_graph *)other)->graph));
}

static PyObject *initial_weights(PyObject *self, PyObject *argument) {
    const gg_graph *graph = ((gg_py_graph *)self)->graph;
    unsigned long long seed = PyLong_AsUnsignedLongLong(argument);
    if ((seed == (unsigned long long)-1 && PyErr_Occurred()) || !is_finished(self)) return NULL;
    float *arena = gg_py_arena_new(gg_graph_layout(graph));
    if (arena == NULL) return NULL;
    gg_graph_initialise(graph, seed, arena);
    PyObject *dict = gg_py_arena_dict(gg_graph_layout(graph), arena, NULL);
    PyMem_Free(arena);
    return dict;
}

static PyMethodDef methods[] = {
    {"input", GG_PY_KEYWORDS(add_input), NULL},
    {"layer", GG_PY_KEYWORDS(add_layer), NULL},
    {"set_factors", set_factors, METH_VARARGS, "set_factors($self, node, lr, weight_decay, /)\n--\n\n"},
    {"finish", py_graph_finish, METH_VARARGS, "finish($self, *heads)\n--\n\n"},
    {"shape", py_graph_shape, METH_O, "shape($self, node, /)\n--\n\n"},
    {"nodes", py_graph_nodes, METH_NOARGS, NULL},
    {"parameters", py_graph_parameters, METH_NOARGS, NULL},
    {"compressed", compressed_parameters, METH_O, "compressed($self, options, /)\n--\n\n"},
    {"units", unit_groups, METH_NOARGS, NULL},
    {"same_layout", same_layout, METH_O, "same_layout($self, other, /)\n--\n\n"},
    {"initial_weights", initial_weights, METH_O, "initial_weights($self, seed, /)\n--\n\n"},
    {NULL, NULL, 0, NULL}};

static PyType_Slot slots[] = {{Py_tp_doc, "Layers as nodes. Node numbers start at 0; the input is a node."},
                              {Py_tp_new, py_graph_new},
                              {Py_tp_dealloc, py_graph_dealloc},
                              {Py_tp_methods, methods},
                              {0, NULL}};

static PyType_Spec spec = {"gossipgrad._core.Graph", sizeof(gg_py_graph), 0, Py_TPFLAGS_DEFAULT, slots};

int gg_py_add_graph(PyObject *module) {
    for (int i = 0; i < GG_LAYER_COUNT; ++i) kind_names[i] = gg_layer_kind_name((gg_layer_kind)i);
    gg_py_graph_type = gg_py_add_type(module, &spec);
    return gg_py_graph_type ? 0 : -1;
}
