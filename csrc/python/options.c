/* Options of strategies and optimisers, which _core.Trainer gets in dicts. */
#include <limits.h>

#include "exchange/types.h"
#include "python/python.h"

static const char *text_of(PyObject *dict, const char *name, const char *otherwise) {
    PyObject *item = PyDict_GetItemString(dict, name);
    if (item == NULL) return otherwise;
    return PyUnicode_AsUTF8(item); /* NULL with TypeError if it is no str */
}

static long long py_options_whole_of(PyObject *dict, const char *name, long long otherwise) {
    PyObject *item = PyDict_GetItemString(dict, name);
    return item ? PyLong_AsLongLong(item) : otherwise;
}

static double number_of(PyObject *dict, const char *name, double otherwise) {
    PyObject *item = PyDict_GetItemString(dict, name);
    return item ? PyFloat_AsDouble(item) : otherwise;
}

static bool flag_of(PyObject *dict, const char *name) {
    PyObject *item = PyDict_GetItemString(dict, name);
    return item != NULL && PyObject_IsTrue(item) > 0;
}

static int choice_of(PyObject *dict, const char *name, const char *otherwise, const char *const *names, int n) {
    const char *text = text_of(dict, name, otherwise);
    return text ? gg_py_choice(name, text, names, n) : -1;
}

/* Allowed values of keywords that are names. */
static const char *const mode_names[GG_COMPRESSION_MODES] = {"strict", "safe", "exact"};
static const char *const selection_names[GG_SELECTION_COUNT] = {"local", "cyclic"};

static void strategy_names(const char *out[GG_STRATEGY_COUNT]) {
    for (int i = 0; i < GG_STRATEGY_COUNT; ++i) out[i] = gg_strategy_name((gg_strategy_kind)i);
}

/* Fills in the names of all optimisers and returns their number. */
static int optimizer_names(const char *out[GG_OPTIMIZERS_COUNT]) {
    int n = 0;
    for (; gg_optimizer_types[n] != NULL; ++n) out[n] = gg_optimizer_types[n]->name;
    return n;
}

/* Sets dict[key] to a tuple of n names; -1 with an exception. */
static int add_names(PyObject *dict, const char *key, const char *const *names, int n) {
    PyObject *tuple = PyTuple_New(n);
    for (int i = 0; tuple != NULL && i < n; ++i) {
        PyObject *name = PyUnicode_FromString(names[i]);
        if (name == NULL) Py_CLEAR(tuple);
        else PyTuple_SET_ITEM(tuple, i, name);
    }
    const int result = tuple != NULL ? PyDict_SetItemString(dict, key, tuple) : -1;
    Py_XDECREF(tuple);
    return result;
}

static PyObject *options_choices(PyObject *module, PyObject *unused) {
    const char *names[GG_STRATEGY_COUNT], *families[GG_FAMILY_COUNT];
    PyObject *dict = PyDict_New();
    (void)module, (void)unused;
    strategy_names(names);
    const char *optimizers[GG_OPTIMIZERS_COUNT];
    const int known = optimizer_names(optimizers);
    for (int i = 0; i < GG_FAMILY_COUNT; ++i) families[i] = gg_family_name((gg_family)i);
    if (dict != NULL && add_names(dict, "strategy", names, GG_STRATEGY_COUNT) == 0 &&
        add_names(dict, "topology", gg_py_topology_names, GG_TOPOLOGY_TABLE) == 0 &&
        add_names(dict, "family", families, GG_FAMILY_COUNT) == 0 &&
        add_names(dict, "mode", mode_names, GG_COMPRESSION_MODES) == 0 &&
        add_names(dict, "selection", selection_names, GG_SELECTION_COUNT) == 0 &&
        add_names(dict, "optimizer", optimizers, known) == 0)
        return dict;
    Py_XDECREF(dict);
    return NULL;
}

