/* _core.Exchange: the calls of a step, and running a function on every rank. */
#include "base/parallel.h"
#include "python/exchange.h"

#include <string.h>

/* ---- calls of one rank ---- */

typedef struct rank_call {
    gg_py_exchange *exchange;
    int layer;
    int64_t *batches; /* one a rank of the team; NULL means equal batches */
    const float *
        *gradient; /* one a parameter of the layer: its gradient's place; NULL means that all are in the arena */
} rank_call;

/* Functions of a rank, for gg_py_exchange_call. */
#define RANK_CALL(name, expression)                                                                                    \
    static gg_status call_##name(void *context, int local) {                                                           \
        const rank_call *c = context;                                                                                  \
        return expression;                                                                                             \
    }
RANK_CALL(begin, gg_steps_begin(c->exchange->steps[local], c->batches))
RANK_CALL(need, gg_steps_need(c->exchange->steps[local], c->layer))
RANK_CALL(ready, gg_steps_ready(c->exchange->steps[local], c->layer, c->gradient))
RANK_CALL(poll, gg_exchange_poll(gg_peers_exchange(c->exchange->peers, local)))
RANK_CALL(end, gg_steps_end(c->exchange->steps[local]))
RANK_CALL(wait, gg_exchange_wait(gg_peers_exchange(c->exchange->peers, local)))
RANK_CALL(settle, gg_peers_settle(c->exchange->peers, local))
RANK_CALL(whole_step, gg_steps_whole(c->exchange->steps[local], c->batches))
RANK_CALL(zero_gradients, (gg_steps_zero_gradients(c->exchange->steps[local]), GG_OK))

/* A method whose only argument is a rank; with `all`, None means all ranks. */
static PyObject *simple_call(PyObject *self, PyObject *args, bool all, gg_status (*fn)(void *context, int local)) {
    rank_call c = {.exchange = (gg_py_exchange *)self};
    PyObject *object = all ? Py_None : NULL;
    if (!PyArg_ParseTuple(args, all ? "|O" : "O", &object)) return NULL;
    const int rank = all ? gg_py_exchange_rank(c.exchange, object) : gg_py_exchange_one_rank(c.exchange, object);
    if (rank == -2) return NULL;
    return gg_py_exchange_call(c.exchange, rank, fn, &c);
}

static PyObject *layer_call(PyObject *self, PyObject *args, gg_status (*fn)(void *context, int local)) {
    rank_call c = {.exchange = (gg_py_exchange *)self};
    PyObject *object;
    if (!PyArg_ParseTuple(args, "Oi", &object, &c.layer)) return NULL;
    const int rank = gg_py_exchange_one_rank(c.exchange, object);
    if (rank < 0) return NULL;
    return gg_py_exchange_call(c.exchange, rank, fn, &c);
}

/* Samples of each rank of the team, to be freed by PyMem_Free; NULL for None. -1 with an exception. */
static int read_batches(const gg_py_exchange *x, PyObject *object, int64_t **out) {
    const int size = gg_team_size(x->team->team);
    int64_t all = 0;
    *out = NULL;
    if (object == Py_None) return 0;
    PyObject *items = PySequence_Fast(object, "batches: must be a sequence with the samples of each rank");
    if (items == NULL) return -1;
    if (PySequence_Fast_GET_SIZE(items) != size)
        PyErr_Format(PyExc_ValueError, "batches: %zd numbers for %d ranks", PySequence_Fast_GET_SIZE(items), size);
    else if ((*out = PyMem_Calloc((size_t)size, sizeof **out)) == NULL) PyErr_NoMemory();
    for (int i = 0; *out != NULL && i < size && !PyErr_Occurred(); ++i) {
        (*out)[i] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(items, i));
        if (!PyErr_Occurred() && ((*out)[i] < 0 || (*out)[i] > INT32_MAX))
            PyErr_Format(PyExc_ValueError, "batches[%d]: %lld; allowed are 0 to %d", i, (long long)(*out)[i],
                         INT32_MAX);
        if (i < gg_exchange_workers(gg_peers_exchange(x->peers, 0))) all += (*out)[i];
    }
    if (*out != NULL && all == 0 && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "batches: no rank has samples; at least one must");
    Py_DECREF(items);
    if (!PyErr_Occurred()) return 0;
    PyMem_Free(*out);
    *out = NULL;
    return -1;
}

