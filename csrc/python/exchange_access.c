/* Who may call into a _core.Exchange, and a call of one rank or of all. */
#include <string.h>

#include "base/parallel.h"
#include "python/exchange.h"

PyObject *gg_py_exchange_is_in_use(const gg_py_exchange *x) {
    PyErr_Format(PyExc_RuntimeError, "this %s is in use by another thread", x->steps != NULL ? "exchange" : "trainer");
    return NULL;
}

bool gg_py_exchange_is_whole(const gg_py_exchange *x) {
    for (int i = 0; i < gg_team_local(x->team->team); ++i)
        if (!gg_exchange_is_whole(gg_peers_exchange(x->peers, i))) return false;
    return true;
}

bool gg_py_exchange_is_free(const gg_py_exchange *x) {
    if (gg_py_team_check_process(x->team) < 0) return false;
    if (x->busy) return gg_py_exchange_is_in_use(x) != NULL;
    if (gg_py_exchange_is_whole(x)) return true;
    PyErr_SetString(PyExc_RuntimeError, "this trainer could not be reshaped and has no state any more");
    return false;
}

bool gg_py_exchange_has_steps(const gg_py_exchange *x) {
    if (x->steps == NULL) PyErr_SetString(PyExc_RuntimeError, "the steps of this exchange are made by its trainer");
    return x->steps != NULL;
}

void gg_py_exchange_hold(gg_py_exchange *x, PyObject *object) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (x->held == NULL) x->held = PyList_New(0);
    /* Without memory for the list the object is never freed. */
    if (x->held == NULL || PyList_Append(x->held, object) < 0) Py_INCREF(object);
    PyErr_Restore(type, value, traceback);
}

void gg_py_exchange_adopt(gg_py_exchange *x, gg_py_option_memory *memory, bool adopted) {
    if (adopted) {
        gg_py_option_memory former = x->strategy;
        x->strategy = *memory;
        *memory = former;
    } else if (!gg_py_exchange_is_whole(x)) {
        if (memory->table != NULL) gg_py_exchange_hold(x, (PyObject *)memory->table);
        if (memory->packs != NULL) gg_py_exchange_hold(x, memory->packs);
    }
    gg_py_option_memory_clear(memory);
}

int gg_py_exchange_rank(const gg_py_exchange *x, PyObject *object) {
    if (object == Py_None) return -1;
    const int local = gg_team_local(x->team->team);
    const long rank = PyLong_AsLong(object);
    if (rank == -1 && PyErr_Occurred()) return -2;
    if (rank >= 0 && rank < local) return (int)rank;
    PyErr_Format(PyExc_ValueError, "rank: %ld; this process has local ranks 0 to %d", rank, local - 1);
    return -2;
}

int gg_py_exchange_one_rank(const gg_py_exchange *x, PyObject *object) {
    if (object != Py_None) return gg_py_exchange_rank(x, object);
    PyErr_SetString(PyExc_TypeError, "rank: None; a rank must be named");
    return -2;
}

bool gg_py_exchange_allows(const gg_py_exchange *x, int rank) {
    if (rank >= 0 && !gg_py_exchange_has_steps(x)) return false;
    if (gg_py_team_check_process(x->team) < 0 || gg_py_team_check_collectives(x->team) < 0) return false;
    const int local = gg_team_local(x->team->team);
    const bool threads = strcmp(gg_team_kind(x->team->team), "virtual") == 0;
    bool busy = x->busy;
    for (int i = 0; i < local; ++i) busy = busy || (x->rank_busy[i] && (rank < 0 || !threads));
    if (rank < 0 && threads && x->running) {
        PyErr_SetString(PyExc_RuntimeError, "a call of all ranks while `run` is under way: the function that it runs "
                                            "makes the calls of one rank, and names it");
        return false;
    }
    if (rank >= 0 && threads && (!x->running || x->thread[rank] != PyThread_get_thread_ident())) {
        PyErr_Format(PyExc_RuntimeError,
                     "a call of rank %d outside of its thread: the ranks of a virtual cluster make their calls in the "
                     "function that `run` runs, each its own",
                     rank);
        return false;
    }
    if ((rank < 0 || !threads) && busy) return gg_py_exchange_is_in_use(x) != NULL;
    if (x->steps == NULL) return gg_py_exchange_is_free(x);
    if (x->running && x->interrupted) {
        PyErr_SetString(PyExc_KeyboardInterrupt, "while `run` was under way");
        return false;
    }
    for (int i = 0; i < local; ++i)
        if ((rank < 0 || i == rank) && gg_exchange_failed(gg_peers_exchange(x->peers, i))) {
            PyErr_SetString(PyExc_RuntimeError, "an earlier call of this exchange failed in the middle of a step; "
                                                "create a new one");
            return false;
        }
    return true;
}

PyObject *gg_py_exchange_call(gg_py_exchange *x, int rank, gg_status (*fn)(void *context, int local), void *context) {
    gg_status status;
    if (!gg_py_exchange_allows(x, rank)) return NULL;
    bool *busy = rank < 0 ? &x->busy : &x->rank_busy[rank];
    *busy = true;
    Py_BEGIN_ALLOW_THREADS;
    if (rank < 0) {
        status = gg_team_run(x->team->team, fn, context);
    } else {
        const gg_float_mode former = gg_parallel_enter();
        status = fn(context, rank);
        gg_parallel_leave(former);
    }
    Py_END_ALLOW_THREADS;
    *busy = false;
    return gg_py_done(status);
}
