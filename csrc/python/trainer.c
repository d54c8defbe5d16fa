/* _core.Trainer */
#include <string.h>

#include "base/memory.h"
#include "python/python.h"

PyTypeObject *gg_py_trainer_type;

typedef struct gg_py_trainer {
    PyObject_HEAD gg_trainer *trainer;
    gg_py_graph *graph;
    gg_py_team *team;
    PyArrayObject *topology; /* the table that the strategies read; NULL: none */
    gg_loss_kind loss;
    bool busy; /* a call has released the GIL; only read and written with the GIL held */
} gg_py_trainer;

/* ---- life ---- */

static void clear(gg_py_trainer *t) {
    gg_trainer *trainer = t->trainer;
    t->trainer = NULL;
    Py_BEGIN_ALLOW_THREADS;
    gg_trainer_destroy(trainer);
    Py_END_ALLOW_THREADS;
    Py_CLEAR(t->graph);
    Py_CLEAR(t->team);
    Py_CLEAR(t->topology);
}

/* One number a rank of the team, owned by the caller (PyMem_Free); *out stays NULL for None. */
static int parse_compute_time(PyObject *sequence, int size, double **out) {
    *out = NULL;
    if (sequence == Py_None) return 0;
    PyObject *items = PySequence_Fast(sequence, "compute_time: must be a sequence of numbers");
    if (items == NULL) return -1;
    if (PySequence_Fast_GET_SIZE(items) != size)
        PyErr_Format(PyExc_ValueError, "compute_time: %zd numbers for %d ranks", PySequence_Fast_GET_SIZE(items), size);
    else if ((*out = PyMem_Calloc((size_t)size, sizeof **out)) == NULL) PyErr_NoMemory();
    for (int i = 0; *out != NULL && i < size; ++i) (*out)[i] = PyFloat_AsDouble(PySequence_Fast_GET_ITEM(items, i));
    Py_DECREF(items);
    if (!PyErr_Occurred()) return 0;
    PyMem_Free(*out);
    *out = NULL;
    return -1;
}

static int init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"graph",   "team",    "loss",  "optimizer", "strategy",     "seed",
                            "threads", "backend", "trace", "straggler", "compute_time", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *graph, *team, *optimizer = NULL, *strategy = NULL, *compute_time = Py_None;
    double *step_seconds = NULL;
    const char *loss = NULL, *backend = NULL;
    unsigned long long seed = 0;
    long long trace = 0;
    gg_replica_options options = {.threads = 1};
    gg_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!|$sO!O!KizL(ddK)O:Trainer", names, gg_py_graph_type, &graph,
                                     gg_py_team_type, &team, &loss, &PyDict_Type, &optimizer, &PyDict_Type, &strategy, &seed,
                                     &options.threads, &backend, &trace, &options.straggler.probability, &options.straggler.delay,
                                     &options.straggler.seed, &compute_time))
        return -1;
    if (loss == NULL || optimizer == NULL || strategy == NULL) {
        PyErr_SetString(PyExc_TypeError, "Trainer: loss, optimizer and strategy must be given");
        return -1;
    }
    if (!((gg_py_graph *)graph)->finished) {
        PyErr_SetString(PyExc_RuntimeError, "the graph is not finished yet");
        return -1;
    }
    clear(t);
    int loss_kind = gg_py_choice("loss", loss, gg_py_loss_names, GG_LOSS_COUNT);
    if (loss_kind < 0 || gg_py_optimizer(optimizer, &options.optimizer) < 0 ||
        gg_py_strategy_options(strategy, &options.strategy, &t->topology) < 0 ||
        gg_py_backend_choice(backend, &options.backend) < 0)
        return -1;
    options.graph = ((gg_py_graph *)graph)->graph;
    options.loss = (gg_loss_kind)loss_kind;
    options.seed = seed;
    options.trace = trace > 0 ? (size_t)trace : 0;
    status = gg_isa_select(NULL, &options.isa);
    if (status != GG_OK) {
        gg_py_raise(status);
        return -1;
    }
    if (parse_compute_time(compute_time, gg_team_size(((gg_py_team *)team)->team), &step_seconds) < 0) return -1;
    options.step_seconds = step_seconds;
    t->graph = (gg_py_graph *)Py_NewRef(graph);
    t->team = (gg_py_team *)Py_NewRef(team);
    t->loss = options.loss;
    Py_BEGIN_ALLOW_THREADS;
    status = gg_trainer_create(&options, t->team->team, &t->trainer);
    Py_END_ALLOW_THREADS;
    PyMem_Free(step_seconds);
    if (status != GG_OK) {
        gg_py_raise(status);
        return -1;
    }
    return 0;
}