/* A set of names, a bit each, from a sequence; -1 with an exception. */
static int set_from(const char *argument, PyObject *item, const char *const *names, int n, unsigned *out) {
    *out = 0;
    PyObject *fast = PySequence_Fast(item, "must be a sequence of names");
    for (Py_ssize_t i = 0; fast != NULL && i < PySequence_Fast_GET_SIZE(fast) && !PyErr_Occurred(); ++i) {
        const char *text = PyUnicode_AsUTF8(PySequence_Fast_GET_ITEM(fast, i));
        int place = text != NULL ? gg_py_choice(argument, text, names, n) : -1;
        if (place >= 0) *out |= 1u << place;
    }
    Py_XDECREF(fast);
    return PyErr_Occurred() ? -1 : 0;
}

/* Elements of a bin of each family, by its name; 0 if the dict lacks it. -1 with an exception. */
static int bins_of(PyObject *dict, int out[GG_FAMILY_COUNT]) {
    PyObject *sizes = PyDict_GetItemString(dict, "bin_size");
    if (sizes == NULL || !PyDict_Check(sizes)) {
        PyErr_SetString(PyExc_TypeError, "bin_size: must be a dict of sizes by family");
        return -1;
    }
    for (int family = 0; family < GG_FAMILY_COUNT; ++family) {
        const long long size = py_options_whole_of(sizes, gg_family_name((gg_family)family), 0);
        if (PyErr_Occurred()) return -1;
        out[family] = size > INT_MAX ? INT_MAX : size < -1 ? -1 : (int)size;
    }
    return 0;
}

/* Factor of each family: a number for all, or a dict by name; 2 if missing. -1 with an exception. */
static int factors_of(PyObject *dict, float out[GG_FAMILY_COUNT]) {
    PyObject *factors = PyDict_GetItemString(dict, "factor");
    const bool by_family = factors != NULL && PyDict_Check(factors);
    for (int family = 0; family < GG_FAMILY_COUNT; ++family) {
        out[family] = (float)(by_family ? number_of(factors, gg_family_name((gg_family)family), 2.0)
                                        : number_of(dict, "factor", 2.0));
        if (PyErr_Occurred()) return -1;
    }
    return 0;
}

/* The names of a list, each ended by a newline; -1 with an exception. */
static int names_of(PyObject *list, const char **out, PyObject **memory) {
    *memory = PyUnicode_FromString("");
    for (Py_ssize_t i = 0; PyList_Check(list) && *memory != NULL && i < PyList_GET_SIZE(list); ++i)
        Py_XSETREF(*memory, PyUnicode_FromFormat("%U%S\n", *memory, PyList_GET_ITEM(list, i)));
    if (!PyList_Check(list)) PyErr_SetString(PyExc_TypeError, "packs: must be a list of names");
    *out = *memory != NULL && PyList_Check(list) ? PyUnicode_AsUTF8(*memory) : NULL;
    return *out != NULL ? 0 : -1;
}

int gg_py_compression(PyObject *dict, gg_compression *out, PyObject **packs) {
    *out = (gg_compression){0};
    *packs = NULL;
    if (dict == NULL || dict == Py_None) return 0;
    if (!PyDict_Check(dict)) {
        PyErr_SetString(PyExc_TypeError, "compression: must be a dict");
        return -1;
    }
    const int mode = choice_of(dict, "mode", "strict", mode_names, GG_COMPRESSION_MODES);
    if (mode < 0) return -1;
    const int selection = choice_of(dict, "selection", "local", selection_names, GG_SELECTION_COUNT);
    if (selection < 0) return -1;
    const int type = choice_of(dict, "values", "bfloat16", gg_wire_names, 2);
    if (type < 0) return -1;
    const long long dense_below = py_options_whole_of(dict, "dense_below", 0);
    if (dense_below < 0 && !PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "dense_below: %lld; must be at least 0", dense_below);
    *out = (gg_compression){.active = true,
                            .mode = (gg_compression_mode)mode,
                            .values = (gg_dtype)type,
                            .dense_below = (size_t)dense_below,
                            .warmup = py_options_whole_of(dict, "warmup", 0),
                            .selection = (gg_compression_selection)selection,
                            .local_momentum = flag_of(dict, "local_momentum")};
    if (PyErr_Occurred()) return -1;
    PyObject *roles = PyDict_GetItemString(dict, "dense");
    if (roles != NULL && set_from("dense", roles, gg_role_names, GG_ROLE_COUNT, &out->dense_roles) < 0) return -1;
    PyObject *names = PyDict_GetItemString(dict, "packs");
    if (names != NULL && names != Py_None && names_of(names, &out->packs, packs) < 0) return -1;
    return factors_of(dict, out->factor) < 0 ? -1 : bins_of(dict, out->bin);
}

