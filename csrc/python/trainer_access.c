/* Who may call into a _core.Trainer, and its replicas. */
#include "python/trainer.h"

bool gg_py_trainer_is_free(const gg_py_trainer *t) {
    if (gg_py_team_check_process(t->team) < 0) return false;
    if (t->busy) PyErr_SetString(PyExc_RuntimeError, "this trainer is in use by another thread");
    else if (!gg_trainer_is_whole(t->trainer))
        PyErr_SetString(PyExc_RuntimeError, "this trainer could not be reshaped and has no state any more");
    else return true;
    return false;
}

bool gg_py_trainer_enter(gg_py_trainer *t) {
    if (!gg_py_trainer_is_free(t) || gg_py_team_check_collectives(t->team) < 0) return false;
    return t->busy = true;
}

gg_replica *gg_py_trainer_replica(gg_py_trainer *t, int rank) {
    int local = gg_team_local(t->team->team);
    if (gg_py_team_check_process(t->team) < 0) return NULL;
    if (rank >= 0 && rank < local) return gg_trainer_replica(t->trainer, rank);
    PyErr_Format(PyExc_ValueError, "rank: %d; this process has local ranks 0 to %d", rank, local - 1);
    return NULL;
}

void gg_py_trainer_hold(gg_py_trainer *t, PyObject *object) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (t->held == NULL) t->held = PyList_New(0);
    /* Without memory for the list it is never freed. */
    if (t->held == NULL || PyList_Append(t->held, object) < 0) Py_INCREF(object);
    PyErr_Restore(type, value, traceback);
}
