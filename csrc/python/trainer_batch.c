/* _core.Trainer: batches that Python gives: steps on them, a benchmark, outputs; and a set that is evaluated. */
#include <string.h>

#include "python/trainer.h"

/* Checks that an array is a batch of the network's input. */
static bool is_batch(gg_py_trainer *t, PyArrayObject *array) {
    const gg_graph *graph = t->graph->graph;
    const gg_shape *input = &gg_graph_node(graph, gg_graph_input(graph, 0))->shape;
    bool fits = PyArray_NDIM(array) == input->dims + 1 && PyArray_DIM(array, 0) >= 1;
    for (int i = 0; fits && i < input->dims; ++i) fits = PyArray_DIM(array, i + 1) == input->size[i];
    if (!fits) {
        char want[GG_SHAPE_TEXT];
        PyObject *shape = PyObject_GetAttrString((PyObject *)array, "shape");
        PyErr_Format(PyExc_ValueError, "samples: shape %S; must be (n, ...) with samples of shape %s and n >= 1", shape,
                     gg_shape_text(input, want));
        Py_XDECREF(shape);
    }
    return fits;
}

/* The targets of n samples as this loss wants them, checked; NULL with an exception. */
static PyArrayObject *targets_of(gg_py_trainer *t, PyObject *object, int64_t n) {
    const gg_graph *graph = t->graph->graph;
    int64_t outputs = gg_shape_count(&gg_graph_node(graph, gg_graph_output(graph))->shape);
    bool classes = t->loss == GG_LOSS_CROSS_ENTROPY;
    PyArrayObject *array = gg_py_array(object, classes ? NPY_INT32 : NPY_FLOAT32, "targets");
    if (array == NULL) return NULL;
    int64_t want = classes ? n : n * outputs;
    if (PyArray_SIZE(array) != want || PyArray_NDIM(array) < 1 || PyArray_DIM(array, 0) != n) {
        PyErr_Format(PyExc_ValueError, "targets: %zd values for %lld samples; %lld are needed", PyArray_SIZE(array),
                     (long long)n, (long long)want);
        Py_CLEAR(array);
    }
    for (int64_t i = 0; array != NULL && classes && i < n; ++i) {
        int32_t label = ((const int32_t *)PyArray_DATA(array))[i];
        if (label >= 0 && label < outputs) continue;
        PyErr_Format(PyExc_ValueError, "targets: entry %lld is %d; classes are 0 to %lld", (long long)i, (int)label,
                     (long long)outputs - 1);
        Py_CLEAR(array);
    }
    return array;
}

/* One batch for each local rank; references are held while the step runs. */
typedef struct batches {
    int count;
    PyArrayObject **sample_arrays, **target_arrays;
    const float **samples;
    const void **targets;
    int64_t *n;
    double *losses;
} batches;

static void batches_free(batches *b) {
    for (int i = 0; i < b->count; ++i) {
        if (b->sample_arrays != NULL) Py_XDECREF(b->sample_arrays[i]);
        if (b->target_arrays != NULL) Py_XDECREF(b->target_arrays[i]);
    }
    PyMem_Free(b->sample_arrays);
    PyMem_Free(b->target_arrays);
    PyMem_Free(b->samples);
    PyMem_Free(b->targets);
    PyMem_Free(b->n);
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
    b->sample_arrays = PyMem_Calloc(n, sizeof *b->sample_arrays);
    b->target_arrays = PyMem_Calloc(n, sizeof *b->target_arrays);
    b->samples = PyMem_Calloc(n, sizeof *b->samples);
    b->targets = PyMem_Calloc(n, sizeof *b->targets);
    b->n = PyMem_Calloc(n, sizeof *b->n);
    b->losses = PyMem_Calloc(n, sizeof *b->losses);
    if (!b->sample_arrays || !b->target_arrays || !b->samples || !b->targets || !b->n || !b->losses) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < n; ++i) {
        b->sample_arrays[i] = gg_py_array(PyList_GET_ITEM(samples, (Py_ssize_t)i), NPY_FLOAT32, "samples");
        if (b->sample_arrays[i] == NULL || !is_batch(t, b->sample_arrays[i])) return -1;
        b->n[i] = PyArray_DIM(b->sample_arrays[i], 0);
        b->target_arrays[i] = targets_of(t, PyList_GET_ITEM(targets, (Py_ssize_t)i), b->n[i]);
        if (b->target_arrays[i] == NULL) return -1;
        b->samples[i] = PyArray_DATA(b->sample_arrays[i]);
        b->targets[i] = PyArray_DATA(b->target_arrays[i]);
    }
    return 0;
}

