/* _core.Exchange: its arenas, as views and as copies, and its counts. */
#include <math.h>
#include <string.h>

#include "python/exchange.h"

static gg_exchange *exchange_of(PyObject *self, int rank) {
    return gg_peers_exchange(((gg_py_exchange *)self)->peers, rank);
}

static const gg_arena_layout *layout_of(const gg_py_exchange *x) {
    return gg_exchange_layout(gg_peers_exchange(x->peers, 0));
}

/* True if the state may be read between two calls of all ranks: a trainer may be about to reshape it. */
static bool is_at_rest(const gg_py_exchange *x) { return x->steps != NULL || gg_py_exchange_is_free(x); }

/* ---- views ---- */

/* An array of each parameter that shares an arena's memory, which lives as long as one of them does. */
static PyObject *views_of(PyObject *self, float *arena) {
    return gg_py_arena_dict(layout_of((gg_py_exchange *)self), arena, self);
}

/* The local rank that is the only argument; -1 with an exception. */
static int rank_of(PyObject *self, PyObject *args) {
    const gg_py_exchange *x = (gg_py_exchange *)self;
    PyObject *object = NULL;
    if (!PyArg_ParseTuple(args, "|O", &object) || gg_py_team_check_process(x->team) < 0) return -1;
    return object == NULL ? 0 : gg_py_exchange_one_rank(x, object);
}

static PyObject *exchange_weights(PyObject *self, PyObject *args) {
    const int rank = rank_of(self, args);
    if (rank < 0 || !gg_py_exchange_has_steps((gg_py_exchange *)self)) return NULL;
    return views_of(self, gg_state_weights(gg_exchange_state(exchange_of(self, rank))));
}

static PyObject *exchange_gradients(PyObject *self, PyObject *args) {
    const int rank = rank_of(self, args);
    if (rank < 0 || !gg_py_exchange_has_steps((gg_py_exchange *)self)) return NULL;
    return views_of(self, gg_steps_gradients(((gg_py_exchange *)self)->steps[rank]));
}

/* ---- copies ---- */

/* The place of an arena in the states of all local ranks; -1 with an exception. */
static int arena_place(PyObject *self, const char *name) {
    if (!is_at_rest((gg_py_exchange *)self)) return -1;
    return gg_py_arena_place(gg_exchange_state(exchange_of(self, 0)), name);
}

/* Input and output of a call of all ranks, or of one. */
typedef struct state_call {
    gg_py_exchange *exchange;
    int arena, receiver; /* receiver: the local rank that writes `out` */
    float *out;
    gg_py_resume resume;
    double number;
} state_call;

/* The arena that a call of all ranks writes to `out`, as arrays by parameter. */
static PyObject *read_arena(state_call *c, gg_status (*call)(void *context, int local)) {
    if ((c->out = gg_py_arena_new(layout_of(c->exchange))) == NULL) return NULL;
    PyObject *result = gg_py_exchange_call(c->exchange, -1, call, c);
    Py_XDECREF(result);
    if (result != NULL) result = gg_py_arena_dict(layout_of(c->exchange), c->out, NULL);
    PyMem_Free(c->out);
    return result;
}

static PyObject *exchange_check_arena(PyObject *self, PyObject *name) {
    const char *text = PyUnicode_AsUTF8(name);
    const int place = text != NULL ? arena_place(self, text) : -1;
    if (place < 0 || !gg_py_exchange_allows((gg_py_exchange *)self, -1)) return NULL;
    const gg_status status = gg_exchange_check_arena(exchange_of(self, 0), place);
    return gg_py_done(status);
}

static gg_status call_gather(void *context, int local) {
    state_call *c = context;
    gg_exchange *x = gg_peers_exchange(c->exchange->peers, local);
    GG_TRY(gg_peers_settle(c->exchange->peers, local));
    return gg_exchange_gather(x, c->arena, local == c->receiver ? c->out : NULL);
}

static PyObject *exchange_arenas(PyObject *self, PyObject *unused) {
    (void)unused;
    if (!is_at_rest((gg_py_exchange *)self)) return NULL;
    return gg_py_arena_kinds(gg_exchange_state(exchange_of(self, 0)));
}

static PyObject *exchange_arena(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"name", "rank", NULL};
    state_call c = {.exchange = (gg_py_exchange *)self};
    const char *name;
    PyObject *object = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|O:arena", names, &name, &object)) return NULL;
    if ((c.arena = arena_place(self, name)) < 0) return NULL;
    if (object != NULL && (c.receiver = gg_py_exchange_rank(c.exchange, object)) == -2) return NULL;
    if (c.receiver < 0) c.receiver = 0;
    return read_arena(&c, call_gather);
}

