/* _core.Exchange: changes of the view, where ranks may die and join. */
#include <string.h>

#include "python/exchange.h"

static PyObject *check_survival(PyObject *self, PyObject *unused) {
    const gg_py_exchange *x = (gg_py_exchange *)self;
    (void)unused;
    if (gg_py_team_check_process(x->team) < 0) return NULL;
    return gg_py_done(gg_strategy_check_survival(&gg_exchange_asked(gg_peers_exchange(x->peers, 0))->strategy, true));
}

/* Steps of the local ranks that live come first, in their new order; those of the dead follow. */
static void sort_steps(gg_py_exchange *x, const int *living, int count) {
    for (int i = 0; i < count; ++i) {
        gg_steps *one = x->steps[living[i]];
        memmove(&x->steps[i + 1], &x->steps[i], (size_t)(living[i] - i) * sizeof(gg_steps *));
        x->steps[i] = one;
    }
}

static PyObject *describe(const gg_py_exchange *x, const int *living) {
    gg_team *team = x->team->team;
    const gg_view *view = gg_team_view(team);
    PyObject *made = PyList_New(0);
    for (int i = 0; i < view->dead; ++i)
        made = gg_py_append(made, PyLong_FromLongLong(gg_team_made(team, view->died[i])));
    PyObject *dict = gg_py_view(view->number, view->start, view->member, view->members);
    dict = gg_py_put(dict, "died", gg_py_ranks(view->died, view->dead));
    dict = gg_py_put(dict, "last_steps", gg_py_integers(view->last, view->dead));
    dict = gg_py_put(dict, "made", made);
    dict = gg_py_put(dict, "gives", PyBool_FromLong(gg_team_next_taker(team, 0, -1) >= 0));
    return gg_py_put(dict, "local", gg_py_ranks(living, gg_team_local(team)));
}

/* Begins a call between two steps. The exchanges of virtual ranks that have died count as failed. */
static bool enter(gg_py_exchange *x) {
    if (!gg_py_exchange_has_steps(x)) return false;
    if (gg_py_team_check_process(x->team) < 0 || gg_py_team_check_collectives(x->team) < 0) return false;
    bool busy = x->busy || (x->running && strcmp(gg_team_kind(x->team->team), "virtual") == 0);
    for (int i = 0; i < gg_team_local(x->team->team); ++i) busy = busy || x->rank_busy[i];
    if (busy) return gg_py_exchange_is_in_use(x) != NULL;
    return x->busy = true;
}

static PyObject *change_view(PyObject *self, PyObject *unused) {
    gg_py_exchange *x = (gg_py_exchange *)self;
    bool changed = false, done;
    (void)unused;
    int *living = PyMem_Calloc((size_t)gg_team_local(x->team->team), sizeof *living);
    if (living == NULL) return PyErr_NoMemory();
    GG_PY_BUSY(x, enter(x), done, gg_peers_change_view(x->peers, &changed, living));
    PyObject *result = NULL;
    if (done && changed) sort_steps(x, living, gg_team_local(x->team->team));
    if (done) result = changed ? describe(x, living) : Py_NewRef(Py_None);
    PyMem_Free(living);
    return result;
}

static PyObject *give(PyObject *self, PyObject *text) {
    gg_py_exchange *x = (gg_py_exchange *)self;
    bool whole = false, done;
    if (!PyBytes_Check(text)) return PyErr_Format(PyExc_TypeError, "text: must be bytes");
    const char *given = PyBytes_AS_STRING(text);
    const size_t bytes = (size_t)PyBytes_GET_SIZE(text);
    GG_PY_BUSY(x, enter(x), done, gg_peers_give(x->peers, given, bytes, &whole));
    return done ? PyBool_FromLong(whole) : NULL;
}

static PyObject *hear(PyObject *self, PyObject *unused) {
    gg_py_exchange *x = (gg_py_exchange *)self;
    const char *text;
    size_t bytes;
    bool done;
    (void)unused;
    GG_PY_BUSY(x, enter(x), done, gg_peers_hear(x->peers, &text, &bytes));
    return done ? PyBytes_FromStringAndSize(text, (Py_ssize_t)bytes) : NULL;
}

static PyObject *join(PyObject *self, PyObject *unused) {
    gg_py_exchange *x = (gg_py_exchange *)self;
    bool whole = false, done;
    (void)unused;
    GG_PY_BUSY(x, enter(x), done, gg_peers_join(x->peers, &whole));
    return done ? PyBool_FromLong(whole) : NULL;
}

PyMethodDef gg_py_exchange_view[] = {{"check_survival", check_survival, METH_NOARGS, NULL},
                                     {"change_view", change_view, METH_NOARGS, NULL},
                                     {"give", give, METH_O, "give($self, text, /)\n--\n\n"},
                                     {"hear", hear, METH_NOARGS, NULL},
                                     {"join", join, METH_NOARGS, NULL},
                                     {NULL, NULL, 0, NULL}};
