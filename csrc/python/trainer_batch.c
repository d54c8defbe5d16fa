/* _core.Trainer: steps, a benchmark and outputs on batches from Python, and the evaluation of a set. */
#include <string.h>

#include "python/trainer.h"

/* The arrays of one batch, held while they are in use. */
typedef struct batch_arrays {
    PyArrayObject *input[GG_MAX_FIELDS], *target[GG_MAX_FIELDS];
} batch_arrays;

static void batch_arrays_release(batch_arrays *held) {
    for (int i = 0; i < GG_MAX_FIELDS; ++i) {
        Py_CLEAR(held->input[i]);
        Py_CLEAR(held->target[i]);
    }
}

/* Field i of `count`: an entry of a tuple of `count`, or the object itself if there is one field. Borrowed; NULL with
 * an exception. */
static PyObject *batch_field(PyObject *object, int i, int count, const char *what) {
    if (!PyTuple_Check(object) && count == 1) return object;
    if (PyTuple_Check(object) && PyTuple_GET_SIZE(object) == count) return PyTuple_GET_ITEM(object, i);
    PyErr_Format(PyExc_ValueError, "%s: must be a tuple of %d arrays", what, count);
    return NULL;
}

/* Checks that an array is a batch of an input of the network. */
static bool is_batch(const gg_py_trainer *t, int i, PyArrayObject *array) {
    const gg_graph *graph = t->graph->graph;
    const gg_shape *input = &gg_graph_node(graph, gg_graph_input(graph, i))->shape;
    bool fits = PyArray_NDIM(array) == input->dims + 1 && PyArray_DIM(array, 0) >= 1;
    for (int k = 0; fits && k < input->dims; ++k) fits = PyArray_DIM(array, k + 1) == input->size[k];
    if (!fits) {
        char want[GG_SHAPE_TEXT];
        PyObject *shape = PyObject_GetAttrString((PyObject *)array, "shape");
        PyErr_Format(PyExc_ValueError, "samples: shape %S; must be (n, ...) with samples of shape %s and n >= 1", shape,
                     gg_shape_text(input, want));
        Py_XDECREF(shape);
    }
    return fits;
}

/* Checks that tokens are those that layers can look up, and numbers those that they can use. */
static bool are_tokens(const gg_py_trainer *t, int i, PyArrayObject *array) {
    const gg_integers allowed = gg_graph_integers(t->graph->graph, i);
    const char *what = allowed.first > 0 ? "number" : "token";
    const int32_t *value = PyArray_DATA(array);
    for (npy_intp k = 0; allowed.end > 0 && k < PyArray_SIZE(array); ++k) {
        if (value[k] >= allowed.first && value[k] < allowed.end) continue;
        PyErr_Format(PyExc_ValueError, "samples: %s %d; the network has %ss %lld to %lld", what, (int)value[k], what,
                     (long long)allowed.first, (long long)allowed.end - 1);
        return false;
    }
    return true;
}

/* The inputs of a batch: an array, or a tuple of as many as the network has inputs. */
static int read_inputs(const gg_py_trainer *t, PyObject *object, batch_arrays *held, gg_given *out) {
    const gg_graph *graph = t->graph->graph;
    const int count = gg_graph_inputs(graph);
    for (int i = 0; i < count; ++i) {
        const bool tokens = gg_graph_node(graph, gg_graph_input(graph, i))->dtype == GG_INT32;
        PyObject *field = batch_field(object, i, count, "samples");
        if (field == NULL) return -1;
        held->input[i] = gg_py_array(field, tokens ? NPY_INT32 : NPY_FLOAT32, "samples");
        if (held->input[i] == NULL || !is_batch(t, i, held->input[i])) return -1;
        if (tokens && !are_tokens(t, i, held->input[i])) return -1;
        const int64_t n = PyArray_DIM(held->input[i], 0);
        if (i > 0 && n != out->n) {
            PyErr_Format(PyExc_ValueError, "samples: %lld of one input and %lld of another", (long long)out->n,
                         (long long)n);
            return -1;
        }
        out->n = n;
        out->input[i] = PyArray_DATA(held->input[i]);
    }
    return 0;
}

