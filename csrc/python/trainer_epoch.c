/* _core.Trainer: epochs over its data sets. */
#include <stddef.h>
#include <string.h>

#include "python/division.h"
#include "python/trainer.h"

int gg_py_trainer_sets(const gg_py_trainer *t, PyObject *object, const gg_dataset ***sets, bool *own) {
    Py_ssize_t local = gg_team_local(t->team->team);
    bool list = PyList_Check(object), fits = !list || PyList_GET_SIZE(object) == local;
    for (Py_ssize_t i = 0; fits && i < local; ++i)
        fits = PyObject_TypeCheck(list ? PyList_GET_ITEM(object, i) : object, gg_py_dataset_type);
    if (!fits) {
        PyErr_Format(PyExc_TypeError,
                     "dataset: must be a _core.Dataset, or a list with one for each of %zd local ranks", local);
        return -1;
    }
    *own = list;
    *sets = PyMem_Calloc((size_t)local, sizeof **sets);
    if (*sets == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < local; ++i)
        (*sets)[i] = &((gg_py_dataset *)(list ? PyList_GET_ITEM(object, i) : object))->set;
    return 0;
}

static PyObject *py_trainer_begin(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"dataset", "batch", "shuffle", "shard", "drop_last", NULL};
    static const char *const shards[] = {"interleaved", "contiguous"};
    gg_py_trainer *t = (gg_py_trainer *)self;
    PyObject *object;
    const char *shard = shards[0];
    const gg_dataset **sets = NULL;
    long long batch;
    int shuffle = 1, drop_last = 0;
    bool own, done;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OL|psp:begin", names, &object, &batch, &shuffle, &shard,
                                     &drop_last))
        return NULL;
    int kind = gg_py_choice("shard", shard, shards, 2);
    if (kind < 0 || gg_py_trainer_sets(t, object, &sets, &own) < 0) return NULL;
    gg_data_options data = {
        .shard = own ? GG_SHARD_OWN : (gg_shard_kind)kind, .batch = batch, .shuffle = shuffle, .drop_last = drop_last};
    GG_PY_RUN(t, gg_py_trainer_enter(t), done, gg_trainer_begin(t->trainer, sets, &data));
    PyMem_Free(sets);
    if (!done) return NULL;
    return PyLong_FromLongLong(gg_replica_epoch_steps(gg_trainer_replica(t->trainer, 0)));
}

/* One number for each rank that trains. */
static int read_counts_of_ranks(const gg_py_trainer *t, PyObject *list, int64_t **out) {
    const Py_ssize_t ranks = gg_replica_workers(gg_trainer_replica(t->trainer, 0));
    if (PyList_Check(list) && PyList_GET_SIZE(list) == ranks) return gg_py_numbers(list, out);
    PyErr_Format(PyExc_ValueError, "done: must be a list of %zd numbers, one for each rank that trains", ranks);
    return -1;
}

static PyObject *py_trainer_epoch(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"epoch", "step", "begun", "done", "divisions", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    long long number, step = 0, begun = 0;
    PyObject *counts = Py_None, *divisions = Py_None;
    int64_t *read = NULL;
    gg_position at = {.divisions = 0};
    bool done = false;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "L|LLOO:epoch", names, &number, &step, &begun, &counts, &divisions))
        return NULL;
    if (divisions != Py_None && gg_py_divisions(divisions, &at) < 0) goto cleanup;
    if (counts != Py_None && read_counts_of_ranks(t, counts, &read) < 0) goto cleanup;
    at.epoch = number;
    at.next = step;
    at.begun = begun;
    at.done = read;
    GG_PY_RUN(t, gg_py_trainer_enter(t), done, gg_trainer_epoch(t->trainer, &at));
cleanup:
    gg_py_divisions_free(&at);
    PyMem_Free(read);
    return done ? Py_NewRef(Py_None) : NULL;
}

static PyObject *list_divisions(const gg_position *at) {
    PyObject *list = PyList_New(0);
    for (int k = 0; list != NULL && k < at->divisions; ++k)
        list = gg_py_append(list, gg_py_integers(at->division[k].read, at->division[k].ranks));
    return list;
}