static gg_status call_load(void *context, int local) {
    state_call *c = context;
    gg_exchange *x = gg_peers_exchange(c->exchange->peers, local);
    GG_TRY(gg_peers_settle(c->exchange->peers, local));
    if (c->receiver < 0 || c->receiver == local) gg_exchange_load(x, c->arena, c->out);
    if (c->receiver < 0 && c->arena == GG_WEIGHTS) gg_exchange_set_consensus(x, c->out);
    return GG_OK;
}

static PyObject *exchange_load_arena(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"name", "arrays", "rank", NULL};
    state_call c = {.exchange = (gg_py_exchange *)self};
    const char *name;
    PyObject *dict, *object = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO|O:load_arena", names, &name, &dict, &object)) return NULL;
    if ((c.arena = arena_place(self, name)) < 0) return NULL;
    if ((c.receiver = gg_py_exchange_rank(c.exchange, object)) == -2) return NULL;
    if ((c.out = gg_py_arena_of(layout_of(c.exchange), dict, name)) == NULL) return NULL;
    PyObject *result = gg_py_exchange_call(c.exchange, -1, call_load, &c);
    PyMem_Free(c.out);
    return result;
}

static gg_status call_resume(void *context, int local) {
    state_call *c = context;
    gg_exchange *x = gg_peers_exchange(c->exchange->peers, local);
    GG_TRY(gg_peers_settle(c->exchange->peers, local));
    return gg_exchange_resume(x, c->resume.arena, c->resume.whole[local], c->resume.consensus, c->resume.trained);
}

static PyObject *exchange_resume_arena(PyObject *self, PyObject *args) {
    state_call c = {.exchange = (gg_py_exchange *)self};
    PyObject *result = NULL;
    if (!is_at_rest(c.exchange)) return NULL;
    const gg_state *state = gg_exchange_state(exchange_of(self, 0));
    if (gg_py_resume_read(&c.resume, args, state, layout_of(c.exchange), c.exchange->team->team) == 0)
        result = gg_py_exchange_call(c.exchange, -1, call_resume, &c);
    gg_py_resume_free(&c.resume);
    return result;
}

static gg_status call_consensus(void *context, int local) {
    state_call *c = context;
    gg_exchange *x = gg_peers_exchange(c->exchange->peers, local);
    const float *mean = NULL;
    GG_TRY(gg_peers_settle(c->exchange->peers, local));
    GG_TRY(gg_exchange_consensus(x, &mean));
    if (local == 0) memcpy(c->out, mean, layout_of(c->exchange)->count * sizeof *mean);
    return GG_OK;
}

static PyObject *exchange_consensus(PyObject *self, PyObject *unused) {
    state_call c = {.exchange = (gg_py_exchange *)self};
    (void)unused;
    return read_arena(&c, call_consensus);
}

static gg_status call_set_consensus(void *context, int local) {
    state_call *c = context;
    gg_exchange *x = gg_peers_exchange(c->exchange->peers, local);
    GG_TRY(gg_peers_settle(c->exchange->peers, local));
    gg_exchange_set_consensus(x, c->out);
    return GG_OK;
}

static gg_status call_adopt(void *context, int local) {
    const state_call *c = context;
    GG_TRY(gg_peers_settle(c->exchange->peers, local));
    return gg_exchange_adopt_consensus(gg_peers_exchange(c->exchange->peers, local));
}

static PyObject *exchange_adopt_consensus(PyObject *self, PyObject *unused) {
    state_call c = {.exchange = (gg_py_exchange *)self};
    (void)unused;
    return gg_py_exchange_call(c.exchange, -1, call_adopt, &c);
}

static PyObject *exchange_load_consensus(PyObject *self, PyObject *dict) {
    state_call c = {.exchange = (gg_py_exchange *)self};
    if ((c.out = gg_py_arena_of(layout_of(c.exchange), dict, "weights")) == NULL) return NULL;
    PyObject *result = gg_py_exchange_call(c.exchange, -1, call_set_consensus, &c);
    PyMem_Free(c.out);
    return result;
}

static gg_status call_distance(void *context, int local) {
    state_call *c = context;
    gg_exchange *x = gg_peers_exchange(c->exchange->peers, local);
    double own = 0;
    GG_TRY(gg_peers_settle(c->exchange->peers, local));
    GG_TRY(gg_exchange_distance(x, &own));
    if (local == 0) c->number = own;
    return GG_OK;
}

static PyObject *exchange_distance(PyObject *self, PyObject *unused) {
    state_call c = {.exchange = (gg_py_exchange *)self};
    (void)unused;
    PyObject *result = gg_py_exchange_call(c.exchange, -1, call_distance, &c);
    Py_XDECREF(result);
    return result != NULL ? PyFloat_FromDouble(c.number) : NULL;
}