static PyObject *train_step(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"samples", "targets", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *samples, *targets, *list = NULL;
    batches b;
    gg_status status = GG_OK;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:train_step", names, &samples, &targets)) return NULL;
    if (batches_make(t, samples, targets, &b) < 0 || !gg_py_trainer_enter(t)) goto cleanup;
    Py_BEGIN_ALLOW_THREADS;
    status = gg_trainer_step(t->trainer, b.samples, b.targets, b.n, b.losses);
    Py_END_ALLOW_THREADS;
    t->busy = false;
    if (status != GG_OK) {
        gg_py_raise(status);
        goto cleanup;
    }
    list = PyList_New(0);
    for (int i = 0; list != NULL && i < b.count; ++i) {
        PyObject *loss = PyFloat_FromDouble(b.losses[i]);
        if (loss == NULL || PyList_Append(list, loss) < 0) Py_CLEAR(list);
        Py_XDECREF(loss);
    }
cleanup:
    batches_free(&b);
    return list;
}

static PyObject *py_trainer_bench(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"samples", "targets", "warmup", "steps", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *samples_object, *targets_object, *list = NULL;
    int warmup, steps;
    double *seconds = NULL;
    gg_status status = GG_OK;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOii:bench", names, &samples_object, &targets_object, &warmup,
                                     &steps))
        return NULL;
    if (warmup < 0 || steps < 1)
        return PyErr_Format(PyExc_ValueError, "%s: %d; must be at least %d", warmup < 0 ? "warmup" : "steps",
                            warmup < 0 ? warmup : steps, warmup < 0 ? 0 : 1);
    PyArrayObject *samples = gg_py_array(samples_object, NPY_FLOAT32, "samples"), *targets = NULL;
    if (samples == NULL || !is_batch(t, samples)) goto cleanup;
    targets = targets_of(t, targets_object, PyArray_DIM(samples, 0));
    seconds = PyMem_Calloc((size_t)(warmup + steps), sizeof *seconds);
    if (targets == NULL || seconds == NULL || !gg_py_trainer_enter(t)) goto cleanup;
    const float *sample_data = PyArray_DATA(samples);
    const void *target_data = PyArray_DATA(targets);
    int64_t n = PyArray_DIM(samples, 0);
    Py_BEGIN_ALLOW_THREADS;
    status = gg_trainer_bench(t->trainer, sample_data, target_data, n, warmup + steps, seconds);
    Py_END_ALLOW_THREADS;
    t->busy = false;
    if (status != GG_OK) {
        gg_py_raise(status);
        goto cleanup;
    }
    list = PyList_New(steps);
    for (int i = 0; list != NULL && i < steps; ++i) {
        PyObject *value = PyFloat_FromDouble(seconds[warmup + i]);
        if (value == NULL) Py_CLEAR(list);
        else PyList_SET_ITEM(list, i, value);
    }
cleanup:
    Py_XDECREF(samples);
    Py_XDECREF(targets);
    PyMem_Free(seconds);
    return list;
}