static PyObject *py_trainer_position(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    (void)unused;
    if (!gg_py_trainer_is_free(t)) return NULL;
    const gg_replica *replica = gg_trainer_replica(t->trainer, 0);
    const gg_position at = gg_replica_position(replica);
    const int workers = gg_replica_workers(replica);
    if (at.done == NULL) return gg_py_raise(gg_fail(GG_ERROR_STATE, "position: there is no data to train on yet"));
    int64_t *read = PyMem_Calloc((size_t)workers, sizeof *read);
    if (read == NULL) return PyErr_NoMemory();
    gg_replica_read_by(replica, read);
    PyObject *result = Py_BuildValue("{sLsLsLsLsL}", "epoch", (long long)at.epoch, "step", (long long)at.next, "steps",
                                     (long long)gg_replica_epoch_steps(replica), "begun", (long long)at.begun,
                                     "batch_size", (long long)gg_replica_batch_size(replica));
    result = gg_py_put(result, "done", gg_py_integers(at.done, workers));
    result = gg_py_put(result, "read", gg_py_integers(read, workers));
    result = gg_py_put(result, "divisions", list_divisions(&at));
    PyMem_Free(read);
    return result;
}

/* ---- a rank's counts since an epoch's begin, for checkpoints within it ---- */

typedef struct count_field {
    const char *name;
    size_t offset;
    bool real; /* double, else int64_t */
    int count; /* 0 means a number; else the length of a list */
} count_field;

#define REAL(field)                                                                                                    \
    { #field, offsetof(gg_progress_counts, field), true, 0 }
#define WHOLE(field)                                                                                                   \
    { #field, offsetof(gg_progress_counts, field), false, 0 }
#define WHOLES(field, many)                                                                                            \
    { #field, offsetof(gg_progress_counts, compression.field), false, many }

static const count_field count_fields[] = {
    WHOLE(steps),
    WHOLE(samples),
    WHOLE(correct),
    WHOLE(counted),
    REAL(loss_sum),
    REAL(seconds),
    REAL(exposed_seconds),
    REAL(data_seconds),
    REAL(clock_seconds),
    WHOLE(bytes_sent),
    WHOLE(messages_sent),
    WHOLE(sample_bytes_sent),
    WHOLE(sample_messages_sent),
    WHOLE(skipped),
    WHOLES(dense_bytes, GG_FAMILY_COUNT),
    WHOLES(sent_bytes, GG_FAMILY_COUNT),
    WHOLES(bins_with, GG_COUNTS_HISTOGRAM),
    WHOLES(elements_sent, 1),
    WHOLES(elements, 1),
};
enum { COUNT_FIELDS = sizeof count_fields / sizeof *count_fields };

static PyObject *field_of(const gg_progress_counts *counts, const count_field *field) {
    const void *at = (const char *)counts + field->offset;
    if (field->count > 0) return gg_py_integers((const int64_t *)at, field->count);
    return field->real ? PyFloat_FromDouble(*(const double *)at) : PyLong_FromLongLong(*(const int64_t *)at);
}

static PyObject *py_trainer_counts(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    (void)unused;
    if (!gg_py_trainer_is_free(t)) return NULL;
    const int local = gg_team_local(t->team->team);
    PyObject *all = PyList_New(0);
    for (int i = 0; all != NULL && i < local; ++i) {
        gg_progress_counts counts;
        gg_replica_counts(gg_trainer_replica(t->trainer, i), &counts);
        PyObject *dict = PyDict_New();
        for (int f = 0; f < COUNT_FIELDS; ++f)
            dict = gg_py_put(dict, count_fields[f].name, field_of(&counts, &count_fields[f]));
        all = gg_py_append(all, dict);
    }
    return all;
}

static int read_number(PyObject *object, char *at, bool real) {
    if (real) *(double *)at = PyFloat_AsDouble(object);
    else *(int64_t *)at = PyLong_AsLongLong(object);
    return PyErr_Occurred() ? -1 : 0;
}

/* Fields missing from the dict stay zero. */
static int read_counts(PyObject *dict, gg_progress_counts *out) {
    memset(out, 0, sizeof *out);
    for (int f = 0; f < COUNT_FIELDS; ++f) {
        const count_field *field = &count_fields[f];
        char *at = (char *)out + field->offset;
        PyObject *object = PyDict_GetItemString(dict, field->name); /* borrowed */
        if (object == NULL) continue;
        if (field->count == 0 && read_number(object, at, field->real) < 0) return -1;
        if (field->count == 0) continue;
        if (!PyList_Check(object) || PyList_GET_SIZE(object) != field->count) {
            PyErr_Format(PyExc_ValueError, "counts: %s: must be a list of %d numbers", field->name, field->count);
            return -1;
        }
        for (int i = 0; i < field->count; ++i)
            if (read_number(PyList_GET_ITEM(object, i), at + (size_t)i * sizeof(int64_t), false) < 0) return -1;
    }
    return 0;
}

static PyObject *py_trainer_set_counts(PyObject *self, PyObject *all) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    const int local = gg_team_local(t->team->team);
    gg_progress_counts counts;
    if (!gg_py_trainer_is_free(t)) return NULL;
    if (!PyList_Check(all) || PyList_GET_SIZE(all) != local) {
        PyErr_Format(PyExc_ValueError, "counts: must be a list with those of each of %d local ranks", local);
        return NULL;
    }
    for (int i = 0; i < local; ++i) {
        PyObject *dict = PyList_GET_ITEM(all, i);
        if (!PyDict_Check(dict)) {
            PyErr_SetString(PyExc_TypeError, "counts: must be dicts, as counts() gave them");
            return NULL;
        }
        if (read_counts(dict, &counts) < 0) return NULL;
        gg_replica_set_counts(gg_trainer_replica(t->trainer, i), &counts);
    }
    Py_RETURN_NONE;
}

typedef struct watcher {
    gg_py_trainer *trainer;
    PyObject *callable;
    bool failed; /* with an exception, which `kind`, `value` and `trace` hold until the run has ended */
    PyObject *kind, *value, *trace;
} watcher;

static bool py_trainer_watch(void *context) {
    watcher *w = context;
    if (w->failed) return false;
    PyGILState_STATE gil = PyGILState_Ensure();
    w->trainer->exchange->busy = false; /* the callback may ask for the progress */
    PyObject *result = PyErr_CheckSignals() == 0 ? PyObject_CallNoArgs(w->callable) : NULL;
    w->trainer->exchange->busy = true;
    w->failed = result == NULL;
    if (w->failed) PyErr_Fetch(&w->kind, &w->value, &w->trace);
    Py_XDECREF(result);
    PyGILState_Release(gil);
    return !w->failed;
}

static PyObject *py_trainer_run(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"steps", "watch", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    watcher w = {.trainer = t, .callable = Py_None};
    long long steps;
    gg_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "L|O:run", names, &steps, &w.callable)) return NULL;
    if (!gg_py_trainer_enter(t)) return NULL;
    GG_PY_WITHOUT_GIL(status = gg_trainer_run(t->trainer, steps, w.callable == Py_None ? NULL : py_trainer_watch, &w));
    gg_py_trainer_leave(t);
    if (w.failed) {
        gg_py_forget_stored();
        PyErr_Restore(w.kind, w.value, w.trace);
        return NULL;
    }
    if (status != GG_OK) return gg_py_raise(status);
    return PyLong_FromLongLong(gg_replica_next(gg_trainer_replica(t->trainer, 0)));
}

