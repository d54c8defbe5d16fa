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

/* How a layer's option is read from Python into its description. */
typedef enum option_type {
    OPTION_INTEGER, /* int64_t */
    OPTION_PAIR,    /* int64_t[2], a tuple of two integers */
    OPTION_FLAG,    /* bool */
    OPTION_NUMBER,  /* float */
    OPTION_SIZES,   /* gg_shape, a tuple of any integers */
    OPTION_INIT     /* gg_init, a tuple (name, value) */
} option_type;

typedef struct layer_option {
    const char *name;
    option_type type;
    size_t offset;
} layer_option;

#define OPTION(name, type, field)                                                                                      \
    { name, type, offsetof(gg_layer_desc, field) }
static const layer_option layer_options[] = {
    OPTION("outputs", OPTION_INTEGER, outputs),
    OPTION("kernel", OPTION_PAIR, window.kernel),
    OPTION("stride", OPTION_PAIR, window.stride),
    OPTION("padding", OPTION_PAIR, window.padding),
    OPTION("dilation", OPTION_PAIR, window.dilation),
    OPTION("ceil_mode", OPTION_FLAG, window.ceil_mode),
    OPTION("count_include_pad", OPTION_FLAG, window.count_include_pad),
    OPTION("groups", OPTION_INTEGER, groups),
    OPTION("output_size", OPTION_PAIR, output_size),
    OPTION("bias", OPTION_FLAG, bias),
    OPTION("normalized_shape", OPTION_SIZES, shape),
    OPTION("dim", OPTION_INTEGER, range.axis),
    OPTION("negative_slope", OPTION_NUMBER, slope),
    OPTION("tanh_form", OPTION_FLAG, tanh_form),
    OPTION("size", OPTION_INTEGER, size),
    OPTION("alpha", OPTION_NUMBER, alpha),
    OPTION("beta", OPTION_NUMBER, beta),
    OPTION("k", OPTION_NUMBER, k),
    OPTION("eps", OPTION_NUMBER, epsilon),
    OPTION("momentum", OPTION_NUMBER, momentum),
    OPTION("affine", OPTION_FLAG, affine),
    OPTION("track_running_stats", OPTION_FLAG, track_statistics),
    OPTION("probability", OPTION_NUMBER, probability),
    OPTION("numbers", OPTION_INTEGER, numbers),
    OPTION("shape", OPTION_SIZES, shape),
    OPTION("order", OPTION_SIZES, order),
    OPTION("axis", OPTION_INTEGER, range.axis),
    OPTION("begin", OPTION_INTEGER, range.begin),
    OPTION("end", OPTION_INTEGER, range.end),
    OPTION("step", OPTION_INTEGER, range.step),
    OPTION("layers", OPTION_INTEGER, layers),
    OPTION("stateful", OPTION_FLAG, stateful),
    OPTION("heads", OPTION_INTEGER, heads),
    OPTION("head_size", OPTION_INTEGER, head_size),
    OPTION("causal", OPTION_FLAG, causal),
    OPTION("pads", OPTION_PAIR, pads),
    OPTION("weight_init", OPTION_INIT, weight_init),
    OPTION("bias_init", OPTION_INIT, bias_init),
};
#undef OPTION

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

static int read_sizes(PyObject *value, const char *name, gg_shape *out) {
    if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) < 1 || PyTuple_GET_SIZE(value) > GG_MAX_DIMS) {
        PyErr_Format(PyExc_TypeError, "%s: must be a tuple of 1 to %d integers", name, GG_MAX_DIMS);
        return -1;
    }
    out->dims = (int)PyTuple_GET_SIZE(value);
    for (int i = 0; i < out->dims; ++i) out->size[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(value, i));
    return PyErr_Occurred() ? -1 : 0;
}

static int read_option(const layer_option *option, PyObject *value, gg_layer_desc *desc) {
    void *field = (char *)desc + option->offset;
    int64_t *integer = field;
    switch (option->type) {
    case OPTION_INTEGER: *integer = PyLong_AsLongLong(value); break;
    case OPTION_PAIR:
        if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 2) {
            PyErr_Format(PyExc_TypeError, "%s: must be a tuple of two integers", option->name);
            return -1;
        }
        for (int i = 0; i < 2; ++i) integer[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(value, i));
        break;
    case OPTION_FLAG: *(bool *)field = PyObject_IsTrue(value) == 1; break;
    case OPTION_NUMBER: *(float *)field = (float)PyFloat_AsDouble(value); break;
    case OPTION_SIZES: return read_sizes(value, option->name, field);
    case OPTION_INIT: return read_init(value, option->name, field);
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int read_options(PyObject *options, gg_layer_desc *desc) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (options != NULL && PyDict_Next(options, &at, &key, &value)) {
        const size_t count = sizeof layer_options / sizeof *layer_options;
        size_t i = 0;
        while (i < count && PyUnicode_CompareWithASCIIString(key, layer_options[i].name) != 0) ++i;
        if (i == count) {
            PyErr_Format(PyExc_TypeError, "layer '%s': unknown option '%U'", desc->name, key);
            return -1;
        }
        if (read_option(&layer_options[i], value, desc) < 0) return -1;
    }
    return 0;
}

static PyObject *add_layer(PyObject *self, PyObject *args, PyObject *options) {
    const char *kind, *name;
    PyObject *inputs, *fast;
    int node, nodes[GG_MAX_INPUTS];
    gg_layer_desc desc = {
        .window = {.stride = {1, 1}, .dilation = {1, 1}, .count_include_pad = true}, .groups = 1, .bias = true};
    if (!PyArg_ParseTuple(args, "ssO:layer", &kind, &name, &inputs)) return NULL;
    int kind_number = gg_py_choice("kind", kind, kind_names, GG_LAYER_COUNT);
    if (kind_number < 0 || copy_name(name, &desc) < 0 || read_options(options, &desc) < 0) return NULL;
    desc.kind = (gg_layer_kind)kind_number;
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
    {"input", GG_PY_KEYWORDS(add_input), "Adds the input node."},
    {"layer", GG_PY_KEYWORDS(add_layer),
     "Adds a layer; returns its node number. The options are those of the kind, under the names of Layer.options()."},
    {"set_factors", set_factors, METH_VARARGS,
     "set_factors($self, node, lr, weight_decay, /)\n--\n\nWhat multiplies the optimiser's of a layer's weights and of "
     "its biases: two pairs."},
    {"finish", py_graph_finish, METH_VARARGS,
     "finish($self, *heads)\n--\n\nNames the heads and closes the graph: node numbers, the main one first, or tuples "
     "(node, training_only)."},
    {"shape", py_graph_shape, METH_O, "shape($self, node, /)\n--\n\nThe shape of one sample's output."},
    {"nodes", py_graph_nodes, METH_NOARGS, "One dict a node: name, kind, inputs, shape, parameters (count), macs."},
    {"parameters", py_graph_parameters, METH_NOARGS, "Name, shape and role of each tensor."},
    {"compressed", compressed_parameters, METH_O,
     "compressed($self, options, /)\n--\n\nThe tensors that these options compress: family and elements of a bin."},
    {"units", unit_groups, METH_NOARGS,
     "One dict a group of units that leave together: layers (that produce them), readers, units (count), rule, fixed "
     "(why none can leave), single (why they are not compared)."},
    {"same_layout", same_layout, METH_O,
     "same_layout($self, other, /)\n--\n\nWhether nodes, shapes, parameters and heads are the same."},
    {"initial_weights", initial_weights, METH_O,
     "initial_weights($self, seed, /)\n--\n\nThe weights that training starts from."},
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