static void dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    clear((gg_py_trainer *)self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Brackets a call that releases the GIL: the core serves one thread at a time. */
static bool enter(gg_py_trainer *t) {
    if (t->busy) PyErr_SetString(PyExc_RuntimeError, "this trainer is in use by another thread");
    else if (t->trainer == NULL) PyErr_SetString(PyExc_RuntimeError, "this trainer was not initialised");
    else return t->busy = true;
    return false;
}

#define CALL(t, expression)                                                                                                      \
    do {                                                                                                                         \
        if (!enter(t)) return NULL;                                                                                              \
        Py_BEGIN_ALLOW_THREADS;                                                                                                  \
        status = (expression);                                                                                                   \
        Py_END_ALLOW_THREADS;                                                                                                    \
        (t)->busy = false;                                                                                                       \
        if (status != GG_OK) return gg_py_raise(status);                                                                         \
    } while (0)

static gg_replica *replica_of(gg_py_trainer *t, int rank) {
    int local = gg_team_local(t->team->team);
    if (rank >= 0 && rank < local) return gg_trainer_replica(t->trainer, rank);
    PyErr_Format(PyExc_ValueError, "rank: %d; this process has local ranks 0 to %d", rank, local - 1);
    return NULL;
}

/* ---- training ---- */

static PyObject *begin(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"dataset", "batch", "shuffle", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *set;
    long long batch;
    int shuffle = 1;
    gg_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!L|p:begin", names, gg_py_dataset_type, &set, &batch, &shuffle)) return NULL;
    CALL(t, gg_trainer_begin(t->trainer, &((gg_py_dataset *)set)->set, batch, shuffle));
    return PyLong_FromLongLong(gg_replica_epoch_steps(gg_trainer_replica(t->trainer, 0)));
}

static PyObject *epoch(PyObject *self, PyObject *argument) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    long long number = PyLong_AsLongLong(argument);
    gg_status status;
    if (number == -1 && PyErr_Occurred()) return NULL;
    CALL(t, gg_trainer_epoch(t->trainer, number));
    Py_RETURN_NONE;
}

typedef struct watcher {
    gg_py_trainer *trainer;
    PyObject *callable;
    bool failed; /* with an exception, which `kind`, `value` and `trace` keep until the run has ended */
    PyObject *kind, *value, *trace;
} watcher;

static bool watch(void *context) {
    watcher *w = context;
    if (w->failed) return false;
    PyGILState_STATE gil = PyGILState_Ensure();
    w->trainer->busy = false; /* it may ask for the progress; whatever would run the ranks fails */
    PyObject *result = PyErr_CheckSignals() == 0 ? PyObject_CallNoArgs(w->callable) : NULL;
    w->trainer->busy = true;
    w->failed = result == NULL;
    if (w->failed) PyErr_Fetch(&w->kind, &w->value, &w->trace);
    Py_XDECREF(result);
    PyGILState_Release(gil);
    return !w->failed;
}

static PyObject *run(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"steps", "watch", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    watcher w = {.trainer = t, .callable = Py_None};
    long long steps;
    gg_progress_counts counts;
    gg_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "L|O:run", names, &steps, &w.callable)) return NULL;
    if (!enter(t)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = gg_trainer_run(t->trainer, steps, w.callable == Py_None ? NULL : watch, &w);
    Py_END_ALLOW_THREADS;
    t->busy = false;
    if (w.failed) {
        PyErr_Restore(w.kind, w.value, w.trace);
        return NULL;
    }
    if (status != GG_OK) return gg_py_raise(status);
    gg_replica_counts(gg_trainer_replica(t->trainer, 0), &counts);
    return PyLong_FromLongLong(counts.steps);
}