static PyObject *describe(const gg_view_change *change) {
    const gg_view *view = change->view;
    PyObject *dict = gg_py_view(view->number, change->step, view->member, view->members);
    dict = gg_py_put(dict, "trained_again", PyLong_FromLongLong(change->again));
    dict = gg_py_put(dict, "seconds", PyFloat_FromDouble(change->end - change->begin));
    dict = gg_py_put(dict, "died", gg_py_ranks(change->died, change->dead));
    return gg_py_put(dict, "last_steps", gg_py_integers(change->last, change->dead));
}

static PyObject *py_trainer_change_view(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    gg_view_change change;
    (void)unused;
    GG_PY_CALL(t, gg_trainer_change_view(t->trainer, &change));
    if (!change.changed) Py_RETURN_NONE;
    return gg_py_put(describe(&change), "whole", PyBool_FromLong(change.whole));
}

static PyObject *py_trainer_set_text(PyObject *self, PyObject *text) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    if (!PyBytes_Check(text)) return PyErr_Format(PyExc_TypeError, "text: must be bytes");
    if (!gg_py_trainer_is_free(t)) return NULL;
    return gg_py_done(gg_trainer_set_text(t->trainer, PyBytes_AS_STRING(text), (size_t)PyBytes_GET_SIZE(text)));
}

/* gg_py_trainer_enter of a newcomer, whose exchange may be taken apart. */
static bool enter_joining(gg_py_trainer *t) {
    if (t->exchange->busy || gg_py_team_check_collectives(t->team) < 0) return gg_py_trainer_enter(t);
    return t->exchange->busy = true;
}

static PyObject *py_trainer_hear(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    const char *text;
    size_t bytes;
    bool done;
    (void)unused;
    GG_PY_RUN(t, enter_joining(t), done, gg_trainer_hear(t->trainer, &text, &bytes));
    if (!done) return NULL;
    return PyBytes_FromStringAndSize(text, (Py_ssize_t)bytes);
}