void gg_py_option_memory_clear(gg_py_option_memory *memory) {
    Py_CLEAR(memory->table);
    Py_CLEAR(memory->packs);
}

/* ---- options by description ---- */

static int type_error(const gg_option *option, PyObject *item) {
    const bool named = option->type == GG_OPTION_NAME || option->type == GG_OPTION_SET;
    PyErr_Clear();
    PyErr_Format(PyExc_TypeError, "%s: %R is no %s%s%s%s", option->name, item, named ? "name" : "number",
                 option->unset != NULL ? ", nor '" : "", option->unset != NULL ? option->unset : "",
                 option->unset != NULL ? "'" : "");
    return -1;
}

/* A number of any of the types; -1 with an exception. */
static int number_from(const gg_option *option, PyObject *item, void *out, int i) {
    const bool real = option->type == GG_OPTION_FLOAT || option->type == GG_OPTION_DOUBLE;
    int overflow = 0;
    const double value = real ? PyFloat_AsDouble(item) : (double)PyLong_AsLongLongAndOverflow(item, &overflow);
    if (PyErr_Occurred()) return type_error(option, item);
    gg_option_set(option, out, i, overflow != 0 ? overflow * 1e300 : value);
    if (option->unset == NULL || gg_option_check(option, value) == GG_OK) return 0;
    gg_py_raise(GG_ERROR_ARGUMENT);
    return -1;
}

static int numbers_from(const gg_option *option, PyObject *item, void *out) {
    if (option->count == 0) return number_from(option, item, out, 0);
    PyObject *fast = PySequence_Fast(item, "");
    const Py_ssize_t n = fast != NULL ? PySequence_Fast_GET_SIZE(fast) : 0;
    if (n < 1 || (option->length > 0 ? n > option->count : n != option->count)) {
        Py_XDECREF(fast);
        PyErr_Format(PyExc_ValueError, "%s: %R; must be %s%d numbers", option->name, item,
                     option->length > 0 ? "1 to " : "", option->count);
        return -1;
    }
    if (option->length > 0) *(int *)((char *)out + option->length) = (int)n;
    int result = 0;
    for (int i = 0; result == 0 && i < n; ++i) result = number_from(option, PySequence_Fast_GET_ITEM(fast, i), out, i);
    Py_DECREF(fast);
    return result;
}

/* The place of a name; of True and False by the names that str() gives them. */
static int place_of(const gg_option *option, PyObject *item) {
    if (!PyUnicode_Check(item) && !PyBool_Check(item)) return type_error(option, item);
    PyObject *text = PyObject_Str(item);
    const char *name = text != NULL ? PyUnicode_AsUTF8(text) : NULL;
    const int place = name != NULL ? gg_py_choice(option->name, name, option->names, option->choices) : -1;
    Py_XDECREF(text);
    return place;
}

int gg_py_option_from(const gg_option *option, PyObject *item, void *out) {
    unsigned bits = 0;
    int place;
    switch (option->type) {
    case GG_OPTION_FLAG:
        place = PyObject_IsTrue(item);
        if (place >= 0) gg_option_set(option, out, 0, place);
        return place < 0 ? -1 : 0;
    case GG_OPTION_NAME:
        place = place_of(option, item);
        if (place >= 0) gg_option_set(option, out, 0, place);
        return place < 0 ? -1 : 0;
    case GG_OPTION_SET:
        if (set_from(option->name, item, option->names, option->choices, &bits) < 0) return -1;
        gg_option_set(option, out, 0, bits);
        return 0;
    default: return numbers_from(option, item, out);
    }
}

/* True if an option's value means left out: None, or the word for its default. */
static bool is_unset(const gg_option *option, PyObject *item) {
    if (item == NULL || item == Py_None) return true;
    return option->unset != NULL && PyUnicode_Check(item) && PyUnicode_CompareWithASCIIString(item, option->unset) == 0;
}