/* Checks the targets of n samples for one head. */
static bool are_targets(const gg_py_trainer *t, int head, PyArrayObject *array, int64_t n) {
    const gg_graph *graph = t->graph->graph;
    const gg_shape *output = &gg_graph_node(graph, gg_graph_head(graph, head)->node)->shape;
    const gg_loss_options *loss = &t->head[head].loss;
    const bool classes = loss->kind == GG_LOSS_CROSS_ENTROPY;
    const int64_t kinds = output->size[output->dims - 1], values = gg_shape_count(output);
    const int64_t want = classes ? n * (values / kinds) : n * values;
    if (PyArray_SIZE(array) != want || PyArray_NDIM(array) < 1 || PyArray_DIM(array, 0) != n) {
        PyErr_Format(PyExc_ValueError, "targets: %zd values for %lld samples; %lld are needed", PyArray_SIZE(array),
                     (long long)n, (long long)want);
        return false;
    }
    for (int64_t i = 0; classes && i < want; ++i) {
        const int32_t label = ((const int32_t *)PyArray_DATA(array))[i];
        if ((label >= 0 && label < kinds) || (loss->ignores && label == loss->ignore_index)) continue;
        PyErr_Format(PyExc_ValueError, "targets: entry %lld is %d; classes are 0 to %lld", (long long)i, (int)label,
                     (long long)kinds - 1);
        return false;
    }
    return true;
}

/* The targets of a batch: an array, or a tuple with those that the heads have by their numbers. */
static int read_targets(const gg_py_trainer *t, PyObject *object, batch_arrays *held, gg_given *out) {
    const int heads = gg_graph_heads(t->graph->graph);
    int count = 1;
    for (int h = 0; h < heads; ++h)
        if (t->head[h].target >= count) count = t->head[h].target + 1;
    for (int h = 0; h < heads; ++h) {
        const int i = t->head[h].target;
        const bool classes = t->head[h].loss.kind == GG_LOSS_CROSS_ENTROPY;
        PyObject *field = batch_field(object, i, count, "targets");
        if (field == NULL) return -1;
        if (held->target[i] == NULL) held->target[i] = gg_py_array(field, classes ? NPY_INT32 : NPY_FLOAT32, "targets");
        if (held->target[i] == NULL) return -1;
        if (PyArray_TYPE(held->target[i]) != (classes ? NPY_INT32 : NPY_FLOAT32)) {
            PyErr_SetString(PyExc_ValueError, "targets: heads that share one must both have classes, or both numbers");
            return -1;
        }
        if (!are_targets(t, h, held->target[i], out->n)) return -1;
        out->target[i] = PyArray_DATA(held->target[i]);
    }
    return 0;
}

/* One batch for each local rank; references are held while the step runs. */
typedef struct batches {
    int count;
    batch_arrays *arrays;
    gg_given *given;
    double *losses;
} batches;

static void batches_free(batches *b) {
    for (int i = 0; b->arrays != NULL && i < b->count; ++i) batch_arrays_release(&b->arrays[i]);
    PyMem_Free(b->arrays);
    PyMem_Free(b->given);
    PyMem_Free(b->losses);
}

