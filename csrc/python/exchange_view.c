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

/* The exchanges of virtual ranks that have died count as failed. */
static bool is_between_steps(const gg_py_exchange *x) {
    if (gg_py_team_check_process(x->team) < 0 || gg_py_team_check_collectives(x->team) < 0) return false;
    bool busy = x->busy || (x->running && strcmp(gg_team_kind(x->team->team), "virtual") == 0);
    for (int i = 0; i < gg_team_local(x->team->team); ++i) busy = busy || x->rank_busy[i];
    return busy ? gg_py_exchange_is_in_use(x) != NULL : true;
}

static PyObject *change_view(PyObject *self, PyObject *unused) {
    gg_py_exchange *x = (gg_py_exchange *)self;
    gg_status status;
    bool changed = false;
    (void)unused;
    if (!gg_py_exchange_has_steps(x) || !is_between_steps(x)) return NULL;
    const int local = gg_team_local(x->team->team);
    int *living = PyMem_Calloc((size_t)local, sizeof *living);
    if (living == NULL) return PyErr_NoMemory();
    x->busy = true;
    GG_PY_WITHOUT_GIL(status = gg_peers_change_view(x->peers, &changed, living));
    x->busy = false;
    PyObject *result = NULL;
    if (status == GG_OK && changed) sort_steps(x, living, gg_team_local(x->team->team));
    if (status == GG_OK) result = changed ? describe(x, living) : Py_NewRef(Py_None);
    else gg_py_raise(status);
    PyMem_Free(living);
    return result;
}

static PyObject *give(PyObject *self, PyObject *text) {
    gg_py_exchange *x = (gg_py_exchange *)self;
    gg_status status;
    bool whole = false;
    if (!PyBytes_Check(text)) return PyErr_Format(PyExc_TypeError, "text: must be bytes");
    if (!gg_py_exchange_has_steps(x) || !is_between_steps(x)) return NULL;
    const char *given = PyBytes_AS_STRING(text);
    const size_t bytes = (size_t)PyBytes_GET_SIZE(text);
    x->busy = true;
    GG_PY_WITHOUT_GIL(status = gg_peers_give(x->peers, given, bytes, &whole));
    x->busy = false;
    return status == GG_OK ? PyBool_FromLong(whole) : gg_py_raise(status);
}

static PyObject *hear(PyObject *self, PyObject *unused) {
    gg_py_exchange *x = (gg_py_exchange *)self;
    gg_status status;
    const char *text;
    size_t bytes;
    (void)unused;
    if (!gg_py_exchange_has_steps(x) || !is_between_steps(x)) return NULL;
    x->busy = true;
    GG_PY_WITHOUT_GIL(status = gg_peers_hear(x->peers, &text, &bytes));
    x->busy = false;
    return status == GG_OK ? PyBytes_FromStringAndSize(text, (Py_ssize_t)bytes) : gg_py_raise(status);
}

static PyObject *join(PyObject *self, PyObject *unused) {
    gg_py_exchange *x = (gg_py_exchange *)self;
    gg_status status;
    bool whole = false;
    (void)unused;
    if (!gg_py_exchange_has_steps(x) || !is_between_steps(x)) return NULL;
    x->busy = true;
    GG_PY_WITHOUT_GIL(status = gg_peers_join(x->peers, &whole));
    x->busy = false;
    return status == GG_OK ? PyBool_FromLong(whole) : gg_py_raise(status);
}

PyMethodDef gg_py_exchange_view[] = {{"check_survival", check_survival, METH_NOARGS, NULL},
                                     {"change_view", change_view, METH_NOARGS, NULL},
                                     {"give", give, METH_O, "give($self, text, /)\n--\n\n"},
                                     {"hear", hear, METH_NOARGS, NULL},
                                     {"join", join, METH_NOARGS, NULL},
                                     {NULL, NULL, 0, NULL}};