static PyObject *exchange_begin(PyObject *self, PyObject *args) {
    rank_call c = {.exchange = (gg_py_exchange *)self};
    PyObject *object, *batches = Py_None;
    if (!PyArg_ParseTuple(args, "O|O:begin", &object, &batches)) return NULL;
    const int rank = gg_py_exchange_one_rank(c.exchange, object);
    if (rank < 0 || !gg_py_exchange_allows(c.exchange, rank)) return NULL;
    if (read_batches(c.exchange, batches, &c.batches) < 0) return NULL;
    PyObject *result = gg_py_exchange_call(c.exchange, rank, call_begin, &c);
    PyMem_Free(c.batches);
    return result;
}

static PyObject *exchange_need(PyObject *self, PyObject *args) { return layer_call(self, args, call_need); }

/* Addresses of the gradients of a layer's parameters, 0: in the arena; to be freed by PyMem_Free. NULL with an
 * exception. */
static const float **read_addresses(const gg_py_exchange *x, int layer, PyObject *list) {
    const gg_arena_layout *layout = gg_exchange_layout(gg_peers_exchange(x->peers, 0));
    if (layer < 0 || layer >= layout->layers) {
        PyErr_Format(PyExc_ValueError, "ready: layer %d; there are layers 0 to %d", layer, layout->layers - 1);
        return NULL;
    }
    const Py_ssize_t count = layout->layer[layer].parameters;
    if (!PyList_Check(list) || PyList_GET_SIZE(list) != count) {
        PyErr_Format(PyExc_ValueError, "ready: addresses of gradients: a list of %zd integers is wanted", count);
        return NULL;
    }
    const float **out = PyMem_Calloc((size_t)count + 1, sizeof *out);
    if (out == NULL) PyErr_NoMemory();
    for (Py_ssize_t i = 0; out != NULL && i < count && !PyErr_Occurred(); ++i)
        out[i] = PyLong_AsVoidPtr(PyList_GET_ITEM(list, i));
    if (out == NULL || !PyErr_Occurred()) return out;
    PyMem_Free(out);
    return NULL;
}

static PyObject *exchange_ready(PyObject *self, PyObject *args) {
    rank_call c = {.exchange = (gg_py_exchange *)self};
    PyObject *object, *addresses = Py_None;
    if (!PyArg_ParseTuple(args, "Oi|O:ready", &object, &c.layer, &addresses)) return NULL;
    const int rank = gg_py_exchange_one_rank(c.exchange, object);
    if (rank < 0) return NULL;
    if (addresses != Py_None && (c.gradient = read_addresses(c.exchange, c.layer, addresses)) == NULL) return NULL;
    PyObject *result = gg_py_exchange_call(c.exchange, rank, call_ready, &c);
    PyMem_Free(c.gradient);
    return result;
}

static PyObject *exchange_poll(PyObject *self, PyObject *args) { return simple_call(self, args, false, call_poll); }
static PyObject *exchange_end(PyObject *self, PyObject *args) { return simple_call(self, args, false, call_end); }
static PyObject *exchange_wait(PyObject *self, PyObject *args) { return simple_call(self, args, true, call_wait); }
static PyObject *exchange_settle(PyObject *self, PyObject *args) { return simple_call(self, args, true, call_settle); }

static PyObject *exchange_zero_gradients(PyObject *self, PyObject *args) {
    return simple_call(self, args, false, call_zero_gradients);
}

static PyObject *exchange_large(PyObject *self, PyObject *unused) {
    const gg_py_exchange *x = (gg_py_exchange *)self;
    const gg_arena_layout *layout = gg_exchange_layout(gg_peers_exchange(x->peers, 0));
    (void)unused;
    PyObject *names = PyList_New(0);
    for (int i = 0; names != NULL && i < layout->parameters; ++i) {
        if (!gg_steps_is_large(&layout->parameter[i])) continue;
        names = gg_py_append(names, PyUnicode_FromString(layout->parameter[i].name));
    }
    return names;
}