static int batches_make(gg_py_trainer *t, PyObject *samples, PyObject *targets, batches *b) {
    size_t n = (size_t)gg_team_local(t->team->team);
    memset(b, 0, sizeof *b);
    if (!PyList_Check(samples) || !PyList_Check(targets) || PyList_GET_SIZE(samples) != (Py_ssize_t)n ||
        PyList_GET_SIZE(targets) != (Py_ssize_t)n) {
        PyErr_Format(PyExc_ValueError, "samples, targets: must be lists with one batch for each of the %zu local ranks",
                     n);
        return -1;
    }
    b->count = (int)n;
    b->arrays = PyMem_Calloc(n, sizeof *b->arrays);
    b->given = PyMem_Calloc(n, sizeof *b->given);
    b->losses = PyMem_Calloc(n, sizeof *b->losses);
    if (!b->arrays || !b->given || !b->losses) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < n; ++i) {
        if (read_inputs(t, PyList_GET_ITEM(samples, (Py_ssize_t)i), &b->arrays[i], &b->given[i]) < 0) return -1;
        if (read_targets(t, PyList_GET_ITEM(targets, (Py_ssize_t)i), &b->arrays[i], &b->given[i]) < 0) return -1;
    }
    return 0;
}

static PyObject *train_step(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"samples", "targets", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *samples, *targets, *list = NULL;
    batches b;
    bool done = false;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:train_step", names, &samples, &targets)) return NULL;
    if (batches_make(t, samples, targets, &b) == 0)
        GG_PY_RUN(t, gg_py_trainer_enter(t), done, gg_trainer_step(t->trainer, b.given, b.losses));
    if (done) list = PyList_New(0);
    for (int i = 0; list != NULL && i < b.count; ++i) {
        list = gg_py_append(list, PyFloat_FromDouble(b.losses[i]));
    }
    batches_free(&b);
    return list;
}

static PyObject *py_trainer_bench(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"samples", "targets", "warmup", "steps", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *samples, *targets, *list = NULL;
    int warmup, steps;
    double *seconds = NULL;
    batch_arrays held = {{NULL}, {NULL}};
    gg_given given = {0};
    bool done = false;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOii:bench", names, &samples, &targets, &warmup, &steps))
        return NULL;
    if (warmup < 0 || steps < 1)
        return PyErr_Format(PyExc_ValueError, "%s: %d; must be at least %d", warmup < 0 ? "warmup" : "steps",
                            warmup < 0 ? warmup : steps, warmup < 0 ? 0 : 1);
    if (read_inputs(t, samples, &held, &given) < 0 || read_targets(t, targets, &held, &given) < 0) goto cleanup;
    seconds = PyMem_Calloc((size_t)(warmup + steps), sizeof *seconds);
    if (seconds == NULL) PyErr_NoMemory();
    else GG_PY_RUN(t, gg_py_trainer_enter(t), done, gg_trainer_bench(t->trainer, &given, warmup + steps, seconds));
    if (done) list = PyList_New(0);
    for (int i = 0; list != NULL && i < steps; ++i) list = gg_py_append(list, PyFloat_FromDouble(seconds[warmup + i]));
cleanup:
    batch_arrays_release(&held);
    PyMem_Free(seconds);
    return list;
}

/* loss and accuracy of one head. */
static PyObject *head_dict(const gg_head_options *options, const gg_loss_sums *sums) {
    const double loss = gg_loss_sums_mean(sums);
    if (options->loss.kind == GG_LOSS_MEAN_SQUARED_ERROR) return Py_BuildValue("{sd}", "loss", loss);
    return Py_BuildValue("{sdsd}", "loss", loss, "accuracy", (double)sums->correct / (double)sums->counted);
}

/* Dict of the main head's evaluation; for several heads, `heads` has each one's by its number. */
static PyObject *evaluation_dict(const gg_py_trainer *t, const gg_evaluation *found) {
    const gg_graph *graph = t->graph->graph;
    int evaluated = 0;
    PyObject *dict = head_dict(&t->head[0], &found->head[0]), *heads = PyDict_New();
    for (int h = 0; heads != NULL && h < gg_graph_heads(graph); ++h) {
        if (gg_graph_head(graph, h)->training_only) continue;
        PyObject *key = PyLong_FromLong(h), *value = head_dict(&t->head[h], &found->head[h]);
        if (key == NULL || value == NULL || PyDict_SetItem(heads, key, value) < 0) Py_CLEAR(heads);
        Py_XDECREF(key);
        Py_XDECREF(value);
        ++evaluated;
    }
    if (dict == NULL || heads == NULL || (evaluated > 1 && PyDict_SetItemString(dict, "heads", heads) < 0))
        Py_CLEAR(dict);
    Py_XDECREF(heads);
    return dict;
}

