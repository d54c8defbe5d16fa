/* _core.Trainer: the time of each part of the network, memory. */
#include "base/memory.h"
#include "nn/measure.h"
#include "python/trainer.h"

static PyObject *node_backends(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    const gg_plan *plan = gg_replica_plan(gg_trainer_replica(t->trainer, 0));
    (void)unused;
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && plan != NULL && i < gg_graph_nodes(t->graph->graph); ++i) {
        list = gg_py_append(list, PyUnicode_FromString(gg_plan_node_backend(plan, i)));
    }
    return list;
}

static PyObject *algorithms_of(const gg_plan *plan, int node) {
    PyObject *made = PyDict_New();
    for (int pass = 0; made != NULL && pass < GG_PASS_COUNT; ++pass) {
        const char *backend = NULL;
        gg_algorithm algorithm = GG_ALGORITHM_DIRECT;
        if (!gg_plan_node_algorithm(plan, node, (gg_pass)pass, &backend, &algorithm)) continue;
        made =
            gg_py_put(made, gg_pass_name((gg_pass)pass), Py_BuildValue("(ss)", backend, gg_algorithm_name(algorithm)));
    }
    if (made == NULL || PyDict_GET_SIZE(made) > 0) return made;
    Py_DECREF(made);
    return Py_NewRef(Py_None);
}

static PyObject *node_algorithms(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    const gg_plan *plan = gg_replica_plan(gg_trainer_replica(t->trainer, 0));
    (void)unused;
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && plan != NULL && i < gg_graph_nodes(t->graph->graph); ++i) {
        list = gg_py_append(list, algorithms_of(plan, i));
    }
    return list;
}

static PyObject *graphs(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    const gg_plan *plan = gg_replica_plan(gg_trainer_replica(t->trainer, 0));
    (void)unused;
    if (plan == NULL) return Py_NewRef(Py_None);
    const gg_graphs_report found = gg_plan_graphs_report(plan);
    if (!found.captures && found.why == NULL) return Py_NewRef(Py_None);
    return Py_BuildValue("{s:i,s:i,s:z}", "pieces", found.pieces, "replayed", found.replayed, "failure", found.why);
}

static PyObject *partitioned_fc(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    const bool *partitioned = gg_exchange_fc_partitioned(gg_peers_exchange(t->exchange->peers, 0));
    (void)unused;
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && partitioned != NULL && i < gg_graph_layers(t->graph->graph); ++i) {
        if (!partitioned[i]) continue;
        list = gg_py_append(list, PyUnicode_FromString(gg_graph_layer_name(t->graph->graph, i)));
    }
    return list;
}

bool gg_py_trainer_has_family(const gg_py_trainer *t, gg_family family) {
    int layers = gg_graph_layers(t->graph->graph), layer = 0;
    while (layer < layers && gg_graph_family(t->graph->graph, layer) != family) ++layer;
    return layer < layers;
}

static PyObject *compressed_families(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    bool compresses = gg_exchange_compresses(gg_peers_exchange(t->exchange->peers, 0));
    (void)unused;
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && compresses && i < GG_FAMILY_COUNT; ++i) {
        if (!gg_py_trainer_has_family(t, i)) continue;
        list = gg_py_append(list, PyUnicode_FromString(gg_family_name(i)));
    }
    return list;
}

static PyObject *set_timing(PyObject *self, PyObject *argument) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    gg_plan *plan = gg_replica_plan(gg_trainer_replica(t->trainer, 0));
    int on = PyObject_IsTrue(argument);
    if (on < 0) return NULL;
    if (plan != NULL) gg_plan_set_timing(plan, on);
    Py_RETURN_NONE;
}

