/* _core.Graph */
#include <string.h>

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
    static char *names[] = {"shape", "name", NULL};
    PyObject *sizes;
    const char *name = "input";
    gg_layer_desc desc = {.kind = GG_LAYER_INPUT};
    gg_shape shape;
    int node;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|s:input", names, &sizes, &name)) return NULL;
    if (gg_py_shape(sizes, "shape", &shape) < 0 || copy_name(name, &desc) < 0) return NULL;
    gg_status status = gg_graph_add(((gg_py_graph *)self)->graph, &desc, &shape, 0, NULL, &node);
    return status == GG_OK ? PyLong_FromLong(node) : gg_py_raise(status);
}

static PyObject *add_layer(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"kind",        "name",        "inputs",    "outputs", "kernel",    "stride",
                            "padding",     "dilation",    "groups",    "bias",    "ceil_mode", "count_include_pad",
                            "probability", "weight_init", "bias_init", NULL};
    const char *kind, *name, *weight_init = "default", *bias_init = "default";
    PyObject *inputs, *fast;
    int bias = 1, ceil_mode = 0, include_pad = 1, node, nodes[GG_MAX_INPUTS];
    long long outputs = 0, groups = 1, kernel[2] = {0, 0}, stride[2] = {1, 1}, padding[2] = {0, 0},
              dilation[2] = {1, 1};
    gg_layer_desc desc = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ssO|$L(LL)(LL)(LL)(LL)Lpppf(sf)(sf):layer", names, &kind, &name,
                                     &inputs, &outputs, &kernel[0], &kernel[1], &stride[0], &stride[1], &padding[0],
                                     &padding[1], &dilation[0], &dilation[1], &groups, &bias, &ceil_mode, &include_pad,
                                     &desc.probability, &weight_init, &desc.weight_init.value, &bias_init,
                                     &desc.bias_init.value))
        return NULL;
    int kind_number = gg_py_choice("kind", kind, kind_names, GG_LAYER_COUNT);
    int weight_kind = gg_py_choice("weight_init", weight_init, init_names, GG_INIT_COUNT);
    int bias_kind = gg_py_choice("bias_init", bias_init, init_names, GG_INIT_COUNT);
    if (kind_number < 0 || weight_kind < 0 || bias_kind < 0 || copy_name(name, &desc) < 0) return NULL;
    desc.kind = (gg_layer_kind)kind_number;
    desc.weight_init.kind = (gg_init_kind)weight_kind;
    desc.bias_init.kind = (gg_init_kind)bias_kind;
    desc.outputs = outputs;
    desc.groups = groups;
    desc.bias = bias;
    desc.window.ceil_mode = ceil_mode;
    desc.window.count_include_pad = include_pad;
    for (int i = 0; i < 2; ++i) {
        desc.window.kernel[i] = kernel[i];
        desc.window.stride[i] = stride[i];
        desc.window.padding[i] = padding[i];
        desc.window.dilation[i] = dilation[i];
    }
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

static PyObject *py_graph_finish(PyObject *self, PyObject *argument) {
    gg_py_graph *g = (gg_py_graph *)self;
    long node = PyLong_AsLong(argument);
    if (node == -1 && PyErr_Occurred()) return NULL;
    gg_status status = gg_graph_finish(g->graph, (int)node);
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
            PyObject *input = PyLong_FromLong(node->input[k]);
            if (input == NULL || PyList_Append(inputs, input) < 0) Py_CLEAR(inputs);
            Py_XDECREF(input);
        }
        PyObject *entry = inputs ? Py_BuildValue("{sssssNsNsLsL}", "name", node->desc.name, "kind",
                                                 gg_layer_kind_name(node->desc.kind), "inputs", inputs, "shape",
                                                 gg_py_shape_tuple(&node->shape), "parameters", parameters, "macs",
                                                 (long long)gg_graph_node_macs(graph, i))
                                 : NULL;
        if (entry == NULL || PyList_Append(list, entry) < 0) Py_CLEAR(list);
        Py_XDECREF(entry);
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
        PyObject *entry = Py_BuildValue("sN", p->name, gg_py_shape_tuple(&p->shape));
        if (entry == NULL || PyList_Append(list, entry) < 0) Py_CLEAR(list);
        Py_XDECREF(entry);
    }
    return list;
}

static PyObject *initial_weights(PyObject *self, PyObject *argument) {
    const gg_graph *graph = ((gg_py_graph *)self)->graph;
    unsigned long long seed = PyLong_AsUnsignedLongLong(argument);
    PyObject *dict = NULL;
    float *arena = NULL;
    if ((seed == (unsigned long long)-1 && PyErr_Occurred()) || !is_finished(self)) return NULL;
    arena = PyMem_Calloc(gg_graph_arena_count(graph) + 1, sizeof(float));
    if (arena == NULL) return PyErr_NoMemory();
    gg_graph_initialise(graph, seed, arena);
    dict = gg_py_arena_dict(graph, arena);
    PyMem_Free(arena);
    return dict;
}

static PyMethodDef methods[] = {
    {"input", (PyCFunction)(void (*)(void))add_input, METH_VARARGS | METH_KEYWORDS, "Adds the input node."},
    {"layer", (PyCFunction)(void (*)(void))add_layer, METH_VARARGS | METH_KEYWORDS,
     "Adds a layer; returns its node number."},
    {"finish", py_graph_finish, METH_O, "finish($self, output, /)\n--\n\nNames the output and closes the graph."},
    {"shape", py_graph_shape, METH_O, "shape($self, node, /)\n--\n\nThe shape of one sample's output."},
    {"nodes", py_graph_nodes, METH_NOARGS, "One dict a node: name, kind, inputs, shape, parameters (count), macs."},
    {"parameters", py_graph_parameters, METH_NOARGS, "Names and shapes of the trained tensors."},
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