static PyObject *list_joined(const gg_view *view) {
    PyObject *list = PyList_New(0);
    for (int i = 0; i < view->members; ++i)
        if (view->donor[i] >= 0) list = gg_py_append(list, PyLong_FromLong(view->member[i]));
    return list;
}

static PyObject *py_trainer_join(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    bool whole;
    (void)unused;
    PyObject *joined = list_joined(gg_team_view(t->team->team)); /* while they are newcomers */
    bool done;
    GG_PY_RUN(t, enter_joining(t), done, gg_trainer_join(t->trainer, &whole));
    if (!done || !whole) {
        Py_XDECREF(joined);
        return done ? Py_NewRef(Py_None) : NULL;
    }
    const gg_view *view = gg_team_view(t->team->team);
    const gg_view_change change = {
        .view = view, .step = view->start, .dead = view->dead, .died = view->died, .last = view->last};
    return gg_py_put(describe(&change), "joined", joined);
}

static PyObject *py_trainer_check_survival(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    (void)unused;
    if (!gg_py_trainer_is_free(t)) return NULL;
    return gg_py_done(gg_trainer_check_survival(t->trainer));
}

static PyObject *py_trainer_progress(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    double loss = 0, samples = 0, correct = 0, counted = 0;
    gg_progress_counts counts = {0};
    long long steps = 0;
    (void)unused;
    if (!gg_py_trainer_is_free(t)) return NULL;
    for (int i = 0; i < gg_team_local(t->team->team); ++i) {
        gg_replica_counts(gg_trainer_replica(t->trainer, i), &counts);
        loss += counts.loss_sum;
        samples += (double)counts.samples;
        correct += (double)counts.correct;
        counted += (double)counts.counted;
        if (i == 0 || counts.steps < steps) steps = counts.steps;
    }
    return Py_BuildValue("{sdsdsdsdsL}", "samples", samples, "loss", samples > 0 ? loss / samples : 0.0, "accuracy",
                         counted > 0 ? correct / counted : 0.0, "seconds", counts.seconds, "steps", steps);
}

/* Bytes of each family of the network: {"conv": ..., ...}. */
static PyObject *py_trainer_by_family(const gg_py_trainer *t, const int64_t *bytes) {
    PyObject *dict = PyDict_New();
    for (int i = 0; dict != NULL && i < GG_FAMILY_COUNT; ++i)
        if (gg_py_trainer_has_family(t, i)) dict = gg_py_put(dict, gg_family_name(i), PyLong_FromLongLong(bytes[i]));
    return dict;
}

static PyObject *py_trainer_compression(const gg_py_trainer *t, const gg_progress_counts *sum) {
    const gg_compression_counts *c = &sum->compression;
    PyObject *dict = Py_BuildValue("{sLsLsd}", "elements_sent", (long long)c->elements_sent, "elements",
                                   (long long)c->elements, "residue", sum->residue / (double)sum->compresses);
    dict = gg_py_put(dict, "bins_with", gg_py_integers(c->bins_with, GG_COUNTS_HISTOGRAM));
    dict = gg_py_put(dict, "dense_bytes", py_trainer_by_family(t, c->dense_bytes));
    return gg_py_put(dict, "sent_bytes", py_trainer_by_family(t, c->sent_bytes));
}