static PyObject *progress(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    double loss = 0, samples = 0, correct = 0;
    gg_progress_counts counts = {0};
    long long steps = 0;
    (void)unused;
    if (!enter(t)) return NULL;
    t->busy = false;
    for (int i = 0; i < gg_team_local(t->team->team); ++i) {
        gg_replica_counts(gg_trainer_replica(t->trainer, i), &counts);
        loss += counts.loss_sum;
        samples += (double)counts.samples;
        correct += (double)counts.correct;
        if (i == 0 || counts.steps < steps) steps = counts.steps;
    }
    return Py_BuildValue("{sdsdsdsdsL}", "samples", samples, "loss", samples > 0 ? loss / samples : 0.0, "correct", correct,
                         "seconds", counts.seconds, "steps", steps);
}

/* Puts a new value into a dict; both references are taken. NULL with an exception if there is no dict or no value. */
static PyObject *with(PyObject *dict, const char *key, PyObject *value) {
    if (dict == NULL || value == NULL || PyDict_SetItemString(dict, key, value) < 0) Py_CLEAR(dict);
    Py_XDECREF(value);
    return dict;
}

static PyObject *end_epoch(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    gg_epoch_summary s = {0};
    gg_status status;
    (void)unused;
    CALL(t, gg_trainer_end_epoch(t->trainer, &s));
    double ranks = gg_team_size(t->team->team), samples = (double)s.sum.samples, seconds = s.sum.seconds / ranks;
    PyObject *dict = Py_BuildValue(
        "{sLsLsdsdsdsdsdsdsdsdsdsdsLsLsLsLsLsd}", "steps", (long long)s.sum.steps, "samples", (long long)s.sum.samples,
        "train_loss", samples > 0 ? s.sum.loss_sum / samples : 0.0, "seconds", seconds, "seconds_max", s.most.seconds,
        "samples_per_second", seconds > 0 ? samples / seconds : 0.0, "compute_seconds", s.sum.compute_seconds / ranks,
        "compute_seconds_max", s.most.compute_seconds, "exposed_communication_seconds", s.sum.exposed_seconds / ranks,
        "exposed_communication_seconds_max", s.most.exposed_seconds, "data_wait_seconds", s.sum.data_seconds / ranks,
        "data_wait_seconds_max", s.most.data_seconds, "bytes_sent", (long long)s.sum.bytes_sent, "messages_sent",
        (long long)s.sum.messages_sent, "exchanges_skipped", (long long)s.sum.skipped, "sample_bytes_sent",
        (long long)s.sum.sample_bytes_sent, "sample_messages_sent", (long long)s.sum.sample_messages_sent, "consensus_distance",
        s.consensus_distance);
    dict = with(dict, "optimizer_state_bytes", PyLong_FromLongLong(s.sum.optimizer_bytes));
    dict = with(dict, "optimizer_state_bytes_saved", PyLong_FromLongLong(s.sum.optimizer_bytes_saved));
    if (strcmp(gg_team_kind(t->team->team), "virtual") == 0)
        dict = with(dict, "virtual_seconds", PyFloat_FromDouble(s.most.clock_seconds));
    return dict;
}

