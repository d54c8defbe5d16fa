/* Who may call into a _core.Trainer, and its replicas. */
#include "python/trainer.h"

bool gg_py_trainer_is_free(const gg_py_trainer *t) { return gg_py_exchange_is_free(t->exchange); }

bool gg_py_trainer_enter(gg_py_trainer *t) {
    if (!gg_py_trainer_is_free(t) || gg_py_team_check_collectives(t->team) < 0) return false;
    return t->exchange->busy = true;
}

bool gg_py_trainer_enter_alone(gg_py_trainer *t) { return gg_py_trainer_is_free(t) && (t->exchange->busy = true); }

void gg_py_trainer_leave(gg_py_trainer *t) { t->exchange->busy = false; }

gg_replica *gg_py_trainer_replica(gg_py_trainer *t, int rank) {
    int local = gg_team_local(t->team->team);
    if (gg_py_team_check_process(t->team) < 0) return NULL;
    if (rank >= 0 && rank < local) return gg_trainer_replica(t->trainer, rank);
    PyErr_Format(PyExc_ValueError, "rank: %d; this process has local ranks 0 to %d", rank, local - 1);
    return NULL;
}