static PyObject *py_trainer_evaluate(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"dataset", "batch", "replica", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *object, *list = NULL;
    const gg_dataset **sets = NULL;
    long long batch;
    int replicas = 0;
    bool own, done = false;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OL|p:evaluate", names, &object, &batch, &replicas)) return NULL;
    if (gg_py_trainer_sets(t, object, &sets, &own) < 0) return NULL;
    gg_evaluation_kind kind = own ? GG_EVALUATE_OWN : replicas ? GG_EVALUATE_REPLICAS : GG_EVALUATE_SPLIT;
    int n = kind == GG_EVALUATE_REPLICAS ? gg_team_size(t->team->team) : 1;
    gg_evaluation *results = PyMem_Calloc((size_t)n, sizeof *results);
    if (own && replicas) PyErr_SetString(PyExc_ValueError, "replica: not allowed with a list of the ranks' own sets");
    else if (results == NULL) PyErr_NoMemory();
    else GG_PY_RUN(t, gg_py_trainer_enter(t), done, gg_trainer_evaluate(t->trainer, sets, batch, kind, results));
    if (done) list = PyList_New(0);
    for (int i = 0; list != NULL && i < n; ++i) {
        list = gg_py_append(list, evaluation_dict(t, &results[i]));
    }
    PyMem_Free(results);
    PyMem_Free(sets);
    return list;
}

static PyObject *py_trainer_predict(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"dataset", "batch", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    const gg_graph *graph = t->graph->graph;
    PyObject *object, *result = NULL;
    long long batch;
    bool done;
    float *output[GG_MAX_FIELDS] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!L:predict", names, gg_py_dataset_type, &object, &batch))
        return NULL;
    const gg_dataset *set = &((gg_py_dataset *)object)->set;
    result = PyList_New(0);
    for (int h = 0; result != NULL && h < gg_graph_heads(graph); ++h) {
        const gg_shape *shape = &gg_graph_node(graph, gg_graph_head(graph, h)->node)->shape;
        npy_intp sizes[GG_MAX_DIMS + 1] = {(npy_intp)set->count};
        if (gg_graph_head(graph, h)->training_only) continue;
        for (int i = 0; i < shape->dims; ++i) sizes[i + 1] = (npy_intp)shape->size[i];
        PyArrayObject *array = gg_py_new_array(shape->dims + 1, sizes, NPY_FLOAT32);
        if (array != NULL) output[h] = PyArray_DATA(array);
        result = gg_py_append(result, (PyObject *)array);
    }
    if (result == NULL) return NULL;
    GG_PY_RUN(t, gg_py_trainer_enter(t), done, gg_trainer_predict(t->trainer, set, batch, output));
    if (!done) Py_CLEAR(result);
    return result;
}

static PyObject *reset_carried(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    (void)unused;
    if (!gg_py_trainer_is_free(t)) return NULL;
    gg_trainer_reset_carried(t->trainer);
    Py_RETURN_NONE;
}

PyMethodDef gg_py_trainer_batches[] = {
    {"train_step", GG_PY_KEYWORDS(train_step), NULL},        {"bench", GG_PY_KEYWORDS(py_trainer_bench), NULL},
    {"evaluate", GG_PY_KEYWORDS(py_trainer_evaluate), NULL}, {"predict", GG_PY_KEYWORDS(py_trainer_predict), NULL},
    {"reset_carried", reset_carried, METH_NOARGS, NULL},     {NULL, NULL, 0, NULL}};
