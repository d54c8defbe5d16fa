/* _core.Exchange: changes of the view, where ranks may die. */
#include <string.h>

#include "python/exchange.h"

static PyObject *check_survival(PyObject *self, PyObject *unused) {
    const gg_py_exchange *x = (gg_py_exchange *)self;
    (void)unused;
    if (gg_py_team_check_process(x->team) < 0) return NULL;
    if (gg_team_grows(x->team->team))
        return PyErr_Format(PyExc_ValueError, "joins= and --respawn: allowed for the fit of a gossipgrad.Trainer, not "
                                              "for gossipgrad.Exchange and wrapped modules");
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

static PyObject *list_ranks(const int *ranks, int count) {
    PyObject *list = PyList_New(0);
    for (int i = 0; i < count; ++i) list = gg_py_append(list, PyLong_FromLong(ranks[i]));
    return list;
}

static PyObject *describe(const gg_py_exchange *x, const int *living) {
    gg_team *team = x->team->team;
    const gg_view *view = gg_team_view(team);
    PyObject *made = PyList_New(0);
    for (int i = 0; i < view->dead; ++i)
        made = gg_py_append(made, PyLong_FromLongLong(gg_team_made(team, view->died[i])));
    PyObject *dict = Py_BuildValue("{sLsL}", "view", (long long)view->number, "step", (long long)view->start);
    dict = gg_py_put(dict, "ranks", list_ranks(view->member, view->members));
    dict = gg_py_put(dict, "died", list_ranks(view->died, view->dead));
    dict = gg_py_put(dict, "last_steps", gg_py_integers(view->last, view->dead));
    dict = gg_py_put(dict, "made", made);
    return gg_py_put(dict, "local", list_ranks(living, gg_team_local(team)));
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

PyMethodDef gg_py_exchange_view[] = {{"check_survival", check_survival, METH_NOARGS, NULL},
                                     {"change_view", change_view, METH_NOARGS, NULL},
                                     {NULL, NULL, 0, NULL}};