/* Options that the dict has; the others keep their values. */
static int options_from(PyObject *dict, const gg_option *list, void *out) {
    for (; list->name != NULL; ++list) {
        PyObject *item = PyDict_GetItemString(dict, list->name);
        if (!is_unset(list, item) && gg_py_option_from(list, item, out) < 0) return -1;
    }
    return 0;
}

static PyObject *names_in(const gg_option *option) {
    const unsigned bits = (unsigned)option->fallback[0];
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < option->choices; ++i) {
        PyObject *name = bits & 1u << i ? PyUnicode_FromString(option->names[i]) : NULL;
        if (name != NULL && PyList_Append(list, name) < 0) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

/* A default as a Python object. */
static PyObject *fallback_of(const gg_option *option) {
    const double *value = option->fallback;
    if (option->unset != NULL || option->required) return Py_NewRef(Py_None);
    switch (option->type) {
    case GG_OPTION_FLAG: return PyBool_FromLong(value[0] != 0);
    case GG_OPTION_NAME: return PyUnicode_FromString(option->names[(int)value[0]]);
    case GG_OPTION_SET: return names_in(option);
    case GG_OPTION_FLOAT:
    case GG_OPTION_DOUBLE:
        return option->count > 0 ? Py_BuildValue("(dd)", value[0], value[1]) : PyFloat_FromDouble(value[0]);
    default: return PyLong_FromDouble(value[0]);
    }
}

static PyObject *bounds_of(const gg_option *option) {
    const gg_bounds *b = &option->bounds;
    PyObject *dict = PyDict_New(), *low = PyFloat_FromDouble(b->min), *high = PyFloat_FromDouble(b->max);
    if (dict == NULL || low == NULL || high == NULL ||
        PyDict_SetItemString(dict, b->above ? "above" : "low", low) < 0 ||
        (b->max < INFINITY && PyDict_SetItemString(dict, b->below ? "below" : "high", high) < 0))
        Py_CLEAR(dict);
    Py_XDECREF(low);
    Py_XDECREF(high);
    return dict;
}

/* Adds to `dict`, by name, the description of each option. */
static int describe(PyObject *dict, const gg_option *list) {
    static const char *const types[] = {"flag", "integer", "integer", "integer", "number", "number", "name", "set"};
    int result = 0;
    for (; result == 0 && list->name != NULL; ++list) {
        PyObject *one = Py_BuildValue("{ss ss sN sN si sO sz}", "type", types[list->type], "help", list->help,
                                      "default", fallback_of(list), "bounds", bounds_of(list), "count", list->count,
                                      "required", list->required ? Py_True : Py_False, "unset", list->unset);
        if (one != NULL && list->names != NULL) result = add_names(one, "names", list->names, list->choices);
        if (one == NULL || result < 0 || PyDict_SetItemString(dict, list->name, one) < 0) result = -1;
        Py_XDECREF(one);
    }
    return result;
}

/* A new dict of the options of one optimiser. */
static PyObject *describe_optimizer(const gg_optimizer_type *type) {
    PyObject *dict = PyDict_New();
    gg_option rate = gg_optimizer_common[0];
    rate.fallback[0] = type->lr;
    rate.required = type->lr == 0;
    const gg_option rates[] = {rate, {.name = NULL}};
    if (dict == NULL || describe(dict, gg_optimizer_common) < 0 || describe(dict, rates) < 0 ||
        describe(dict, type->options) < 0)
        Py_CLEAR(dict);
    return dict;
}

/* Adds `one` to `all` under a name, and releases `one`. -1 with an exception. */
static int add_described(PyObject *all, const char *name, PyObject *one) {
    const int result = one != NULL ? PyDict_SetItemString(all, name, one) : -1;
    Py_XDECREF(one);
    return result;
}

static PyObject *describe_strategy(const gg_strategy_type *type) {
    PyObject *dict = PyDict_New();
    if (dict == NULL || describe(dict, gg_strategy_common) < 0 || describe(dict, type->options) < 0) Py_CLEAR(dict);
    return dict;
}

static PyObject *options_describe(PyObject *module, PyObject *kind) {
    static const char *const kinds[] = {"optimizer", "strategy"};
    const char *text = PyUnicode_AsUTF8(kind);
    const int which = text != NULL ? gg_py_choice("kind", text, kinds, 2) : -1;
    PyObject *all = which >= 0 ? PyDict_New() : NULL;
    int result = all != NULL ? 0 : -1;
    (void)module;
    for (int i = 0; result == 0 && which == 0 && gg_optimizer_types[i] != NULL; ++i)
        result = add_described(all, gg_optimizer_types[i]->name, describe_optimizer(gg_optimizer_types[i]));
    for (int i = 0; result == 0 && which == 1 && i < GG_STRATEGY_COUNT; ++i)
        result = add_described(all, gg_strategy_name((gg_strategy_kind)i),
                               describe_strategy(gg_strategy_type_of((gg_strategy_kind)i)));
    if (result < 0) Py_CLEAR(all);
    return all;
}

int gg_py_strategy_options(PyObject *dict, gg_strategy_options *out, gg_py_option_memory *memory) {
    *memory = (gg_py_option_memory){0};
    const char *names[GG_STRATEGY_COUNT];
    strategy_names(names);
    const int kind = choice_of(dict, "name", "gossipgrad", names, GG_STRATEGY_COUNT);
    if (kind < 0) return -1;
    *out = gg_strategy_options_of((gg_strategy_kind)kind);
    if (options_from(dict, gg_strategy_common, out) < 0 ||
        options_from(dict, gg_strategy_type_of(out->kind)->options, out) < 0)
        return -1;
    if (gg_py_compression(PyDict_GetItemString(dict, "compression"), &out->compression, &memory->packs) < 0) return -1;
    PyObject *topology = PyDict_GetItemString(dict, "topology");
    if (topology == NULL || !gg_strategy_type_of(out->kind)->partnered) return 0;
    return gg_py_topology(topology, &out->gossip.schedule, &memory->table);
}

int gg_py_optimizer(PyObject *dict, gg_optimizer *out) {
    PyObject *schedule = PyDict_GetItemString(dict, "schedule");
    const char *names[GG_OPTIMIZERS_COUNT];
    const int kind = choice_of(dict, "name", "sgd", names, optimizer_names(names));
    if (kind < 0) return -1;
    *out = gg_optimizer_of(gg_optimizer_types[kind]);
    if (options_from(dict, gg_optimizer_common, out) < 0 || options_from(dict, out->type->options, out) < 0) return -1;
    if (schedule == NULL || schedule == Py_None) return 0;
    if (!PyDict_Check(schedule)) {
        PyErr_SetString(PyExc_TypeError, "schedule: must be a dict");
        return -1;
    }
    return gg_py_rate(schedule, &out->rate);
}

const char *gg_py_backend_choice(const char *name) {
    static const char *const names[] = {"auto", "onednn", "native"};
    if (name == NULL) name = getenv("GOSSIPGRAD_BACKEND");
    if (name == NULL || *name == '\0') name = "auto";
    const int choice = gg_py_choice("backend", name, names, 3);
    return choice < 0 ? NULL : names[choice];
}

int gg_py_conv_algorithm(const char *name, gg_conv_algorithm *out) {
    static const char *const names[GG_CONV_ALGORITHMS] = {"auto", "direct", "winograd"};
    const int choice = gg_py_choice("conv_algorithm", name, names, GG_CONV_ALGORITHMS);
    if (choice >= 0) *out = (gg_conv_algorithm)choice;
    return choice < 0 ? -1 : 0;
}

int gg_py_dtype(const char *name, gg_dtype *out) {
    static const char *const names[] = {"float32", "bfloat16"};
    const int choice = gg_py_choice("dtype", name, names, 2);
    if (choice >= 0) *out = choice == 0 ? GG_FLOAT32 : GG_BFLOAT16;
    return choice < 0 ? -1 : 0;
}

static PyMethodDef options_functions[] = {
    {"choices", options_choices, METH_NOARGS, "The names that the core knows, by keyword."},
    {"describe", options_describe, METH_O,
     "describe($self, kind, /)\n--\n\nOptions of each optimizer or strategy, by name: type, default, bounds, help."},
    {NULL, NULL, 0, NULL}};

int gg_py_add_options(PyObject *module) { return PyModule_AddFunctions(module, options_functions); }