/* The names of its row, and its features. */
static PyObject *cost_pair(const gg_cost_query *query) {
    double feature[GG_COST_FEATURES];
    const gg_cost_key key = gg_cost_describe(query, feature);
    PyObject *features = PyTuple_New(GG_COST_FEATURES);
    for (int i = 0; features != NULL && i < GG_COST_FEATURES; ++i) {
        PyObject *one = PyFloat_FromDouble(feature[i]);
        if (one == NULL) Py_CLEAR(features);
        else PyTuple_SET_ITEM(features, i, one);
    }
    if (features == NULL) return NULL;
    return Py_BuildValue("((ssOsssss)N)", gg_dtype_name(key.dtype), gg_op_kind_name(key.kind),
                         key.native ? Py_True : Py_False, gg_layout_name(key.input), gg_layout_name(key.output),
                         gg_cost_form_name(key.form), gg_algorithm_name(key.algorithm), gg_pass_name(key.pass),
                         features);
}

static PyObject *pass_dict(const gg_pass_profile *pass, const gg_cost_query *query) {
    PyObject *cost = cost_pair(query);
    if (cost == NULL) return NULL;
    return Py_BuildValue("{sssssisdsdsOsN}", "backend", pass->backend, "algorithm", gg_algorithm_name(pass->algorithm),
                         "products", pass->products, "seconds", pass->seconds, "bytes", pass->bytes, "with_update",
                         pass->with_update ? Py_True : Py_False, "cost", cost);
}

static PyObject *step_dict(const gg_plan *plan, int number) {
    const gg_step_profile made = gg_plan_step_profile(plan, number), *step = &made;
    PyObject *nodes = PyList_New(0), *passes = PyDict_New();
    for (int i = 0; nodes != NULL && i < step->nodes; ++i) {
        nodes = gg_py_append(nodes, PyLong_FromLong(step->node[i]));
    }
    for (int pass = 0; passes != NULL && pass < GG_PASS_COUNT; ++pass) {
        if (step->pass[pass].products == 0) continue;
        const gg_cost_query query = gg_plan_step_query(plan, number, (gg_pass)pass);
        passes = gg_py_put(passes, gg_pass_name((gg_pass)pass), pass_dict(&step->pass[pass], &query));
    }
    if (nodes == NULL || passes == NULL) {
        Py_XDECREF(nodes);
        Py_XDECREF(passes);
        return NULL;
    }
    return Py_BuildValue("{sNsssssssN}", "nodes", nodes, "operation", gg_op_kind_name(step->kind), "input",
                         gg_layout_name(step->input.layout), "output", gg_layout_name(step->output.layout), "passes",
                         passes);
}

static PyObject *profile(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    const gg_plan *plan = gg_replica_plan(gg_trainer_replica(t->trainer, 0));
    (void)unused;
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && plan != NULL && i < gg_plan_steps(plan); ++i) {
        list = gg_py_append(list, step_dict(plan, i));
    }
    if (list == NULL) return NULL;
    return Py_BuildValue("{sNsd}", "operations", list, "loss_seconds", plan ? gg_plan_loss_seconds(plan) : 0.0);
}

static PyObject *py_trainer_bytes(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    size_t total = 0;
    (void)unused;
    for (int i = 0; i < gg_team_local(t->team->team); ++i) total += gg_replica_bytes(gg_trainer_replica(t->trainer, i));
    return PyLong_FromSize_t(total);
}

/* ---- algorithms of convolutions ---- */

/* Numbers of a key: batch, channels, height and width of the input, channels of the output, padding, bias?, ReLU?,
 * window, stride, dilation, groups. */
enum { KEY_NUMBERS = 16 };

static void key_numbers(const gg_conv_key *k, int64_t n[KEY_NUMBERS]) {
    const int64_t all[KEY_NUMBERS] = {
        k->batch, k->input[0],  k->input[1],  k->input[2],  k->output,    k->padding[0],  k->padding[1],  k->bias,
        k->relu,  k->kernel[0], k->kernel[1], k->stride[0], k->stride[1], k->dilation[0], k->dilation[1], k->groups};
    memcpy(n, all, sizeof all);
}