static PyObject *exchange_current_at_end(PyObject *self, PyObject *unused) {
    const gg_py_exchange *x = (gg_py_exchange *)self;
    (void)unused;
    return PyBool_FromLong(gg_exchange_current_at_end(gg_peers_exchange(x->peers, 0)));
}

static PyObject *exchange_leave(PyObject *self, PyObject *args) {
    const gg_py_exchange *x = (gg_py_exchange *)self;
    PyObject *object = Py_None;
    if (!PyArg_ParseTuple(args, "|O:leave", &object)) return NULL;
    const int rank = gg_py_exchange_rank(x, object);
    if (rank == -2) return NULL;
    const int first = rank < 0 ? 0 : rank, end = rank < 0 ? gg_team_local(x->team->team) : rank + 1;
    for (int i = first; i < end; ++i) gg_exchange_leave(gg_peers_exchange(x->peers, i));
    Py_RETURN_NONE;
}

static PyObject *exchange_check_gradients(PyObject *self, PyObject *args) {
    const gg_py_exchange *x = (gg_py_exchange *)self;
    PyObject *object = Py_None;
    if (!PyArg_ParseTuple(args, "|O:check_gradients", &object)) return NULL;
    const int rank = gg_py_exchange_rank(x, object);
    if (rank == -2 || !gg_py_exchange_has_steps(x) || !gg_py_exchange_allows(x, rank)) return NULL;
    const int first = rank < 0 ? 0 : rank, end = rank < 0 ? gg_team_local(x->team->team) : rank + 1;
    for (int i = first; i < end; ++i) {
        gg_exchange *one = gg_peers_exchange(x->peers, i);
        if (!gg_exchange_trains(one)) continue;
        const gg_status status = gg_exchange_check_gradients(one, gg_steps_gradients(x->steps[i]));
        if (status == GG_OK) continue;
        if (end - first == 1) return gg_py_raise(status);
        return gg_py_raise(gg_error_prefix(status, "rank %d: ", i));
    }
    Py_RETURN_NONE;
}

static PyObject *whole_step(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"rank", "batches", NULL};
    rank_call c = {.exchange = (gg_py_exchange *)self};
    PyObject *object = Py_None, *batches = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO:whole_step", names, &object, &batches)) return NULL;
    const int rank = gg_py_exchange_rank(c.exchange, object);
    if (rank == -2 || !gg_py_exchange_has_steps(c.exchange) || !gg_py_exchange_allows(c.exchange, rank)) return NULL;
    if (read_batches(c.exchange, batches, &c.batches) < 0) return NULL;
    PyObject *result = gg_py_exchange_call(c.exchange, rank, call_whole_step, &c);
    PyMem_Free(c.batches);
    return result;
}

static PyObject *exchange_under_way(PyObject *self, PyObject *args) {
    const gg_py_exchange *x = (gg_py_exchange *)self;
    PyObject *object;
    int half = 0;
    if (!PyArg_ParseTuple(args, "O|p:under_way", &object, &half)) return NULL;
    const int rank = gg_py_exchange_rank(x, object);
    if (rank == -2) return NULL;
    return PyBool_FromLong(gg_exchange_under_way(gg_peers_exchange(x->peers, rank < 0 ? 0 : rank), half != 0));
}

/* ---- a function on every rank ---- */

#define WATCH_SECONDS 0.1

typedef struct run_call {
    gg_py_exchange *exchange;
    PyObject *function;
    gg_float_mode mode;             /* of the caller, also used by the function */
    PyObject *kind, *value, *trace; /* exception raised by a signal's handler; NULL means none */
} run_call;