static PyObject *py_trainer_end_epoch(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    gg_epoch_summary s = {0};
    (void)unused;
    GG_PY_CALL(t, gg_trainer_end_epoch(t->trainer, &s));
    double ranks = gg_team_size(t->team->team), samples = (double)s.sum.samples, seconds = s.sum.seconds / ranks;
    PyObject *dict = Py_BuildValue(
        "{sLsLsdsdsdsdsdsdsdsdsdsdsLsLsLsLsLsd}", "steps", (long long)s.sum.steps, "samples", (long long)s.sum.samples,
        "train_loss", samples > 0 ? s.sum.loss_sum / samples : 0.0, "seconds", seconds, "seconds_max", s.most.seconds,
        "samples_per_second", seconds > 0 ? samples / seconds : 0.0, "compute_seconds", s.sum.compute_seconds / ranks,
        "compute_seconds_max", s.most.compute_seconds, "exposed_communication_seconds", s.sum.exposed_seconds / ranks,
        "exposed_communication_seconds_max", s.most.exposed_seconds, "data_wait_seconds", s.sum.data_seconds / ranks,
        "data_wait_seconds_max", s.most.data_seconds, "bytes_sent", (long long)s.sum.bytes_sent, "messages_sent",
        (long long)s.sum.messages_sent, "exchanges_skipped", (long long)s.sum.skipped, "sample_bytes_sent",
        (long long)s.sum.sample_bytes_sent, "sample_messages_sent", (long long)s.sum.sample_messages_sent,
        "consensus_distance", s.consensus_distance);
    dict = gg_py_put(dict, "optimizer_state_bytes", PyLong_FromLongLong(s.sum.optimizer_bytes));
    dict = gg_py_put(dict, "optimizer_state_bytes_saved", PyLong_FromLongLong(s.sum.optimizer_bytes_saved));
    if (s.sum.compresses > 0) dict = gg_py_put(dict, "compression", py_trainer_compression(t, &s.sum));
    if (strcmp(gg_team_kind(t->team->team), "virtual") == 0)
        dict = gg_py_put(dict, "virtual_seconds", PyFloat_FromDouble(s.most.clock_seconds));
    if (t->head[0].loss.kind != GG_LOSS_MEAN_SQUARED_ERROR && s.sum.counted > 0)
        dict = gg_py_put(dict, "train_accuracy", PyFloat_FromDouble((double)s.sum.correct / (double)s.sum.counted));
    return dict;
}

static PyObject *id_or_none(int64_t id) { return id < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(id); }

static PyObject *audit_samples(PyObject *self, PyObject *unused) {
    gg_py_trainer *t = (gg_py_trainer *)self;
    gg_sample_audit a;
    (void)unused;
    GG_PY_CALL(t, gg_trainer_audit(t->trainer, &a));
    return Py_BuildValue("{sLsLsLsLsNsNsN}", "samples", (long long)a.samples, "missing", (long long)a.missing,
                         "duplicate", (long long)a.duplicate, "altered", (long long)a.altered, "first_missing",
                         id_or_none(a.first_missing), "first_duplicate", id_or_none(a.first_duplicate), "first_altered",
                         id_or_none(a.first_altered));
}

static PyObject *sample_ids(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"rank", NULL};
    gg_py_trainer *t = (gg_py_trainer *)self;
    int rank = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|i:sample_ids", names, &rank)) return NULL;
    gg_replica *replica = gg_py_trainer_replica(t, rank);
    if (replica == NULL) return NULL;
    PyObject *settled = PyObject_CallMethod((PyObject *)t->exchange, "settle", NULL);
    Py_XDECREF(settled);
    if (settled == NULL) return NULL;
    npy_intp slots = (npy_intp)gg_replica_slots(replica);
    if (slots < 0) return gg_py_raise(gg_fail(GG_ERROR_STATE, "sample_ids: there is no data to train on yet"));
    PyArrayObject *array = gg_py_new_array(1, &slots, NPY_INT32);
    for (npy_intp i = 0; array != NULL && i < slots; ++i)
        ((int32_t *)PyArray_DATA(array))[i] = (int32_t)gg_replica_sample_id(replica, i);
    return (PyObject *)array;
}

PyMethodDef gg_py_trainer_epochs[] = {
    {"change_view", py_trainer_change_view, METH_NOARGS, NULL},
    {"set_text", py_trainer_set_text, METH_O, "set_text($self, text, /)\n--\n\n"},
    {"hear", py_trainer_hear, METH_NOARGS, NULL},
    {"join", py_trainer_join, METH_NOARGS, NULL},
    {"check_survival", py_trainer_check_survival, METH_NOARGS, NULL},
    {"begin", GG_PY_KEYWORDS(py_trainer_begin), NULL},
    {"epoch", GG_PY_KEYWORDS(py_trainer_epoch),
     "epoch($self, epoch, step=0, begun=0, done=None, divisions=None)\n--\n\n"},
    {"position", py_trainer_position, METH_NOARGS, NULL},
    {"counts", py_trainer_counts, METH_NOARGS, NULL},
    {"set_counts", py_trainer_set_counts, METH_O, "set_counts($self, counts, /)\n--\n\n"},
    {"run", GG_PY_KEYWORDS(py_trainer_run), "run($self, steps, watch=None)\n--\n\n"},
    {"progress", py_trainer_progress, METH_NOARGS, NULL},
    {"end_epoch", py_trainer_end_epoch, METH_NOARGS, NULL},
    {"audit_samples", audit_samples, METH_NOARGS, NULL},
    {"sample_ids", GG_PY_KEYWORDS(sample_ids), NULL},
    {NULL, NULL, 0, NULL}};