static PyObject *key_tuple(const gg_conv_key *k) {
    int64_t n[KEY_NUMBERS];
    key_numbers(k, n);
    PyObject *tuple = PyTuple_New(KEY_NUMBERS);
    for (int i = 0; tuple != NULL && i < KEY_NUMBERS; ++i) {
        PyObject *one = PyLong_FromLongLong(n[i]);
        if (one == NULL) Py_CLEAR(tuple);
        else PyTuple_SET_ITEM(tuple, i, one);
    }
    return tuple;
}

static int read_key(PyObject *tuple, gg_conv_key *out) {
    int64_t n[KEY_NUMBERS] = {0};
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != KEY_NUMBERS) {
        PyErr_Format(PyExc_TypeError, "a convolution is described by a tuple of %d integers, not %R", KEY_NUMBERS,
                     tuple);
        return -1;
    }
    for (int i = 0; i < KEY_NUMBERS; ++i) {
        n[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (n[i] == -1 && PyErr_Occurred()) return -1;
    }
    *out = (gg_conv_key){.batch = n[0],
                         .input = {n[1], n[2], n[3]},
                         .output = n[4],
                         .padding = {n[5], n[6]},
                         .bias = n[7],
                         .relu = n[8],
                         .kernel = {n[9], n[10]},
                         .stride = {n[11], n[12]},
                         .dilation = {n[13], n[14]},
                         .groups = n[15]};
    return 0;
}

static PyObject *timings_list(const gg_conv_timing *rows, int count) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < count; ++i) {
        list = gg_py_append(list, Py_BuildValue("(Nssd)", key_tuple(&rows[i].key), gg_pass_name(rows[i].pass),
                                                gg_algorithm_name(rows[i].algorithm), rows[i].seconds));
    }
    return list;
}

/* The tables of a trainer that may have either first: its device's, its fallback's. */
static const char *const table_names[2] = {"onednn", "native"};

/* Which table is asked first for this batch, by its name; *order becomes NULL without a name. */
static int read_order(const char *name, long long batch, gg_table_choice *made, const gg_table_choice **order) {
    *order = NULL;
    if (name == NULL) return 0;
    const int choice = gg_py_choice("table", name, table_names, 2);
    *made = (gg_table_choice){.batch = batch, .fallback_first = choice == 1};
    *order = made;
    return choice < 0 ? -1 : 0;
}

static PyObject *convolutions(PyObject *self, PyObject *args) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *list = NULL;
    long long batch;
    int training = 0, count = 0;
    const char *first = NULL;
    gg_table_choice made;
    const gg_table_choice *order;
    gg_conv_key *keys = NULL;
    if (!PyArg_ParseTuple(args, "Lp|z:convolutions", &batch, &training, &first)) return NULL;
    if (read_order(first, batch, &made, &order) < 0 || !gg_py_trainer_is_free(t)) return NULL;
    const gg_status status =
        gg_replica_measured_convolutions(gg_trainer_replica(t->trainer, 0), batch, training, order, &keys, &count);
    if (status != GG_OK) gg_py_raise(status);
    else list = PyList_New(0);
    for (int i = 0; list != NULL && i < count; ++i) {
        list = gg_py_append(list, key_tuple(&keys[i]));
    }
    gg_free(keys);
    return list;
}

static PyObject *measure_algorithms(PyObject *self, PyObject *args) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *wanted, *list = NULL;
    long long batch;
    int training = 0, count = 0;
    double seconds = 0;
    const char *first = NULL;
    gg_table_choice made;
    const gg_table_choice *order;
    gg_conv_timing *rows = NULL;
    gg_conv_key *keys = NULL;
    bool done;
    if (!PyArg_ParseTuple(args, "LpO!d|z:measure_algorithms", &batch, &training, &PyList_Type, &wanted, &seconds,
                          &first) ||
        read_order(first, batch, &made, &order) < 0)
        return NULL;
    const Py_ssize_t wants = PyList_GET_SIZE(wanted);
    keys = PyMem_Calloc((size_t)wants + 1, sizeof *keys);
    if (keys == NULL) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < wants; ++i)
        if (read_key(PyList_GET_ITEM(wanted, i), &keys[i]) < 0) goto cleanup;
    GG_PY_RUN(t, gg_py_trainer_enter_alone(t), done,
              gg_replica_measure_algorithms(gg_trainer_replica(t->trainer, 0), batch, training, order, keys, (int)wants,
                                            seconds, &rows, &count));
    if (done) list = timings_list(rows, count);
