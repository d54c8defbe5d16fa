/* Private to the room: declarations shared by the files of _core.Trainer. */
#ifndef GG_PYTHON_TRAINER_H
#define GG_PYTHON_TRAINER_H

#include "python/exchange.h"
#include "python/python.h"

typedef struct gg_py_trainer {
    PyObject_HEAD gg_trainer *trainer;
    gg_py_graph *graph;
    gg_py_exchange *exchange; /* of the ranks' states; outlives the trainer */
    gg_py_team *team;
    gg_head_options head[GG_MAX_FIELDS]; /* of the graph's heads */
    PyObject *device;                    /* name of the computing device; NULL means the default */
    PyObject *losses;                    /* keeps the heads' class weights alive; NULL means none */
} gg_py_trainer;

/* True if no other thread is in a call: the core serves one at a time. False with an exception. */
bool gg_py_trainer_is_free(const gg_py_trainer *t);

/* Begins a call of all ranks that releases the GIL. False with an exception. */
bool gg_py_trainer_enter(gg_py_trainer *t);
void gg_py_trainer_leave(gg_py_trainer *t);

/* Begins a call of one rank, which is none of a callback's: without the check of collective calls. */
bool gg_py_trainer_enter_alone(gg_py_trainer *t);

/* GG_PY_BUSY of a trainer's exchange. */
#define GG_PY_RUN(t, entered, done, expression) GG_PY_BUSY((t)->exchange, entered, done, expression)
/* Makes a call of all ranks in a function that frees nothing, and returns on a failure. */
#define GG_PY_CALL(t, expression)                                                                                      \
    do {                                                                                                               \
        bool done_of_call;                                                                                             \
        GG_PY_RUN(t, gg_py_trainer_enter(t), done_of_call, expression);                                                \
        if (!done_of_call) return NULL;                                                                                \
    } while (0)

/* One set for each local rank; *own: these are the ranks' own parts. object: a Dataset common to all ranks, or a list
 * with one for each. *sets is freed by PyMem_Free; -1 with an exception. The sets live as long as `object`. */
int gg_py_trainer_sets(const gg_py_trainer *t, PyObject *object, const gg_dataset ***sets, bool *own);

/* True if the network has parameters of this family. */
bool gg_py_trainer_has_family(const gg_py_trainer *t, gg_family family);

/* A local rank's replica; NULL with an exception. */
gg_replica *gg_py_trainer_replica(gg_py_trainer *t, int rank);

/* Tables of methods, each ended by a NULL name. */
extern PyMethodDef gg_py_trainer_epochs[], gg_py_trainer_batches[], gg_py_trainer_state[], gg_py_trainer_measures[],
    gg_py_trainer_shrinks[];

#endif