/* Checks that an array is a batch of the network's input. */
static bool is_batch(gg_py_trainer *t, PyArrayObject *array) {
    const gg_graph *graph = t->graph->graph;
    const gg_shape *input = &gg_graph_node(graph, gg_graph_input(graph))->shape;
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
        PyErr_Format(PyExc_ValueError, "targets: %zd values for %lld samples; %lld are needed", PyArray_SIZE(array), (long long)n,
                     (long long)want);
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

/* One batch a local rank, held while the step runs. */
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
        PyErr_Format(PyExc_ValueError, "samples, targets: must be lists with one batch for each of the %zu local ranks", n);
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
    if (batches_make(t, samples, targets, &b) < 0 || !enter(t)) goto cleanup;
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

static PyObject *bench(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"samples", "targets", "warmup", "steps", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *samples_object, *targets_object, *list = NULL;
    int warmup, steps;
    double *seconds = NULL;
    gg_status status = GG_OK;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOii:bench", names, &samples_object, &targets_object, &warmup, &steps))
        return NULL;
    if (warmup < 0 || steps < 1)
        return PyErr_Format(PyExc_ValueError, "%s: %d; must be at least %d", warmup < 0 ? "warmup" : "steps",
                            warmup < 0 ? warmup : steps, warmup < 0 ? 0 : 1);
    PyArrayObject *samples = gg_py_array(samples_object, NPY_FLOAT32, "samples"), *targets = NULL;
    if (samples == NULL || !is_batch(t, samples)) goto cleanup;
    targets = targets_of(t, targets_object, PyArray_DIM(samples, 0));
    seconds = PyMem_Calloc((size_t)(warmup + steps), sizeof *seconds);
    if (targets == NULL || seconds == NULL || !enter(t)) goto cleanup;
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

/* ---- at rest ---- */

static PyObject *settle(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    gg_status status;
    (void)unused;
    CALL(t, gg_trainer_settle(t->trainer));
    Py_RETURN_NONE;
}

static int set_id(PyObject *dict, const char *key, int64_t id) {
    PyObject *value = id < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(id);
    int result = value ? PyDict_SetItemString(dict, key, value) : -1;
    Py_XDECREF(value);
    return result;
}

static PyObject *audit_samples(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    gg_sample_audit a;
    gg_status status;
    (void)unused;
    CALL(t, gg_trainer_audit(t->trainer, &a));
    PyObject *dict = Py_BuildValue("{sLsLsLsL}", "samples", (long long)a.samples, "missing", (long long)a.missing, "duplicate",
                                   (long long)a.duplicate, "altered", (long long)a.altered);
    if (dict != NULL &&
        (set_id(dict, "first_missing", a.first_missing) < 0 || set_id(dict, "first_duplicate", a.first_duplicate) < 0 ||
         set_id(dict, "first_altered", a.first_altered) < 0))
        Py_CLEAR(dict);
    return dict;
}

static PyObject *sample_ids(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"rank", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    int rank = 0;
    gg_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|i:sample_ids", names, &rank)) return NULL;
    gg_replica *replica = replica_of(t, rank);
    if (replica == NULL) return NULL;
    CALL(t, gg_trainer_settle(t->trainer));
    npy_intp slots = (npy_intp)gg_replica_slots(replica);
    if (slots < 0) return gg_py_raise(gg_fail(GG_ERROR_STATE, "sample_ids: there is no data to train on yet"));
    PyArrayObject *array = gg_py_new_array(1, &slots, NPY_INT32);
    for (npy_intp i = 0; array != NULL && i < slots; ++i)
        ((int32_t *)PyArray_DATA(array))[i] = (int32_t)gg_replica_sample_id(replica, i);
    return (PyObject *)array;
}

static PyObject *consensus_distance(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    double distance = 0;
    gg_status status;
    (void)unused;
    CALL(t, gg_trainer_distance(t->trainer, &distance));
    return PyFloat_FromDouble(distance);
}

static PyObject *evaluate(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"dataset", "batch", "replica", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *set, *list = NULL;
    long long batch;
    int replicas = 0;
    gg_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!L|p:evaluate", names, gg_py_dataset_type, &set, &batch, &replicas))
        return NULL;
    int n = replicas ? gg_team_size(t->team->team) : 1;
    gg_evaluation *results = PyMem_Calloc((size_t)n, sizeof *results);
    if (results == NULL) return PyErr_NoMemory();
    if (!enter(t)) goto cleanup;
    Py_BEGIN_ALLOW_THREADS;
    status = gg_trainer_evaluate(t->trainer, &((gg_py_dataset *)set)->set, batch, replicas, results);
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
    return list;
}

static PyObject *predict(PyObject *self, PyObject *args, PyObject *kwargs) {
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
    if (!enter(t)) {
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

/* ---- state ---- */

static const char *const arena_names[GG_ARENA_COUNT] = {"weights", "gradients", "momentum", "second_moment"};

/* All elements of an arena, zeros; NULL with an exception. Freed by PyMem_Free. */
static float *new_arena(const gg_py_trainer *t) {
    float *arena = PyMem_Calloc(gg_graph_arena_count(t->graph->graph) + 1, sizeof *arena);
    if (arena == NULL) PyErr_NoMemory();
    return arena;
}

static PyObject *show(PyObject *self, PyObject *args, PyObject *kwargs, gg_arena which) {
    static char *names[] = {"rank", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    int rank = 0;
    gg_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|i", names, &rank)) return NULL;
    gg_replica *replica = replica_of(t, rank);
    if (replica == NULL) return NULL;
    PyObject *dict = NULL;
    float *whole = new_arena(t);
    if (whole == NULL || !enter(t)) goto cleanup;
    Py_BEGIN_ALLOW_THREADS;
    status = gg_trainer_gather(t->trainer, which, rank, whole);
    Py_END_ALLOW_THREADS;
    t->busy = false;
    if (status != GG_OK) gg_py_raise(status);
    else if (gg_state_arena(gg_replica_state(replica), which) == NULL) dict = PyDict_New();
    else dict = gg_py_arena_dict(t->graph->graph, whole);
cleanup:
    PyMem_Free(whole);
    return dict;
}

static PyObject *weights(PyObject *self, PyObject *args, PyObject *kwargs) { return show(self, args, kwargs, GG_ARENA_WEIGHT); }
static PyObject *gradients(PyObject *self, PyObject *args, PyObject *kwargs) {
    return show(self, args, kwargs, GG_ARENA_GRADIENT);
}
static PyObject *momentum(PyObject *self, PyObject *args, PyObject *kwargs) {
    return show(self, args, kwargs, GG_ARENA_MOMENTUM);
}

static PyObject *second_moment(PyObject *self, PyObject *args, PyObject *kwargs) {
    return show(self, args, kwargs, GG_ARENA_SQUARE);
}

static PyObject *consensus_weights(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    float *mean = new_arena(t);
    PyObject *dict = NULL;
    gg_status status;
    (void)unused;
    if (mean == NULL) return NULL;
    if (enter(t)) {
        Py_BEGIN_ALLOW_THREADS;
        status = gg_trainer_consensus(t->trainer, mean);
        Py_END_ALLOW_THREADS;
        t->busy = false;
        dict = status == GG_OK ? gg_py_arena_dict(t->graph->graph, mean) : gg_py_raise(status);
    }
    PyMem_Free(mean);
    return dict;
}

static PyObject *load(PyObject *self, PyObject *args, PyObject *kwargs, gg_arena which) {
    const char *argument = arena_names[which];
    char *names[] = {(char *)argument, "rank", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *dict, *rank_object = Py_None;
    int local = gg_team_local(t->team->team), first = 0, count = local;
    gg_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O", names, &dict, &rank_object)) return NULL;
    if (rank_object != Py_None) {
        first = (int)PyLong_AsLong(rank_object);
        count = 1;
        if (PyErr_Occurred() || replica_of(t, first) == NULL) return NULL;
    }
    CALL(t, gg_trainer_settle(t->trainer));
    int failed = 0;
    float *whole = new_arena(t);
    if (whole == NULL) return NULL;
    if (gg_state_arena(gg_replica_state(gg_trainer_replica(t->trainer, first)), which) != NULL) {
        failed = gg_py_arena_load(t->graph->graph, dict, argument, whole);
        for (int i = 0; !failed && i < count; ++i) {
            gg_replica *replica = gg_trainer_replica(t->trainer, first + i);
            gg_replica_keep(replica, which, whole);
            if (which == GG_ARENA_WEIGHT && rank_object == Py_None) gg_replica_set_consensus(replica, whole);
        }
    } else if (!PyDict_Check(dict) || PyDict_Size(dict) != 0) {
        PyErr_Format(PyExc_ValueError, "%s: given, but the optimizer keeps none", argument);
        failed = -1;
    }
    PyMem_Free(whole);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

static PyObject *load_consensus(PyObject *self, PyObject *dict) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    gg_status status;
    CALL(t, gg_trainer_settle(t->trainer));
    float *whole = new_arena(t);
    if (whole == NULL) return NULL;
    int failed = gg_py_arena_load(t->graph->graph, dict, "weights", whole);
    for (int i = 0; !failed && i < gg_team_local(t->team->team); ++i)
        gg_replica_set_consensus(gg_trainer_replica(t->trainer, i), whole);
    PyMem_Free(whole);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

static PyObject *load_weights(PyObject *self, PyObject *args, PyObject *kwargs) {
    return load(self, args, kwargs, GG_ARENA_WEIGHT);
}

static PyObject *load_momentum(PyObject *self, PyObject *args, PyObject *kwargs) {
    return load(self, args, kwargs, GG_ARENA_MOMENTUM);
}

static PyObject *load_second_moment(PyObject *self, PyObject *args, PyObject *kwargs) {
    return load(self, args, kwargs, GG_ARENA_SQUARE);
}

/* ---- measurement ---- */

static PyObject *node_backends(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    const gg_plan *plan = gg_replica_plan(gg_trainer_replica(t->trainer, 0));
    (void)unused;
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && plan != NULL && i < gg_graph_nodes(t->graph->graph); ++i) {
        PyObject *name = PyUnicode_FromString(gg_plan_node_backend(plan, i));
        if (name == NULL || PyList_Append(list, name) < 0) Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

static PyObject *partitioned_fc(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    const bool *taken = gg_replica_taken(gg_trainer_replica(t->trainer, 0));
    (void)unused;
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && taken != NULL && i < gg_graph_layers(t->graph->graph); ++i) {
        if (!taken[i]) continue;
        PyObject *name = PyUnicode_FromString(gg_graph_layer_name(t->graph->graph, i));
        if (name == NULL || PyList_Append(list, name) < 0) Py_CLEAR(list);
        Py_XDECREF(name);
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

static PyObject *node_seconds(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    const gg_plan *plan = gg_replica_plan(gg_trainer_replica(t->trainer, 0));
    (void)unused;
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && plan != NULL && i < gg_graph_nodes(t->graph->graph); ++i) {
        double forward = 0, backward = 0;
        gg_plan_node_seconds(plan, i, &forward, &backward);
        PyObject *pair = Py_BuildValue("dd", forward, backward);
        if (pair == NULL || PyList_Append(list, pair) < 0) Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    return list;
}

static PyObject *spans(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"rank", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    int rank = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|i:spans", names, &rank)) return NULL;
    gg_replica *replica = replica_of(t, rank);
    if (replica == NULL) return NULL;
    const gg_trace *trace = gg_replica_trace(replica);
    double offset = gg_replica_clock_offset(replica);
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && trace != NULL && i < gg_trace_count(trace); ++i) {
        const gg_trace_span *s = gg_trace_get(trace, i);
        PyObject *entry =
            Py_BuildValue("ddsLiiiidL", s->begin + offset, s->end + offset, s->name, (long long)s->step, (int)s->lane,
                          (int)s->index, (int)s->last, (int)s->peer, s->arrived + offset, (long long)s->bytes);
        if (entry == NULL || PyList_Append(list, entry) < 0) Py_CLEAR(list);
        Py_XDECREF(entry);
    }
    return list;
}

static PyObject *spans_lost(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"rank", NULL};
    int rank = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|i:spans_lost", names, &rank)) return NULL;
    gg_replica *replica = replica_of((gg_py_trainer *)self, rank);
    return replica ? PyLong_FromSize_t(gg_trace_lost(gg_replica_trace(replica))) : NULL;
}

static PyObject *bytes(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    size_t total = 0;
    (void)unused;
    for (int i = 0; i < gg_team_local(t->team->team); ++i) total += gg_replica_bytes(gg_trainer_replica(t->trainer, i));
    return PyLong_FromSize_t(total);
}

static PyObject *get_backend(PyObject *self, void *unused) {
    (void)unused;
    return PyUnicode_FromString(gg_replica_backend_name(gg_trainer_replica(((gg_py_trainer *)self)->trainer, 0)));
}

static PyObject *get_isa(PyObject *self, void *unused) {
    (void)unused;
    return PyUnicode_FromString(gg_isa_name(gg_replica_isa(gg_trainer_replica(((gg_py_trainer *)self)->trainer, 0))));
}

static PyObject *get_step(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLongLong(gg_replica_state(gg_trainer_replica(((gg_py_trainer *)self)->trainer, 0))->step);
}

static int set_step(PyObject *self, PyObject *value, void *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    (void)unused;
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "step cannot be deleted");
        return -1;
    }
    long long step = PyLong_AsLongLong(value);
    if (step == -1 && PyErr_Occurred()) return -1;
    if (step < 0) {
        PyErr_Format(PyExc_ValueError, "step: %lld; must be at least 0", step);
        return -1;
    }
    for (int i = 0; i < gg_team_local(t->team->team); ++i) gg_replica_state(gg_trainer_replica(t->trainer, i))->step = step;
    return 0;
}

static PyGetSetDef properties[] = {
    {"backend", get_backend, NULL, "onednn, native, or onednn+native: each from the faster.", NULL},
    {"isa", get_isa, NULL, "The kernels in use.", NULL},
    {"step", get_step, set_step, "Training steps done.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

#define KEYWORDS(function) (PyCFunction)(void (*)(void))(function), METH_VARARGS | METH_KEYWORDS

static PyMethodDef methods[] = {
    {"begin", KEYWORDS(begin), "Makes the loaders and plans; returns the steps of an epoch."},
    {"epoch", epoch, METH_O, "epoch($self, epoch, /)\n--\n\nStarts an epoch: orders the samples, zeroes the sums."},
    {"run", (PyCFunction)(void (*)(void))run, METH_VARARGS | METH_KEYWORDS,
     "run($self, steps, watch=None)\n--\n\nUp to `steps` more steps of the epoch; returns the steps done so far."},
    {"progress", progress, METH_NOARGS, "Of this process's ranks since the epoch began."},
    {"end_epoch", end_epoch, METH_NOARGS, "Settles, and sums up the epoch over the ranks."},
    {"train_step", KEYWORDS(train_step), "One step, one batch a local rank; each rank's mean loss."},
    {"settle", settle, METH_NOARGS, "Completes and mixes all that is in flight."},
    {"audit_samples", audit_samples, METH_NOARGS, "Counts the samples that all ranks hold. Settles."},
    {"sample_ids", KEYWORDS(sample_ids), "Which sample is in each slot of a local rank."},
    {"evaluate", KEYWORDS(evaluate), "The consensus model, or every replica, on a set."},
    {"predict", KEYWORDS(predict), "Outputs of the consensus model."},
    {"consensus_distance", consensus_distance, METH_NOARGS, "Mean over ranks of |w_r - w_mean| / |w_mean|."},
    {"weights", KEYWORDS(weights), "Copies of a local rank's weights, by name."},
    {"consensus_weights", consensus_weights, METH_NOARGS, "The mean of the replicas, or the strategy's own model, by name."},
    {"load_consensus", load_consensus, METH_O,
     "load_consensus($self, weights, /)\n--\n\nSets the strategy's own model, where it keeps one."},
    {"gradients", KEYWORDS(gradients), "Copies of a local rank's last gradients."},
    {"momentum", KEYWORDS(momentum), "Copies of a local rank's momentum, or Adam's first moment."},
    {"second_moment", KEYWORDS(second_moment), "Copies of a local rank's second moment (Adam)."},
    {"load_weights", KEYWORDS(load_weights), "Sets the weights of one local rank or of all."},
    {"load_momentum", KEYWORDS(load_momentum), "Sets the momentum of one local rank or of all."},
    {"load_second_moment", KEYWORDS(load_second_moment), "Sets the second moment of one local rank or of all."},
    {"bench", KEYWORDS(bench), "Seconds of each of `steps` training steps on one batch."},
    {"node_backends", node_backends, METH_NOARGS, "Which table computes each node, after the first step."},
    {"partitioned_fc", partitioned_fc, METH_NOARGS,
     "Names of the layers whose inputs and errors were exchanged in some step so far."},
    {"node_seconds", node_seconds, METH_NOARGS, "Forward and backward seconds of each node since timing was set."},
    {"set_timing", set_timing, METH_O, "set_timing($self, on, /)\n--\n\nTimes each node from now on, or stops."},
    {"spans", KEYWORDS(spans), "The trace of a local rank, on rank 0's clock."},
    {"spans_lost", KEYWORDS(spans_lost), "Spans of a local rank that newer ones have overwritten."},
    {"bytes", bytes, METH_NOARGS, "Memory of plans and arenas."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot slots[] = {{Py_tp_doc, "The ranks of this process, each with its plan, state, strategy and loader."},
                              {Py_tp_new, PyType_GenericNew},
                              {Py_tp_init, init},
                              {Py_tp_dealloc, dealloc},
                              {Py_tp_methods, methods},
                              {Py_tp_getset, properties},
                              {0, NULL}};

static PyType_Spec spec = {"gossipgrad._core.Trainer", sizeof(gg_py_trainer), 0, Py_TPFLAGS_DEFAULT, slots};

int gg_py_add_trainer(PyObject *module) {
    gg_py_trainer_type = gg_py_add_type(module, &spec);
    return gg_py_trainer_type ? 0 : -1;
}