cleanup:
    gg_free(rows);
    PyMem_Free(keys);
    return list;
}

static int read_choice(PyObject *item, gg_conv_choice *out) {
    const char *algorithms[GG_ALGORITHM_COUNT], *name[GG_PASS_COUNT];
    PyObject *key;
    for (int i = 0; i < GG_ALGORITHM_COUNT; ++i) algorithms[i] = gg_algorithm_name((gg_algorithm)i);
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "a choice is a tuple of a convolution and three algorithms");
        return -1;
    }
    if (!PyArg_ParseTuple(item, "O(sss):a choice", &key, &name[0], &name[1], &name[2])) return -1;
    if (read_key(key, &out->key) < 0) return -1;
    for (int pass = 0; pass < GG_PASS_COUNT; ++pass) {
        const int choice = gg_py_choice(gg_pass_name((gg_pass)pass), name[pass], algorithms, GG_ALGORITHM_COUNT);
        if (choice < 0) return -1;
        out->algorithm[pass] = (gg_algorithm)choice;
    }
    return 0;
}

/* Reads the choices of a list into an array, which the caller releases by PyMem_Free. -1 with an exception, and no
 * array. */
static int read_choices(PyObject *list, gg_conv_choice **choice, int *count) {
    const Py_ssize_t size = PyList_GET_SIZE(list);
    *count = (int)size;
    *choice = PyMem_Calloc((size_t)size + 1, sizeof **choice);
    if (*choice == NULL) PyErr_NoMemory();
    for (Py_ssize_t i = 0; *choice != NULL && i < size; ++i) {
        if (i < PyList_GET_SIZE(list) && read_choice(PyList_GET_ITEM(list, i), *choice + i) == 0) continue;
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "the list of choices has changed while it was read");
        PyMem_Free(*choice);
        *choice = NULL;
    }
    return *choice != NULL ? 0 : -1;
}

/* ({table: seconds}, why there are none). */
static PyObject *tables_timing(const gg_tables_timing *timing, double budget) {
    char *why;
    PyObject *result;
    switch (timing->outcome) {
    case GG_TABLES_MEASURED:
        return Py_BuildValue("{sdsd}s", table_names[0], timing->seconds[0], table_names[1], timing->seconds[1], "");
    case GG_TABLES_ONE: return Py_BuildValue("{}s", "");
    case GG_TABLES_NO_MEMORY: return Py_BuildValue("{}N", gg_py_text(gg_error_message()));
    case GG_TABLES_NO_TIME: break;
    }
    why = PyOS_double_to_string(budget, 'g', 4, 0, NULL);
    if (why == NULL) return PyErr_NoMemory();
    result = Py_BuildValue("{}N", PyUnicode_FromFormat("%s s do not suffice for a step with each table first", why));
    PyMem_Free(why);
    return result;
}

static PyObject *measure_tables(PyObject *self, PyObject *args) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *list[2] = {NULL, NULL}, *result = NULL;
    gg_conv_choice *made[2] = {NULL, NULL};
    int count[2] = {0, 0};
    long long batch;
    double seconds = 0;
    gg_tables_timing timing;
    bool done;
    if (!PyArg_ParseTuple(args, "Ld|O!O!:measure_tables", &batch, &seconds, &PyList_Type, &list[0], &PyList_Type,
                          &list[1]))
        return NULL;
    const bool given = list[1] != NULL;
    if (list[0] != NULL && !given) {
        PyErr_Format(PyExc_TypeError, "measure_tables: algorithms of %s first, but none of %s first", table_names[0],
                     table_names[1]);
        return NULL;
    }
    for (int i = 0; given && i < 2; ++i)
        if (read_choices(list[i], &made[i], &count[i]) < 0) goto cleanup;
    const gg_conv_choices algorithms[2] = {{made[0], count[0]}, {made[1], count[1]}};
    GG_PY_RUN(t, gg_py_trainer_enter_alone(t), done,
              gg_replica_measure_tables(gg_trainer_replica(t->trainer, 0), batch, given ? algorithms : NULL, seconds,
                                        &timing));
    if (done) result = tables_timing(&timing, seconds);