static gg_status run_function(void *context, int local) {
    const run_call *c = context;
    gg_status status = GG_OK;
    gg_parallel_leave(c->mode);
    const PyGILState_STATE gil = PyGILState_Ensure();
    c->exchange->thread[local] = PyThread_get_thread_ident();
    PyObject *result = PyObject_CallFunction(c->function, "i", local);
    c->exchange->thread[local] = 0;
    if (result == NULL) status = gg_py_store_exception();
    Py_XDECREF(result);
    PyGILState_Release(gil);
    (void)gg_parallel_enter();
    return status;
}

/* On the thread that called run, between calls of the ranks: handlers of signals run on the main thread alone. */
static void watch_signals(void *context) {
    run_call *c = context;
    if (c->exchange->interrupted) return;
    const PyGILState_STATE gil = PyGILState_Ensure();
    c->exchange->interrupted = PyErr_CheckSignals() < 0;
    if (c->exchange->interrupted) PyErr_Fetch(&c->kind, &c->value, &c->trace);
    PyGILState_Release(gil);
}

static PyObject *exchange_run(PyObject *self, PyObject *function) {
    gg_py_exchange *x = (gg_py_exchange *)self;
    run_call c = {.exchange = x, .function = function};
    gg_status status;
    if (!PyCallable_Check(function))
        return PyErr_Format(PyExc_TypeError, "run: a function of a rank is wanted, not %s", Py_TYPE(function)->tp_name);
    if (!gg_py_exchange_has_steps(x)) return NULL;
    if (x->running) return PyErr_Format(PyExc_RuntimeError, "run: it is under way already");
    if (!gg_py_exchange_allows(x, -1)) return NULL;
    x->running = true;
    x->interrupted = false;
    if (strcmp(gg_team_kind(x->team->team), "virtual") != 0) {
        PyObject *result = PyObject_CallFunction(function, "i", 0);
        x->running = false;
        if (result == NULL) return NULL;
        Py_DECREF(result);
        Py_RETURN_NONE;
    }
    Py_BEGIN_ALLOW_THREADS;
    c.mode = gg_cpu_float_mode();
    status = gg_team_run_watched(x->team->team, run_function, &c, &(gg_watch){watch_signals, &c, WATCH_SECONDS});
    Py_END_ALLOW_THREADS;
    x->running = false;
    if (c.kind != NULL) {
        gg_py_forget_stored();
        PyErr_Restore(c.kind, c.value, c.trace);
        return NULL;
    }
    return gg_py_done(status);
}

PyMethodDef gg_py_exchange_steps[] = {
    {"begin", exchange_begin, METH_VARARGS, "begin($self, rank, batches=None, /)\n--\n\n"},
    {"leave", exchange_leave, METH_VARARGS, "leave($self, rank=None, /)\n--\n\n"},
    {"need", exchange_need, METH_VARARGS, "need($self, rank, layer, /)\n--\n\n"},
    {"ready", exchange_ready, METH_VARARGS, "ready($self, rank, layer, addresses=None, /)\n--\n\n"},
    {"poll", exchange_poll, METH_VARARGS, "poll($self, rank, /)\n--\n\n"},
    {"end", exchange_end, METH_VARARGS, "end($self, rank, /)\n--\n\n"},
    {"wait", exchange_wait, METH_VARARGS, "wait($self, rank=None, /)\n--\n\n"},
    {"settle", exchange_settle, METH_VARARGS, "settle($self, rank=None, /)\n--\n\n"},
    {"zero_gradients", exchange_zero_gradients, METH_VARARGS, "zero_gradients($self, rank, /)\n--\n\n"},
    {"large", exchange_large, METH_NOARGS, NULL},
    {"check_gradients", exchange_check_gradients, METH_VARARGS, "check_gradients($self, rank=None, /)\n--\n\n"},
    {"whole_step", GG_PY_KEYWORDS(whole_step), NULL},
    {"current_at_end", exchange_current_at_end, METH_NOARGS, NULL},
    {"under_way", exchange_under_way, METH_VARARGS, "under_way($self, rank, half=False, /)\n--\n\n"},
    {"run", exchange_run, METH_O, "run($self, function, /)\n--\n\n"},
    {NULL, NULL, 0, NULL}};