static PyObject *py_trainer_evaluate(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"dataset", "batch", "replica", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *object, *list = NULL;
    const gg_dataset **sets = NULL;
    long long batch;
    int replicas = 0;
    bool own;
    gg_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OL|p:evaluate", names, &object, &batch, &replicas)) return NULL;
    if (gg_py_trainer_sets(t, object, &sets, &own) < 0) return NULL;
    gg_evaluation_kind kind = own ? GG_EVALUATE_OWN : replicas ? GG_EVALUATE_REPLICAS : GG_EVALUATE_SPLIT;
    int n = kind == GG_EVALUATE_REPLICAS ? gg_team_size(t->team->team) : 1;
    gg_evaluation *results = PyMem_Calloc((size_t)n, sizeof *results);
    if (own && replicas) {
        PyErr_SetString(PyExc_ValueError, "replica: not allowed with a list of the ranks' own sets");
        goto cleanup;
    }
    if (results == NULL) {
        PyErr_NoMemory();
        goto cleanup;
    }
    if (!gg_py_trainer_enter(t)) goto cleanup;
    Py_BEGIN_ALLOW_THREADS;
    status = gg_trainer_evaluate(t->trainer, sets, batch, kind, results);
    Py_END_ALLOW_THREADS;
    t->busy = false;
    if (status != GG_OK) {
        gg_py_raise(status);
        goto cleanup;
    }
    list = PyList_New(0);
    for (int i = 0; list != NULL && i < n; ++i) {
        double samples = (double)results[i].samples, loss = results[i].loss_sum / samples;
        PyObject *entry = t->loss == GG_LOSS_MEAN_SQUARED_ERROR
                              ? Py_BuildValue("{sd}", "loss", loss)
                              : Py_BuildValue("{sdsd}", "loss", loss, "accuracy", (double)results[i].correct / samples);
        if (entry == NULL || PyList_Append(list, entry) < 0) Py_CLEAR(list);
        Py_XDECREF(entry);
    }
cleanup:
    PyMem_Free(results);
    PyMem_Free(sets);
    return list;
}

static PyObject *py_trainer_predict(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"samples", "batch", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *object;
    long long batch;
    gg_status status = GG_OK;
    PyArrayObject *result = NULL;
    npy_intp sizes[GG_MAX_DIMS + 1];
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OL:predict", names, &object, &batch)) return NULL;
    PyArrayObject *samples = gg_py_array(object, NPY_FLOAT32, "samples");
    if (samples == NULL || !is_batch(t, samples)) goto cleanup;
    const gg_shape *output = &gg_graph_node(t->graph->graph, gg_graph_output(t->graph->graph))->shape;
    sizes[0] = PyArray_DIM(samples, 0);
    for (int i = 0; i < output->dims; ++i) sizes[i + 1] = (npy_intp)output->size[i];
    result = gg_py_new_array(output->dims + 1, sizes, NPY_FLOAT32);
    if (result == NULL) goto cleanup;
    if (!gg_py_trainer_enter(t)) {
        Py_CLEAR(result);
        goto cleanup;
    }
    const float *in = PyArray_DATA(samples);
    float *out = PyArray_DATA(result);
    Py_BEGIN_ALLOW_THREADS;
    status = gg_trainer_predict(t->trainer, in, sizes[0], batch, out);
    Py_END_ALLOW_THREADS;
    t->busy = false;
    if (status != GG_OK) {
        gg_py_raise(status);
        Py_CLEAR(result);
    }
cleanup:
    Py_XDECREF(samples);
    return (PyObject *)result;
}

PyMethodDef gg_py_trainer_batches[] = {
    {"train_step", GG_PY_KEYWORDS(train_step), "One step, one batch a local rank; each rank's mean loss."},
    {"bench", GG_PY_KEYWORDS(py_trainer_bench), "Seconds of each of `steps` training steps on one batch."},
    {"evaluate", GG_PY_KEYWORDS(py_trainer_evaluate), "The consensus model, or every replica, on a set."},
    {"predict", GG_PY_KEYWORDS(py_trainer_predict), "Outputs of the consensus model."},
    {NULL, NULL, 0, NULL}};