cleanup:
    for (int i = 0; i < 2; ++i) PyMem_Free(made[i]);
    return result;
}

static PyObject *measure_step(PyObject *self, PyObject *argument) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    const long long batch = PyLong_AsLongLong(argument);
    double seconds = 0;
    bool done;
    if (batch == -1 && PyErr_Occurred()) return NULL;
    GG_PY_RUN(t, gg_py_trainer_enter_alone(t), done,
              gg_replica_measure_step(gg_trainer_replica(t->trainer, 0), batch, &seconds));
    return done ? PyFloat_FromDouble(seconds) : NULL;
}

static int read_table(PyObject *item, gg_table_choice *out) {
    long long batch;
    const char *name;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "an order of tables is a tuple of a batch size and the first table's name");
        return -1;
    }
    if (!PyArg_ParseTuple(item, "Ls:an order of tables", &batch, &name)) return -1;
    const int choice = gg_py_choice("table", name, table_names, 2);
    *out = (gg_table_choice){.batch = batch, .fallback_first = choice == 1};
    return choice < 0 ? -1 : 0;
}

static PyObject *set_algorithms(PyObject *self, PyObject *args) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    gg_status status = GG_OK;
    PyObject *list, *orders = NULL, *result = NULL;
    if (!PyArg_ParseTuple(args, "O!|O!:set_algorithms", &PyList_Type, &list, &PyList_Type, &orders)) return NULL;
    const Py_ssize_t table_count = orders != NULL ? PyList_GET_SIZE(orders) : 0;
    gg_table_choice *tables = NULL;
    gg_conv_choice *choices = NULL;
    int count = 0;
    if (read_choices(list, &choices, &count) < 0) return NULL;
    tables = PyMem_Calloc((size_t)table_count + 1, sizeof *tables);
    if (tables == NULL) {
        PyErr_NoMemory();
        goto cleanup;
    }
    for (Py_ssize_t i = 0; i < table_count; ++i)
        if (read_table(PyList_GET_ITEM(orders, i), &tables[i]) < 0) goto cleanup;
    if (!gg_py_trainer_is_free(t)) goto cleanup;
    status = gg_trainer_set_algorithms(t->trainer, choices, count, tables, (int)table_count);
    if (status != GG_OK) gg_py_raise(status);
    else result = Py_NewRef(Py_None);
cleanup:
    PyMem_Free(choices);
    PyMem_Free(tables);
    return result;
}

PyMethodDef gg_py_trainer_measures[] = {{"node_algorithms", node_algorithms, METH_NOARGS, NULL},
                                        {"graphs", graphs, METH_NOARGS, NULL},
                                        {"convolutions", convolutions, METH_VARARGS, NULL},
                                        {"measure_algorithms", measure_algorithms, METH_VARARGS, NULL},
                                        {"measure_tables", measure_tables, METH_VARARGS, NULL},
                                        {"measure_step", measure_step, METH_O, "measure_step($self, batch, /)\n--\n\n"},
                                        {"set_algorithms", set_algorithms, METH_VARARGS, NULL},
                                        {"node_backends", node_backends, METH_NOARGS, NULL},
                                        {"partitioned_fc", partitioned_fc, METH_NOARGS, NULL},
                                        {"compressed_families", compressed_families, METH_NOARGS, NULL},
                                        {"profile", profile, METH_NOARGS, NULL},
                                        {"set_timing", set_timing, METH_O, "set_timing($self, on, /)\n--\n\n"},
                                        {"bytes", py_trainer_bytes, METH_NOARGS, NULL},
                                        {NULL, NULL, 0, NULL}};