static PyObject *exchange_set_schedule(PyObject *self, PyObject *schedule) {
    gg_py_exchange *x = (gg_py_exchange *)self;
    gg_rate rate;
    if (gg_py_team_check_process(x->team) < 0 || gg_py_schedule(schedule, &rate) < 0) return NULL;
    if (x->steps == NULL && gg_py_team_check_collectives(x->team) < 0) return NULL;
    /* A rank that is alone in its process may be in `run`, between its calls. */
    bool busy = x->busy || (x->running && strcmp(gg_team_kind(x->team->team), "virtual") == 0);
    for (int i = 0; i < gg_team_local(x->team->team); ++i) busy = busy || x->rank_busy[i];
    if (busy) return gg_py_exchange_is_in_use(x);
    if (!gg_py_exchange_is_free(x)) return NULL;
    gg_peers_set_rate(x->peers, &rate);
    Py_XSETREF(x->schedule, Py_NewRef(schedule));
    Py_RETURN_NONE;
}

/* ---- counts ---- */

static PyObject *exchange_counts(PyObject *self, PyObject *args) {
    const gg_py_exchange *x = (gg_py_exchange *)self;
    const int rank = rank_of(self, args);
    gg_exchange_counts counts;
    if (rank < 0 || !is_at_rest(x)) return NULL;
    gg_exchange *one = exchange_of(self, rank);
    gg_exchange_counted(one, &counts);
    /* Who holds the interpreter's lock lets no other call of the rank begin. */
    if (!x->busy && !x->rank_busy[rank]) gg_exchange_complete_residue(one);
    return Py_BuildValue("{sdsLsLsLsdsd}", "exposed_seconds", counts.exposed_seconds, "bytes_sent",
                         (long long)counts.bytes, "messages_sent", (long long)counts.messages, "skipped",
                         (long long)counts.skipped, "clock_seconds",
                         gg_transport_now(gg_team_transport(x->team->team, rank)), "residue", gg_exchange_residue(one));
}

static PyObject *exchange_spans(PyObject *self, PyObject *args) {
    const int rank = rank_of(self, args);
    return rank < 0 ? NULL
                    : gg_py_spans(gg_exchange_trace(exchange_of(self, rank)),
                                  gg_exchange_clock_offset(exchange_of(self, rank)));
}

static PyObject *exchange_spans_lost(PyObject *self, PyObject *args) {
    const int rank = rank_of(self, args);
    return rank < 0 ? NULL : PyLong_FromSize_t(gg_trace_lost(gg_exchange_trace(exchange_of(self, rank))));
}

static PyObject *exchange_tuning(PyObject *self, PyObject *unused) {
    (void)unused;
    return gg_py_tuning(gg_exchange_tuning(exchange_of(self, 0)));
}

PyMethodDef gg_py_exchange_state[] = {
    {"weights", exchange_weights, METH_VARARGS, "weights($self, rank=0, /)\n--\n\n"},
    {"gradients", exchange_gradients, METH_VARARGS, "gradients($self, rank=0, /)\n--\n\n"},
    {"arenas", exchange_arenas, METH_NOARGS, NULL},
    {"check_arena", exchange_check_arena, METH_O, "check_arena($self, name, /)\n--\n\n"},
    {"arena", GG_PY_KEYWORDS(exchange_arena), NULL},
    {"load_arena", GG_PY_KEYWORDS(exchange_load_arena), NULL},
    {"resume_arena", exchange_resume_arena, METH_VARARGS,
     "resume_arena($self, name, arrays, consensus, trained, /)\n--\n\n"},
    {"consensus_weights", exchange_consensus, METH_NOARGS, NULL},
    {"adopt_consensus", exchange_adopt_consensus, METH_NOARGS, NULL},
    {"tuning", exchange_tuning, METH_NOARGS, NULL},
    {"load_consensus", exchange_load_consensus, METH_O, "load_consensus($self, weights, /)\n--\n\n"},
    {"consensus_distance", exchange_distance, METH_NOARGS, NULL},
    {"set_schedule", exchange_set_schedule, METH_O, "set_schedule($self, schedule, /)\n--\n\n"},
    {"counts", exchange_counts, METH_VARARGS, "counts($self, rank=0, /)\n--\n\n"},
    {"spans", exchange_spans, METH_VARARGS, "spans($self, rank=0, /)\n--\n\n"},
    {"spans_lost", exchange_spans_lost, METH_VARARGS, "spans_lost($self, rank=0, /)\n--\n\n"},
    {NULL, NULL, 0, NULL}};
